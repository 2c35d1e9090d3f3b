//===- MathBuilder.h - Elementary functions as code -------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_TARGET_CPU_MATHBUILDER_H
#define CLEAVE_LIB_TARGET_CPU_MATHBUILDER_H

#include "llvm/IR/IRBuilder.h"

namespace cleave::cpu {

/// Builds elementary functions of f32 scalars and vectors, lane by lane, from
/// adds, multiplies and fused multiply-adds. Infinities, NaNs and subnormal
/// numbers are treated as the C library does. Other floating-point types call
/// the C library.
///
/// The largest errors over the function's range, in units in the last place,
/// are listed in docs/Accuracy.md and checked by the unit tests.
class MathBuilder {
public:
  explicit MathBuilder(llvm::IRBuilder<> &builder) : b(builder) {}

  llvm::Value *exp(llvm::Value *x);
  llvm::Value *exp2(llvm::Value *x);
  llvm::Value *expm1(llvm::Value *x);
  llvm::Value *log(llvm::Value *x);
  llvm::Value *log2(llvm::Value *x);
  llvm::Value *log1p(llvm::Value *x);
  llvm::Value *tanh(llvm::Value *x);
  llvm::Value *erf(llvm::Value *x);
  llvm::Value *sin(llvm::Value *x) { return trigonometric(x, false); }
  llvm::Value *cos(llvm::Value *x) { return trigonometric(x, true); }
  llvm::Value *rsqrt(llvm::Value *x);
  llvm::Value *pow(llvm::Value *x, llvm::Value *y);

  /// Maximum and minimum that give NaN if either operand is NaN.
  llvm::Value *maximum(llvm::Value *x, llvm::Value *y);
  llvm::Value *minimum(llvm::Value *x, llvm::Value *y);

  /// A call of the intrinsic `id`, overloaded on the type of `args[0]`.
  llvm::Value *intrinsic(llvm::Intrinsic::ID id,
                         llvm::ArrayRef<llvm::Value *> args);
  /// A call of the C library's f64 function `name` for each lane.
  llvm::Value *library(llvm::StringRef name, llvm::Value *x);

private:
  /// x = n * ln 2 + r with |r| <= ln 2 / 2; `scaled` is x / ln 2.
  struct Reduced {
    llvm::Value *n;    ///< as a float
    llvm::Value *bits; ///< as an integer
    llvm::Value *r;
  };
  Reduced reduceExp(llvm::Value *x);
  /// exp(r) - 1 for |r| <= ln 2 / 2.
  llvm::Value *expm1Core(llvm::Value *r);
  /// x * 2^n for any n that occurs, rounded once.
  llvm::Value *scale(llvm::Value *x, llvm::Value *n);
  llvm::Value *powerOfTwo(llvm::Value *n);
  /// The parts of log: x = 2^e * (1 + f), and log(1 + f).
  struct LogParts {
    llvm::Value *e, *f, *high, *low;
  };
  LogParts logParts(llvm::Value *x);
  /// The values of logarithms at 0, infinity, NaN and negative numbers.
  llvm::Value *logSpecial(llvm::Value *x, llvm::Value *result);
  llvm::Value *trigonometric(llvm::Value *x, bool cosine);

  bool isF32(llvm::Value *x) const {
    return x->getType()->getScalarType()->isFloatTy();
  }
  llvm::Constant *real(llvm::Value *like, double value) const {
    return llvm::ConstantFP::get(like->getType(), value);
  }
  llvm::Type *intType(llvm::Value *like) const;
  llvm::Constant *integer(llvm::Value *like, int64_t value) const;
  llvm::Value *fma(llvm::Value *x, llvm::Value *y, llvm::Value *z);
  /// Horner's rule; coefficients from the constant term on.
  llvm::Value *polynomial(llvm::Value *x, llvm::ArrayRef<double> coefficients);
  llvm::Value *abs(llvm::Value *x);
  llvm::Value *copySign(llvm::Value *magnitude, llvm::Value *sign);

  llvm::IRBuilder<> &b;
};

} // namespace cleave::cpu

#endif // CLEAVE_LIB_TARGET_CPU_MATHBUILDER_H
