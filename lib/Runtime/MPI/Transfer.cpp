//===- Transfer.cpp - Blocks as messages of MPI ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Transfer.h"

#include <climits>

using namespace cleave::runtime;

/// Smaller sums are sent whole to everyone and added up by everyone: one
/// exchange instead of two.
static constexpr int64_t smallElements = 2048;

static MPI_Datatype typeOf(int32_t dtype) {
  // Sums are not MPI's: only sizes count.
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

/// Of all blocks.
static int64_t elementsOf(const cleave_collective *blocks, int32_t count) {
  int64_t all = 0;
  for (int32_t i = 0; i < count; ++i) {
    int64_t n = 1;
    for (int d = 0; d < blocks[i].dims; ++d)
      n *= blocks[i].sizes[d];
    all += n;
  }
  return all;
}

std::string Transfer::check(const cleave_collective *blocks, int32_t count,
                            int members) {
  int64_t all = 0;
  // Counts and places of MPI are int.
  if (__builtin_mul_overflow(elementsOf(blocks, count), members, &all) ||
      all > INT_MAX)
    return "a collective of more than 2^31 elements is too large for MPI";
  return "";
}

Transfer::Transfer(const cleave_collective *given, int32_t count, MPI_Comm comm,
                   int member, int members, int tag, const cleave_team &team,
                   Staging &staging)
    : kind(given->kind), dtype(given->dtype), reduction(given->reduction),
      root(given->root), comm(comm), type(typeOf(dtype)), member(member),
      members(members), tag(tag), team(team),
      elements(elementsOf(given, count)), bytes(elementBytes(dtype)),
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
  size_t one = static_cast<size_t>(elements * bytes), all = one * n;
  switch (kind) {
  case CLEAVE_ALL_REDUCE:
    outgoingBytes = one;
    if (elements <= smallElements) {
      incomingBytes = all;
      break;
    }
    for (int i = 0; i < members; ++i) {
      int64_t begin = shareBegin(elements, i, members);
      starts.push_back(static_cast<int>(begin));
      counts.push_back(
          static_cast<int>(shareBegin(elements, i + 1, members) - begin));
    }
    for (int i = 0; i < members; ++i) {
      pieceCounts.push_back(counts[static_cast<size_t>(member)]);
      pieceStarts.push_back(i * pieceCounts.back());
    }
    incomingBytes =
        static_cast<size_t>(pieceCounts[0]) * n * static_cast<size_t>(bytes);
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
  default:
    outgoingBytes = one;
    incomingBytes = one;
  }
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

void Transfer::pack(int to, char *message) const {
  for (const Packed &block : blocks) {
    const char *src =
        block.src + block.srcOffsets[static_cast<size_t>(to)] * bytes;
    int64_t n = block.gather.elements;
    splitAmong(team, 0, n, [&](int64_t begin, int64_t end) {
      copyBlock(block.gather, bytes, src, message, begin, end);
    });
    message += n * bytes;
  }
}

void Transfer::unpack(const char *message, int from) const {
  for (const Packed &block : blocks) {
    char *dst = block.dst + block.dstOffsets[static_cast<size_t>(from)] * bytes;
    int64_t n = block.scatter.elements;
    splitAmong(team, 0, n, [&](int64_t begin, int64_t end) {
      copyBlock(block.scatter, bytes, message, dst, begin, end);
    });
    message += n * bytes;
  }
}

/// Combines the pieces of all members, each of `count` elements.
void Transfer::reducePieces(int64_t count, char *to) const {
  int64_t stride = 1;
  Block piece(1, &count, &stride, &stride);
  std::vector<const void *> srcs;
  for (int i = 0; i < members; ++i)
    srcs.push_back(incoming.data() + i * count * bytes);
  void *dst = to;
  splitAmong(team, 0, count, [&](int64_t begin, int64_t end) {
    reduceBlocks(piece, dtype, reduction, srcs.data(), members, &dst, 1, begin,
                 end);
  });
}

//===----------------------------------------------------------------------===//
// Messages
//===----------------------------------------------------------------------===//

void Transfer::start() {
  outgoing = staging.take(outgoingBytes);
  incoming = staging.take(incomingBytes);
  int count = static_cast<int>(elements);
  int64_t one = elements * bytes;
  MPI_Request &request = requests.emplace_back(MPI_REQUEST_NULL);
  switch (kind) {
  case CLEAVE_ALL_REDUCE:
    pack(0, outgoing.data());
    if (counts.empty())
      MPI_Iallgather(outgoing.data(), count, type, incoming.data(), count, type,
                     comm, &request);
    else
      MPI_Ialltoallv(outgoing.data(), counts.data(), starts.data(), type,
                     incoming.data(), pieceCounts.data(), pieceStarts.data(),
                     type, comm, &request);
    return;
  case CLEAVE_ALL_GATHER:
    pack(0, outgoing.data());
    MPI_Iallgather(outgoing.data(), count, type, incoming.data(), count, type,
                   comm, &request);
    return;
  case CLEAVE_REDUCE:
    pack(0, outgoing.data());
    MPI_Igather(outgoing.data(), count, type, incoming.data(), count, type,
                root, comm, &request);
    return;
  case CLEAVE_REDUCE_SCATTER:
  case CLEAVE_ALL_TO_ALL:
    for (int i = 0; i < members; ++i)
      pack(i, outgoing.data() + i * one);
    MPI_Ialltoall(outgoing.data(), count, type, incoming.data(), count, type,
                  comm, &request);
    return;
  case CLEAVE_PERMUTE:
    pack(0, outgoing.data());
    requests.clear();
    MPI_Irecv(incoming.data(), count, type,
              sources[static_cast<size_t>(member)], tag, comm,
              &requests.emplace_back(MPI_REQUEST_NULL));
    for (int i = 0; i < members; ++i)
      if (sources[static_cast<size_t>(i)] == member)
        MPI_Isend(outgoing.data(), count, type, i, tag, comm,
                  &requests.emplace_back(MPI_REQUEST_NULL));
    return;
  case CLEAVE_SEND:
    if (member == 0) {
      pack(0, outgoing.data());
      MPI_Isend(outgoing.data(), count, type, 1, tag, comm, &request);
    } else {
      MPI_Irecv(incoming.data(), count, type, 0, tag, comm, &request);
    }
    return;
  default:
    if (root == member)
      pack(0, incoming.data());
    MPI_Ibcast(incoming.data(), count, type, root, comm, &request);
  }
}

bool Transfer::finish(const Complete &complete) {
  // After a failure MPI may still write there.
  if (!finishMessages(complete))
    return false;
  staging.give(outgoing);
  staging.give(incoming);
  return true;
}

bool Transfer::finishMessages(const Complete &complete) {
  bool ok = complete(requests);
  requests.clear();
  if (!ok)
    return false;
  int64_t one = elements * bytes;
  switch (kind) {
  case CLEAVE_ALL_REDUCE:
    if (counts.empty()) {
      reducePieces(elements, outgoing.data());
    } else {
      // This member's share, and then those of all.
      size_t me = static_cast<size_t>(member);
      char *own = outgoing.data() + starts[me] * bytes;
      reducePieces(counts[me], own);
      MPI_Iallgatherv(MPI_IN_PLACE, 0, type, outgoing.data(), counts.data(),
                      starts.data(), type, comm,
                      &requests.emplace_back(MPI_REQUEST_NULL));
      ok = complete(requests);
      requests.clear();
      if (!ok)
        return false;
    }
    unpack(outgoing.data(), 0);
    return true;
  case CLEAVE_REDUCE:
    if (root != member)
      return true;
    [[fallthrough]];
  case CLEAVE_REDUCE_SCATTER:
    reducePieces(elements, outgoing.data());
    unpack(outgoing.data(), 0);
    return true;
  case CLEAVE_ALL_GATHER:
  case CLEAVE_ALL_TO_ALL:
    for (int i = 0; i < members; ++i)
      unpack(incoming.data() + i * one, i);
    return true;
  case CLEAVE_SEND:
    if (member == 1)
      unpack(incoming.data(), 0);
    return true;
  default:
    unpack(incoming.data(), 0);
    return true;
  }
}
