//===- Handshake.h - How two processes know each other ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// One process (the caller) connects to another one (the listener).
///
///   caller    Hello: who it is, to whom it speaks, a random number
///   listener  Challenge: a random number, and a proof that it has the key
///   caller    Proof: that it has the key, with where it listens itself
///   listener  Welcome, or why not
///
/// A proof is a keyed BLAKE3 hash of both random numbers and of all that was
/// said. Whoever does not have the key learns nothing from it, and cannot use
/// what others have said. The key is not used for what follows: connections
/// are not encrypted.
///
/// Nothing here waits: connections are served together. What is not from Cleave
/// is closed; what is, but does not fit, is told so.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_COMMUNICATOR_MEETING_HANDSHAKE_H
#define CLEAVE_LIB_RUNTIME_COMMUNICATOR_MEETING_HANDSHAKE_H

#include "../Sockets.h"
#include <array>
#include <functional>

namespace cleave::runtime {

using Digest = std::array<uint8_t, 32>;

/// The key of a secret of any length; with "" everyone has it.
Digest keyOf(const std::string &secret);
/// A key of another purpose.
Digest keyOf(const Digest &key, const Digest &number);
/// Bytes that nobody can guess.
Digest randomDigest();

/// The addresses that a process tells others, up to the first that is none.
constexpr int mostHosts = 8;

/// Where a process listens.
struct Place {
  HostAddress hosts[mostHosts];
  uint32_t port = 0, reserved = 0;
};

/// What a caller says first. Its first two words are those of all versions.
struct Hello {
  uint64_t magic;
  uint32_t version;
  int32_t rank = 0, size = 0;
  /// The rank that it speaks to.
  int32_t to = 0;
  /// Tells launches apart that meet at neighbouring ports.
  uint64_t launch = 0;
  Digest number{};

  Hello();
};

/// The kinds of frames. The values of the first ones are those of all versions.
enum FrameKind : uint32_t {
  frameWelcome = 1,
  /// The listener belongs to another launch.
  frameOther,
  /// With a text.
  frameRefused,
  frameTable,
  frameChallenge,
  frameProof,
  /// The sender is alive.
  frameAlive,
  /// The sender is connected to all others; all are.
  frameComplete,
  frameGo,
};

/// A connection on which frames are sent and received, without waiting.
class FrameSocket {
public:
  explicit FrameSocket(Socket socket = Socket()) : socket(std::move(socket)) {}

  explicit operator bool() const { return bool(socket); }
  int get() const { return socket.get(); }
  HostAddress ownHost() const { return socket.ownHost(); }
  HostAddress otherHost() const { return socket.otherHost(); }
  Socket take() { return std::move(socket); }
  void close() { socket = Socket(); }

  /// Sends what the system takes at once, and the rest by `flush`. False when
  /// the connection has ended.
  bool push(uint32_t kind, const void *data = nullptr, size_t size = 0);
  bool pushRaw(const void *data, size_t size);
  bool flush();
  bool isFlushed() const { return out.empty(); }
  /// Sends nothing more, and drops what comes; false at the end.
  bool drain();
  /// The events to poll for.
  short events() const;

  /// What `receive` has found: a frame is complete, nothing more has come, or
  /// the connection has ended or says what no Cleave does.
  enum Found { Frame, Nothing, End };
  /// Receives a frame of at most `most` bytes, and no byte behind it.
  Found receive(size_t most);
  /// Receives so many bytes, which `text` has then.
  Found receiveRaw(size_t size);
  uint32_t kind = 0;
  std::string text;

private:
  struct Header {
    uint64_t magic;
    uint32_t kind, bytes;
  };

  Socket socket;
  std::string out;
  Header header{};
  size_t arrived = 0;
};

/// A listener's end.
class Guest {
public:
  explicit Guest(Socket socket) : connection(std::move(socket)) {}

  enum State {
    /// More has to come.
    Speaks,
    /// It has the key: `hello` and `place` are its own. The listener says
    /// frameWelcome or frameRefused.
    IsKnown,
    IsClosed
  };
  /// Goes on as far as it can. `wrong` becomes what does not fit, if it is of
  /// Cleave.
  State serve(const Digest &key, uint64_t launch, int32_t own,
              const std::string &secretName, std::string &wrong);
  /// Says why not.
  void refuse(const std::string &why, uint32_t kind = frameRefused);

  FrameSocket connection;
  Hello hello;
  Place place;
  int64_t since = nowMs();

private:
  enum { Starts, Greets, Proves, Ends } at = Starts;
  Digest number{};
};

/// A caller's end.
class Caller {
public:
  /// Of `host` and `port`; `to` is who should listen there.
  Caller(const HostAddress &host, uint32_t port, Hello hello);

  enum State {
    Speaks,
    /// It is there: `connection` goes on.
    IsWelcome,
    /// `why` says why it is not what listens there.
    HasFailed,
    /// It is, and refuses this process: `why` is its text.
    IsRefused
  };
  /// Goes on as far as it can. `here` gives where this process listens itself.
  State serve(const Digest &key,
              const std::function<Place(const FrameSocket &)> &here);

  /// Whether it has proven that it is there: one is enough.
  bool isProven() const { return proven; }

  FrameSocket connection;
  HostAddress host;
  uint32_t port;
  std::string why;
  /// The name of the secret that the listener wants, if that is another one.
  std::string wanted;
  int64_t since = nowMs();

private:
  State failWith(std::string text) {
    why = std::move(text);
    return HasFailed;
  }
  Hello hello;
  bool connected = false, proven = false;
};

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_COMMUNICATOR_MEETING_HANDSHAKE_H
