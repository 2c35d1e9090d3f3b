//===- Sockets.h - Connections of TCP ---------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_COMMUNICATOR_SOCKETS_H
#define CLEAVE_LIB_RUNTIME_COMMUNICATOR_SOCKETS_H

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace cleave::runtime {

/// An address of a machine, as one of IPv6 in network order; those of IPv4 are
/// mapped into it. All zeros is none.
struct HostAddress {
  uint8_t bytes[16] = {};

  bool operator==(const HostAddress &) const = default;
  bool isNone() const { return *this == HostAddress(); }
  bool isIPv4() const;
  bool isLoopback() const;
  std::string text() const;
};

/// An open descriptor. What it sends and receives does not block.
class Socket {
public:
  explicit Socket(int number = -1) : number(number) {}
  Socket(Socket &&other) noexcept : number(other.release()) {}
  Socket &operator=(Socket &&other) noexcept {
    std::swap(number, other.number);
    return *this;
  }
  ~Socket();

  int get() const { return number; }
  explicit operator bool() const { return number >= 0; }
  int release() { return std::exchange(number, -1); }

  /// Up to so many bytes; 0 if there is nothing yet, -1 at the end.
  int64_t send(const char *data, size_t size) const;
  int64_t receive(char *data, size_t size) const;
  /// The address of this end, and of the other one.
  HostAddress ownHost() const;
  HostAddress otherHost() const;

private:
  int number;
};

/// Milliseconds of a clock that only goes forward.
int64_t nowMs();

/// Loopback of IPv4, and of IPv6.
std::vector<HostAddress> loopbackHosts();
/// The addresses of `name`, a name or an address of IPv4 or IPv6.
std::vector<HostAddress> resolveHost(const std::string &name);
/// The addresses of this machine that other machines may reach.
std::vector<HostAddress> hostsOfMachine();

/// Listens at `port`, or at any one if that is 0, of one address or of all
/// (none); returns the error, or "".
std::string listenAt(const HostAddress &host, uint32_t &port, Socket &result);
/// Takes one that has connected, if there is one.
Socket acceptFrom(const Socket &listener);
/// Begins to connect; `isConnected` says why that failed, or "", once the
/// socket can be written.
std::string beginConnect(const HostAddress &host, uint32_t port,
                         Socket &result);
std::string isConnected(const Socket &socket);

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_COMMUNICATOR_SOCKETS_H
