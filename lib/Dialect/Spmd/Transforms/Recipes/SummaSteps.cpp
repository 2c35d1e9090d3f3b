//===- SummaSteps.cpp - Products that run in steps ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Marks products with weights, and products that compute gradients of weights,
/// with the shardings of their operands and result (`spmd.steps`), from which
/// --spmd-decompose-contraction finds the steps.
///
//===----------------------------------------------------------------------===//

#include "Summa.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/Transforms/Propagation/SeedOrder.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

/// Returns the parameter whose gradient is computed from `value`, and in `dims`
/// the dimension of the parameter for each dimension of `value`; null if there
/// is none.
BlockArgument Summa::gradientOf(func::FuncOp function, Value value,
                                SmallVectorImpl<unsigned> &dims) {
  llvm::DenseSet<Value> seen;
  SmallVector<std::pair<Value, SmallVector<unsigned>>> work;
  int64_t rank = cast<RankedTensorType>(value.getType()).getRank();
  work.push_back({value, llvm::to_vector(llvm::seq<unsigned>(0, rank))});
  while (!work.empty()) {
    auto [next, own] = work.pop_back_val();
    if (!seen.insert(next).second)
      continue;
    for (OpOperand &use : next.getUses()) {
      Operation *user = use.getOwner();
      if (auto gradient = dyn_cast<graph::GradientOp>(user)) {
        for (BlockArgument argument : function.getArguments())
          if (graph::getArgString(function, argument.getArgNumber(),
                                  graph::kNameAttr) ==
              gradient.getParameter()) {
            dims.assign(own.begin(), own.end());
            return argument;
          }
        continue;
      }
      auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(user);
      if (!ruled || user->getNumResults() != 1 || isProduct(user))
        continue;
      graph::ShardingRule rule = ruled.getShardingRule();
      if (llvm::is_contained(rule.unused, use.getOperandNumber()))
        continue;
      SmallVector<unsigned> there;
      bool whole = true;
      for (unsigned dim : own) {
        // A dimension of size 1 has no factor, and is not sharded.
        unsigned at = ~0u;
        if (dim != ~0u)
          if (auto known = dimOf(
                  rule, rule.results[0],
                  factorOf(rule, rule.operands[use.getOperandNumber()][dim])))
            at = *known;
        whole &= at != ~0u || dim == ~0u ||
                 cast<RankedTensorType>(next.getType()).getDimSize(dim) == 1;
        there.push_back(at);
      }
      // A reduction over a dimension is not the gradient.
      if (!whole)
        continue;
      work.push_back({user->getResult(0), std::move(there)});
    }
  }
  return {};
}

/// Returns the sharding of a parameter, the gradient of one, or an intermediate
/// value. The dimensions that this recipe shards are closed.
Sharding Summa::layout(func::FuncOp function, Value value) {
  const DimensionClasses &classes = annotator.classesOf(function);
  auto type = cast<RankedTensorType>(value.getType());
  Sharding sharding = Sharding::replicated(type.getRank(), /*open=*/true);
  auto splitAs = [&](int64_t dim, BlockArgument argument, unsigned at) {
    for (StringRef axis : {row, col})
      if (llvm::is_contained(annotator.given(argument).dims[at],
                             AxisRef{axis})) {
        sharding.dims[dim].push_back({axis});
        sharding.open[dim] = false;
      }
  };
  SmallVector<unsigned> dims;
  if (BlockArgument argument = gradientOf(function, value, dims)) {
    for (int64_t dim = 0; dim < type.getRank(); ++dim)
      if (dims[dim] != ~0u)
        splitAs(dim, argument, dims[dim]);
    return sharding;
  }
  bool isParameter = false;
  for (int64_t dim = 0; dim < type.getRank(); ++dim)
    if (auto place = argumentOf(value, dim)) {
      auto argument = cast<BlockArgument>(place->first);
      if (!graph::hasRole(function, argument.getArgNumber(), "parameter"))
        break;
      splitAs(dim, argument, place->second);
      isParameter = true;
    }
  if (isParameter)
    return sharding;
  for (int64_t dim = type.getRank(); dim-- > 0;)
    if (isFeature(classes, value, dim)) {
      sharding.dims[dim].push_back({col});
      sharding.open[dim] = false;
      break;
    }
  return sharding;
}

/// Returns the indexed dimension of the table that `op` looks up in (operand 0)
/// or, with `adds`, adds to (its result).
static std::optional<unsigned> indexedDim(Operation *op, bool &adds) {
  adds = isa<graph::ScatterAddOp>(op);
  if (op->getNumOperands() != 2)
    return std::nullopt;
  if (auto lookup = dyn_cast<graph::GatherOp>(op))
    return lookup.getDim();
  if (auto scatter = dyn_cast<graph::ScatterAddOp>(op))
    return scatter.getDim();
  return std::nullopt;
}

/// Whether a factor of a product has different axes in two of its operands and
/// result. For a factor of the result, the product must also sum over a factor
/// with the axes of the result, or these axes must be `samples`.
static bool hasTwoShardings(Operation *op, ArrayRef<Sharding> shardings,
                            const AxisRef &samples) {
  graph::ShardingRule rule = ruleOf(op);
  const graph::FactorMapping *mappings[] = {
      &rule.operands[0], &rule.operands[1], &rule.results[0]};
  // The axes of each factor in each tensor that has it.
  std::vector<SmallVector<std::optional<AxisList>, 3>> factors;
  for (size_t factor = 0; factor < rule.factors.size(); ++factor) {
    auto &known = factors.emplace_back();
    for (unsigned i = 0; i < 3; ++i) {
      auto dim = dimOf(rule, *mappings[i], factor);
      known.push_back(dim ? std::optional(shardings[i].dims[*dim])
                          : std::nullopt);
    }
  }
  auto isSummed = [&](const AxisList &axes) {
    return axes == AxisList{samples} ||
           llvm::any_of(factors, [&](const auto &known) {
             return known[0] == axes && known[1] == axes && !known[2];
           });
  };
  auto differ = [](const std::optional<AxisList> &a,
                   const std::optional<AxisList> &b) {
    return a && b && !a->empty() && !b->empty() && *a != *b;
  };
  return llvm::any_of(factors, [&](const auto &known) {
    if (!known[2])
      return differ(known[0], known[1]);
    return known[0].has_value() != known[1].has_value() &&
           differ(known[0] ? known[0] : known[1], known[2]) &&
           isSummed(*known[2]);
  });
}

/// Marks the ops that run in steps: products with a factor of two shardings,
/// and ops on tables whose indexed dimension is sharded. Products of forward
/// that cannot go in steps, as those of rows with the weights of their experts,
/// make what the next product reads, in its parts.
void Summa::mark(func::FuncOp function) {
  SmallVector<std::pair<Operation *, ArrayAttr>> marks;
  SmallVector<std::pair<Value, unsigned>> made;
  SeedOrder seedOrder(function.getBody().front());
  for (Operation &op : function.getBody().front().without_terminator()) {
    bool adds = false;
    auto table = indexedDim(&op, adds);
    if (!table && isProduct(&op) && op.getNumOperands() > 2 &&
        seedOrder.of(&op) == 0 && weightOf(function, &op)) {
      Value result = op.getResult(0);
      for (auto [dim, axes] : llvm::enumerate(layout(function, result).dims))
        if (llvm::is_contained(axes, AxisRef{col}))
          made.push_back({result, dim});
      continue;
    }
    if (!table && (!isProduct(&op) || op.getNumOperands() != 2))
      continue;
    Sharding shardings[] = {layout(function, op.getOperand(0)),
                            layout(function, op.getOperand(1)),
                            layout(function, op.getResult(0))};
    if (table ? !llvm::is_contained(shardings[adds ? 2 : 0].dims[*table],
                                    AxisRef{row})
              : !hasTwoShardings(&op, shardings, AxisRef{row}))
      continue;
    SmallVector<Attribute> attributes;
    for (const Sharding &sharding : shardings)
      attributes.push_back(annotator.attribute(sharding));
    marks.push_back({&op, ArrayAttr::get(op.getContext(), attributes)});
  }
  for (auto [op, attribute] : marks)
    op->setAttr(kStepsAttr, attribute);
  for (auto [value, dim] : made)
    annotator.splitValue(value, dim, col);
}
