//===- MessageTransfer.h - Blocks as messages -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// What a collective is on both sides of its messages, over any transport: the
/// blocks of a member become messages, and what has come becomes blocks. How
/// messages go is that of the transport (SocketTransfer, MpiTransfer).
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_COMMUNICATOR_MESSAGETRANSFER_H
#define CLEAVE_LIB_RUNTIME_COMMUNICATOR_MESSAGETRANSFER_H

#include "MessageBuffers.h"
#include "cleave/Runtime/Communicator/ReduceBlocks.h"
#include "cleave/Support/RowOffsets.h"

#include <string>
#include <vector>

namespace cleave::runtime {

class MessageTransfer {
public:
  /// Why the messages are invalid, or "".
  static std::string check(const cleave_collective *blocks, int32_t count,
                           int members);

  /// Bytes of the memory that messages need.
  size_t staged() const { return outgoingBytes + incomingBytes; }

  /// Why the last collective was not possible, or "": all members find it.
  const std::string &problem() const { return disagreement; }

protected:
  /// The arguments that are references outlive it.
  MessageTransfer(const cleave_collective *blocks, int32_t count, int member,
                  int members, const cleave_team &team, Staging &staging);

  /// False if there is no memory for the messages.
  bool takeMemory();
  void giveMemory();

  /// Writes `count` elements, from `begin` on, of the message of all blocks
  /// that this member sends to `to`.
  void pack(int to, int64_t begin, int64_t count, char *message) const;
  /// Copies such elements, which came from `from`, to the places of the blocks.
  void unpack(const char *message, int from, int64_t begin,
              int64_t count) const;
  /// Combines the data of all members, `count` elements each, from `from` on.
  /// A thread that is `alone` does it without the others.
  void reduceParts(const char *from, int64_t count, char *to,
                   bool alone = false);
  /// Brings `count` elements, from `begin` on, to their places when all
  /// messages have come: those of members follow each other in `in`. Of a sum
  /// with shares, `out` has the result.
  void deliver(const char *in, char *out, int64_t begin, int64_t count);

  /// Rows to all: messages begin with the offsets of one member, or with those
  /// of all, before the rows.
  int64_t offsetBytes() const {
    return RowOffsets::count(members) * static_cast<int64_t>(sizeof(int64_t));
  }
  /// Writes the offsets and the rows of this member.
  void packRows(char *out) const;
  /// Reads the offsets of all; false if members do not agree.
  bool agreeOnRows(const char *in);
  /// Brings rows to their places, and those that stay here from `out`.
  void deliverRows(const char *in, const char *out) const;

  int32_t kind, dtype, reduction, root;
  std::vector<int32_t> sources;
  int member, members;
  const cleave_team &team;
  /// Elements of a message, and bytes of an element.
  int64_t elements, bytes;
  /// Whether each member combines its share of the elements for all.
  bool shared;
  /// Rows to all: elements of a row, the rows sent and the room for others'.
  int64_t rowElements = 1, rowsHeld = 0, bound = 0;
  RowOffsets rowOffsets;
  std::string disagreement;
  /// Bytes sent and received, and both while in flight.
  size_t outgoingBytes = 0, incomingBytes = 0;
  StagingBuffer outgoing, incoming;

private:
  /// One block, and copies between its layout and a dense one.
  struct Packed {
    const char *src;
    char *dst;
    std::vector<int64_t> srcOffsets, dstOffsets;
    Block gather, scatter;
  };

  template <typename F>
  void forEachBlock(int64_t begin, int64_t count, const F &body) const;

  std::vector<Packed> blocks;
  const int64_t *sendOffsets, *receiveOffsets;
  Staging &staging;
  /// Where the members' data are, while they are combined.
  std::vector<const void *> parts;
};

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_COMMUNICATOR_MESSAGETRANSFER_H
