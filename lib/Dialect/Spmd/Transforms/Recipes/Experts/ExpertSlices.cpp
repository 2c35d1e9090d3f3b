//===- ExpertSlices.cpp - Places of experts in slices of features ---------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ExpertTokens.h"
#include "cleave/Dialect/Graph/Analysis/LinearLayers.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

bool cleave::spmd::scattersFeatures(const Annotator &annotator,
                                    const ExpertDimensions &experts,
                                    Value value) {
  AxisList features = featureAxes(annotator, experts);
  std::optional<unsigned> dim = experts.featureDim(value);
  return !features.empty() && dim &&
         cast<RankedTensorType>(value.getType()).getDimSize(*dim) %
                 annotator.getMesh().size(features) ==
             0;
}

Value cleave::spmd::scatterFeatures(Annotator &annotator, OpBuilder &builder,
                                    const ExpertDimensions &experts,
                                    Value value, Sharding &sharding) {
  unsigned dim = *experts.featureDim(value);
  Sharding scattered = openSharding(value);
  for (Sharding *known : {&scattered, &sharding}) {
    known->dims[dim] = featureAxes(annotator, experts);
    known->open[dim] = false;
  }
  return annotator.constrain(builder, value, scattered);
}

void cleave::spmd::gatherFeatures(Annotator &annotator,
                                  const ExpertDimensions &experts,
                                  OpOperand &operand) {
  AxisList features = featureAxes(annotator, experts);
  auto constrain = [&](Value value, bool whole) {
    std::optional<unsigned> dim = experts.featureDim(value, operand.get());
    if (!dim)
      return;
    Sharding sharding = openSharding(value);
    sharding.open[*dim] = false;
    if (!whole)
      sharding.dims[*dim] = features;
    OpBuilder builder(value.getContext());
    builder.setInsertionPointAfterValue(value);
    ConstrainOp constrained = annotator.constrain(builder, value, sharding);
    value.replaceAllUsesExcept(constrained, constrained);
  };
  // Choices of a token are looked up, scaled and added up before. Gradients of
  // their weights are sums of products of slices.
  auto combines = [](OpOperand &use) {
    return scales(use) || isa<graph::ReduceOp>(use.getOwner()) ||
           (isa<graph::GatherOp>(use.getOwner()) &&
            use.getOperandNumber() == 0);
  };
  auto isSummed = [](Operation *op) {
    return isElementwise(op) && !op->use_empty() &&
           llvm::all_of(op->getUsers(), llvm::IsaPred<graph::ReduceOp>);
  };
  // One choice of a token, whose weight is of a shard of the sequence, is
  // scaled there.
  bool scaledAfter = llvm::any_of(features, [&](const AxisRef &axis) {
    return shardsStreams(annotator, axis);
  });
  SmallVector<Value> ends, sums, looked;
  SmallVector<Value> values(operand.getOwner()->getResults());
  llvm::SmallDenseSet<Value> seen;
  while (!values.empty()) {
    Value value = values.pop_back_val();
    if (!seen.insert(value).second)
      continue;
    Operation *op = value.getDefiningOp();
    bool added = isa<graph::ReduceOp>(op), end = added;
    if (isa<graph::GatherOp>(op))
      looked.push_back(value);
    if (!end)
      for (OpOperand &use : value.getUses()) {
        end |= !combines(use) && !isSummed(use.getOwner());
        if (!end)
          values.push_back(use.getOwner()->getResult(0));
      }
    if (!end)
      continue;
    bool hasFeatures = experts.featureDim(value, operand.get()).has_value();
    scaledAfter &= !added || !hasFeatures;
    if (hasFeatures)
      ends.push_back(value);
    else if (added)
      sums.push_back(op->getOperand(0));
  }
  if (scaledAfter && !looked.empty()) {
    ends = looked;
    sums.clear();
  }
  for (Value product : sums)
    constrain(product, /*whole=*/false);
  for (Value value : ends) {
    // First what is computed last.
    constrain(value, /*whole=*/true);
    constrain(value, /*whole=*/false);
  }
}

/// The annotation of the slots of experts `result` that shards them over ranks
/// of a sequence; null where there is none.
static ConstrainOp shardedSlots(const ExpertDimensions &experts,
                                OpResult result) {
  Value filled = result;
  while (filled.hasOneUse() && isa<ConstrainOp>(*filled.user_begin()))
    filled = filled.user_begin()->getResult(0);
  auto sharded = filled.getDefiningOp<ConstrainOp>();
  std::optional<unsigned> slots = experts.slotDim(result);
  return sharded && slots &&
                 !sharded.getSharding().getSharding().dims[*slots].empty()
             ? sharded
             : ConstrainOp();
}

/// Whether the slots of experts `result` are filled in slices of features by
/// c ranks that share a sequence. Of P places, sums of 2 P (c - 1) / c elements
/// in forward and backward become one of t of them; then slices of P / c are
/// gathered over t ranks three times, as only slices are saved. That is fewer
/// where 2 (c - 1) > 3.
static bool fillsSlices(const Annotator &annotator,
                        const ExpertDimensions &experts, OpResult result) {
  ConstrainOp sharded = shardedSlots(experts, result);
  return sharded && scattersFeatures(annotator, experts, result) &&
         annotator.getMesh().size(sharded.getSharding()
                                      .getSharding()
                                      .dims[*experts.slotDim(result)]) > 2;
}

/// Fills the slots of experts `result` in slices of features, whose sums over
/// ranks of a sequence are scattered before the slices are gathered, rounded
/// where all that reads them rounds them.
static void fillSlices(Annotator &annotator, const ExpertDimensions &experts,
                       OpResult result) {
  ConstrainOp sharded = shardedSlots(experts, result);
  unsigned dim = *experts.featureDim(result);
  Sharding slices = sharded.getSharding().getSharding(), whole = slices;
  slices.dims[dim] = featureAxes(annotator, experts);
  slices.open[dim] = whole.open[dim] = false;
  sharded.setShardingAttr(annotator.attribute(slices));
  Value sent = sentValue(sharded);
  OpBuilder builder(sent.getContext());
  builder.setInsertionPointAfterValue(sent);
  ConstrainOp gathered = annotator.constrain(builder, sent, whole);
  sent.replaceAllUsesExcept(gathered, gathered);
}

void cleave::spmd::keepTokensWhole(Annotator &annotator,
                                   const ExpertDimensions &experts,
                                   OpResult result) {
  Operation *op = result.getOwner();
  while (op && op->getNumOperands() == 1)
    op = op->getOperand(0).getDefiningOp();
  if (!op || op->getNumOperands() == 0)
    return;
  OpOperand *tokens = &op->getOpOperand(0);
  // Slices of tokens are repeated and scaled.
  auto isMade = [&](Value value) {
    return value.hasOneUse() && experts.featureDim(value, result) &&
           (isElementwise(value.getDefiningOp()) ||
            value.getDefiningOp<ConstrainOp>());
  };
  while (isMade(tokens->get())) {
    OpOperand *source = nullptr;
    for (OpOperand &operand : tokens->get().getDefiningOp()->getOpOperands())
      if (experts.featureDim(operand.get(), result))
        source = source ? nullptr : &operand;
    if (!source)
      break;
    tokens = source;
  }
  std::optional<unsigned> dim = experts.featureDim(tokens->get(), result);
  if (!dim)
    return;
  Sharding whole = openSharding(tokens->get());
  whole.open[*dim] = false;
  // Gradients of the weights of choices read them, too.
  Value value = tokens->get();
  OpBuilder builder(value.getContext());
  builder.setInsertionPointAfterValue(value);
  ConstrainOp constrain = annotator.constrain(builder, value, whole);
  value.replaceAllUsesExcept(constrain, constrain);
}

void cleave::spmd::roundPlaces(Annotator &annotator) {
  for (func::FuncOp function : annotator.entries()) {
    if (annotator.getGrains() > 0 || annotator.getSequenceAxes().empty() ||
        graph::usesFloat8(function))
      continue;
    const DimensionClasses &classes = annotator.classesOf(function);
    for (unsigned number : ExpertDimensions::find(classes)) {
      ExpertDimensions experts(classes, number);
      // Tokens of experts over a sequence are added up before they are rounded.
      if (isOverSequence(annotator, experts) &&
          !featureAxes(annotator, experts).empty())
        continue;
      for (OpResult result : experts.entering(function))
        if (scattersFeatures(annotator, experts, result)) {
          if (fillsSlices(annotator, experts, result))
            fillSlices(annotator, experts, result);
          keepTokensWhole(annotator, experts, result);
        }
      for (OpOperand *operand : experts.leaving(function)) {
        Value value = operand->get();
        std::optional<unsigned> slots = experts.slotDim(value);
        FloatType narrow = graph::roundedType(value);
        bool scatters = scattersFeatures(annotator, experts, value);
        // Partial sums that cannot be scattered are added up by tokens first.
        bool partial = !scatters && !featureAxes(annotator, experts).empty();
        if (!slots || partial || (!narrow && !scatters))
          continue;
        Sharding sharding = openSharding(value);
        OpBuilder builder(operand->getOwner());
        if (scatters) {
          value = scatterFeatures(annotator, builder, experts, value, sharding);
          gatherFeatures(annotator, experts, *operand);
        }
        sharding.open[*slots] = false;
        annotator.send(builder, value, narrow, {sharding}, {operand});
      }
    }
  }
}

void cleave::spmd::roundFilledPlaces(ModuleOp module) {
  SmallVector<graph::CastOp> roundings;
  module.walk([&](graph::ScatterAddOp filled) {
    auto rounding = filled->hasOneUse()
                        ? dyn_cast<graph::CastOp>(*filled->user_begin())
                        : graph::CastOp();
    if (rounding && floatTypeOf(rounding) &&
        floatTypeOf(rounding).getWidth() == 16 && !rounding->use_empty() &&
        llvm::all_of(rounding->getUsers(), llvm::IsaPred<graph::ReshapeOp>))
      roundings.push_back(rounding);
  });
  for (graph::CastOp rounding : roundings) {
    for (Operation *user : llvm::make_early_inc_range(rounding->getUsers())) {
      Value narrow = user->getResult(0);
      OpBuilder builder(user);
      Operation *reshape = builder.clone(*user);
      reshape->setOperand(0, rounding.getInput());
      reshape->getResult(0).setType(
          cast<RankedTensorType>(narrow.getType())
              .clone(floatTypeOf(rounding.getInput())));
      Operation *cast = builder.clone(*rounding);
      cast->setOperand(0, reshape->getResult(0));
      cast->getResult(0).setType(narrow.getType());
      narrow.replaceAllUsesWith(cast->getResult(0));
      user->erase();
    }
    rounding->erase();
  }
}
