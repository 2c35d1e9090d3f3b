//===- SocketCollectives.cpp - Blocks as messages over TCP ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "SocketCollectives.h"

#include <cstring>

using namespace cleave::runtime;

SocketTransfer::SocketTransfer(const cleave_collective *given, int32_t count,
                               const std::vector<int32_t> &ranks, int member,
                               uint64_t group, uint32_t request,
                               SocketMesh &mesh, const cleave_team &team,
                               Staging &staging)
    : MessageTransfer(given, count, member, static_cast<int>(ranks.size()),
                      team, staging),
      ranks(ranks), key{group, request, 0}, mesh(mesh), size(elements * bytes) {
  // What is gathered is sent from its place among the others'.
  if (kind == CLEAVE_ALL_GATHER)
    outgoingBytes = 0;
  if (shared)
    incomingBytes = static_cast<size_t>(shareOf(member + 1) - shareOf(member)) *
                    ranks.size();
}

/// Combines this member's share, and begins to gather those of all.
void SocketTransfer::collectiveShares(bool alone) {
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

void SocketTransfer::exchangeRows() {
  if (agreeOnRows(incoming.data())) {
    MessageKey round = key;
    ++round.round;
    int64_t row = rowElements * bytes;
    char *in = incoming.data() + offsetBytes() * members;
    const char *out = outgoing.data() + offsetBytes();
    for (int i = 1; i < members; ++i)
      if (int from = (member + i) % members; rowOffsets.rows(from, member) > 0)
        mesh.receive(ranks[static_cast<size_t>(from)], round,
                     in + rowOffsets.receiveBegin(member, from) * row,
                     static_cast<size_t>(rowOffsets.rows(from, member) * row),
                     second);
    for (int i = 1; i < members; ++i)
      if (int to = (member + i) % members; rowOffsets.rows(member, to) > 0)
        mesh.send(ranks[static_cast<size_t>(to)], round,
                  out + rowOffsets.sendBegin(member, to) * row,
                  static_cast<size_t>(rowOffsets.rows(member, to) * row),
                  second);
  }
  mesh.release(second);
}

void SocketTransfer::follow(bool alone) {
  if (shared)
    collectiveShares(alone);
  else
    exchangeRows();
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
  if (!takeMemory())
    return false;
  char *out = outgoing.data(), *in = incoming.data();
  ++key.round;
  if (isTwice()) {
    // The second exchange follows when all messages of the first one are posted
    // and have come and gone.
    SocketMesh::hold(batch);
    SocketMesh::hold(second);
    batch.state = MessageBatch::Waits;
    batch.next = [this] { follow(/*alone=*/true); };
  }
  // Each begins with another one, so that not all send to the same.
  auto forOthers = [&](auto body) {
    for (int i = 1; i < members; ++i)
      body((member + i) % members);
  };
  switch (kind) {
  case CLEAVE_ALL_REDUCE: {
    pack(0, 0, elements, out);
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
    pack(0, 0, elements, in + member * size);
    forOthers([&](int i) { receiveFrom(i, in + i * size, size); });
    forOthers([&](int i) { sendTo(i, in + member * size, size); });
    break;
  case CLEAVE_REDUCE:
    if (root != member) {
      pack(0, 0, elements, out);
      sendTo(root, out, size);
      break;
    }
    forOthers([&](int i) { receiveFrom(i, in + i * size, size); });
    pack(0, 0, elements, in + member * size);
    break;
  case CLEAVE_REDUCE_SCATTER:
  case CLEAVE_ALL_TO_ALL:
    forOthers([&](int i) { receiveFrom(i, in + i * size, size); });
    forOthers([&](int i) {
      pack(i, 0, elements, out + i * size);
      sendTo(i, out + i * size, size);
    });
    pack(member, 0, elements, in + member * size);
    break;
  case CLEAVE_PERMUTE:
    if (int from = sources[static_cast<size_t>(member)]; from != member)
      receiveFrom(from, in, size);
    else
      pack(0, 0, elements, in);
    pack(0, 0, elements, out);
    forOthers([&](int i) {
      if (sources[static_cast<size_t>(i)] == member)
        sendTo(i, out, size);
    });
    break;
  case CLEAVE_ALL_TO_ALL_ROWS: {
    int64_t own = offsetBytes();
    packRows(out);
    forOthers([&](int i) { receiveFrom(i, in + i * own, own); });
    forOthers([&](int i) { sendTo(i, out, own); });
    std::memcpy(in + member * own, out, static_cast<size_t>(own));
    mesh.release(batch);
    break;
  }
  case CLEAVE_SEND:
    if (member == 1) {
      receiveFrom(0, in, size);
      break;
    }
    pack(0, 0, elements, out);
    sendTo(1, out, size);
    break;
  default:
    if (root != member) {
      receiveFrom(root, in, size);
      break;
    }
    pack(0, 0, elements, in);
    forOthers([&](int i) { sendTo(i, in, size); });
  }
  return true;
}

bool SocketTransfer::finish(const Complete &complete) {
  bool own = isTwice() && mesh.claim(batch);
  // After a failure the mesh still uses the memory.
  if (!complete(batch))
    return false;
  if (own)
    follow(/*alone=*/false);
  if (isTwice() && !complete(second))
    return false;
  if (!problem().empty())
    return false;
  ++key.round;
  deliver(incoming.data(), outgoing.data(), 0, elements);
  giveMemory();
  return true;
}
