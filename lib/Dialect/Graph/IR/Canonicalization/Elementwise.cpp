//===- Elementwise.cpp - Simpler element-wise ops -------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

/// \file
/// Every pattern keeps all bits, except the sign of a zero, and except powers,
/// which become the products that PyTorch computes.
///
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/Formula.h"

using namespace mlir;
using namespace cleave::graph;

namespace {

/// Replaces `op` by `value`, broadcast to the op's type where it is smaller.
void replaceByBroadcast(PatternRewriter &rewriter, Operation *op, Value value) {
  auto type = cast<RankedTensorType>(op->getResult(0).getType());
  rewriter.replaceOp(
      op, Formula{rewriter, op->getLoc()}.broadcast(value, type.getShape()));
}

/// x + 0, x - 0, x * 1, x / 1 are x. Commutative ops have constants on the
/// right.
template <typename Op> struct RemoveNeutral : OpRewritePattern<Op> {
  double neutral;
  RemoveNeutral(MLIRContext *context, double neutral)
      : OpRewritePattern<Op>(context), neutral(neutral) {}

  LogicalResult matchAndRewrite(Op op,
                                PatternRewriter &rewriter) const override {
    if (getSplatValue(op.getRhs()) != neutral)
      return failure();
    replaceByBroadcast(rewriter, op, op.getLhs());
    return success();
  }
};

/// -(-x) is x.
struct RemoveDoubleNegation : OpRewritePattern<NegOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(NegOp op,
                                PatternRewriter &rewriter) const override {
    auto inner = op.getInput().getDefiningOp<NegOp>();
    if (!inner)
      return failure();
    rewriter.replaceOp(op, inner.getInput());
    return success();
  }
};

/// a + (-b) is a - b, and a - (-b) is a + b.
template <typename From, typename To>
struct AbsorbNegation : OpRewritePattern<From> {
  using OpRewritePattern<From>::OpRewritePattern;
  LogicalResult matchAndRewrite(From op,
                                PatternRewriter &rewriter) const override {
    Value kept = op.getLhs();
    auto negation = op.getRhs().template getDefiningOp<NegOp>();
    if (!negation && std::is_same_v<From, AddOp>) {
      kept = op.getRhs();
      negation = op.getLhs().template getDefiningOp<NegOp>();
    }
    if (!negation)
      return failure();
    rewriter.replaceOpWithNewOp<To>(op, kept, negation.getInput());
    return success();
  }
};

/// x^1 is x, x^2 is x*x, x^3 is x*x*x.
struct ExpandPower : OpRewritePattern<PowOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(PowOp op,
                                PatternRewriter &rewriter) const override {
    std::optional<double> exponent = getSplatValue(op.getRhs());
    if (!exponent || (*exponent != 1.0 && *exponent != 2.0 && *exponent != 3.0))
      return failure();
    Formula f{rewriter, op.getLoc()};
    Value x = op.getLhs(), power = x;
    for (double i = 1.0; i < *exponent; ++i)
      power = f.mul(power, x);
    replaceByBroadcast(rewriter, op, power);
    return success();
  }
};

/// An op that broadcasts its operands itself does not need graph.broadcast on
/// an operand, as long as its result keeps its shape.
template <typename Op> struct DropBroadcast : OpRewritePattern<Op> {
  using OpRewritePattern<Op>::OpRewritePattern;
  LogicalResult matchAndRewrite(Op op,
                                PatternRewriter &rewriter) const override {
    for (OpOperand &operand : op->getOpOperands()) {
      auto broadcast = operand.get().template getDefiningOp<BroadcastOp>();
      if (!broadcast)
        continue;
      SmallVector<ArrayRef<int64_t>> shapes;
      for (OpOperand &other : op->getOpOperands())
        shapes.push_back(&other == &operand
                             ? broadcast.getInput().getType().getShape()
                             : tensorTypeOf(other.get()).getShape());
      std::optional<SmallVector<int64_t>> shape = broadcastShapes(shapes);
      if (!shape || ArrayRef<int64_t>(*shape) != op.getType().getShape())
        continue;
      rewriter.modifyOpInPlace(op, [&] { operand.set(broadcast.getInput()); });
      return success();
    }
    return failure();
  }
};

/// The predicate that holds exactly where `predicate` does not. The orders of
/// floats have none: with NaN neither a < b nor a >= b holds.
std::optional<Predicate> negated(Predicate predicate, Type element) {
  if (predicate == Predicate::eq)
    return Predicate::ne;
  if (predicate == Predicate::ne)
    return Predicate::eq;
  if (isa<FloatType>(element))
    return std::nullopt;
  switch (predicate) {
  case Predicate::lt:
    return Predicate::ge;
  case Predicate::le:
    return Predicate::gt;
  case Predicate::gt:
    return Predicate::le;
  default:
    return Predicate::lt;
  }
}

/// not(a == b) is a != b. A comparison that something else reads stays.
struct NegateComparison : OpRewritePattern<NotOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(NotOp op,
                                PatternRewriter &rewriter) const override {
    auto compare = op.getInput().getDefiningOp<CompareOp>();
    if (!compare || !compare->hasOneUse())
      return failure();
    std::optional<Predicate> predicate =
        negated(compare.getPredicate(),
                tensorTypeOf(compare.getLhs()).getElementType());
    if (!predicate)
      return failure();
    rewriter.replaceOpWithNewOp<CompareOp>(op, *predicate, compare.getLhs(),
                                           compare.getRhs());
    return success();
  }
};

/// Dropout of probability 0 is the identity.
struct RemoveIdleDropout : OpRewritePattern<DropoutOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(DropoutOp op,
                                PatternRewriter &rewriter) const override {
    if (!op.getProbability().isZero())
      return failure();
    rewriter.replaceOp(op, op.getInput());
    return success();
  }
};

/// Whether type `to` can represent every value of type `from`.
bool isLossless(Type from, Type to) {
  if (from == to || from.isInteger(1))
    return true;
  if (auto integer = dyn_cast<IntegerType>(from)) {
    if (auto wider = dyn_cast<IntegerType>(to))
      return wider.getWidth() >= integer.getWidth();
    return static_cast<unsigned>(cast<FloatType>(to).getFPMantissaWidth()) >=
           integer.getWidth();
  }
  auto narrow = cast<FloatType>(from);
  auto wide = dyn_cast<FloatType>(to);
  return wide && wide.getFPMantissaWidth() >= narrow.getFPMantissaWidth() &&
         (wide.isF32() || wide.isF64());
}

/// cast(cast(x)) is one cast where the first loses nothing.
struct JoinCasts : OpRewritePattern<CastOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(CastOp op,
                                PatternRewriter &rewriter) const override {
    auto inner = op.getInput().getDefiningOp<CastOp>();
    if (!inner || !isLossless(inner.getInput().getType().getElementType(),
                              inner.getType().getElementType()))
      return failure();
    rewriter.replaceOpWithNewOp<CastOp>(op, op.getType(), inner.getInput());
    return success();
  }
};

} // namespace

void NegOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                        MLIRContext *context) {
  patterns.add<RemoveDoubleNegation>(context);
}

void NotOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                        MLIRContext *context) {
  patterns.add<NegateComparison>(context);
}

void AddOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                        MLIRContext *context) {
  patterns.add<RemoveNeutral<AddOp>>(context, 0.0);
  patterns.add<AbsorbNegation<AddOp, SubOp>, DropBroadcast<AddOp>>(context);
}

void SubOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                        MLIRContext *context) {
  patterns.add<RemoveNeutral<SubOp>>(context, 0.0);
  patterns.add<AbsorbNegation<SubOp, AddOp>, DropBroadcast<SubOp>>(context);
}

void MulOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                        MLIRContext *context) {
  patterns.add<RemoveNeutral<MulOp>>(context, 1.0);
  patterns.add<DropBroadcast<MulOp>>(context);
}

void DivOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                        MLIRContext *context) {
  patterns.add<RemoveNeutral<DivOp>>(context, 1.0);
  patterns.add<DropBroadcast<DivOp>>(context);
}

void MaximumOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                            MLIRContext *context) {
  patterns.add<DropBroadcast<MaximumOp>>(context);
}

void MinimumOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                            MLIRContext *context) {
  patterns.add<DropBroadcast<MinimumOp>>(context);
}

void PowOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                        MLIRContext *context) {
  patterns.add<ExpandPower, DropBroadcast<PowOp>>(context);
}

void CompareOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                            MLIRContext *context) {
  patterns.add<DropBroadcast<CompareOp>>(context);
}

void SelectOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                           MLIRContext *context) {
  patterns.add<DropBroadcast<SelectOp>>(context);
}

void DropoutOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                            MLIRContext *context) {
  patterns.add<RemoveIdleDropout>(context);
}

void CastOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                         MLIRContext *context) {
  patterns.add<JoinCasts>(context);
}
