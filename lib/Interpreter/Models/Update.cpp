//===- Update.cpp - Seeds, gradients, checks and updates ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Models.h"
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
                                   ReferenceContext &) {
  if (args[0].ints[0])
    return success();
  return emitError(op.getLoc()) << "check failed: " << op.getMessage();
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
}
