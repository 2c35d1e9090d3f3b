//===- Meeting.h - Where processes find each other --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_COMMUNICATOR_MEETING_MEETING_H
#define CLEAVE_LIB_RUNTIME_COMMUNICATOR_MEETING_MEETING_H

#include "Handshake.h"
#include "cleave/Runtime/Communicator/SocketWorld.h"

#include <functional>
#include <memory>
#include <poll.h>
#include <string>
#include <vector>

namespace cleave::runtime {

/// The longest wait of a loop, and the interval at which those that have joined
/// say that they are alive.
constexpr int64_t turnMs = 50, aliveMs = 250;

/// The silence after which one that has joined counts as failed, if ranks wait
/// at least twice as long.
constexpr int64_t silenceMs = 10000;

/// Where a process listens, and where the first rank sees it.
struct Entry {
  HostAddress seen;
  Place place;
};

/// Connections that are accepted.
class Guests {
public:
  Socket listener;

  /// Serves all of them; calls `known` for each that has the key, and `told`
  /// for what does not fit.
  void serve(const Digest &key, const SocketLaunch &launch,
             const std::string &secretName,
             const std::function<void(Guest &)> &known,
             const std::function<void(const std::string &)> &told);
  void addTo(std::vector<pollfd> &ready) const;

private:
  std::vector<std::unique_ptr<Guest>> guests;
};

/// Waits for all ranks, or connects to them.
class Meeting {
public:
  explicit Meeting(const SocketLaunch &launch);
  ~Meeting();

  std::string run(std::vector<int> &result);

private:
  /// What rank 0 knows of another one, and what others know of rank 0.
  struct Member {
    FrameSocket connection;
    Entry entry;
    int64_t heard = 0;
    bool complete = false;
  };

  std::string lead();
  std::string listenFirst();
  void admit(Guest &guest, std::string &why);
  void hearMember(size_t rank, int64_t now, std::string &why);
  void sendTable();
  void refuseAll(const std::string &why);

  std::string follow();
  std::string joinFirst();
  std::string listenHere(const FrameSocket &first, Place &place);
  std::string hearFirst(int64_t now, bool &isReady);
  std::string callLower(int64_t now);

  void pollAll(const std::vector<const FrameSocket *> &more);
  bool isStalled(int64_t now);
  bool isInterrupted() const {
    return launch.interrupted && launch.interrupted();
  }
  void sayAlive(int64_t now);
  void sayWhoIsMissing(int64_t now, const std::string &what);
  std::string missing(bool connecting) const;
  std::string where() const;
  std::string within() const;
  bool hasSecret() const { return !secret.empty(); }

  const SocketLaunch &launch;
  size_t count;
  int64_t patienceMs, begin, end, spoken = 0, last, saidAt;
  std::string secret, secretName;
  Digest key;
  Guests guests;
  /// For rank 0, the others; for others, rank 0 alone has a connection.
  std::vector<Member> members;
  /// To the others, without rank 0.
  std::vector<Socket> sockets;
  bool connecting = false;
  /// What was told to processes that are not of this launch.
  std::vector<std::string> notes;

  std::string firstAt, listenError;
  HostAddress listensAt;
  uint32_t ownPort = 0;
  struct Lower {
    std::unique_ptr<Caller> caller;
    size_t next = 0;
    int64_t later = 0;
    std::string why;
  };
  std::vector<Lower> lower;
};

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_COMMUNICATOR_MEETING_MEETING_H
