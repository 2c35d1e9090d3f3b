//===- MeetAsOther.cpp - The other ranks join the first one -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "LaunchSecret.h"
#include "Meeting.h"

#include <cstring>

using namespace cleave::runtime;

/// The time in which a connection must be made.
static constexpr int64_t connectMs = 5000;

/// Listens at the address of this process that the first rank sees.
std::string Meeting::listenHere(const FrameSocket &first, Place &place) {
  HostAddress host = first.ownHost();
  if (!launch.local && host.isLoopback())
    host = HostAddress();
  if (!guests.listener || host != listensAt) {
    ownPort = 0;
    std::string why = listenAt(host, ownPort, guests.listener);
    if (!why.empty())
      return "cannot listen at " + host.text() + ": " + why;
    listensAt = host;
  }
  std::vector<HostAddress> hosts =
      host.isNone() ? hostsOfMachine() : std::vector{host};
  for (size_t i = 0; i < hosts.size() && i < mostHosts; ++i)
    place.hosts[i] = hosts[i];
  place.port = ownPort;
  return "";
}

/// Calls all addresses where the first rank may be, together, until one of them
/// welcomes this process.
std::string Meeting::joinFirst() {
  struct Try {
    HostAddress host;
    uint32_t port = 0;
    std::unique_ptr<Caller> caller;
    int64_t later = 0;
  };
  std::vector<Try> tries;
  // Something that is not this launch says more than a port without anything.
  std::string why, better;
  Hello hello;
  hello.rank = launch.rank;
  hello.size = launch.size;
  hello.launch = launch.key;
  const Caller *proven = nullptr;
  int64_t later = begin, laterSecret = begin;
  for (int64_t now = begin; now < end; now = nowMs()) {
    if (tries.empty() && now >= later) {
      std::vector<HostAddress> hosts =
          launch.local ? loopbackHosts() : resolveHost(launch.host);
      for (int i = 0; i < launch.ports; ++i)
        for (const HostAddress &host : hosts)
          tries.push_back(
              {host, static_cast<uint32_t>(launch.port + i), nullptr, 0});
      if (tries.empty())
        why = "no address is known of '" + launch.host + "'";
      later = now + 1000;
    }
    if (launch.secret.empty() && !launch.secretFile.empty() && !proven &&
        now >= laterSecret) {
      // It may be written anew.
      laterSecret = now + 10 * turnMs;
      std::string none = readSecret(launch.secretFile, secret);
      if (!none.empty())
        better = none;
      key = keyOf(secret);
    }
    std::vector<const FrameSocket *> waits;
    for (Try &one : tries) {
      bool mayCall = launch.secretFile.empty() || hasSecret();
      if (!one.caller && now >= one.later && mayCall)
        one.caller = std::make_unique<Caller>(one.host, one.port, hello);
      // By several addresses it would seem to be several processes.
      if (!one.caller || (proven && proven != one.caller.get()))
        continue;
      std::string at =
          one.host.isLoopback() && launch.local ? launch.host : one.host.text();
      at += ":" + std::to_string(one.port);
      Caller::State state =
          one.caller->serve(key, [&](const FrameSocket &first) {
            Place place;
            listenError = listenHere(first, place);
            return place;
          });
      if (!listenError.empty())
        return listenError;
      if (one.caller->isProven())
        proven = one.caller.get();
      if (state == Caller::IsWelcome) {
        firstAt = at;
        members[0].connection = std::move(one.caller->connection);
        members[0].heard = now;
        return "";
      }
      if (state == Caller::IsRefused)
        return one.caller->why;
      if (state == Caller::HasFailed) {
        bool nothing = one.caller->why.starts_with("nothing");
        std::string text =
            nothing ? "nothing listens at " + at + one.caller->why.substr(21)
                    : "what listens at " + at +
                          " is not rank 0 of this "
                          "launch: " +
                          one.caller->why;
        if (!one.caller->wanted.empty() && !nothing)
          text += " (its secret is " + one.caller->wanted +
                  ", that of this process is " + secretName + ")";
        if (!nothing)
          better = text;
        // The address that is preferred, rather than the last one.
        if (why.empty() || one.host == tries[0].host)
          why = text;
        if (proven == one.caller.get())
          proven = nullptr;
        one.caller = nullptr;
        one.later = now + 4 * turnMs;
        continue;
      }
      waits.push_back(&one.caller->connection);
    }
    if (isInterrupted())
      return "was interrupted";
    sayWhoIsMissing(now, "rank 0 at " + where() + ": " +
                             (better.empty() ? why : better));
    pollAll(waits);
  }
  return "rank 0 was not found at " + where() + " " + within() + ": " +
         (!better.empty() ? better
          : !why.empty()  ? why
                          : "what listens there says nothing") +
         "; start rank 0 too, and give all processes its address "
         "(MASTER_ADDR and MASTER_PORT, or CLEAVE_ADDRESS and CLEAVE_PORT)";
}

/// Reads what the first rank says; sets `isReady` when all are connected.
std::string Meeting::hearFirst(int64_t now, bool &isReady) {
  Member &first = members[0];
  bool lost = !first.connection.flush();
  while (!lost) {
    FrameSocket::Found found = first.connection.receive(size_t(1) << 26);
    if (found == FrameSocket::Nothing)
      break;
    lost = found == FrameSocket::End;
    if (lost)
      break;
    first.heard = now;
    const std::string &text = first.connection.text;
    switch (first.connection.kind) {
    case frameAlive:
      break;
    case frameRefused:
      return text;
    case frameGo:
      isReady = true;
      return "";
    case frameTable: {
      Digest number;
      if (connecting || text.size() != sizeof(number) + count * sizeof(Entry))
        return "rank 0 at " + firstAt + " says what was not asked for";
      std::memcpy(number.data(), text.data(), sizeof(number));
      for (size_t i = 0; i < count; ++i)
        std::memcpy(&members[i].entry,
                    text.data() + sizeof(number) + i * sizeof(Entry),
                    sizeof(Entry));
      key = keyOf(key, number);
      connecting = true;
      end = now + patienceMs;
      lower.resize(static_cast<size_t>(launch.rank));
      break;
    }
    default:
      lost = true;
    }
  }
  if (lost)
    return "rank 0 at " + firstAt +
           (connecting ? " has ended while ranks connect"
                       : " has ended before all ranks had come");
  // It gives up first, and says why.
  if (int64_t silent = now - first.heard; silent > patienceMs + silenceMs)
    return "rank 0 at " + firstAt + " has not answered for " +
           std::to_string(silent / 1000) + " s";
  return "";
}

/// Connects to lower ranks: to each at one address after another.
std::string Meeting::callLower(int64_t now) {
  for (size_t other = 1; other < lower.size(); ++other) {
    Lower &one = lower[other];
    if (sockets[other] || now < one.later)
      continue;
    if (now >= end)
      return "rank " + std::to_string(launch.rank) +
             " cannot connect to rank " + std::to_string(other) + ": " +
             (one.why.empty() ? "it does not answer" : one.why);
    const Entry &entry = members[other].entry;
    std::vector<HostAddress> hosts{entry.seen};
    for (const HostAddress &host : entry.place.hosts)
      if (!host.isNone())
        hosts.push_back(host);
    for (const HostAddress &host : loopbackHosts())
      hosts.push_back(host);
    if (!one.caller) {
      Hello hello;
      hello.rank = launch.rank;
      hello.size = launch.size;
      hello.to = static_cast<int32_t>(other);
      hello.launch = launch.key;
      one.caller = std::make_unique<Caller>(hosts[one.next++ % hosts.size()],
                                            entry.place.port, hello);
    }
    Caller::State state =
        one.caller->serve(key, [](const FrameSocket &) { return Place(); });
    if (state == Caller::IsWelcome) {
      sockets[other] = one.caller->connection.take();
      one.caller = nullptr;
      continue;
    }
    if (state == Caller::Speaks && now - one.caller->since < connectMs)
      continue;
    if (state != Caller::Speaks)
      one.why = one.caller->host.text() + ":" +
                std::to_string(entry.place.port) + ": " + one.caller->why;
    one.caller = nullptr;
    // All addresses have been tried: not at once again.
    one.later = one.next % hosts.size() == 0 ? now + 4 * turnMs : 0;
  }
  return "";
}

std::string Meeting::follow() {
  std::string why = joinFirst();
  if (!why.empty())
    return why;
  size_t own = static_cast<size_t>(launch.rank);
  for (bool isReady = false;;) {
    int64_t now = nowMs();
    if (isStalled(now))
      members[0].heard = now;
    why = hearFirst(now, isReady);
    if (isReady || !why.empty())
      break;
    guests.serve(
        key, launch, secretName,
        [&](Guest &guest) {
          int32_t rank = guest.hello.rank;
          if (!connecting || rank <= launch.rank || rank >= launch.size)
            return guest.refuse("no such rank is waited for");
          guest.connection.push(frameWelcome);
          // One that gave up waiting comes again.
          sockets[static_cast<size_t>(rank)] = guest.connection.take();
          guest.connection.close();
        },
        [](const std::string &) {});
    why = callLower(now);
    if (isInterrupted())
      why = "rank " + std::to_string(launch.rank) + " was interrupted";
    if (!why.empty()) {
      members[0].connection.push(frameRefused, why.data(), why.size());
      break;
    }
    bool all = connecting;
    for (size_t i = 1; i < count; ++i)
      all &= i == own || sockets[i];
    sayAlive(now);
    if (all && !members[0].complete) {
      members[0].complete = true;
      members[0].connection.push(frameComplete);
    }
    std::vector<const FrameSocket *> waits;
    for (const Lower &one : lower)
      if (one.caller)
        waits.push_back(&one.caller->connection);
    pollAll(waits);
  }
  if (why.empty())
    sockets[0] = members[0].connection.take();
  return why;
}
