//===- Heartbeat.cpp - Detection of processes that have ended -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Heartbeat.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

using namespace cleave::runtime;

/// The interval of heartbeats, and the silence after which a process counts as
/// failed.
static constexpr int64_t periodMs = 250, silenceMs = 3500;

/// A process that was itself not scheduled for that long does not judge the
/// others.
static constexpr int64_t stallMs = 1000;

/// The time after which a process that was never heard counts as unreachable.
static constexpr int64_t unheardMs = 3000;

/// The kinds of datagrams.
enum : uint32_t { kindAlive = 1, kindFailed = 2, kindLeft = 3 };

struct Heartbeat::Packet {
  uint64_t key;
  uint32_t kind;
  int32_t rank;
  int32_t closing;
  int32_t state;
  /// Who has failed.
  int32_t failed;
  char text[480];
};

static int64_t nowMs() {
  timespec time;
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t(time.tv_sec) * 1000 + time.tv_nsec / 1000000;
}

/// The addresses of this machine that other machines may reach.
static void findHosts(Address &own) {
  ifaddrs *list = nullptr;
  if (::getifaddrs(&list) != 0)
    return;
  int count = 0;
  for (ifaddrs *entry = list; entry && count < Address::kHosts;
       entry = entry->ifa_next)
    if (entry->ifa_addr && entry->ifa_addr->sa_family == AF_INET &&
        (entry->ifa_flags & IFF_UP) && !(entry->ifa_flags & IFF_LOOPBACK))
      own.hosts[count++] =
          reinterpret_cast<sockaddr_in *>(entry->ifa_addr)->sin_addr.s_addr;
  ::freeifaddrs(list);
}

std::string Heartbeat::open(bool local, Address &own) {
  if (local)
    own.hosts[0] = htonl(INADDR_LOOPBACK);
  else
    findHosts(own);
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = local ? own.hosts[0] : htonl(INADDR_ANY);
  socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  auto *raw = reinterpret_cast<sockaddr *>(&address);
  if (socket < 0 || ::bind(socket, raw, size) != 0 ||
      ::getsockname(socket, raw, &size) != 0)
    return std::string("cannot open a socket for heartbeats: ") +
           std::strerror(errno);
  own.port = address.sin_port;
  return "";
}

void Heartbeat::start(int ownRank, uint64_t ownKey,
                      std::vector<Address> addresses) {
  rank = ownRank;
  key = ownKey;
  count = addresses.size();
  peers = std::make_unique<Peer[]>(count);
  for (size_t i = 0; i < count; ++i)
    peers[i].address = addresses[i];
  thread = std::thread([this] { run(); });
}

Heartbeat::~Heartbeat() {
  ended.store(true);
  if (thread.joinable())
    thread.join();
  if (socket >= 0)
    ::close(socket);
}

void Heartbeat::send(uint32_t kind, const std::string &text) const {
  Packet packet{};
  packet.key = key;
  packet.kind = kind;
  packet.rank = rank;
  packet.closing = closing.load();
  packet.failed = accused.load();
  packet.state = waiting.load() > 0 ? Waits : writing.load() ? Writes : Works;
  std::memcpy(packet.text, text.data(),
              std::min(text.size(), sizeof(packet.text) - 1));
  for (size_t i = 0; i < count; ++i) {
    if (static_cast<int>(i) == rank)
      continue;
    // The address changes when the peer is heard for the first time.
    Address address;
    {
      std::lock_guard<std::mutex> lock(mutex);
      address = peers[i].address;
    }
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = address.port;
    for (uint32_t host : address.hosts) {
      if (host == 0)
        break;
      to.sin_addr.s_addr = host;
      // Lost datagrams are sent again.
      (void)::sendto(socket, &packet, sizeof(packet), 0,
                     reinterpret_cast<sockaddr *>(&to), sizeof(to));
    }
  }
}

void Heartbeat::receive() {
  Packet packet;
  sockaddr_in from{};
  socklen_t size = sizeof(from);
  while (::recvfrom(socket, &packet, sizeof(packet), 0,
                    reinterpret_cast<sockaddr *>(&from),
                    &size) == sizeof(packet)) {
    if (packet.key != key || packet.rank < 0 ||
        packet.rank >= static_cast<int>(count))
      continue;
    Peer &peer = peers[static_cast<size_t>(packet.rank)];
    // Replies go to the address from which the peer was heard.
    if (peer.heard == 0 && size == sizeof(from)) {
      std::lock_guard<std::mutex> lock(mutex);
      peer.address = Address();
      peer.address.hosts[0] = from.sin_addr.s_addr;
      peer.address.port = from.sin_port;
    }
    peer.heard = nowMs();
    peer.closing.store(packet.closing);
    peer.state.store(packet.state);
    packet.text[sizeof(packet.text) - 1] = 0;
    if (packet.kind == kindLeft)
      peer.left.store(true);
    if (packet.kind == kindFailed)
      note(packet.failed < 0 ? packet.rank : packet.failed, packet.text);
  }
}

void Heartbeat::judge(int64_t now) {
  for (size_t i = 0; i < count; ++i)
    if (static_cast<int>(i) != rank && !peers[i].left.load() &&
        peers[i].heard != 0 && now - peers[i].heard > silenceMs)
      blame(static_cast<int>(i),
            "does not answer any more: it has ended or was stopped");
}

int Heartbeat::waitUntilHeard() const {
  int64_t begin = nowMs();
  for (size_t i = 0; i < count; ++i)
    while (static_cast<int>(i) != rank && peers[i].heard.load() == 0) {
      if (nowMs() - begin > unheardMs)
        return static_cast<int>(i);
      ::usleep(1000);
    }
  return -1;
}

void Heartbeat::run() {
  int64_t last = nowMs(), spoken = 0;
  while (!ended.load()) {
    pollfd ready{socket, POLLIN, 0};
    (void)::poll(&ready, 1, static_cast<int>(periodMs) / 5);
    int64_t now = nowMs();
    bool stalled = now - last > stallMs;
    last = now;
    receive();
    for (size_t i = 0; stalled && i < count; ++i)
      if (peers[i].heard != 0)
        peers[i].heard = now;
    if (now - spoken >= periodMs) {
      spoken = now;
      std::string text = failureOfOwn();
      send(!text.empty()    ? kindFailed
           : leaving.load() ? kindLeft
                            : kindAlive,
           text);
    }
    judge(now);
    if (failure.load())
      notice.endIfUnnoticed(now, [&] { return error(); });
  }
  if (leaving.load())
    send(kindLeft, "");
}

/// Sets the failure if it is the first; false if there is an earlier one.
bool Heartbeat::note(int who, const std::string &text, bool tell) {
  std::lock_guard<std::mutex> lock(mutex);
  if (failure.load())
    return false;
  message = "rank " + std::to_string(who) + ": " + text;
  if (tell)
    ownFailure = text.empty() ? "it has failed" : text;
  failure.store(true, std::memory_order_release);
  return true;
}

void Heartbeat::blame(int who, const std::string &text) { note(who, text); }

void Heartbeat::accuse(int who, const std::string &text) {
  accused.store(who);
  if (!note(who, text, /*tell=*/true))
    return;
  for (int i = 0; i < 3; ++i)
    send(kindFailed, text);
}

void Heartbeat::fail(const std::string &text) {
  if (!note(rank, text, /*tell=*/true))
    return;
  // Sent several times, since datagrams may be lost, and again for as long as
  // this process lives.
  for (int i = 0; i < 3; ++i)
    send(kindFailed, text);
}

std::string Heartbeat::failureOfOwn() const {
  std::lock_guard<std::mutex> lock(mutex);
  return ownFailure;
}

std::string Heartbeat::error() const {
  std::lock_guard<std::mutex> lock(mutex);
  return message;
}
