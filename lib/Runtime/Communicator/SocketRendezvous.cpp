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
//    listen, with a secret.
// 3. Each connects to those of lower ranks, which the secret identifies: an
//    address may be that of another machine in a network of its own.
//
//===----------------------------------------------------------------------===//

#include "SocketRendezvous.h"
#include "cleave/Runtime/Communicator/Communicator.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <random>
#include <sys/socket.h>
#include <unistd.h>

using namespace cleave::runtime;

/// The first word of what processes say, and its version.
static constexpr uint64_t magicWord = 0x65766165'6c632d00u;
static constexpr uint32_t protocol = CLEAVE_COMMUNICATOR_ABI * 256 + 1;

/// The time in which a program that listens must answer.
static constexpr int64_t answerMs = 5000;

/// The time in which the first rank still tells others why it ends, if they
/// come late.
static constexpr int64_t refuseMs = 1000;

/// The addresses of a machine, in network order, up to the first 0.
static constexpr int mostHosts = 8;

namespace {

enum : uint32_t { answerWelcome = 1, answerOther, answerRefused, answerTable };

struct Hello {
  uint64_t magic = magicWord;
  uint32_t version = protocol;
  int32_t rank = 0, size = 0;
  uint32_t port = 0;
  uint64_t key = 0;
  uint32_t hosts[mostHosts] = {};
};

struct Answer {
  uint64_t magic = magicWord;
  uint32_t kind = 0, bytes = 0;
};

/// Where a process listens; its first host is where the first rank sees it.
struct Place {
  uint32_t hosts[mostHosts + 1] = {};
  uint32_t port = 0;
};

/// What two processes say to each other when they connect.
struct Greeting {
  uint64_t magic = magicWord, secret = 0;
  int32_t from = 0, to = 0;
};

/// An open descriptor.
class Socket {
public:
  explicit Socket(int number = -1) : number(number) {}
  Socket(Socket &&other) noexcept : number(other.release()) {}
  Socket &operator=(Socket &&other) noexcept {
    std::swap(number, other.number);
    return *this;
  }
  ~Socket() {
    if (number >= 0)
      ::close(number);
  }
  int get() const { return number; }
  explicit operator bool() const { return number >= 0; }
  int release() {
    int result = number;
    number = -1;
    return result;
  }

private:
  int number;
};

/// Waits for all ranks, or connects to them.
class Meeting {
public:
  explicit Meeting(const SocketLaunch &launch);

  std::string run(std::vector<int> &result);

private:
  std::string receiveAll();
  std::string joinFirst();
  std::string tryFirst(uint32_t host, int port);
  std::string meetOthers();
  std::string admit(Socket joined);
  void refuse(const Socket &joined, const std::string &why);
  void refuseAll(const Socket &listener, const std::string &why);
  std::string missing() const;
  std::string where() const;
  std::string within() const;

  const SocketLaunch &launch;
  size_t count;
  int64_t end;
  std::vector<Socket> sockets;
  std::vector<Place> places;
  uint64_t secret = 0;
  Socket own;
  uint32_t ownPort = 0;
  /// Processes that were told that there is no launch.
  size_t refused = 0;
  /// A later try does not help.
  bool final = false;
};

} // namespace

//===----------------------------------------------------------------------===//
// Sockets
//===----------------------------------------------------------------------===//

static int64_t nowMs() {
  timespec time;
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t(time.tv_sec) * 1000 + time.tv_nsec / 1000000;
}

static void pauseMs(int64_t time) {
  timespec pause{time / 1000, time % 1000 * 1000000};
  ::nanosleep(&pause, nullptr);
}

static bool waitFor(const Socket &socket, short events, int64_t end) {
  pollfd ready{socket.get(), events, 0};
  int64_t rest = end - nowMs();
  return rest > 0 && ::poll(&ready, 1, static_cast<int>(rest)) > 0;
}

/// Sends or receives all of it, before `end`.
static bool sendAll(const Socket &socket, const void *data, size_t size,
                    int64_t end) {
  auto *at = static_cast<const char *>(data);
  while (size > 0) {
    ssize_t n = ::send(socket.get(), at, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN && errno != EINTR)
      return false;
    if (n > 0)
      at += n, size -= static_cast<size_t>(n);
    else if (!waitFor(socket, POLLOUT, end))
      return false;
  }
  return true;
}

static bool receiveAll(const Socket &socket, void *data, size_t size,
                       int64_t end) {
  auto *at = static_cast<char *>(data);
  while (size > 0) {
    if (!waitFor(socket, POLLIN, end))
      return false;
    ssize_t n = ::recv(socket.get(), at, size, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
      return false;
    if (n > 0)
      at += n, size -= static_cast<size_t>(n);
  }
  return true;
}

static bool sendAnswer(const Socket &socket, uint32_t kind, const void *data,
                       size_t size) {
  Answer answer;
  answer.kind = kind;
  answer.bytes = static_cast<uint32_t>(size);
  int64_t end = nowMs() + answerMs;
  return sendAll(socket, &answer, sizeof(answer), end) &&
         sendAll(socket, data, size, end);
}

static Socket makeSocket() {
  return Socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

/// An address of a host and a port.
static sockaddr_in addressOf(uint32_t host, uint32_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = host;
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

/// Listens at `port`, or at any one if that is 0; returns the error, or "".
static std::string listenAt(uint32_t host, uint32_t &port, Socket &result) {
  result = makeSocket();
  sockaddr_in address = addressOf(host, port);
  socklen_t size = sizeof(address);
  auto *raw = reinterpret_cast<sockaddr *>(&address);
  int on = 1;
  if (result)
    ::setsockopt(result.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (!result || ::bind(result.get(), raw, size) != 0 ||
      ::listen(result.get(), 1024) != 0 ||
      ::getsockname(result.get(), raw, &size) != 0)
    return std::strerror(errno);
  port = ntohs(address.sin_port);
  return "";
}

/// Connects before `end`; returns the error, or "".
static std::string connectTo(uint32_t host, uint32_t port, int64_t end,
                             Socket &result) {
  result = makeSocket();
  sockaddr_in address = addressOf(host, port);
  if (!result)
    return std::strerror(errno);
  int flags = ::fcntl(result.get(), F_GETFL);
  ::fcntl(result.get(), F_SETFL, flags | O_NONBLOCK);
  int error = 0;
  socklen_t size = sizeof(error);
  if (::connect(result.get(), reinterpret_cast<sockaddr *>(&address),
                sizeof(address)) != 0) {
    if (errno != EINPROGRESS)
      return std::strerror(errno);
    if (!waitFor(result, POLLOUT, end))
      return std::strerror(ETIMEDOUT);
    ::getsockopt(result.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  ::fcntl(result.get(), F_SETFL, flags);
  // A port of this machine may connect to itself.
  sockaddr_in from{};
  size = sizeof(from);
  ::getsockname(result.get(), reinterpret_cast<sockaddr *>(&from), &size);
  if (error == 0 && from.sin_port == address.sin_port &&
      from.sin_addr.s_addr == address.sin_addr.s_addr)
    error = ECONNREFUSED;
  return error ? std::strerror(error) : "";
}

/// The IPv4 addresses of `name`.
static std::vector<uint32_t> resolve(const std::string &name) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  std::vector<uint32_t> hosts;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &list) != 0)
    return hosts;
  for (addrinfo *one = list; one; one = one->ai_next)
    hosts.push_back(
        reinterpret_cast<sockaddr_in *>(one->ai_addr)->sin_addr.s_addr);
  ::freeaddrinfo(list);
  return hosts;
}

/// The addresses of this machine that other machines may reach.
static void findHosts(uint32_t *hosts) {
  ifaddrs *list = nullptr;
  if (::getifaddrs(&list) != 0)
    return;
  int count = 0;
  for (ifaddrs *one = list; one && count < mostHosts; one = one->ifa_next)
    if (one->ifa_addr && one->ifa_addr->sa_family == AF_INET &&
        (one->ifa_flags & IFF_UP) && !(one->ifa_flags & IFF_LOOPBACK))
      hosts[count++] =
          reinterpret_cast<sockaddr_in *>(one->ifa_addr)->sin_addr.s_addr;
  ::freeifaddrs(list);
}

//===----------------------------------------------------------------------===//
// The first rank
//===----------------------------------------------------------------------===//

Meeting::Meeting(const SocketLaunch &launch)
    : launch(launch), count(static_cast<size_t>(launch.size)),
      end(nowMs() + int64_t(launch.timeoutSeconds) * 1000), places(count) {
  sockets.resize(count);
}

std::string Meeting::where() const {
  std::string text = launch.host + ":" + std::to_string(launch.port);
  if (launch.ports > 1)
    text += " to " + std::to_string(launch.port + launch.ports - 1);
  return text;
}

std::string Meeting::within() const {
  return "within " + std::to_string(launch.timeoutSeconds) + " s";
}

/// The ranks that have not come, as text.
std::string Meeting::missing() const {
  std::string list;
  int absent = 0;
  for (size_t i = 1; i < count; ++i)
    if (!sockets[i] && static_cast<int>(i) != launch.rank && ++absent <= 8)
      list += (list.empty() ? "" : ", ") + std::to_string(i);
  if (absent > 8)
    list += " and " + std::to_string(absent - 8) + " more";
  return (absent == 1 ? "rank " : "ranks ") + list;
}

void Meeting::refuse(const Socket &joined, const std::string &why) {
  if (joined)
    refused += sendAnswer(joined, answerRefused, why.data(), why.size());
}

/// Tells all ranks, also those that come soon, why there is no launch.
void Meeting::refuseAll(const Socket &listener, const std::string &why) {
  for (const Socket &socket : sockets)
    refuse(socket, why);
  int64_t last = nowMs() + refuseMs;
  while (refused + 1 < count && waitFor(listener, POLLIN, last)) {
    Socket late(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    Hello hello;
    if (late && ::receiveAll(late, &hello, sizeof(hello), last))
      refuse(late, why);
  }
}

/// Takes in one that has connected; returns why the launch fails, or "".
std::string Meeting::admit(Socket joined) {
  sockaddr_in from{};
  socklen_t size = sizeof(from);
  ::getpeername(joined.get(), reinterpret_cast<sockaddr *>(&from), &size);
  Hello hello;
  if (!::receiveAll(joined, &hello, sizeof(hello), nowMs() + answerMs) ||
      hello.magic != magicWord)
    return "";
  if (hello.version == protocol && hello.key != launch.key) {
    sendAnswer(joined, answerOther, nullptr, 0);
    return "";
  }
  std::string who = "rank " + std::to_string(hello.rank), why;
  if (hello.version != protocol)
    why = "a process that joins has another version of Cleave";
  else if (hello.size != launch.size)
    why = who + " was started with WORLD_SIZE " + std::to_string(hello.size) +
          ", but rank 0 with " + std::to_string(launch.size) +
          ": all processes need the same";
  else if (hello.rank < 1 || hello.rank >= launch.size)
    why = "a process that joins is " + who + ", but " +
          (hello.rank == 0 ? "another one is that already"
                           : "there are ranks up to " +
                                 std::to_string(launch.size - 1) + " only");
  else if (sockets[static_cast<size_t>(hello.rank)])
    why = "two processes were started as " + who + ": each needs its own RANK";
  if (!why.empty()) {
    refuse(joined, why);
    return why;
  }
  if (!sendAnswer(joined, answerWelcome, nullptr, 0))
    return "";
  size_t rank = static_cast<size_t>(hello.rank);
  places[rank].port = hello.port;
  places[rank].hosts[0] = from.sin_addr.s_addr;
  std::copy_n(hello.hosts, mostHosts, places[rank].hosts + 1);
  sockets[rank] = std::move(joined);
  return "";
}

std::string Meeting::receiveAll() {
  Socket listener;
  std::string why;
  for (int i = 0; i < launch.ports; ++i) {
    uint32_t port = static_cast<uint32_t>(launch.port + i);
    why = listenAt(htonl(launch.local ? INADDR_LOOPBACK : INADDR_ANY), port,
                   listener);
    if (why.empty())
      break;
  }
  if (!why.empty())
    return "rank 0 cannot listen at " + where() + ": " + why +
           " (another program, or another rank 0, has the port; CLEAVE_PORT "
           "names another one)";
  size_t here = 1;
  while (why.empty() && here < count) {
    // One that ends while it waits is noticed too.
    std::vector<pollfd> ready{{listener.get(), POLLIN, 0}};
    for (const Socket &socket : sockets)
      ready.push_back({socket.get(), POLLIN, 0});
    int64_t rest = end - nowMs();
    if (rest <= 0) {
      why = missing() + " (of " + std::to_string(count) +
            ") did not come to rank 0 at " + where() + " " + within() +
            ": start all ranks, each with its RANK, the same WORLD_SIZE and "
            "the same address; CLEAVE_TIMEOUT sets another time";
      break;
    }
    (void)::poll(ready.data(), ready.size(), static_cast<int>(rest));
    for (size_t i = 1; i < count && why.empty(); ++i)
      if (sockets[i] && ready[i + 1].revents)
        why = "rank " + std::to_string(i) +
              " has ended before all ranks had come";
    if (why.empty() && ready[0].revents) {
      Socket joined(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (joined)
        why = admit(std::move(joined));
    }
    here = 1 + static_cast<size_t>(
                   std::count_if(sockets.begin(), sockets.end(),
                                 [](const Socket &one) { return bool(one); }));
  }
  if (!why.empty()) {
    refuseAll(listener, why);
    return why;
  }
  std::random_device random;
  secret = uint64_t(random()) << 32 | random();
  std::vector<char> table(sizeof(secret) + count * sizeof(Place));
  std::memcpy(table.data(), &secret, sizeof(secret));
  std::memcpy(table.data() + sizeof(secret), places.data(),
              count * sizeof(Place));
  for (size_t i = 1; i < count; ++i)
    if (!sendAnswer(sockets[i], answerTable, table.data(), table.size()))
      return "rank " + std::to_string(i) + " has ended while ranks connect";
  return "";
}

//===----------------------------------------------------------------------===//
// The others
//===----------------------------------------------------------------------===//

/// Joins the first rank if it is there; returns why not, or "".
std::string Meeting::tryFirst(uint32_t host, int port) {
  std::string at = launch.host + ":" + std::to_string(port);
  Socket first;
  std::string why = connectTo(host, static_cast<uint32_t>(port),
                              std::min(end, nowMs() + answerMs), first);
  if (!why.empty())
    return "nothing listens at " + at + " (" + why + ")";
  Hello hello;
  hello.rank = launch.rank;
  hello.size = launch.size;
  hello.key = launch.key;
  hello.port = ownPort;
  if (!launch.local)
    findHosts(hello.hosts);
  Answer answer;
  int64_t soon = std::min(end, nowMs() + answerMs);
  if (!sendAll(first, &hello, sizeof(hello), soon) ||
      !::receiveAll(first, &answer, sizeof(answer), soon) ||
      answer.magic != magicWord)
    return "what listens at " + at + " is not rank 0 of a launch";
  if (answer.kind == answerOther)
    return "what listens at " + at + " is rank 0 of another launch";
  // The first one waits for the others as long as this one, and says so.
  int64_t later = end + answerMs + refuseMs;
  if (answer.kind == answerWelcome &&
      !::receiveAll(first, &answer, sizeof(answer), later)) {
    final = true;
    return "rank 0 at " + at + " has ended before all ranks had come";
  }
  std::vector<char> text(std::min<size_t>(answer.bytes, size_t(1) << 26));
  if (!::receiveAll(first, text.data(), text.size(), later))
    return "rank 0 at " + at + " has ended while ranks connect";
  if (answer.kind == answerRefused) {
    final = true;
    return std::string(text.begin(), text.end());
  }
  if (answer.kind != answerTable ||
      text.size() != sizeof(secret) + count * sizeof(Place))
    return "what listens at " + at + " is not rank 0 of a launch";
  std::memcpy(&secret, text.data(), sizeof(secret));
  std::memcpy(places.data(), text.data() + sizeof(secret),
              count * sizeof(Place));
  sockets[0] = std::move(first);
  return "";
}

std::string Meeting::joinFirst() {
  std::string why = listenAt(htonl(launch.local ? INADDR_LOOPBACK : INADDR_ANY),
                             ownPort, own);
  if (!why.empty())
    return "cannot listen: " + why;
  // Something that is not this launch says more than a port without anything.
  std::string better;
  do {
    std::vector<uint32_t> hosts = launch.local
                                      ? std::vector{htonl(INADDR_LOOPBACK)}
                                      : resolve(launch.host);
    if (hosts.empty())
      why = "no IPv4 address is known of '" + launch.host + "'";
    for (int i = 0; i < launch.ports; ++i)
      for (uint32_t host : hosts) {
        why = tryFirst(host, launch.port + i);
        if (why.empty() || final)
          return why;
        if (why.starts_with("what"))
          better = why;
      }
    pauseMs(50);
  } while (nowMs() < end);
  return "rank 0 was not found at " + where() + " " + within() + ": " +
         (better.empty() ? why : better) +
         "; start rank 0 too, and give all processes its address "
         "(MASTER_ADDR and MASTER_PORT, or CLEAVE_ADDRESS and CLEAVE_PORT)";
}

std::string Meeting::meetOthers() {
  int64_t last = nowMs() + int64_t(launch.timeoutSeconds) * 1000;
  // Those of lower ranks.
  for (int other = 1; other < launch.rank; ++other) {
    const Place &place = places[static_cast<size_t>(other)];
    std::vector<uint32_t> hosts;
    for (uint32_t host : place.hosts)
      if (host != 0)
        hosts.push_back(host);
    hosts.push_back(htonl(INADDR_LOOPBACK));
    Greeting mine, theirs;
    mine.secret = secret;
    mine.from = launch.rank;
    mine.to = other;
    std::string why;
    for (uint32_t host : hosts) {
      Socket &socket = sockets[static_cast<size_t>(other)];
      why = connectTo(host, place.port, std::min(last, nowMs() + answerMs),
                      socket);
      if (!why.empty())
        continue;
      // It answers when it has connected to those before it.
      if (sendAll(socket, &mine, sizeof(mine), last) &&
          ::receiveAll(socket, &theirs, sizeof(theirs), last) &&
          theirs.magic == magicWord && theirs.secret == secret &&
          theirs.from == other && theirs.to == launch.rank)
        break;
      why = "it does not answer";
    }
    if (!why.empty())
      return "rank " + std::to_string(launch.rank) +
             " cannot connect to rank " + std::to_string(other) + ": " + why;
  }
  // Those of higher ranks.
  for (int rest = launch.size - 1 - launch.rank; rest > 0;) {
    if (!waitFor(own, POLLIN, last))
      return "rank " + std::to_string(launch.rank) + ": " + missing() +
             " did not connect " + within();
    Socket joined(::accept4(own.get(), nullptr, nullptr, SOCK_CLOEXEC));
    Greeting theirs, mine;
    if (!joined ||
        !::receiveAll(joined, &theirs, sizeof(theirs), nowMs() + answerMs) ||
        theirs.magic != magicWord || theirs.secret != secret ||
        theirs.to != launch.rank || theirs.from <= launch.rank ||
        theirs.from >= launch.size)
      continue;
    mine.secret = secret;
    mine.from = launch.rank;
    mine.to = theirs.from;
    Socket &socket = sockets[static_cast<size_t>(theirs.from)];
    rest -= !socket;
    socket = std::move(joined);
    sendAll(socket, &mine, sizeof(mine), last);
  }
  return "";
}

std::string Meeting::run(std::vector<int> &result) {
  std::string why = launch.rank == 0 ? receiveAll() : joinFirst();
  if (why.empty() && launch.rank > 0)
    why = meetOthers();
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
