//===- MeetAsFirst.cpp - The first rank waits for the others ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "LaunchSecret.h"
#include "Meeting.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

using namespace cleave::runtime;

/// The time in which the first rank still tells others why it ends, if they
/// come late.
static constexpr int64_t refuseMs = 1000;

/// Listens at the address that the others use, if it is one of this machine.
std::string Meeting::listenFirst() {
  std::vector<HostAddress> hosts =
      launch.local ? loopbackHosts() : resolveHost(launch.host);
  if (launch.local && launch.host.find(':') != std::string::npos)
    std::reverse(hosts.begin(), hosts.end());
  // A name may be that of loopback on its own machine alone, or be translated.
  if (!launch.local) {
    std::erase_if(hosts, [](const HostAddress &h) { return h.isLoopback(); });
    hosts.push_back(HostAddress());
  }
  std::string first;
  for (int i = 0; i < launch.ports; ++i)
    for (const HostAddress &host : hosts) {
      uint32_t port = static_cast<uint32_t>(launch.port + i);
      std::string why = listenAt(host, port, guests.listener);
      if (why.empty())
        return "";
      if (first.empty())
        first = why;
      // Who has the port has it for the others too.
      if (why == std::strerror(EADDRINUSE))
        break;
    }
  return "rank 0 cannot listen at " + where() + ": " + first +
         " (another program, or another rank 0, has the port; CLEAVE_PORT "
         "names another one)";
}

/// Takes in one that has the key; `why` becomes why the launch fails.
void Meeting::admit(Guest &guest, std::string &why) {
  const Hello &hello = guest.hello;
  std::string who = "rank " + std::to_string(hello.rank), wrong;
  if (hello.size != launch.size)
    wrong = who + " was started with WORLD_SIZE " + std::to_string(hello.size) +
            ", but rank 0 with " + std::to_string(launch.size) +
            ": all processes need the same";
  else if (hello.rank < 1 || hello.rank >= launch.size)
    wrong = "a process that joins is " + who + ", but " +
            (hello.rank == 0 ? "another one is that already"
                             : "there are ranks up to " +
                                   std::to_string(launch.size - 1) + " only");
  else if (members[static_cast<size_t>(hello.rank)].connection)
    wrong =
        "two processes were started as " + who + ": each needs its own RANK";
  if (!why.empty() || !wrong.empty()) {
    guest.refuse(why.empty() ? wrong : why);
    // Without a secret it may be one of another launch.
    if (why.empty() && hasSecret())
      why = wrong;
    else if (why.empty())
      notes.push_back(wrong);
    return;
  }
  Member &member = members[static_cast<size_t>(hello.rank)];
  member.entry = {guest.connection.otherHost(), guest.place};
  member.connection = std::move(guest.connection);
  guest.connection.close();
  member.heard = nowMs();
  member.connection.push(frameWelcome);
}

void Meeting::hearMember(size_t rank, int64_t now, std::string &why) {
  Member &member = members[rank];
  if (!member.connection || member.complete)
    return;
  std::string who = "rank " + std::to_string(rank);
  bool lost = !member.connection.flush();
  while (!lost && why.empty() && !member.complete) {
    FrameSocket::Found found = member.connection.receive(1 << 12);
    if (found == FrameSocket::Nothing)
      break;
    lost = found == FrameSocket::End;
    member.heard = now;
    if (!lost && member.connection.kind == frameRefused)
      why = member.connection.text;
    member.complete = !lost && member.connection.kind == frameComplete;
  }
  if (lost)
    why = who + (connecting ? " has ended while ranks connect"
                            : " has ended before all ranks had come");
  else if (now - member.heard > std::min(silenceMs, patienceMs / 2))
    why = who + " has joined and does not answer any more: it has ended or "
                "was stopped";
}

void Meeting::sendTable() {
  Digest number = randomDigest();
  std::string table(number.begin(), number.end());
  for (const Member &member : members)
    table.append(reinterpret_cast<const char *>(&member.entry),
                 sizeof(member.entry));
  for (Member &member : members)
    member.connection.push(frameTable, table.data(), table.size());
}

/// Tells all ranks, also those that come soon, why there is no launch.
void Meeting::refuseAll(const std::string &why) {
  for (Member &member : members)
    member.connection.push(frameRefused, why.data(), why.size());
  size_t told = static_cast<size_t>(
      std::count_if(members.begin(), members.end(),
                    [](const Member &one) { return bool(one.connection); }));
  int64_t until = nowMs() + refuseMs;
  while (nowMs() < until) {
    guests.serve(
        key, launch, secretName,
        [&](Guest &guest) {
          guest.refuse(why);
          ++told;
        },
        [](const std::string &) {});
    bool flushed = true;
    for (Member &member : members)
      if (member.connection && member.connection.flush())
        flushed &= member.connection.isFlushed();
    if (flushed && told + 1 >= count)
      return;
    pollAll({});
  }
}

std::string Meeting::lead() {
  std::string why = listenFirst();
  if (!why.empty())
    return why;
  if (!hasSecret() && !launch.secretFile.empty()) {
    why = writeSecret(launch.secretFile, secret);
    if (!why.empty())
      return "ranks on several machines need a secret: " + why +
             "; set CLEAVE_SECRET to the same text in all processes, or "
             "CLEAVE_SECRET_FOLDER to a folder that all machines share";
    key = keyOf(secret);
  }
  while (true) {
    int64_t now = nowMs();
    bool stalled = isStalled(now);
    size_t before = notes.size();
    guests.serve(
        key, launch, secretName, [&](Guest &guest) { admit(guest, why); },
        [&](const std::string &wrong) { notes.push_back(wrong); });
    if (notes.size() > before && before == 0)
      std::fprintf(stderr,
                   "warning: rank 0 goes on without a process that "
                   "does not fit: %s\n",
                   notes[before].c_str());
    size_t here = 1, complete = 1;
    for (size_t i = 1; i < count; ++i) {
      if (stalled)
        members[i].heard = now;
      if (why.empty())
        hearMember(i, now, why);
      here += bool(members[i].connection);
      complete += members[i].complete;
    }
    if (why.empty() && complete == count)
      break;
    if (why.empty() && here == count && !connecting) {
      connecting = true;
      sendTable();
      end = now + patienceMs;
    }
    if (why.empty() && now >= end)
      why = connecting
                ? missing(true) + " did not connect to the others " + within()
                : missing(false) + " (of " + std::to_string(count) +
                      ") did not come to rank 0 at " + where() + " " +
                      within() +
                      ": start all ranks, each with its RANK, the same "
                      "WORLD_SIZE and the same address; --patience or "
                      "CLEAVE_PATIENCE sets another time" +
                      (notes.empty() ? "" : "; refused: " + notes.back());
    if (why.empty() && isInterrupted())
      why = "rank 0 was interrupted";
    if (!why.empty()) {
      refuseAll(why);
      return why;
    }
    sayWhoIsMissing(now, missing(connecting));
    sayAlive(now);
    pollAll({});
  }
  for (Member &member : members)
    member.connection.push(frameGo);
  auto isFlushed = [](const Member &m) {
    return !m.connection || m.connection.isFlushed();
  };
  while (!std::all_of(members.begin(), members.end(), isFlushed)) {
    for (size_t i = 1; i < count; ++i)
      if (!members[i].connection.flush() || nowMs() >= end)
        return "rank " + std::to_string(i) + " has ended while ranks connect";
    pollAll({});
  }
  for (size_t i = 1; i < count; ++i)
    sockets[i] = members[i].connection.take();
  return "";
}
