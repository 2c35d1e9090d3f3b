//===- DimensionClasses.cpp - Dimensions sharded together -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Spmd/Transforms/Propagation/DimensionClasses.h"
#include "cleave/Dialect/Graph/Analysis/Slices.h"
#include "cleave/Dialect/Graph/Analysis/Sources.h"
#include "cleave/Dialect/Graph/IR/DependsOnIndex.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/ShardingRules/ScaledOperand.h"
#include "cleave/Dialect/Spmd/Transforms/Propagation/SeedOrder.h"
#include <numeric>

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

BlockArgument cleave::spmd::viewedArgument(Value value) {
  while (Operation *op = value.getDefiningOp()) {
    auto costed = dyn_cast<graph::CostOpInterface>(op);
    if (costed && costed.getCost().flops == 0 && op->getNumOperands() == 1)
      value = op->getOperand(0);
    else if (Value scaled = graph::scaledOperand(op))
      value = scaled;
    else
      return graph::pointwiseArgument(value);
  }
  return cast<BlockArgument>(value);
}

/// Returns the major factor of a dimension whose size is not 1, or -1.
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

/// Whether what has factor `chosen` has a factor of `index` too, as the scores
/// of a token among which its own choices are looked up.
static bool isOfRows(const graph::ShardingRule &rule,
                     const graph::FactorMapping &index, int64_t chosen) {
  auto has = [](const graph::FactorMapping &mapping, int64_t factor) {
    return llvm::any_of(mapping, [&](const auto &dim) {
      return llvm::is_contained(dim, factor);
    });
  };
  return llvm::any_of(
      llvm::concat<const graph::FactorMapping>(rule.operands, rule.results),
      [&](const graph::FactorMapping &mapping) {
        return has(mapping, chosen) &&
               llvm::any_of(index, [&](const auto &dim) {
                 return llvm::any_of(
                     dim, [&](int64_t factor) { return has(mapping, factor); });
               });
      });
}

/// Calls `join(index, factor)` for each factor along which rows choose their
/// part of an operand or result of `op`, which all have alike, by the values of
/// `index`.
static void forEachChosen(Operation *op,
                          function_ref<void(Value, int64_t)> join) {
  auto reader = dyn_cast<graph::IndexUseOpInterface>(op);
  auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(op);
  if (!reader || !ruled)
    return;
  graph::ShardingRule rule = ruled.getShardingRule();
  for (OpOperand &operand : op->getOpOperands())
    if (int64_t bound = reader.getIndexUse(operand.getOperandNumber()).bound)
      for (auto [i, factor] : llvm::enumerate(rule.factors))
        if (factor.size == bound && graph::dependsOnIndex(op, i) &&
            !isOfRows(rule, rule.operands[operand.getOperandNumber()], i))
          join(operand.get(), i);
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
      if (!llvm::is_contained(rule.unused, i))
        join(operand, rule.operands[i]);
    for (auto [i, result] : llvm::enumerate(op->getResults()))
      join(result, rule.results[i]);
  }
  // Rows that choose their weights by one index choose among the same groups,
  // in each layer and in vectors (biases) too.
  llvm::DenseMap<Value, unsigned> groups;
  for (graph::WorkClass work :
       {graph::WorkClass::Contraction, graph::WorkClass::Gather})
    for (auto [op, first] : factorBase) {
      auto costed = dyn_cast<graph::CostOpInterface>(op);
      if (!costed || costed.getCost().work != work)
        continue;
      forEachChosen(op, [&, first = first](Value index, int64_t factor) {
        if (work == graph::WorkClass::Contraction)
          groups.try_emplace(index, first + factor);
        if (auto it = groups.find(index); it != groups.end())
          joined.join(it->second, first + factor);
      });
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
  SeedOrder seedOrder(body);
  // Updates: what depends on a gradient or on the optimizer's state. They can
  // be resharded.
  llvm::DenseSet<Value> updated =
      graph::dependentValues(body, [&](Value value) {
        if (auto argument = dyn_cast<BlockArgument>(value))
          return graph::isOptimizerState(function, argument.getArgNumber());
        return isa<graph::GradientOp>(value.getDefiningOp());
      });
  for (Operation &op : body.without_terminator()) {
    auto first = factorBase.find(&op);
    if (isa<graph::GradientOp>(op) ||
        llvm::any_of(op.getOperands(),
                     [&](Value value) { return updated.contains(value); }))
      continue;
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
    if (seedOrder.of(&op) == 0)
      addRoles(&op);
  }
  llvm::for_each(classes,
                 [&](DimensionClass &known) { addSharedState(known); });
}

/// Joins optimizer state with its parameter.
void DimensionClasses::addSharedState(DimensionClass &known) {
  for (auto [argument, dim] : llvm::to_vector(known.shared))
    for (auto [other, at] : known.arguments)
      if (graph::getArgString(function, other.getArgNumber(), graph::kOfAttr) ==
              graph::getArgString(function, argument.getArgNumber(),
                                  graph::kNameAttr) &&
          graph::dimOfParameter(function, other, dim) == at)
        known.shared.push_back({other, at});
}

bool DimensionClasses::dependsOnInput(Value value) const {
  bool depends = false;
  graph::walkSources(value, [&](Value next, SmallVectorImpl<Value> &work) {
    if (auto argument = dyn_cast<BlockArgument>(next))
      depends |= graph::hasRole(function, argument.getArgNumber(), "input");
    else if (!depends)
      llvm::append_range(work, next.getDefiningOp()->getOperands());
  });
  return depends;
}

/// Adds the operands of `op` that are shared along `factor`: they have it alone
/// in a dimension, while results have another factor minor to it.
void DimensionClasses::addShared(Operation *op, const graph::ShardingRule &rule,
                                 int64_t factor, DimensionClass &known) {
  int64_t heads = 0;
  for (ArrayRef<int64_t> dim : rule.results.front())
    if (majorFactor(rule, dim) == factor) {
      heads = 1;
      for (int64_t part : dim)
        heads *= rule.factors[part].size;
    }
  if (heads <= rule.factors[factor].size)
    return;
  known.heads = std::gcd(known.heads, heads);
  SmallVector<std::pair<Value, unsigned>> work;
  for (auto [i, operand] : llvm::enumerate(op->getOperands()))
    for (auto [dim, factors] : llvm::enumerate(rule.operands[i]))
      if (ArrayRef(factors) == ArrayRef(factor))
        work.push_back({operand, static_cast<unsigned>(dim)});
  // Goes back from the shared operands to the arguments they are computed from.
  llvm::DenseSet<std::pair<Value, unsigned>> seen;
  while (!work.empty()) {
    auto [value, dim] = work.pop_back_val();
    if (!seen.insert({value, dim}).second)
      continue;
    if (auto argument = dyn_cast<BlockArgument>(value)) {
      if (!llvm::is_contained(known.shared, std::pair(argument, dim)))
        known.shared.push_back({argument, dim});
      continue;
    }
    auto made = dyn_cast<graph::ShardingRuleOpInterface>(value.getDefiningOp());
    if (!made)
      continue;
    graph::ShardingRule from = made.getShardingRule();
    int64_t major = majorFactor(
        from, from.results[cast<OpResult>(value).getResultNumber()][dim]);
    for (auto [i, operand] : llvm::enumerate(made->getOperands()))
      for (auto [at, factors] : llvm::enumerate(from.operands[i]))
        if (major >= 0 && majorFactor(from, factors) == major)
          work.push_back({operand, static_cast<unsigned>(at)});
  }
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
    if (work == graph::WorkClass::Attention && kept) {
      known.attended = true;
      addShared(op, rule, i, known);
    }
    bool product = work == graph::WorkClass::Contraction;
    bool lookup = work == graph::WorkClass::Gather && !kept;
    // Each index of the class has its own weights, or its own table.
    bool stacked =
        kept && llvm::all_of(rule.operands, [&](const auto &mapping) {
          return runsAlong(rule, mapping, i);
        });
    if (work == graph::WorkClass::Gather && stacked)
      if (BlockArgument table = viewedArgument(op->getOperand(0));
          table && graph::hasRole(function, table.getArgNumber(), "parameter"))
        known.stacked.push_back(op);
    if (!product && !lookup) {
      known.reduced |= factor.kind == graph::FactorKind::Reduction && !kept;
      continue;
    }
    // So has each index of a class by which rows choose their weights.
    bool chosen = product && !kept && graph::dependsOnIndex(op, i);
    for (auto [n, operand] : llvm::enumerate(op->getOperands())) {
      BlockArgument argument = viewedArgument(operand);
      if (!argument ||
          !graph::hasRole(function, argument.getArgNumber(), "parameter") ||
          !runsAlong(rule, rule.operands[n], i))
        continue;
      if (lookup) {
        // Without an input as index, the op is not a lookup (positions, say).
        if (llvm::any_of(op->getOperands(), [&](Value other) {
              return other != operand && dependsOnInput(other);
            }))
          known.lookups.push_back(op);
        continue;
      }
      if (chosen) {
        known.stacked.push_back(op);
        continue;
      }
      auto &role = kept ? known.producers : known.consumers;
      // A bias has the class of its product: each argument is added once.
      if (llvm::is_contained(role, op))
        continue;
      role.push_back(op);
      if (stacked)
        known.stacked.push_back(op);
    }
  }
}
