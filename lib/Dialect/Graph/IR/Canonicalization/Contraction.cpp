//===- Contraction.cpp - Simpler contractions -----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/Einsum.h"
#include "cleave/Dialect/Graph/IR/Formula.h"

using namespace mlir;
using namespace cleave::graph;

namespace {

/// Folds a transpose of an operand into the equation.
struct AbsorbOperandTranspose : OpRewritePattern<ContractOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(ContractOp op,
                                PatternRewriter &rewriter) const override {
    std::string error;
    std::optional<Einsum> einsum = Einsum::parse(op.getEquation(), error);
    if (!einsum)
      return failure();
    SmallVector<Value, 2> operands{op.getLhs(), op.getRhs()};
    bool changed = false;
    for (auto [operand, letters] : {std::pair(&operands[0], &einsum->lhs),
                                    std::pair(&operands[1], &einsum->rhs)}) {
      auto transpose = operand->getDefiningOp<TransposeOp>();
      if (!transpose)
        continue;
      std::string before(*letters);
      for (auto [to, from] : llvm::enumerate(transpose.getPermutation()))
        (*letters)[from] = before[to];
      *operand = transpose.getInput();
      changed = true;
    }
    if (!changed)
      return failure();
    rewriter.replaceOpWithNewOp<ContractOp>(
        op, rewriter.getStringAttr(einsum->str()), operands[0], operands[1],
        op.getResultElementAttr());
    return success();
  }
};

/// Folds a transpose that is the only reader of the result into the equation.
struct AbsorbResultTranspose : OpRewritePattern<ContractOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(ContractOp op,
                                PatternRewriter &rewriter) const override {
    std::string error;
    std::optional<Einsum> einsum = Einsum::parse(op.getEquation(), error);
    if (!einsum || !op.getOutput().hasOneUse())
      return failure();
    auto transpose = dyn_cast<TransposeOp>(*op.getOutput().user_begin());
    if (!transpose)
      return failure();
    std::string before = einsum->output;
    for (auto [to, from] : llvm::enumerate(transpose.getPermutation()))
      einsum->output[to] = before[from];
    rewriter.setInsertionPoint(transpose);
    Value result = ContractOp::create(
        rewriter, op.getLoc(), rewriter.getStringAttr(einsum->str()),
        op.getLhs(), op.getRhs(), op.getResultElementAttr());
    rewriter.replaceOp(transpose, result);
    rewriter.eraseOp(op);
    return success();
  }
};

} // namespace

void ContractOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                             MLIRContext *context) {
  patterns.add<AbsorbOperandTranspose, AbsorbResultTranspose>(context);
}
