//===- WorkerGradients.cpp - The gradients of each worker -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "WorkerGradients.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

Sharding cleave::spmd::givenSharding(func::FuncOp step,
                                     BlockArgument argument) {
  auto given = step.getArgAttrOfType<ShardingAttr>(argument.getArgNumber(),
                                                   kShardingAttr);
  return given ? given.getSharding()
               : Sharding::replicated(tensorTypeOf(argument).getRank());
}

/// The major factor of a dimension, or -1 for one without factors.
static int64_t majorFactor(ArrayRef<int64_t> factors) {
  return factors.empty() ? -1 : factors.front();
}

WorkerGradients::WorkerGradients(func::FuncOp step, SampleOrder order)
    : step(step), order(order) {
  locate();
}

//===----------------------------------------------------------------------===//
// Where samples are
//===----------------------------------------------------------------------===//

void WorkerGradients::locate() {
  for (BlockArgument argument : step.getArguments())
    if (auto dim = step.getArgAttrOfType<IntegerAttr>(argument.getArgNumber(),
                                                      graph::kBatchDimAttr))
      samples[argument] = dim.getInt();
  for (Operation &op : step.getBody().front().without_terminator())
    locateResults(&op);
}

/// Finds the samples of results: they run along the factor that is major in the
/// dimension of an operand's samples, if that holds all of a worker's.
void WorkerGradients::locateResults(Operation *op) {
  auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(op);
  if (!ruled)
    return;
  graph::ShardingRule rule = ruled.getShardingRule();
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    auto known = samples.find(operand);
    if (known == samples.end() || llvm::is_contained(rule.unused, i))
      continue;
    int64_t factor =
        known->second < 0 ? -1 : majorFactor(rule.operands[i][known->second]);
    bool whole = factor >= 0 &&
                 rule.factors[factor].size % (order.outer * order.workers) == 0;
    for (auto [result, mapping] : llvm::zip(op->getResults(), rule.results)) {
      for (auto [dim, factors] : llvm::enumerate(mapping)) {
        if (!llvm::is_contained(factors, factor))
          continue;
        bool isMajor = whole && majorFactor(factors) == factor;
        auto [it, isNew] = samples.try_emplace(result, isMajor ? dim : -1);
        if (!isNew && it->second != (isMajor ? int64_t(dim) : -1))
          it->second = -1;
      }
      if (!whole)
        samples[result] = -1;
    }
  }
}

//===----------------------------------------------------------------------===//
// What is a sum over samples
//===----------------------------------------------------------------------===//

/// The dimension whose major factor is one of `factors`.
static std::optional<int64_t> dimAlong(const graph::FactorMapping &mapping,
                                       ArrayRef<int64_t> factors) {
  for (auto [dim, list] : llvm::enumerate(mapping))
    if (!list.empty() && llvm::is_contained(factors, list.front()))
      return dim;
  return std::nullopt;
}

WorkerGradients::Operands
WorkerGradients::read(Operation *op, const graph::ShardingRule &rule) {
  Operands operands;
  SmallVector<int64_t, 2> factors;
  for (auto [i, operand] : llvm::enumerate(op->getOperands()))
    if (auto known = samples.find(operand); known != samples.end() &&
                                            known->second >= 0 &&
                                            !llvm::is_contained(rule.unused, i))
      factors.push_back(majorFactor(rule.operands[i][known->second]));
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    auto known = samples.find(operand);
    std::optional<int64_t> dim;
    if (known != samples.end())
      dim = known->second;
    else if (!llvm::is_contained(rule.unused, i))
      // What a value was repeated to has samples too.
      dim = dimAlong(rule.operands[i], factors);
    operands.samples.push_back(dim);
    operands.sums.push_back(!dim && isSum(operand));
    operands.anySamples |= dim.has_value();
    operands.anySums |= operands.sums.back();
  }
  return operands;
}

/// Whether result `result` sums over the samples of operands.
bool WorkerGradients::sumsSamples(Operation *op,
                                  const graph::ShardingRule &rule,
                                  unsigned result, const Operands &operands) {
  for (auto [i, dim] : llvm::enumerate(operands.samples)) {
    if (!dim || llvm::is_contained(rule.unused, i))
      continue;
    if (*dim < 0)
      return false;
    int64_t factor = majorFactor(rule.operands[i][*dim]);
    if (factor < 0 ||
        rule.factors[factor].kind != graph::FactorKind::Reduction ||
        rule.factors[factor].partial != graph::ReductionKind::Sum)
      return false;
  }
  return !samples.contains(op->getResult(result));
}

/// Whether `op` draws random numbers, which it does by the positions of samples
/// in the whole batch.
bool WorkerGradients::draws(Operation *op) {
  return llvm::any_of(op->getOperands(), [&](Value operand) {
    auto argument = dyn_cast<BlockArgument>(operand);
    return argument && graph::hasRole(step, argument.getArgNumber(), "rng");
  });
}

bool WorkerGradients::isSum(Value value) {
  if (auto known = sums.find(value); known != sums.end())
    return known->second;
  auto ruled = value.getDefiningOp<graph::ShardingRuleOpInterface>();
  if (!ruled || samples.contains(value) || draws(ruled))
    return sums[value] = false;
  graph::ShardingRule rule = ruled.getShardingRule();
  Operands operands = read(ruled, rule);
  bool result = false;
  if (operands.anySamples) {
    result = sumsSamples(ruled, rule, cast<OpResult>(value).getResultNumber(),
                         operands);
  } else if (operands.anySums) {
    // Linear in what is a sum: operands that are none are divided.
    result = llvm::any_of(rule.linear, [&](ArrayRef<unsigned> set) {
      for (auto [i, sum] : llvm::enumerate(operands.sums))
        if (sum && !llvm::is_contained(set, i))
          return false;
      return true;
    });
  }
  return sums[value] = result;
}

//===----------------------------------------------------------------------===//
// The parts
//===----------------------------------------------------------------------===//

FailureOr<Value> WorkerGradients::partsOf(Value value) {
  if (Value known = parts.lookup(value))
    return known;
  // What it is computed from comes first; a deep chain is no deep recursion.
  SmallVector<Operation *> work{value.getDefiningOp()};
  while (!work.empty()) {
    Operation *op = work.back();
    bool isReady = true;
    for (Value operand : op->getOperands())
      if (!samples.contains(operand) && isSum(operand) &&
          !parts.contains(operand)) {
        work.push_back(operand.getDefiningOp());
        isReady = false;
      }
    if (!isReady)
      continue;
    work.pop_back();
    if (!parts.contains(op->getResult(0)) && failed(part(op)))
      return failure();
  }
  return parts.lookup(value);
}

/// `value` with the dimension `dim` of samples as `[outer, workers, rest]`.
Value WorkerGradients::splitSamples(OpBuilder &builder, Value value,
                                    int64_t dim) {
  RankedTensorType type = tensorTypeOf(value);
  SmallVector<int64_t> shape(type.getShape());
  int64_t rest = shape[dim] / (order.outer * order.workers);
  shape[dim] = order.outer;
  shape.insert(shape.begin() + dim + 1, {order.workers, rest});
  return graph::Formula{builder, value.getLoc()}.reshape(value, shape);
}

/// Computes `op` for each worker. Results with samples replace those of `op`.
LogicalResult WorkerGradients::part(Operation *op) {
  if (!isa<graph::CostOpInterface>(op))
    return op->emitOpError("computes a step of a sum over samples for a "
                           "gradient, which is not computed for each worker: "
                           "choose a recipe that does not compute products in "
                           "steps");
  graph::ShardingRule rule =
      cast<graph::ShardingRuleOpInterface>(op).getShardingRule();
  Operands known = read(op, rule);
  OpBuilder builder(op);
  graph::Formula f{builder, op->getLoc()};
  SmallVector<Value> operands;
  SmallVector<int64_t> workerDims, resultDims;
  ArrayRef<unsigned> linear;
  for (ArrayRef<unsigned> set : rule.linear)
    if (llvm::all_of(llvm::seq<unsigned>(0, op->getNumOperands()),
                     [&](unsigned i) {
                       return !known.sums[i] || llvm::is_contained(set, i);
                     }))
      linear = set;
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    if (known.samples[i]) {
      operands.push_back(splitSamples(builder, operand, *known.samples[i]));
      workerDims.push_back(*known.samples[i] + 1);
    } else if (known.sums[i] && !known.anySamples) {
      operands.push_back(parts.lookup(operand));
      workerDims.push_back(0);
    } else if (known.anySums && !known.anySamples &&
               llvm::is_contained(linear, i)) {
      // A term that does not depend on samples: each worker adds its share.
      operands.push_back(
          f.mul(operand,
                f.scalar(operand, 1.0 / static_cast<double>(order.workers))));
      workerDims.push_back(-1);
    } else {
      operands.push_back(operand);
      workerDims.push_back(-1);
    }
  }
  SmallVector<Type> types;
  for (Value result : op->getResults()) {
    RankedTensorType type = tensorTypeOf(result);
    SmallVector<int64_t> shape(type.getShape());
    auto at = samples.find(result);
    if (at == samples.end()) {
      shape.insert(shape.begin(), order.workers);
      resultDims.push_back(0);
    } else {
      if (at->second < 0)
        return op->emitOpError("sums over samples for a gradient, and has a "
                               "result whose samples are not the major part "
                               "of a dimension: it cannot be computed for "
                               "each worker");
      int64_t dim = at->second;
      int64_t rest = shape[dim] / (order.outer * order.workers);
      shape[dim] = order.outer;
      shape.insert(shape.begin() + dim + 1, {order.workers, rest});
      resultDims.push_back(dim + 1);
    }
    types.push_back(RankedTensorType::get(shape, type.getElementType()));
  }
  auto made = graph::PerWorkerOp::create(
      builder, op->getLoc(), types, operands, op->getName().getStringRef(),
      workerDims, resultDims, op->getAttrDictionary());
  for (auto [own, result] : llvm::zip(made.getResults(), op->getResults())) {
    auto at = samples.find(result);
    if (at == samples.end()) {
      parts[result] = own;
      continue;
    }
    Value whole = f.reshape(own, tensorTypeOf(result).getShape());
    result.replaceAllUsesWith(whole);
    samples[whole] = at->second;
  }
  return success();
}
