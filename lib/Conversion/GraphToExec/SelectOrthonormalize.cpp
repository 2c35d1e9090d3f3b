//===- SelectOrthonormalize.cpp - Orthonormal columns as a command --------===//
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

struct SelectOrthonormalize : OpRewritePattern<graph::OrthonormalizeOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(graph::OrthonormalizeOp op,
                                PatternRewriter &rewriter) const override {
    RankedTensorType type = tensorTypeOf(op.getOutput());
    Type element = type.getElementType(), f32 = rewriter.getF32Type();
    if (element.isF64())
      return failure();
    Location loc = op.getLoc();
    ArrayRef<int64_t> shape = type.getShape(), matrix = shape.take_back(2);
    int64_t batch = ShapedType::getNumElements(shape.drop_back(2));
    Value input = castTo(rewriter, loc, op.getInput(), f32);
    input =
        denseOf(rewriter, loc,
                reshapeOf(rewriter, loc, input, {batch, matrix[0], matrix[1]}));
    Value columns = OrthonormalizeOp::create(
        rewriter, loc,
        RankedTensorType::get({batch, matrix[0], matrix[1]}, f32), input);
    columns = reshapeOf(rewriter, loc, columns, shape);
    rewriter.replaceOp(op, castTo(rewriter, loc, columns, element));
    return success();
  }
};

} // namespace

void cleave::exec::populateSelectOrthonormalize(RewritePatternSet &patterns) {
  patterns.add<SelectOrthonormalize>(patterns.getContext());
}
