//===- Philox.h - Counter-based random numbers ------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Philox4x32-10. Every random number of a training run is a function of the
/// seed, the step, the op and the global index of the element, so that dropout
/// is the same in every layout and when it is recomputed.
///
/// The draw of the global row-major element i of op `id` in step `step`:
///   key     = (low, high 32 bits of the seed)
///   c       = (i / 64) * 16 + i % 16
///   counter = (low, high 32 bits of c, id, low 32 bits of the step)
///   draw    = output word (i / 16) % 4
/// so that 64 consecutive elements take 16 counters and fill four vectors. An
/// element is kept iff draw >= floor(p * 2^32); kept values are scaled by 1 /
/// (1 - p), computed in f32. For attention, i is the index in [batch, heads,
/// queries, keys], with keys rounded up to a multiple of 64, so that each row
/// starts a group.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SUPPORT_PHILOX_H
#define CLEAVE_SUPPORT_PHILOX_H

#include <cstdint>

namespace cleave::runtime::philox {

inline constexpr uint32_t kMul0 = 0xD2511F53u, kMul1 = 0xCD9E8D57u;
inline constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
inline constexpr int kRounds = 10;

/// Four words out of a counter and a key. Functions here are `static` because
/// they are compiled for several instruction sets in one program.
static inline void block(const uint32_t counter[4], const uint32_t key[2],
                         uint32_t out[4]) {
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < kRounds; ++round) {
    uint64_t p0 = static_cast<uint64_t>(kMul0) * c0;
    uint64_t p1 = static_cast<uint64_t>(kMul1) * c2;
    uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

/// The values that are constant for one op in one step.
struct Stream {
  uint64_t seed = 0;
  uint32_t id = 0;
  uint32_t step = 0;
};

/// The 32-bit draw of global element `i`.
static inline uint32_t draw(const Stream &stream, uint64_t i) {
  uint64_t c = (i / 64) * 16 + i % 16;
  uint32_t counter[4] = {static_cast<uint32_t>(c),
                         static_cast<uint32_t>(c >> 32), stream.id,
                         stream.step};
  uint32_t key[2] = {static_cast<uint32_t>(stream.seed),
                     static_cast<uint32_t>(stream.seed >> 32)};
  uint32_t out[4];
  block(counter, key, out);
  return out[(i / 16) % 4];
}

/// Draws below this are dropped.
static inline uint32_t threshold(float p) {
  return static_cast<uint32_t>(static_cast<double>(p) * 4294967296.0);
}

/// The factor of kept values.
static inline float keepScale(float p) { return 1.0f / (1.0f - p); }

/// Sixteen words: one vector if the target's vectors are wide enough.
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint64_t Pairs __attribute__((vector_size(64)));

/// High and low halves of the products of `a` with `m`, lane by lane. Even and
/// odd lanes are multiplied separately, as the widening multiply instruction
/// does.
__attribute__((always_inline)) static inline void
mulHiLo(const Words &a, uint32_t m, Words &high, Words &low) {
  const Pairs lowMask = Pairs{} + 0xffffffffull;
  Pairs pairs = (Pairs)a;
  Pairs even = (pairs & lowMask) * (Pairs{} + m);
  Pairs odd = (pairs >> 32) * (Pairs{} + m);
  high = (Words)((even >> 32) | (odd & ~lowMask));
  low = (Words)((even & lowMask) | (odd << 32));
}

/// Draws of the 64 elements that start at `i`, a multiple of 64: element
/// i + 16 * w + lane is out[w][lane].
__attribute__((always_inline)) static inline void
draw64(const Stream &stream, uint64_t i, Words out[4]) {
  uint64_t c = i / 4;
  const Words lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  // c is a multiple of 16: adding a lane does not carry.
  Words c0 = lanes + static_cast<uint32_t>(c);
  Words c1 = Words{} + static_cast<uint32_t>(c >> 32);
  Words c2 = Words{} + stream.id;
  Words c3 = Words{} + stream.step;
  uint32_t k0 = static_cast<uint32_t>(stream.seed);
  uint32_t k1 = static_cast<uint32_t>(stream.seed >> 32);
  for (int round = 0; round < kRounds; ++round) {
    Words high0, low0, high1, low1;
    mulHiLo(c0, kMul0, high0, low0);
    mulHiLo(c2, kMul1, high1, low1);
    c0 = high1 ^ c1 ^ k0;
    c2 = high0 ^ c3 ^ k1;
    c1 = low1;
    c3 = low0;
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

} // namespace cleave::runtime::philox

#endif // CLEAVE_SUPPORT_PHILOX_H
