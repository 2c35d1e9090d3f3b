//===- SocketMesh.h - Messages over TCP -------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Each pair of processes has a connection. A receiver says when it has memory
/// for a message, and only then is it sent: nothing is stored that nobody has
/// asked for, and every connection is always read. A long message is sent in
/// pieces, between which short ones pass it. A thread of each process
/// sends and receives, and says four times a second that the process is alive.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_COMMUNICATOR_SOCKETMESH_H
#define CLEAVE_LIB_RUNTIME_COMMUNICATOR_SOCKETMESH_H

#include "cleave/Runtime/Communicator/FailureNotice.h"
#include <atomic>
#include <compare>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <string>
#include <sys/types.h>
#include <thread>
#include <vector>

namespace cleave::runtime {

/// Names a message between two ranks, alike at both.
struct MessageKey {
  uint64_t group;
  uint32_t request, round;

  auto operator<=>(const MessageKey &) const = default;
};

/// Messages that are waited for together.
struct MessageBatch {
  std::atomic<int> pending{0};
  /// What follows once they have come and gone, if that is set before they are
  /// posted: the thread of the mesh calls it, unless someone claims it before.
  std::function<void()> next;
  enum { Waits, IsDue, IsTaken } state = Waits;
};

class SocketMesh {
public:
  /// `sockets` has a connection to each other rank; it owns them. A rank waits
  /// at most `patience` seconds for others while nothing is exchanged.
  SocketMesh(int rank, const std::vector<int> &sockets, int patience);
  ~SocketMesh();

  int rank() const { return own; }
  int size() const { return static_cast<int>(count); }

  /// Neither waits. The memory belongs to the mesh until the batch is complete,
  /// and for ever after a failure.
  void receive(int from, const MessageKey &key, char *to, size_t bytes,
               MessageBatch &batch);
  void send(int to, const MessageKey &key, const char *data, size_t bytes,
            MessageBatch &batch);
  /// Returns when all messages of the batch have come and gone; false after a
  /// failure, which it is that a rank has left before, or has closed
  /// communicator `number` (unless that is 0).
  bool complete(MessageBatch &batch, int32_t number, bool maySpin);
  /// Whether the caller does what follows the batch, when that is complete;
  /// false if the thread of the mesh does it or has done it.
  bool claim(MessageBatch &batch);
  /// A batch that is held is not complete before it is released as often.
  static void hold(MessageBatch &batch) {
    batch.pending.fetch_add(1, std::memory_order_relaxed);
  }
  void release(MessageBatch &batch);

  /// Called regularly by the working thread. If it is not called soon after a
  /// failure, that thread hangs or is busy in vain: then the process ends.
  bool failed() {
    notice.ask();
    return failure.load(std::memory_order_acquire);
  }
  /// Whether this rank writes what others wait for.
  void setBusy(bool on) { writing.store(on); }
  /// Whether that thread has not noticed a failure in time; the process ends
  /// `grace` seconds later.
  bool isUnnoticed(int grace) { return notice.isUnnoticed(grace); }
  /// "rank R: ..."; "" without a failure.
  std::string error() const;
  /// Ends all ranks: this one cannot continue.
  void fail(const std::string &message) { note(own, message); }
  /// Ends all ranks because of `rank`.
  void note(int rank, const std::string &message);

  /// Tells the others that this rank waits for them to close communicator
  /// `number` too.
  void setClosing(int32_t number);
  /// This rank exchanges nothing any more. Returns when all others have left
  /// too, or after a failure.
  void leave();

private:
  struct Header;
  struct Frame;
  struct Peer;
  using Lock = std::unique_lock<std::mutex>;

  void run();
  void push(Peer &peer, const Header &header, const char *data,
            MessageBatch *batch);
  void pushToAll(uint32_t kind, int32_t value, const std::string &text = "");
  void flush(Peer &peer, size_t most);
  void flushSoon(Peer &peer);
  void read(Peer &peer, int64_t now);
  void begin(Peer &peer);
  void finish(Peer &peer);
  void lose(Peer &peer);
  void done(MessageBatch &batch);
  void runDue();
  void noteLocked(int rank, const std::string &message);
  void judge(int64_t now);
  void blameForBatch(const MessageBatch &batch, int32_t number);
  struct Wait;
  void judgeWait(Wait &wait, const MessageBatch &batch);
  void wake() const;

  int own;
  size_t count;
  /// The process that made it; one that was forked has copies of the sockets.
  pid_t process;
  int wakeUp = -1;
  mutable std::mutex mutex;
  std::condition_variable changed;
  /// Small memory of lists; steps that have run before take none of the system.
  std::pmr::unsynchronized_pool_resource pool;
  std::vector<std::unique_ptr<Peer>> peers;
  /// Complete batches whose `next` the thread calls.
  std::vector<MessageBatch *> due;
  std::string message;
  std::atomic<bool> failure{false}, ended{false}, writing{false};
  FailureNotice notice;
  /// Threads that wait for others.
  std::atomic<int> waiting{0};
  /// Bytes of messages that have come and gone.
  uint64_t moved = 0;
  int64_t patienceMs;
  std::thread thread;
};

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_COMMUNICATOR_SOCKETMESH_H
