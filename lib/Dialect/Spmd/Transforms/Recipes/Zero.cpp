//===- Zero.cpp - ZeRO: state, gradients and parameters in parts ----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Rajbhandari et al., "ZeRO" (arXiv 1910.02054), section 5, as resting
/// shardings: stage 1 splits the optimizer's state, stage 2 gradients as well,
/// stage 3 also parameters, which are gathered where they are read.
///
//===----------------------------------------------------------------------===//

#include "Annotator.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {
/// A parameter that `axis` can split, and how.
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
             << "zero" << stage << ": no entry updates parameters";
    findParameters();
    for (const Resting &resting : parameters)
      for (BlockArgument argument : train.getArguments())
        if (graph::hasRole(train, argument.getArgNumber(), "state") &&
            graph::getArgString(train, argument.getArgNumber(),
                                graph::kOfAttr) == nameOf(resting) &&
            argument.getType() == resting.parameter.getType())
          annotator.split(argument, resting.dim, axis);
    constrainGradients(/*reduced=*/stage == 1);
    if (stage == 3)
      restParameters();
    else
      separateUpdates();
    return success();
  }

private:
  StringRef nameOf(const Resting &resting) {
    return graph::getArgString(train, resting.parameter.getArgNumber(),
                               graph::kNameAttr);
  }

  /// Parameters of fewer elements than parts stay whole.
  void findParameters() {
    for (BlockArgument argument : train.getArguments()) {
      if (!graph::hasRole(train, argument.getArgNumber(), "parameter"))
        continue;
      Sharding given = annotator.given(argument);
      if (given.splits(annotator.getMesh(), {axis}))
        continue;
      auto type = cast<RankedTensorType>(argument.getType());
      if (auto dim = annotator.bestDim(type, given, axis))
        parameters.push_back({argument, *dim});
      else
        mlir::emitRemark(argument.getLoc())
            << "parameter \""
            << graph::getArgString(train, argument.getArgNumber(),
                                   graph::kNameAttr)
            << "\" stays whole: no dimension of " << type
            << " has an element for each position of axis \"" << axis << "\"";
    }
  }

  /// A gradient is reduced into the parts of the state that it meets: in each
  /// micro-batch, or once, when all of them are summed up.
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
      // Before it: what it marks as a gradient is finished.
      OpBuilder builder(gradient);
      gradient.getInputMutable().assign(
          annotator.constrain(builder, gradient.getInput(), sharding, reduced));
    }
  }

  /// Where parts are padded, the update is: not all that the parameter meets.
  void separateUpdates() {
    const Mesh &mesh = annotator.getMesh();
    for (const Resting &resting : parameters) {
      BlockArgument parameter = resting.parameter;
      Sharding sharding = annotator.given(parameter);
      sharding.dims[resting.dim].push_back({axisName()});
      auto type = cast<RankedTensorType>(parameter.getType());
      if (type.getDimSize(resting.dim) %
              mesh.size(sharding.dims[resting.dim]) ==
          0)
        continue;
      for (OpOperand &use : llvm::make_early_inc_range(parameter.getUses()))
        if (updatesOf(train).contains(use.getOwner())) {
          OpBuilder builder(use.getOwner());
          use.set(annotator.constrain(builder, parameter, sharding));
        }
    }
  }

  /// Parameters lie in parts, and are whole for those that read them, but not
  /// for the update, which works on parts.
  void restParameters() {
    for (const Resting &resting : parameters) {
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
    const llvm::SetVector<Operation *> &updates = updatesOf(function);
    auto reads = [&](OpOperand &use) {
      return !updates.contains(use.getOwner()) &&
             !use.getOwner()->hasTrait<OpTrait::IsTerminator>();
    };
    if (llvm::none_of(argument.getUses(), reads))
      return;
    OpBuilder builder = OpBuilder::atBlockBegin(&function.getBody().front());
    ConstrainOp whole = annotator.constrain(builder, argument, compute);
    argument.replaceUsesWithIf(whole, [&](OpOperand &use) {
      return use.getOwner() != whole && reads(use);
    });
  }

  /// What depends on a gradient.
  const llvm::SetVector<Operation *> &updatesOf(func::FuncOp function) {
    auto [it, isNew] = updates.try_emplace(function);
    if (isNew)
      for (Operation &op : function.getBody().front().without_terminator())
        if (isa<graph::GradientOp>(op) ||
            llvm::any_of(op.getOperands(), [&](Value operand) {
              Operation *producer = operand.getDefiningOp();
              return producer && it->second.contains(producer);
            }))
          it->second.insert(&op);
    return it->second;
  }

  StringRef axisName() { return annotator.getMesh().find(axis)->name; }

  Annotator &annotator;
  StringRef axis;
  func::FuncOp train;
  SmallVector<Resting> parameters;
  std::map<Operation *, llvm::SetVector<Operation *>> updates;
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
