//===- Shape.cpp - Types of reductions and layout ops ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "VerifyPlace.h"
#include "cleave/Dialect/Graph/IR/Einsum.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/TensorType.h"

using namespace mlir;
using namespace cleave::graph;

/// Checks that `dim` is a dimension of `type`.
static LogicalResult checkDim(std::optional<Location> loc, int64_t dim,
                              RankedTensorType type) {
  if (dim >= 0 && dim < type.getRank())
    return success();
  return emitOptionalError(loc, "dim ", dim, " is not a dimension of ", type);
}

LogicalResult ReduceOp::inferReturnTypes(MLIRContext *,
                                         std::optional<Location> loc,
                                         Adaptor adaptor,
                                         SmallVectorImpl<Type> &results) {
  RankedTensorType input = denseTypeOf(adaptor.getInput());
  llvm::SmallDenseSet<int64_t> removed;
  for (int64_t dim : adaptor.getDims()) {
    if (failed(checkDim(loc, dim, input)))
      return failure();
    if (!removed.insert(dim).second)
      return emitOptionalError(loc, "dim ", dim, " is given twice");
  }
  SmallVector<int64_t> shape;
  for (auto [i, size] : llvm::enumerate(input.getShape()))
    if (!removed.contains(i))
      shape.push_back(size);
    else if (size == 0 && adaptor.getKind() != ReductionKind::Sum)
      return emitOptionalError(loc, "max and min of no elements (dimension ", i,
                               " is empty)");
  results.push_back(RankedTensorType::get(shape, input.getElementType()));
  return success();
}

LogicalResult
CumulativeSumOp::inferReturnTypes(MLIRContext *, std::optional<Location> loc,
                                  Adaptor adaptor,
                                  SmallVectorImpl<Type> &results) {
  RankedTensorType input = denseTypeOf(adaptor.getInput());
  if (failed(checkDim(loc, adaptor.getDim(), input)))
    return failure();
  results.push_back(input);
  return success();
}

LogicalResult LinearScanOp::inferReturnTypes(MLIRContext *,
                                             std::optional<Location> loc,
                                             Adaptor adaptor,
                                             SmallVectorImpl<Type> &results) {
  RankedTensorType input = denseTypeOf(adaptor.getInput());
  if (denseTypeOf(adaptor.getFactor()) != input)
    return emitOptionalError(loc, "factor ", denseTypeOf(adaptor.getFactor()),
                             " differs from input ", input);
  if (failed(checkDim(loc, adaptor.getDim(), input)))
    return failure();
  if (input.getDimSize(adaptor.getDim()) == 0)
    return emitOptionalError(loc, "recurrence of no elements (dimension ",
                             adaptor.getDim(), " is empty)");
  results.push_back(input);
  return success();
}

LogicalResult ReshapeOp::verify() {
  RankedTensorType from = denseTypeOf(getInput());
  auto to = cast<RankedTensorType>(getType());
  if (from.getNumElements() != to.getNumElements() ||
      from.getElementType() != to.getElementType())
    return emitOpError("cannot turn ") << from << " into " << to;
  return success();
}

LogicalResult TransposeOp::inferReturnTypes(MLIRContext *,
                                            std::optional<Location> loc,
                                            Adaptor adaptor,
                                            SmallVectorImpl<Type> &results) {
  RankedTensorType input = denseTypeOf(adaptor.getInput());
  ArrayRef<int64_t> permutation = adaptor.getPermutation();
  SmallVector<bool> seen(input.getRank(), false);
  bool valid = static_cast<int64_t>(permutation.size()) == input.getRank();
  for (int64_t dim : permutation) {
    valid = valid && dim >= 0 && dim < input.getRank() && !seen[dim];
    if (valid)
      seen[dim] = true;
  }
  if (!valid)
    return emitOptionalError(loc, "[", permutation,
                             "] is not a permutation of the dimensions of ",
                             input);
  SmallVector<int64_t> shape;
  for (int64_t dim : permutation)
    shape.push_back(input.getDimSize(dim));
  results.push_back(RankedTensorType::get(shape, input.getElementType()));
  return success();
}

LogicalResult BroadcastOp::verify() {
  RankedTensorType from = denseTypeOf(getInput());
  auto to = cast<RankedTensorType>(getType());
  auto shape = broadcastShapes({from.getShape(), to.getShape()});
  if (!shape || ArrayRef(*shape) != to.getShape() ||
      from.getElementType() != to.getElementType())
    return emitOpError("cannot broadcast ") << from << " to " << to;
  return success();
}

LogicalResult SliceOp::inferReturnTypes(MLIRContext *,
                                        std::optional<Location> loc,
                                        Adaptor adaptor,
                                        SmallVectorImpl<Type> &results) {
  RankedTensorType input = denseTypeOf(adaptor.getInput());
  size_t rank = input.getRank();
  if (adaptor.getOffsets().size() != rank ||
      adaptor.getSizes().size() != rank || adaptor.getStrides().size() != rank)
    return emitOptionalError(
        loc, "offsets, sizes and strides need one value for each of the ", rank,
        " dimensions of ", input);
  for (size_t i = 0; i < rank; ++i) {
    int64_t offset = adaptor.getOffsets()[i], size = adaptor.getSizes()[i],
            stride = adaptor.getStrides()[i];
    bool inside =
        offset >= 0 && size >= 0 && stride >= 1 &&
        (size == 0 ? offset <= input.getDimSize(i)
                   : offset + (size - 1) * stride < input.getDimSize(i));
    if (!inside)
      return emitOptionalError(loc, "slice of dimension ", i, " (offset ",
                               offset, ", size ", size, ", stride ", stride,
                               ") leaves ", input);
  }
  results.push_back(
      RankedTensorType::get(adaptor.getSizes(), input.getElementType()));
  return success();
}

LogicalResult PadOp::inferReturnTypes(MLIRContext *,
                                      std::optional<Location> loc,
                                      Adaptor adaptor,
                                      SmallVectorImpl<Type> &results) {
  RankedTensorType input = denseTypeOf(adaptor.getInput());
  size_t rank = input.getRank();
  if (adaptor.getLow().size() != rank || adaptor.getHigh().size() != rank ||
      adaptor.getInterior().size() != rank)
    return emitOptionalError(
        loc, "low, high and interior need one value for each of the ", rank,
        " dimensions of ", input);
  SmallVector<int64_t> shape;
  for (size_t i = 0; i < rank; ++i) {
    int64_t low = adaptor.getLow()[i], high = adaptor.getHigh()[i],
            interior = adaptor.getInterior()[i], size = input.getDimSize(i);
    if (low < 0 || high < 0 || interior < 0)
      return emitOptionalError(loc, "padding of dimension ", i,
                               " is negative; use graph.slice");
    shape.push_back(low + high +
                    (size == 0 ? 0 : (size - 1) * (interior + 1) + 1));
  }
  results.push_back(RankedTensorType::get(shape, input.getElementType()));
  return success();
}

LogicalResult ConcatOp::inferReturnTypes(MLIRContext *,
                                         std::optional<Location> loc,
                                         Adaptor adaptor,
                                         SmallVectorImpl<Type> &results) {
  if (adaptor.getInputs().empty())
    return emitOptionalError(loc, "needs at least one operand");
  RankedTensorType first = denseTypeOf(adaptor.getInputs().front());
  int64_t dim = adaptor.getDim();
  if (failed(checkDim(loc, dim, first)))
    return failure();
  SmallVector<int64_t> shape(first.getShape());
  for (Value value : adaptor.getInputs().drop_front()) {
    RankedTensorType type = denseTypeOf(value);
    bool fits = type.getRank() == first.getRank() &&
                type.getElementType() == first.getElementType();
    for (int64_t i = 0; fits && i < first.getRank(); ++i)
      fits = i == dim || type.getDimSize(i) == first.getDimSize(i);
    if (!fits)
      return emitOptionalError(loc, "cannot concatenate ", first, " and ", type,
                               " along dim ", dim);
    shape[dim] += type.getDimSize(dim);
  }
  results.push_back(RankedTensorType::get(shape, first.getElementType()));
  return success();
}

/// Checks that the first `batch` dimensions of `indices` are those of `other`,
/// and that `dim` comes after them.
static LogicalResult checkBatch(std::optional<Location> loc, int64_t batch,
                                int64_t dim, RankedTensorType other,
                                RankedTensorType indices) {
  if (batch < 0 || batch > dim || batch > indices.getRank())
    return emitOptionalError(
        loc, "batch is ", batch, "; it must not exceed dim (", dim,
        ") nor the rank of the indices (", indices.getRank(), ")");
  if (indices.getShape().take_front(batch) !=
      other.getShape().take_front(batch))
    return emitOptionalError(loc, "the first ", batch, " dimensions of ",
                             indices, " must be those of ", other);
  return success();
}

LogicalResult GatherOp::inferReturnTypes(MLIRContext *,
                                         std::optional<Location> loc,
                                         Adaptor adaptor,
                                         SmallVectorImpl<Type> &results) {
  RankedTensorType input = denseTypeOf(adaptor.getInput());
  RankedTensorType indices = denseTypeOf(adaptor.getIndices());
  int64_t dim = adaptor.getDim();
  int64_t batch = adaptor.getBatch();
  if (failed(checkDim(loc, dim, input)) ||
      failed(checkBatch(loc, batch, dim, input, indices)))
    return failure();
  SmallVector<int64_t> shape(input.getShape().take_front(dim));
  llvm::append_range(shape, indices.getShape().drop_front(batch));
  llvm::append_range(shape, input.getShape().drop_front(dim + 1));
  results.push_back(RankedTensorType::get(shape, input.getElementType()));
  return success();
}

LogicalResult ScatterAddOp::inferReturnTypes(MLIRContext *,
                                             std::optional<Location> loc,
                                             Adaptor adaptor,
                                             SmallVectorImpl<Type> &results) {
  RankedTensorType updates = denseTypeOf(adaptor.getUpdates());
  RankedTensorType indices = denseTypeOf(adaptor.getIndices());
  int64_t dim = adaptor.getDim(), size = adaptor.getSize();
  int64_t batch = adaptor.getBatch();
  if (size < 0 || dim < 0 || dim > updates.getRank())
    return emitOptionalError(loc, "dim ", dim, " and size ", size,
                             " do not fit updates ", updates);
  if (failed(checkBatch(loc, batch, dim, updates, indices)))
    return failure();
  ArrayRef<int64_t> own = indices.getShape().drop_front(batch);
  if (dim + static_cast<int64_t>(own.size()) > updates.getRank() ||
      updates.getShape().slice(dim, own.size()) != own)
    return emitOptionalError(loc, "indices ", indices,
                             " do not match dimensions from ", dim, " on of ",
                             updates);
  SmallVector<int64_t> shape(updates.getShape().take_front(dim));
  shape.push_back(size);
  llvm::append_range(shape, updates.getShape().drop_front(dim + own.size()));
  Type element;
  if (failed(inferSumType(loc, updates.getElementType(),
                          adaptor.getResultElement(), element)))
    return failure();
  results.push_back(RankedTensorType::get(shape, element));
  return success();
}

LogicalResult TopKOp::inferReturnTypes(MLIRContext *context,
                                       std::optional<Location> loc,
                                       Adaptor adaptor,
                                       SmallVectorImpl<Type> &results) {
  RankedTensorType input = denseTypeOf(adaptor.getInput());
  int64_t k = adaptor.getK();
  if (input.getRank() == 0)
    return emitOptionalError(loc, "the input is a scalar; it must have a "
                                  "dimension to choose from");
  int64_t size = input.getShape().back();
  if (k < 1 || k > size)
    return emitOptionalError(loc, "k is ", k, "; the last dimension of ", input,
                             " allows 1 to ", size);
  SmallVector<int64_t> shape(input.getShape());
  shape.back() = k;
  results.push_back(input.clone(shape));
  results.push_back(
      RankedTensorType::get(shape, IntegerType::get(context, 64)));
  return success();
}

LogicalResult OneHotOp::inferReturnTypes(MLIRContext *context,
                                         std::optional<Location> loc,
                                         Adaptor adaptor,
                                         SmallVectorImpl<Type> &results) {
  int64_t size = adaptor.getSize();
  if (size < 0)
    return emitOptionalError(loc, "size must not be negative");
  SmallVector<int64_t> shape(denseTypeOf(adaptor.getIndices()).getShape());
  shape.push_back(size);
  results.push_back(RankedTensorType::get(shape, IntegerType::get(context, 1)));
  return success();
}

LogicalResult GatherOp::verify() { return verifyPlace(*this); }

LogicalResult ScatterAddOp::verify() { return verifyPlace(*this); }

/// The shape of `flags` packed to bytes; of rank 1 at least.
static SmallVector<int64_t> packedShape(RankedTensorType flags) {
  SmallVector<int64_t> shape(flags.getShape());
  shape.back() = (shape.back() + 7) / 8;
  return shape;
}

LogicalResult PackBitsOp::inferReturnTypes(MLIRContext *context,
                                           std::optional<Location> loc,
                                           Adaptor adaptor,
                                           SmallVectorImpl<Type> &results) {
  RankedTensorType input = denseTypeOf(adaptor.getInput());
  if (input.getRank() == 0)
    return emitOptionalError(loc, "needs a last dimension");
  results.push_back(
      RankedTensorType::get(packedShape(input), IntegerType::get(context, 8)));
  return success();
}

LogicalResult UnpackBitsOp::verify() {
  RankedTensorType from = denseTypeOf(getInput()),
                   to = denseTypeOf(getOutput());
  if (to.getRank() == 0 || !from.getElementType().isInteger(8) ||
      ArrayRef(packedShape(to)) != from.getShape())
    return emitOpError("cannot unpack ") << from << " to " << to;
  return success();
}

LogicalResult OneHotOp::verify() { return verifyPlace(*this); }

/// Number of window positions along one image dimension, or -1.
static int64_t windowCount(int64_t size, int64_t kernel, int64_t stride,
                           int64_t padding, int64_t dilation) {
  if (kernel < 1 || stride < 1 || padding < 0 || dilation < 1)
    return -1;
  int64_t span = dilation * (kernel - 1) + 1;
  if (size + 2 * padding < span)
    return -1;
  return (size + 2 * padding - span) / stride + 1;
}

LogicalResult PatchesOp::inferReturnTypes(MLIRContext *,
                                          std::optional<Location> loc,
                                          Adaptor adaptor,
                                          SmallVectorImpl<Type> &results) {
  RankedTensorType input = denseTypeOf(adaptor.getInput());
  if (input.getRank() != 4 || adaptor.getKernel().size() != 2 ||
      adaptor.getStride().size() != 2 || adaptor.getPadding().size() != 2 ||
      adaptor.getDilation().size() != 2)
    return emitOptionalError(loc, "needs an input [n, c, h, w] and two values "
                                  "each of kernel, stride, padding, dilation");
  SmallVector<int64_t> shape{
      input.getDimSize(0),   0, 0, input.getDimSize(1), adaptor.getKernel()[0],
      adaptor.getKernel()[1]};
  for (int i = 0; i < 2; ++i) {
    shape[1 + i] = windowCount(input.getDimSize(2 + i), adaptor.getKernel()[i],
                               adaptor.getStride()[i], adaptor.getPadding()[i],
                               adaptor.getDilation()[i]);
    if (shape[1 + i] < 1)
      return emitOptionalError(loc, "no window fits image dimension ", i,
                               " of ", input);
  }
  results.push_back(RankedTensorType::get(shape, input.getElementType()));
  return success();
}

LogicalResult PatchesGradOp::inferReturnTypes(MLIRContext *,
                                              std::optional<Location> loc,
                                              Adaptor adaptor,
                                              SmallVectorImpl<Type> &results) {
  RankedTensorType gradient = denseTypeOf(adaptor.getGradient());
  bool valid =
      gradient.getRank() == 6 && adaptor.getImage().size() == 2 &&
      adaptor.getKernel().size() == 2 && adaptor.getStride().size() == 2 &&
      adaptor.getPadding().size() == 2 && adaptor.getDilation().size() == 2;
  for (int i = 0; valid && i < 2; ++i)
    valid = gradient.getDimSize(4 + i) == adaptor.getKernel()[i] &&
            gradient.getDimSize(1 + i) ==
                windowCount(adaptor.getImage()[i], adaptor.getKernel()[i],
                            adaptor.getStride()[i], adaptor.getPadding()[i],
                            adaptor.getDilation()[i]);
  if (!valid)
    return emitOptionalError(loc, "gradient ", gradient,
                             " is not of the shape graph.patches gives for "
                             "this image and window");
  results.push_back(
      RankedTensorType::get({gradient.getDimSize(0), gradient.getDimSize(3),
                             adaptor.getImage()[0], adaptor.getImage()[1]},
                            gradient.getElementType()));
  return success();
}
