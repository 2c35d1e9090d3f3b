//===- SelectHeadLoss.cpp - Head and loss in chunks -----------------------===//
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

/// For each chunk of rows: a product for the logits, one row-wise kernel that
/// computes the losses and overwrites the logits by their gradient, and
/// products for the gradients of input and weight, the latter accumulating.
struct SelectHeadLoss : OpRewritePattern<graph::HeadLossOp> {
  int64_t chunkBytes;
  ProductForms forms;

  SelectHeadLoss(MLIRContext *context, int64_t chunkBytes, ProductForms forms)
      : OpRewritePattern(context), chunkBytes(chunkBytes), forms(forms) {}

  /// Rows of a chunk: as given for logits of f32, or else as many as fit, in
  /// equal chunks.
  int64_t chunkRows(graph::HeadLossOp op, int64_t rows,
                    int64_t vocabulary) const {
    bool narrow = op.getNarrowLogits();
    if (op.getChunkRows() && !narrow)
      return std::clamp<int64_t>(*op.getChunkRows(), 1, rows);
    int64_t fit = std::max<int64_t>(
        1, op.getChunkRows() ? 2 * static_cast<int64_t>(*op.getChunkRows())
                             : chunkBytes / ((narrow ? 2 : 4) * vocabulary));
    int64_t chunks = llvm::divideCeil(rows, fit);
    return llvm::alignTo(llvm::divideCeil(rows, chunks), 16);
  }

  LogicalResult matchAndRewrite(graph::HeadLossOp op,
                                PatternRewriter &rewriter) const override {
    RankedTensorType inputType = tensorTypeOf(op.getInput());
    Type element = inputType.getElementType();
    if (!tensorTypeOf(op.getLoss()).getElementType().isF32())
      return failure();
    Location loc = op.getLoc();
    int64_t width = inputType.getShape().back();
    int64_t rows = tensorTypeOf(op.getTargets()).getNumElements();
    int64_t vocabulary = tensorTypeOf(op.getWeight()).getDimSize(0);
    if (rows == 0)
      return failure();
    int64_t step = chunkRows(op, rows, vocabulary);

    Value input = reshapeOf(rewriter, loc, op.getInput(), {rows, width});
    Value targets = reshapeOf(rewriter, loc, op.getTargets(), {rows});
    Value gradient;
    if (op.getGradient())
      gradient = reshapeOf(rewriter, loc, op.getGradient(), {rows});

    Type f32 = rewriter.getF32Type();
    auto lossType = RankedTensorType::get({rows}, f32);
    RankedTensorType inputGradientType;
    SmallVector<Value> losses, inputGradients;
    Value weightGradient, biasGradient;
    for (int64_t start = 0; start < rows; start += step) {
      int64_t count = std::min(step, rows - start);
      Value x = rowsOf(rewriter, loc, input, start, count);
      Value t = rowsOf(rewriter, loc, targets, start, count);
      bool narrow =
          op.getNarrowLogits() && element.getIntOrFloatBitWidth() < 32;
      Value logits = contract(rewriter, op, "rh,vh->rv", x, op.getWeight(),
                              forms, narrow && !op.getBias());
      if (op.getBias())
        logits = graph::AddOp::create(rewriter, loc, logits, op.getBias());
      if (narrow)
        logits = castTo(rewriter, loc, logits, element);
      // The gradient of a bias is the sum of what is not rounded.
      if (narrow && op.getBias())
        logits = castTo(rewriter, loc, logits, rewriter.getF32Type());
      auto loss = graph::CrossEntropyOp::create(rewriter, loc, logits, t,
                                                op.getIgnoreIndexAttr(),
                                                op.getLabelSmoothingAttr());
      losses.push_back(
          intoRows(rewriter, loc, loss.getLoss(), lossType, start));
      if (!gradient)
        continue;
      Value g = rowsOf(rewriter, loc, gradient, start, count);
      Value slope = graph::CrossEntropyGradOp::create(
          rewriter, loc, g, logits, t, loss.getLse(), op.getIgnoreIndexAttr(),
          op.getLabelSmoothingAttr());
      Value factor = castTo(rewriter, loc, slope, element);
      Value dx = contract(rewriter, op, "rv,vh->rh", factor, op.getWeight(),
                          forms, element.getIntOrFloatBitWidth() == 16);
      inputGradientType = RankedTensorType::get(
          {rows, width}, tensorTypeOf(dx).getElementType());
      inputGradients.push_back(
          intoRows(rewriter, loc, dx, inputGradientType, start));
      Value dw = contract(rewriter, op, "rv,rh->vh", factor, x, forms);
      if (weightGradient) {
        auto product = rootOf(dw).getDefiningOp<ContractOp>();
        product.getAccumulatorMutable().assign(weightGradient);
      }
      weightGradient = dw;
      if (op.getBias()) {
        Value db =
            graph::ReduceOp::create(rewriter, loc, graph::ReductionKind::Sum,
                                    slope, ArrayRef<int64_t>{0});
        biasGradient =
            biasGradient ? graph::AddOp::create(rewriter, loc, biasGradient, db)
                               .getOutput()
                         : db;
      }
    }
    auto whole = [&](ArrayRef<Value> parts, RankedTensorType type,
                     ArrayRef<int64_t> shape) {
      Value joined = parts.front();
      if (parts.size() > 1)
        joined = JoinOp::create(rewriter, loc, type, parts);
      return reshapeOf(rewriter, loc, joined, shape);
    };
    SmallVector<Value> results{
        whole(losses, lossType, tensorTypeOf(op.getLoss()).getShape())};
    if (gradient) {
      Value dx = whole(inputGradients, inputGradientType, inputType.getShape());
      results.push_back(castTo(rewriter, loc, dx, element));
      results.push_back(weightGradient);
      if (op.getBias())
        results.push_back(biasGradient);
    }
    rewriter.replaceOp(op, results);
    return success();
  }

  /// `value` as the rows from `start` on of a tensor of type `whole`; `value`
  /// itself if it has all rows.
  static Value intoRows(OpBuilder &builder, Location loc, Value value,
                        RankedTensorType whole, int64_t start) {
    RankedTensorType type = tensorTypeOf(value);
    if (type.getDimSize(0) == whole.getDimSize(0))
      return value;
    Strided layout = getLayout(whole);
    layout.offset = start * layout.strides[0];
    RankedTensorType slice = withLayout(type, layout);
    // The command is new and writes to the rows directly.
    auto product = value.getDefiningOp<ContractOp>();
    if (product && product.canWriteResult(0, slice)) {
      product.getOutput().setType(slice);
      return value;
    }
    return CopyOp::create(builder, loc, slice, value, Value());
  }
};

} // namespace

void cleave::exec::populateSelectHeadLoss(RewritePatternSet &patterns,
                                          int64_t chunkBytes,
                                          ProductForms forms) {
  patterns.add<SelectHeadLoss>(patterns.getContext(), chunkBytes, forms);
}
