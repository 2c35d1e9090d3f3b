//===- Evaluation.cpp - The loss of all evaluation data -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A batch's loss is a mean over its elements, without ignored labels. The mean
/// of the losses of all batches, weighted by the number of elements, which the
/// program also returns, is the loss of all data. A program that does not
/// return this number has another kind of loss: all its batches have the same
/// weight, and none may be padded.
///
//===----------------------------------------------------------------------===//

#include "Trainer.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "llvm/Support/Format.h"
#include <cmath>

using namespace cleave::run;
using namespace cleave::runtime;
using llvm::Error;
using llvm::Expected;
using llvm::Twine;

Error Trainer::evaluate() {
  const Tensor *count = session->find("loss_weight");
  bool weighted = count && count->role == Role::Output;
  bool padded = weighted && labels && labels->hasIgnoreIndex;
  int64_t available = evalOrder->size();
  int64_t batches = (available + batch - 1) / batch;
  if (options.evalBatches > 0)
    batches = std::min(batches, options.evalBatches);
  double sum = 0, weights = 0;
  bool empty = false;
  for (int64_t i = 0; i < batches; ++i) {
    // A mean over part of the data cannot be compared with other evaluations.
    if (stopped()) {
      progress->note("evaluation: left out, since the run ends");
      return Error::success();
    }
    int64_t rows = std::min(batch, available - i * batch);
    if (rows < batch && !padded) {
      progress->note("evaluation: the last " + Twine(rows) +
                     " sequences do not fill a batch and are not used");
      break;
    }
    if (Error error = fillBatch(*evalTokens, *evalOrder, i * batch, rows))
      return error;
    Expected<StepResult> result = session->run("evaluate");
    if (!result)
      return makeError("evaluation: " + llvm::toString(result.takeError()));
    Expected<double> loss = session->getScalar("loss");
    if (!loss)
      return loss.takeError();
    double weight = 1;
    if (weighted) {
      Expected<double> counted = session->getScalar("loss_weight");
      if (!counted)
        return counted.takeError();
      weight = *counted;
    }
    if (weight == 0) {
      empty = true; // the mean over no elements is undefined
      continue;
    }
    sum += *loss * weight;
    weights += weight;
  }
  if (weights == 0) {
    if (empty)
      progress->note("evaluation: every label is ignored");
    return Error::success();
  }
  double loss = sum / weights;
  std::string text;
  llvm::raw_string_ostream(text)
      << "step " << session->getStep()
      << llvm::format("  evaluation loss %.4f  perplexity %.2f", loss,
                      std::exp(loss));
  progress->note(text);
  return writeLog(llvm::json::Object{{"step", session->getStep()},
                                     {"eval_loss", jsonNumber(loss)}});
}
