//===- Update.cpp - Seeds, gradients, checks and updates ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Models.h"
#include "cleave/Support/CheckMessage.h"

#include <algorithm>
#include <cmath>
#include <vector>

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

static LogicalResult evaluateSeed(SeedOp op, const RefArgs &args,
                                  Results results, ReferenceContext &) {
  const RefTensor *scale = args.lookup(op.getScale());
  results[0].floats[0] = scale ? scale->floats[0] : 1.0;
  return success();
}

static LogicalResult evaluateGradient(GradientOp op, const RefArgs &args,
                                      Results results,
                                      ReferenceContext &context) {
  results[0] = args[0];
  context.publish(op, op.getParameter(), args[0]);
  return success();
}

static LogicalResult evaluateWritten(WrittenOp, const RefArgs &args,
                                     Results results, ReferenceContext &) {
  results[0] = args[0];
  return success();
}

static LogicalResult evaluateCheck(CheckOp op, const RefArgs &args, Results,
                                   ReferenceContext &context) {
  if (args[0].ints[0])
    return success();
  std::string text = op.getMessage().str();
  if (op.getValues())
    text = checkMessage(text, args[1].ints.data(),
                        static_cast<int>(args[1].ints.size()), context.rank);
  return emitError(op.getLoc()) << "check failed: " << text;
}

static LogicalResult evaluateGlobalNorm(GlobalNormOp, const RefArgs &args,
                                        Results results,
                                        ReferenceContext &context) {
  double total = 0;
  for (unsigned i = 0; i < args.size(); ++i) {
    double sum = 0;
    for (double x : args[i].floats)
      sum += x * x;
    // One partial sum for each tensor, in f32 unless the tensor is f64.
    if (context.precision == Precision::Typed && !args[i].element.isF64())
      sum = static_cast<float>(sum);
    total += sum;
  }
  results[0].floats[0] = std::sqrt(total);
  return success();
}

static LogicalResult evaluateAdamW(AdamWOp op, const RefArgs &args,
                                   Results results, ReferenceContext &) {
  const RefTensor &parameter = args[op.getParameter()];
  const RefTensor &gradient = args[op.getGradient()];
  const RefTensor &expAvg = args[op.getExpAvg()];
  const RefTensor &expAvgSq = args[op.getExpAvgSq()];
  const RefTensor *scale = args.lookup(op.getGradientScale());
  double lr = args[op.getLr()].floats[0];
  double correction1 = args[op.getCorrection1()].floats[0];
  double sqrtCorrection2 = args[op.getSqrtCorrection2()].floats[0];
  double beta1 = op.getBeta1().convertToDouble();
  double beta2 = op.getBeta2().convertToDouble();
  double epsilon = op.getEpsilon().convertToDouble();
  double decay = op.getWeightDecay().convertToDouble();
  for (int64_t i = 0, e = parameter.size(); i < e; ++i) {
    double g = gradient.floats[i] * (scale ? scale->floats[0] : 1.0);
    double p = parameter.floats[i] * (1 - lr * decay);
    double m = expAvg.floats[i] + (g - expAvg.floats[i]) * (1 - beta1);
    double v = expAvgSq.floats[i] * beta2 + g * g * (1 - beta2);
    results[0].floats[i] =
        p - lr / correction1 * m / (std::sqrt(v) / sqrtCorrection2 + epsilon);
    results[1].floats[i] = m;
    results[2].floats[i] = v;
  }
  return success();
}

static LogicalResult evaluateSgd(SgdOp op, const RefArgs &args, Results results,
                                 ReferenceContext &) {
  const RefTensor &parameter = args[op.getParameter()];
  const RefTensor &gradient = args[op.getGradient()];
  const RefTensor *buffer = args.lookup(op.getMomentumBuffer());
  const RefTensor *scale = args.lookup(op.getGradientScale());
  double lr = args[op.getLr()].floats[0];
  bool first = args[op.getStep()].ints[0] == 1;
  double momentum = op.getMomentum().convertToDouble();
  double dampening = op.getDampening().convertToDouble();
  double decay = op.getWeightDecay().convertToDouble();
  for (int64_t i = 0, e = parameter.size(); i < e; ++i) {
    double p = parameter.floats[i];
    double g =
        gradient.floats[i] * (scale ? scale->floats[0] : 1.0) + decay * p;
    if (buffer) {
      double b = first ? g : momentum * buffer->floats[i] + (1 - dampening) * g;
      results[1].floats[i] = b;
      g = op.getNesterov() ? g + momentum * b : b;
    }
    results[0].floats[i] = p - lr * g;
  }
  return success();
}

/// The value of code `index`, which counts from 0, the code of zero, upwards.
static double valueOfCode(int index, bool nonnegative) {
  if (index == 0)
    return 0.0;
  if (index == (nonnegative ? 255 : 128))
    return 1.0;
  int k = nonnegative ? index + 1 : index, e = 0;
  while (k >> (e + 1))
    ++e;
  double size = 1 << e;
  return std::pow(10.0, e - (nonnegative ? 7 : 6)) *
         (0.1 + 0.9 * (k - size + 0.5) / size);
}

/// The values of the codes that are not negative, in order.
static std::vector<double> codeValues(bool nonnegative) {
  std::vector<double> values;
  for (int index = 0; index <= (nonnegative ? 255 : 128); ++index)
    values.push_back(valueOfCode(index, nonnegative));
  return values;
}

static LogicalResult evaluateEncode(EncodeOp op, const RefArgs &args,
                                    Results results, ReferenceContext &) {
  std::vector<double> values = codeValues(op.getNonnegative());
  for (int64_t i = 0, e = args[0].size(); i < e; ++i) {
    double x = args[0].floats[i];
    bool negative = x < 0 && !op.getNonnegative();
    double size = op.getNonnegative() ? x : std::abs(x);
    // The largest code of each side: 1 has no negative.
    int best = 0, last = static_cast<int>(values.size()) - (negative ? 2 : 1);
    while (best < last && size > (values[best] + values[best + 1]) / 2)
      ++best;
    if (negative)
      best = -std::max(best, 1);
    results[0].ints[i] = static_cast<int8_t>(best);
  }
  return success();
}

static LogicalResult evaluateDecode(DecodeOp op, const RefArgs &args,
                                    Results results, ReferenceContext &) {
  bool nonnegative = op.getNonnegative();
  for (int64_t i = 0, e = args[0].size(); i < e; ++i) {
    int64_t code = args[0].ints[i];
    if (nonnegative ? code < 0 : code == -128)
      code += 256;
    double value = valueOfCode(static_cast<int>(std::abs(code)), nonnegative);
    results[0].floats[i] = code < 0 ? -value : value;
  }
  return success();
}

/// `I - tau v v^T` on the rows from `first` on; the identity where tau is 0.
struct Reflection {
  int64_t first = 0;
  std::vector<double> v;
  double tau = 0;

  void apply(std::vector<double> &column) const {
    double dot = 0;
    for (size_t i = 0; i < v.size(); ++i)
      dot += v[i] * column[first + i];
    for (size_t i = 0; i < v.size(); ++i)
      column[first + i] -= tau * dot * v[i];
  }
};

static double normOf(ArrayRef<double> x) {
  double sum = 0;
  for (double each : x)
    sum += each * each;
  return std::sqrt(sum);
}

/// Replaces the columns of a matrix by those of its Q; see the op's
/// description.
static void orthonormalize(MutableArrayRef<std::vector<double>> columns,
                           double tolerance) {
  std::vector<double> norms, signs(columns.size(), 1.0);
  for (std::vector<double> &column : columns) {
    double largest = 0;
    for (double x : column)
      largest = std::max(largest, std::abs(x));
    int exponent = 0;
    std::frexp(largest, &exponent);
    for (double &x : column)
      x = std::ldexp(x, -exponent);
    norms.push_back(normOf(column));
  }
  std::vector<Reflection> reflections(columns.size());
  for (size_t j = 0; j < columns.size(); ++j) {
    ArrayRef<double> rest = ArrayRef(columns[j]).drop_front(j);
    double norm = normOf(rest);
    if (norm <= tolerance * norms[j])
      continue;
    Reflection &h = reflections[j];
    double diagonal = rest[0] < 0 ? norm : -norm;
    signs[j] = diagonal < 0 ? -1 : 1;
    h.first = static_cast<int64_t>(j);
    h.tau = (diagonal - rest[0]) / diagonal;
    for (double x : rest)
      h.v.push_back(x / (rest[0] - diagonal));
    h.v[0] = 1;
    for (std::vector<double> &later : columns.drop_front(j + 1))
      h.apply(later);
  }
  for (size_t c = 0; c < columns.size(); ++c) {
    std::fill(columns[c].begin(), columns[c].end(), 0.0);
    columns[c][c] = signs[c];
    for (const Reflection &h : llvm::reverse(reflections))
      h.apply(columns[c]);
  }
}

static LogicalResult evaluateOrthonormalize(OrthonormalizeOp op,
                                            const RefArgs &args,
                                            Results results,
                                            ReferenceContext &context) {
  const RefTensor &input = args[0];
  int64_t count = input.shape.back(), rows = input.shape[input.rank() - 2];
  bool wide = context.precision == Precision::Exact || input.element.isF64();
  for (int64_t first = 0; first < input.size(); first += rows * count) {
    ArrayRef<double> matrix = ArrayRef(input.floats).slice(first, rows * count);
    double *to = results[0].floats.data() + first;
    if (!llvm::all_of(matrix, [](double x) { return std::isfinite(x); })) {
      std::fill_n(to, rows * count, std::nan(""));
      continue;
    }
    std::vector<std::vector<double>> columns(count);
    for (int64_t i = 0; i < rows * count; ++i)
      columns[i % count].push_back(matrix[i]);
    orthonormalize(columns, wide ? 0x1p-39 : 0x1p-17);
    for (int64_t i = 0; i < rows * count; ++i)
      to[i] = columns[i % count][i / count];
  }
  return success();
}

void cleave::attachUpdateModels(MLIRContext *c) {
  ReferenceModel<SeedOp, evaluateSeed>::attach(c);
  ReferenceModel<GradientOp, evaluateGradient>::attach(c);
  ReferenceModel<WrittenOp, evaluateWritten>::attach(c);
  ReferenceModel<CheckOp, evaluateCheck>::attach(c);
  ReferenceModel<GlobalNormOp, evaluateGlobalNorm>::attach(c);
  ReferenceModel<AdamWOp, evaluateAdamW>::attach(c);
  ReferenceModel<SgdOp, evaluateSgd>::attach(c);
  ReferenceModel<EncodeOp, evaluateEncode>::attach(c);
  ReferenceModel<DecodeOp, evaluateDecode>::attach(c);
  ReferenceModel<OrthonormalizeOp, evaluateOrthonormalize>::attach(c);
}
