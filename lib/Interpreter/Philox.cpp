//===- Philox.cpp - The counter-based generator ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Interpreter/Philox.h"
#include <cmath>

std::array<uint32_t, 4> cleave::philox4x32(std::array<uint32_t, 4> counter,
                                           std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    uint64_t even = uint64_t(0xD2511F53) * counter[0];
    uint64_t odd = uint64_t(0xCD9E8D57) * counter[2];
    counter = {uint32_t(odd >> 32) ^ counter[1] ^ key[0], uint32_t(odd),
               uint32_t(even >> 32) ^ counter[3] ^ key[1], uint32_t(even)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

uint32_t cleave::randomDraw(int64_t seed, int64_t step, int64_t id,
                            int64_t index) {
  uint64_t counter = uint64_t(index) / 64 * 16 + uint64_t(index) % 16;
  return philox4x32({uint32_t(counter), uint32_t(counter >> 32), uint32_t(id),
                     uint32_t(step)},
                    {uint32_t(seed),
                     uint32_t(uint64_t(seed) >> 32)})[uint64_t(index) / 16 % 4];
}

uint32_t cleave::dropThreshold(double probability) {
  return static_cast<uint32_t>(std::floor(probability * 4294967296.0));
}
