//===- ExpertDimensions.cpp - The dimensions of experts -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ExpertDimensions.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

/// Whether the class numbers tables. An op that cannot shard them, such as a
/// join with other vectors or a product that sums over all of them, reads what
/// they are exchanged into.
static bool isOfTables(const DimensionClass &known) {
  return llvm::all_of(known.stacked, llvm::IsaPred<graph::GatherOp>);
}

SmallVector<unsigned> ExpertDimensions::find(const DimensionClasses &classes) {
  SmallVector<unsigned> found;
  for (auto [number, known] : llvm::enumerate(classes.all())) {
    bool exchanged = known.consumers.empty() && !known.wholeIn;
    if (!known.samples && !known.stacked.empty() &&
        (exchanged || isOfTables(known)) &&
        llvm::all_of(known.producers, [&](Operation *producer) {
          return llvm::is_contained(known.stacked, producer);
        }))
      found.push_back(number);
  }
  return found;
}

static int64_t sizeOf(Value value, unsigned dim) {
  return cast<RankedTensorType>(value.getType()).getDimSize(dim);
}

/// Returns `value` before the annotations that recipes inserted.
static Value withoutAnnotations(Value value) {
  while (auto constrain = value.getDefiningOp<ConstrainOp>())
    value = constrain.getInput();
  return value;
}

ExpertDimensions::ExpertDimensions(const DimensionClasses &classes,
                                   unsigned number)
    : classes(classes), number(number) {
  const DimensionClass &known = classes.all()[number];
  auto [argument, dim] = known.arguments.front();
  count = sizeOf(argument, dim);
  if (!isOfTables(known)) {
    members = known.arguments;
    return;
  }
  Value tables = known.stacked.front()->getOperand(0);
  for (int64_t dim = 0;
       dim < cast<RankedTensorType>(tables.getType()).getRank(); ++dim)
    if (classes.number(tables, dim) == number)
      count = sizeOf(tables, dim);
  // A weight may sum over the elements of all tables' vectors.
  for (auto entry : known.arguments)
    if (sizeOf(entry.first, entry.second) == count)
      members.push_back(entry);
}

std::optional<unsigned> ExpertDimensions::expertDim(Value value) const {
  value = withoutAnnotations(value);
  for (int64_t dim = 0; dim < cast<RankedTensorType>(value.getType()).getRank();
       ++dim)
    if (classes.number(value, dim) == number && sizeOf(value, dim) == count)
      return dim;
  return std::nullopt;
}

std::optional<unsigned> ExpertDimensions::slotDim(Value value) const {
  value = withoutAnnotations(value);
  for (int64_t dim = 0; dim < cast<RankedTensorType>(value.getType()).getRank();
       ++dim) {
    const DimensionClass &known = classes.of(value, dim);
    if (sizeOf(value, dim) > 1 && !known.samples && known.arguments.empty() &&
        classes.number(value, dim) != number)
      return dim;
  }
  return std::nullopt;
}

std::optional<unsigned> ExpertDimensions::featureDim(Value value) const {
  value = withoutAnnotations(value);
  for (int64_t dim = 0; dim < cast<RankedTensorType>(value.getType()).getRank();
       ++dim) {
    const DimensionClass &known = classes.of(value, dim);
    if (!known.samples && !known.arguments.empty() &&
        classes.number(value, dim) != number)
      return dim;
  }
  return std::nullopt;
}

std::optional<unsigned> ExpertDimensions::featureDim(Value tokens,
                                                     Value places) const {
  std::optional<unsigned> features = featureDim(places);
  if (!features)
    return std::nullopt;
  unsigned own = classes.number(withoutAnnotations(places), *features);
  tokens = withoutAnnotations(tokens);
  for (int64_t dim = cast<RankedTensorType>(tokens.getType()).getRank() - 1;
       dim >= 0; --dim)
    if (classes.number(tokens, dim) == own &&
        sizeOf(tokens, dim) == sizeOf(places, *features))
      return dim;
  return std::nullopt;
}

/// Whether `value` has dimensions of experts and of samples.
bool ExpertDimensions::hasSlots(Value value) const {
  if (!expertDim(value))
    return false;
  value = withoutAnnotations(value);
  for (int64_t dim = 0; dim < cast<RankedTensorType>(value.getType()).getRank();
       ++dim)
    if (sizeOf(value, dim) > 1 && classes.of(value, dim).samples)
      return true;
  return false;
}

/// Whether `op` sums over a dimension of its operands.
static bool sums(Operation *op) {
  auto costed = dyn_cast<graph::CostOpInterface>(op);
  auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(op);
  if (!costed || !ruled || costed.getCost().work == graph::WorkClass::Gather)
    return false;
  graph::ShardingRule rule = ruled.getShardingRule();
  return llvm::any_of(rule.factors, [](const graph::Factor &factor) {
    return factor.kind == graph::FactorKind::Reduction;
  });
}

SmallVector<OpResult> ExpertDimensions::entering(func::FuncOp function) const {
  SmallVector<OpResult> found;
  for (Operation &op : function.getBody().front().without_terminator()) {
    if (isa<ConstrainOp>(op) ||
        llvm::any_of(op.getOperands(),
                     [&](Value operand) { return expertDim(operand); }))
      continue;
    for (OpResult result : op.getResults())
      if (hasSlots(result))
        found.push_back(result);
  }
  return found;
}

SmallVector<OpOperand *>
ExpertDimensions::leaving(func::FuncOp function) const {
  SmallVector<OpOperand *> found;
  for (Operation &op : function.getBody().front().without_terminator()) {
    if (isa<ConstrainOp>(op) || sums(&op) ||
        llvm::any_of(op.getResults(),
                     [&](Value result) { return expertDim(result); }))
      continue;
    for (OpOperand &operand : op.getOpOperands())
      if (hasSlots(operand.get()))
        found.push_back(&operand);
  }
  return found;
}
