//===- Shape.cpp - Simpler reductions and layout ops ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/Formula.h"

using namespace mlir;
using namespace cleave::graph;

namespace {

/// A reduction over dimensions of size 1, or over none, is a reshape.
struct RemoveIdleReduce : OpRewritePattern<ReduceOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(ReduceOp op,
                                PatternRewriter &rewriter) const override {
    if (!llvm::all_of(op.getDims(), [&](int64_t dim) {
          return op.getInput().getType().getDimSize(dim) == 1;
        }))
      return failure();
    rewriter.replaceOp(op, Formula{rewriter, op.getLoc()}.reshape(
                               op.getInput(), op.getType().getShape()));
    return success();
  }
};

/// broadcast(broadcast(x)) is one broadcast of x: dimensions are aligned from
/// the last in both.
struct JoinBroadcasts : OpRewritePattern<BroadcastOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(BroadcastOp op,
                                PatternRewriter &rewriter) const override {
    auto inner = op.getInput().getDefiningOp<BroadcastOp>();
    if (!inner)
      return failure();
    rewriter.replaceOpWithNewOp<BroadcastOp>(op, op.getType(),
                                             inner.getInput());
    return success();
  }
};

/// The broadcast of a reshape that only adds leading dimensions of size 1: the
/// broadcast adds them itself.
struct DropLeadingOnes : OpRewritePattern<BroadcastOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(BroadcastOp op,
                                PatternRewriter &rewriter) const override {
    auto reshape = op.getInput().getDefiningOp<ReshapeOp>();
    if (!reshape)
      return failure();
    ArrayRef<int64_t> from = reshape.getInput().getType().getShape();
    ArrayRef<int64_t> to = reshape.getType().getShape();
    if (to.size() <= from.size() || to.take_back(from.size()) != from)
      return failure();
    rewriter.replaceOpWithNewOp<BroadcastOp>(op, op.getType(),
                                             reshape.getInput());
    return success();
  }
};

/// A layout op on a tensor whose elements all have one value, a splat constant
/// or the broadcast of one element, becomes that value in another shape.
template <typename Op> struct MoveOneValue : OpRewritePattern<Op> {
  using OpRewritePattern<Op>::OpRewritePattern;
  LogicalResult matchAndRewrite(Op op,
                                PatternRewriter &rewriter) const override {
    Operation *producer = op.getInput().getDefiningOp();
    if (auto constant = dyn_cast_or_null<ConstantOp>(producer)) {
      auto elements = dyn_cast<DenseElementsAttr>(constant.getValue());
      if (!elements || !elements.isSplat())
        return failure();
      rewriter.replaceOpWithNewOp<ConstantOp>(
          op, elements.resizeSplat(op.getType()));
      return success();
    }
    auto broadcast = dyn_cast_or_null<BroadcastOp>(producer);
    if (!broadcast || broadcast.getInput().getType().getNumElements() != 1)
      return failure();
    Formula f{rewriter, op.getLoc()};
    rewriter.replaceOp(op, f.broadcast(f.reshape(broadcast.getInput(), {}),
                                       op.getType().getShape()));
    return success();
  }
};

/// Rows that are not read are not projected: slice(linear(x)) becomes
/// linear(slice(x)) if the slice takes rows and is the only reader.
struct SliceBeforeLinear : OpRewritePattern<SliceOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(SliceOp op,
                                PatternRewriter &rewriter) const override {
    auto linear = op.getInput().getDefiningOp<LinearOp>();
    if (!linear || !linear.getOutput().hasOneUse() ||
        op.getSizes().back() != linear.getType().getShape().back())
      return failure();
    SmallVector<int64_t> sizes(op.getSizes()), strides(op.getStrides());
    strides.back() = 1;
    sizes.back() = linear.getInput().getType().getShape().back();
    auto rows =
        SliceOp::create(rewriter, op.getLoc(), linear.getInput(),
                        SmallVector<int64_t>(op.getOffsets()), sizes, strides);
    rewriter.replaceOpWithNewOp<LinearOp>(op, rows, linear.getWeight(),
                                          linear.getBias());
    return success();
  }
};

/// Removes a padding of size 0 on all sides.
struct RemoveIdlePad : OpRewritePattern<PadOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(PadOp op,
                                PatternRewriter &rewriter) const override {
    if (op.getInput().getType() != op.getType())
      return failure();
    rewriter.replaceOp(op, op.getInput());
    return success();
  }
};

/// A concatenation of one operand becomes this operand; one inside another
/// along the same dimension is merged into it.
struct FlattenConcat : OpRewritePattern<ConcatOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(ConcatOp op,
                                PatternRewriter &rewriter) const override {
    if (op.getInputs().size() == 1) {
      rewriter.replaceOp(op, op.getInputs().front());
      return success();
    }
    SmallVector<Value> inputs;
    for (Value input : op.getInputs()) {
      auto inner = input.getDefiningOp<ConcatOp>();
      if (inner && inner.getDim() == op.getDim())
        llvm::append_range(inputs, inner.getInputs());
      else
        inputs.push_back(input);
    }
    if (inputs.size() == op.getInputs().size())
      return failure();
    rewriter.replaceOpWithNewOp<ConcatOp>(op, inputs, op.getDim());
    return success();
  }
};

/// The one dimension along which `op` pads with zeros at the ends, or nothing.
std::optional<int64_t> zeroPaddedDim(PadOp op) {
  std::optional<int64_t> padded;
  if (!op || !op.getValue().isZero())
    return padded;
  for (int64_t i = 0, e = op.getType().getRank(); i < e; ++i) {
    if (op.getInterior()[i] != 0)
      return std::nullopt;
    if (op.getLow()[i] == 0 && op.getHigh()[i] == 0)
      continue;
    if (padded)
      return std::nullopt;
    padded = i;
  }
  return padded;
}

/// The sum of two adjacent paddings is the padding of their concatenation.
/// Gradients of the slices of a split have this form.
struct JoinPads : OpRewritePattern<AddOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(AddOp op,
                                PatternRewriter &rewriter) const override {
    auto first = op.getLhs().getDefiningOp<PadOp>();
    auto second = op.getRhs().getDefiningOp<PadOp>();
    std::optional<int64_t> dim = zeroPaddedDim(first);
    if (!dim || dim != zeroPaddedDim(second) ||
        first.getType() != second.getType())
      return failure();
    if (first.getLow()[*dim] > second.getLow()[*dim])
      std::swap(first, second);
    if (first.getLow()[*dim] + first.getInput().getType().getDimSize(*dim) !=
        second.getLow()[*dim])
      return failure();
    auto joined =
        ConcatOp::create(rewriter, op.getLoc(),
                         ValueRange{first.getInput(), second.getInput()}, *dim);
    rewriter.replaceOpWithNewOp<PadOp>(
        op, joined, APFloat(0.0), SmallVector<int64_t>(first.getLow()),
        SmallVector<int64_t>(second.getHigh()),
        SmallVector<int64_t>(first.getInterior()));
    return success();
  }
};

} // namespace

void PadOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                        MLIRContext *context) {
  // Sums are matched here too, because paddings simplify them.
  patterns.add<RemoveIdlePad, JoinPads>(context);
}

void ConcatOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                           MLIRContext *context) {
  patterns.add<FlattenConcat>(context);
}

void ReduceOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                           MLIRContext *context) {
  patterns.add<RemoveIdleReduce>(context);
}

void BroadcastOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                              MLIRContext *context) {
  patterns.add<JoinBroadcasts, DropLeadingOnes>(context);
}

void ReshapeOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                            MLIRContext *context) {
  patterns.add<MoveOneValue<ReshapeOp>>(context);
}

void TransposeOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                              MLIRContext *context) {
  patterns.add<MoveOneValue<TransposeOp>>(context);
}

void SliceOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                          MLIRContext *context) {
  patterns.add<MoveOneValue<SliceOp>, SliceBeforeLinear>(context);
}
