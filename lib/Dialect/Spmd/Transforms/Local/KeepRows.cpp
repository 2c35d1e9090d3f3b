//===- KeepRows.cpp - Rows of groups that stay with their group ----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Where groups are sharded, a rank computes the rows of its own groups, the
/// rows of others are 0, and a sum over ranks completes them. A reader
/// of the rows of the same groups alone (the second layer of an expert, and its
/// gradients) needs no such sum: the own rows are complete.
///
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/IR/OfDevice.h"
#include "cleave/Dialect/Spmd/IR/Resharding/Collective.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace cleave::spmd {
#define GEN_PASS_DEF_KEEPROWS
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"
} // namespace cleave::spmd

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {

/// Rows of groups: the groups, and which of them this rank has.
struct Held {
  Value groups;
  ShardingAttr origin;
  Type global;

  bool operator==(const Held &other) const {
    return groups == other.groups && origin == other.origin &&
           global == other.global;
  }
};

} // namespace

static std::optional<Held> heldBy(Value groups, Value origin) {
  if (origin)
    if (auto offset = origin.getDefiningOp<ShardOffsetOp>())
      return Held{groups, offset.getSharding(), offset.getGlobal()};
  return std::nullopt;
}

/// The rows that `use` reads; it takes others as if they were not there.
static std::optional<Held> rowsReadBy(OpOperand &use) {
  Operation *op = use.getOwner();
  unsigned index = use.getOperandNumber();
  if (auto linear = dyn_cast<graph::GroupedLinearOp>(op); linear && index == 0)
    return heldBy(linear.getGroups(), linear.getOrigin());
  if (auto grad = dyn_cast<graph::GroupedLinearWeightGradOp>(op);
      grad && index < 2)
    return heldBy(grad.getGroups(), grad.getOrigin());
  if (auto scatter = dyn_cast<graph::ScatterAddOp>(op);
      scatter && index == 0 && scatter.getDim() == 0)
    return heldBy(scatter.getIndices(), scatter.getOrigin());
  return std::nullopt;
}

/// Whether each row of all results is made of the same row of operand `index`;
/// rows have `leading` dimensions.
static bool isByRow(Operation *op, unsigned index, int64_t leading) {
  auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(op);
  if (!ruled || !isPure(op) || op->getNumResults() != 1 ||
      !writtenSharding(op->getResult(0)))
    return false;
  graph::ShardingRule rule = ruled.getShardingRule();
  auto shapeOf = [](Value value) {
    return cast<RankedTensorType>(value.getType()).getShape();
  };
  const graph::FactorMapping &from = rule.operands[index];
  ArrayRef<int64_t> shape = shapeOf(op->getOperand(index));
  if (static_cast<int64_t>(shape.size()) < leading)
    return false;
  const graph::FactorMapping &to = rule.results.front();
  ArrayRef<int64_t> made = shapeOf(op->getResult(0));
  if (static_cast<int64_t>(made.size()) < leading ||
      made.take_front(leading) != shape.take_front(leading))
    return false;
  for (int64_t dim = 0; dim < leading; ++dim)
    if (from[dim] != to[dim] || llvm::any_of(from[dim], [&](int64_t factor) {
          return rule.factors[factor].kind != graph::FactorKind::Parallel;
        }))
      return false;
  return true;
}

/// The rows that a rank has of `value`, those of other ranks being 0: what an
/// op on rows of groups computes, or ops on single rows that are linear in it.
static std::optional<Held> rowsOf(Value value) {
  Operation *op = value.getDefiningOp();
  if (auto linear = dyn_cast_or_null<graph::GroupedLinearOp>(op))
    return heldBy(linear.getGroups(), linear.getOrigin());
  // A bias of each group.
  if (auto gather = dyn_cast_or_null<graph::GatherOp>(op);
      gather && gather.getDim() == 0)
    return heldBy(gather.getIndices(), gather.getOrigin());
  if (!isa_and_nonnull<graph::GraphDialect>(op ? op->getDialect() : nullptr))
    return std::nullopt;
  std::optional<Held> found;
  for (OpOperand &operand : op->getOpOperands()) {
    std::optional<Sharding> place = writtenSharding(operand.get());
    if (place && place->partial.empty())
      continue;
    std::optional<Held> rows = rowsOf(operand.get());
    if (!rows || (found && !(*rows == *found)) ||
        !isByRow(op, operand.getOperandNumber(),
                 cast<RankedTensorType>(rows->groups.getType()).getRank()))
      return std::nullopt;
    found = rows;
  }
  return found;
}

/// Whether all that reads `value`, directly or by ops on single rows, reads
/// rows of `held` alone.
static bool isReadByRows(Value value, const Held &held,
                         llvm::DenseMap<Value, bool> &known) {
  auto [it, isNew] = known.try_emplace(value, true);
  if (!isNew)
    return it->second;
  int64_t leading = cast<RankedTensorType>(held.groups.getType()).getRank();
  bool all = llvm::all_of(value.getUses(), [&](OpOperand &use) {
    if (std::optional<Held> read = rowsReadBy(use))
      return *read == held;
    Operation *op = use.getOwner();
    return isByRow(op, use.getOperandNumber(), leading) &&
           isReadByRows(op->getResult(0), held, known);
  });
  known[value] = all;
  return all;
}

/// Says of `value` that other ranks have other rows of it.
static void markPartial(Value value, const AxisList &axes) {
  Operation *op = value.getDefiningOp();
  ShardingAttr written = writtenShardingAttr(value);
  Sharding sharding = written.getSharding();
  for (const AxisRef &axis : axes)
    if (llvm::none_of(sharding.partial,
                      [&](const PartialAxis &own) { return own.axis == axis; }))
      sharding.partial.push_back({axis, ReductionKind::Sum});
  annotate(op, ShardingAttr::get(written.getMesh(), sharding),
           writtenGlobalType(value));
}

namespace {
struct KeepRowsPass : cleave::spmd::impl::KeepRowsBase<KeepRowsPass> {
  void runOnOperation() override {
    MeshOp meshOp = findMesh(getOperation());
    if (!meshOp)
      return;
    // A sum may be read by one that is removed.
    while (removeSums(meshOp.getMesh()))
      ;
  }

private:
  bool removeSums(const Mesh &mesh) {
    bool changed = false;
    SmallVector<AllReduceOp> sums;
    getOperation().walk([&](AllReduceOp op) { sums.push_back(op); });
    for (AllReduceOp sum : sums) {
      if (sum.getKind() != ReductionKind::Sum)
        continue;
      std::optional<Held> held = rowsOf(sum.getInput());
      if (!held)
        continue;
      AxisList over = mesh.normalize(readCollective(sum)->axes);
      llvm::DenseMap<Value, bool> known;
      if (over != mesh.normalize(held->origin.getSharding().dims.front()) ||
          !isReadByRows(sum->getResult(0), *held, known))
        continue;
      known.erase(sum->getResult(0));
      for (Value value : llvm::make_first_range(known))
        markPartial(value, over);
      known[sum->getResult(0)] = true;
      for (Value value : llvm::make_first_range(known))
        for (Operation *user : value.getUsers())
          user->setAttr(kOfDeviceAttr, UnitAttr::get(user->getContext()));
      sum->getResult(0).replaceAllUsesWith(sum.getInput());
      sum->erase();
      changed = true;
    }
    return changed;
  }
};
} // namespace
