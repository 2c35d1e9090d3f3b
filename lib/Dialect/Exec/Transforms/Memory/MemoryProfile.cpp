//===- MemoryProfile.cpp - Memory in use over a step ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ProgramMemory.h"
#include "cleave/Dialect/Graph/IR/Messages/SourceLine.h"
#include "cleave/Scheduling/Timeline/Timeline.h"
#include "llvm/Support/MathExtras.h"
#include <array>
#include <map>

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

//===----------------------------------------------------------------------===//
// Kinds
//===----------------------------------------------------------------------===//

MemoryKind cleave::exec::kindOf(const ProgramBuffer &buffer) {
  return buffer.kept                             ? MemoryKind::Kept
         : buffer.gradient || buffer.accumulates ? MemoryKind::Gradients
         : buffer.saved                          ? MemoryKind::Saved
         : buffer.communicated                   ? MemoryKind::Communication
         : buffer.returned                       ? MemoryKind::Inputs
                                                 : MemoryKind::Temporaries;
}

MemoryKind cleave::exec::kindOf(const PartBuffer &buffer) {
  auto writer = buffer.value ? dyn_cast<OpResult>(buffer.value) : nullptr;
  return buffer.scratchOf                            ? MemoryKind::Library
         : buffer.gradient                           ? MemoryKind::Gradients
         : writer && isa<FetchOp>(writer.getOwner()) ? MemoryKind::Fetched
         : writer && isa<CollectiveOp, AllToAllRowsOp>(writer.getOwner())
             ? MemoryKind::Communication
             : MemoryKind::Temporaries;
}

/// The kind of an action, by its part; nothing if it does not have one.
static std::optional<scheduling::EventKind> eventKindOf(func::FuncOp part) {
  auto action = part->getAttrOfType<DictionaryAttr>(kActionAttr);
  auto kind = action ? action.getAs<StringAttr>("kind") : nullptr;
  return kind ? scheduling::parseEventKind(kind.getValue()) : std::nullopt;
}

static bool isBackward(std::optional<scheduling::EventKind> kind) {
  return kind == scheduling::EventKind::Backward ||
         kind == scheduling::EventKind::InputGradient ||
         kind == scheduling::EventKind::WeightGradient;
}

void ProgramMemory::markSaved() {
  DenseMap<Operation *, std::optional<scheduling::EventKind>> kinds;
  for (auto [run, part] : llvm::zip_equal(runs, functions))
    kinds[run] = eventKindOf(part);
  auto reads = [&](Value value, auto &&matches) {
    return llvm::any_of(value.getUsers(), [&](Operation *user) {
      return isa<RunOp>(user) && matches(kinds.lookup(user));
    });
  };
  for (RunOp run : runs) {
    std::optional<scheduling::EventKind> kind = kinds.lookup(run);
    bool communicates = kind == scheduling::EventKind::Communication ||
                        kind == scheduling::EventKind::Gather;
    for (Value result : run.getResults()) {
      ProgramBuffer &buffer = bufferOf(result);
      buffer.communicated |= communicates;
      // What is received is saved if forward and backward read it.
      bool forward = kind == scheduling::EventKind::Forward ||
                     (kind == scheduling::EventKind::Communication &&
                      reads(result, [](auto k) {
                        return k == scheduling::EventKind::Forward;
                      }));
      buffer.saved |= forward && reads(result, isBackward);
    }
  }
}

//===----------------------------------------------------------------------===//
// The peak
//===----------------------------------------------------------------------===//

/// The name of the scratch memory of `op`.
static std::string nameOfScratch(Operation *op) {
  std::string line = sourceLine(op->getLoc());
  return op->getName().getStringRef().str() + " scratch" +
         (line.empty() ? line : " at " + line);
}

std::vector<LiveItem> ProgramMemory::liveAtPeak() const {
  int64_t when = 0;
  maxLive(intervals, &when);
  std::vector<LiveItem> live;
  for (auto [item, interval] : llvm::zip_equal(items, intervals))
    if (interval.begin <= when && when <= interval.end)
      live.push_back({item.bytes, item.kind,
                      item.scratchOf ? nameOfScratch(item.scratchOf)
                                     : nameOf(item.value)});
  llvm::sort(live, [](const LiveItem &a, const LiveItem &b) {
    return std::pair(-a.bytes, a.name) < std::pair(-b.bytes, b.name);
  });
  return live;
}

std::string ProgramMemory::nameOfAction(unsigned number) const {
  RunOp run = runs[number];
  func::FuncOp part = functions[number];
  auto action = part->getAttrOfType<DictionaryAttr>(kActionAttr);
  auto name = action ? action.getAs<StringAttr>("name") : nullptr;
  if (!name)
    return run.getCallee().str();
  // `B*` is that of any micro-batch.
  auto [before, after] = name.getValue().split('*');
  return before.size() == name.size()
             ? before.str()
             : (before + Twine(run.getMicroBatch()) + after).str();
}

DictionaryAttr ProgramMemory::describePeakTime() {
  int64_t when = -1;
  maxLive(intervals, &when);
  if (intervals.empty() || when < 0)
    return {};
  for (auto [a, run] : llvm::enumerate(runs)) {
    if (repeats.representative[a] != a)
      continue;
    const PartMemory &memory = *memories[a];
    int64_t count = memory.commands.size();
    if (when < start[a] || when > start[a] + std::max<int64_t>(count, 1))
      continue;
    Builder builder(program.getContext());
    // After the last command, the results are in use.
    int64_t command = std::min(when - start[a], count - 1);
    std::string at;
    if (count) {
      Operation *op = memory.commands[command];
      at = op->getName().getStringRef().str();
      if (std::string line = sourceLine(op->getLoc()); !line.empty())
        at += " at " + line;
    }
    return builder.getDictionaryAttr(
        {builder.getNamedAttr("action", builder.getStringAttr(nameOfAction(a))),
         builder.getNamedAttr("at", builder.getStringAttr(at)),
         builder.getNamedAttr("command",
                              builder.getI64IntegerAttr(command + 1)),
         builder.getNamedAttr("commands", builder.getI64IntegerAttr(count))});
  }
  return {};
}

DictionaryAttr ProgramMemory::describeProfile() {
  using Bytes = std::array<int64_t, kMemoryKinds>;
  std::map<int64_t, Bytes> changes;
  for (auto [item, interval] : llvm::zip_equal(items, intervals)) {
    auto kind = static_cast<unsigned>(item.kind);
    int64_t bytes = llvm::alignTo(interval.bytes, kAlignment);
    changes.try_emplace(interval.begin, Bytes{}).first->second[kind] += bytes;
    changes.try_emplace(interval.end + 1, Bytes{}).first->second[kind] -= bytes;
  }
  if (changes.empty())
    return {};
  // The sample of the most bytes stands for its neighbours.
  static constexpr int64_t kSamples = 256;
  int64_t last = changes.rbegin()->first + 1;
  SmallVector<int64_t> times, bytes;
  Bytes live{}, largest{};
  int64_t most = -1, when = 0, bucket = 0;
  auto close = [&] {
    if (most < 0)
      return;
    times.push_back(when);
    bytes.append(largest.begin(), largest.end());
    most = -1;
  };
  for (const auto &[time, change] : changes) {
    if (time * kSamples / last != bucket)
      close();
    bucket = time * kSamples / last;
    int64_t total = 0;
    for (unsigned kind = 0; kind < kMemoryKinds; ++kind)
      total += live[kind] += change[kind];
    if (total > most) {
      most = total;
      when = time;
      largest = live;
    }
  }
  close();
  Builder builder(program.getContext());
  SmallVector<Attribute> actions;
  SmallVector<int64_t> begins;
  for (unsigned a = 0; a < runs.size(); ++a)
    if (repeats.representative[a] == a) {
      actions.push_back(builder.getStringAttr(nameOfAction(a)));
      begins.push_back(start[a]);
    }
  return builder.getDictionaryAttr(
      {builder.getNamedAttr("actions", builder.getArrayAttr(actions)),
       builder.getNamedAttr("begins", builder.getDenseI64ArrayAttr(begins)),
       builder.getNamedAttr("bytes", builder.getDenseI64ArrayAttr(bytes)),
       builder.getNamedAttr("times", builder.getDenseI64ArrayAttr(times))});
}
