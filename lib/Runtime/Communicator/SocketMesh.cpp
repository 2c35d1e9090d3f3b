//===- SocketMesh.cpp - Messages over TCP ---------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// One mutex guards all connections. The calling thread sends what the system
// takes at once; the thread of the mesh sends the rest, and receives. All that
// a rank sends to another one arrives in order: so what it says before it ends
// is known before its end is.
//
//===----------------------------------------------------------------------===//

#include "SocketMesh.h"
#include "Sockets.h"
#include "cleave/Support/Patience.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <deque>
#include <map>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

using namespace cleave::runtime;

/// The interval of heartbeats, and the silence after which a process counts as
/// failed, as between processes of MPI.
static constexpr int64_t periodMs = 250, silenceMs = 3500;

/// A process that was itself not scheduled for that long does not judge the
/// others.
static constexpr int64_t stallMs = 1000;

/// Bytes that are read from, and written to, one connection before the others
/// get their turn; and those that a calling thread writes.
static constexpr size_t turnBytes = 1 << 20, ownBytes = 1 << 16;

/// The longest piece of a message, and the longest message that passes pieces
/// which wait before it.
static constexpr size_t pieceBytes = 1 << 18, shortBytes = 1 << 13;

/// Bytes of a connection that are stored before they are sent, and those that
/// are stored or under way: what passes others in this process waits behind
/// them.
static constexpr int storedBytes = 1 << 17, openBytes = 1 << 19;

/// The longest text of a failure.
static constexpr size_t mostText = 4000;

/// The time after which it is said who is waited for, and that for which ranks
/// which all wait are waited for in addition: another one may know why.
static constexpr int64_t sayMs = 5000, jointMs = 5000;

/// What a process does, as it says with each heartbeat.
enum : int32_t { stateWorks, stateWaits, stateWrites };

/// The kinds of frames.
enum : uint32_t {
  /// The sender is alive, and in state `value`.
  kindAlive = 0xc1ea0001,
  /// `value` has failed, with a text.
  kindFailed,
  /// The sender exchanges nothing any more.
  kindLeft,
  /// The sender closes communicator `value`.
  kindClosing,
  /// The sender has memory for a message.
  kindReady,
  /// A message, or a piece of one.
  kindData
};

struct SocketMesh::Header {
  uint32_t kind;
  int32_t value;
  MessageKey key;
  uint64_t bytes;
};

struct SocketMesh::Frame {
  Header header;
  const char *data;
  std::shared_ptr<const std::string> text;
  MessageBatch *batch;
  /// Whether it passes those that do not.
  bool passes = false;
};

/// The memory of a message at one of its ends.
template <typename Pointer> struct MessageMemory {
  Pointer data;
  size_t bytes;
  MessageBatch *batch;
};

struct SocketMesh::Peer {
  int rank;
  int socket;
  bool left = false, lost = false;
  int32_t closing = 0;
  int32_t state = stateWorks;
  /// When something arrived last. All are connected when a mesh begins, and
  /// speak from then on.
  int64_t heard;

  /// What is sent, the bytes of the first frame that are sent already, and
  /// whether the thread waits until the system takes more.
  std::pmr::deque<Frame> out;
  size_t sent = 0;
  bool polled = false;
  /// Messages that the peer has no memory for yet, and memory that it has for
  /// messages to come.
  std::pmr::map<MessageKey, MessageMemory<const char *>> sends;
  std::pmr::map<MessageKey, uint64_t> ready;

  /// The frame that arrives.
  Header header{};
  size_t arrived = 0;
  char *to = nullptr;
  std::string text;
  MessageBatch *batch = nullptr;
  std::pmr::map<MessageKey, MessageMemory<char *>> receives;

  Peer(int rank, int socket, std::pmr::memory_resource *pool)
      : rank(rank), socket(socket), heard(nowMs()), out(pool), sends(pool),
        ready(pool), receives(pool) {}
};

SocketMesh::SocketMesh(int rank, const std::vector<int> &sockets, int patience)
    : own(rank), count(sockets.size()), process(::getpid()),
      wakeUp(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      patienceMs(int64_t(patience) * 1000) {
  for (size_t i = 0; i < count; ++i) {
    peers.push_back(
        std::make_unique<Peer>(static_cast<int>(i), sockets[i], &pool));
    int on = 1;
    if (sockets[i] < 0)
      continue;
    ::setsockopt(sockets[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    ::setsockopt(sockets[i], IPPROTO_TCP, TCP_NOTSENT_LOWAT, &storedBytes,
                 sizeof(storedBytes));
    ::setsockopt(sockets[i], SOL_SOCKET, SO_SNDBUF, &openBytes,
                 sizeof(openBytes));
  }
  thread = std::thread([this] { run(); });
}

SocketMesh::~SocketMesh() {
  if (process != ::getpid()) {
    // The thread is not in this process.
    thread.detach();
    return;
  }
  ended.store(true);
  wake();
  thread.join();
  for (const std::unique_ptr<Peer> &peer : peers)
    if (peer->socket >= 0)
      ::close(peer->socket);
  ::close(wakeUp);
}

void SocketMesh::wake() const {
  uint64_t one = 1;
  (void)!::write(wakeUp, &one, sizeof(one));
}

//===----------------------------------------------------------------------===//
// Sending
//===----------------------------------------------------------------------===//

void SocketMesh::push(Peer &peer, const Header &header, const char *data,
                      MessageBatch *batch) {
  if (peer.socket < 0 || peer.lost)
    return;
  bool isData = header.kind == kindData;
  if (header.kind == kindReady || (isData && header.bytes <= shortBytes)) {
    // Behind what was begun, and in the order of those that pass.
    auto at = peer.out.begin() + (peer.sent > 0);
    while (at != peer.out.end() && at->passes)
      ++at;
    peer.out.insert(at, {header, data, nullptr, batch, /*passes=*/true});
    return;
  }
  if (!isData) {
    peer.out.push_back({header, data, nullptr, batch});
    return;
  }
  for (uint64_t begin = 0; begin < header.bytes; begin += pieceBytes) {
    Header piece = header;
    piece.bytes = std::min<uint64_t>(pieceBytes, header.bytes - begin);
    bool isLast = begin + piece.bytes == header.bytes;
    peer.out.push_back(
        {piece, data + begin, nullptr, isLast ? batch : nullptr});
  }
}

void SocketMesh::pushToAll(uint32_t kind, int32_t value,
                           const std::string &text) {
  Header header{kind, value, {}, text.size()};
  auto kept =
      text.empty() ? nullptr : std::make_shared<const std::string>(text);
  for (const std::unique_ptr<Peer> &peer : peers) {
    push(*peer, header, kept ? kept->data() : nullptr, nullptr);
    if (kept && !peer->out.empty())
      peer->out.back().text = kept;
    flushSoon(*peer);
  }
}

/// Sends up to about `most` bytes, as far as the system takes them.
void SocketMesh::flush(Peer &peer, size_t most) {
  for (size_t total = 0; !peer.out.empty() && total < most && !peer.lost;) {
    Frame &frame = peer.out.front();
    size_t all = sizeof(Header) + frame.header.bytes;
    // Of a request for a message, the number of bytes is that of the message.
    if (frame.header.kind == kindReady)
      all = sizeof(Header);
    iovec parts[2];
    int n = 0;
    if (peer.sent < sizeof(Header))
      parts[n++] = {reinterpret_cast<char *>(&frame.header) + peer.sent,
                    sizeof(Header) - peer.sent};
    size_t from = std::max(peer.sent, sizeof(Header)) - sizeof(Header);
    if (size_t rest = all - sizeof(Header) - from)
      parts[n++] = {const_cast<char *>(frame.data) + from,
                    std::min(rest, most)};
    msghdr what{};
    what.msg_iov = parts;
    what.msg_iovlen = static_cast<size_t>(n);
    ssize_t sent = ::sendmsg(peer.socket, &what, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR)
      continue;
    if (sent < 0) {
      // What the peer has said before it ended is read first.
      if (errno != EAGAIN && errno != EWOULDBLOCK)
        peer.out.clear(), peer.sent = 0;
      return;
    }
    total += static_cast<size_t>(sent);
    if (frame.header.kind == kindData)
      moved += static_cast<size_t>(sent);
    peer.sent += static_cast<size_t>(sent);
    if (peer.sent < all)
      continue;
    MessageBatch *batch = frame.batch;
    peer.out.pop_front();
    peer.sent = 0;
    if (batch)
      done(*batch);
  }
}

void SocketMesh::flushSoon(Peer &peer) {
  flush(peer, ownBytes);
  if (!peer.out.empty() && !peer.polled)
    wake();
}

void SocketMesh::done(MessageBatch &batch) {
  // Someone who waits may end the batch with this.
  bool follows = batch.next && batch.state == MessageBatch::Waits;
  if (batch.pending.fetch_sub(1, std::memory_order_acq_rel) != 1)
    return;
  if (follows) {
    batch.state = MessageBatch::IsDue;
    due.push_back(&batch);
    wake();
  }
  changed.notify_all();
}

bool SocketMesh::claim(MessageBatch &batch) {
  std::lock_guard<std::mutex> lock(mutex);
  if (batch.state == MessageBatch::IsTaken)
    return false;
  std::erase(due, &batch);
  batch.state = MessageBatch::IsTaken;
  return true;
}

void SocketMesh::release(MessageBatch &batch) {
  std::lock_guard<std::mutex> lock(mutex);
  done(batch);
}

/// Calls what follows complete batches. The batch may end with the last thing
/// that this does.
void SocketMesh::runDue() {
  std::vector<std::function<void()>> calls;
  {
    std::lock_guard<std::mutex> lock(mutex);
    for (MessageBatch *batch : due) {
      batch->state = MessageBatch::IsTaken;
      calls.push_back(batch->next);
    }
    due.clear();
  }
  for (const std::function<void()> &call : calls)
    call();
}

void SocketMesh::receive(int from, const MessageKey &key, char *to,
                         size_t bytes, MessageBatch &batch) {
  std::lock_guard<std::mutex> lock(mutex);
  Peer &peer = *peers[static_cast<size_t>(from)];
  batch.pending.fetch_add(1, std::memory_order_relaxed);
  peer.receives[key] = {to, bytes, &batch};
  push(peer, {kindReady, 0, key, bytes}, nullptr, nullptr);
  flushSoon(peer);
}

void SocketMesh::send(int to, const MessageKey &key, const char *data,
                      size_t bytes, MessageBatch &batch) {
  std::lock_guard<std::mutex> lock(mutex);
  Peer &peer = *peers[static_cast<size_t>(to)];
  batch.pending.fetch_add(1, std::memory_order_relaxed);
  if (peer.ready.erase(key) == 0) {
    peer.sends[key] = {data, bytes, &batch};
    return;
  }
  push(peer, {kindData, 0, key, bytes}, data, &batch);
  flushSoon(peer);
}

//===----------------------------------------------------------------------===//
// Receiving
//===----------------------------------------------------------------------===//

void SocketMesh::read(Peer &peer, int64_t now) {
  for (size_t total = 0; total < turnBytes && !peer.lost;) {
    bool head = peer.arrived < sizeof(Header);
    char *at = head ? reinterpret_cast<char *>(&peer.header) + peer.arrived
                    : peer.to + (peer.arrived - sizeof(Header));
    size_t rest = head ? sizeof(Header) - peer.arrived
                       : sizeof(Header) + peer.header.bytes - peer.arrived;
    ssize_t got =
        ::recv(peer.socket, at, std::min(rest, turnBytes), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
      return;
    if (got <= 0)
      return lose(peer);
    peer.heard = now;
    peer.arrived += static_cast<size_t>(got);
    total += static_cast<size_t>(got);
    if (!head && peer.header.kind == kindData)
      moved += static_cast<size_t>(got);
    if (head && peer.arrived == sizeof(Header))
      begin(peer);
    if (peer.arrived >= sizeof(Header) && !peer.lost &&
        peer.arrived == sizeof(Header) + peer.header.bytes)
      finish(peer);
  }
}

/// A header has arrived: chooses the memory of what follows.
void SocketMesh::begin(Peer &peer) {
  Header &header = peer.header;
  peer.to = nullptr;
  peer.batch = nullptr;
  switch (header.kind) {
  case kindAlive:
    peer.state = header.value;
    break;
  case kindLeft:
    peer.left = true;
    changed.notify_all();
    break;
  case kindClosing:
    peer.closing = header.value;
    changed.notify_all();
    break;
  case kindReady:
    if (auto it = peer.sends.find(header.key); it != peer.sends.end()) {
      auto [data, bytes, batch] = it->second;
      peer.sends.erase(it);
      push(peer, {kindData, 0, header.key, bytes}, data, batch);
    } else {
      peer.ready.emplace(header.key, header.bytes);
    }
    header.bytes = 0;
    break;
  case kindFailed:
    if (header.bytes <= mostText) {
      peer.text.resize(header.bytes);
      peer.to = peer.text.data();
      break;
    }
    [[fallthrough]];
  case kindData:
    if (auto it = peer.receives.find(header.key);
        header.kind == kindData && it != peer.receives.end() &&
        header.bytes == std::min<uint64_t>(it->second.bytes, pieceBytes)) {
      auto &[data, left, batch] = it->second;
      peer.to = data;
      data += header.bytes;
      left -= header.bytes;
      if (left == 0) {
        peer.batch = batch;
        peer.receives.erase(it);
      }
      break;
    }
    [[fallthrough]];
  default:
    noteLocked(peer.rank,
               "sends a message that this one does not wait for: the ranks "
               "run different collectives");
    peer.lost = true;
  }
}

/// A frame has arrived.
void SocketMesh::finish(Peer &peer) {
  peer.arrived = 0;
  if (peer.header.kind == kindFailed)
    noteLocked(peer.header.value, peer.text);
  if (peer.batch)
    done(*peer.batch);
  peer.batch = nullptr;
}

/// A connection has ended.
void SocketMesh::lose(Peer &peer) {
  peer.lost = true;
  peer.out.clear();
  if (!peer.left)
    noteLocked(peer.rank, "has ended, or its connection was cut");
  changed.notify_all();
}

//===----------------------------------------------------------------------===//
// Failures
//===----------------------------------------------------------------------===//

void SocketMesh::noteLocked(int rank, const std::string &text) {
  if (failure.load())
    return;
  std::string why = text.empty() ? "it has failed" : text.substr(0, mostText);
  message = "rank " + std::to_string(rank) + ": " + why;
  failure.store(true, std::memory_order_release);
  // The others hear it from this rank too, before this one ends. Of what was
  // to be sent, only a frame that was begun still is.
  for (const std::unique_ptr<Peer> &peer : peers)
    if (!peer->out.empty())
      peer->out.erase(peer->out.begin() + (peer->sent > 0), peer->out.end());
  pushToAll(kindFailed, rank, why);
  changed.notify_all();
}

void SocketMesh::note(int rank, const std::string &text) {
  std::lock_guard<std::mutex> lock(mutex);
  noteLocked(rank, text);
}

std::string SocketMesh::error() const {
  std::lock_guard<std::mutex> lock(mutex);
  return message;
}

void SocketMesh::judge(int64_t now) {
  for (const std::unique_ptr<Peer> &peer : peers)
    if (peer->socket >= 0 && !peer->left && !peer->lost &&
        now - peer->heard > silenceMs)
      noteLocked(peer->rank,
                 "does not answer any more: it has ended or was stopped");
}

/// All that a rank has sent before it left has arrived.
void SocketMesh::blameForBatch(const MessageBatch &batch, int32_t number) {
  auto waits = [&](const auto &messages) {
    return std::any_of(messages.begin(), messages.end(), [&](const auto &one) {
      return one.second.batch == &batch;
    });
  };
  for (const std::unique_ptr<Peer> &peer : peers) {
    bool closed = number != 0 && peer->closing == number;
    if (!(peer->left || closed) ||
        !(waits(peer->sends) || waits(peer->receives)))
      continue;
    noteLocked(peer->rank,
               closed ? "has closed the program while others wait for it"
                      : "has ended while others wait for it");
  }
}

//===----------------------------------------------------------------------===//
// Waiting
//===----------------------------------------------------------------------===//

/// How long a thread waits while nothing is exchanged.
struct SocketMesh::Wait {
  SocketMesh &mesh;
  uint64_t moved = mesh.moved;
  int64_t since = nowMs(), last = since;
  bool said = false;

  explicit Wait(SocketMesh &mesh) : mesh(mesh) { ++mesh.waiting; }
  ~Wait() { --mesh.waiting; }
  /// Its milliseconds so far. Time in which this process did not run is none.
  int64_t time() {
    int64_t now = nowMs();
    if (now - last > stallMs)
      since += now - last;
    last = now;
    if (moved != mesh.moved)
      since = now;
    moved = mesh.moved;
    return now - since;
  }
};

bool SocketMesh::complete(MessageBatch &batch, int32_t number, bool maySpin) {
  auto complete = [&] {
    return batch.pending.load(std::memory_order_acquire) == 0;
  };
  // About 20 microseconds.
  for (int i = maySpin ? 4000 : 20; i > 0; --i) {
    if (complete())
      return !failed();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  Lock lock(mutex);
  Wait wait(*this);
  while (!complete() && !failed()) {
    blameForBatch(batch, number);
    judgeWait(wait, batch);
    if (failed())
      break;
    changed.wait_for(lock, std::chrono::milliseconds(100));
  }
  return !failed();
}

static std::string forSeconds(int64_t ms) {
  return "for " + std::to_string(ms / 1000) + " s";
}

/// Says for whom a thread waits, and ends all when it has waited too long. One
/// that waits for others itself is not the reason.
void SocketMesh::judgeWait(Wait &wait, const MessageBatch &batch) {
  int64_t time = wait.time();
  if (failed() || time < std::min(sayMs, patienceMs))
    return;
  auto isOf = [&](const auto &messages) {
    return std::any_of(messages.begin(), messages.end(), [&](const auto &one) {
      return one.second.batch == &batch;
    });
  };
  std::string whom;
  const Peer *reason = nullptr;
  bool writes = false;
  for (const std::unique_ptr<Peer> &peer : peers) {
    if (!isOf(peer->sends) && !isOf(peer->receives))
      continue;
    whom += (whom.empty() ? "rank " : ", rank ") + std::to_string(peer->rank);
    writes |= peer->state == stateWrites;
    if (!reason || reason->state == stateWaits)
      reason = peer.get();
  }
  if (!reason)
    return;
  int64_t most = writes ? patienceMs * writingPatience : patienceMs;
  if (!wait.said && time >= std::max(patienceMs / 10, sayMs)) {
    wait.said = true;
    std::fprintf(stderr, "rank %d waits for %s%s (%s, at most %lld s)\n", own,
                 whom.c_str(), writes ? ", which reads or writes files" : "",
                 forSeconds(time).c_str(), static_cast<long long>(most / 1000));
  }
  bool all = reason->state == stateWaits;
  if (time < (all ? most + jointMs : most))
    return;
  std::string hint = " " + forSeconds(patienceMs) + "; " + patienceHint();
  noteLocked(all ? own : reason->rank,
             all ? "waits for " + whom + ", and these for others," + hint
                 : (writes ? "reads or writes files while others wait for it"
                           : "does not come to what others wait for: it is "
                             "busy with something else,") +
                       hint);
}

void SocketMesh::setClosing(int32_t number) {
  std::lock_guard<std::mutex> lock(mutex);
  pushToAll(kindClosing, number);
}

void SocketMesh::leave() {
  if (process != ::getpid())
    return;
  Lock lock(mutex);
  if (failed())
    return;
  pushToAll(kindLeft, 0);
  auto isDone = [](const std::unique_ptr<Peer> &peer) {
    return peer->socket < 0 ||
           (peer->left && (peer->lost || peer->out.empty()));
  };
  // Others may still work by themselves: they need this one no more.
  Wait wait(*this);
  while (!failed() && !std::all_of(peers.begin(), peers.end(), isDone) &&
         wait.time() < patienceMs)
    changed.wait_for(lock, std::chrono::milliseconds(100));
}

void SocketMesh::run() {
  int64_t last = nowMs(), spoken = 0;
  std::vector<pollfd> ready;
  std::vector<Peer *> who;
  while (!ended.load()) {
    ready.assign(1, {wakeUp, POLLIN, 0});
    who.assign(1, nullptr);
    {
      Lock lock(mutex);
      for (const std::unique_ptr<Peer> &peer : peers) {
        if (peer->socket < 0 || peer->lost)
          continue;
        peer->polled = !peer->out.empty();
        short events = peer->polled ? POLLIN | POLLOUT : POLLIN;
        ready.push_back({peer->socket, events, 0});
        who.push_back(peer.get());
      }
    }
    (void)::poll(ready.data(), ready.size(), static_cast<int>(periodMs) / 5);
    int64_t now = nowMs();
    bool stalled = now - last > stallMs;
    last = now;
    if (uint64_t times; ready[0].revents)
      (void)!::read(wakeUp, &times, sizeof(times));
    {
      Lock lock(mutex);
      for (size_t i = 1; i < ready.size(); ++i) {
        if (ready[i].revents & (POLLIN | POLLHUP | POLLERR))
          read(*who[i], now);
        who[i]->polled = false;
        flush(*who[i], turnBytes);
      }
      for (const std::unique_ptr<Peer> &peer : peers)
        if (stalled)
          peer->heard = now;
      if (now - spoken >= periodMs) {
        spoken = now;
        int32_t state = waiting.load() > 0 ? stateWaits
                        : writing.load()   ? stateWrites
                                           : stateWorks;
        for (const std::unique_ptr<Peer> &peer : peers)
          if (peer->out.empty()) {
            push(*peer, {kindAlive, state, {}, 0}, nullptr, nullptr);
            flush(*peer, turnBytes);
          }
      }
      judge(now);
    }
    runDue();
    if (failure.load())
      notice.endIfUnnoticed(now, [&] { return error(); });
  }
}
