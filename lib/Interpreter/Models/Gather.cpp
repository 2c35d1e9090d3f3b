//===- Gather.cpp - Gather, scatter, rows of groups, windows --------------===//
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

/// The matrix at `place` of `matrices`, `[e, rows, columns]`, or its transpose.
static std::vector<double> matrixAt(const RefTensor &matrices, int64_t place,
                                    bool transpose) {
  int64_t rows = matrices.shape[1], columns = matrices.shape[2];
  std::vector<double> result(rows * columns);
  const double *from = matrices.floats.data() + place * rows * columns;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      result[transpose ? j * rows + i : i * columns + j] =
          from[i * columns + j];
  return result;
}

/// The numbers of the rows of each group that `place` holds.
static std::vector<std::vector<int64_t>> rowsOfGroups(const RefTensor &groups,
                                                      const Place &place) {
  std::vector<std::vector<int64_t>> result(place.size);
  for (auto [row, group] : llvm::enumerate(groups.ints))
    if (place.holds(group))
      result[group - place.begin].push_back(row);
  return result;
}

/// `rows` of `tensor`, or their transpose.
static std::vector<double> takeRows(const RefTensor &tensor,
                                    ArrayRef<int64_t> rows, bool transpose) {
  int64_t width = tensor.shape.back(), count = rows.size();
  std::vector<double> result(count * width);
  for (int64_t i = 0; i < count; ++i)
    for (int64_t j = 0; j < width; ++j)
      result[transpose ? j * count + i : i * width + j] =
          tensor.floats[rows[i] * width + j];
  return result;
}

/// `lhs[m, k] rhs[k, n]`.
static std::vector<double> product(const std::vector<double> &lhs,
                                   const std::vector<double> &rhs, int64_t m,
                                   int64_t n, int64_t k, bool inF32) {
  auto run = [&](auto zero) {
    std::vector<decltype(zero)> sums(m * n, zero);
    multiply(lhs.data(), rhs.data(), sums.data(), m, n, k);
    return std::vector<double>(sums.begin(), sums.end());
  };
  return inF32 ? run(0.0f) : run(0.0);
}

static LogicalResult evaluateGroupedLinear(GroupedLinearOp op,
                                           const RefArgs &args, Results results,
                                           ReferenceContext &context) {
  const RefTensor &rows = args[0], &weight = args[1], &groups = args[2];
  Place place = placeOf(op, args, weight.shape[0]);
  if (failed(checkIndices(op, groups, place.bound)))
    return failure();
  int64_t k = rows.shape.back(), m = results[0].shape.back();
  for (auto [group, members] : llvm::enumerate(rowsOfGroups(groups, place))) {
    std::vector<double> sums =
        product(takeRows(rows, members, /*transpose=*/false),
                matrixAt(weight, group, op.getTranspose()), members.size(), m,
                k, accumulatesInF32(rows.element, context.precision));
    for (auto [i, row] : llvm::enumerate(members))
      std::copy_n(sums.begin() + i * m, m, results[0].floats.begin() + row * m);
  }
  return success();
}

static LogicalResult
evaluateGroupedLinearWeightGrad(GroupedLinearWeightGradOp op,
                                const RefArgs &args, Results results,
                                ReferenceContext &context) {
  const RefTensor &rows = args[0], &gradient = args[1], &groups = args[2];
  Place place = placeOf(op, args, op.getSize());
  if (failed(checkIndices(op, groups, place.bound)))
    return failure();
  // The transposed matrix is the product of the gradients and the rows.
  const RefTensor &lhs = op.getTranspose() ? gradient : rows;
  const RefTensor &rhs = op.getTranspose() ? rows : gradient;
  int64_t m = lhs.shape.back(), n = rhs.shape.back();
  for (auto [group, members] : llvm::enumerate(rowsOfGroups(groups, place))) {
    std::vector<double> sums = product(
        takeRows(lhs, members, /*transpose=*/true),
        takeRows(rhs, members, /*transpose=*/false), m, n, members.size(),
        accumulatesInF32(rows.element, context.precision));
    llvm::copy(sums, results[0].floats.begin() + group * m * n);
  }
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
  ReferenceModel<GroupedLinearOp, evaluateGroupedLinear>::attach(c);
  ReferenceModel<GroupedLinearWeightGradOp,
                 evaluateGroupedLinearWeightGrad>::attach(c);
  ReferenceModel<PatchesOp, evaluatePatches>::attach(c);
  ReferenceModel<PatchesGradOp, evaluatePatchesGrad>::attach(c);
}
