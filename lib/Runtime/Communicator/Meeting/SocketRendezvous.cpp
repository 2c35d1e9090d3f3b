//===- SocketRendezvous.cpp - How processes find each other ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// 1. Every process but the first connects to the first and says who it is and
//    where it listens; the first one welcomes or refuses it.
// 2. When all have come, the first one tells all of them where the others
//    listen, with a random number that makes a key of their secret.
// 3. Each connects to those of lower ranks, which the key identifies: an
//    address may be that of another machine in a network of its own. It says so
//    to the first one, which lets all go on together.
//
// Each process serves all its connections in one loop: one that is silent keeps
// nobody waiting. Those that have joined say that they are alive.
//
//===----------------------------------------------------------------------===//

#include "SocketRendezvous.h"
#include "Meeting.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <unistd.h>

using namespace cleave::runtime;

/// The time after which it is said who is missing, and that after which this
/// process was itself not scheduled and judges nobody.
static constexpr int64_t sayMs = 5000, stallMs = 1000;

/// The time in which a connection that is accepted must say who it is.
static constexpr int64_t greetMs = 30000;

/// Connections that have not said who they are, beside those of all ranks; of
/// more, the oldest is closed.
static constexpr size_t mostGuests = 256;

//===----------------------------------------------------------------------===//
// Connections that are accepted
//===----------------------------------------------------------------------===//

void Guests::serve(const Digest &key, const SocketLaunch &launch,
                   const std::string &secretName,
                   const std::function<void(Guest &)> &known,
                   const std::function<void(const std::string &)> &told) {
  size_t most = mostGuests + 2 * static_cast<size_t>(launch.size);
  while (listener) {
    Socket joined = acceptFrom(listener);
    // With too many files open, the oldest ones go.
    if (!joined || guests.size() >= most) {
      if (guests.size() >= most ||
          (!guests.empty() && (errno == EMFILE || errno == ENFILE)))
        guests.erase(guests.begin());
      if (!joined)
        break;
    }
    guests.push_back(std::make_unique<Guest>(std::move(joined)));
  }
  int64_t now = nowMs();
  for (std::unique_ptr<Guest> &guest : guests) {
    std::string wrong;
    Guest::State state =
        guest->serve(key, launch.key, launch.rank, secretName, wrong);
    if (!wrong.empty())
      told(wrong + " (" + guest->connection.otherHost().text() + ")");
    if (state == Guest::IsKnown)
      known(*guest);
    // One that was refused is told so first.
    if (state == Guest::IsClosed || !guest->connection ||
        now - guest->since > greetMs)
      guest = nullptr;
  }
  std::erase(guests, nullptr);
}

void Guests::addTo(std::vector<pollfd> &ready) const {
  if (listener)
    ready.push_back({listener.get(), POLLIN, 0});
  for (const std::unique_ptr<Guest> &guest : guests)
    ready.push_back({guest->connection.get(), guest->connection.events(), 0});
}

//===----------------------------------------------------------------------===//
// What all do
//===----------------------------------------------------------------------===//

Meeting::Meeting(const SocketLaunch &launch)
    : launch(launch), count(static_cast<size_t>(launch.size)),
      patienceMs(int64_t(launch.patienceSeconds) * 1000), begin(nowMs()),
      end(begin + patienceMs), last(begin), saidAt(begin),
      secret(launch.secret), key(keyOf(launch.secret)), members(count) {
  sockets.resize(count);
  secretName = !secret.empty()              ? "one that it was given"
               : !launch.secretFile.empty() ? "in '" + launch.secretFile + "'"
                                            : "none";
}

Meeting::~Meeting() {
  // It is of use for this launch alone.
  if (launch.rank == 0 && launch.secret.empty() && hasSecret())
    ::unlink(launch.secretFile.c_str());
}

std::string Meeting::where() const {
  std::string text = launch.host + ":" + std::to_string(launch.port);
  if (launch.ports > 1)
    text += " to " + std::to_string(launch.port + launch.ports - 1);
  return text;
}

std::string Meeting::within() const {
  return "within " + std::to_string(launch.patienceSeconds) + " s";
}

/// The ranks that have not come, or are not connected to all, as text.
std::string Meeting::missing(bool connecting) const {
  std::string list;
  int absent = 0;
  for (size_t i = 1; i < count; ++i)
    if (!(connecting ? members[i].complete : bool(members[i].connection)) &&
        ++absent <= 8)
      list += (list.empty() ? "" : ", ") + std::to_string(i);
  if (absent > 8)
    list += " and " + std::to_string(absent - 8) + " more";
  return (absent == 1 ? "rank " : "ranks ") + list;
}

void Meeting::pollAll(const std::vector<const FrameSocket *> &more) {
  std::vector<pollfd> ready;
  guests.addTo(ready);
  for (const Member &member : members)
    if (member.connection)
      ready.push_back({member.connection.get(), member.connection.events(), 0});
  for (const FrameSocket *one : more)
    if (*one)
      ready.push_back({one->get(), one->events(), 0});
  (void)::poll(ready.data(), ready.size(), static_cast<int>(turnMs));
}

/// Whether this process did not run for a while.
bool Meeting::isStalled(int64_t now) {
  return now - std::exchange(last, now) > stallMs;
}

void Meeting::sayAlive(int64_t now) {
  if (now - spoken < aliveMs)
    return;
  spoken = now;
  for (Member &member : members)
    // One that has all waits, and nothing may come before what it waits for.
    if (member.connection && !(launch.rank > 0 && member.complete))
      member.connection.push(frameAlive);
}

/// Says once what is waited for.
void Meeting::sayWhoIsMissing(int64_t now, const std::string &what) {
  if (saidAt == 0 || now - saidAt < std::max(patienceMs / 10, sayMs))
    return;
  std::fprintf(stderr, "rank %d waits for %s (for %lld s, at most %d s)\n",
               launch.rank, what.c_str(),
               static_cast<long long>((now - saidAt) / 1000),
               launch.patienceSeconds);
  saidAt = 0;
}

std::string Meeting::run(std::vector<int> &result) {
  std::string why = launch.rank == 0 ? lead() : follow();
  if (!why.empty())
    return why;
  for (Socket &socket : sockets)
    result.push_back(socket.release());
  return "";
}

std::string cleave::runtime::connectAll(const SocketLaunch &launch,
                                        std::vector<int> &sockets) {
  return Meeting(launch).run(sockets);
}
