//===- SocketCollectives.h - Blocks as messages over TCP --------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_COMMUNICATOR_SOCKETCOLLECTIVES_H
#define CLEAVE_LIB_RUNTIME_COMMUNICATOR_SOCKETCOLLECTIVES_H

#include "MessageTransfer.h"
#include "SocketMesh.h"

#include <functional>
#include <string>
#include <vector>

namespace cleave::runtime {

/// The messages of one request. A large sum for all is exchanged in shares,
/// combined in order of the members, and exchanged again, which sends no more
/// than a ring does. The second exchange begins when the first one is complete,
/// whether or not the member waits for it then.
class SocketTransfer : public MessageTransfer {
public:
  /// Waits for messages; false after a failure.
  using Complete = std::function<bool(MessageBatch &)>;

  /// `ranks` are the members of the group; `request` is the same number at all
  /// of them. The arguments that are references outlive it.
  SocketTransfer(const cleave_collective *blocks, int32_t count,
                 const std::vector<int32_t> &ranks, int member, uint64_t group,
                 uint32_t request, SocketMesh &mesh, const cleave_team &team,
                 Staging &staging);

  /// False if there is no memory for the messages.
  bool start();
  bool finish(const Complete &complete);

private:
  void collectiveShares(bool alone);
  /// Sends the rows when the offsets of all members have come.
  void exchangeRows();
  /// The second round.
  void follow(bool alone);
  /// Whether there is one after the first one.
  bool isTwice() const { return shared || kind == CLEAVE_ALL_TO_ALL_ROWS; }
  /// Post messages of one exchange to and from other members.
  void sendTo(int other, const char *data, int64_t size);
  void receiveFrom(int other, char *to, int64_t size);
  int64_t shareOf(int other) const {
    return shareBegin(elements, other, members) * bytes;
  }

  const std::vector<int32_t> &ranks;
  /// The round is the number of exchanges so far.
  MessageKey key;
  SocketMesh &mesh;
  /// Bytes of a message.
  int64_t size;
  /// Of the first exchange, and of the second one.
  MessageBatch batch, second;
};

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_COMMUNICATOR_SOCKETCOLLECTIVES_H
