//===- MessageTransfer.cpp - Blocks as messages ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "MessageTransfer.h"

#include <algorithm>
#include <cstring>

using namespace cleave::runtime;

/// Smaller sums are sent whole to all members, and each adds them up: one
/// exchange instead of two.
static constexpr int64_t smallElements = 2048;

std::string MessageTransfer::check(const cleave_collective *blocks,
                                   int32_t count, int members) {
  // The largest number of bytes sent and received.
  int64_t all = 0;
  for (int32_t i = 0; i < count; ++i) {
    int64_t n = 1;
    for (int d = 0; d < blocks[i].dims; ++d)
      n *= blocks[i].sizes[d];
    if (blocks[i].kind == CLEAVE_ALL_TO_ALL_ROWS) {
      // MPI counts rows, and the elements of one, by int.
      int64_t row = 1;
      for (int d = 1; d < blocks[i].dims; ++d)
        row *= blocks[i].sizes[d];
      if (std::max({row, blocks[i].sizes[0], blocks[i].bound}) > INT32_MAX ||
          __builtin_add_overflow(n, row * blocks[i].bound, &n))
        return "a message has too many elements";
    }
    if (__builtin_add_overflow(all, n, &all))
      return "a message has too many elements";
  }
  if (__builtin_mul_overflow(all, 2 * elementBytes(blocks->dtype), &all) ||
      __builtin_mul_overflow(all, int64_t(members), &all))
    return "a message has too many elements";
  return "";
}

MessageTransfer::MessageTransfer(const cleave_collective *given, int32_t count,
                                 int member, int members,
                                 const cleave_team &team, Staging &staging)
    : kind(given->kind), dtype(given->dtype), reduction(given->reduction),
      root(given->root), member(member), members(members), team(team),
      elements(countElements(given, count)), bytes(elementBytes(dtype)),
      shared(kind == CLEAVE_ALL_REDUCE && elements > smallElements),
      rowOffsets(members), sendOffsets(given->send_offsets),
      receiveOffsets(given->receive_offsets), staging(staging),
      parts(static_cast<size_t>(members)) {
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
  outgoingBytes = incomingBytes = one;
  switch (kind) {
  case CLEAVE_ALL_REDUCE:
  case CLEAVE_ALL_GATHER:
    incomingBytes = all;
    break;
  case CLEAVE_REDUCE_SCATTER:
  case CLEAVE_ALL_TO_ALL:
    outgoingBytes = incomingBytes = all;
    break;
  case CLEAVE_SEND:
    (member == 0 ? incomingBytes : outgoingBytes) = 0;
    break;
  case CLEAVE_REDUCE:
    incomingBytes = root == member ? all : 0;
    break;
  case CLEAVE_BROADCAST:
    outgoingBytes = 0;
    break;
  case CLEAVE_ALL_TO_ALL_ROWS:
    for (int d = 1; d < given->dims; ++d)
      rowElements *= given->sizes[d];
    rowsHeld = given->sizes[0];
    bound = given->bound;
    outgoingBytes = static_cast<size_t>(offsetBytes()) + one;
    incomingBytes = static_cast<size_t>(offsetBytes()) * n +
                    static_cast<size_t>(bound * rowElements * bytes);
    break;
  }
}

bool MessageTransfer::takeMemory() {
  outgoing = staging.take(outgoingBytes);
  incoming = staging.take(incomingBytes);
  return (!outgoingBytes || outgoing.data()) &&
         (!incomingBytes || incoming.data());
}

void MessageTransfer::giveMemory() {
  staging.give(outgoing);
  staging.give(incoming);
}

/// Calls `body(block, begin, end, at)` for each block that contains some of the
/// `count` elements of a message from `begin` on: the range of its elements,
/// and the offset of its first one relative to `begin` (negative if it is
/// before).
template <typename F>
void MessageTransfer::forEachBlock(int64_t begin, int64_t count,
                                   const F &body) const {
  int64_t at = -begin;
  for (const Packed &block : blocks) {
    int64_t n = block.gather.elements;
    int64_t from = std::max<int64_t>(0, -at), to = std::min(n, count - at);
    if (from < to)
      body(block, from, to, at);
    at += n;
  }
}

void MessageTransfer::pack(int to, int64_t begin, int64_t count,
                           char *message) const {
  forEachBlock(
      begin, count,
      [&](const Packed &block, int64_t first, int64_t last, int64_t at) {
        const char *src =
            block.src + block.srcOffsets[static_cast<size_t>(to)] * bytes;
        splitAmong(team, first, last, [&](int64_t begin, int64_t end) {
          copyBlock(block.gather, bytes, src, message + at * bytes, begin, end);
        });
      });
}

void MessageTransfer::unpack(const char *message, int from, int64_t begin,
                             int64_t count) const {
  forEachBlock(
      begin, count,
      [&](const Packed &block, int64_t first, int64_t last, int64_t at) {
        char *dst =
            block.dst + block.dstOffsets[static_cast<size_t>(from)] * bytes;
        splitAmong(team, first, last, [&](int64_t begin, int64_t end) {
          copyBlock(block.scatter, bytes, message + at * bytes, dst, begin,
                    end);
        });
      });
}

void MessageTransfer::reduceParts(const char *from, int64_t count, char *to,
                                  bool alone) {
  int64_t stride = 1;
  Block part(1, &count, &stride, &stride);
  for (int i = 0; i < members; ++i)
    parts[static_cast<size_t>(i)] = from + i * count * bytes;
  void *dst = to;
  auto reduce = [&](int64_t begin, int64_t end) {
    reduceBlocks(part, dtype, reduction, parts.data(), members, &dst, 1, begin,
                 end);
  };
  if (alone)
    reduce(0, count);
  else
    splitAmong(team, 0, count, reduce);
}

void MessageTransfer::deliver(const char *in, char *out, int64_t begin,
                              int64_t count) {
  switch (kind) {
  case CLEAVE_REDUCE:
    if (root != member)
      return;
    [[fallthrough]];
  case CLEAVE_ALL_REDUCE:
  case CLEAVE_REDUCE_SCATTER:
    if (!shared)
      reduceParts(in, count, out);
    return unpack(out, 0, begin, count);
  case CLEAVE_ALL_GATHER:
  case CLEAVE_ALL_TO_ALL:
    for (int i = 0; i < members; ++i)
      unpack(in + i * count * bytes, i, begin, count);
    return;
  case CLEAVE_SEND:
    if (member == 1)
      unpack(in, 0, begin, count);
    return;
  case CLEAVE_ALL_TO_ALL_ROWS:
    return deliverRows(in, out);
  default:
    unpack(in, 0, begin, count);
  }
}

//===----------------------------------------------------------------------===//
// Rows to all
//===----------------------------------------------------------------------===//

void MessageTransfer::packRows(char *out) const {
  size_t list = static_cast<size_t>(offsetBytes() / 2);
  std::memcpy(out, sendOffsets, list);
  std::memcpy(out + list, receiveOffsets, list);
  // Nothing is known of the numbers yet.
  int64_t rows =
      std::clamp<int64_t>(sendOffsets[members], 0, rowsHeld) * rowElements;
  splitAmong(team, 0, rows, [&](int64_t begin, int64_t end) {
    std::memcpy(out + offsetBytes() + begin * bytes,
                blocks[0].src + begin * bytes,
                static_cast<size_t>((end - begin) * bytes));
  });
}

bool MessageTransfer::agreeOnRows(const char *in) {
  rowOffsets.setAll(reinterpret_cast<const int64_t *>(in));
  disagreement = rowOffsets.problem(rowsHeld, bound);
  if (!disagreement.empty())
    disagreement = "an all-to-all of rows: " + disagreement;
  return disagreement.empty();
}

void MessageTransfer::deliverRows(const char *in, const char *out) const {
  char *dst = blocks[0].dst;
  int64_t row = rowElements * bytes;
  auto copy = [&](int64_t to, const char *from, int64_t rows) {
    splitAmong(team, 0, rows * rowElements, [&](int64_t begin, int64_t end) {
      std::memcpy(dst + to * row + begin * bytes, from + begin * bytes,
                  static_cast<size_t>((end - begin) * bytes));
    });
  };
  const char *others = in + offsetBytes() * members;
  int64_t own = rowOffsets.receiveBegin(member, member),
          behind = own + rowOffsets.rows(member, member),
          received = rowOffsets.received(member);
  copy(0, others, own);
  copy(own, out + offsetBytes() + rowOffsets.sendBegin(member, member) * row,
       behind - own);
  copy(behind, others + behind * row, received - behind);
  splitAmong(team, 0, (bound - received) * rowElements,
             [&](int64_t begin, int64_t end) {
               std::memset(dst + received * row + begin * bytes, 0,
                           static_cast<size_t>((end - begin) * bytes));
             });
}
