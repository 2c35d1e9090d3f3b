//===- SelectGrouped.cpp - Rows sorted by group as commands ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "SelectKernels.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

namespace {

struct SelectSortRows : OpRewritePattern<graph::SortRowsOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(graph::SortRowsOp op,
                                PatternRewriter &rewriter) const override {
    Location loc = op.getLoc();
    Value groups = denseOf(rewriter, loc, op.getGroups()),
          origin =
              op.getOrigin() ? denseOf(rewriter, loc, op.getOrigin()) : Value();
    rewriter.replaceOp(op,
                       SortRowsOp::create(rewriter, loc, op->getResultTypes(),
                                          groups, origin));
    return success();
  }
};

/// The type in which the command multiplies elements of the type `element`.
Type factorOf(Type element) {
  if (element.isF64() || element.isBF16())
    return element;
  return Float32Type::get(element.getContext());
}

/// `value` with elements of the type `element`, in rows.
Value inRows(OpBuilder &builder, Location loc, Value value, Type element) {
  value = castTo(builder, loc, value, element);
  return isMatrix(tensorTypeOf(value), /*rowsOnly=*/true)
             ? value
             : denseOf(builder, loc, value);
}

/// The command's result has the sums' type.
template <typename CommandT, typename OpTy>
LogicalResult select(OpTy op, Value other, bool transposed, Type factor,
                     PatternRewriter &rewriter) {
  Location loc = op.getLoc();
  RankedTensorType type = op.getOutput().getType();
  Type sum = factor.isF64() ? factor : Type(rewriter.getF32Type());
  auto command = CommandT::create(
      rewriter, loc, RankedTensorType::get(type.getShape(), sum),
      inRows(rewriter, loc, op.getRows(), factor), other,
      denseOf(rewriter, loc, op.getOffsets()),
      transposed ? rewriter.getUnitAttr() : UnitAttr());
  rewriter.replaceOp(
      op, castTo(rewriter, loc, command.getOutput(), type.getElementType()));
  return success();
}

struct SelectGroupedContract : OpRewritePattern<graph::GroupedContractOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(graph::GroupedContractOp op,
                                PatternRewriter &rewriter) const override {
    Location loc = op.getLoc();
    Type factor = factorOf(tensorTypeOf(op.getRows()).getElementType());
    Value weight = castTo(rewriter, loc, op.getWeight(), factor);
    bool transposed = op.getTranspose();
    RankedTensorType type = tensorTypeOf(weight);
    // A weight in columns is one in rows, the other way round.
    if (!isMatrix(type, /*rowsOnly=*/true) && isMatrix(type)) {
      weight = transposeOf(rewriter, loc, weight, {0, 2, 1});
      transposed = !transposed;
    }
    return select<GroupedContractOp>(op, inRows(rewriter, loc, weight, factor),
                                     transposed, factor, rewriter);
  }
};

struct SelectGroupedContractWeightGrad
    : OpRewritePattern<graph::GroupedContractWeightGradOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(graph::GroupedContractWeightGradOp op,
                                PatternRewriter &rewriter) const override {
    Type factor = factorOf(tensorTypeOf(op.getRows()).getElementType());
    Value grads = inRows(rewriter, op.getLoc(), op.getGrads(), factor);
    return select<GroupedContractWeightGradOp>(op, grads, op.getTranspose(),
                                               factor, rewriter);
  }
};

} // namespace

void cleave::exec::populateSelectGrouped(RewritePatternSet &patterns) {
  patterns.add<SelectSortRows, SelectGroupedContract,
               SelectGroupedContractWeightGrad>(patterns.getContext());
}
