//===- MpiCollectives.cpp - Blocks as messages of MPI ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "MpiCollectives.h"

#include <algorithm>

using namespace cleave::runtime;

/// Smaller sums are sent whole to all members, and each adds them up: one
/// exchange instead of two.
static constexpr int64_t smallElements = 2048;

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

std::string Transfer::check(const cleave_collective *blocks, int32_t count,
                            int members) {
  // The largest number of elements sent and received.
  int64_t all = 0;
  for (int32_t i = 0; i < count; ++i) {
    int64_t n = 1;
    for (int d = 0; d < blocks[i].dims; ++d)
      n *= blocks[i].sizes[d];
    if (__builtin_add_overflow(all, n, &all))
      return "a message has too many elements";
  }
  if (__builtin_mul_overflow(all, 2 * elementBytes(blocks->dtype), &all) ||
      __builtin_mul_overflow(all, int64_t(members), &all))
    return "a message has too many elements";
  return "";
}

/// Whether messages of all members are sent to one of them.
static bool gathers(int32_t kind) {
  return kind == CLEAVE_ALL_GATHER || kind == CLEAVE_REDUCE ||
         kind == CLEAVE_REDUCE_SCATTER || kind == CLEAVE_ALL_TO_ALL;
}

Transfer::Transfer(const cleave_collective *given, int32_t count, MPI_Comm comm,
                   int member, int members, int tag, int64_t limit,
                   const cleave_team &team, Staging &staging)
    : kind(given->kind), dtype(given->dtype), reduction(given->reduction),
      root(given->root), comm(comm), type(typeOf(dtype)), member(member),
      members(members), tag(tag), team(team),
      elements(countElements(given, count)), bytes(elementBytes(dtype)),
      shared(kind == CLEAVE_ALL_REDUCE && elements > smallElements),
      staging(staging) {
  size_t n = static_cast<size_t>(members);
  auto listOf = [&](const auto *list) {
    std::vector<std::decay_t<decltype(*list)>> result(n);
    if (list)
      result.assign(list, list + n);
    return result;
  };
  sources = listOf(given->sources);
  for (int32_t i = 0; i < count; ++i) {
    const cleave_collective &c = given[i];
    int64_t dense[CLEAVE_BLOCK_DIMS];
    denseStrides(c.dims, c.sizes, dense);
    blocks.push_back({static_cast<const char *>(c.src),
                      static_cast<char *>(c.dst), listOf(c.src_offsets),
                      listOf(c.dst_offsets),
                      Block(c.dims, c.sizes, c.src_strides, dense),
                      Block(c.dims, c.sizes, dense, c.dst_strides)});
  }
  cutPieces(limit);

  size_t one = static_cast<size_t>(elements * bytes), all = one * n;
  switch (kind) {
  case CLEAVE_ALL_REDUCE:
    outgoingBytes = one;
    incomingBytes = all;
    if (shared)
      incomingBytes = static_cast<size_t>((pieces.back().incoming +
                                           pieces.back().ownStarts.back() +
                                           pieces.back().ownCounts.back()) *
                                          bytes);
    break;
  case CLEAVE_REDUCE_SCATTER:
  case CLEAVE_ALL_TO_ALL:
    outgoingBytes = all;
    incomingBytes = all;
    break;
  case CLEAVE_ALL_GATHER:
    outgoingBytes = one;
    incomingBytes = all;
    break;
  case CLEAVE_SEND:
    (member == 0 ? outgoingBytes : incomingBytes) = one;
    break;
  case CLEAVE_REDUCE:
    outgoingBytes = one;
    incomingBytes = root == member ? all : 0;
    break;
  case CLEAVE_BROADCAST:
    incomingBytes = one;
    break;
  default:
    outgoingBytes = one;
    incomingBytes = one;
  }
}

void Transfer::cutPieces(int64_t limit) {
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
// Memory
//===----------------------------------------------------------------------===//

/// Calls `body(block, begin, end, at)` for each block that contains some of the
/// `count` elements of a message from `begin` on: the range of its elements,
/// and the offset of its first one relative to `begin` (negative if it is
/// before).
template <typename F>
static void forEachBlock(const std::vector<Transfer::Packed> &blocks,
                         int64_t begin, int64_t count, const F &body) {
  int64_t at = -begin;
  for (const Transfer::Packed &block : blocks) {
    int64_t n = block.gather.elements;
    int64_t from = std::max<int64_t>(0, -at), to = std::min(n, count - at);
    if (from < to)
      body(block, from, to, at);
    at += n;
  }
}

void Transfer::pack(int to, const Piece &piece, char *message) const {
  forEachBlock(
      blocks, piece.begin, piece.count,
      [&](const Packed &block, int64_t first, int64_t last, int64_t at) {
        const char *src =
            block.src + block.srcOffsets[static_cast<size_t>(to)] * bytes;
        splitAmong(team, first, last, [&](int64_t begin, int64_t end) {
          copyBlock(block.gather, bytes, src, message + at * bytes, begin, end);
        });
      });
}

void Transfer::unpack(const char *message, int from, const Piece &piece) const {
  forEachBlock(
      blocks, piece.begin, piece.count,
      [&](const Packed &block, int64_t first, int64_t last, int64_t at) {
        char *dst =
            block.dst + block.dstOffsets[static_cast<size_t>(from)] * bytes;
        splitAmong(team, first, last, [&](int64_t begin, int64_t end) {
          copyBlock(block.scatter, bytes, message + at * bytes, dst, begin,
                    end);
        });
      });
}

/// Combines the data of all members, `count` elements each, from `from` on.
void Transfer::reduceParts(const char *from, int64_t count, char *to) const {
  int64_t stride = 1;
  Block part(1, &count, &stride, &stride);
  std::vector<const void *> srcs;
  for (int i = 0; i < members; ++i)
    srcs.push_back(from + i * count * bytes);
  void *dst = to;
  splitAmong(team, 0, count, [&](int64_t begin, int64_t end) {
    reduceBlocks(part, dtype, reduction, srcs.data(), members, &dst, 1, begin,
                 end);
  });
}

//===----------------------------------------------------------------------===//
// Messages
//===----------------------------------------------------------------------===//

/// `offset` bytes after the beginning; null if there is no memory.
static char *placeIn(const StagingBuffer &buffer, int64_t offset) {
  return buffer.data() ? buffer.data() + offset : nullptr;
}

bool Transfer::start() {
  outgoing = staging.take(outgoingBytes);
  incoming = staging.take(incomingBytes);
  if ((outgoingBytes && !outgoing.data()) ||
      (incomingBytes && !incoming.data()))
    return false;
  for (const Piece &piece : pieces)
    startPiece(piece);
  return true;
}

void Transfer::startPiece(const Piece &piece) {
  int count = static_cast<int>(piece.count);
  char *out = placeIn(outgoing, piece.begin * bytes);
  char *in = placeIn(incoming, piece.incoming * bytes);
  auto next = [&] { return &requests.emplace_back(MPI_REQUEST_NULL); };
  switch (kind) {
  case CLEAVE_ALL_REDUCE:
    pack(0, piece, out);
    if (shared)
      MPI_Ialltoallv(out, piece.counts.data(), piece.starts.data(), type, in,
                     piece.ownCounts.data(), piece.ownStarts.data(), type, comm,
                     next());
    else
      MPI_Iallgather(out, count, type, in, count, type, comm, next());
    return;
  case CLEAVE_ALL_GATHER:
    pack(0, piece, out);
    MPI_Iallgather(out, count, type, in, count, type, comm, next());
    return;
  case CLEAVE_REDUCE:
    pack(0, piece, out);
    MPI_Igather(out, count, type, in, count, type, root, comm, next());
    return;
  case CLEAVE_REDUCE_SCATTER:
  case CLEAVE_ALL_TO_ALL:
    // Each member has the same number of elements for each other one.
    out = outgoing.data() + piece.incoming * bytes;
    for (int i = 0; i < members; ++i)
      pack(i, piece, out + i * piece.count * bytes);
    MPI_Ialltoall(out, count, type, in, count, type, comm, next());
    return;
  case CLEAVE_PERMUTE:
    pack(0, piece, out);
    MPI_Irecv(in, count, type, sources[static_cast<size_t>(member)], tag, comm,
              next());
    for (int i = 0; i < members; ++i)
      if (sources[static_cast<size_t>(i)] == member)
        MPI_Isend(out, count, type, i, tag, comm, next());
    return;
  case CLEAVE_SEND:
    if (member == 0) {
      pack(0, piece, out);
      MPI_Isend(out, count, type, 1, tag, comm, next());
    } else {
      MPI_Irecv(in, count, type, 0, tag, comm, next());
    }
    return;
  default:
    if (root == member)
      pack(0, piece, in);
    MPI_Ibcast(in, count, type, root, comm, next());
  }
}

bool Transfer::finish(const Complete &complete) {
  // After a failure MPI may still write there.
  if (!completeAll(complete))
    return false;
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
    finishPiece(piece);
  staging.give(outgoing);
  staging.give(incoming);
  return true;
}

bool Transfer::completeAll(const Complete &complete) {
  bool ok = complete(requests);
  requests.clear();
  return ok;
}

void Transfer::finishPiece(const Piece &piece) const {
  const char *in = placeIn(incoming, piece.incoming * bytes);
  char *out = placeIn(outgoing, piece.begin * bytes);
  switch (kind) {
  case CLEAVE_REDUCE:
    if (root != member)
      return;
    [[fallthrough]];
  case CLEAVE_ALL_REDUCE:
  case CLEAVE_REDUCE_SCATTER:
    if (!shared)
      reduceParts(in, piece.count, out);
    return unpack(out, 0, piece);
  case CLEAVE_ALL_GATHER:
  case CLEAVE_ALL_TO_ALL:
    for (int i = 0; i < members; ++i)
      unpack(in + i * piece.count * bytes, i, piece);
    return;
  case CLEAVE_SEND:
    if (member == 1)
      unpack(in, 0, piece);
    return;
  default:
    unpack(in, 0, piece);
  }
}
