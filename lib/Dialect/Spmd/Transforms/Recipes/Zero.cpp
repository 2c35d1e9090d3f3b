//===- Zero.cpp - ZeRO: sharded state, gradients and parameters -----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The recipes "zero1", "zero2" and "zero3": Rajbhandari et al., "ZeRO" (arXiv
/// 1910.02054), section 5, as shardings at rest. Stage 1 shards the state of
/// the optimizer, stage 2 also gradients, stage 3 also parameters, which are
/// gathered where they are read.
///
//===----------------------------------------------------------------------===//

#include "Annotator.h"
#include "Sequence.h"
#include "cleave/Dialect/Graph/Analysis/StepRoles.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/ShardingRules/ScaledOperand.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {
/// A parameter and the dimension that is sharded over `axis` at rest.
struct Resting {
  BlockArgument parameter;
  unsigned dim;
};

class Zero {
public:
  Zero(Annotator &annotator, StringRef axis)
      : annotator(annotator), axis(axis), train(annotator.training()) {}

  LogicalResult run(int stage) {
    if (!train)
      return annotator.getModule().emitError()
             << "recipe 'zero" << stage << "': no entry updates parameters";
    if (failed(checkSums(stage)))
      return failure();
    findParameters();
    for (const Resting &resting : parameters)
      for (BlockArgument argument : train.getArguments())
        if (graph::hasRole(train, argument.getArgNumber(), "state") &&
            graph::getArgString(train, argument.getArgNumber(),
                                graph::kOfAttr) == nameOf(resting))
          if (auto dim = graph::dimOfParameter(train, argument, resting.dim))
            annotator.split(argument, *dim, axis);
    constrainGradients(/*reduced=*/stage == 1);
    // A parameter of which a step reads only a copy in fewer bits rests sharded
    // in any case: the copy is what is gathered.
    restParameters([&](BlockArgument parameter) {
      return stage == 3 || isReadInCopies(parameter);
    });
    if (stage != 3)
      separateUpdates();
    return success();
  }

private:
  /// With grains, the bits must not depend on the number of shards: an update
  /// must not sum over what is sharded. The norm of a clip has an order of its
  /// own.
  LogicalResult checkSums(int stage) {
    if (annotator.getGrains() == 0)
      return success();
    const graph::StepRoles &roles = rolesOf(train);
    for (Operation &op : train.getBody().front()) {
      auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(op);
      if (!ruled || !roles.isUpdate(&op) ||
          llvm::all_of(op.getUsers(), llvm::IsaPred<graph::GlobalNormOp>))
        continue;
      auto sums = [](const graph::Factor &factor) {
        return factor.kind == graph::FactorKind::Reduction &&
               factor.partial == graph::ReductionKind::Sum && factor.size > 1;
      };
      if (llvm::any_of(ruled.getShardingRule().factors, sums))
        return mlir::emitError(op.getLoc())
               << "recipe 'zero" << stage
               << "': the update of this parameter is a sum over its elements, "
                  "whose bits depend on the number of shards; leave the recipe "
                  "or --deterministic out, or use another optimizer";
    }
    return success();
  }

  StringRef nameOf(const Resting &resting) {
    return graph::getArgString(train, resting.parameter.getArgNumber(),
                               graph::kNameAttr);
  }

  /// Whether dimension `dim` of a parameter has a row for each position of a
  /// sequence that a recipe shards.
  bool isSequence(BlockArgument parameter, unsigned dim) {
    if (annotator.getStreams().empty() && annotator.getSequenceAxes().empty())
      return false;
    const DimensionClasses &classes = annotator.classesOf(train);
    if (!sequences)
      sequences =
          sequenceClasses(classes, train, ComposedAttention(classes, train));
    return sequences->contains(classes.number(parameter, dim));
  }

  /// Whether the shards of a vector that a recipe has sharded are not divisible
  /// by the positions of the axis: those of all axes together would not lie
  /// within them, and sending their elements costs more than holding them.
  bool isBroken(RankedTensorType type, const Sharding &given,
                unsigned dim) const {
    int64_t before = annotator.getMesh().size(given.dims[dim]);
    return type.getRank() == 1 && before > 1 &&
           type.getDimSize(dim) %
                   (before * annotator.getMesh().size(AxisRef{axis})) !=
               0;
  }

  /// The dimension of `parameter` that is sharded at rest; nothing if none can
  /// be. Where a recipe shards the sequence, the rows of a table of positions
  /// are sharded with it: a dimension beside them is preferred, so that the
  /// gradient is not permuted to another order of the axes.
  std::optional<unsigned> restingDim(BlockArgument parameter,
                                     const Sharding &given) {
    auto type = cast<RankedTensorType>(parameter.getType());
    auto best = annotator.bestDim(type, given, axis);
    if (best && isBroken(type, given, *best))
      return std::nullopt;
    if (!best || !isSequence(parameter, *best))
      return best;
    const Mesh &mesh = annotator.getMesh();
    for (unsigned dim = 0; dim < given.dims.size(); ++dim)
      if (!isSequence(parameter, dim) &&
          type.getDimSize(dim) %
                  (mesh.size(given.dims[dim]) * mesh.size(AxisRef{axis})) ==
              0)
        return dim;
    return best;
  }

  /// Collects the parameters that can be sharded. A parameter without a
  /// dimension of at least one element per position stays replicated, with a
  /// remark, and so does a vector whose shards are not divisible.
  void findParameters() {
    for (BlockArgument argument : train.getArguments()) {
      if (!graph::hasRole(train, argument.getArgNumber(), "parameter"))
        continue;
      Sharding given = annotator.given(argument);
      if (given.splits(annotator.getMesh(), {axis}))
        continue;
      auto type = cast<RankedTensorType>(argument.getType());
      if (auto dim = restingDim(argument, given)) {
        parameters.push_back({argument, *dim});
        continue;
      }
      InFlightDiagnostic remark = mlir::emitRemark(argument.getLoc());
      remark << "parameter \""
             << graph::getArgString(train, argument.getArgNumber(),
                                    graph::kNameAttr)
             << "\" is not sharded";
      if (annotator.bestDim(type, given, axis))
        remark << " over axis \"" << axis << "\", by whose "
               << annotator.getMesh().size(AxisRef{axis})
               << " positions its shards are not divisible";
      else
        remark << ": no dimension of " << type
               << " has an element for each position of axis \"" << axis
               << "\"";
    }
  }

  /// Annotates gradients with the sharding of their state. With `reduced`, a
  /// gradient is reduced once, after all micro-batches; else in each
  /// micro-batch, where its rows stay sharded with the sequence.
  void constrainGradients(bool reduced) {
    for (auto gradient : llvm::make_early_inc_range(
             train.getBody().front().getOps<graph::GradientOp>())) {
      const Resting *resting =
          llvm::find_if(parameters, [&](const Resting &other) {
            return nameOf(other) == gradient.getParameter();
          });
      if (resting == parameters.end())
        continue;
      Sharding sharding = annotator.given(resting->parameter);
      sharding.dims[resting->dim].push_back({axisName()});
      // Before the op: it marks a finished gradient.
      OpBuilder builder(gradient);
      Value value = gradient.getInput();
      Sharding early = sharding;
      for (unsigned dim = 0; dim < early.dims.size(); ++dim)
        early.open[dim] =
            dim != resting->dim && isSequence(resting->parameter, dim);
      bool inTurn = !reduced && llvm::is_contained(early.open, true);
      if (inTurn)
        value = annotator.constrain(builder, value, early);
      gradient.getInputMutable().assign(
          annotator.constrain(builder, value, sharding, reduced || inTurn));
    }
  }

  /// Annotates the uses of unevenly sharded parameters in updates, so that only
  /// updates are padded, and not all uses of the parameter.
  void separateUpdates() {
    const Mesh &mesh = annotator.getMesh();
    for (const Resting &resting : parameters) {
      BlockArgument parameter = resting.parameter;
      if (isReadInCopies(parameter))
        continue;
      Sharding sharding = annotator.given(parameter);
      sharding.dims[resting.dim].push_back({axisName()});
      auto type = cast<RankedTensorType>(parameter.getType());
      if (type.getDimSize(resting.dim) %
              mesh.size(sharding.dims[resting.dim]) ==
          0)
        continue;
      for (OpOperand &use : llvm::make_early_inc_range(parameter.getUses()))
        if (rolesOf(train).isUpdate(use.getOwner())) {
          OpBuilder builder(use.getOwner());
          use.set(annotator.constrain(builder, parameter, sharding));
        }
    }
  }

  /// Whether the op copies its operand in fewer bits.
  static bool isCopy(Operation *op) {
    auto cast = dyn_cast<graph::CastOp>(op);
    return cast && cast.getInput().getType().getElementTypeBitWidth() >
                       cast.getType().getElementTypeBitWidth();
  }

  /// The copy in fewer bits that `user` is or begins, by scaling its operand
  /// first; otherwise null.
  static Value copyFrom(Operation *user) {
    while (!isCopy(user)) {
      if (!graph::scaledOperand(user) || !user->getResult(0).hasOneUse())
        return {};
      user = *user->user_begin();
    }
    return user->getResult(0);
  }

  /// Whether `user` begins the computation of a maximum or minimum of all
  /// elements of its operand: shards give it as the whole does.
  static bool isMeasure(Operation *user) {
    while (user->hasTrait<OpTrait::PointwiseOp>() &&
           user->getNumOperands() == 1 && user->getResult(0).hasOneUse())
      user = *user->user_begin();
    auto reduce = dyn_cast<graph::ReduceOp>(user);
    return reduce && reduce.getKind() != graph::ReductionKind::Sum &&
           reduce.getType().getRank() == 0;
  }

  /// Whether every reader but the update is such a copy.
  bool isReadInCopies(BlockArgument parameter) {
    const graph::StepRoles &roles = rolesOf(train);
    bool copied = false;
    for (Operation *user : parameter.getUsers()) {
      if (roles.isUpdate(user))
        continue;
      if (isMeasure(user))
        continue;
      if (!copyFrom(user))
        return false;
      copied = true;
    }
    return copied;
  }

  /// Shards the parameters that are `chosen` at rest. All readers but the
  /// update get the gathered parameter, or its gathered copy; the update works
  /// on shards.
  void restParameters(llvm::function_ref<bool(BlockArgument)> chosen) {
    for (const Resting &resting : parameters) {
      if (!chosen(resting.parameter))
        continue;
      Sharding compute = annotator.given(resting.parameter);
      StringRef name = nameOf(resting);
      for (func::FuncOp function : annotator.entries())
        for (BlockArgument argument : function.getArguments())
          if (graph::getArgString(function, argument.getArgNumber(),
                                  graph::kNameAttr) == name)
            gather(function, argument, compute);
      annotator.split(resting.parameter, resting.dim, axis);
    }
  }

  void gather(func::FuncOp function, BlockArgument argument,
              const Sharding &compute) {
    const graph::StepRoles &roles = rolesOf(function);
    auto reads = [&](OpOperand &use) {
      return !roles.isUpdate(use.getOwner()) &&
             !use.getOwner()->hasTrait<OpTrait::IsTerminator>();
    };
    if (llvm::none_of(argument.getUses(), reads))
      return;
    OpBuilder builder = OpBuilder::atBlockBegin(&function.getBody().front());
    for (Operation *user : llvm::to_vector(argument.getUsers()))
      if (Value copy = copyFrom(user)) {
        builder.setInsertionPointAfterValue(copy);
        ConstrainOp whole = annotator.constrain(builder, copy, compute);
        copy.replaceAllUsesExcept(whole, whole);
      }
    auto readsItself = [&](OpOperand &use) {
      return reads(use) && !copyFrom(use.getOwner()) &&
             !isMeasure(use.getOwner());
    };
    if (llvm::none_of(argument.getUses(), readsItself))
      return;
    builder.setInsertionPointToStart(&function.getBody().front());
    ConstrainOp whole = annotator.constrain(builder, argument, compute);
    argument.replaceUsesWithIf(whole, [&](OpOperand &use) {
      return use.getOwner() != whole && readsItself(use);
    });
  }

  /// Returns the roles that ops have before any is constrained.
  const graph::StepRoles &rolesOf(func::FuncOp function) {
    return roles.try_emplace(function, function.getBody().front())
        .first->second;
  }

  StringRef axisName() { return annotator.getMesh().find(axis)->name; }

  Annotator &annotator;
  StringRef axis;
  func::FuncOp train;
  SmallVector<Resting> parameters;
  /// The dimensions of the sequence, once one was asked for.
  std::optional<SequenceClasses> sequences;
  std::map<Operation *, graph::StepRoles> roles;
};
} // namespace

LogicalResult cleave::spmd::applyZero1(Annotator &annotator, StringRef axis) {
  return Zero(annotator, axis).run(1);
}
LogicalResult cleave::spmd::applyZero2(Annotator &annotator, StringRef axis) {
  return Zero(annotator, axis).run(2);
}
LogicalResult cleave::spmd::applyZero3(Annotator &annotator, StringRef axis) {
  return Zero(annotator, axis).run(3);
}
