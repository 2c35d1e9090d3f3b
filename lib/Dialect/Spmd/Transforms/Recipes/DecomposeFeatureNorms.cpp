//===- DecomposeFeatureNorms.cpp - Layer norms as sums --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "DecomposeFeatureNorms.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;
using graph::tensorTypeOf;

namespace {
/// Builds the formulas of one norm, in the element type of its statistics.
class NormFormulas {
public:
  NormFormulas(Operation *op, Value input, Value statistics)
      : builder(op), f{builder, op->getLoc()}, input(input),
        wide(tensorTypeOf(statistics).getElementType()) {}

  void decompose(graph::LayerNormOp op) {
    Value x = widen(op.getInput()), mean = average(x);
    Value centred = f.sub(x, column(mean));
    Value rstd = inverse(average(f.mul(centred, centred)), op.getEpsilon());
    Value y = scale(f.mul(centred, column(rstd)), op.getWeight());
    if (op.getBias())
      y = f.add(y, widen(op.getBias()));
    op->replaceAllUsesWith(ValueRange{narrow(y, op.getOutput()), mean, rstd});
  }

  void decompose(graph::RmsNormOp op) {
    Value x = widen(op.getInput());
    Value rstd = inverse(average(f.mul(x, x)), op.getEpsilon());
    Value y = scale(f.mul(x, column(rstd)), op.getWeight());
    op->replaceAllUsesWith(ValueRange{narrow(y, op.getOutput()), rstd});
  }

  void decompose(graph::LayerNormGradOp op) {
    Value rstd = column(op.getRstd());
    Value normal =
        f.mul(f.sub(widen(op.getInput()), column(op.getMean())), rstd);
    Value slope = scale(widen(op.getGradient()), op.getWeight());
    Value along = column(average(f.mul(slope, normal)));
    Value rest =
        f.sub(f.sub(slope, column(average(slope))), f.mul(normal, along));
    op->replaceAllUsesWith(
        ValueRange{narrow(f.mul(rest, rstd), op.getOutput())});
  }

  void decompose(graph::RmsNormGradOp op) {
    Value rstd = column(op.getRstd());
    Value normal = f.mul(widen(op.getInput()), rstd);
    Value slope = scale(widen(op.getGradient()), op.getWeight());
    Value along = column(average(f.mul(slope, normal)));
    Value rest = f.sub(slope, f.mul(normal, along));
    op->replaceAllUsesWith(
        ValueRange{narrow(f.mul(rest, rstd), op.getOutput())});
  }

private:
  Value widen(Value value) { return f.cast(value, wide); }
  Value narrow(Value value, Value like) {
    return f.cast(value, tensorTypeOf(like).getElementType());
  }
  Value scale(Value value, Value weight) {
    return weight ? f.mul(value, widen(weight)) : value;
  }
  Value column(Value value) {
    SmallVector<int64_t> shape(tensorTypeOf(input).getShape());
    shape.back() = 1;
    return f.reshape(value, shape);
  }
  Value average(Value value) {
    ArrayRef<int64_t> shape = tensorTypeOf(input).getShape();
    Value sum = f.sum(value, {static_cast<int64_t>(shape.size()) - 1});
    return f.mul(sum, f.scalar(sum, 1.0 / shape.back()));
  }
  Value inverse(Value variance, const APFloat &epsilon) {
    return graph::RsqrtOp::create(
        builder, f.loc,
        f.add(variance, f.scalar(variance, epsilon.convertToDouble())));
  }

  OpBuilder builder;
  graph::Formula f;
  Value input;
  Type wide;
};
} // namespace

void cleave::spmd::decomposeFeatureNorms(func::FuncOp function,
                                         function_ref<bool(Value)> splits) {
  // `splits` sees the function before any rewrite.
  SmallVector<Operation *> norms;
  for (Operation &op : function.getBody().front())
    llvm::TypeSwitch<Operation *>(&op)
        .Case<graph::LayerNormOp, graph::RmsNormOp, graph::LayerNormGradOp,
              graph::RmsNormGradOp>([&](auto norm) {
          if (splits(norm.getInput()))
            norms.push_back(norm);
        });
  for (Operation *op : norms) {
    llvm::TypeSwitch<Operation *>(op)
        .Case<graph::LayerNormOp, graph::RmsNormOp, graph::LayerNormGradOp,
              graph::RmsNormGradOp>([](auto norm) {
          NormFormulas(norm, norm.getInput(), norm.getRstd()).decompose(norm);
        });
    op->erase();
  }
}
