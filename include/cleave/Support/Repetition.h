//===- Repetition.h - Where a list repeats itself ---------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SUPPORT_REPETITION_H
#define CLEAVE_SUPPORT_REPETITION_H

#include <cstddef>
#include <cstdint>

namespace cleave {

/// `length` items from number `begin` on, which come `times` times, each time
/// with numbers that differ by `step`. Up to `end` the list goes on in this
/// way.
struct Repetition {
  size_t begin = 0, length = 0, times = 0, end = 0;
  int64_t step = 0;
};

/// Which repetition is best: the one with most items, or the one that saves
/// most of them when its body is written once.
enum class Repeated { Covered, Saved };

/// The best repetition that begins at item `begin` of `count`, of bodies of at
/// most `longest` items; `times` is 0 where there is none. `stepBetween(i, j)`
/// is by how much the number of item j differs from that of item i when nothing
/// else does, otherwise 0; of items without a number, 1 where they are equal.
template <typename F>
Repetition repetitionFrom(size_t begin, size_t count, size_t longest,
                          F stepBetween, Repeated measure = Repeated::Covered) {
  Repetition best;
  size_t most = 0;
  for (size_t length = 1; length <= longest && begin + 2 * length <= count;
       ++length) {
    int64_t step = stepBetween(begin, begin + length);
    if (step == 0)
      continue;
    size_t end = begin;
    while (end + length < count && stepBetween(end, end + length) == step)
      ++end;
    size_t times = (end - begin) / length + 1;
    size_t items = (measure == Repeated::Saved ? times - 1 : times) * length;
    if (times >= 2 && items > most) {
      most = items;
      best = {begin, length, times, end + length, step};
    }
    // Longer bodies are several of this one.
    if (best.times > 0 && 2 * (best.end - begin) > count - begin)
      break;
  }
  return best;
}

} // namespace cleave

#endif // CLEAVE_SUPPORT_REPETITION_H
