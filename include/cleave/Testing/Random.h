//===- Random.h - Seeded random numbers -------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TESTING_RANDOM_H
#define CLEAVE_TESTING_RANDOM_H

#include <cstdint>
#include <iterator>

namespace cleave {

/// Random numbers that depend on a seed alone, on every platform.
class Random {
public:
  explicit Random(uint64_t seed) : state(seed * 0x9E3779B97F4A7C15 + 1) {}

  uint64_t next();
  /// From `low` to `high`, both included.
  int64_t integer(int64_t low, int64_t high);
  bool chance(double probability);
  double uniform(double low, double high);
  double normal();
  template <typename List> auto &pick(List &&list) {
    return list[integer(0, static_cast<int64_t>(std::size(list)) - 1)];
  }

private:
  uint64_t state;
};

} // namespace cleave

#endif // CLEAVE_TESTING_RANDOM_H
