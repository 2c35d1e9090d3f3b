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
#include <vector>

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
/// `nextLike(i)` is the first item after i that may be like it, `count` or more
/// where there is none.
template <typename F, typename N>
Repetition repetitionFrom(size_t begin, size_t count, size_t longest,
                          F stepBetween, N nextLike,
                          Repeated measure = Repeated::Covered) {
  Repetition best;
  size_t most = 0;
  for (size_t other = nextLike(begin);
       other - begin <= longest && 2 * other <= count + begin;
       other = nextLike(other)) {
    size_t length = other - begin;
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

/// The same where any item may be like any other.
template <typename F>
Repetition repetitionFrom(size_t begin, size_t count, size_t longest,
                          F stepBetween, Repeated measure = Repeated::Covered) {
  return repetitionFrom(
      begin, count, longest, stepBetween, [](size_t i) { return i + 1; },
      measure);
}

/// For each item, the next one with the same number; their count where there is
/// none.
template <typename Numbers>
std::vector<size_t> nextWithSame(const Numbers &numbers) {
  std::vector<size_t> next(numbers.size(), numbers.size()), last;
  for (size_t i = numbers.size(); i-- > 0;) {
    auto number = static_cast<size_t>(numbers[i]);
    if (number >= last.size())
      last.resize(number + 1, numbers.size());
    next[i] = last[number];
    last[number] = i;
  }
  return next;
}

} // namespace cleave

#endif // CLEAVE_SUPPORT_REPETITION_H
