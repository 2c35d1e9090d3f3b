//===- DecomposeGlobalNorm.cpp - The norm of all gradients ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "DecomposeGlobalNorm.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include <set>

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

GlobalNormDecomposition::GlobalNormDecomposition(ModuleOp module) {
  module.walk([&](graph::GlobalNormOp op) { norms.push_back({op, {}}); });
  for (Norm &norm : norms) {
    OpBuilder builder(norm.op);
    graph::Formula f{builder, norm.op.getLoc()};
    SmallVector<Value> sums;
    for (Value tensor : norm.op.getGradients()) {
      Value squares = f.mul(tensor, tensor);
      auto dims = llvm::to_vector(llvm::seq<int64_t>(
          0, cast<RankedTensorType>(tensor.getType()).getRank()));
      Value sum = dims.empty() ? squares : f.sum(squares, dims);
      norm.squares.push_back({sum, tensor});
      sums.push_back(sum);
    }
    // Scalar operands do not join the gradients' dimension classes.
    norm.op.getGradientsMutable().assign(sums);
  }
}

/// Returns the axes over which `gradient` is sharded, sorted, as one text.
static std::string axesOf(Annotator &annotator, Value gradient) {
  while (Operation *op = gradient.getDefiningOp()) {
    // Looks through casts and products with constants.
    if (isa<graph::GradientOp>(op) || op->getNumOperands() == 0 ||
        llvm::any_of(op->getOperands().drop_front(), [](Value operand) {
          return !operand.getDefiningOp<graph::ConstantOp>();
        }))
      break;
    gradient = op->getOperand(0);
  }
  auto op = gradient.getDefiningOp<graph::GradientOp>();
  if (!op)
    return {};
  Sharding sharding;
  if (auto constrain = op.getInput().getDefiningOp<ConstrainOp>()) {
    sharding = constrain.getSharding().getSharding();
  } else {
    auto function = op->getParentOfType<func::FuncOp>();
    for (BlockArgument argument : function.getArguments())
      if (graph::getArgString(function, argument.getArgNumber(),
                              graph::kNameAttr) == op.getParameter())
        sharding = annotator.given(argument);
  }
  std::set<std::string> axes;
  for (const AxisList &list : sharding.dims)
    for (const AxisRef &axis : list)
      axes.insert(axis.str());
  return llvm::join(axes, " ");
}

void GlobalNormDecomposition::finish(Annotator &annotator) {
  for (Norm &norm : norms) {
    OpBuilder builder(norm.op);
    graph::Formula f{builder, norm.op.getLoc()};
    llvm::MapVector<std::string, Value, std::map<std::string, unsigned>> groups;
    for (auto [sum, tensor] : norm.squares) {
      Value &group = groups[axesOf(annotator, tensor)];
      group = group ? f.add(group, sum) : sum;
    }
    Value total;
    for (auto &[axes, group] : groups)
      total = total ? f.add(total, group) : group;
    norm.op.getOutput().replaceAllUsesWith(
        graph::SqrtOp::create(builder, norm.op.getLoc(), total));
    norm.op.erase();
  }
}
