//===- Execution.cpp - Ops in an order of streams and events --------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Driver.h"
#include <fcntl.h>
#include <unistd.h>

namespace fake {

/// Never destroyed: threads may outlive static objects.
State &state() {
  static State &state = *new State;
  return state;
}

const char *environment(const char *name) {
  const char *value = std::getenv(name);
  return value && *value ? value : nullptr;
}

[[noreturn]] void die(const std::string &what) {
  std::fprintf(stderr, "emulated kernel %s\n", what.c_str());
  std::abort();
}

void record(const std::string &line) {
  const char *path = environment("CLEAVE_FAKE_RECORD");
  if (!path)
    return;
  int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0)
    return;
  std::string text = line + "\n";
  [[maybe_unused]] ssize_t n = write(file, text.data(), text.size());
  close(file);
}

/// Whether the call that this counts is the one of a fault. `counter` is
/// counted once for all faults of it.
uint64_t countCall(const std::string &counter) {
  State &s = state();
  const char *text = environment("CLEAVE_FAKE_FAULT");
  if (s.faultText != (text ? text : "")) {
    s.faultText = text ? text : "";
    s.counts.clear();
    s.faults.clear();
    for (size_t at = 0; at < s.faultText.size();) {
      size_t end = std::min(s.faultText.find(',', at), s.faultText.size());
      std::string one = s.faultText.substr(at, end - at);
      size_t colon = one.find(':');
      if (colon != std::string::npos)
        s.faults.push_back(
            {one.substr(0, colon),
             std::strtoull(one.c_str() + colon + 1, nullptr, 10)});
      at = end + 1;
    }
  }
  return ++s.counts[counter];
}
bool isFault(const char *name, uint64_t count) {
  for (const Fault &fault : state().faults)
    if (fault.name == name && fault.at == count) {
      record("fault=" + fault.name + ":" + std::to_string(count));
      return true;
    }
  return false;
}

enum class Order { Earliest, Latest, Drawn };
Order order() {
  const char *text = environment("CLEAVE_FAKE_ORDER");
  if (!text || !std::strcmp(text, "earliest"))
    return Order::Earliest;
  if (!std::strcmp(text, "latest"))
    return Order::Latest;
  State &s = state();
  if (s.seed != text) {
    s.seed = text;
    s.random.seed(std::strtoul(text, nullptr, 10));
  }
  return Order::Drawn;
}

/// Another stream, for faults: one that captures the same, or does not either.
Stream *otherStream(Stream *stream) {
  State &s = state();
  Stream *best = nullptr;
  for (void *other : s.streams) {
    auto *candidate = static_cast<Stream *>(other);
    if (candidate != stream && candidate->capture == stream->capture &&
        candidate->device == stream->device &&
        (!best || candidate->id < best->id))
      best = candidate;
  }
  return best ? best : stream;
}

void finish(const OpPtr &op) {
  State &s = state();
  op->state = Op::Done;
  op->time = Clock::now();
  s.pending.erase(op->number);
  for (const OpPtr &next : op->before)
    if (--next->missing == 0)
      s.ready[next->number] = next;
  op->before.clear();
  op->after.clear();
  op->action.reset();
  s.changed.notify_all();
}

void execute(OpPtr op, Lock &lock) {
  State &s = state();
  op->state = Op::Running;
  s.ready.erase(op->number);
  std::shared_ptr<const Action> action = op->action;
  if (action && action->run && s.lost == CUDA_SUCCESS) {
    CUresult result = action->run(lock);
    if (result != CUDA_SUCCESS && s.lost == CUDA_SUCCESS)
      s.lost = result;
  }
  if (action && !action->text.empty())
    record("stream=" + std::to_string(action->stream) +
           (action->inGraph ? " graph=1 " : " ") + action->text);
  finish(op);
}

bool mayRun(const Op &op) {
  return op.missing == 0 && op.state == Op::Waiting &&
         (!op.action || !op.action->ready || op.action->ready());
}

/// Any op that may run: a drawn one, or the first; null if there is none.
OpPtr anyReady(Order how) {
  State &s = state();
  size_t count = s.ready.size();
  if (!count)
    return nullptr;
  auto it = s.ready.begin();
  if (how == Order::Drawn)
    std::advance(it, s.random() % count);
  for (size_t i = 0; i < count; ++i) {
    if (mayRun(*it->second))
      return it->second;
    if (++it == s.ready.end())
      it = s.ready.begin();
  }
  return nullptr;
}

/// Of the ops that `target` comes after, and it, one that may run.
OpPtr neededReady(const OpPtr &target) {
  std::vector<OpPtr> path{target};
  std::unordered_set<Op *> seen;
  while (!path.empty()) {
    OpPtr op = path.back();
    if (mayRun(*op))
      return op;
    OpPtr next;
    for (const OpPtr &other : op->after)
      if (other->state != Op::Done && seen.insert(other.get()).second) {
        next = other;
        break;
      }
    if (next)
      path.push_back(next);
    else
      path.pop_back();
  }
  return nullptr;
}

/// Runs ops until `target` is done.
void waitFor(OpPtr target, Lock &lock) {
  if (!target)
    return;
  Order how = order();
  if (how == Order::Latest) {
    // Depth first. What cannot run now leaves the rest to the loop below.
    std::vector<OpPtr> path{target};
    while (!path.empty()) {
      OpPtr op = path.back();
      if (op->state == Op::Done) {
        path.pop_back();
        continue;
      }
      OpPtr next;
      for (const OpPtr &other : op->after)
        if (other->state != Op::Done) {
          next = other;
          break;
        }
      if (next)
        path.push_back(next);
      else if (mayRun(*op))
        execute(op, lock);
      else
        break;
    }
  }
  int quiet = 0;
  while (target->state != Op::Done) {
    OpPtr op = how == Order::Latest ? neededReady(target) : anyReady(how);
    if (op) {
      execute(op, lock);
      quiet = 0;
      continue;
    }
    // Other threads run what is needed, or what they append makes it ready;
    // other processes say nothing when they do.
    // They may wait for what this one has not run.
    auto status = state().changed.wait_for(lock, std::chrono::milliseconds(1));
    quiet = status == std::cv_status::timeout ? quiet + 1 : 0;
    if (target->state != Op::Done && quiet == 20) {
      quiet = 0;
      if (OpPtr other = anyReady(how))
        execute(other, lock);
    }
  }
}

/// Runs one op that `target` needs, for a query; or another one, where it waits
/// for what a host that is not here has appended.
void runOneNeeded(const OpPtr &target, Lock &lock) {
  OpPtr op = order() == Order::Drawn ? anyReady(Order::Drawn) : nullptr;
  if (!op)
    op = neededReady(target);
  if (!op)
    op = anyReady(order());
  if (op)
    execute(op, lock);
}

/// What others append meanwhile is not waited for.
void waitForDevice(int device, Lock &lock) {
  std::vector<OpPtr> all;
  for (const auto &[number, op] : state().pending)
    if (op->device == device)
      all.push_back(op);
  for (const OpPtr &op : all)
    waitFor(op, lock);
}

OpPtr makeOp(int device, std::shared_ptr<const Action> action,
             const std::vector<OpPtr> &after) {
  State &s = state();
  OpPtr op = std::make_shared<Op>();
  op->number = ++s.opCount;
  op->device = device;
  op->action = std::move(action);
  for (const OpPtr &other : after)
    if (other && other->state != Op::Done &&
        std::find(op->after.begin(), op->after.end(), other) ==
            op->after.end()) {
      op->after.push_back(other);
      other->before.push_back(op);
      ++op->missing;
    }
  s.pending[op->number] = op;
  if (!op->missing)
    s.ready[op->number] = op;
  s.changed.notify_all();
  return op;
}

/// What may run at a call that does not wait.
void runSome(Lock &lock) {
  Order how = order();
  if (how == Order::Latest)
    return;
  State &s = state();
  int most = how == Order::Earliest ? 1 << 30
             : s.random() % 2       ? 0
                                    : s.random() % 4;
  for (; most > 0; --most) {
    OpPtr op = anyReady(how);
    if (!op)
      return;
    execute(op, lock);
  }
}

/// What the next op of a stream comes after.
std::vector<OpPtr> lastOps(Stream *stream) {
  State &s = state();
  std::vector<OpPtr> result{stream->last};
  if (stream->id == 0) {
    for (void *other : s.streams) {
      auto *blocking = static_cast<Stream *>(other);
      if (blocking->device == stream->device &&
          !(blocking->flags & CU_STREAM_NON_BLOCKING))
        result.push_back(blocking->last);
    }
  } else if (!(stream->flags & CU_STREAM_NON_BLOCKING)) {
    result.push_back(s.legacy[stream->device].last);
  }
  return result;
}

/// Whether a stream that captures forbids the use of the legacy one.
bool legacyForbidden(Stream *stream) {
  if (stream->id != 0)
    return false;
  for (void *other : state().streams) {
    auto *blocking = static_cast<Stream *>(other);
    if (blocking->capture && blocking->device == stream->device &&
        !(blocking->flags & CU_STREAM_NON_BLOCKING)) {
      blocking->capture->invalid = true;
      return true;
    }
  }
  return false;
}

/// A queue that is full makes the host wait, and run what a device would.
static void waitForRoom(int device, Lock &lock) {
  const char *most = environment("CLEAVE_FAKE_QUEUE");
  if (!most)
    return;
  State &s = state();
  auto full = [&] {
    return std::count_if(s.pending.begin(), s.pending.end(), [&](auto &one) {
             return one.second->device == device;
           }) >= std::atoi(most);
  };
  while (full())
    if (OpPtr op = anyReady(Order::Earliest))
      execute(op, lock);
    else
      s.changed.wait_for(lock, std::chrono::milliseconds(1));
}

/// Appends to a stream, or to what it captures. `made` is set to the op, which
/// is null in a capture.
CUresult submit(Stream *stream, Lock &lock, Action action, OpPtr *made,
                const std::vector<OpPtr> &more) {
  action.stream = stream->id;
  if (legacyForbidden(stream))
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (stream->capture) {
    if (stream->capture->invalid)
      return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    action.inGraph = true;
    auto node = std::make_unique<Node>();
    node->action = std::make_shared<Action>(std::move(action));
    node->after = stream->tails;
    stream->tails = {node.get()};
    stream->capture->nodes->push_back(std::move(node));
    return CUDA_SUCCESS;
  }
  waitForRoom(stream->device, lock);
  std::vector<OpPtr> after = lastOps(stream);
  after.insert(after.end(), more.begin(), more.end());
  OpPtr op = makeOp(stream->device, std::make_shared<Action>(std::move(action)),
                    after);
  stream->last = op;
  if (made)
    *made = op;
  runSome(lock);
  return state().lost;
}

} // namespace fake
