//===- Expert.cpp - Expert parallelism ------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The recipe "expert": Lepikhin et al., "GShard" (arXiv 2006.16668),
/// section 3. Samples and experts are sharded over one axis. Tokens are
/// exchanged between the shardings of samples and of experts by an all-to-all,
/// as are their gradients:
/// ```
/// [samples/n, experts, slots, features]      dispatched, sharded by samples
/// [samples, experts/n, slots, features]      computed, sharded by experts
/// ```
/// Stacked tables of embeddings are sharded alike: whole tables over the axis,
/// and the vectors that samples look up are exchanged (Naumov et al., "DLRM",
/// arXiv 1906.00091, section 3).
///
//===----------------------------------------------------------------------===//

#include "../Annotator.h"
#include "ExpertDimensions.h"
#include "ExpertTokens.h"
#include "cleave/Dialect/Graph/Analysis/LinearLayers.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

/// Whether `value` is a sum in f32 of a matmul of 16-bit values, or was rounded
/// from one.
static bool isRounded(Value value) {
  if (auto cast = value.getDefiningOp<graph::CastOp>())
    return graph::roundedType(cast.getInput()) == floatTypeOf(value);
  return graph::roundedType(value) != FloatType();
}

static int64_t sizeOf(Value value, unsigned dim) {
  return cast<RankedTensorType>(value.getType()).getDimSize(dim);
}

/// Annotates the values of `function` that are exchanged between the shardings
/// of samples and of experts. `kept` are the axes of experts over which no
/// samples are sharded. Gradients in f32 of activations in 16 bits are rounded
/// before they are sent, as eager autocast rounds each of their terms; not with
/// matmuls of 8 bits, whose scales would follow from other numbers than on one
/// device.
static void annotateCollectives(Annotator &annotator, func::FuncOp function,
                                const ExpertDimensions &experts, StringRef axis,
                                const AxisList &kept) {
  // Collected before annotations are inserted.
  SmallVector<OpResult> entering = experts.entering(function);
  bool rounds = annotator.getGrains() == 0 && !graph::usesFloat8(function);
  AxisList features = featureAxes(annotator, experts);
  for (OpOperand *operand : experts.leaving(function)) {
    Value value = operand->get();
    unsigned dim = *experts.expertDim(value);
    Sharding sharding = openSharding(value);
    sharding.dims[dim] = kept;
    sharding.open[dim] = false;
    FloatType narrow = rounds ? graph::roundedType(value) : FloatType();
    OpBuilder builder(operand->getOwner());
    if (rounds && isRounded(value) && !features.empty()) {
      if (scattersFeatures(annotator, experts, value)) {
        value = scatterFeatures(annotator, builder, experts, value, sharding);
        gatherFeatures(annotator, experts, *operand);
      } else {
        narrow = FloatType();
      }
    }
    SmallVector<Sharding, 2> shardings = {sharding};
    // Ranks that share a sequence gather places before these are wider.
    if (auto slots = experts.slotDim(value); slots && narrow) {
      sharding.open[*slots] = false;
      shardings.push_back(sharding);
    }
    annotator.send(builder, value, narrow, shardings, {operand});
  }
  for (OpResult result : entering) {
    if (rounds && !features.empty())
      keepTokensWhole(annotator, experts, result);
    unsigned dim = *experts.expertDim(result);
    Value value = result;
    while (value.hasOneUse() && isa<ConstrainOp>(*value.user_begin()))
      value = value.user_begin()->getResult(0);
    Value sent = sentValue(value);
    if (sent == value) {
      annotator.splitValue(result, dim, axis);
      continue;
    }
    // Ranks that share a sequence scatter their sum first.
    auto before = value.getDefiningOp<ConstrainOp>();
    Sharding sharding = openSharding(value), sent16 = sharding;
    if (before)
      sharding = before.getSharding().getSharding();
    sharding.open[dim] = false;
    OpBuilder builder(sent.getDefiningOp());
    if (before)
      before.setShardingAttr(annotator.attribute(sharding));
    else
      sent.getDefiningOp()->setOperand(
          0, annotator.constrain(builder, value, sharding));
    sent16.dims[dim] = sharding.dims[dim];
    sent16.dims[dim].push_back({annotator.getMesh().find(axis)->name});
    sent16.open[dim] = false;
    builder.setInsertionPointAfterValue(sent);
    ConstrainOp exchanged = annotator.constrain(builder, sent, sent16);
    sent.replaceAllUsesExcept(exchanged, exchanged);
  }
}

/// Shards the experts of all entries over `axis`. The axis is `folded` if no
/// samples are sharded over it.
static LogicalResult splitExperts(Annotator &annotator, StringRef axis,
                                  bool folded) {
  int64_t parts = annotator.getMesh().size(AxisRef{axis});
  AxisList samples = annotator.sampleAxes();
  bool found = false;
  for (func::FuncOp function : annotator.entries()) {
    const DimensionClasses &classes = annotator.classesOf(function);
    for (unsigned number : ExpertDimensions::find(classes)) {
      const DimensionClass &known = classes.all()[number];
      ExpertDimensions experts(classes, number);
      auto [first, firstDim] = experts.getMembers().front();
      AxisList kept;
      Sharding sharding = annotator.given(first);
      for (const AxisRef &other : sharding.dims[firstDim])
        if (other.name != axis && !annotator.getMesh().overlap(other, samples))
          kept.push_back(other);
      int64_t places = known.divisor / annotator.getMesh().size(kept);
      // Without folding, a number that is not divisible is padded later.
      bool padded = !folded && kept.empty();
      if (padded ? places < parts : places % parts != 0) {
        Operation *op = known.stacked.front();
        InFlightDiagnostic error = op->emitOpError("has ");
        error << places << (isa<graph::GatherOp>(op) ? " tables" : " experts")
              << (places == known.divisor ? "" : " in each shard") << ", "
              << (padded ? "fewer than" : "not divisible by") << " the "
              << parts << " positions of axis \"" << axis << "\"";
        if (std::string fits = partsThatFit(places); !fits.empty())
          error << ": use " << fits;
        return error;
      }
      found = true;
      for (auto [argument, dim] : experts.getMembers())
        annotator.split(argument, dim, axis);
      // Indices are exchanged first, so that gradients meet them at the tables.
      for (auto [argument, dim] : experts.getMembers())
        if (graph::hasRole(function, argument.getArgNumber(), "input") &&
            annotator.isSplit(argument, axis))
          annotator.splitValue(argument, dim, axis);
      if (folded) {
        gatherFolded(annotator, function, experts, classes, axis);
      } else {
        annotateCollectives(annotator, function, experts, axis, kept);
      }
    }
    FailureOr<bool> masked =
        splitMaskedExperts(annotator, function, axis, folded);
    if (failed(masked))
      return failure();
    found |= *masked;
  }
  if (!found)
    return annotator.getModule().emitError()
           << "recipe 'expert': the model has no experts, that is, no batched "
              "product in which each batch index has its own weights, no "
              "product of rows that have the weights of their group, and no "
              "batched lookup in which each has its own table";
  return success();
}

LogicalResult cleave::spmd::applyExpert(Annotator &annotator, StringRef axis) {
  if (failed(applyDp(annotator, axis)))
    return failure();
  return splitExperts(annotator, axis, /*folded=*/false);
}

LogicalResult cleave::spmd::applyFoldedExpert(Annotator &annotator,
                                              StringRef axis) {
  return splitExperts(annotator, axis, /*folded=*/true);
}

//===----------------------------------------------------------------------===//
// Partial sums
//===----------------------------------------------------------------------===//

/// Whether `use` only moves elements of the value, to any shape.
static bool moves(OpOperand &use) {
  return isa<graph::ReshapeOp, graph::TransposeOp, graph::GatherOp>(
             use.getOwner()) &&
         use.getOperandNumber() == 0;
}

static bool widens(Operation *op, Type element) {
  return isa<graph::CastOp>(op) && floatTypeOf(op->getResult(0)) == element;
}

/// Whether all that read `narrow` move its elements and read them in the type
/// `element` then.
static bool isOnlyWidened(Value narrow, Type element) {
  return llvm::all_of(narrow.getUses(), [&](OpOperand &use) {
    return widens(use.getOwner(), element) ||
           (moves(use) && isOnlyWidened(use.getOwner()->getResult(0), element));
  });
}

/// Lets readers of `narrow` read `wide`.
static void widen(Value narrow, Value wide) {
  Type element = floatTypeOf(wide);
  for (OpOperand &use : llvm::make_early_inc_range(narrow.getUses())) {
    Operation *op = use.getOwner();
    Value result = op->getResult(0);
    if (widens(op, element)) {
      result.replaceAllUsesWith(wide);
    } else {
      Operation *copy = OpBuilder(op).clone(*op);
      copy->setOperand(0, wide);
      copy->getResult(0).setType(
          cast<RankedTensorType>(result.getType()).clone(element));
      widen(result, copy->getResult(0));
    }
    op->erase();
  }
}

/// The weights of experts that `op` reads, rounded and gathered or not.
static BlockArgument weightOf(Operation &op, const ExpertDimensions &experts) {
  for (Value weight : op.getOperands()) {
    while (isa_and_nonnull<graph::CastOp, ConstrainOp>(weight.getDefiningOp()))
      weight = weight.getDefiningOp()->getOperand(0);
    if (isa<BlockArgument>(weight) && experts.expertDim(weight))
      return cast<BlockArgument>(weight);
  }
  return {};
}

void cleave::spmd::keepPartialSums(Annotator &annotator) {
  const Mesh &mesh = annotator.getMesh();
  AxisList samples = annotator.sampleAxes();
  for (func::FuncOp function : annotator.entries()) {
    if (annotator.getGrains() > 0 || graph::usesFloat8(function))
      continue;
    const DimensionClasses &classes = annotator.classesOf(function);
    SmallVector<graph::CastOp> roundings;
    for (unsigned number : ExpertDimensions::find(classes)) {
      ExpertDimensions experts(classes, number);
      for (Operation &op : function.getBody().front().without_terminator()) {
        BlockArgument weight = weightOf(op, experts);
        if (!weight || op.getNumResults() != 1 ||
            !graph::roundedType(op.getResult(0)))
          continue;
        AxisList partial;
        const Sharding sharding = annotator.given(weight);
        for (const AxisList &axes : sharding.dims)
          for (const AxisRef &axis : axes)
            if (mesh.size(axis) > 1 && !mesh.overlap(axis, samples))
              partial.push_back(axis);
        if (partial.empty())
          continue;
        // Where it is annotated, it may be scattered.
        auto isReduced = [&](ConstrainOp constrain) {
          return llvm::any_of(partial, [&](const AxisRef &axis) {
            return constrain.getSharding().getSharding().splits(mesh, axis);
          });
        };
        SmallVector<Value> sums = {op.getResult(0)};
        while (!sums.empty())
          for (Operation *user : sums.pop_back_val().getUsers())
            if (auto constrain = dyn_cast<ConstrainOp>(user)) {
              if (!isReduced(constrain))
                sums.push_back(constrain);
            } else if (auto rounding = dyn_cast<graph::CastOp>(user);
                       rounding &&
                       isOnlyWidened(rounding, floatTypeOf(op.getResult(0)))) {
              roundings.push_back(rounding);
            }
      }
    }
    for (graph::CastOp rounding : roundings) {
      widen(rounding, rounding.getInput());
      rounding.erase();
    }
  }
}
