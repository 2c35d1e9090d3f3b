//===- MessageCommunicator.h - A rank that is a process ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The part of a communicator over messages that does not depend on how they
/// go. `Failures` finds out that a rank is missing, and tells the others:
/// SocketMesh, Heartbeat.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_COMMUNICATOR_MESSAGECOMMUNICATOR_H
#define CLEAVE_LIB_RUNTIME_COMMUNICATOR_MESSAGECOMMUNICATOR_H

#include "MessageBuffers.h"
#include "cleave/Runtime/Communicator/Communicator.h"

#include <sched.h>
#include <string>
#include <thread>

namespace cleave::runtime {

template <typename Failures> struct MessageCommunicator : cleave_communicator {
  Failures &failures;
  cleave_team team;
  /// The same in all processes: they open their communicators together.
  int32_t number = 0;
  /// With more threads than cores, a waiting thread does not spin.
  bool maySpin = false;
  Staging staging;
  std::thread::id thread = std::this_thread::get_id();

  MessageCommunicator(Failures &failures, const cleave_team &team,
                      int processesHere)
      : failures(failures), team(team) {
    cpu_set_t set;
    CPU_ZERO(&set);
    int cores = ::sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);
    maySpin = processesHere * team.threads <= cores;
  }

  static MessageCommunicator &of(cleave_communicator *c) {
    return *static_cast<MessageCommunicator *>(c);
  }

  static void failWith(cleave_communicator *c, const char *message) {
    of(c).failures.fail(message);
  }

  /// Another thread than the working one may ask, and notices nothing by that.
  static const char *errorOf(cleave_communicator *c) {
    thread_local std::string text;
    MessageCommunicator &me = of(c);
    if (std::this_thread::get_id() == me.thread)
      (void)me.failures.failed();
    text = me.failures.error();
    return text.c_str();
  }

  static void setBusy(cleave_communicator *c, int32_t on) {
    of(c).failures.setBusy(on != 0);
  }

  static int isUnnoticed(cleave_communicator *c, int32_t grace) {
    return of(c).failures.isUnnoticed(grace);
  }

  static int64_t held(cleave_communicator *c) { return of(c).staging.bytes(); }

  /// Starts a request of this communicator; 0, or 1 after a failure.
  template <typename Request> int start(Request &request) {
    if (request.started) {
      failures.fail("starts a collective that is in flight");
      return 1;
    }
    if (failures.failed())
      return 1;
    request.started = true;
    request.group->prepared.start();
    if (request.transfer.start())
      return 0;
    failures.fail("no memory for messages of " +
                  std::to_string(request.transfer.staged()) + " bytes");
    return 1;
  }

  /// Waits for a request by `complete`, which is given its messages; 0, or 1
  /// after a failure.
  template <typename Request, typename F>
  int wait(Request &request, const F &complete) {
    if (!request.started) {
      failures.fail("waits for a collective that it has not started");
      return 1;
    }
    request.started = false;
    if (request.transfer.finish(complete))
      return 0;
    if (!request.transfer.problem().empty())
      failures.fail(request.transfer.problem());
    return 1;
  }
};

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_COMMUNICATOR_MESSAGECOMMUNICATOR_H
