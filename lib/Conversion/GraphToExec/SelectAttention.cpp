//===- SelectAttention.cpp - Attention as library commands ----------------===//
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

/// The operands of an attention op, in layouts that its command can read.
struct Readable {
  OpBuilder &builder;
  Location loc;

  Value heads(Value value) {
    return isHeadView(tensorTypeOf(value)) ? value
                                           : denseOf(builder, loc, value);
  }
  Value dense(Value value) {
    return value ? denseOf(builder, loc, value) : value;
  }
};

/// Heads of 16 bits that are not of the target are wide by now.
template <typename OpTy> bool isCommand(OpTy op) {
  Type element = tensorTypeOf(op.getQuery()).getElementType();
  return element.isF32() || element.isBF16() || element.isF16();
}

struct SelectAttention : OpRewritePattern<graph::AttentionOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(graph::AttentionOp op,
                                PatternRewriter &rewriter) const override {
    if (!isCommand(op))
      return failure();
    Readable as{rewriter, op.getLoc()};
    auto command = AttentionOp::create(
        rewriter, op.getLoc(), op.getResultTypes()[0], op.getResultTypes()[1],
        as.heads(op.getQuery()), as.heads(op.getKey()), as.heads(op.getValue()),
        op.getBias(), op.getMask(), as.dense(op.getSegments()),
        as.dense(op.getRng()), as.dense(op.getOrigin()),
        as.dense(op.getKeySegments()), as.dense(op.getQueryStarts()),
        as.dense(op.getKeyStarts()), op.getOnto(), op.getOntoLse(),
        op.getScaleAttr(), op.getCausalAttr(), op.getWindowAttr(),
        op.getDropoutAttr(), op.getDropoutIdAttr(), op.getGlobalShapeAttr(),
        op.getBlocksAttr());
    rewriter.replaceOp(op, command.getResults());
    return success();
  }
};

/// The command that computes the gradients of an attention, as `op` reads it.
/// The bias's type is null if its gradient is not computed.
template <typename Op>
AttentionGradOp createGradient(PatternRewriter &rewriter, Op op,
                               ArrayRef<Type> types) {
  Readable as{rewriter, op.getLoc()};
  return AttentionGradOp::create(
      rewriter, op.getLoc(), types[0], types[1], types[2], types[3],
      as.heads(op.getGradient()), as.heads(op.getQuery()),
      as.heads(op.getKey()), as.heads(op.getValue()), as.heads(op.getOutput()),
      as.dense(op.getLse()), op.getBias(), op.getMask(),
      as.dense(op.getSegments()), as.dense(op.getRng()),
      as.dense(op.getOrigin()), as.dense(op.getKeySegments()),
      as.dense(op.getQueryStarts()), as.dense(op.getKeyStarts()),
      op.getScaleAttr(), op.getCausalAttr(), op.getWindowAttr(),
      op.getDropoutAttr(), op.getDropoutIdAttr(), op.getGlobalShapeAttr(),
      op.getBlocksAttr());
}

/// One command computes the gradients for query, key and value and, if wanted,
/// for the bias.
struct SelectAttentionGrad : OpRewritePattern<graph::AttentionGradOp> {
  using OpRewritePattern::OpRewritePattern;

  /// The op that computes the bias's gradient of the same attention.
  static graph::AttentionBiasGradOp biasGradient(graph::AttentionGradOp op) {
    for (Operation *user : op.getLse().getUsers()) {
      auto bias = dyn_cast<graph::AttentionBiasGradOp>(user);
      if (bias && bias->getBlock() == op->getBlock() &&
          llvm::equal(bias->getOperands(), op->getOperands()))
        return bias;
    }
    return nullptr;
  }

  LogicalResult matchAndRewrite(graph::AttentionGradOp op,
                                PatternRewriter &rewriter) const override {
    if (!isCommand(op))
      return failure();
    graph::AttentionBiasGradOp bias = biasGradient(op);
    // All operands are available at the earlier of the two.
    if (bias && bias->isBeforeInBlock(op))
      rewriter.setInsertionPoint(bias);
    SmallVector<Type> types(op.getResultTypes());
    types.push_back(bias ? bias.getBiasGradient().getType() : Type());
    AttentionGradOp command = createGradient(rewriter, op, types);
    if (bias)
      rewriter.replaceOp(bias, command.getBiasGradient());
    rewriter.replaceOp(op,
                       {command.getQueryGradient(), command.getKeyGradient(),
                        command.getValueGradient()});
    return success();
  }
};

/// Only the bias's gradient is read: the others are computed and dropped.
struct CompleteBiasGrad : OpRewritePattern<graph::AttentionBiasGradOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(graph::AttentionBiasGradOp op,
                                PatternRewriter &rewriter) const override {
    if (!isCommand(op))
      return failure();
    for (Operation *user : op.getLse().getUsers())
      if (isa<graph::AttentionGradOp>(user) &&
          llvm::equal(user->getOperands(), op->getOperands()))
        return failure();
    AttentionGradOp command =
        createGradient(rewriter, op,
                       {denseType(tensorTypeOf(op.getQuery())),
                        denseType(tensorTypeOf(op.getKey())),
                        denseType(tensorTypeOf(op.getValue())),
                        op.getBiasGradient().getType()});
    rewriter.replaceOp(op, command.getBiasGradient());
    return success();
  }
};

} // namespace

void cleave::exec::populateSelectAttention(RewritePatternSet &patterns) {
  patterns.add<SelectAttention, SelectAttentionGrad, CompleteBiasGrad>(
      patterns.getContext());
}
