//===- FindRepeats.cpp - Actions that repeat themselves -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ProgramMemory.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

/// Adds `count` repetitions of `period` actions.
static void addRepetitions(Repeats &result, unsigned period, unsigned count) {
  unsigned begin = result.representative.size(),
           repetition = begin ? result.repetition.back() + 1 : 0;
  for (unsigned j = 0; j < count * period; ++j) {
    result.representative.push_back(begin + j % period);
    result.region.push_back({begin, begin + period - 1});
    result.repetition.push_back(repetition + j / period);
    result.repeats.push_back(count > 1);
  }
}

/// Adds the actions up to `end`.
static void findUpTo(Repeats &result, ArrayRef<StringRef> parts, unsigned end) {
  for (unsigned i = result.representative.size(); i < end;
       i = result.representative.size()) {
    unsigned bestPeriod = 1, bestCount = 1;
    for (unsigned period = 1; period <= 96 && i + 2 * period <= end; ++period) {
      unsigned count = 1;
      while (i + (count + 1) * period <= end &&
             llvm::equal(parts.slice(i, period),
                         parts.slice(i + count * period, period)))
        ++count;
      if (count > 1 && count * period > bestCount * bestPeriod) {
        bestPeriod = period;
        bestCount = count;
      }
    }
    addRepetitions(result, bestPeriod, bestCount);
  }
}

Repeats cleave::exec::findRepeats(ArrayRef<StringRef> parts,
                                  ArrayRef<RepeatAttr> known) {
  Repeats result;
  for (RepeatAttr repeat : known) {
    findUpTo(result, parts, repeat.getFirst());
    addRepetitions(result, repeat.getLength(), repeat.getTimes());
  }
  findUpTo(result, parts, parts.size());
  return result;
}
