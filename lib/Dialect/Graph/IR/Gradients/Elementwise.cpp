//===- Elementwise.cpp - Gradients of element-wise ops --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Formulas made of existing ops: backward is fused, so a composition costs
/// what one op would. A formula that could read either operand or result reads
/// the result, because the reader of the result most likely keeps it.
///
//===----------------------------------------------------------------------===//

#include "Gradients.h"
#include <numbers>

using namespace mlir;
using namespace cleave::graph;

CLEAVE_ZERO_GRADIENT(ConstantOp)
CLEAVE_ZERO_GRADIENT(IotaOp)
CLEAVE_ZERO_GRADIENT(UniformOp)
CLEAVE_ZERO_GRADIENT(FloorOp)
CLEAVE_ZERO_GRADIENT(StopGradientOp)
CLEAVE_ZERO_GRADIENT(NotOp)
CLEAVE_ZERO_GRADIENT(AndOp)
CLEAVE_ZERO_GRADIENT(OrOp)
CLEAVE_ZERO_GRADIENT(CompareOp)
CLEAVE_ZERO_GRADIENT(OneHotOp)
CLEAVE_ZERO_GRADIENT(PackBitsOp)
CLEAVE_ZERO_GRADIENT(UnpackBitsOp)
CLEAVE_NO_GRADIENT(GeluGradOp)

//===----------------------------------------------------------------------===//
// One operand
//===----------------------------------------------------------------------===//

/// Defines the gradient of a unary op by an expression of the formula builder
/// `f`, the result's gradient `g`, the operand `x` and the result `y`.
#define UNARY(OP, EXPRESSION)                                                  \
  CLEAVE_GRADIENTS(OP) {                                                       \
    Value g = resultGradients[0], x = getInput(), y = getOutput();             \
    (void)x, (void)y;                                                          \
    if (!g || !needed[0])                                                      \
      return success();                                                        \
    [[maybe_unused]] Formula f{builder, getLoc()};                             \
    operandGradients[0] = EXPRESSION;                                          \
    return success();                                                          \
  }

static Value one(Formula &f, Value like) { return f.scalar(like, 1.0); }
static Value zero(Formula &f, Value like) { return f.scalar(like, 0.0); }

/// 1 - y^2.
static Value tanhSlope(Formula &f, Value y) {
  return f.sub(one(f, y), f.mul(y, y));
}

/// sign(x) * g, 0 at 0. The product keeps a NaN of `g` at 0.
static Value absGradient(Formula &f, Value g, Value x) {
  Value zeros = zero(f, x);
  return f.mul(g, f.select(f.compare(Predicate::gt, x, zeros), one(f, x),
                           f.select(f.compare(Predicate::lt, x, zeros),
                                    f.scalar(x, -1.0), zeros)));
}

/// 2 / sqrt(pi) * exp(-x^2).
static Value erfSlope(Formula &f, Value x) {
  Value e = ExpOp::create(f.builder, f.loc, f.neg(f.mul(x, x)));
  return f.mul(e, f.scalar(x, 2.0 * std::numbers::inv_sqrtpi));
}

/// s (1 + x (1 - s)) with s = sigmoid(x).
static Value siluSlope(Formula &f, Value x) {
  Value s = SigmoidOp::create(f.builder, f.loc, x);
  return f.mul(s, f.add(one(f, x), f.mul(x, f.sub(one(f, x), s))));
}

UNARY(NegOp, f.neg(g))
UNARY(AbsOp, absGradient(f, g, x))
UNARY(ExpOp, f.mul(g, y))
// Not y + 1, which cancels exp(x) for very negative x.
UNARY(Expm1Op, f.mul(g, ExpOp::create(builder, getLoc(), x)))
UNARY(LogOp, f.div(g, x))
UNARY(Log1pOp, f.div(g, f.add(x, one(f, x))))
UNARY(SqrtOp, f.div(g, f.mul(y, f.scalar(y, 2.0))))
UNARY(RsqrtOp, f.mul(f.mul(g, f.scalar(y, -0.5)), f.mul(y, f.mul(y, y))))
UNARY(SinOp, f.mul(g, CosOp::create(builder, getLoc(), x)))
UNARY(CosOp, f.neg(f.mul(g, SinOp::create(builder, getLoc(), x))))
UNARY(TanhOp, f.mul(g, tanhSlope(f, y)))
UNARY(ErfOp, f.mul(g, erfSlope(f, x)))
UNARY(SigmoidOp, f.mul(g, f.mul(y, f.sub(one(f, y), y))))
UNARY(SiluOp, f.mul(g, siluSlope(f, x)))
// A comparison that is false for NaN, so that a NaN of the operand reaches its
// gradient.
UNARY(ReluOp, f.select(f.compare(Predicate::le, y, zero(f, y)), zero(f, y), g))
// An op of its own; its formula is in
// GraphToExec/Kernels/ElementwiseKernels.cpp and in
// Interpreter/Models/Elementwise.cpp.
UNARY(GeluOp, GeluGradOp::create(builder, getLoc(), g, x, getTanh()))

#undef UNARY

CLEAVE_GRADIENTS(CastOp) {
  if (!resultGradients[0] || !needed[0])
    return success();
  // No gradient flows through an integer; the caller asks for float operands
  // only.
  if (isa<FloatType>(tensorTypeOf(getOutput()).getElementType()))
    operandGradients[0] = Formula{builder, getLoc()}.cast(
        resultGradients[0], tensorTypeOf(getInput()).getElementType());
  return success();
}

CLEAVE_GRADIENTS(DropoutOp) {
  if (!resultGradients[0] || !needed[0])
    return success();
  // The mask depends on the index alone, so the op is its own adjoint.
  auto adjoint = cast<DropoutOp>(builder.clone(*getOperation()));
  adjoint.getInputMutable().assign(resultGradients[0]);
  operandGradients[0] = adjoint.getOutput();
  return success();
}

//===----------------------------------------------------------------------===//
// Two and three operands
//===----------------------------------------------------------------------===//

/// Defines the gradients of a broadcasting op by an expression for each of
/// its operands; each is then reduced to the operand's shape.
#define BINARY(OP, LHS, RHS)                                                   \
  CLEAVE_GRADIENTS(OP) {                                                       \
    Value g = resultGradients[0], a = getLhs(), b = getRhs(), y = getOutput(); \
    (void)a, (void)b, (void)y;                                                 \
    if (!g)                                                                    \
      return success();                                                        \
    [[maybe_unused]] Formula f{builder, getLoc()};                             \
    if (needed[0])                                                             \
      operandGradients[0] = f.reduceTo(LHS, getLhs().getType().getShape());    \
    if (needed[1])                                                             \
      operandGradients[1] = f.reduceTo(RHS, getRhs().getType().getShape());    \
    return success();                                                          \
  }

/// The share of `g` that flows to `winner`: all of it where it wins, half where
/// both are equal. A comparison with NaN is false: then both receive `g`.
static Value share(Formula &f, Value g, Value winner, Value other,
                   Predicate loses) {
  Value half = f.mul(g, f.scalar(g, 0.5));
  Value whole = f.select(f.compare(loses, winner, other), f.scalar(g, 0.0), g);
  return f.select(f.compare(Predicate::eq, winner, other), half, whole);
}

/// b * a^(b-1), and 0 where b is 0.
static Value powBaseSlope(Formula &f, Value a, Value b) {
  if (std::optional<double> exponent = getSplatValue(b)) {
    if (*exponent == 2.0)
      return f.mul(a, f.scalar(a, 2.0));
    if (*exponent != 0.0)
      return f.mul(f.pow(a, f.scalar(a, *exponent - 1.0)),
                   f.scalar(a, *exponent));
  }
  Value slope = f.mul(b, f.pow(a, f.sub(b, one(f, b))));
  return f.select(f.compare(Predicate::eq, b, zero(f, b)), zero(f, b), slope);
}

/// a^b log(a), and 0 where a is 0 and b is not negative.
static Value powExponentSlope(Formula &f, Value a, Value b, Value y) {
  Value slope = f.mul(y, LogOp::create(f.builder, f.loc, a));
  Value flat =
      AndOp::create(f.builder, f.loc, f.compare(Predicate::eq, a, zero(f, a)),
                    f.compare(Predicate::ge, b, zero(f, b)));
  return f.select(flat, zero(f, a), slope);
}

BINARY(AddOp, g, g)
BINARY(SubOp, g, f.neg(g))
BINARY(MulOp, f.mul(g, b), f.mul(g, a))
BINARY(DivOp, f.div(g, b), f.neg(f.mul(g, f.div(y, b))))
// (a - y) / b is the integer by which b is multiplied and subtracted from a.
BINARY(RemOp, g, f.neg(f.mul(g, f.div(f.sub(a, y), b))))
BINARY(MaximumOp, share(f, g, a, b, Predicate::lt),
       share(f, g, b, a, Predicate::lt))
BINARY(MinimumOp, share(f, g, a, b, Predicate::gt),
       share(f, g, b, a, Predicate::gt))
BINARY(PowOp, f.mul(g, powBaseSlope(f, a, b)),
       f.mul(g, powExponentSlope(f, a, b, y)))

#undef BINARY

CLEAVE_GRADIENTS(SelectOp) {
  Value g = resultGradients[0];
  if (!g)
    return success();
  Formula f{builder, getLoc()};
  if (needed[1])
    operandGradients[1] =
        f.reduceTo(f.select(getCondition(), g, f.scalar(g, 0.0)),
                   getOnTrue().getType().getShape());
  if (needed[2])
    operandGradients[2] =
        f.reduceTo(f.select(getCondition(), f.scalar(g, 0.0), g),
                   getOnFalse().getType().getShape());
  return success();
}
