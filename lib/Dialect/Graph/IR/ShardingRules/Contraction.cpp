//===- Contraction.cpp - Sharding rules of contractions ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "RuleBuilder.h"
#include "cleave/Dialect/Graph/IR/Einsum.h"

using namespace mlir;
using namespace cleave::graph;

ShardingRule ContractOp::getShardingRule() {
  RuleBuilder builder(getOperation());
  std::string error;
  std::optional<Einsum> einsum = Einsum::parse(getEquation(), error);
  if (!einsum) // The verifier has reported it.
    return builder.take();
  llvm::SmallDenseMap<char, DimFactors> factors;
  auto assign = [&](FactorMapping &mapping, StringRef letters,
                    ArrayRef<int64_t> shape) {
    for (auto [i, letter] : llvm::enumerate(letters)) {
      auto [it, isNew] = factors.try_emplace(letter);
      if (isNew)
        it->second = StringRef(einsum->output).contains(letter)
                         ? builder.factor(shape[i])
                         : builder.sumFactor(shape[i]);
      mapping[i] = it->second;
    }
  };
  assign(builder.result(0), einsum->output, shapeOf(getOutput()));
  assign(builder.operand(0), einsum->lhs, shapeOf(getLhs()));
  assign(builder.operand(1), einsum->rhs, shapeOf(getRhs()));
  builder.linear({0});
  builder.linear({1});
  builder.keepsZero();
  return builder.take();
}

ShardingRule LinearOp::getShardingRule() {
  RuleBuilder builder(getOperation());
  FactorMapping rows = builder.factors(shapeOf(getInput()).drop_back());
  DimFactors o = builder.factor(shapeOf(getWeight())[0]);
  int64_t inner = shapeOf(getWeight())[1];
  // The bias would be added to each partial product.
  DimFactors i =
      getBias() ? builder.wholeFactor(inner) : builder.sumFactor(inner);
  builder.operand(0) = rows;
  builder.operand(0).push_back(i);
  builder.operand(1) = {o, i};
  builder.result(0) = rows;
  builder.result(0).push_back(o);
  if (getBias()) {
    builder.operand(2) = {o};
    builder.linear({0, 2});
    builder.linear({1, 2});
  } else {
    builder.linear({0});
    builder.linear({1});
  }
  return builder.take();
}

ShardingRule GroupedLinearOp::getShardingRule() {
  RuleBuilder builder(getOperation());
  ArrayRef<int64_t> weight = shapeOf(getWeight());
  // A group out of range is an error, also in padding.
  FactorMapping groups = builder.factors(
      shapeOf(getGroups()), FactorKind::Parallel, PaddingNeed::Zero);
  // A row of a group that a shard does not hold gives 0 there.
  DimFactors e = builder.factor(weight[0], FactorKind::Reduction);
  DimFactors k = builder.sumFactor(shapeOf(getRows()).back());
  DimFactors m = builder.factor(shapeOf(getOutput()).back());
  builder.operand(0) = groups;
  builder.operand(0).push_back(k);
  builder.operand(1) =
      getTranspose() ? FactorMapping{e, m, k} : FactorMapping{e, k, m};
  builder.operand(2) = groups;
  builder.result(0) = groups;
  builder.result(0).push_back(m);
  builder.linear({0});
  builder.linear({1});
  return builder.take();
}

ShardingRule GroupedLinearWeightGradOp::getShardingRule() {
  RuleBuilder builder(getOperation());
  FactorMapping groups;
  for (int64_t size : shapeOf(getGroups()))
    groups.push_back(builder.sumFactor(size));
  // A shard takes the rows of its own groups; padding receives none.
  DimFactors e = builder.factor(shapeOf(getOutput())[0]);
  DimFactors k = builder.factor(shapeOf(getRows()).back());
  DimFactors m = builder.factor(shapeOf(getGradient()).back());
  builder.operand(0) = groups;
  builder.operand(0).push_back(k);
  builder.operand(1) = groups;
  builder.operand(1).push_back(m);
  builder.operand(2) = groups;
  builder.result(0) =
      getTranspose() ? FactorMapping{e, m, k} : FactorMapping{e, k, m};
  builder.linear({0});
  builder.linear({1});
  builder.keepsZero();
  return builder.take();
}

//===----------------------------------------------------------------------===//
// Rows sorted by group: their order is that of all rows.
//===----------------------------------------------------------------------===//

ShardingRule SortRowsOp::getShardingRule() {
  RuleBuilder builder(getOperation());
  DimFactors rows = builder.wholeFactor(shapeOf(getGroups())[0]);
  builder.operand(0) = builder.result(0) = builder.result(1) = {rows};
  builder.result(2) = {{}, builder.wholeFactor(shapeOf(getOffsets())[1])};
  return builder.take();
}

/// The factors of rows, groups and offsets, of which none can be sharded.
static std::pair<DimFactors, DimFactors> wholeRows(RuleBuilder &builder,
                                                   Value rows, Value offsets) {
  DimFactors all = builder.wholeFactor(shapeOf(rows)[0]);
  ArrayRef<int64_t> shape = shapeOf(offsets);
  builder.operand(2) = {builder.wholeFactor(shape[0]),
                        builder.wholeFactor(shape[1])};
  return {all, builder.wholeFactor(shape[1] - 1)};
}

ShardingRule GroupedContractOp::getShardingRule() {
  RuleBuilder builder(getOperation());
  auto [rows, groups] = wholeRows(builder, getRows(), getOffsets());
  DimFactors k = builder.sumFactor(shapeOf(getRows())[1]),
             m = builder.factor(shapeOf(getOutput())[1]);
  builder.operand(0) = {rows, k};
  builder.operand(1) = {groups, getTranspose() ? m : k, getTranspose() ? k : m};
  builder.result(0) = {rows, m};
  builder.linear({0});
  builder.linear({1});
  builder.keepsZero();
  return builder.take();
}

ShardingRule GroupedContractWeightGradOp::getShardingRule() {
  RuleBuilder builder(getOperation());
  auto [rows, groups] = wholeRows(builder, getRows(), getOffsets());
  DimFactors k = builder.factor(shapeOf(getRows())[1]),
             m = builder.factor(shapeOf(getGrads())[1]);
  builder.operand(0) = {rows, k};
  builder.operand(1) = {rows, m};
  builder.result(0) = {groups, getTranspose() ? m : k, getTranspose() ? k : m};
  builder.linear({0});
  builder.linear({1});
  builder.keepsZero();
  return builder.take();
}
