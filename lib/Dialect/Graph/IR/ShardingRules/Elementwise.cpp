//===- Elementwise.cpp - Sharding rules of element-wise ops ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "RuleBuilder.h"

using namespace mlir;
using namespace cleave::graph;

/// Each dimension of the result is a factor; an operand with one element along
/// it is replicated.
static ShardingRule
pointwise(Operation *op,
          std::initializer_list<SmallVector<unsigned>> linear = {},
          bool keepsZero = false) {
  RuleBuilder builder(op);
  if (keepsZero)
    builder.keepsZero();
  FactorMapping mapping = builder.factors(shapeOf(op->getResult(0)));
  for (unsigned i = 0; i < op->getNumOperands(); ++i)
    builder.broadcastOperand(i, mapping);
  builder.result(0) = mapping;
  for (ArrayRef<unsigned> operands : linear)
    builder.linear(operands);
  return builder.take();
}

static bool isFloat(Value value) {
  return isa<FloatType>(getElementTypeOrSelf(value.getType()));
}

#define POINTWISE(OP, ...)                                                     \
  ShardingRule OP::getShardingRule() {                                         \
    return pointwise(getOperation(), {__VA_ARGS__});                           \
  }
/// Zero operands give a zero result.
#define ZERO_AT_ZERO(OP, ...)                                                  \
  ShardingRule OP::getShardingRule() {                                         \
    return pointwise(getOperation(), {__VA_ARGS__}, /*keepsZero=*/true);       \
  }
#define SET(...)                                                               \
  SmallVector<unsigned> { __VA_ARGS__ }

// Linear in the operands listed: in {0, 1} jointly, in {0} or {1} alone.
POINTWISE(NegOp, SET(0))
POINTWISE(StopGradientOp, SET(0))
POINTWISE(AddOp, SET(0, 1))
POINTWISE(SubOp, SET(0, 1))
POINTWISE(SelectOp, SET(1, 2))

ZERO_AT_ZERO(MulOp, SET(0), SET(1))
ZERO_AT_ZERO(GeluGradOp, SET(0))
ZERO_AT_ZERO(AbsOp)
ZERO_AT_ZERO(SqrtOp)
ZERO_AT_ZERO(SinOp)
ZERO_AT_ZERO(Expm1Op)
ZERO_AT_ZERO(Log1pOp)
ZERO_AT_ZERO(TanhOp)
ZERO_AT_ZERO(ErfOp)
ZERO_AT_ZERO(SiluOp)
ZERO_AT_ZERO(ReluOp)
ZERO_AT_ZERO(FloorOp)
ZERO_AT_ZERO(GeluOp)

POINTWISE(ExpOp)
POINTWISE(LogOp)
POINTWISE(RsqrtOp)
POINTWISE(CosOp)
POINTWISE(SigmoidOp)
POINTWISE(NotOp)
POINTWISE(RemOp)
POINTWISE(MaximumOp)
POINTWISE(MinimumOp)
POINTWISE(PowOp)
POINTWISE(AndOp)
POINTWISE(OrOp)
POINTWISE(CompareOp)
#undef POINTWISE
#undef ZERO_AT_ZERO

ShardingRule DivOp::getShardingRule() {
  // An integer quotient truncates: it is not linear.
  if (isFloat(getLhs()))
    return pointwise(getOperation(), {SET(0)});
  return pointwise(getOperation());
}

ShardingRule CastOp::getShardingRule() {
  // Not linear if it truncates, if it tests x != 0, or if it converts flags or
  // bytes, whose sums are modulo 2 and 256. Floats are summed before they are
  // rounded to fewer bits, or to another format of as many.
  auto from = cast<RankedTensorType>(getInput().getType()).getElementType();
  auto to = cast<RankedTensorType>(getType()).getElementType();
  bool rounds = isa<FloatType>(from) && isa<FloatType>(to) && from != to &&
                to.getIntOrFloatBitWidth() <= from.getIntOrFloatBitWidth();
  bool linear = !from.isInteger(1) && !from.isInteger(8) && !to.isInteger(1) &&
                !rounds && (isa<FloatType>(to) || !isa<FloatType>(from));
  if (linear)
    return pointwise(getOperation(), {SET(0)});
  return pointwise(getOperation());
}
#undef SET

ShardingRule ConstantOp::getShardingRule() {
  RuleBuilder builder(getOperation());
  // Slices of a splat are splats; other constants are replicated.
  auto dense = dyn_cast<DenseElementsAttr>(getValue());
  builder.result(0) = builder.factors(
      shapeOf(getOutput()),
      dense && dense.isSplat() ? FactorKind::Parallel : FactorKind::Replicated);
  return builder.take();
}

ShardingRule IotaOp::getShardingRule() {
  RuleBuilder builder(getOperation());
  for (auto [i, size] : llvm::enumerate(shapeOf(getOutput())))
    builder.result(0)[i] =
        static_cast<int64_t>(i) == static_cast<int64_t>(getDim())
            ? builder.wholeFactor(size)
            : builder.factor(size);
  return builder.take();
}

ShardingRule UniformOp::getShardingRule() {
  RuleBuilder builder(getOperation());
  builder.result(0) = builder.factors(shapeOf(getOutput()));
  for (unsigned i = 0; i < getNumOperands(); ++i)
    builder.operand(i) =
        builder.factors(shapeOf(getOperand(i)), FactorKind::Replicated);
  return builder.take();
}

ShardingRule DropoutOp::getShardingRule() {
  // The mask depends on the global position alone.
  RuleBuilder builder(getOperation());
  FactorMapping mapping = builder.factors(shapeOf(getOutput()));
  for (unsigned i = 1; i < getNumOperands(); ++i)
    builder.operand(i) =
        builder.factors(shapeOf(getOperand(i)), FactorKind::Replicated);
  if (getStarts()) {
    // The factors of pieces, and of positions within a piece.
    int64_t pieces = shapeOf(getStarts())[0];
    DimFactors &dim = mapping[*getStartsDim()];
    int64_t size = shapeOf(getOutput())[*getStartsDim()];
    dim = builder.factor(pieces, FactorKind::Parallel, ReductionKind::Sum,
                         PaddingNeed::Refused);
    builder.operand(getNumOperands() - 1) = {dim};
    llvm::append_range(dim, builder.factor(size / pieces));
  }
  builder.operand(0) = builder.result(0) = mapping;
  builder.linear({0});
  return builder.take();
}
