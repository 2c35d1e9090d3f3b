//===- LabelShift.cpp - Whether the loss shifts its labels ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A model that is fed the tokens as labels must shift them itself: else it
/// learns to copy. Where neither the command line nor the program nor the
/// checkpoint says what labels are, the loss is asked: one that shifts them
/// does not read the first label of a sequence.
///
//===----------------------------------------------------------------------===//

#include "Trainer.h"
#include "cleave/Executable/Format/FileIO.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "llvm/Support/JSON.h"

#include <cmath>

using namespace cleave::run;
using namespace cleave::runtime;
using llvm::Error;
using llvm::Expected;
using llvm::Twine;

static std::optional<int64_t> shiftIn(llvm::StringRef json) {
  Expected<llvm::json::Value> facts = parseJson(json);
  if (!facts) {
    llvm::consumeError(facts.takeError());
    return std::nullopt;
  }
  const llvm::json::Object *object = facts->getAsObject();
  return object ? object->getInteger("label_shift") : std::nullopt;
}

Expected<Trainer::Tried> Trainer::evaluateLabels(const Trial &trial) {
  auto bound = [](const Tensor &tensor) {
    return tensor.upperBound > 0 ? tensor.upperBound : int64_t(2);
  };
  auto label = [&, own = bound(*labels)](int64_t token) {
    token %= own;
    bool ignored = labels->hasIgnoreIndex && token == labels->ignoreIndex;
    return ignored ? (token + 1) % own : token;
  };
  // Some tokens; labels are as many, one column of them another one.
  idsBuffer.resize(static_cast<size_t>(batch * length));
  labelsBuffer.resize(idsBuffer.size());
  for (int64_t i = 0; i < batch * length; ++i) {
    size_t to = static_cast<size_t>(i);
    int64_t column = i % length;
    idsBuffer[to] = i * 7 % bound(*ids);
    labelsBuffer[to] = label(idsBuffer[to]);
    if (column == trial.changed)
      labelsBuffer[to] = label(labelsBuffer[to] + 1);
    if (trial.counted && column >= *trial.counted)
      labelsBuffer[to] = labels->ignoreIndex;
  }
  if (Error error = setTokens())
    return std::move(error);
  Expected<StepResult> result = session->run("evaluate");
  if (!result)
    return makeError("evaluating whether the loss shifts its labels, which "
                     "--label-shift says too: " +
                     llvm::toString(result.takeError()));
  Tried tried;
  Expected<double> loss = session->getScalar("loss");
  if (!loss)
    return loss.takeError();
  tried.loss = *loss;
  if (trial.counted) {
    Expected<double> weight = session->getScalar("loss_weight");
    if (!weight)
      return weight.takeError();
    tried.weight = *weight;
  }
  return tried;
}

Expected<std::optional<bool>> Trainer::lossShifts() {
  if (!session->hasEntry("evaluate") || length < 2)
    return std::nullopt;
  // Of the labels of two columns, a loss that counts what it takes counts those
  // of one, if it shifts them, or of both.
  const Tensor *count = session->find("loss_weight");
  if (labels->hasIgnoreIndex && count && count->role == Role::Output) {
    Expected<Tried> tried = evaluateLabels({.counted = 2});
    if (!tried)
      return tried.takeError();
    if (tried->weight == double(batch) || tried->weight == double(2 * batch))
      return tried->weight == double(batch);
  }
  // Otherwise it changes with a label that it takes, if it changes at all.
  double losses[3];
  for (int64_t changed = -1; changed < 2; ++changed) {
    Expected<Tried> tried = evaluateLabels({.changed = changed});
    if (!tried)
      return tried.takeError();
    if (!std::isfinite(tried->loss))
      return std::nullopt;
    losses[changed + 1] = tried->loss;
  }
  if (losses[1] != losses[0])
    return false;
  if (losses[2] != losses[0])
    return true;
  return std::nullopt;
}

Error Trainer::findLabelShift() {
  std::optional<int64_t> known = options.labelShift;
  if (!known)
    known = shiftIn(session->getProgram().metadata);
  if (!known && !resumeFrom.empty()) {
    Expected<TrainingState> before = readTrainingState(resumeFrom);
    if (before)
      known = shiftIn(before->run);
    else
      llvm::consumeError(before.takeError());
  }
  if (known && *known != 0 && *known != 1)
    return makeError("label_shift must be 0 or 1");
  bool asked = !known && labels;
  if (asked) {
    // A checkpoint is read once the data are known.
    if (Error error = resumeFrom.empty() ? loadStart()
                                         : session->initialiseRandomly(seed))
      return error;
    Expected<std::optional<bool>> shifts = lossShifts();
    if (!shifts)
      return shifts.takeError();
    if (!*shifts || !**shifts)
      return makeError(
          options.artifact + ": the loss " +
          (*shifts ? "does not shift its labels: it takes the first one of "
                     "each sequence"
                   : "does not tell whether it shifts its labels") +
          ". Give --label-shift 1 for labels that are the next tokens, or "
          "--label-shift 0 for the tokens themselves, which a model that does "
          "not shift them learns to copy");
  }
  shift = known.value_or(0);
  if (labels)
    out() << "labels: "
          << (shift   ? "the next tokens"
              : asked ? "the tokens themselves, which the loss shifts"
                      : "the tokens themselves, for a model that shifts them; "
                        "--label-shift 1 makes them the next tokens")
          << "\n";
  return Error::success();
}
