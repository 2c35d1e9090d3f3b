//===- ShareSlots.cpp - Values that share a buffer in turn ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ProgramMemory.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

/// Values of one result of a part, of different micro-batches, that are never
/// live at the same time share a buffer: there are as many buffers as a
/// schedule has micro-batches in flight, used in turn. Returns, for each of
/// `roots` that takes the buffer of another one, which.
DenseMap<unsigned, unsigned>
ProgramMemory::shareSlots(ArrayRef<unsigned> roots) {
  DenseMap<unsigned, unsigned> sameAs;
  if (runs.size() < 3)
    return sameAs;
  /// From the action that makes a value to the last one that uses it.
  struct Use {
    unsigned first, last;
  };
  std::vector<std::optional<Use>> uses(buffers.size());
  std::map<std::pair<StringRef, unsigned>, std::vector<unsigned>> places;
  llvm::DenseSet<unsigned> known(roots.begin(), roots.end()), several;
  for (auto [a, run] : llvm::enumerate(runs)) {
    auto touch = [&](Value value) {
      unsigned root = leader(value);
      std::optional<Use> &use = uses[root];
      bool fresh = !use;
      if (fresh)
        use = Use{static_cast<unsigned>(a), 0};
      use->last = a;
      if (repeats.repetition[use->first] != repeats.repetition[a])
        several.insert(root);
      return fresh;
    };
    for (OpResult result : run->getResults())
      if (unsigned root = leader(result); touch(result) && known.contains(root))
        places[{run.getCallee(), result.getResultNumber()}].push_back(root);
    for (Value input : run.getInputs())
      touch(input);
  }
  for (auto &[place, all] : places) {
    std::vector<unsigned> values;
    for (unsigned root : all)
      if (several.contains(root) && !buffers[root].returned &&
          !buffers[root].accumulates)
        values.push_back(root);
    // A value is dead when the next one takes its buffer.
    auto canTurn = [&](size_t count) {
      for (size_t i = 0; i + count < values.size(); ++i)
        if (uses[values[i]]->last >= uses[values[i + count]]->first ||
            buffers[values[i]].bytes != buffers[values[i + count]].bytes)
          return false;
      return true;
    };
    size_t count = 1;
    while (count < values.size() && !canTurn(count))
      ++count;
    for (size_t i = count; i < values.size(); ++i)
      sameAs[values[i]] = values[i % count];
    values.resize(std::min(count, values.size()));
    if (values.size() > 1)
      turns.push_back(std::move(values));
  }
  return sameAs;
}

/// Which of the buffers is used last depends on the number of micro-batches:
/// each is live while any of them is.
void ProgramMemory::settleSlots() {
  for (const std::vector<unsigned> &slots : turns) {
    Interval all = buffers[slots.front()].life;
    for (unsigned slot : slots) {
      all.begin = std::min(all.begin, buffers[slot].life.begin);
      all.end = std::max(all.end, buffers[slot].life.end);
    }
    for (unsigned slot : slots) {
      buffers[slot].life.begin = all.begin;
      buffers[slot].life.end = all.end;
    }
  }
}
