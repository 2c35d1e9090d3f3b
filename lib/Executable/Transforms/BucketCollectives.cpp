//===- BucketCollectives.cpp - Buckets of small exchanges -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The cost of a small exchange is its latency, which several can share. A
/// bucket is open until a command needs the memory of an exchange in it; it
/// begins behind the last that was put into it.
///
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Transforms/BucketCollectives.h"
#include "cleave/Executable/Format/BufferUse.h"
#include "cleave/Executable/Format/ShardLayout.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave;
using namespace cleave::runtime;

namespace {

/// Exchanges that begin together, and their wait.
struct Bucket {
  Command exchange, wait;
  int64_t bytes = 0;
  /// The number of commands before it.
  size_t begin = 0;
  std::set<int32_t> buffers;

  CollectiveCommand &collective() { return exchange.collective; }
};

/// The buckets of one part.
class PartBuckets {
public:
  PartBuckets(const Part &part, std::vector<PartRuns> runs,
              llvm::function_ref<int64_t(double)> maxBytes)
      : part(part), memory(part, std::move(runs)) {
    std::vector<std::pair<const CollectiveCommand *, double>> totals;
    for (const Command &command : part.commands)
      if (int64_t bytes = bytesOf(command); bytes != never) {
        auto total = llvm::find_if(totals, [&](const auto &other) {
          return areAlike(*other.first, command.collective);
        });
        if (total == totals.end())
          total = totals.insert(totals.end(), {&command.collective, 0});
        total->second += static_cast<double>(bytes);
      }
    for (auto [collective, total] : totals)
      limits.emplace_back(collective, maxBytes(total));
  }

  std::vector<Command> run() {
    for (const Command &command : part.commands) {
      if (command.kind == CommandKind::Wait && !command.wait.transfer) {
        if (!takeWait(command))
          result.push_back(command);
        continue;
      }
      std::set<int32_t> buffers = buffersOf(command);
      close([&](const Bucket &open) {
        return memory.meet(open.buffers, buffers);
      });
      int64_t bytes = bytesOf(command);
      if (bytes == never || bytes > limitOf(command.collective))
        result.push_back(command);
      else
        add(command, bytes, std::move(buffers));
    }
    close([](const Bucket &) { return true; });
    return std::move(result);
  }

private:
  /// Whether one bucket may hold both.
  static bool areAlike(const CollectiveCommand &a, const CollectiveCommand &b) {
    return a.collective == b.collective && a.reduction == b.reduction &&
           a.dtype == b.dtype && a.axes == b.axes;
  }

  /// The most bytes of a bucket that holds `collective`.
  int64_t limitOf(const CollectiveCommand &collective) const {
    return llvm::find_if(limits,
                         [&](const auto &limit) {
                           return areAlike(*limit.first, collective);
                         })
        ->second;
  }

  /// The bytes of what cannot be merged.
  static constexpr int64_t never = INT64_MAX;

  /// Bytes of the operands on one rank; more than any bucket holds if the
  /// exchange cannot be merged.
  static int64_t bytesOf(const Command &command) {
    const CollectiveCommand &c = command.collective;
    if (command.kind != CommandKind::Collective)
      return never;
    int64_t bytes = c.elements() * byteSize(c.dtype);
    switch (c.collective) {
    case CollectiveKind::AllReduce:
    case CollectiveKind::AllGather:
      return bytes;
    case CollectiveKind::ReduceScatter:
      return bytes * partCount(c.axes);
    default:
      return never;
    }
  }

  void add(const Command &command, int64_t bytes, std::set<int32_t> buffers) {
    const CollectiveCommand &c = command.collective;
    auto open = llvm::find_if(buckets, [&](Bucket &bucket) {
      return areAlike(bucket.collective(), c);
    });
    if (open != buckets.end() && open->bytes + bytes > limitOf(c)) {
      const CollectiveCommand *full = &open->collective();
      close([&](Bucket &bucket) { return &bucket.collective() == full; });
      open = buckets.end();
    }
    if (open == buckets.end()) {
      buckets.push_back(
          {command, {}, bytes, result.size(), std::move(buffers)});
      return;
    }
    open->collective().more.push_back(c);
    open->bytes += bytes;
    open->begin = result.size();
    open->buffers.merge(buffers);
    joined.insert(c.token);
  }

  /// True if `wait` belongs to an exchange in a bucket, whose wait is added
  /// when the bucket is closed.
  bool takeWait(const Command &wait) {
    if (joined.erase(wait.wait.token))
      return true;
    auto open = llvm::find_if(buckets, [&](Bucket &bucket) {
      return bucket.collective().token == wait.wait.token;
    });
    if (open == buckets.end())
      return false;
    open->wait = wait;
    return true;
  }

  template <typename F> void close(const F &isMeant) {
    for (auto it = buckets.begin(); it != buckets.end();) {
      if (!isMeant(*it)) {
        ++it;
        continue;
      }
      Bucket bucket = std::move(*it);
      it = buckets.erase(it);
      if (size_t others = bucket.collective().more.size()) {
        std::string label =
            bucket.exchange.label + " and " + std::to_string(others) + " more";
        bucket.exchange.label = bucket.wait.label = label;
      }
      result.insert(result.begin() + static_cast<ptrdiff_t>(bucket.begin),
                    std::move(bucket.exchange));
      result.push_back(std::move(bucket.wait));
      // The exchange is before that of a bucket which was opened later.
      for (auto other = buckets.begin(); other != buckets.end(); ++other)
        if (other->begin > bucket.begin ||
            (other->begin == bucket.begin && other >= it))
          ++other->begin;
    }
  }

  const Part &part;
  SharedMemory memory;
  /// Of the first of collectives that are alike, the most bytes of a bucket.
  std::vector<std::pair<const CollectiveCommand *, int64_t>> limits;
  /// In the order in which they were opened.
  std::vector<Bucket> buckets;
  /// Tokens of exchanges that were merged into another, before their waits.
  std::set<int32_t> joined;
  std::vector<Command> result;
};

} // namespace

void cleave::bucketCollectives(Program &program,
                               llvm::function_ref<int64_t(double)> maxBytes) {
  std::vector<std::vector<PartRuns>> runs = runsOfParts(program);
  for (size_t i = 0; i < program.parts.size(); ++i)
    program.parts[i].commands =
        PartBuckets(program.parts[i], std::move(runs[i]), maxBytes).run();
}
