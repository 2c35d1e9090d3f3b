//===- AttentionRules.cpp - Sharding rules of attention ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "../ShardingRules/RuleBuilder.h"

using namespace mlir;
using namespace cleave::graph;

namespace {
/// Fills the mappings of the operands that attention and its gradients share.
template <typename Op> class AttentionRule {
public:
  /// `first` is the ODS index of the query; bias, mask, segments, rng, origin,
  /// key_segments, query_starts and key_starts have the ODS indices from
  /// `extras` on. With `summed`, results may lack the factors of batch, heads
  /// and queries: they are sums over them.
  AttentionRule(Op op, unsigned first, unsigned extras, bool summed)
      : builder(op), op(op) {
    ArrayRef<int64_t> q = shapeOf(op.getQuery()), k = shapeOf(op.getKey());
    auto split = [&](int64_t size) {
      return summed ? builder.sumFactor(size) : builder.factor(size);
    };
    // A factor that all results have is not summed over.
    auto outer = [&](int64_t size) {
      bool kept = !std::is_same_v<Op, AttentionBiasGradOp>;
      return builder.factor(
          size, summed ? FactorKind::Reduction : FactorKind::Parallel,
          ReductionKind::Sum, kept ? PaddingNeed::Any : PaddingNeed::Zero);
    };
    batch = outer(q[0]);
    groups = outer(k[1]);
    // Query head i reads key-value head i / (a / g): groups are major.
    heads = groups;
    llvm::append_range(heads, split(q[1] / k[1]));
    // Segments of queries may also be those of keys, which are replicated.
    bool whole = op.getSegments() && !op.getKeySegments();
    auto splitQueries = [&](int64_t size) {
      return whole ? builder.wholeFactor(size) : split(size);
    };
    // Factors from major to minor: block, piece, position.
    int64_t blocks = op.getBlocks();
    auto pieces = [&](int64_t size, bool sum) {
      return builder.factor(size,
                            sum ? FactorKind::Reduction : FactorKind::Parallel,
                            ReductionKind::Sum, PaddingNeed::Refused);
    };
    DimFactors block = pieces(blocks, summed);
    queryPieces = keyPieces = queries = keys = block;
    int64_t queryCount = piecesOf(op.getQueryStarts(), blocks);
    int64_t keyCount = piecesOf(op.getKeyStarts(), blocks);
    int64_t rest = queryCount / blocks;
    llvm::append_range(queryPieces, whole ? builder.wholeFactor(rest)
                                          : pieces(rest, summed));
    llvm::append_range(keyPieces, builder.wholeFactor(keyCount / blocks));
    queries = queryPieces;
    keys = keyPieces;
    llvm::append_range(queries, splitQueries(q[2] / queryCount));
    llvm::append_range(keys, builder.wholeFactor(k[2] / keyCount));
    size = builder.wholeFactor(q[3]);
    valueSize = builder.wholeFactor(shapeOf(op.getValue())[3]);

    builder.operand(*operandIndex(op, first)) = queryMapping();
    builder.operand(*operandIndex(op, first + 1)) = keyMapping();
    builder.operand(*operandIndex(op, first + 2)) = valueMapping();
    pairs = {batch, heads, queries, keys};
    if (blocks > 1) // The keys of the own block.
      pairs.back() = builder.wholeFactor(k[2] / blocks);
    for (unsigned n : {extras, extras + 1}) // bias, mask
      if (auto index = operandIndex(op, n))
        builder.broadcastOperand(*index, extraMapping(op->getOperand(*index)));
    if (auto index = operandIndex(op, extras + 2)) // segments
      builder.operand(*index) = {batch, queries};
    for (unsigned n : {extras + 3, extras + 4}) // rng, origin
      if (auto index = operandIndex(op, n))
        builder.operand(*index) = builder.factors(
            shapeOf(op->getOperand(*index)), FactorKind::Replicated);
    if (auto index = operandIndex(op, extras + 5)) // key_segments
      builder.operand(*index) = {batch, keys};
    if (op.getStep() != 0 && !block.empty()) {
      builder.shift().factor = block.front();
      builder.shift().steps = op.getStep();
      for (unsigned n : {first + 1, first + 2, extras + 5})
        if (auto index = operandIndex(op, n))
          builder.shift().operands.push_back(*index);
      for (unsigned n : {extras, extras + 1})
        if (auto index = operandIndex(op, n))
          if (isOfKeys(op->getOperand(*index)))
            builder.shift().operands.push_back(*index);
    }
    if (auto index = operandIndex(op, extras + 6)) // query_starts
      builder.operand(*index) = {queryPieces};
    if (auto index = operandIndex(op, extras + 7)) // key_starts
      builder.operand(*index) = {keyPieces};
  }

  FactorMapping queryMapping() { return {batch, heads, queries, size}; }
  FactorMapping keyMapping() { return {batch, groups, keys, size}; }
  FactorMapping valueMapping() { return {batch, groups, keys, valueSize}; }
  FactorMapping outputMapping() { return {batch, heads, queries, valueSize}; }
  FactorMapping lseMapping() {
    FactorMapping mapping{batch, heads, queries};
    if (op.getBias())
      mapping.push_back(builder.wholeFactor(2));
    return mapping;
  }
  /// The mapping of the scores to which a mask or bias like `extra` broadcasts.
  FactorMapping extraMapping(Value extra) {
    return isOfKeys(extra) ? FactorMapping{batch, heads, queries, keys} : pairs;
  }
  /// Whether `extra`, a mask or bias, has one value for each key.
  static bool isOfKeys(Value extra) {
    ArrayRef<int64_t> shape = shapeOf(extra);
    return !shape.empty() && shape.back() != 1 &&
           (shape.size() < 2 || shape[shape.size() - 2] == 1);
  }

  RuleBuilder builder;

private:
  static int64_t piecesOf(Value starts, int64_t blocks) {
    return starts ? shapeOf(starts)[0] : blocks;
  }

  Op op;
  DimFactors batch, groups, heads, queries, keys, size, valueSize;
  DimFactors queryPieces, keyPieces;
  FactorMapping pairs;
};
} // namespace

ShardingRule AttentionOp::getShardingRule() {
  AttentionRule<AttentionOp> rule(*this, 0, 3, /*summed=*/false);
  rule.builder.result(0) = rule.outputMapping();
  rule.builder.result(1) = rule.lseMapping();
  if (auto index = operandIndex(*this, 11)) // onto
    rule.builder.operand(*index) = rule.outputMapping();
  if (auto index = operandIndex(*this, 12)) // onto_lse
    rule.builder.operand(*index) = rule.lseMapping();
  return rule.builder.take();
}

/// Adds the mappings of gradient, output and lse, which both gradients of
/// attention read, and their linearity in the gradient.
template <typename Rule> static void addBackwardOperands(Rule &rule) {
  rule.builder.operand(0) = rule.outputMapping();
  rule.builder.operand(4) = rule.outputMapping();
  rule.builder.operand(5) = rule.lseMapping();
  rule.builder.linear({0});
}

ShardingRule AttentionGradOp::getShardingRule() {
  AttentionRule<AttentionGradOp> rule(*this, 1, 6, /*summed=*/true);
  addBackwardOperands(rule);
  rule.builder.result(0) = rule.queryMapping();
  rule.builder.result(1) = rule.keyMapping();
  rule.builder.result(2) = rule.valueMapping();
  if (rule.builder.shift().steps != 0)
    rule.builder.shift().results = {1, 2};
  return rule.builder.take();
}

ShardingRule AttentionBiasGradOp::getShardingRule() {
  AttentionRule<AttentionBiasGradOp> rule(*this, 1, 6, /*summed=*/true);
  addBackwardOperands(rule);
  rule.builder.broadcastResult(0, rule.extraMapping(getBiasGradient()));
  if (rule.builder.shift().steps != 0 && rule.isOfKeys(getBiasGradient()))
    rule.builder.shift().results = {0};
  return rule.builder.take();
}
