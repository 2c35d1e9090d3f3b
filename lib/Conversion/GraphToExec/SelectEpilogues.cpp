//===- SelectEpilogues.cpp - What products do with their sums -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The library of a GPU applies gelu, in the form with tanh, to the sums of a
/// product before it rounds them, and writes what gelu is taken of beside; in
/// backward it multiplies sums by the slope of gelu. A kernel would read and
/// write the matrix once more. The other form of gelu stays a kernel.
///
//===----------------------------------------------------------------------===//

#include "SelectKernels.h"
#include "cleave/Dialect/Graph/IR/Attributes/Clones.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

namespace {

/// The product of 16 bits that `value` is, in its order of elements, if it
/// could do something else with its sums; null if not.
ContractOp productOf(Value value) {
  auto product = rootOf(value).getDefiningOp<ContractOp>();
  if (!product || rootOf(value) != product.getOutput() ||
      product.getAccumulator() || product.getGelu() || product.getSlopeOf())
    return nullptr;
  RankedTensorType type = tensorTypeOf(product.getOutput());
  Type element = type.getElementType();
  if (type.getRank() != 2 || !(element.isBF16() || element.isF16()) ||
      !isDense(type) || !isDense(tensorTypeOf(value)) ||
      type.getNumElements() != tensorTypeOf(value).getNumElements())
    return nullptr;
  // All matrices have rows that begin at multiples of 16 bytes.
  for (RankedTensorType matrix :
       {type, tensorTypeOf(product.getLhs()), tensorTypeOf(product.getRhs())}) {
    Strided layout = getLayout(matrix);
    int64_t row = std::max(layout.strides[0], layout.strides[1]);
    if (row % 8 != 0 || layout.offset % 8 != 0 || matrix.getNumElements() == 0)
      return nullptr;
  }
  return product;
}

/// Whether a value is without gaps, and begins at a multiple of 16 bytes: it
/// may be a part of a larger one.
bool canBeBeside(RankedTensorType type) {
  Strided layout = getLayout(type);
  bool aligned = layout.offset * elementBytes(type.getElementType()) % 16 == 0;
  layout.offset = 0;
  return aligned && isDense(withLayout(type, layout));
}

/// gelu(view(product)) -> the product's result; what it is taken of is beside.
struct SelectGelu : OpRewritePattern<graph::GeluOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(graph::GeluOp op,
                                PatternRewriter &rewriter) const override {
    ContractOp product = productOf(op.getInput());
    if (!product || !op.getTanh() ||
        tensorTypeOf(op.getOutput()).getElementType() !=
            tensorTypeOf(product.getOutput()).getElementType())
      return failure();
    Value before = product.getOutput();
    bool isRead = llvm::any_of(before.getUsers(), [&](Operation *user) {
      return user != op && !(isa<ViewOp>(user) && user->hasOneUse() &&
                             *user->getUsers().begin() == op);
    });
    rewriter.setInsertionPoint(product);
    Type type = before.getType();
    auto fused = ContractOp::create(rewriter, product.getLoc(), type,
                                    isRead ? type : Type(), product.getLhs(),
                                    product.getRhs(), product.getBias(),
                                    Value(), Value(), rewriter.getUnitAttr());
    for (StringRef name : {graph::kTwinAttr, graph::kCloneAttr})
      if (Attribute attr = product->getAttr(name))
        fused->setAttr(name, attr);
    rewriter.setInsertionPoint(op);
    Value result = viewAs(rewriter, op.getLoc(), fused.getOutput(),
                          tensorTypeOf(op.getOutput()));
    rewriter.replaceOp(op, result);
    // Without readers nothing is left of what came before.
    rewriter.replaceAllUsesWith(before,
                                isRead ? fused.getBefore() : fused.getOutput());
    rewriter.eraseOp(product);
    return success();
  }
};

/// gelu_grad(view(product), x) -> product gelu_grad x, if no kernel reads x
/// anyway.
struct SelectGeluGrad : OpRewritePattern<graph::GeluGradOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(graph::GeluGradOp op,
                                PatternRewriter &rewriter) const override {
    ContractOp product = productOf(op.getGradient());
    Value input = op.getInput();
    if (!product || !op.getTanh() || product.getBias() ||
        !op.getGradient().hasOneUse() || !input.hasOneUse() ||
        tensorTypeOf(input).getElementType() !=
            tensorTypeOf(product.getOutput()).getElementType() ||
        tensorTypeOf(op.getOutput()).getElementType() !=
            tensorTypeOf(input).getElementType() ||
        !canBeBeside(tensorTypeOf(input)))
      return failure();
    for (Value value = op.getGradient(); value != product.getOutput();) {
      value = value.getDefiningOp<ViewOp>().getInput();
      if (!value.hasOneUse())
        return failure();
    }
    rewriter.setInsertionPoint(op);
    RankedTensorType type = tensorTypeOf(product.getOutput());
    Value matrix = reshapeOf(rewriter, op.getLoc(), input, type.getShape());
    auto fused = ContractOp::create(rewriter, product.getLoc(), type, Type(),
                                    product.getLhs(), product.getRhs(), Value(),
                                    matrix, Value(), UnitAttr());
    rewriter.replaceOp(op, viewAs(rewriter, op.getLoc(), fused.getOutput(),
                                  tensorTypeOf(op.getOutput())));
    return success();
  }
};

} // namespace

void cleave::exec::populateSelectEpilogues(RewritePatternSet &patterns) {
  patterns.add<SelectGelu, SelectGeluGrad>(patterns.getContext());
}
