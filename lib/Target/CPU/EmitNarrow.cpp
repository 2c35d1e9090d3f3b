//===- EmitNarrow.cpp - Conversions of narrow floats ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Rounding to nearest even by integers, subnormal numbers included, as
/// NarrowFloat.h does. The instructions that processors have do not: those of
/// AVX-512-BF16 take subnormal numbers as zero, without F16C f16 calls a
/// function of the compiler's library, and few have any for 8 bits.
///
//===----------------------------------------------------------------------===//

#include "KernelEmitter.h"
#include "mlir/IR/BuiltinTypes.h"
#include <bit>

using namespace mlir;
using namespace cleave;
using namespace cleave::cpu;

namespace {
/// A float of fewer bits than f32.
struct Format {
  /// Bits in all, and of the fraction.
  unsigned width, fraction;
  int bias;
  /// The code without its sign of what is too large, and of a NaN; the least
  /// magnitude, as bits of f32, that is too large; the first code of infinity
  /// and NaN.
  uint32_t overflow, nan, tooLarge, special;
};
} // namespace

static std::optional<Format> formatOf(Type type) {
  if (type.isBF16())
    return Format{16, 7, 127, 0x7f80, 0x7fc0, 0x7f800000, 0x7f80};
  if (type.isF16())
    return Format{16, 10, 15, 0x7c00, 0x7e00, 0x477ff000, 0x7c00};
  if (isa<Float8E5M2Type>(type))
    return Format{8, 2, 15, 0x7c, 0x7f, 0x47700000, 0x7c};
  // Has no infinity: what is too large becomes the largest one, 448.
  if (isa<Float8E4M3FNType>(type))
    return Format{8, 3, 7, 0x7e, 0x7f, 0x43e00000, 0x7f};
  return std::nullopt;
}

static llvm::Constant *wordOf(llvm::Type *words, uint32_t bits) {
  return llvm::ConstantInt::get(words, bits);
}

/// The f32 nearest to f64 `x`, but odd where it is not exact: rounded once more
/// to fewer bits it is `x` rounded once (Boldo and Melquiond, "When double
/// rounding is odd", 2005).
llvm::Value *KernelEmitter::roundToOdd(llvm::Value *x, llvm::Type *f32) {
  llvm::Type *words = f32->getWithNewType(b.getInt32Ty());
  llvm::Value *near = b.CreateFPTrunc(x, f32);
  llvm::Value *wide = b.CreateFPExt(near, x->getType());
  auto magnitude = [&](llvm::Value *value) {
    return b.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, value);
  };
  llvm::Value *bits = b.CreateBitCast(near, words);
  // Towards zero, then odd; infinities and NaN are as they are.
  llvm::Value *above = b.CreateFCmpOGT(magnitude(wide), magnitude(x));
  llvm::Value *down = b.CreateSub(bits, b.CreateZExt(above, words));
  llvm::Value *inexact = b.CreateFCmpONE(wide, x);
  return b.CreateBitCast(
      b.CreateSelect(inexact, b.CreateOr(down, wordOf(words, 1)), bits), f32);
}

llvm::Value *KernelEmitter::truncate(llvm::Value *x, Type to,
                                     llvm::Type *result) {
  std::optional<Format> format = formatOf(to);
  if (!format)
    return b.CreateFPTrunc(x, result);
  llvm::Type *f32 = x->getType()->getWithNewType(b.getFloatTy());
  llvm::Type *words = f32->getWithNewType(b.getInt32Ty());
  if (x->getType() != f32)
    x = roundToOdd(x, f32);
  llvm::Value *bits = b.CreateBitCast(x, words);
  llvm::Value *magnitude = b.CreateAnd(bits, wordOf(words, 0x7fffffff));
  unsigned shift = 23 - format->fraction;
  llvm::Value *odd =
      b.CreateAnd(b.CreateLShr(magnitude, shift), wordOf(words, 1));
  llvm::Value *rounded = b.CreateLShr(
      b.CreateAdd(magnitude,
                  b.CreateAdd(odd, wordOf(words, (1u << (shift - 1)) - 1))),
      shift);
  if (format->bias != 127) {
    rounded = b.CreateSub(rounded, wordOf(words, uint32_t(127 - format->bias)
                                                     << format->fraction));
    // Subnormal: whole multiples of the least one, which an addition rounds to.
    int least = 1 - format->bias - static_cast<int>(format->fraction);
    uint32_t magic = uint32_t(least + 23 + 127) << 23;
    llvm::Value *sum =
        b.CreateFAdd(b.CreateBitCast(magnitude, f32),
                     llvm::ConstantFP::get(f32, std::bit_cast<float>(magic)));
    llvm::Value *multiple =
        b.CreateSub(b.CreateBitCast(sum, words), wordOf(words, magic));
    llvm::Value *isSmall = b.CreateICmpULT(
        magnitude, wordOf(words, uint32_t(128 - format->bias) << 23));
    rounded = b.CreateSelect(isSmall, multiple, rounded);
  }
  if (format->bias != 127)
    rounded = b.CreateSelect(
        b.CreateICmpUGE(magnitude, wordOf(words, format->tooLarge)),
        wordOf(words, format->overflow), rounded);
  rounded =
      b.CreateSelect(b.CreateICmpUGT(magnitude, wordOf(words, 0x7f800000)),
                     wordOf(words, format->nan), rounded);
  llvm::Value *sign = b.CreateShl(b.CreateLShr(bits, 31), format->width - 1);
  llvm::Value *code =
      b.CreateTrunc(b.CreateOr(rounded, sign),
                    words->getWithNewType(b.getIntNTy(format->width)));
  return b.CreateBitCast(code, result);
}

llvm::Value *KernelEmitter::extend(llvm::Value *x, Type from,
                                   llvm::Type *result) {
  std::optional<Format> format = formatOf(from);
  if (!format)
    return b.CreateFPExt(x, result);
  llvm::Type *f32 = x->getType()->getWithNewType(b.getFloatTy());
  llvm::Type *words = f32->getWithNewType(b.getInt32Ty());
  llvm::Type *codes = words->getWithNewType(b.getIntNTy(format->width));
  llvm::Value *code = b.CreateZExt(b.CreateBitCast(x, codes), words);
  unsigned shift = 23 - format->fraction;
  llvm::Value *value;
  if (format->bias == 127) {
    value = b.CreateBitCast(b.CreateShl(code, shift), f32);
  } else {
    llvm::Value *rest =
        b.CreateAnd(code, wordOf(words, (1u << (format->width - 1)) - 1));
    // The exponents of f32 begin lower; a power of two brings them up, of
    // subnormal numbers too.
    uint32_t scale = uint32_t(127 - format->bias + 127) << 23;
    llvm::Value *scaled =
        b.CreateFMul(b.CreateBitCast(b.CreateShl(rest, shift), f32),
                     llvm::ConstantFP::get(f32, std::bit_cast<float>(scale)));
    llvm::Value *magnitude = b.CreateBitCast(scaled, words);
    llvm::Value *special =
        b.CreateOr(b.CreateShl(rest, shift), wordOf(words, 0x7f800000));
    magnitude =
        b.CreateSelect(b.CreateICmpUGE(rest, wordOf(words, format->special)),
                       special, magnitude);
    llvm::Value *sign = b.CreateShl(b.CreateLShr(code, format->width - 1), 31);
    value = b.CreateBitCast(b.CreateOr(magnitude, sign), f32);
  }
  return value->getType() == result ? value : b.CreateFPExt(value, result);
}
