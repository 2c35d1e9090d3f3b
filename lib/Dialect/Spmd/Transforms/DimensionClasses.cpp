//===- DimensionClasses.cpp - Dimensions that are split together ----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "DimensionClasses.h"
#include "Eras.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include <numeric>

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

/// The argument that `value` is a view or a part of, or null.
static BlockArgument viewedArgument(Value value) {
  while (Operation *op = value.getDefiningOp()) {
    auto costed = dyn_cast<graph::CostOpInterface>(op);
    if (!costed || costed.getCost().flops != 0 || op->getNumOperands() != 1)
      return {};
    value = op->getOperand(0);
  }
  return cast<BlockArgument>(value);
}

/// The major one of a dimension's factors that is not 1, or -1.
static int64_t majorFactor(const graph::ShardingRule &rule,
                           ArrayRef<int64_t> factors) {
  for (int64_t factor : factors)
    if (rule.factors[factor].size != 1)
      return factor;
  return -1;
}

static bool runsAlong(const graph::ShardingRule &rule,
                      const graph::FactorMapping &mapping, int64_t factor) {
  return llvm::any_of(mapping, [&](ArrayRef<int64_t> dim) {
    return majorFactor(rule, dim) == factor;
  });
}

DimensionClasses::DimensionClasses(func::FuncOp function) : function(function) {
  unsigned nodes = 0;
  auto addValue = [&](Value value) {
    base[value] = nodes;
    nodes += cast<RankedTensorType>(value.getType()).getRank();
  };
  Block &body = function.getBody().front();
  llvm::for_each(body.getArguments(), addValue);
  for (Operation &op : body.without_terminator()) {
    llvm::for_each(op.getResults(), addValue);
    if (auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(&op)) {
      factorBase[&op] = nodes;
      nodes += ruled.getShardingRule().factors.size();
    }
  }
  joined.grow(nodes);
  joinOps();
  joined.compress();
  classes.resize(joined.getNumClasses());
  describe();
}

void DimensionClasses::joinOps() {
  for (auto [op, first] : factorBase) {
    auto rule = cast<graph::ShardingRuleOpInterface>(op).getShardingRule();
    auto join = [&](Value value, const graph::FactorMapping &mapping) {
      for (auto [dim, factors] : llvm::enumerate(mapping))
        if (int64_t major = majorFactor(rule, factors); major >= 0)
          joined.join(base.lookup(value) + dim, first + major);
    };
    for (auto [i, operand] : llvm::enumerate(op->getOperands()))
      if (!llvm::is_contained(rule.unread, i))
        join(operand, rule.operands[i]);
    for (auto [i, result] : llvm::enumerate(op->getResults()))
      join(result, rule.results[i]);
  }
}

void DimensionClasses::describe() {
  Block &body = function.getBody().front();
  for (BlockArgument argument : body.getArguments()) {
    auto type = cast<RankedTensorType>(argument.getType());
    auto samples = function.getArgAttrOfType<IntegerAttr>(
        argument.getArgNumber(), graph::kBatchDimAttr);
    for (int64_t dim = 0; dim < type.getRank(); ++dim) {
      DimensionClass &known = classes[number(argument, dim)];
      known.arguments.push_back({argument, static_cast<unsigned>(dim)});
      known.samples |= samples && samples.getInt() == dim;
      if (argument.use_empty())
        known.divisor = std::gcd(known.divisor, type.getDimSize(dim));
    }
  }
  Eras eras(body);
  for (Operation &op : body.without_terminator()) {
    auto first = factorBase.find(&op);
    if (first == factorBase.end())
      continue;
    auto rule = cast<graph::ShardingRuleOpInterface>(&op).getShardingRule();
    for (auto [i, factor] : llvm::enumerate(rule.factors)) {
      if (factor.size == 1)
        continue;
      DimensionClass &known = classes[joined[first->second + i]];
      known.divisor = std::gcd(known.divisor, factor.size);
      if (factor.kind == graph::FactorKind::Replicated && !known.wholeIn)
        known.wholeIn = &op;
    }
    if (eras.of(&op) == 0)
      addRoles(&op);
  }
}

bool DimensionClasses::dependsOnInput(Value value) const {
  SmallVector<Value> work{value};
  llvm::DenseSet<Value> seen;
  while (!work.empty()) {
    Value next = work.pop_back_val();
    if (!seen.insert(next).second)
      continue;
    if (auto argument = dyn_cast<BlockArgument>(next)) {
      if (graph::hasRole(function, argument.getArgNumber(), "input"))
        return true;
      continue;
    }
    llvm::append_range(work, next.getDefiningOp()->getOperands());
  }
  return false;
}

void DimensionClasses::addRoles(Operation *op) {
  auto costed = dyn_cast<graph::CostOpInterface>(op);
  if (!costed)
    return;
  graph::WorkClass work = costed.getCost().work;
  auto rule = cast<graph::ShardingRuleOpInterface>(op).getShardingRule();
  unsigned first = factorBase.lookup(op);
  for (auto [i, factor] : llvm::enumerate(rule.factors)) {
    if (factor.size == 1)
      continue;
    DimensionClass &known = classes[joined[first + i]];
    bool kept = llvm::any_of(rule.results, [&](const auto &mapping) {
      return runsAlong(rule, mapping, i);
    });
    if (work == graph::WorkClass::Attention)
      known.attended |= kept;
    bool product = work == graph::WorkClass::Contraction;
    bool lookup = work == graph::WorkClass::Gather && !kept;
    if (!product && !lookup) {
      known.reduced |= factor.kind == graph::FactorKind::Reduction && !kept;
      continue;
    }
    for (auto [n, operand] : llvm::enumerate(op->getOperands())) {
      BlockArgument argument = viewedArgument(operand);
      if (!argument ||
          !graph::hasRole(function, argument.getArgNumber(), "parameter") ||
          !runsAlong(rule, rule.operands[n], i))
        continue;
      if (lookup) {
        // Places that no input names are those of a sequence, say.
        if (llvm::any_of(op->getOperands(), [&](Value other) {
              return other != operand && dependsOnInput(other);
            }))
          known.lookups.push_back(op);
        continue;
      }
      auto &role = kept ? known.producers : known.consumers;
      // A bias runs along what its product makes: once is enough.
      if (llvm::is_contained(role, op))
        continue;
      role.push_back(op);
      if (kept && llvm::all_of(rule.operands, [&](const auto &mapping) {
            return runsAlong(rule, mapping, i);
          }))
        known.stacked.push_back(op);
    }
  }
}
