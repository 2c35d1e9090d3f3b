//===- Shape.cpp - Reductions and layout ops ------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Models.h"
#include <cmath>
#include <limits>
#include <numeric>

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

//===----------------------------------------------------------------------===//
// Reductions
//===----------------------------------------------------------------------===//

/// `a` and `b` combined by `kind`; NaN wins over any number.
static double combine(ReductionKind kind, double a, double b) {
  if (kind == ReductionKind::Sum)
    return a + b;
  if (std::isnan(a) || std::isnan(b))
    return std::isnan(a) ? a : b;
  return kind == ReductionKind::Max ? std::max(a, b) : std::min(a, b);
}

static int64_t combine(ReductionKind kind, int64_t a, int64_t b) {
  if (kind == ReductionKind::Sum)
    return int64_t(uint64_t(a) + uint64_t(b));
  return kind == ReductionKind::Max ? std::max(a, b) : std::min(a, b);
}

static LogicalResult evaluateReduce(ReduceOp op, const RefArgs &args,
                                    Results results,
                                    ReferenceContext &context) {
  const RefTensor &input = args[0];
  RefTensor &output = results[0];
  ReductionKind kind = op.getKind();
  // Offsets in the output of the elements of the input: stride 0 along the
  // dimensions that are removed.
  SmallVector<int64_t, 4> kept = output.strides(), strides;
  for (int64_t dim = 0, next = 0; dim < input.rank(); ++dim)
    strides.push_back(llvm::is_contained(op.getDims(), dim) ? 0 : kept[next++]);
  bool inF32 = accumulatesInF32(input.element, context.precision) &&
               kind == ReductionKind::Sum;
  std::vector<bool> seen(output.size(), kind == ReductionKind::Sum);
  forEachIndex<1>(
      input.shape, {strides}, [&](int64_t i, const std::array<int64_t, 1> &at) {
        int64_t to = at[0];
        if (!seen[to]) {
          output.copyElement(to, input, i);
          seen[to] = true;
        } else if (!input.isFloat()) {
          output.ints[to] = combine(kind, output.ints[to], input.ints[i]);
        } else {
          double sum = combine(kind, output.floats[to], input.floats[i]);
          output.floats[to] = inF32 ? static_cast<float>(sum) : sum;
        }
      });
  return success();
}

static LogicalResult evaluateCumulativeSum(CumulativeSumOp op,
                                           const RefArgs &args, Results results,
                                           ReferenceContext &context) {
  const RefTensor &input = args[0];
  RefTensor &output = results[0];
  int64_t step = input.strides()[op.getDim()];
  int64_t count = input.shape[op.getDim()];
  bool inF32 = accumulatesInF32(input.element, context.precision);
  for (int64_t first = 0; first < input.size(); ++first) {
    if (first / step % count != 0)
      continue;
    double sum = 0;
    uint64_t intSum = 0;
    for (int64_t n = 0; n < count; ++n) {
      int64_t at = first + step * (op.getReverse() ? count - 1 - n : n);
      if (input.isFloat()) {
        sum += input.floats[at];
        if (inF32)
          sum = static_cast<float>(sum);
        output.floats[at] = sum;
      } else {
        intSum += uint64_t(input.ints[at]);
        output.ints[at] = int64_t(intSum);
      }
    }
  }
  return success();
}

static LogicalResult evaluateLinearScan(LinearScanOp op, const RefArgs &args,
                                        Results results,
                                        ReferenceContext &context) {
  const RefTensor &factor = args[0], &input = args[1];
  RefTensor &output = results[0];
  int64_t step = input.strides()[op.getDim()];
  int64_t count = input.shape[op.getDim()];
  bool inF32 = accumulatesInF32(input.element, context.precision);
  auto rounded = [&](double x) { return inF32 ? static_cast<float>(x) : x; };
  for (int64_t first = 0; first < input.size(); ++first) {
    if (first / step % count != 0)
      continue;
    double state = 0;
    for (int64_t n = 0; n < count; ++n) {
      int64_t at = first + step * (op.getReverse() ? count - 1 - n : n);
      double kept = rounded(factor.floats[at] * state);
      state = rounded(kept + input.floats[at]);
      output.floats[at] = state;
    }
  }
  return success();
}

static LogicalResult evaluateTopK(TopKOp op, const RefArgs &args,
                                  Results results, ReferenceContext &) {
  const RefTensor &input = args[0];
  int64_t size = input.shape.back(), k = op.getK();
  std::vector<int64_t> order(size);
  for (int64_t row = 0; row < input.size() / size; ++row) {
    const double *x = input.floats.data() + row * size;
    auto key = [&](int64_t i) {
      return std::isnan(x[i]) ? std::numeric_limits<double>::infinity() : x[i];
    };
    std::iota(order.begin(), order.end(), 0);
    llvm::stable_sort(order,
                      [&](int64_t a, int64_t b) { return key(a) > key(b); });
    for (int64_t i = 0; i < k; ++i) {
      results[0].floats[row * k + i] = x[order[i]];
      results[1].ints[row * k + i] = order[i];
    }
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Layout ops
//===----------------------------------------------------------------------===//

/// Copies, for each index of `shape`, the element at `from` of `input` to that
/// at `to` of `output`; the strides are those of each dimension in either
/// tensor.
static void copyStrided(ArrayRef<int64_t> shape, const RefTensor &input,
                        int64_t from, ArrayRef<int64_t> fromStrides,
                        RefTensor &output, int64_t to,
                        ArrayRef<int64_t> toStrides) {
  forEachIndex<2>(shape,
                  {SmallVector<int64_t, 4>(fromStrides),
                   SmallVector<int64_t, 4>(toStrides)},
                  [&](int64_t, const std::array<int64_t, 2> &at) {
                    output.copyElement(to + at[1], input, from + at[0]);
                  });
}

static LogicalResult evaluateReshape(ReshapeOp, const RefArgs &args,
                                     Results results, ReferenceContext &) {
  results[0].floats = args[0].floats;
  results[0].ints = args[0].ints;
  return success();
}

static LogicalResult evaluateTranspose(TransposeOp op, const RefArgs &args,
                                       Results results, ReferenceContext &) {
  SmallVector<int64_t, 4> own = args[0].strides(), permuted;
  for (int64_t dim : op.getPermutation())
    permuted.push_back(own[dim]);
  copyStrided(results[0].shape, args[0], 0, permuted, results[0], 0,
              results[0].strides());
  return success();
}

static LogicalResult evaluateBroadcast(BroadcastOp, const RefArgs &args,
                                       Results results, ReferenceContext &) {
  copyStrided(results[0].shape, args[0], 0,
              broadcastStrides(args[0], results[0].shape), results[0], 0,
              results[0].strides());
  return success();
}

static LogicalResult evaluateSlice(SliceOp op, const RefArgs &args,
                                   Results results, ReferenceContext &) {
  SmallVector<int64_t, 4> strides = args[0].strides();
  int64_t first = 0;
  for (auto [dim, offset] : llvm::enumerate(op.getOffsets())) {
    first += offset * strides[dim];
    strides[dim] *= op.getStrides()[dim];
  }
  copyStrided(results[0].shape, args[0], first, strides, results[0], 0,
              results[0].strides());
  return success();
}

static LogicalResult evaluatePad(PadOp op, const RefArgs &args, Results results,
                                 ReferenceContext &) {
  RefTensor &output = results[0];
  double value = op.getValue().convertToDouble();
  if (output.isFloat())
    output.floats.assign(output.size(), value);
  else
    output.ints.assign(output.size(), truncateTo(output.element, value));
  SmallVector<int64_t, 4> strides = output.strides();
  int64_t first = 0;
  for (auto [dim, low] : llvm::enumerate(op.getLow())) {
    first += low * strides[dim];
    strides[dim] *= op.getInterior()[dim] + 1;
  }
  copyStrided(args[0].shape, args[0], 0, args[0].strides(), output, first,
              strides);
  return success();
}

static LogicalResult evaluateConcat(ConcatOp op, const RefArgs &args,
                                    Results results, ReferenceContext &) {
  SmallVector<int64_t, 4> strides = results[0].strides();
  int64_t first = 0;
  for (unsigned i = 0; i < args.size(); ++i) {
    copyStrided(args[i].shape, args[i], 0, args[i].strides(), results[0], first,
                strides);
    first += args[i].shape[op.getDim()] * strides[op.getDim()];
  }
  return success();
}

static LogicalResult evaluatePackBits(PackBitsOp, const RefArgs &args,
                                      Results results, ReferenceContext &) {
  int64_t flags = args[0].shape.back(), bytes = results[0].shape.back();
  for (int64_t i = 0; i < args[0].size(); ++i) {
    int64_t &byte = results[0].ints[i / flags * bytes + i % flags / 8];
    // The largest bit is the sign.
    int64_t bit = i % flags % 8;
    if (args[0].ints[i])
      byte += bit == 7 ? -128 : int64_t(1) << bit;
  }
  return success();
}

static LogicalResult evaluateUnpackBits(UnpackBitsOp, const RefArgs &args,
                                        Results results, ReferenceContext &) {
  int64_t flags = results[0].shape.back(), bytes = args[0].shape.back();
  for (int64_t i = 0; i < results[0].size(); ++i) {
    int64_t byte = args[0].ints[i / flags * bytes + i % flags / 8];
    results[0].ints[i] = byte >> (i % flags % 8) & 1;
  }
  return success();
}

void cleave::attachShapeModels(MLIRContext *c) {
  ReferenceModel<ReduceOp, evaluateReduce>::attach(c);
  ReferenceModel<CumulativeSumOp, evaluateCumulativeSum>::attach(c);
  ReferenceModel<LinearScanOp, evaluateLinearScan>::attach(c);
  ReferenceModel<TopKOp, evaluateTopK>::attach(c);
  ReferenceModel<ReshapeOp, evaluateReshape>::attach(c);
  ReferenceModel<TransposeOp, evaluateTranspose>::attach(c);
  ReferenceModel<BroadcastOp, evaluateBroadcast>::attach(c);
  ReferenceModel<SliceOp, evaluateSlice>::attach(c);
  ReferenceModel<PadOp, evaluatePad>::attach(c);
  ReferenceModel<ConcatOp, evaluateConcat>::attach(c);
  ReferenceModel<PackBitsOp, evaluatePackBits>::attach(c);
  ReferenceModel<UnpackBitsOp, evaluateUnpackBits>::attach(c);
}
