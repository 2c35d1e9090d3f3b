//===- FindRepeats.cpp - Repeated actions ---------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ProgramMemory.h"
#include "cleave/Support/Repetition.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

/// Longer periods are not looked for.
static constexpr size_t kMaxPeriod = 96;

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
    Repetition found =
        repetitionFrom(i, end, kMaxPeriod, [&](size_t a, size_t b) {
          return parts[a] == parts[b] ? 1 : 0;
        });
    bool repeats = found.times > 1;
    addRepetitions(result, repeats ? found.length : 1,
                   repeats ? found.times : 1);
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
