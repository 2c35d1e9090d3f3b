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
