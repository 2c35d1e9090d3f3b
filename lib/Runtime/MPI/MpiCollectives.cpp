//===- MpiCollectives.cpp - Blocks as messages of MPI ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "MpiCollectives.h"

#include <algorithm>

using namespace cleave::runtime;

static MPI_Datatype typeOf(int32_t dtype) {
  // MPI does not compute sums: only sizes matter.
  switch (elementBytes(dtype)) {
  case 1:
    return MPI_INT8_T;
  case 2:
    return MPI_INT16_T;
  case 4:
    return MPI_INT32_T;
  default:
    return MPI_INT64_T;
  }
}

/// Whether messages of all members are sent to one of them.
static bool gathers(int32_t kind) {
  return kind == CLEAVE_ALL_GATHER || kind == CLEAVE_REDUCE ||
         kind == CLEAVE_REDUCE_SCATTER || kind == CLEAVE_ALL_TO_ALL;
}

MpiTransfer::MpiTransfer(const cleave_collective *given, int32_t count,
                         MPI_Comm comm, int member, int members, int tag,
                         int64_t limit, const cleave_team &team,
                         Staging &staging)
    : MessageTransfer(given, count, member, members, team, staging), comm(comm),
      type(typeOf(dtype)), tag(tag) {
  cutPieces(limit);
  if (kind == CLEAVE_ALL_TO_ALL_ROWS)
    for (std::vector<int> *list :
         {&rowsSent, &sendStarts, &rowsReceived, &receiveStarts})
      list->resize(static_cast<size_t>(members));
  if (shared)
    incomingBytes = static_cast<size_t>((pieces.back().incoming +
                                         pieces.back().ownStarts.back() +
                                         pieces.back().ownCounts.back()) *
                                        bytes);
}

void MpiTransfer::cutPieces(int64_t limit) {
  bool all = gathers(kind) || (kind == CLEAVE_ALL_REDUCE && !shared);
  int64_t most = std::max<int64_t>(1, limit / bytes / (all ? members : 1));
  int64_t begin = 0, incoming = 0;
  do {
    Piece &piece = pieces.emplace_back();
    piece.begin = begin;
    piece.count = std::min(most, elements - begin);
    piece.incoming = incoming;
    begin += piece.count;
    if (!shared) {
      incoming += piece.count * (all ? members : 1);
      continue;
    }
    for (int i = 0; i < members; ++i) {
      int64_t start = shareBegin(piece.count, i, members);
      piece.starts.push_back(static_cast<int>(start));
      piece.counts.push_back(
          static_cast<int>(shareBegin(piece.count, i + 1, members) - start));
    }
    int own = piece.counts[static_cast<size_t>(member)];
    for (int i = 0; i < members; ++i) {
      piece.ownCounts.push_back(own);
      piece.ownStarts.push_back(i * own);
    }
    incoming += int64_t(own) * members;
  } while (begin < elements);
}

//===----------------------------------------------------------------------===//
// Messages
//===----------------------------------------------------------------------===//

/// `offset` bytes after the beginning; null if there is no memory.
static char *placeIn(const StagingBuffer &buffer, int64_t offset) {
  return buffer.data() ? buffer.data() + offset : nullptr;
}

bool MpiTransfer::start() {
  if (!takeMemory())
    return false;
  if (kind == CLEAVE_ALL_TO_ALL_ROWS) {
    packRows(outgoing.data());
    int count = static_cast<int>(RowOffsets::count(members));
    MPI_Iallgather(outgoing.data(), count, MPI_INT64_T, incoming.data(), count,
                   MPI_INT64_T, comm, &requests.emplace_back(MPI_REQUEST_NULL));
    return true;
  }
  for (const Piece &piece : pieces)
    startPiece(piece);
  return true;
}

void MpiTransfer::startPiece(const Piece &piece) {
  int count = static_cast<int>(piece.count);
  char *out = placeIn(outgoing, piece.begin * bytes);
  char *in = placeIn(incoming, piece.incoming * bytes);
  auto next = [&] { return &requests.emplace_back(MPI_REQUEST_NULL); };
  switch (kind) {
  case CLEAVE_ALL_REDUCE:
    pack(0, piece.begin, piece.count, out);
    if (shared)
      MPI_Ialltoallv(out, piece.counts.data(), piece.starts.data(), type, in,
                     piece.ownCounts.data(), piece.ownStarts.data(), type, comm,
                     next());
    else
      MPI_Iallgather(out, count, type, in, count, type, comm, next());
    return;
  case CLEAVE_ALL_GATHER:
    pack(0, piece.begin, piece.count, out);
    MPI_Iallgather(out, count, type, in, count, type, comm, next());
    return;
  case CLEAVE_REDUCE:
    pack(0, piece.begin, piece.count, out);
    MPI_Igather(out, count, type, in, count, type, root, comm, next());
    return;
  case CLEAVE_REDUCE_SCATTER:
  case CLEAVE_ALL_TO_ALL:
    // Each member has the same number of elements for each other one.
    out = outgoing.data() + piece.incoming * bytes;
    for (int i = 0; i < members; ++i)
      pack(i, piece.begin, piece.count, out + i * piece.count * bytes);
    MPI_Ialltoall(out, count, type, in, count, type, comm, next());
    return;
  case CLEAVE_PERMUTE:
    pack(0, piece.begin, piece.count, out);
    MPI_Irecv(in, count, type, sources[static_cast<size_t>(member)], tag, comm,
              next());
    for (int i = 0; i < members; ++i)
      if (sources[static_cast<size_t>(i)] == member)
        MPI_Isend(out, count, type, i, tag, comm, next());
    return;
  case CLEAVE_SEND:
    if (member == 0) {
      pack(0, piece.begin, piece.count, out);
      MPI_Isend(out, count, type, 1, tag, comm, next());
    } else {
      MPI_Irecv(in, count, type, 0, tag, comm, next());
    }
    return;
  default:
    if (root == member)
      pack(0, piece.begin, piece.count, in);
    MPI_Ibcast(in, count, type, root, comm, next());
  }
}

bool MpiTransfer::finish(const Complete &complete) {
  // After a failure MPI may still write there.
  if (!completeAll(complete))
    return false;
  if (kind == CLEAVE_ALL_TO_ALL_ROWS) {
    if (!startRows() || !completeAll(complete))
      return false;
    deliverRows(incoming.data(), outgoing.data());
    giveMemory();
    return true;
  }
  if (shared) {
    // Combines this member's share of each piece, and then gathers those of
    // all.
    for (const Piece &piece : pieces) {
      char *out = outgoing.data() + piece.begin * bytes;
      size_t me = static_cast<size_t>(member);
      reduceParts(incoming.data() + piece.incoming * bytes, piece.counts[me],
                  out + piece.starts[me] * bytes);
      MPI_Iallgatherv(MPI_IN_PLACE, 0, type, out, piece.counts.data(),
                      piece.starts.data(), type, comm,
                      &requests.emplace_back(MPI_REQUEST_NULL));
    }
    if (!completeAll(complete))
      return false;
  }
  for (const Piece &piece : pieces)
    deliver(placeIn(incoming, piece.incoming * bytes),
            placeIn(outgoing, piece.begin * bytes), piece.begin, piece.count);
  giveMemory();
  return true;
}

bool MpiTransfer::startRows() {
  if (!agreeOnRows(incoming.data()))
    return false;
  for (int i = 0; i < members; ++i) {
    size_t at = static_cast<size_t>(i);
    // Those that stay here are copied.
    bool other = i != member;
    rowsSent[at] = other ? static_cast<int>(rowOffsets.rows(member, i)) : 0;
    sendStarts[at] = static_cast<int>(rowOffsets.sendBegin(member, i));
    rowsReceived[at] = other ? static_cast<int>(rowOffsets.rows(i, member)) : 0;
    receiveStarts[at] = static_cast<int>(rowOffsets.receiveBegin(member, i));
  }
  MPI_Datatype row;
  MPI_Type_contiguous(static_cast<int>(rowElements), type, &row);
  MPI_Type_commit(&row);
  MPI_Ialltoallv(outgoing.data() + offsetBytes(), rowsSent.data(),
                 sendStarts.data(), row,
                 incoming.data() + offsetBytes() * members, rowsReceived.data(),
                 receiveStarts.data(), row, comm,
                 &requests.emplace_back(MPI_REQUEST_NULL));
  // It stays until what uses it is complete.
  MPI_Type_free(&row);
  return true;
}

bool MpiTransfer::completeAll(const Complete &complete) {
  bool ok = complete(requests);
  requests.clear();
  return ok;
}
