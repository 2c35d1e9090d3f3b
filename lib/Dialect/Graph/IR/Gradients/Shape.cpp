//===- Shape.cpp - Gradients of reductions and layout ops -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Gradients.h"

using namespace mlir;
using namespace cleave::graph;

CLEAVE_GRADIENTS(ReduceOp) {
  Value g = resultGradients[0];
  if (!g || !needed[0])
    return success();
  Formula f{builder, getLoc()};
  ArrayRef<int64_t> shape = getInput().getType().getShape();
  if (getKind() == ReductionKind::Sum) {
    operandGradients[0] = f.expandTo(g, getDims(), shape);
    return success();
  }
  // The gradient of a maximum or minimum is divided equally between equal
  // elements.
  Value extremes = f.expandTo(getOutput(), getDims(), shape);
  Value chosen = f.compare(Predicate::eq, getInput(), extremes);
  // A product, so that a row whose extreme is NaN, which no element equals,
  // has a gradient of NaN.
  Value ones = f.cast(chosen, tensorTypeOf(g).getElementType());
  Value share = f.div(g, f.sum(ones, getDims()));
  operandGradients[0] = f.mul(ones, f.expandTo(share, getDims(), shape));
  return success();
}

CLEAVE_GRADIENTS(CumulativeSumOp) {
  if (resultGradients[0] && needed[0])
    operandGradients[0] = CumulativeSumOp::create(
        builder, getLoc(), resultGradients[0], getDim(), !getReverse());
  return success();
}

/// The tensor whose element at `t` along `dim` is that of `x` at `t - 1`, or at
/// `t + 1` if `forward` is off, and zero where `x` has none.
static Value shifted(Formula f, Value x, int64_t dim, bool forward) {
  SmallVector<int64_t> sizes(tensorTypeOf(x).getShape());
  if (sizes[dim] == 1)
    return f.splat(tensorTypeOf(x), 0.0);
  SmallVector<int64_t> none(sizes.size(), 0), ones(sizes.size(), 1);
  SmallVector<int64_t> offsets = none, low = none, high = none;
  --sizes[dim];
  (forward ? low : offsets)[dim] = 1;
  if (!forward)
    high[dim] = 1;
  Value kept = SliceOp::create(f.builder, f.loc, x, offsets, sizes, ones);
  return PadOp::create(f.builder, f.loc, kept, llvm::APFloat(0.0), low, high,
                       none);
}

CLEAVE_GRADIENTS(LinearScanOp) {
  Value g = resultGradients[0];
  if (!g || (!needed[0] && !needed[1]))
    return success();
  Formula f{builder, getLoc()};
  // An element reaches the result at its place, and all later ones through
  // their factors: the gradient follows the same recurrence backward, in which
  // each factor leads to the place before it.
  int64_t dim = getDim();
  bool forward = !getReverse();
  Value total = LinearScanOp::create(
      builder, getLoc(), shifted(f, getFactor(), dim, !forward), g, dim,
      /*reverse=*/forward);
  if (needed[0])
    operandGradients[0] = f.mul(total, shifted(f, getOutput(), dim, forward));
  operandGradients[1] = total;
  return success();
}

CLEAVE_GRADIENTS(TopKOp) {
  Value g = resultGradients[0];
  if (!g || !needed[0])
    return success();
  // Each element receives the gradient of the results for which it was chosen.
  Formula f{builder, getLoc()};
  SmallVector<int64_t> shape(tensorTypeOf(g).getShape());
  int64_t place = shape.size() - 1;
  IntegerAttr last = builder.getI64IntegerAttr(place),
              size = builder.getI64IntegerAttr(
                  getInput().getType().getShape().back());
  // Of many, a flag for each element and each result would be too large.
  if (static_cast<int64_t>(getK()) > 8) {
    operandGradients[0] = ScatterAddOp::create(
        builder, getLoc(), g, getIndices(), /*origin=*/Value(), /*dim=*/last,
        size, /*padding_index=*/IntegerAttr(), /*global_size=*/IntegerAttr(),
        /*batch=*/last);
    return success();
  }
  shape.push_back(1);
  Value chosen = OneHotOp::create(
      builder, getLoc(), getIndices(), /*origin=*/Value(), size,
      /*ignore_index=*/IntegerAttr(), /*global_size=*/IntegerAttr());
  operandGradients[0] =
      f.sum(f.select(chosen, f.reshape(g, shape), f.scalar(g, 0.0)), {place});
  return success();
}

CLEAVE_GRADIENTS(ReshapeOp) {
  if (resultGradients[0] && needed[0])
    operandGradients[0] = Formula{builder, getLoc()}.reshape(
        resultGradients[0], getInput().getType().getShape());
  return success();
}

CLEAVE_GRADIENTS(TransposeOp) {
  if (!resultGradients[0] || !needed[0])
    return success();
  SmallVector<int64_t> inverse(getPermutation().size());
  for (auto [to, from] : llvm::enumerate(getPermutation()))
    inverse[from] = to;
  operandGradients[0] =
      TransposeOp::create(builder, getLoc(), resultGradients[0], inverse);
  return success();
}

CLEAVE_GRADIENTS(BroadcastOp) {
  if (resultGradients[0] && needed[0])
    operandGradients[0] = Formula{builder, getLoc()}.reduceTo(
        resultGradients[0], getInput().getType().getShape());
  return success();
}

CLEAVE_GRADIENTS(SliceOp) {
  if (!resultGradients[0] || !needed[0])
    return success();
  SmallVector<int64_t> low(getOffsets()), high, interior;
  for (auto [i, size] : llvm::enumerate(getSizes())) {
    if (size == 0)
      return success(); // nothing was read, so nothing flows back
    int64_t end = getOffsets()[i] + (size - 1) * getStrides()[i] + 1;
    high.push_back(getInput().getType().getDimSize(i) - end);
    interior.push_back(getStrides()[i] - 1);
  }
  operandGradients[0] = PadOp::create(builder, getLoc(), resultGradients[0],
                                      llvm::APFloat(0.0), low, high, interior);
  return success();
}

CLEAVE_GRADIENTS(PadOp) {
  if (!resultGradients[0] || !needed[0])
    return success();
  SmallVector<int64_t> strides;
  for (int64_t gap : getInterior())
    strides.push_back(gap + 1);
  operandGradients[0] = SliceOp::create(
      builder, getLoc(), resultGradients[0], SmallVector<int64_t>(getLow()),
      SmallVector<int64_t>(getInput().getType().getShape()), strides);
  return success();
}

CLEAVE_GRADIENTS(ConcatOp) {
  if (!resultGradients[0])
    return success();
  SmallVector<int64_t> offsets(getType().getRank(), 0),
      strides(getType().getRank(), 1);
  for (auto [i, input] : llvm::enumerate(getInputs())) {
    ArrayRef<int64_t> sizes = tensorTypeOf(input).getShape();
    if (needed[i])
      operandGradients[i] = SliceOp::create(
          builder, getLoc(), resultGradients[0], offsets, sizes, strides);
    offsets[getDim()] += sizes[getDim()];
  }
  return success();
}

CLEAVE_GRADIENTS(GatherOp) {
  if (resultGradients[0] && needed[0])
    operandGradients[0] = ScatterAddOp::create(
        builder, getLoc(), resultGradients[0], getIndices(), getOrigin(),
        getDimAttr(),
        builder.getI64IntegerAttr(getInput().getType().getDimSize(getDim())),
        getPaddingIndexAttr(), getGlobalSizeAttr(), getBatchAttr());
  return success();
}

CLEAVE_GRADIENTS(ScatterAddOp) {
  Value g = resultGradients[0];
  if (!g || !needed[0])
    return success();
  Formula f{builder, getLoc()};
  Value rows = GatherOp::create(
      builder, getLoc(), g, getIndices(), getOrigin(), getDimAttr(),
      /*padding_index=*/IntegerAttr(), getGlobalSizeAttr(), getBatchAttr());
  if (std::optional<int64_t> padding = getPaddingIndex()) {
    // Updates at the padding index were dropped.
    Value dropped = f.compare(Predicate::eq, getIndices(),
                              f.scalar(getIndices(), *padding));
    ArrayRef<int64_t> indices = getIndices().getType().getShape();
    SmallVector<int64_t> shape(indices.take_front(getBatch()));
    shape.append(getDim() - getBatch(), 1);
    llvm::append_range(shape, indices.drop_front(getBatch()));
    shape.append(tensorTypeOf(rows).getRank() - shape.size(), 1);
    rows = f.select(f.reshape(dropped, shape), f.scalar(g, 0.0), rows);
  }
  operandGradients[0] = f.cast(rows, getUpdates().getType().getElementType());
  return success();
}

CLEAVE_GRADIENTS(PatchesOp) {
  if (resultGradients[0] && needed[0])
    operandGradients[0] = PatchesGradOp::create(
        builder, getLoc(), resultGradients[0],
        getInput().getType().getShape().take_back(2), getKernel(), getStride(),
        getPadding(), getDilation());
  return success();
}

CLEAVE_GRADIENTS(PatchesGradOp) {
  if (resultGradients[0] && needed[0])
    operandGradients[0] =
        PatchesOp::create(builder, getLoc(), resultGradients[0], getKernel(),
                          getStride(), getPadding(), getDilation());
  return success();
}
