//===- Norm.cpp - Norms, softmax and positions ----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Models.h"
#include <cmath>

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

/// Calls `fn(row, first)` for each row of `tensor`, where `first` is the offset
/// of its first element.
template <typename Fn>
static LogicalResult forEachRow(const RefTensor &tensor, Fn fn) {
  int64_t columns = tensor.rowSize(), size = tensor.size();
  for (int64_t first = 0, row = 0; first < size; first += columns, ++row)
    fn(row, first);
  return success();
}

/// Element `j` of an optional vector, 1 when it is absent.
static double weightAt(const RefTensor *weight, int64_t j) {
  return weight ? weight->floats[j] : 1.0;
}

//===----------------------------------------------------------------------===//
// Layer norm
//===----------------------------------------------------------------------===//

static LogicalResult evaluateLayerNorm(LayerNormOp op, const RefArgs &args,
                                       Results results, ReferenceContext &) {
  const RefTensor &input = args[op.getInput()];
  const RefTensor *weight = args.lookup(op.getWeight());
  const RefTensor *bias = args.lookup(op.getBias());
  double epsilon = op.getEpsilon().convertToDouble();
  int64_t n = input.rowSize();
  return forEachRow(input, [&](int64_t row, int64_t first) {
    const double *x = input.floats.data() + first;
    double mean = 0, variance = 0;
    for (int64_t j = 0; j < n; ++j)
      mean += x[j] / n;
    for (int64_t j = 0; j < n; ++j)
      variance += (x[j] - mean) * (x[j] - mean) / n;
    double rstd = 1.0 / std::sqrt(variance + epsilon);
    for (int64_t j = 0; j < n; ++j)
      results[0].floats[first + j] =
          (x[j] - mean) * rstd * weightAt(weight, j) +
          (bias ? bias->floats[j] : 0.0);
    results[1].floats[row] = mean;
    results[2].floats[row] = rstd;
  });
}

static LogicalResult evaluateLayerNormGrad(LayerNormGradOp op,
                                           const RefArgs &args, Results results,
                                           ReferenceContext &) {
  const RefTensor &gradient = args[op.getGradient()];
  const RefTensor &input = args[op.getInput()];
  const RefTensor &means = args[op.getMean()], &rstds = args[op.getRstd()];
  const RefTensor *weight = args.lookup(op.getWeight());
  int64_t n = input.rowSize();
  return forEachRow(input, [&](int64_t row, int64_t first) {
    double mean = means.floats[row], rstd = rstds.floats[row];
    // With y = (x - mean) rstd and h the gradient of y:
    //   dx = rstd (h - mean(h) - y mean(h y)).
    auto y = [&](int64_t j) { return (input.floats[first + j] - mean) * rstd; };
    auto h = [&](int64_t j) {
      return gradient.floats[first + j] * weightAt(weight, j);
    };
    double meanH = 0, meanHY = 0;
    for (int64_t j = 0; j < n; ++j) {
      meanH += h(j) / n;
      meanHY += h(j) * y(j) / n;
    }
    for (int64_t j = 0; j < n; ++j)
      results[0].floats[first + j] = rstd * (h(j) - meanH - y(j) * meanHY);
  });
}

static LogicalResult evaluateLayerNormWeightGrad(LayerNormWeightGradOp op,
                                                 const RefArgs &args,
                                                 Results results,
                                                 ReferenceContext &) {
  const RefTensor &gradient = args[op.getGradient()];
  const RefTensor &input = args[op.getInput()];
  const RefTensor &means = args[op.getMean()], &rstds = args[op.getRstd()];
  return forEachRow(input, [&](int64_t row, int64_t first) {
    for (int64_t j = 0, n = input.rowSize(); j < n; ++j)
      results[0].floats[j] += gradient.floats[first + j] *
                              (input.floats[first + j] - means.floats[row]) *
                              rstds.floats[row];
  });
}

//===----------------------------------------------------------------------===//
// RMS norm
//===----------------------------------------------------------------------===//

static LogicalResult evaluateRmsNorm(RmsNormOp op, const RefArgs &args,
                                     Results results, ReferenceContext &) {
  const RefTensor &input = args[op.getInput()];
  const RefTensor *weight = args.lookup(op.getWeight());
  double epsilon = op.getEpsilon().convertToDouble();
  int64_t n = input.rowSize();
  return forEachRow(input, [&](int64_t row, int64_t first) {
    const double *x = input.floats.data() + first;
    double meanSquare = 0;
    for (int64_t j = 0; j < n; ++j)
      meanSquare += x[j] * x[j] / n;
    double rstd = 1.0 / std::sqrt(meanSquare + epsilon);
    for (int64_t j = 0; j < n; ++j)
      results[0].floats[first + j] = x[j] * rstd * weightAt(weight, j);
    results[1].floats[row] = rstd;
  });
}

static LogicalResult evaluateRmsNormGrad(RmsNormGradOp op, const RefArgs &args,
                                         Results results, ReferenceContext &) {
  const RefTensor &gradient = args[op.getGradient()];
  const RefTensor &input = args[op.getInput()], &rstds = args[op.getRstd()];
  const RefTensor *weight = args.lookup(op.getWeight());
  int64_t n = input.rowSize();
  return forEachRow(input, [&](int64_t row, int64_t first) {
    // With y = x rstd and h the gradient of y: dx = rstd (h - y mean(h y)).
    double rstd = rstds.floats[row], meanHY = 0;
    auto y = [&](int64_t j) { return input.floats[first + j] * rstd; };
    auto h = [&](int64_t j) {
      return gradient.floats[first + j] * weightAt(weight, j);
    };
    for (int64_t j = 0; j < n; ++j)
      meanHY += h(j) * y(j) / n;
    for (int64_t j = 0; j < n; ++j)
      results[0].floats[first + j] = rstd * (h(j) - y(j) * meanHY);
  });
}

static LogicalResult evaluateRmsNormWeightGrad(RmsNormWeightGradOp op,
                                               const RefArgs &args,
                                               Results results,
                                               ReferenceContext &) {
  const RefTensor &gradient = args[op.getGradient()];
  const RefTensor &input = args[op.getInput()], &rstds = args[op.getRstd()];
  return forEachRow(input, [&](int64_t row, int64_t first) {
    for (int64_t j = 0, n = input.rowSize(); j < n; ++j)
      results[0].floats[j] += gradient.floats[first + j] *
                              input.floats[first + j] * rstds.floats[row];
  });
}

//===----------------------------------------------------------------------===//
// Softmax
//===----------------------------------------------------------------------===//

static LogicalResult evaluateSoftmax(SoftmaxOp op, const RefArgs &args,
                                     Results results, ReferenceContext &) {
  const RefTensor &input = args[0];
  int64_t n = input.rowSize();
  return forEachRow(input, [&](int64_t, int64_t first) {
    const double *x = input.floats.data() + first;
    double *y = results[0].floats.data() + first;
    double largest = *std::max_element(x, x + n), sum = 0;
    for (int64_t j = 0; j < n; ++j)
      sum += std::exp(x[j] - largest);
    for (int64_t j = 0; j < n; ++j)
      y[j] = op.getLog() ? x[j] - largest - std::log(sum)
                         : std::exp(x[j] - largest) / sum;
  });
}

static LogicalResult evaluateSoftmaxGrad(SoftmaxGradOp op, const RefArgs &args,
                                         Results results, ReferenceContext &) {
  const RefTensor &gradient = args[op.getGradient()];
  const RefTensor &output = args[op.getOutput()];
  int64_t n = output.rowSize();
  return forEachRow(output, [&](int64_t, int64_t first) {
    const double *g = gradient.floats.data() + first;
    const double *y = output.floats.data() + first;
    double sum = 0;
    for (int64_t j = 0; j < n; ++j)
      sum += op.getLog() ? g[j] : g[j] * y[j];
    for (int64_t j = 0; j < n; ++j)
      results[0].floats[first + j] =
          op.getLog() ? g[j] - std::exp(y[j]) * sum : y[j] * (g[j] - sum);
  });
}

//===----------------------------------------------------------------------===//
// Rotary positions
//===----------------------------------------------------------------------===//

static LogicalResult evaluateRope(RopeOp op, const RefArgs &args,
                                  Results results, ReferenceContext &) {
  const RefTensor &input = args[op.getInput()];
  const RefTensor &cosines = args[op.getCos()], &sines = args[op.getSin()];
  int64_t n = input.rowSize();
  // The index of the element that rotation moves to index j, and its sign.
  auto partner = [&](int64_t j) {
    if (op.getInterleaved())
      return j % 2 == 0 ? std::pair(j + 1, -1.0) : std::pair(j - 1, 1.0);
    return j < n / 2 ? std::pair(j + n / 2, -1.0) : std::pair(j - n / 2, 1.0);
  };
  // Both tables in the shape of the input: the map takes the sine at the index
  // an element is moved to, its transpose that at the index it comes from.
  std::vector<double> sineAt(input.size()), cosineAt(input.size());
  forEachIndex<2>(input.shape,
                  {broadcastStrides(cosines, input.shape),
                   broadcastStrides(sines, input.shape)},
                  [&](int64_t i, const std::array<int64_t, 2> &at) {
                    cosineAt[i] = cosines.floats[at[0]];
                    sineAt[i] = sines.floats[at[1]];
                  });
  return forEachRow(input, [&](int64_t, int64_t first) {
    for (int64_t j = 0; j < n; ++j) {
      auto [other, sign] = partner(j);
      double rotated = input.floats[first + other];
      double &out = results[0].floats[first + j];
      out = input.floats[first + j] * cosineAt[first + j];
      // rotate is antisymmetric: its transpose is its negative.
      if (op.getAdjoint())
        out -= sign * rotated * sineAt[first + other];
      else
        out += sign * rotated * sineAt[first + j];
    }
  });
}

void cleave::attachNormModels(MLIRContext *c) {
  ReferenceModel<LayerNormOp, evaluateLayerNorm>::attach(c);
  ReferenceModel<LayerNormGradOp, evaluateLayerNormGrad>::attach(c);
  ReferenceModel<LayerNormWeightGradOp, evaluateLayerNormWeightGrad>::attach(c);
  ReferenceModel<RmsNormOp, evaluateRmsNorm>::attach(c);
  ReferenceModel<RmsNormGradOp, evaluateRmsNormGrad>::attach(c);
  ReferenceModel<RmsNormWeightGradOp, evaluateRmsNormWeightGrad>::attach(c);
  ReferenceModel<SoftmaxOp, evaluateSoftmax>::attach(c);
  ReferenceModel<SoftmaxGradOp, evaluateSoftmaxGrad>::attach(c);
  ReferenceModel<RopeOp, evaluateRope>::attach(c);
}
