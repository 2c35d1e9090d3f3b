//===- NormAndLoss.cpp - Sharding rules of norms, losses and positions ----===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "RuleBuilder.h"

using namespace mlir;
using namespace cleave::graph;

/// Rule of an op on rows: the leading dimensions of operand 0 are rows, its
/// last dimension is replicated. The caller lists which operands and results
/// have the whole shape, the shape of the rows, or only the last dimension.
namespace {
struct RowRule {
  RowRule(Operation *op, FactorKind rowKind, FactorKind lastKind,
          PaddingNeed padding = PaddingNeed::Any)
      : builder(op) {
    // Summands must be zero.
    rows = builder.factors(shapeOf(op->getOperand(0)).drop_back(), rowKind,
                           rowKind == FactorKind::Reduction ? PaddingNeed::Zero
                                                            : padding);
    ArrayRef<int64_t> shape = shapeOf(op->getOperand(0));
    last = builder.factor(shape.back(), lastKind);
    whole = rows;
    whole.push_back(last);
  }

  RuleBuilder builder;
  /// Mappings of the rows' shape and of the whole shape.
  FactorMapping rows, whole;
  DimFactors last;
};
} // namespace

ShardingRule LayerNormOp::getShardingRule() {
  RowRule rule(getOperation(), FactorKind::Parallel, FactorKind::Replicated);
  rule.builder.operand(0) = rule.whole;
  for (unsigned i = 1; i < getNumOperands(); ++i)
    rule.builder.operand(i) = {rule.last};
  rule.builder.result(0) = rule.whole;
  rule.builder.result(1) = rule.builder.result(2) = rule.rows;
  return rule.builder.take();
}

ShardingRule LayerNormGradOp::getShardingRule() {
  RowRule rule(getOperation(), FactorKind::Parallel, FactorKind::Replicated);
  rule.builder.operand(0) = rule.builder.operand(1) = rule.whole;
  rule.builder.operand(2) = rule.builder.operand(3) = rule.rows;
  if (getWeight())
    rule.builder.operand(4) = {rule.last};
  rule.builder.result(0) = rule.whole;
  rule.builder.linear({0});
  return rule.builder.take();
}

ShardingRule LayerNormWeightGradOp::getShardingRule() {
  RowRule rule(getOperation(), FactorKind::Reduction, FactorKind::Parallel);
  rule.builder.operand(0) = rule.builder.operand(1) = rule.whole;
  rule.builder.operand(2) = rule.builder.operand(3) = rule.rows;
  rule.builder.result(0) = {rule.last};
  rule.builder.linear({0});
  return rule.builder.take();
}

ShardingRule RmsNormOp::getShardingRule() {
  RowRule rule(getOperation(), FactorKind::Parallel, FactorKind::Replicated);
  rule.builder.operand(0) = rule.whole;
  if (getWeight())
    rule.builder.operand(1) = {rule.last};
  rule.builder.result(0) = rule.whole;
  rule.builder.result(1) = rule.rows;
  return rule.builder.take();
}

ShardingRule RmsNormGradOp::getShardingRule() {
  RowRule rule(getOperation(), FactorKind::Parallel, FactorKind::Replicated);
  rule.builder.operand(0) = rule.builder.operand(1) = rule.whole;
  rule.builder.operand(2) = rule.rows;
  if (getWeight())
    rule.builder.operand(3) = {rule.last};
  rule.builder.result(0) = rule.whole;
  rule.builder.linear({0});
  return rule.builder.take();
}

ShardingRule RmsNormWeightGradOp::getShardingRule() {
  RowRule rule(getOperation(), FactorKind::Reduction, FactorKind::Parallel);
  rule.builder.operand(0) = rule.builder.operand(1) = rule.whole;
  rule.builder.operand(2) = rule.rows;
  rule.builder.result(0) = {rule.last};
  rule.builder.linear({0});
  return rule.builder.take();
}

ShardingRule SoftmaxOp::getShardingRule() {
  RowRule rule(getOperation(), FactorKind::Parallel, FactorKind::Replicated);
  rule.builder.operand(0) = rule.builder.result(0) = rule.whole;
  return rule.builder.take();
}

ShardingRule SoftmaxGradOp::getShardingRule() {
  RowRule rule(getOperation(), FactorKind::Parallel, FactorKind::Replicated);
  rule.builder.operand(0) = rule.builder.operand(1) = rule.whole;
  rule.builder.result(0) = rule.whole;
  rule.builder.linear({0});
  return rule.builder.take();
}

ShardingRule CrossEntropyOp::getShardingRule() {
  // Sharded classes would need a reduction by maximum, then one by sum. A
  // target outside of the classes is an error.
  RowRule rule(getOperation(), FactorKind::Parallel, FactorKind::Replicated,
               PaddingNeed::Zero);
  rule.builder.operand(0) = rule.whole;
  rule.builder.operand(1) = rule.rows;
  rule.builder.result(0) = rule.builder.result(1) = rule.rows;
  return rule.builder.take();
}

ShardingRule CrossEntropyGradOp::getShardingRule() {
  RuleBuilder builder(getOperation());
  ArrayRef<int64_t> shape = shapeOf(getLogits());
  FactorMapping rows = builder.factors(shape.drop_back(), FactorKind::Parallel,
                                       PaddingNeed::Zero);
  FactorMapping whole = rows;
  whole.push_back(builder.wholeFactor(shape.back()));
  builder.operand(0) = builder.operand(2) = builder.operand(3) = rows;
  builder.operand(1) = builder.result(0) = whole;
  builder.linear({0});
  return builder.take();
}

ShardingRule HeadLossOp::getShardingRule() {
  // Losses and the input's gradient concatenate; gradients of weight and bias
  // are sums over rows.
  RowRule rule(getOperation(), FactorKind::Reduction, FactorKind::Replicated);
  RuleBuilder &builder = rule.builder;
  DimFactors classes = builder.wholeFactor(shapeOf(getWeight())[0]);
  builder.operand(0) = rule.whole;
  builder.operand(1) = {classes, rule.last};
  if (auto bias = operandIndex(*this, 2))
    builder.operand(*bias) = {classes};
  builder.operand(*operandIndex(*this, 3)) = rule.rows;
  if (auto gradient = operandIndex(*this, 4))
    builder.operand(*gradient) = rule.rows;
  builder.result(0) = rule.rows;
  if (getNumResults() > 1) {
    builder.result(1) = rule.whole;
    builder.result(2) = {classes, rule.last};
  }
  if (getNumResults() > 3)
    builder.result(3) = {classes};
  return builder.take();
}

ShardingRule RopeOp::getShardingRule() {
  RuleBuilder builder(getOperation());
  ArrayRef<int64_t> shape = shapeOf(getInput());
  FactorMapping mapping = builder.factors(shape.drop_back());
  // Rotation reads pairs of elements of the last dimension.
  mapping.push_back(builder.wholeFactor(shape.back()));
  builder.operand(0) = builder.result(0) = mapping;
  builder.broadcastOperand(1, mapping);
  builder.broadcastOperand(2, mapping);
  builder.linear({0});
  return builder.take();
}
