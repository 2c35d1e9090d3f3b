//===- Gather.cpp - Gather, scatter and windows ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Models.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

static int64_t product(ArrayRef<int64_t> sizes) {
  int64_t result = 1;
  for (int64_t size : sizes)
    result *= size;
  return result;
}

/// Reports the first index outside `[0, bound)`, except `exempt`.
static LogicalResult checkIndices(Operation *op, const RefTensor &indices,
                                  int64_t bound,
                                  std::optional<int64_t> exempt = {}) {
  for (auto [i, index] : llvm::enumerate(indices.ints))
    if ((index < 0 || index >= bound) && exempt != index)
      return op->emitOpError("index ")
             << index << " (element " << i << " of the indices) is outside [0, "
             << bound << ")";
  return success();
}

/// The `size` elements from `begin` on of a global dimension of `bound`
/// elements.
namespace {
struct Place {
  int64_t begin = 0, size, bound;

  bool holds(int64_t index) const {
    return index >= begin && index < begin + size;
  }
};
} // namespace

template <typename Op>
static Place placeOf(Op op, const RefArgs &args, int64_t size) {
  Place place{0, size, static_cast<int64_t>(op.getGlobalSize().value_or(size))};
  if (Value origin = op.getOrigin())
    place.begin = args[origin].ints[0];
  return place;
}

/// The indices for slice `p` of the `slices` before the dimension.
template <typename Op>
static ArrayRef<int64_t> indicesAt(Op op, const RefTensor &indices, int64_t p,
                                   int64_t slices) {
  int64_t groups = product(ArrayRef(indices.shape).take_front(op.getBatch()));
  if (groups == 0)
    return {};
  int64_t count = indices.ints.size() / groups;
  return ArrayRef(indices.ints).slice(p / (slices / groups) * count, count);
}

static LogicalResult evaluateGather(GatherOp op, const RefArgs &args,
                                    Results results, ReferenceContext &) {
  const RefTensor &input = args[0], &indices = args[1];
  ArrayRef<int64_t> shape = input.shape;
  int64_t dim = op.getDim();
  Place place = placeOf(op, args, shape[dim]);
  if (failed(checkIndices(op, indices, place.bound)))
    return failure();
  int64_t before = product(shape.take_front(dim));
  int64_t after = product(shape.drop_front(dim + 1));
  int64_t to = 0;
  for (int64_t p = 0; p < before; ++p)
    for (int64_t index : indicesAt(op, indices, p, before)) {
      if (!place.holds(index)) {
        to += after; // zeros
        continue;
      }
      for (int64_t s = 0; s < after; ++s)
        results[0].copyElement(
            to++, input, (p * shape[dim] + index - place.begin) * after + s);
    }
  return success();
}

static LogicalResult evaluateScatterAdd(ScatterAddOp op, const RefArgs &args,
                                        Results results,
                                        ReferenceContext &context) {
  const RefTensor &updates = args[0], &indices = args[1];
  RefTensor &output = results[0];
  int64_t dim = op.getDim(), size = op.getSize();
  std::optional<int64_t> padding;
  if (op.getPaddingIndex())
    padding = static_cast<int64_t>(*op.getPaddingIndex());
  Place place = placeOf(op, args, size);
  if (failed(checkIndices(op, indices, place.bound, padding)))
    return failure();
  ArrayRef<int64_t> shape = output.shape;
  int64_t before = product(shape.take_front(dim));
  int64_t after = product(shape.drop_front(dim + 1));
  bool inF32 = accumulatesInF32(updates.element, context.precision);
  int64_t from = 0;
  for (int64_t p = 0; p < before; ++p)
    for (int64_t index : indicesAt(op, indices, p, before)) {
      if (padding == index || !place.holds(index)) {
        from += after;
        continue;
      }
      for (int64_t s = 0; s < after; ++s) {
        double &sum =
            output.floats[(p * size + index - place.begin) * after + s];
        sum += updates.floats[from++];
        if (inF32)
          sum = static_cast<float>(sum);
      }
    }
  return success();
}

static LogicalResult evaluateOneHot(OneHotOp op, const RefArgs &args,
                                    Results results, ReferenceContext &) {
  const RefTensor &indices = args[op.getIndices()];
  int64_t size = op.getSize();
  Place place = placeOf(op, args, size);
  std::optional<int64_t> ignored;
  if (op.getIgnoreIndex())
    ignored = static_cast<int64_t>(*op.getIgnoreIndex());
  if (failed(checkIndices(op, indices, place.bound, ignored)))
    return failure();
  for (auto [i, index] : llvm::enumerate(indices.ints))
    if (ignored != index && place.holds(index))
      results[0].ints[i * size + index - place.begin] = 1;
  return success();
}

/// Calls `fn(patch, pixel)` for each element of the windows that is inside the
/// image, with its offset in the patches `[n, oh, ow, c, kh, kw]` and in the
/// image `[n, c, h, w]`.
template <typename OpTy, typename Fn>
static void forEachPixel(OpTy op, ArrayRef<int64_t> patches,
                         ArrayRef<int64_t> image, Fn fn) {
  ArrayRef<int64_t> stride = op.getStride(), padding = op.getPadding(),
                    dilation = op.getDilation();
  int64_t patch = 0;
  for (int64_t n = 0; n < patches[0]; ++n)
    for (int64_t oh = 0; oh < patches[1]; ++oh)
      for (int64_t ow = 0; ow < patches[2]; ++ow)
        for (int64_t c = 0; c < patches[3]; ++c)
          for (int64_t kh = 0; kh < patches[4]; ++kh)
            for (int64_t kw = 0; kw < patches[5]; ++kw, ++patch) {
              int64_t h = oh * stride[0] - padding[0] + kh * dilation[0];
              int64_t w = ow * stride[1] - padding[1] + kw * dilation[1];
              if (h >= 0 && h < image[2] && w >= 0 && w < image[3])
                fn(patch, ((n * image[1] + c) * image[2] + h) * image[3] + w);
            }
}

static LogicalResult evaluatePatches(PatchesOp op, const RefArgs &args,
                                     Results results, ReferenceContext &) {
  forEachPixel(op, results[0].shape, args[0].shape,
               [&](int64_t patch, int64_t pixel) {
                 results[0].floats[patch] = args[0].floats[pixel];
               });
  return success();
}

static LogicalResult evaluatePatchesGrad(PatchesGradOp op, const RefArgs &args,
                                         Results results,
                                         ReferenceContext &context) {
  bool inF32 = accumulatesInF32(args[0].element, context.precision);
  forEachPixel(op, args[0].shape, results[0].shape,
               [&](int64_t patch, int64_t pixel) {
                 double &sum = results[0].floats[pixel];
                 sum += args[0].floats[patch];
                 if (inF32)
                   sum = static_cast<float>(sum);
               });
  return success();
}

void cleave::attachGatherModels(MLIRContext *c) {
  ReferenceModel<GatherOp, evaluateGather>::attach(c);
  ReferenceModel<ScatterAddOp, evaluateScatterAdd>::attach(c);
  ReferenceModel<OneHotOp, evaluateOneHot>::attach(c);
  ReferenceModel<PatchesOp, evaluatePatches>::attach(c);
  ReferenceModel<PatchesGradOp, evaluatePatchesGrad>::attach(c);
}
