//===- SocketCollectives.cpp - Blocks as messages over TCP ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "SocketCollectives.h"

#include <cstring>

using namespace cleave::runtime;

/// Smaller sums are sent whole to all members, and each adds them up: one
/// exchange instead of two.
static constexpr int64_t smallElements = 2048;

std::string SocketTransfer::check(const cleave_collective *blocks,
                                  int32_t count, int members) {
  // The largest number of bytes sent and received.
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

SocketTransfer::SocketTransfer(const cleave_collective *given, int32_t count,
                               const std::vector<int32_t> &ranks, int member,
                               uint64_t group, uint32_t request,
                               SocketMesh &mesh, const cleave_team &team,
                               Staging &staging)
    : kind(given->kind), dtype(given->dtype), reduction(given->reduction),
      root(given->root), ranks(ranks), member(member),
      members(static_cast<int>(ranks.size())), key{group, request, 0},
      mesh(mesh), team(team), staging(staging),
      elements(countElements(given, count)), bytes(elementBytes(dtype)),
      size(elements * bytes),
      shared(kind == CLEAVE_ALL_REDUCE && elements > smallElements),
      parts(ranks.size()) {
  auto listOf = [&](const auto *list) {
    std::vector<std::decay_t<decltype(*list)>> result(ranks.size());
    if (list)
      result.assign(list, list + ranks.size());
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
  size_t one = static_cast<size_t>(size), all = one * ranks.size();
  outgoingBytes = incomingBytes = one;
  switch (kind) {
  case CLEAVE_ALL_REDUCE:
    incomingBytes =
        shared ? static_cast<size_t>(shareOf(member + 1) - shareOf(member)) *
                     ranks.size()
               : all;
    return;
  case CLEAVE_REDUCE_SCATTER:
  case CLEAVE_ALL_TO_ALL:
    outgoingBytes = incomingBytes = all;
    return;
  case CLEAVE_ALL_GATHER:
    outgoingBytes = 0;
    incomingBytes = all;
    return;
  case CLEAVE_SEND:
    (member == 0 ? incomingBytes : outgoingBytes) = 0;
    return;
  case CLEAVE_REDUCE:
    incomingBytes = root == member ? all : 0;
    return;
  case CLEAVE_BROADCAST:
    outgoingBytes = 0;
    return;
  }
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

void SocketTransfer::pack(int to, char *message) const {
  for (const Packed &block : blocks) {
    const char *src =
        block.src + block.srcOffsets[static_cast<size_t>(to)] * bytes;
    splitAmong(team, 0, block.gather.elements, [&](int64_t begin, int64_t end) {
      copyBlock(block.gather, bytes, src, message, begin, end);
    });
    message += block.gather.elements * bytes;
  }
}

void SocketTransfer::unpack(const char *message, int from) const {
  for (const Packed &block : blocks) {
    char *dst = block.dst + block.dstOffsets[static_cast<size_t>(from)] * bytes;
    splitAmong(team, 0, block.scatter.elements,
               [&](int64_t begin, int64_t end) {
                 copyBlock(block.scatter, bytes, message, dst, begin, end);
               });
    message += block.scatter.elements * bytes;
  }
}

/// Combines the data of all members, `count` elements each, from `from` on.
/// A thread that is `alone` does it without the others.
void SocketTransfer::reduceParts(const char *from, int64_t count, char *to,
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

/// Combines this member's share, and begins to gather those of all.
void SocketTransfer::exchangeShares(bool alone) {
  char *out = outgoing.data();
  int64_t from = shareOf(member), own = shareOf(member + 1) - from;
  reduceParts(incoming.data(), own / bytes, out + from, alone);
  MessageKey round = key;
  ++round.round;
  for (int i = 0; i < members; ++i)
    if (int64_t count = shareOf(i + 1) - shareOf(i); i != member && count > 0)
      mesh.receive(ranks[static_cast<size_t>(i)], round, out + shareOf(i),
                   static_cast<size_t>(count), second);
  for (int i = 0; i < members && own > 0; ++i)
    if (i != member)
      mesh.send(ranks[static_cast<size_t>(i)], round, out + from,
                static_cast<size_t>(own), second);
  mesh.release(second);
}

//===----------------------------------------------------------------------===//
// Messages
//===----------------------------------------------------------------------===//

void SocketTransfer::sendTo(int other, const char *data, int64_t count) {
  if (count > 0)
    mesh.send(ranks[static_cast<size_t>(other)], key, data,
              static_cast<size_t>(count), batch);
}

void SocketTransfer::receiveFrom(int other, char *to, int64_t count) {
  if (count > 0)
    mesh.receive(ranks[static_cast<size_t>(other)], key, to,
                 static_cast<size_t>(count), batch);
}

bool SocketTransfer::start() {
  outgoing = staging.take(outgoingBytes);
  incoming = staging.take(incomingBytes);
  if ((outgoingBytes && !outgoing.data()) ||
      (incomingBytes && !incoming.data()))
    return false;
  char *out = outgoing.data(), *in = incoming.data();
  ++key.round;
  if (shared) {
    // The second exchange follows when all messages of the first one are posted
    // and have come and gone.
    SocketMesh::hold(batch);
    SocketMesh::hold(second);
    batch.state = MessageBatch::Waits;
    batch.next = [this] { exchangeShares(/*alone=*/true); };
  }
  // Each begins with another one, so that not all send to the same.
  auto forOthers = [&](auto body) {
    for (int i = 1; i < members; ++i)
      body((member + i) % members);
  };
  switch (kind) {
  case CLEAVE_ALL_REDUCE: {
    pack(0, out);
    int64_t from = shared ? shareOf(member) : 0,
            own = shared ? shareOf(member + 1) - from : size;
    forOthers([&](int i) { receiveFrom(i, in + i * own, own); });
    forOthers([&](int i) {
      int64_t begin = shared ? shareOf(i) : 0;
      sendTo(i, out + begin, shared ? shareOf(i + 1) - begin : size);
    });
    if (own > 0)
      std::memcpy(in + member * own, out + from, static_cast<size_t>(own));
    if (shared)
      mesh.release(batch);
    break;
  }
  case CLEAVE_ALL_GATHER:
    pack(0, in + member * size);
    forOthers([&](int i) { receiveFrom(i, in + i * size, size); });
    forOthers([&](int i) { sendTo(i, in + member * size, size); });
    break;
  case CLEAVE_REDUCE:
    if (root != member) {
      pack(0, out);
      sendTo(root, out, size);
      break;
    }
    forOthers([&](int i) { receiveFrom(i, in + i * size, size); });
    pack(0, in + member * size);
    break;
  case CLEAVE_REDUCE_SCATTER:
  case CLEAVE_ALL_TO_ALL:
    forOthers([&](int i) { receiveFrom(i, in + i * size, size); });
    forOthers([&](int i) {
      pack(i, out + i * size);
      sendTo(i, out + i * size, size);
    });
    pack(member, in + member * size);
    break;
  case CLEAVE_PERMUTE:
    if (int from = sources[static_cast<size_t>(member)]; from != member)
      receiveFrom(from, in, size);
    else
      pack(0, in);
    pack(0, out);
    forOthers([&](int i) {
      if (sources[static_cast<size_t>(i)] == member)
        sendTo(i, out, size);
    });
    break;
  case CLEAVE_SEND:
    if (member == 1) {
      receiveFrom(0, in, size);
      break;
    }
    pack(0, out);
    sendTo(1, out, size);
    break;
  default:
    if (root != member) {
      receiveFrom(root, in, size);
      break;
    }
    pack(0, in);
    forOthers([&](int i) { sendTo(i, in, size); });
  }
  return true;
}

bool SocketTransfer::finish(const Complete &complete) {
  char *out = outgoing.data(), *in = incoming.data();
  bool own = shared && mesh.claim(batch);
  // After a failure the mesh still uses the memory.
  if (!complete(batch))
    return false;
  if (own)
    exchangeShares(/*alone=*/false);
  if (shared && !complete(second))
    return false;
  ++key.round;
  switch (kind) {
  case CLEAVE_REDUCE:
    if (root != member)
      break;
    [[fallthrough]];
  case CLEAVE_ALL_REDUCE:
  case CLEAVE_REDUCE_SCATTER:
    if (!shared)
      reduceParts(in, elements, out, /*alone=*/false);
    unpack(out, 0);
    break;
  case CLEAVE_ALL_GATHER:
  case CLEAVE_ALL_TO_ALL:
    for (int i = 0; i < members; ++i)
      unpack(in + i * size, i);
    break;
  case CLEAVE_SEND:
    if (member == 1)
      unpack(in, 0);
    break;
  default:
    unpack(in, 0);
  }
  staging.give(outgoing);
  staging.give(incoming);
  return true;
}
