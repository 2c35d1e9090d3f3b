//===- Philox.h - The counter-based generator -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_INTERPRETER_PHILOX_H
#define CLEAVE_INTERPRETER_PHILOX_H

#include <array>
#include <cstdint>

namespace cleave {

/// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy
/// as 1, 2, 3", SC 2011): four 32-bit words from a counter and a key.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter,
                                   std::array<uint32_t, 2> key);

/// The 32-bit draw of element `index` of the random op `id` at `step`. Sixteen
/// neighbouring elements take the same word of sixteen neighbouring counters,
/// so that a vector of lanes computes them together: element i has counter (i /
/// 64) * 16 + i % 16, word (i / 16) % 4.
uint32_t randomDraw(int64_t seed, int64_t step, int64_t id, int64_t index);

/// An element is kept by dropout iff its draw is at least this.
uint32_t dropThreshold(double probability);

} // namespace cleave

#endif // CLEAVE_INTERPRETER_PHILOX_H
