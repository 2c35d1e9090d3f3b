//===- Random.cpp - Seeded random numbers ---------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Testing/Random.h"
#include <cmath>
#include <numbers>

using namespace cleave;

uint64_t Random::next() {
  // SplitMix64.
  uint64_t z = state += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

int64_t Random::integer(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(next() % uint64_t(high - low + 1));
}

double Random::uniform(double low, double high) {
  return low + (high - low) * (double(next() >> 11) * 0x1p-53);
}

bool Random::chance(double probability) { return uniform(0, 1) < probability; }

double Random::normal() {
  double radius = std::sqrt(-2.0 * std::log(1.0 - uniform(0, 1)));
  return radius * std::cos(2.0 * std::numbers::pi * uniform(0, 1));
}
