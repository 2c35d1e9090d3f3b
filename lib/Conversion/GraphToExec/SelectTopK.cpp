//===- SelectTopK.cpp - The largest elements as a command -----------------===//
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

/// Few elements of short rows are cheaper in a kernel, which takes one after
/// the other in passes over vectors, and can be fused with others
/// (IndexKernels.cpp). The command reads a row a fixed number of times, and
/// divides a long one among threads.
struct SelectTopK : OpRewritePattern<graph::TopKOp> {
  using OpRewritePattern::OpRewritePattern;

  static constexpr int64_t fewElements = 8, fewReads = 1 << 17;

  LogicalResult matchAndRewrite(graph::TopKOp op,
                                PatternRewriter &rewriter) const override {
    RankedTensorType type = tensorTypeOf(op.getInput());
    Type element = type.getElementType(), f32 = rewriter.getF32Type();
    int64_t k = op.getK(), columns = type.getShape().back();
    if (element.isF64() || (k <= fewElements && k * columns <= fewReads))
      return failure();
    Location loc = op.getLoc();
    int64_t rows = ShapedType::getNumElements(type.getShape().drop_back());
    Value input = castTo(rewriter, loc, op.getInput(), f32);
    input = denseOf(rewriter, loc,
                    reshapeOf(rewriter, loc, input, {rows, columns}));
    auto command = TopKOp::create(
        rewriter, loc, RankedTensorType::get({rows, k}, f32),
        RankedTensorType::get({rows, k}, rewriter.getI64Type()), input);
    ArrayRef<int64_t> shape = tensorTypeOf(op.getValues()).getShape();
    Value values = reshapeOf(rewriter, loc, command.getValues(), shape);
    rewriter.replaceOp(op,
                       {castTo(rewriter, loc, values, element),
                        reshapeOf(rewriter, loc, command.getIndices(), shape)});
    return success();
  }
};

} // namespace

void cleave::exec::populateSelectTopK(RewritePatternSet &patterns) {
  patterns.add<SelectTopK>(patterns.getContext());
}
