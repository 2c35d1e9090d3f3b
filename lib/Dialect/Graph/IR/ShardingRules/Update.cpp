//===- Update.cpp - Sharding rules of the ops of a training step ----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "RuleBuilder.h"

using namespace mlir;
using namespace cleave::graph;

ShardingRule SeedOp::getShardingRule() {
  RuleBuilder builder(getOperation());
  // The result is 1 (or the scale) for every loss.
  builder.unused(0);
  return builder.take();
}

/// Results and `operands` have one shape, all of whose dimensions can be
/// sharded; other operands are scalars.
static ShardingRule update(Operation *op, ArrayRef<unsigned> operands,
                           bool keepsZero = true,
                           PaddingNeed padding = PaddingNeed::Any) {
  RuleBuilder builder(op);
  if (keepsZero)
    builder.keepsZero();
  FactorMapping mapping = builder.factors(shapeOf(op->getOperand(0)),
                                          FactorKind::Parallel, padding);
  for (unsigned index : operands)
    builder.operand(index) = mapping;
  for (unsigned i = 0; i < op->getNumResults(); ++i)
    builder.result(i) = mapping;
  return builder.take();
}

ShardingRule GradientOp::getShardingRule() {
  // A finished gradient is not a partial sum. Padding has no gradient.
  return update(getOperation(), {0}, /*keepsZero=*/true, PaddingNeed::Zero);
}

ShardingRule WrittenOp::getShardingRule() {
  // As of a gradient: no partial sum passes.
  return update(getOperation(), {0}, /*keepsZero=*/true, PaddingNeed::Zero);
}

ShardingRule CheckOp::getShardingRule() {
  RuleBuilder builder(getOperation());
  if (getValues())
    builder.operand(1) =
        builder.factors(shapeOf(getValues()), FactorKind::Replicated);
  return builder.take();
}

ShardingRule GlobalNormOp::getShardingRule() {
  // Sums of squares of shards add up; norms of shards do not.
  RuleBuilder builder(getOperation());
  for (unsigned i = 0; i < getNumOperands(); ++i)
    builder.operand(i) =
        builder.factors(shapeOf(getOperand(i)), FactorKind::Replicated);
  return builder.take();
}

ShardingRule AdamWOp::getShardingRule() {
  // Without epsilon, a mean of zero is divided by zero.
  return update(getOperation(), {0, 1, 2, 3},
                /*keepsZero=*/!getEpsilon().isZero());
}

ShardingRule SgdOp::getShardingRule() {
  SmallVector<unsigned> operands{0, 1};
  if (getMomentumBuffer())
    operands.push_back(2);
  return update(getOperation(), operands);
}

ShardingRule EncodeOp::getShardingRule() { return update(getOperation(), {0}); }

ShardingRule DecodeOp::getShardingRule() { return update(getOperation(), {0}); }

ShardingRule OrthonormalizeOp::getShardingRule() {
  // A matrix is replicated; matrices can be sharded. Of zeros there are still
  // orthonormal columns.
  RuleBuilder builder(getOperation());
  ArrayRef<int64_t> shape = shapeOf(getInput());
  FactorMapping mapping = builder.factors(shape.drop_back(2));
  for (int64_t size : shape.take_back(2))
    mapping.push_back(builder.wholeFactor(size));
  builder.operand(0) = builder.result(0) = mapping;
  return builder.take();
}
