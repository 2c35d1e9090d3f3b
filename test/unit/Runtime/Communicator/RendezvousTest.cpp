//===- RendezvousTest.cpp - Strangers where processes meet ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// Who else connects to the port at which the ranks of a launch meet neither
// keeps it from beginning nor ends it; one of its own that does not go on is
// named.
//
//===----------------------------------------------------------------------===//

#include "CommunicatorTrial.h"
#include "Runtime/Communicator/Meeting/Handshake.h"
#include "Runtime/Communicator/Meeting/LaunchSecret.h"
#include "cleave/Runtime/Communicator/SocketWorld.h"
#include "gtest/gtest.h"

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <poll.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

using namespace cleave;
using namespace cleave::runtime;

namespace {

const std::string secretOfTest = "a secret that only this test has";

/// A port of loopback that nobody has. Connections get ports from 32768 on by
/// default, so that none takes it.
int freePort() {
  static std::atomic<int> next{::getpid() * 211};
  while (true) {
    uint32_t port = 20000u + static_cast<uint32_t>(next++ & 0xffffff) % 12000;
    Socket socket;
    if (listenAt(loopbackHosts()[0], port, socket).empty())
      return static_cast<int>(port);
  }
}

SocketLaunch launchOf(int rank, int size, int port,
                      const std::string &secret = "") {
  SocketLaunch launch;
  launch.rank = rank;
  launch.size = size;
  launch.host = "localhost";
  launch.port = port;
  launch.local = true;
  launch.secret = secret;
  launch.processesHere = size;
  launch.patienceSeconds = 20;
  return launch;
}

struct Outcome {
  std::string error;
  int64_t tookMs = 0;
};

/// Connects a process for each launch, at once; those that find each other
/// compute something together.
std::vector<Outcome>
connectTogether(const std::vector<SocketLaunch> &launches) {
  std::vector<Outcome> outcomes(launches.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < launches.size(); ++i)
    threads.emplace_back([&, i] {
      int64_t begin = nowMs();
      auto world = SocketWorld::connect(launches[i], outcomes[i].error);
      outcomes[i].tookMs = nowMs() - begin;
      if (!world)
        return;
      cleave_communicator *c =
          world->open(test::singleThread(), outcomes[i].error);
      ASSERT_TRUE(c);
      EXPECT_EQ(test::runTrial(c, 3), "");
      c->api->close(c);
    });
  for (std::thread &thread : threads)
    thread.join();
  return outcomes;
}

/// A connection to a port at which someone begins to listen soon.
FrameSocket connectSoon(int port) {
  for (int64_t end = nowMs() + 10000; nowMs() < end;) {
    Socket socket;
    if (beginConnect(loopbackHosts()[0], static_cast<uint32_t>(port), socket)
            .empty()) {
      pollfd ready{socket.get(), POLLOUT, 0};
      (void)::poll(&ready, 1, 1000);
      if (isConnected(socket).empty())
        return FrameSocket(std::move(socket));
    }
    ::usleep(5000);
  }
  ADD_FAILURE() << "nobody listens";
  return FrameSocket();
}

/// Reads until a frame has come, or for some seconds.
bool receiveSoon(FrameSocket &from) {
  for (int64_t end = nowMs() + 8000; nowMs() < end;) {
    from.flush();
    FrameSocket::Found found = from.receive(1 << 20);
    if (found != FrameSocket::Nothing)
      return found == FrameSocket::Frame;
    ::usleep(2000);
  }
  return false;
}

/// Runs the first rank of `size` while `body` does what others do.
Outcome leadWhile(const SocketLaunch &first,
                  const std::function<void()> &body) {
  Outcome outcome;
  std::thread thread([&] {
    int64_t begin = nowMs();
    auto world = SocketWorld::connect(first, outcome.error);
    outcome.tookMs = nowMs() - begin;
    EXPECT_FALSE(world);
  });
  body();
  thread.join();
  return outcome;
}

TEST(RendezvousTest, StrangersAreServedBesideRanks) {
  for (const std::string &secret : {std::string(), secretOfTest}) {
    int port = freePort();
    std::vector<FrameSocket> strangers;
    std::vector<Outcome> outcomes(3);
    std::thread others([&] {
      // Some say nothing, some something else, and some begin to speak.
      for (int i = 0; i < 24; ++i) {
        strangers.push_back(connectSoon(port));
        Hello hello;
        hello.rank = 1;
        hello.size = 3;
        if (i % 3 == 1)
          strangers.back().pushRaw("GET / HTTP/1.1\r\n\r\n", 18);
        else if (i % 3 == 2)
          strangers.back().pushRaw(&hello, i % 2 ? 11 : sizeof(hello));
      }
      auto rest = connectTogether(
          {launchOf(1, 3, port, secret), launchOf(2, 3, port, secret)});
      std::copy(rest.begin(), rest.end(), outcomes.begin() + 1);
    });
    outcomes[0] = connectTogether({launchOf(0, 3, port, secret)})[0];
    others.join();
    for (const Outcome &outcome : outcomes) {
      EXPECT_EQ(outcome.error, "");
      EXPECT_LT(outcome.tookMs, 4000);
    }
  }
}

/// The frames of earlier versions: their hello has as many bytes, and its first
/// two words are these.
TEST(RendezvousTest, AnotherVersionIsToldSo) {
  int port = freePort();
  std::string said;
  std::thread old([&] {
    FrameSocket one = connectSoon(port);
    Hello hello;
    hello.version -= 1;
    one.pushRaw(&hello, sizeof(hello));
    EXPECT_TRUE(receiveSoon(one));
    EXPECT_EQ(one.kind, frameRefused);
    said = one.text;
    EXPECT_EQ(connectTogether({launchOf(1, 2, port)})[0].error, "");
  });
  EXPECT_EQ(connectTogether({launchOf(0, 2, port)})[0].error, "");
  old.join();
  EXPECT_EQ(said, "a process that joins has another version of Cleave");
}

TEST(RendezvousTest, TwoLaunchesAtOnePort) {
  // The second one has no port, and its other ranks are told so; the first one
  // begins when its own have come.
  int port = freePort();
  std::vector<Outcome> second;
  std::thread others([&] {
    connectSoon(port);
    auto other = [&](int rank, int size, const std::string &secret) {
      SocketLaunch launch = launchOf(rank, size, port, secret);
      launch.patienceSeconds = 1;
      return launch;
    };
    second = connectTogether({other(0, 3, ""), other(1, 3, ""), other(2, 3, ""),
                              other(1, 2, secretOfTest)});
    EXPECT_EQ(connectTogether({launchOf(1, 2, port)})[0].error, "");
  });
  EXPECT_EQ(connectTogether({launchOf(0, 2, port)})[0].error, "");
  others.join();
  EXPECT_NE(second[0].error.find("has the port"), std::string::npos);
  for (int rank : {1, 2})
    EXPECT_EQ(second[static_cast<size_t>(rank)].error,
              "rank " + std::to_string(rank) +
                  " was started with WORLD_SIZE 3, but rank 0 with 2: all "
                  "processes need the same");
  EXPECT_NE(second[3].error.find("it has another secret of the launch (its "
                                 "secret is none, that of this process is one "
                                 "that it was given)"),
            std::string::npos)
      << second[3].error;
}

TEST(RendezvousTest, RanksOfOneLaunchThatDoNotFit) {
  // Their secret proves that they are of this launch: it ends at once.
  int port = freePort();
  auto found = connectTogether(
      {launchOf(0, 2, port, secretOfTest), launchOf(1, 3, port, secretOfTest)});
  EXPECT_EQ(found[0].error, "rank 1 was started with WORLD_SIZE 3, but rank 0 "
                            "with 2: all processes need the same");
  EXPECT_EQ(found[1].error, found[0].error);
  found = connectTogether({launchOf(0, 3, port, secretOfTest),
                           launchOf(1, 3, port, secretOfTest),
                           launchOf(1, 3, port, secretOfTest)});
  for (const Outcome &outcome : found)
    EXPECT_EQ(outcome.error,
              "two processes were started as rank 1: each needs its own RANK");
}

/// Goes on as rank 1 of 2 until it is welcome.
FrameSocket joinAs1(int port, const std::string &secret,
                    Digest *key = nullptr) {
  connectSoon(port);
  Hello hello;
  hello.rank = 1;
  hello.size = 2;
  Caller caller(loopbackHosts()[0], static_cast<uint32_t>(port), hello);
  for (int64_t end = nowMs() + 5000; nowMs() < end; ::usleep(2000)) {
    Caller::State state = caller.serve(
        keyOf(secret), [](const FrameSocket &) { return Place(); });
    if (state == Caller::IsWelcome)
      return std::move(caller.connection);
    EXPECT_EQ(state, Caller::Speaks) << caller.why;
  }
  ADD_FAILURE() << "is not welcome";
  return FrameSocket();
}

TEST(RendezvousTest, OneThatJoinsAndNeverSpeaksIsNamed) {
  int port = freePort();
  SocketLaunch first = launchOf(0, 2, port, secretOfTest);
  first.patienceSeconds = 4;
  Outcome outcome = leadWhile(first, [&] {
    FrameSocket silent = joinAs1(port, secretOfTest);
    while (receiveSoon(silent) && silent.kind != frameRefused)
      ;
    EXPECT_TRUE(silent.text.starts_with("rank 1 has joined and does not "))
        << silent.text;
  });
  EXPECT_TRUE(outcome.error.starts_with("rank 1 has joined and does not answer "
                                        "any more"))
      << outcome.error;
  EXPECT_LT(outcome.tookMs, 5000);
}

/// It has met all others, and then says nothing.
TEST(RendezvousTest, OneThatConnectsAndNeverSpeaksIsNamed) {
  int port = freePort();
  std::thread other([&] {
    FrameSocket silent = joinAs1(port, secretOfTest);
    while (receiveSoon(silent) && silent.kind != frameGo)
      if (silent.kind == frameTable)
        silent.push(frameComplete);
    EXPECT_EQ(silent.kind, frameGo);
    ::usleep(4500 * 1000);
  });
  std::string error;
  auto world = SocketWorld::connect(launchOf(0, 2, port, secretOfTest), error);
  ASSERT_TRUE(world) << error;
  cleave_communicator *c = world->open(test::singleThread(), error);
  // Where the machine is busy, the failure is noticed late.
  constexpr int32_t grace = 60;
  c->api->unnoticed(c, grace);
  int32_t ranks[] = {0, 1};
  EXPECT_NE(c->api->barrier(c->api->group(c, ranks, 2)), 0);
  EXPECT_STREQ(c->api->error(c), "rank 1: does not answer any more: it has "
                                 "ended or was stopped");
  c->api->close(c);
  other.join();
}

TEST(RendezvousTest, ProofsNeedTheSecret) {
  // Neither another secret nor what others have said is a proof.
  int port = freePort();
  SocketLaunch first = launchOf(0, 2, port, secretOfTest);
  first.patienceSeconds = 1;
  Outcome outcome = leadWhile(first, [&] {
    Hello hello;
    hello.rank = 1;
    hello.size = 2;
    FrameSocket one = connectSoon(port);
    one.pushRaw(&hello, sizeof(hello));
    EXPECT_TRUE(receiveSoon(one));
    EXPECT_EQ(one.kind, frameChallenge);
    // The listener's own proof, sent back.
    std::string echo =
        one.text.substr(32, 32) + std::string(sizeof(Place), '\0');
    one.push(frameProof, echo.data(), echo.size());
    EXPECT_TRUE(receiveSoon(one));
    EXPECT_EQ(one.kind, frameRefused);
    EXPECT_EQ(one.text,
              "a process that joins has another secret of the launch");
  });
  EXPECT_TRUE(outcome.error.starts_with("rank 1 (of 2) did not come"))
      << outcome.error;
}

TEST(RendezvousTest, SecretsInFiles) {
  char folder[] = "/tmp/cleave-rendezvous-XXXXXX";
  ASSERT_TRUE(::mkdtemp(folder));
  std::string path = std::string(folder) + "/own/launch", secret, read;
  ASSERT_EQ(writeSecret(path, secret), "");
  EXPECT_EQ(readSecret(path, read), "");
  EXPECT_EQ(read, secret);
  EXPECT_EQ(secret.size(), 64u);
  struct stat status{};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  ::chmod(path.c_str(), 0640);
  EXPECT_NE(readSecret(path, read).find("is not a file of mode 600"),
            std::string::npos);
  ::unlink(path.c_str());
  ::symlink("/etc/passwd", path.c_str());
  EXPECT_NE(readSecret(path, read), "");
  // A link is replaced, and what it names stays.
  EXPECT_EQ(writeSecret(path, secret), "");
  EXPECT_FALSE(std::filesystem::is_symlink(path));
  std::filesystem::remove_all(folder);
}

/// At the address that others use, and at no other one. The system keeps what
/// a machine sends to itself on loopback.
TEST(RendezvousTest, SeveralMachinesMeetByAFile) {
  std::vector<HostAddress> hosts = hostsOfMachine();
  if (hosts.empty())
    GTEST_SKIP() << "this machine has no address";
  char folder[] = "/tmp/cleave-rendezvous-XXXXXX";
  ASSERT_TRUE(::mkdtemp(folder));
  int port = freePort();
  std::vector<SocketLaunch> launches;
  for (int rank = 0; rank < 3; ++rank) {
    SocketLaunch launch = launchOf(rank, 3, port);
    launch.local = false;
    launch.host = hosts[0].text();
    launch.secretFile = std::string(folder) + "/launch";
    launches.push_back(launch);
  }
  // From an earlier launch that was killed.
  std::string stale;
  ASSERT_EQ(writeSecret(launches[0].secretFile, stale), "");
  std::thread stranger([&] {
    for (int64_t end = nowMs() + 5000; nowMs() < end;) {
      Socket there, here;
      std::string why =
          beginConnect(hosts[0], static_cast<uint32_t>(port), there);
      pollfd ready{there.get(), POLLOUT, 0};
      if (why.empty() && ::poll(&ready, 1, 1000) > 0 &&
          isConnected(there).empty()) {
        (void)beginConnect(loopbackHosts()[0], static_cast<uint32_t>(port),
                           here);
        ready.fd = here.get();
        (void)::poll(&ready, 1, 1000);
        EXPECT_NE(isConnected(here), "");
        break;
      }
      ::usleep(1000);
    }
    for (const Outcome &outcome : connectTogether({launches[1], launches[2]}))
      EXPECT_EQ(outcome.error, "");
  });
  EXPECT_EQ(connectTogether({launches[0]})[0].error, "");
  stranger.join();
  EXPECT_FALSE(std::filesystem::exists(launches[0].secretFile));
  std::filesystem::remove_all(folder);
}

TEST(RendezvousTest, IPv6) {
  uint32_t any = 0;
  Socket socket;
  if (!listenAt(loopbackHosts()[1], any, socket).empty())
    GTEST_SKIP() << "this machine has no IPv6";
  int port = freePort();
  std::vector<SocketLaunch> launches;
  for (int rank = 0; rank < 3; ++rank) {
    launches.push_back(launchOf(rank, 3, port));
    launches.back().host = "::1";
  }
  for (const Outcome &outcome : connectTogether(launches))
    EXPECT_EQ(outcome.error, "");
}

} // namespace
