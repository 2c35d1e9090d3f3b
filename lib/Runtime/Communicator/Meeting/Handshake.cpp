//===- Handshake.cpp - How two processes know each other ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Handshake.h"
#include "cleave/Runtime/Communicator/Communicator.h"
#include "llvm-c/blake3.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

using namespace cleave::runtime;

/// The first word of what processes say, and its version.
static constexpr uint64_t magicWord = 0x65766165'6c632d00u;
static constexpr uint32_t protocol = CLEAVE_COMMUNICATOR_ABI * 256 + 2;

/// The longest text of a refusal, and the longest name of a secret.
static constexpr size_t mostText = 4000, mostName = 1000;

//===----------------------------------------------------------------------===//
// Keys
//===----------------------------------------------------------------------===//

static Digest
hashWith(const Digest &key,
         std::initializer_list<std::pair<const void *, size_t>> parts) {
  llvm_blake3_hasher hasher;
  llvm_blake3_hasher_init_keyed(&hasher, key.data());
  for (auto [data, size] : parts)
    llvm_blake3_hasher_update(&hasher, data, size);
  Digest result;
  llvm_blake3_hasher_finalize(&hasher, result.data(), result.size());
  return result;
}

Digest cleave::runtime::keyOf(const std::string &secret) {
  llvm_blake3_hasher hasher;
  llvm_blake3_hasher_init_derive_key(&hasher, "Cleave: the secret of a launch");
  llvm_blake3_hasher_update(&hasher, secret.data(), secret.size());
  Digest result;
  llvm_blake3_hasher_finalize(&hasher, result.data(), result.size());
  return result;
}

Digest cleave::runtime::keyOf(const Digest &key, const Digest &number) {
  return hashWith(key, {{"connects", 8}, {number.data(), number.size()}});
}

Digest cleave::runtime::randomDigest() {
  Digest result;
  for (size_t done = 0; done < result.size();) {
    ssize_t got = ::getrandom(result.data() + done, result.size() - done, 0);
    if (got < 0 && errno != EINTR)
      std::abort();
    done += static_cast<size_t>(std::max<ssize_t>(got, 0));
  }
  return result;
}

/// Takes the same time wherever they differ.
static bool areEqual(const Digest &one, const void *other) {
  auto *bytes = static_cast<const uint8_t *>(other);
  volatile uint8_t difference = 0;
  for (size_t i = 0; i < one.size(); ++i)
    difference = difference | (one[i] ^ bytes[i]);
  return difference == 0;
}

static Digest proofOfListener(const Digest &key, const Hello &hello,
                              const Digest &number, int32_t own) {
  return hashWith(key, {{"listener", 8},
                        {&hello, sizeof(hello)},
                        {number.data(), number.size()},
                        {&own, sizeof(own)}});
}

static Digest proofOfCaller(const Digest &key, const Hello &hello,
                            const Digest &number, const Place &place) {
  return hashWith(key, {{"caller--", 8},
                        {&hello, sizeof(hello)},
                        {number.data(), number.size()},
                        {&place, sizeof(place)}});
}

//===----------------------------------------------------------------------===//
// Frames
//===----------------------------------------------------------------------===//

Hello::Hello() : magic(magicWord), version(protocol) {}

bool FrameSocket::pushRaw(const void *data, size_t size) {
  if (!socket)
    return false;
  out.append(static_cast<const char *>(data), size);
  return flush();
}

bool FrameSocket::push(uint32_t frame, const void *data, size_t size) {
  if (!socket)
    return false;
  Header head{magicWord, frame, static_cast<uint32_t>(size)};
  out.append(reinterpret_cast<const char *>(&head), sizeof(head));
  return pushRaw(data, size);
}

bool FrameSocket::flush() {
  while (socket && !out.empty()) {
    int64_t sent = socket.send(out.data(), out.size());
    if (sent < 0)
      return false;
    if (sent == 0)
      return true;
    out.erase(0, static_cast<size_t>(sent));
  }
  return bool(socket);
}

short FrameSocket::events() const {
  return static_cast<short>(out.empty() ? POLLIN : POLLIN | POLLOUT);
}

bool FrameSocket::drain() {
  ::shutdown(socket.get(), SHUT_WR);
  char bytes[4096];
  for (int i = 0; i < 16; ++i) {
    int64_t got = socket.receive(bytes, sizeof(bytes));
    if (got <= 0)
      return got == 0;
  }
  return true;
}

FrameSocket::Found FrameSocket::receiveRaw(size_t size) {
  if (!socket)
    return End;
  text.resize(size);
  while (arrived < size) {
    int64_t got = socket.receive(text.data() + arrived, size - arrived);
    if (got < 0)
      return End;
    if (got == 0)
      return Nothing;
    arrived += static_cast<size_t>(got);
  }
  arrived = 0;
  return Frame;
}

FrameSocket::Found FrameSocket::receive(size_t most) {
  if (!socket)
    return End;
  while (true) {
    bool head = arrived < sizeof(header);
    char *at = head ? reinterpret_cast<char *>(&header) + arrived
                    : text.data() + (arrived - sizeof(header));
    size_t rest =
        (head ? sizeof(header) : sizeof(header) + header.bytes) - arrived;
    if (rest > 0) {
      int64_t got = socket.receive(at, rest);
      if (got <= 0)
        return got < 0 ? End : Nothing;
      arrived += static_cast<size_t>(got);
    }
    if (head && arrived == sizeof(header)) {
      if (header.magic != magicWord || header.bytes > most)
        return End;
      text.resize(header.bytes);
    }
    if (arrived >= sizeof(header) && arrived == sizeof(header) + header.bytes) {
      arrived = 0;
      kind = header.kind;
      return Frame;
    }
  }
}

//===----------------------------------------------------------------------===//
// The listener
//===----------------------------------------------------------------------===//

void Guest::refuse(const std::string &why, uint32_t kind) {
  std::string text = why.substr(0, mostText);
  connection.push(kind, text.data(), text.size());
  at = Ends;
}

Guest::State Guest::serve(const Digest &key, uint64_t launch, int32_t own,
                          const std::string &secretName, std::string &wrong) {
  if (!connection.flush())
    return IsClosed;
  if (at == Starts) {
    // As much as says whether it is of Cleave, and of which version.
    constexpr size_t first = sizeof(hello.magic) + sizeof(hello.version);
    FrameSocket::Found found = connection.receiveRaw(first);
    if (found != FrameSocket::Frame)
      return found == FrameSocket::End ? IsClosed : Speaks;
    std::memcpy(reinterpret_cast<char *>(&hello), connection.text.data(),
                first);
    if (hello.magic != magicWord)
      return IsClosed;
    if (hello.version != protocol) {
      wrong = "a process that joins has another version of Cleave";
      refuse(wrong);
    } else {
      at = Greets;
    }
  }
  if (at == Greets) {
    constexpr size_t first = sizeof(hello.magic) + sizeof(hello.version);
    FrameSocket::Found found = connection.receiveRaw(sizeof(hello) - first);
    if (found != FrameSocket::Frame)
      return found == FrameSocket::End ? IsClosed : Speaks;
    std::memcpy(reinterpret_cast<char *>(&hello) + first,
                connection.text.data(), sizeof(hello) - first);
    if (hello.launch != launch || hello.to != own) {
      refuse("", frameOther);
    } else {
      number = randomDigest();
      Digest proof = proofOfListener(key, hello, number, own);
      std::string text(number.begin(), number.end());
      text.append(proof.begin(), proof.end());
      text += secretName.substr(0, mostName);
      connection.push(frameChallenge, text.data(), text.size());
      at = Proves;
    }
  }
  if (at == Proves) {
    FrameSocket::Found found =
        connection.receive(sizeof(Digest) + sizeof(Place));
    if (found == FrameSocket::Nothing)
      return Speaks;
    if (found == FrameSocket::End || connection.kind != frameProof ||
        connection.text.size() != sizeof(Digest) + sizeof(Place))
      return IsClosed;
    std::memcpy(&place, connection.text.data() + sizeof(Digest), sizeof(place));
    if (areEqual(proofOfCaller(key, hello, number, place),
                 connection.text.data()))
      return IsKnown;
    wrong = "a process that joins has another secret of the launch";
    refuse(wrong);
  }
  if (!connection.isFlushed())
    return Speaks;
  // It is closed when the other one has read why: unread bytes of its own would
  // take that from it.
  return connection.drain() ? Speaks : IsClosed;
}

//===----------------------------------------------------------------------===//
// The caller
//===----------------------------------------------------------------------===//

Caller::Caller(const HostAddress &host, uint32_t port, Hello what)
    : host(host), port(port), hello(what) {
  hello.number = randomDigest();
  Socket socket;
  why = beginConnect(host, port, socket);
  if (why.empty())
    connection = FrameSocket(std::move(socket));
}

Caller::State
Caller::serve(const Digest &key,
              const std::function<Place(const FrameSocket &)> &here) {
  if (!connected) {
    pollfd ready{connection.get(), POLLOUT, 0};
    if (why.empty() && ::poll(&ready, 1, 0) <= 0)
      return Speaks;
    if (why.empty())
      if (Socket socket = connection.take()) {
        why = isConnected(socket);
        connection = FrameSocket(std::move(socket));
      }
    if (!why.empty())
      return failWith("nothing listens there (" + why + ")");
    connected = true;
    connection.pushRaw(&hello, sizeof(hello));
  }
  if (!connection.flush())
    return failWith("it has closed the connection");
  while (true) {
    FrameSocket::Found found = connection.receive(mostText);
    if (found == FrameSocket::Nothing)
      return Speaks;
    if (found == FrameSocket::End)
      return failWith(proven ? "it has closed the connection"
                             : "it is not one of a launch");
    const std::string &text = connection.text;
    switch (connection.kind) {
    case frameOther:
      return failWith("it is one of another launch");
    case frameRefused:
      why = text;
      return proven ? IsRefused : failWith("it says: " + text);
    case frameWelcome:
      return proven ? IsWelcome : failWith("it is not one of a launch");
    case frameChallenge: {
      if (proven || text.size() < 2 * sizeof(Digest))
        return failWith("it is not one of a launch");
      Digest number;
      std::memcpy(number.data(), text.data(), sizeof(Digest));
      wanted = text.substr(2 * sizeof(Digest));
      if (!areEqual(proofOfListener(key, hello, number, hello.to),
                    text.data() + sizeof(Digest)))
        return failWith("it has another secret of the launch");
      proven = true;
      Place place = here(connection);
      Digest proof = proofOfCaller(key, hello, number, place);
      std::string answer(proof.begin(), proof.end());
      answer.append(reinterpret_cast<const char *>(&place), sizeof(place));
      connection.push(frameProof, answer.data(), answer.size());
      break;
    }
    default:
      return failWith("it is not one of a launch");
    }
  }
}
