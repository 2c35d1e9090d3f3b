//===- CanonicalizeAttention.cpp - Attention without dropout --------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/GraphOps.h"

using namespace mlir;
using namespace cleave::graph;

void AttentionOp::removeRandomness(RewriterBase &rewriter) {
  rewriter.modifyOpInPlace(*this, [&] {
    getRngMutable().clear();
    setDropout(APFloat(0.0));
    if (getCausal() || getWindow())
      return; // Causal masks and windows use positions too.
    getOriginMutable().clear();
    removeGlobalShapeAttr();
  });
}

namespace {
/// Without dropout the op draws no random numbers.
struct RemoveIdleGenerator : OpRewritePattern<AttentionOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(AttentionOp op,
                                PatternRewriter &rewriter) const override {
    if (!op.getRng() || !op.getDropout().isZero())
      return failure();
    op.removeRandomness(rewriter);
    return success();
  }
};
} // namespace

void AttentionOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                              MLIRContext *context) {
  patterns.add<RemoveIdleGenerator>(context);
}
