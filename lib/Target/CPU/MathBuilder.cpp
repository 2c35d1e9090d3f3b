//===- MathBuilder.cpp - Elementary functions as code ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "MathBuilder.h"
#include "llvm/IR/Intrinsics.h"
#include "llvm/IR/Module.h"

using namespace llvm;
using namespace cleave::cpu;

//===----------------------------------------------------------------------===//
// Helpers
//===----------------------------------------------------------------------===//

Type *MathBuilder::intType(Value *like) const {
  Type *type = like->getType();
  return type->getWithNewType(
      b.getIntNTy(type->getScalarType()->getPrimitiveSizeInBits()));
}

Constant *MathBuilder::integer(Value *like, int64_t value) const {
  return ConstantInt::getSigned(intType(like), value);
}

Value *MathBuilder::intrinsic(Intrinsic::ID id, ArrayRef<Value *> args) {
  return b.CreateIntrinsic(id, {args[0]->getType()}, args);
}

Value *MathBuilder::fma(Value *x, Value *y, Value *z) {
  return intrinsic(Intrinsic::fma, {x, y, z});
}

Value *MathBuilder::polynomial(Value *x, ArrayRef<double> coefficients) {
  Value *sum = real(x, coefficients.back());
  for (double c : reverse(coefficients.drop_back()))
    sum = fma(sum, x, real(x, c));
  return sum;
}

Value *MathBuilder::abs(Value *x) { return intrinsic(Intrinsic::fabs, {x}); }

Value *MathBuilder::copySign(Value *magnitude, Value *sign) {
  return intrinsic(Intrinsic::copysign, {magnitude, sign});
}

Value *MathBuilder::library(StringRef name, Value *x) {
  Module *module = b.GetInsertBlock()->getModule();
  FunctionCallee callee = module->getOrInsertFunction(
      name, FunctionType::get(b.getDoubleTy(), {b.getDoubleTy()}, false));
  auto call = [&](Value *lane) {
    Type *type = lane->getType();
    Value *wide =
        type->isDoubleTy() ? lane : b.CreateFPExt(lane, b.getDoubleTy());
    Value *result = b.CreateCall(callee, {wide});
    return type->isDoubleTy() ? result : b.CreateFPTrunc(result, type);
  };
  auto *vector = dyn_cast<FixedVectorType>(x->getType());
  if (!vector)
    return call(x);
  Value *result = PoisonValue::get(vector);
  for (unsigned i = 0; i < vector->getNumElements(); ++i)
    result =
        b.CreateInsertElement(result, call(b.CreateExtractElement(x, i)), i);
  return result;
}

//===----------------------------------------------------------------------===//
// Exponentials
//===----------------------------------------------------------------------===//

/// Adding and subtracting 1.5 * 2^23 rounds to an integer, which the low bits
/// of the sum hold; unlike a conversion this is defined for NaN.
static constexpr double kRounder = 12582912.0;
static constexpr double kLn2High = 0.693145751953125;
static constexpr double kLn2Low = 1.428606765330187e-06;
static constexpr double kLog2E = 1.4426950408889634;

MathBuilder::Reduced MathBuilder::reduceExp(Value *x) {
  Value *shifted = fma(x, real(x, kLog2E), real(x, kRounder));
  Value *n = b.CreateFSub(shifted, real(x, kRounder));
  Value *bits =
      b.CreateSub(b.CreateBitCast(shifted, intType(x)), integer(x, 0x4B400000));
  Value *r = fma(n, real(x, -kLn2High), x);
  r = fma(n, real(x, -kLn2Low), r);
  return {n, bits, r};
}

Value *MathBuilder::expm1Core(Value *r) {
  // Minimax on |r| <= ln 2 / 2, weighted for the relative error of exp.
  Value *p = polynomial(
      r, {0.5, 0.166665122, 0.0416661873, 0.00836959854, 0.00139517197});
  return fma(b.CreateFMul(r, r), p, r);
}

Value *MathBuilder::powerOfTwo(Value *n) {
  return b.CreateBitCast(b.CreateShl(b.CreateAdd(n, integer(n, 127)), 23),
                         n->getType()->getWithNewType(b.getFloatTy()));
}

Value *MathBuilder::scale(Value *x, Value *n) {
  // Half of the exponent at a time: 2^n itself may not be representable. The
  // first product is exact.
  Value *half = b.CreateAShr(n, 1);
  x = b.CreateFMul(x, powerOfTwo(half));
  return b.CreateFMul(x, powerOfTwo(b.CreateSub(n, half)));
}

/// `x` limited to [low, high]; NaN stays.
static Value *clamp(IRBuilder<> &b, Value *x, double low, double high) {
  Constant *l = ConstantFP::get(x->getType(), low);
  Constant *h = ConstantFP::get(x->getType(), high);
  // Each is written to become one min or max instruction, which returns its
  // second operand when an operand is NaN.
  x = b.CreateSelect(b.CreateFCmpOGT(l, x), l, x);
  return b.CreateSelect(b.CreateFCmpOLT(h, x), h, x);
}

Value *MathBuilder::exp(Value *x) {
  if (!isF32(x))
    return library("exp", x);
  x = clamp(b, x, -105.0, 89.0);
  Reduced reduced = reduceExp(x);
  Value *y = b.CreateFAdd(expm1Core(reduced.r), real(x, 1.0));
  return scale(y, reduced.bits);
}

Value *MathBuilder::exp2(Value *x) {
  if (!isF32(x))
    return library("exp2", x);
  x = clamp(b, x, -151.0, 129.0);
  Value *shifted = b.CreateFAdd(x, real(x, kRounder));
  Value *n = b.CreateFSub(shifted, real(x, kRounder));
  Value *bits =
      b.CreateSub(b.CreateBitCast(shifted, intType(x)), integer(x, 0x4B400000));
  Value *r = b.CreateFMul(b.CreateFSub(x, n), real(x, 0.6931471805599453));
  Value *y = b.CreateFAdd(expm1Core(r), real(x, 1.0));
  return scale(y, bits);
}

Value *MathBuilder::expm1(Value *x) {
  if (!isF32(x))
    return library("expm1", x);
  // Below -18 the result is -1; above 88.7 it overflows as exp does. 2^127
  // times two keeps the scale representable for n = 128.
  Value *y = clamp(b, x, -18.0, 89.0);
  Reduced reduced = reduceExp(y);
  Value *q = expm1Core(reduced.r);
  Value *n = b.CreateSub(reduced.bits, integer(y, 1));
  Value *halfPower = powerOfTwo(n);
  Value *result = fma(halfPower, q, b.CreateFSub(halfPower, real(y, 0.5)));
  result = b.CreateFMul(result, real(y, 2.0));
  // Zero keeps its sign, and tiny numbers all their bits.
  Value *tiny = b.CreateFCmpOLT(abs(x), real(x, 1e-4));
  Value *near = copySign(fma(b.CreateFMul(x, real(x, 0.5)), x, x), x);
  return b.CreateSelect(tiny, near, result);
}

Value *MathBuilder::tanh(Value *x) {
  if (!isF32(x))
    return library("tanh", x);
  // tanh |x| = -m / (2 + m) with m = exp(-2 |x|) - 1, in [-1, 0].
  Value *y = b.CreateFMul(abs(x), real(x, -2.0));
  y = clamp(b, y, -20.0, 0.0);
  Reduced reduced = reduceExp(y);
  Value *power = powerOfTwo(reduced.bits);
  Value *m =
      fma(power, expm1Core(reduced.r), b.CreateFSub(power, real(x, 1.0)));
  Value *t = b.CreateFDiv(m, b.CreateFAdd(m, real(x, 2.0)));
  Value *result = copySign(t, x);
  // Below this tanh x rounds to x; subnormal numbers keep their bits.
  return b.CreateSelect(b.CreateFCmpOLT(abs(x), real(x, 2e-4)), x, result);
}

Value *MathBuilder::erf(Value *x) {
  if (!isF32(x))
    return library("erf", x);
  Value *t = abs(x);
  // Near zero: an odd polynomial. Both fits are minimax, the second one of
  // log(1 - erf t) weighted for the relative error of erf.
  Value *z = b.CreateFMul(x, x);
  Value *p =
      polynomial(z, {0.128379166, -0.376126349, 0.112836957, -0.0268593989,
                     0.00520103239, -0.000814270403, 8.37010011e-05});
  Value *near = fma(x, p, x);
  Value *s = clamp(b, t, 0.0, 4.0);
  Value *q = polynomial(s, {0.000169203951, -1.12948835, -0.633400857,
                            -0.108220369, 0.0250806063, -0.00415625051,
                            0.000431392604, -2.08285292e-05});
  Reduced reduced = reduceExp(q);
  Value *power = powerOfTwo(reduced.bits);
  Value *tail = fma(power, expm1Core(reduced.r), power);
  Value *far = copySign(b.CreateFSub(real(x, 1.0), tail), x);
  return b.CreateSelect(b.CreateFCmpOLT(t, real(x, 0.921875)), near, far);
}

//===----------------------------------------------------------------------===//
// Logarithms
//===----------------------------------------------------------------------===//

MathBuilder::LogParts MathBuilder::logParts(Value *x) {
  // Subnormal numbers are scaled into the normal range first.
  Value *small = b.CreateFCmpOLT(x, real(x, 1.17549435e-38));
  Value *y = b.CreateSelect(small, b.CreateFMul(x, real(x, 8388608.0)), x);
  Value *bias = b.CreateSelect(small, real(x, -23.0), real(x, 0.0));
  // Subtracting sqrt(1/2) puts the mantissa in [sqrt(1/2), sqrt(2)).
  Value *bits = b.CreateBitCast(y, intType(y));
  Value *e = b.CreateAShr(b.CreateSub(bits, integer(y, 0x3F3504F3)), 23);
  Value *m =
      b.CreateBitCast(b.CreateSub(bits, b.CreateShl(e, 23)), y->getType());
  Value *f = b.CreateFSub(m, real(y, 1.0));
  e = b.CreateFAdd(b.CreateSIToFP(e, y->getType()), bias);
  // log(1 + f) = f + low, where low = -f^2/2 + f^3 R(f).
  Value *p = polynomial(f, {0.333333313, -0.249999657, 0.200000897,
                            -0.166694656, 0.142852098, -0.12423294, 0.110336825,
                            -0.108250007, 0.106503144, -0.0598787516});
  Value *square = b.CreateFMul(f, f);
  Value *low =
      fma(b.CreateFMul(square, f), p, b.CreateFMul(square, real(y, -0.5)));
  return {e, f, f, low};
}

Value *MathBuilder::logSpecial(Value *x, Value *result) {
  Constant *infinity = ConstantFP::getInfinity(x->getType());
  result = b.CreateSelect(b.CreateFCmpOEQ(x, infinity), x, result);
  result = b.CreateSelect(b.CreateFCmpULT(x, real(x, 0.0)),
                          ConstantFP::getNaN(x->getType()), result);
  return b.CreateSelect(b.CreateFCmpOEQ(x, real(x, 0.0)),
                        ConstantFP::getInfinity(x->getType(), true), result);
}

Value *MathBuilder::log(Value *x) {
  if (!isF32(x))
    return library("log", x);
  LogParts parts = logParts(x);
  Value *low = fma(parts.e, real(x, kLn2Low), parts.low);
  Value *sum = b.CreateFAdd(parts.high, low);
  return logSpecial(x, fma(parts.e, real(x, kLn2High), sum));
}

Value *MathBuilder::log2(Value *x) {
  if (!isF32(x))
    return library("log2", x);
  LogParts parts = logParts(x);
  // 1 / ln 2 in two parts, the first with few bits.
  constexpr double high = 1.4423828125, low = kLog2E - high;
  Value *sum = b.CreateFAdd(parts.high, parts.low);
  Value *error = b.CreateFAdd(b.CreateFSub(parts.high, sum), parts.low);
  Value *y = b.CreateFMul(sum, real(x, low));
  y = fma(error, real(x, kLog2E), y);
  y = fma(sum, real(x, high), y);
  return logSpecial(x, b.CreateFAdd(parts.e, y));
}

Value *MathBuilder::log1p(Value *x) {
  if (!isF32(x))
    return library("log1p", x);
  // log(1 + x) = log(u) + c / u, where u + c = 1 + x exactly.
  Value *one = real(x, 1.0);
  Value *u = b.CreateFAdd(x, one);
  Value *large = b.CreateFCmpOGT(abs(x), one);
  Value *c = b.CreateSelect(large, b.CreateFSub(one, b.CreateFSub(u, x)),
                            b.CreateFSub(x, b.CreateFSub(u, one)));
  LogParts parts = logParts(u);
  Value *low = b.CreateFAdd(parts.low, b.CreateFDiv(c, u));
  low = fma(parts.e, real(x, kLn2Low), low);
  Value *result =
      fma(parts.e, real(x, kLn2High), b.CreateFAdd(parts.high, low));
  result = logSpecial(u, result);
  return b.CreateSelect(b.CreateFCmpOLT(abs(x), real(x, 1e-7)), x, result);
}

//===----------------------------------------------------------------------===//
// Others
//===----------------------------------------------------------------------===//

Value *MathBuilder::trigonometric(Value *x, bool cosine) {
  if (!isF32(x))
    return library(cosine ? "cos" : "sin", x);
  // The reduction by pi/2 runs in f64, where the multiple is exact below 2^48.
  Type *wideType = x->getType()->getWithNewType(b.getDoubleTy());
  Value *wide = b.CreateFPExt(x, wideType);
  constexpr double rounder = 6755399441055744.0; // 1.5 * 2^52
  Value *shifted =
      fma(wide, real(wide, 0.63661977236758134308), real(wide, rounder));
  Value *n = b.CreateFSub(shifted, real(wide, rounder));
  Value *quadrant =
      b.CreateTrunc(b.CreateBitCast(shifted, intType(wide)), intType(x));
  Value *r = fma(n, real(wide, -1.57079632679489655800e+00), wide);
  r = fma(n, real(wide, -6.12323399573676603587e-17), r);
  r = b.CreateFPTrunc(r, x->getType());
  Value *z = b.CreateFMul(r, r);
  Value *s = polynomial(
      z, {-0.166666672, 0.00833332911, -0.000198392561, 2.71756448e-06});
  s = fma(b.CreateFMul(z, r), s, r);
  Value *c = polynomial(
      z, {0.0416666679, -0.00138888834, 2.47994358e-05, -2.72033049e-07});
  c = fma(b.CreateFMul(z, z), c, fma(z, real(x, -0.5), real(x, 1.0)));
  // Odd quadrants exchange sine and cosine; the second bit is the sign.
  if (cosine)
    quadrant = b.CreateAdd(quadrant, integer(x, 1));
  Value *odd =
      b.CreateICmpNE(b.CreateAnd(quadrant, integer(x, 1)), integer(x, 0));
  Value *y = b.CreateSelect(odd, c, s);
  Value *sign = b.CreateShl(b.CreateAnd(quadrant, integer(x, 2)), 30);
  y = b.CreateBitCast(b.CreateXor(b.CreateBitCast(y, intType(x)), sign),
                      x->getType());
  if (!cosine)
    // Zero keeps its sign.
    y = b.CreateSelect(b.CreateFCmpOEQ(x, real(x, 0.0)), x, y);

  // Larger values, infinities and NaNs call the library, out of line: a loop
  // without them never executes the call.
  Value *huge = b.CreateFCmpUGE(abs(x), real(x, 281474976710656.0));
  Value *any = huge->getType()->isVectorTy() ? b.CreateOrReduce(huge) : huge;
  Function *function = b.GetInsertBlock()->getParent();
  LLVMContext &context = b.getContext();
  BasicBlock *from = b.GetInsertBlock();
  BasicBlock *slow = BasicBlock::Create(context, "huge", function);
  BasicBlock *join = BasicBlock::Create(context, "join", function);
  b.CreateCondBr(any, slow, join);
  b.SetInsertPoint(slow);
  Value *exact = b.CreateSelect(huge, library(cosine ? "cos" : "sin", x), y);
  slow = b.GetInsertBlock();
  b.CreateBr(join);
  b.SetInsertPoint(join);
  PHINode *phi = b.CreatePHI(x->getType(), 2);
  phi->addIncoming(y, from);
  phi->addIncoming(exact, slow);
  return phi;
}

Value *MathBuilder::rsqrt(Value *x) {
  return b.CreateFDiv(real(x, 1.0), intrinsic(Intrinsic::sqrt, {x}));
}

Value *MathBuilder::pow(Value *x, Value *y) {
  auto *constant = dyn_cast<Constant>(y);
  if (constant && isa<VectorType>(constant->getType()))
    constant = constant->getSplatValue();
  if (auto *exponent = dyn_cast_or_null<ConstantFP>(constant)) {
    if (exponent->isExactlyValue(1.0))
      return x;
    if (exponent->isExactlyValue(2.0))
      return b.CreateFMul(x, x);
    if (exponent->isExactlyValue(3.0))
      return b.CreateFMul(b.CreateFMul(x, x), x);
    if (exponent->isExactlyValue(-1.0))
      return b.CreateFDiv(real(x, 1.0), x);
  }
  return intrinsic(Intrinsic::pow, {x, y});
}

Value *MathBuilder::maximum(Value *x, Value *y) {
  // max returns y if either is NaN; the remaining case is a NaN in x.
  Value *larger = b.CreateSelect(b.CreateFCmpOGT(x, y), x, y);
  return b.CreateSelect(b.CreateFCmpUNO(x, x), x, larger);
}

Value *MathBuilder::minimum(Value *x, Value *y) {
  Value *smaller = b.CreateSelect(b.CreateFCmpOLT(x, y), x, y);
  return b.CreateSelect(b.CreateFCmpUNO(x, x), x, smaller);
}
