//===- Sockets.cpp - Connections of TCP -----------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Sockets.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

using namespace cleave::runtime;

/// What precedes an address of IPv4 in one of IPv6.
static constexpr uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255};

bool HostAddress::isIPv4() const {
  return std::memcmp(bytes, mapped, sizeof(mapped)) == 0;
}

bool HostAddress::isLoopback() const {
  return isIPv4() ? bytes[12] == 127
                  : std::memcmp(bytes, &in6addr_loopback, sizeof(bytes)) == 0;
}

std::string HostAddress::text() const {
  char text[INET6_ADDRSTRLEN] = "";
  if (isIPv4())
    ::inet_ntop(AF_INET, bytes + 12, text, sizeof(text));
  else
    ::inet_ntop(AF_INET6, bytes, text, sizeof(text));
  return text;
}

namespace {

/// An address as the system has it.
struct SystemAddress {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);

  sockaddr *raw() { return reinterpret_cast<sockaddr *>(&storage); }
  bool isIPv6() const { return storage.ss_family == AF_INET6; }
  sockaddr_in &v4() { return *reinterpret_cast<sockaddr_in *>(&storage); }
  sockaddr_in6 &v6() { return *reinterpret_cast<sockaddr_in6 *>(&storage); }
  uint32_t port() { return ntohs(isIPv6() ? v6().sin6_port : v4().sin_port); }
};

} // namespace

static SystemAddress systemAddress(const HostAddress &host, uint32_t port) {
  SystemAddress address;
  if (host.isIPv4()) {
    address.storage.ss_family = AF_INET;
    std::memcpy(&address.v4().sin_addr, host.bytes + 12, 4);
    address.v4().sin_port = htons(static_cast<uint16_t>(port));
    address.size = sizeof(sockaddr_in);
  } else {
    address.storage.ss_family = AF_INET6;
    std::memcpy(&address.v6().sin6_addr, host.bytes, 16);
    address.v6().sin6_port = htons(static_cast<uint16_t>(port));
    address.size = sizeof(sockaddr_in6);
  }
  return address;
}

static HostAddress hostOf(const sockaddr *raw) {
  HostAddress host;
  if (raw->sa_family == AF_INET) {
    std::memcpy(host.bytes, mapped, sizeof(mapped));
    std::memcpy(host.bytes + 12,
                &reinterpret_cast<const sockaddr_in *>(raw)->sin_addr, 4);
  } else if (raw->sa_family == AF_INET6) {
    std::memcpy(host.bytes,
                &reinterpret_cast<const sockaddr_in6 *>(raw)->sin6_addr, 16);
  }
  return host;
}

int64_t cleave::runtime::nowMs() {
  timespec time;
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t(time.tv_sec) * 1000 + time.tv_nsec / 1000000;
}

//===----------------------------------------------------------------------===//
// Sending and receiving
//===----------------------------------------------------------------------===//

Socket::~Socket() {
  if (number >= 0)
    ::close(number);
}

static int64_t countOf(ssize_t n) {
  if (n >= 0)
    return n;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

int64_t Socket::send(const char *data, size_t size) const {
  return countOf(::send(number, data, size, MSG_NOSIGNAL | MSG_DONTWAIT));
}

int64_t Socket::receive(char *data, size_t size) const {
  ssize_t n = ::recv(number, data, size, MSG_DONTWAIT);
  return n == 0 ? -1 : countOf(n);
}

HostAddress Socket::ownHost() const {
  SystemAddress address;
  return ::getsockname(number, address.raw(), &address.size)
             ? HostAddress()
             : hostOf(address.raw());
}

HostAddress Socket::otherHost() const {
  SystemAddress address;
  return ::getpeername(number, address.raw(), &address.size)
             ? HostAddress()
             : hostOf(address.raw());
}

//===----------------------------------------------------------------------===//
// Addresses
//===----------------------------------------------------------------------===//

std::vector<HostAddress> cleave::runtime::loopbackHosts() {
  SystemAddress one, two;
  one.storage.ss_family = AF_INET;
  one.v4().sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  two.storage.ss_family = AF_INET6;
  two.v6().sin6_addr = in6addr_loopback;
  return {hostOf(one.raw()), hostOf(two.raw())};
}

std::vector<HostAddress> cleave::runtime::resolveHost(const std::string &name) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  std::vector<HostAddress> hosts;
  // "[::1]" is an address too.
  bool brackets = name.size() > 2 && name.front() == '[' && name.back() == ']';
  std::string bare = brackets ? name.substr(1, name.size() - 2) : name;
  if (::getaddrinfo(bare.c_str(), nullptr, &hints, &list) != 0)
    return hosts;
  for (addrinfo *one = list; one; one = one->ai_next)
    if (HostAddress host = hostOf(one->ai_addr); !host.isNone())
      hosts.push_back(host);
  ::freeaddrinfo(list);
  return hosts;
}

std::vector<HostAddress> cleave::runtime::hostsOfMachine() {
  ifaddrs *list = nullptr;
  std::vector<HostAddress> hosts;
  if (::getifaddrs(&list) != 0)
    return hosts;
  for (ifaddrs *one = list; one; one = one->ifa_next) {
    if (!one->ifa_addr || !(one->ifa_flags & IFF_UP) ||
        (one->ifa_flags & IFF_LOOPBACK))
      continue;
    HostAddress host = hostOf(one->ifa_addr);
    // Addresses of one link (fe80::) say nothing without its number.
    if (!host.isNone() && !(host.bytes[0] == 0xfe && host.bytes[1] >> 6 == 2))
      hosts.push_back(host);
  }
  ::freeifaddrs(list);
  return hosts;
}

//===----------------------------------------------------------------------===//
// Connecting
//===----------------------------------------------------------------------===//

std::string cleave::runtime::listenAt(const HostAddress &host, uint32_t &port,
                                      Socket &result) {
  constexpr int kind = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
  SystemAddress address = systemAddress(host, port);
  result = Socket(::socket(address.storage.ss_family, kind, 0));
  if (!result && host.isNone()) {
    // A machine without IPv6: all addresses of IPv4.
    HostAddress any;
    std::memcpy(any.bytes, mapped, sizeof(mapped));
    address = systemAddress(any, port);
    result = Socket(::socket(AF_INET, kind, 0));
  }
  int on = 1, off = 0;
  if (result)
    ::setsockopt(result.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (result && address.isIPv6() && host.isNone())
    ::setsockopt(result.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (!result || ::bind(result.get(), address.raw(), address.size) != 0 ||
      ::listen(result.get(), 1024) != 0 ||
      ::getsockname(result.get(), address.raw(), &address.size) != 0)
    return std::strerror(errno);
  port = address.port();
  return "";
}

Socket cleave::runtime::acceptFrom(const Socket &listener) {
  return Socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
}

std::string cleave::runtime::beginConnect(const HostAddress &host,
                                          uint32_t port, Socket &result) {
  SystemAddress address = systemAddress(host, port);
  result = Socket(::socket(address.storage.ss_family,
                           SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (result && (::connect(result.get(), address.raw(), address.size) == 0 ||
                 errno == EINPROGRESS))
    return "";
  return std::strerror(errno);
}

std::string cleave::runtime::isConnected(const Socket &socket) {
  int error = 0;
  socklen_t size = sizeof(error);
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0)
    return std::strerror(error);
  // A port of this machine may connect to itself.
  SystemAddress own, other;
  ::getsockname(socket.get(), own.raw(), &own.size);
  if (::getpeername(socket.get(), other.raw(), &other.size) != 0)
    return std::strerror(errno);
  if (own.port() == other.port() && hostOf(own.raw()) == hostOf(other.raw()))
    return std::strerror(ECONNREFUSED);
  return "";
}
