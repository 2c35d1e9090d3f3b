//===- NarrowFloat.h - Floats of 16 bits ------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// f16 and bf16 are computed with as their `float`, which is exact, and rounded
/// to nearest even by integers, subnormal numbers included. The bits of a NaN
/// are those that PyTorch gives: its payload is kept, and it becomes quiet
/// where a processor converts.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SUPPORT_NARROWFLOAT_H
#define CLEAVE_SUPPORT_NARROWFLOAT_H

#include <bit>
#include <cmath>
#include <cstdint>

namespace cleave {

struct Half {
  uint16_t bits;
};
struct BFloat {
  uint16_t bits;
};

inline float widen(BFloat value) {
  return std::bit_cast<float>(uint32_t(value.bits) << 16);
}

inline float widen(Half value) {
  uint32_t sign = uint32_t(value.bits & 0x8000) << 16;
  uint32_t exponent = value.bits >> 10 & 0x1f, fraction = value.bits & 0x3ff;
  if (exponent == 0x1f)
    return std::bit_cast<float>(sign | 0x7f800000 | fraction << 13 |
                                (fraction ? 0x400000 : 0));
  if (exponent != 0)
    return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  // Zero or subnormal: a multiple of 2^-24.
  float magnitude = std::ldexp(static_cast<float>(fraction), -24);
  return sign ? -magnitude : magnitude;
}

inline BFloat toBFloat(float value) {
  auto bits = std::bit_cast<uint32_t>(value);
  return {std::isnan(value) ? uint16_t(0x7fc0)
                            : static_cast<uint16_t>(
                                  (bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

inline Half toHalf(float value) {
  auto bits = std::bit_cast<uint32_t>(value);
  auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  auto signedBits = [&](uint32_t rest) {
    return Half{static_cast<uint16_t>(sign | rest)};
  };
  bits &= 0x7fffffff;
  if (bits > 0x7f800000)
    return signedBits(0x7e00 | (bits >> 13 & 0x3ff));
  // 65520, halfway between the largest one and the next power of two.
  if (bits >= 0x477ff000)
    return signedBits(0x7c00);
  if (bits < 0x38800000) {
    // Subnormal: whole multiples of 2^-24, which the addition rounds.
    float magnitude = std::bit_cast<float>(bits) + 0.5f;
    return signedBits(std::bit_cast<uint32_t>(magnitude) - 0x3f000000);
  }
  bits += 0xfff + (bits >> 13 & 1);
  return signedBits((bits - (112u << 23)) >> 13);
}

} // namespace cleave

#endif // CLEAVE_SUPPORT_NARROWFLOAT_H
