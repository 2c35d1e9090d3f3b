//===- NarrowSums.cpp - Sums over devices in 16 bits ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/Analysis/LinearLayers.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/TensorType.h"
#include "cleave/Dialect/Spmd/IR/OfDevice.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace cleave::spmd {
#define GEN_PASS_DEF_NARROWSUMS
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"
} // namespace cleave::spmd

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

/// Whether `operand` has the last dimension of `value`. Products that are added
/// up along features, such as gradients of the weights of choices, are numbers
/// of another kind.
static bool hasFeaturesOf(Value operand, Value value) {
  ArrayRef<int64_t> from = graph::tensorTypeOf(operand).getShape(),
                    to = graph::tensorTypeOf(value).getShape();
  return !from.empty() && !to.empty() && from.back() == to.back();
}

/// The type of 16 bits of what `value`, the same on each device or a shard of
/// it, moves and scales; null where that is wider.
static FloatType narrowType(Value value, int depth = 8) {
  Operation *op = value.getDefiningOp();
  if (!op || depth == 0)
    return {};
  if (auto cast = dyn_cast<graph::CastOp>(op)) {
    auto from = dyn_cast<FloatType>(
        graph::tensorTypeOf(cast.getInput()).getElementType());
    return from && from.getWidth() == 16 ? from : FloatType();
  }
  if (isa<graph::ReshapeOp, graph::BroadcastOp>(op))
    return narrowType(op->getOperand(0), depth - 1);
  if (isa<graph::MulOp>(op))
    for (Value operand : op->getOperands())
      if (hasFeaturesOf(operand, value))
        return narrowType(operand, depth - 1);
  return {};
}

/// The type of 16 bits in which all terms of a sum over devices are: what
/// `value` moves, scales and adds up of values that are partial on each device
/// too; null where one of these is wider, or is made partial by another op
/// than one that moves terms.
static FloatType narrowTerms(Value value, int depth = 12) {
  Operation *op = value.getDefiningOp();
  std::optional<Sharding> sharding = writtenSharding(value);
  if (!op || depth == 0 || !sharding || sharding->partial.empty())
    return {};
  if (auto cast = dyn_cast<graph::CastOp>(op)) {
    auto from = dyn_cast<FloatType>(
        graph::tensorTypeOf(cast.getInput()).getElementType());
    if (from && from.getWidth() == 16)
      return from;
  }
  // Tokens that devices add to the places of experts, and those that they take
  // from places of their own.
  if (isa<graph::ScatterAddOp, graph::GatherOp>(op))
    if (std::optional<Sharding> own = writtenSharding(op->getOperand(0));
        own && own->partial.empty())
      return narrowType(op->getOperand(0));
  bool moves = isa<graph::ReshapeOp, graph::BroadcastOp, graph::GatherOp,
                   graph::ScatterAddOp, graph::CastOp, graph::AddOp,
                   graph::SubOp, graph::MulOp>(op);
  if (auto reduce = dyn_cast<graph::ReduceOp>(op))
    moves = reduce.getKind() == graph::ReductionKind::Sum &&
            !llvm::is_contained(
                reduce.getDims(),
                graph::tensorTypeOf(reduce.getInput()).getRank() - 1);
  if (!moves)
    return {};
  FloatType found;
  for (Value operand : op->getOperands()) {
    std::optional<Sharding> own = writtenSharding(operand);
    if (!own || own->partial != sharding->partial) {
      // Factors of a partial value, and places, are the same on each device.
      bool scales =
          isa<graph::MulOp>(op) ||
          !isa<FloatType>(graph::tensorTypeOf(operand).getElementType());
      if (scales && own && own->partial.empty())
        continue;
      return {};
    }
    FloatType type = hasFeaturesOf(operand, value)
                         ? narrowTerms(operand, depth - 1)
                         : FloatType();
    if (!type || (found && found != type))
      return {};
    found = type;
  }
  return found;
}

/// Whether all that reads `sum` rounds it to `narrow`.
static bool isRounded(Value sum, FloatType narrow) {
  return llvm::all_of(sum.getUsers(), [&](Operation *user) {
    auto cast = dyn_cast<graph::CastOp>(user);
    return cast &&
           graph::tensorTypeOf(cast.getResult()).getElementType() == narrow;
  });
}

static Value castAs(OpBuilder &builder, Value value, Type element) {
  auto cast =
      graph::CastOp::create(builder, value.getLoc(),
                            graph::tensorTypeOf(value).clone(element), value);
  if (ShardingAttr sharding = writtenShardingAttr(value))
    annotate(cast, sharding, writtenGlobalType(value).clone(element));
  return cast;
}

namespace {

struct NarrowSumsPass : cleave::spmd::impl::NarrowSumsBase<NarrowSumsPass> {
  using NarrowSumsBase::NarrowSumsBase;

  void runOnOperation() override {
    SmallVector<std::pair<Operation *, FloatType>> sums;
    getOperation().walk([&](Operation *op) {
      bool isSum = false;
      if (auto reduce = dyn_cast<AllReduceOp>(op))
        isSum = reduce.getKind() == ReductionKind::Sum;
      else if (auto scatter = dyn_cast<ReduceScatterOp>(op))
        isSum = scatter.getKind() == ReductionKind::Sum;
      if (isSum &&
          graph::tensorTypeOf(op->getOperand(0)).getElementType().isF32())
        if (FloatType type = narrowTerms(op->getOperand(0)))
          sums.push_back({op, type});
        else if (FloatType type = graph::roundedType(op->getOperand(0));
                 type && isRounded(op->getResult(0), type))
          sums.push_back({op, type});
    });
    OpBuilder builder(&getContext());
    for (auto [op, narrow] : sums) {
      Value wide = op->getResult(0);
      builder.setInsertionPoint(op);
      Value term = castAs(builder, op->getOperand(0), narrow);
      // A term of each device is rounded before they are added up.
      term.getDefiningOp()->setAttr(kOfDeviceAttr, builder.getUnitAttr());
      op->setOperand(0, term);
      wide.setType(graph::tensorTypeOf(wide).clone(narrow));
      if (ShardingAttr sharding = writtenShardingAttr(wide))
        annotate(op, sharding, writtenGlobalType(wide).clone(narrow));
      builder.setInsertionPointAfter(op);
      Value widened = castAs(builder, wide, builder.getF32Type());
      wide.replaceAllUsesExcept(widened, widened.getDefiningOp());
    }
  }
};

} // namespace
