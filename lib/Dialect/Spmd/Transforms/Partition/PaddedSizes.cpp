//===- PaddedSizes.cpp - Sizes of padded dimensions -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "PaddedSizes.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "llvm/Support/MathExtras.h"
#include <map>
#include <numeric>

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

/// Returns the factors of a dimension that are not 1.
static SmallVector<int64_t, 2> properFactors(const graph::ShardingRule &rule,
                                             ArrayRef<int64_t> dim) {
  SmallVector<int64_t, 2> result;
  for (int64_t factor : dim)
    if (rule.factors[factor].size != 1)
      result.push_back(factor);
  return result;
}

/// Returns for each factor whether it can be padded: it can be sharded, and is
/// the major factor of each of its dimensions.
static SmallVector<bool> freeFactors(const graph::ShardingRule &rule) {
  SmallVector<bool> result;
  for (const graph::Factor &factor : rule.factors)
    result.push_back(factor.kind != graph::FactorKind::Replicated &&
                     factor.padding != graph::PaddingNeed::Refused &&
                     factor.size > 1);
  auto visit = [&](const graph::FactorMapping &mapping) {
    for (ArrayRef<int64_t> dim : mapping)
      for (auto [i, inner] : llvm::enumerate(properFactors(rule, dim)))
        if (i > 0)
          result[inner] = false;
  };
  llvm::for_each(rule.operands, visit);
  llvm::for_each(rule.results, visit);
  return result;
}

PaddedSizes::PaddedSizes(ModuleOp module, const Mesh &mesh) {
  SmallVector<func::FuncOp> functions;
  for (auto function : module.getOps<func::FuncOp>())
    if (!function.isExternal() && function.getBody().hasOneBlock())
      functions.push_back(function);
  llvm::for_each(functions, [&](func::FuncOp f) { addFunction(f); });
  joined.grow(sizes.size());
  joinArguments(module);
  for (auto [op, first] : factorBase)
    joinOp(op);
  joinSamples(functions, mesh);
  joined.compress();
  classes.resize(joined.getNumClasses());
  for (auto [node, size] : llvm::enumerate(sizes)) {
    Class &known = classes[joined[node]];
    known.unit = std::gcd(known.unit, size);
  }

  // The axes of annotations.
  for (func::FuncOp function : functions) {
    for (BlockArgument argument : function.getArguments())
      if (auto given = function.getArgAttrOfType<ShardingAttr>(
              argument.getArgNumber(), kShardingAttr))
        for (auto [dim, axes] : llvm::enumerate(given.getSharding().dims))
          addSplit(base.lookup(argument) + dim, axes);
    for (auto op : function.getBody().front().getOps<ConstrainOp>())
      for (auto [dim, axes] :
           llvm::enumerate(op.getSharding().getSharding().dims))
        if (const auto &factors = ruleOf(op).operands[0][dim]; !factors.empty())
          addSplit(factorBase.lookup(op) + factors.front(), axes);
  }
  findUneven(mesh);
}

/// Joins dimensions of samples across annotations: a micro-batch cannot be
/// sliced and padded again.
void PaddedSizes::joinSamples(ArrayRef<func::FuncOp> functions,
                              const Mesh &mesh) {
  llvm::DenseSet<unsigned> samples;
  SmallVector<std::pair<unsigned, unsigned>> pairs;
  for (func::FuncOp function : functions) {
    for (BlockArgument argument : function.getArguments())
      if (auto given = function.getArgAttrOfType<ShardingAttr>(
              argument.getArgNumber(), kShardingAttr))
        for (auto [dim, axes] : llvm::enumerate(given.getSharding().dims))
          if (mesh.size(axes) != mesh.size(mesh.deviceAxes(axes)))
            samples.insert(joined.findLeader(base.lookup(argument) + dim));
    for (auto op : function.getBody().front().getOps<ConstrainOp>())
      for (int64_t dim = 0; dim < op.getType().getRank(); ++dim)
        pairs.push_back({base.lookup(op.getInput()) + dim,
                         base.lookup(op.getResult()) + dim});
  }
  for (bool changed = true; std::exchange(changed, false);)
    for (auto [operand, result] : pairs) {
      unsigned a = joined.findLeader(operand), b = joined.findLeader(result);
      if (a == b || !(samples.contains(a) || samples.contains(b)))
        continue;
      samples.insert(joined.join(a, b));
      changed = true;
    }
}

void PaddedSizes::addFunction(func::FuncOp function) {
  auto addValue = [&](Value value) {
    base[value] = sizes.size();
    if (auto type = dyn_cast<RankedTensorType>(value.getType()))
      llvm::append_range(sizes, type.getShape());
  };
  Block &body = function.getBody().front();
  llvm::for_each(body.getArguments(), addValue);
  for (Operation &op : body.without_terminator()) {
    llvm::for_each(op.getResults(), addValue);
    auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(&op);
    if (!ruled)
      continue;
    graph::ShardingRule &rule = rules[&op] = ruled.getShardingRule();
    free[&op] = freeFactors(rule);
    factorBase[&op] = sizes.size();
    for (const graph::Factor &factor : rule.factors)
      sizes.push_back(factor.size);
  }
}

/// Joins the arguments of one name of all entry functions.
void PaddedSizes::joinArguments(ModuleOp module) {
  std::map<std::string, BlockArgument> named;
  for (auto function : module.getOps<func::FuncOp>()) {
    if (function.isExternal())
      continue;
    for (BlockArgument argument : function.getArguments()) {
      StringRef name = graph::getArgString(function, argument.getArgNumber(),
                                           graph::kNameAttr);
      auto type = dyn_cast<RankedTensorType>(argument.getType());
      if (name.empty() || !type)
        continue;
      auto [first, isNew] = named.try_emplace(name.str(), argument);
      if (isNew || first->second.getType() != type)
        continue;
      for (int64_t dim = 0; dim < type.getRank(); ++dim)
        joined.join(base.lookup(first->second) + dim,
                    base.lookup(argument) + dim);
    }
  }
}

void PaddedSizes::joinOp(Operation *op) {
  const graph::ShardingRule &rule = ruleOf(op);
  ArrayRef<bool> canGrow = free[op];
  unsigned first = factorBase.lookup(op);
  auto constrain = dyn_cast<ConstrainOp>(op);
  Sharding given;
  if (constrain)
    given = constrain.getSharding().getSharding();
  auto join = [&](Value value, const graph::FactorMapping &mapping,
                  bool isResult) {
    for (auto [dim, all] : llvm::enumerate(mapping)) {
      SmallVector<int64_t, 2> factors = properFactors(rule, all);
      if (factors.empty() || !canGrow[factors.front()])
        continue;
      if (constrain && !given.open[dim] && given.dims[dim].empty() == isResult)
        continue;
      joined.join(base.lookup(value) + dim, first + factors.front());
    }
  };
  for (auto [i, operand] : llvm::enumerate(op->getOperands()))
    if (!llvm::is_contained(rule.unused, i))
      join(operand, rule.operands[i], /*isResult=*/false);
  for (auto [i, result] : llvm::enumerate(op->getResults()))
    join(result, rule.results[i], /*isResult=*/true);
}

void PaddedSizes::addSplit(unsigned node, ArrayRef<AxisRef> axes) {
  for (const AxisRef &axis : axes)
    classes[joined[node]].axes.insert(axis.name.str());
  if (!axes.empty())
    splits.push_back({node, AxisList(axes)});
}

/// Finds unevenly sharded classes. The micro-batches of a class apply to all
/// annotations in it, in addition to their axes of devices.
void PaddedSizes::findUneven(const Mesh &mesh) {
  for (Class &known : classes)
    for (const std::string &axis : known.axes)
      known.parts *= mesh.size(AxisRef{axis});
  for (const Split &split : splits) {
    Class &known = classes[joined[split.node]];
    int64_t parts = mesh.size(mesh.deviceAxes(split.axes));
    for (const std::string &axis : known.axes)
      if (mesh.isSequential(AxisRef{axis}))
        parts *= mesh.size(AxisRef{axis});
    known.uneven |= sizes[split.node] % parts != 0;
    padded |= known.uneven;
  }
}

int64_t PaddedSizes::sizeOf(unsigned node) const {
  const Class &known = classes[joined[node]];
  if (!known.uneven || known.unit == 0)
    return sizes[node];
  int64_t size = llvm::alignTo(known.unit, known.parts);
  // A shard must not have the size of the tensor without padding, as it would
  // with fewer elements than shards.
  while (size % known.unit == 0 && known.parts % (size / known.unit) == 0)
    size += known.parts;
  return sizes[node] / known.unit * size;
}

SmallVector<int64_t> PaddedSizes::shapeOf(Value value) const {
  SmallVector<int64_t> shape;
  if (auto type = dyn_cast<RankedTensorType>(value.getType()))
    for (int64_t dim = 0; dim < type.getRank(); ++dim)
      shape.push_back(of(value, dim));
  return shape;
}

int64_t PaddedSizes::ofFactor(Operation *op, int64_t factor) const {
  if (!free.find(op)->second[factor])
    return ruleOf(op).factors[factor].size;
  return sizeOf(factorBase.lookup(op) + factor);
}
