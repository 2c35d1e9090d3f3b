//===- Loss.cpp - Cross entropy and the fused head ------------------------===//
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

RowLoss cleave::crossEntropyRow(const double *logits, int64_t classes,
                                int64_t target, double smoothing) {
  double largest = *std::max_element(logits, logits + classes);
  double sum = 0, mean = 0;
  for (int64_t j = 0; j < classes; ++j) {
    sum += std::exp(logits[j] - largest);
    mean += (logits[j] - largest) / classes;
  }
  double logSum = std::log(sum);
  double loss = (1.0 - smoothing) * (logSum - (logits[target] - largest));
  if (smoothing != 0)
    loss += smoothing * (logSum - mean);
  return {loss, largest + logSum};
}

void cleave::crossEntropyRowGradient(const double *logits, int64_t classes,
                                     int64_t target, double smoothing,
                                     double lse, double scale,
                                     double *gradient) {
  // The sum is 1 up to the rounding of a large log-sum-exp.
  double sum = 0;
  for (int64_t j = 0; j < classes; ++j)
    sum += std::exp(logits[j] - lse);
  for (int64_t j = 0; j < classes; ++j) {
    double wanted = (j == target ? 1.0 - smoothing : 0.0) + smoothing / classes;
    gradient[j] = scale * (std::exp(logits[j] - lse) / sum - wanted);
  }
}

/// Reports the first target that is not a class; `ignore` is exempt.
static LogicalResult checkTargets(Operation *op, const RefTensor &targets,
                                  int64_t classes, int64_t ignore) {
  for (auto [i, target] : llvm::enumerate(targets.ints))
    if (target != ignore && (target < 0 || target >= classes))
      return op->emitOpError("target ")
             << target << " (row " << i << ") is neither in [0, " << classes
             << ") nor the ignored index " << ignore;
  return success();
}

static LogicalResult evaluateCrossEntropy(CrossEntropyOp op,
                                          const RefArgs &args, Results results,
                                          ReferenceContext &) {
  const RefTensor &logits = args[op.getLogits()];
  const RefTensor &targets = args[op.getTargets()];
  int64_t classes = logits.rowSize(), ignore = op.getIgnoreIndex();
  if (failed(checkTargets(op, targets, classes, ignore)))
    return failure();
  double smoothing = op.getLabelSmoothing().convertToDouble();
  for (auto [row, target] : llvm::enumerate(targets.ints)) {
    bool ignored = target == ignore;
    RowLoss loss = crossEntropyRow(logits.floats.data() + row * classes,
                                   classes, ignored ? 0 : target, smoothing);
    results[0].floats[row] = ignored ? 0.0 : loss.loss;
    results[1].floats[row] = loss.lse;
  }
  return success();
}

static LogicalResult evaluateCrossEntropyGrad(CrossEntropyGradOp op,
                                              const RefArgs &args,
                                              Results results,
                                              ReferenceContext &) {
  const RefTensor &gradient = args[op.getGradient()];
  const RefTensor &logits = args[op.getLogits()];
  const RefTensor &targets = args[op.getTargets()], &lse = args[op.getLse()];
  int64_t classes = logits.rowSize(), ignore = op.getIgnoreIndex();
  if (failed(checkTargets(op, targets, classes, ignore)))
    return failure();
  for (auto [row, target] : llvm::enumerate(targets.ints))
    if (target != ignore)
      crossEntropyRowGradient(logits.floats.data() + row * classes, classes,
                              target, op.getLabelSmoothing().convertToDouble(),
                              lse.floats[row], gradient.floats[row],
                              results[0].floats.data() + row * classes);
  return success();
}

static LogicalResult evaluateHeadLoss(HeadLossOp op, const RefArgs &args,
                                      Results results,
                                      ReferenceContext &context) {
  const RefTensor &input = args[op.getInput()];
  const RefTensor &weight = args[op.getWeight()];
  const RefTensor *bias = args.lookup(op.getBias());
  const RefTensor &targets = args[op.getTargets()];
  const RefTensor *gradient = args.lookup(op.getGradient());
  double smoothing = op.getLabelSmoothing().convertToDouble();
  int64_t classes = weight.shape[0], ignore = op.getIgnoreIndex();
  if (failed(checkTargets(op, targets, classes, ignore)))
    return failure();

  // The logits and their gradient are rounded as tensors of the program, though
  // it never materialises them. The gradient is a factor of the type of input
  // and weight.
  RefTensor logits =
      linear(input, weight, bias, context.precision, results[0].element);
  settle(logits, context.precision);
  if (op.getNarrowLogits()) {
    logits.element = input.element;
    settle(logits, context.precision);
    logits.element = results[0].element;
  }
  RefTensor logitGradient({targets.size(), classes}, logits.element);
  for (auto [row, target] : llvm::enumerate(targets.ints)) {
    if (target == ignore)
      continue;
    const double *values = logits.floats.data() + row * classes;
    RowLoss loss = crossEntropyRow(values, classes, target, smoothing);
    results[0].floats[row] = loss.loss;
    if (gradient)
      crossEntropyRowGradient(values, classes, target, smoothing, loss.lse,
                              gradient->floats[row],
                              logitGradient.floats.data() + row * classes);
  }
  if (!gradient)
    return success();
  settle(logitGradient, context.precision);
  if (bias)
    for (int64_t i = 0, e = logitGradient.size(); i < e; ++i)
      results[3].floats[i % classes] += logitGradient.floats[i];
  logitGradient.element = input.element;
  settle(logitGradient, context.precision);

  RefTensor rows = input;
  rows.shape = {targets.size(), input.rowSize()};
  RefTensor inputGradient =
      contract("rv,vh->rh", logitGradient, weight, context.precision);
  results[1].floats = std::move(inputGradient.floats);
  results[2] = contract("rv,rh->vh", logitGradient, rows, context.precision,
                        results[2].element);
  return success();
}

void cleave::attachLossModels(MLIRContext *c) {
  ReferenceModel<CrossEntropyOp, evaluateCrossEntropy>::attach(c);
  ReferenceModel<CrossEntropyGradOp, evaluateCrossEntropyGrad>::attach(c);
  ReferenceModel<HeadLossOp, evaluateHeadLoss>::attach(c);
}
