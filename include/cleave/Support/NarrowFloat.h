//===- NarrowFloat.h - Floats of 16 and 8 bits ------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Floats of 16 and 8 bits are computed with as their `float`, which is exact,
/// and rounded to nearest even by integers, subnormal numbers included. The
/// bits of a NaN are those that PyTorch gives: its payload is kept in 16 bits,
/// and it becomes quiet where a processor converts.
///
/// The types of 8 bits are those of Micikevicius et al. ("FP8 formats for deep
/// learning", arXiv 2209.05433). E4M3 has no infinities: what is too large,
/// also an infinity, becomes the largest value, as in PyTorch. E5M2 rounds to
/// infinity as f16 does.
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
struct Float8E4M3 {
  uint8_t bits;
};
struct Float8E5M2 {
  uint8_t bits;
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

/// The first eight bits of an f16.
inline float widen(Float8E5M2 value) {
  return widen(Half{static_cast<uint16_t>(value.bits << 8)});
}

inline float widen(Float8E4M3 value) {
  uint32_t sign = uint32_t(value.bits & 0x80) << 24;
  uint32_t rest = value.bits & 0x7f;
  if (rest == 0x7f)
    return std::bit_cast<float>(sign | 0x7ff00000);
  if (rest >= 8)
    return std::bit_cast<float>(sign | ((rest << 20) + (120u << 23)));
  // Zero or subnormal: a multiple of 2^-9.
  float magnitude = static_cast<float>(rest) * 0x1p-9f;
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

inline Float8E4M3 toFloat8E4M3(float value) {
  auto bits = std::bit_cast<uint32_t>(value);
  auto sign = static_cast<uint8_t>(bits >> 24 & 0x80);
  auto signedBits = [&](uint32_t rest) {
    return Float8E4M3{static_cast<uint8_t>(sign | rest)};
  };
  bits &= 0x7fffffff;
  if (bits > 0x7f800000)
    return signedBits(0x7f);
  // 448, the largest one.
  if (bits >= 0x43e00000)
    return signedBits(0x7e);
  if (bits < 0x3c800000) {
    // Subnormal: whole multiples of 2^-9, which the addition rounds.
    float magnitude = std::bit_cast<float>(bits) + 0x1p14f;
    return signedBits(std::bit_cast<uint32_t>(magnitude) - 0x46800000);
  }
  bits += 0x7ffff + (bits >> 20 & 1);
  return signedBits((bits - (120u << 23)) >> 20);
}

inline Float8E5M2 toFloat8E5M2(float value) {
  auto bits = std::bit_cast<uint32_t>(value);
  auto sign = static_cast<uint8_t>(bits >> 24 & 0x80);
  auto signedBits = [&](uint32_t rest) {
    return Float8E5M2{static_cast<uint8_t>(sign | rest)};
  };
  bits &= 0x7fffffff;
  if (bits > 0x7f800000)
    return signedBits(0x7f);
  // 61440, halfway between the largest one and the next power of two.
  if (bits >= 0x47700000)
    return signedBits(0x7c);
  if (bits < 0x38800000) {
    // Subnormal: whole multiples of 2^-16, which the addition rounds.
    float magnitude = std::bit_cast<float>(bits) + 0x1p7f;
    return signedBits(std::bit_cast<uint32_t>(magnitude) - 0x43000000);
  }
  bits += 0xfffff + (bits >> 21 & 1);
  return signedBits((bits - (112u << 23)) >> 21);
}

} // namespace cleave

#endif // CLEAVE_SUPPORT_NARROWFLOAT_H
