//===- Trainer.cpp - A training run ---------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Trainer.h"
#include "cleave/Executable/Format/FileIO.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Runtime/Core/NewCheckpoint.h"
#include "cleave/Runtime/Session/Launcher.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/Path.h"

#include <algorithm>
#include <cmath>

using namespace cleave::run;
using namespace cleave::runtime;
using llvm::Error;
using llvm::Expected;
using llvm::Twine;

//===----------------------------------------------------------------------===//
// Steps
//===----------------------------------------------------------------------===//

llvm::json::Value cleave::run::jsonNumber(double value) {
  if (std::isfinite(value))
    return value;
  return nullptr;
}

Error Trainer::writeLog(llvm::json::Object line) {
  if (!log)
    return Error::success();
  *log << llvm::json::Value(std::move(line)) << "\n";
  log->flush();
  if (!log->has_error())
    return Error::success();
  std::string reason = log->error().message();
  // An error that is not cleared would end the process.
  log->clear_error();
  return makeError(options.log + ": cannot write: " + reason);
}

Error Trainer::reportSkipped(int64_t index, const StepResult &result,
                             double scale) {
  double next = session->getLossScale()->scale;
  progress->note("step " + Twine(index + 1) + ": skipped: " + result.skipped +
                 llvm::formatv(" at loss scale {0}; the next one is {1}",
                               jsonNumber(scale), jsonNumber(next))
                     .str());
  return writeLog(llvm::json::Object{{"step", index + 1},
                                     {"skipped", result.skipped},
                                     {"loss_scale", scale},
                                     {"ms", result.seconds * 1e3}});
}

Error Trainer::trainStep(int64_t index) {
  if (command) {
    Expected<bool> read = readCommand();
    if (!read || !*read)
      return read.takeError();
  }
  if (Error error = command ? fillFromCommand()
                            : fillBatch(*data, *order, position, batch))
    return error;
  // Rates are those of updates; a skipped step is none.
  double rate = options.learningRate.at(index - session->getSkipped());
  std::optional<LossScaleState> scale = session->getLossScale();
  if (session->find("lr"))
    if (Error error = session->setScalar("lr", rate))
      return error;
  int64_t clock = session->traceClock();
  Expected<StepResult> result = session->run("train");
  if (!result)
    return makeError("step " + Twine(index + 1) + ": " +
                     llvm::toString(result.takeError()));
  bool traced = !options.trace.empty() &&
                static_cast<int64_t>(tracedSteps.size()) < options.traceSteps;
  if (traced)
    tracedSteps.push_back({clock, session->traceClock() - clock});
  position += batch;
  if (command)
    commandUsed = command->getPosition();
  if (!result->skipped.empty())
    return reportSkipped(index, *result, scale->scale);
  Expected<double> loss = session->getScalar("loss");
  if (!loss)
    return loss.takeError();
  double tokensPerSecond =
      static_cast<double>(batch * length) / result->seconds;
  progress->step(index + 1, *loss, rate, result->seconds, tokensPerSecond);
  if (options.log.empty())
    return Error::success();
  // Further results of a step: the norm of the gradients, losses of other
  // heads. Collective: all processes call it, since not each has them.
  llvm::json::Object more;
  const Program &program = session->getProgram();
  for (int32_t output : program.entries.at("train").outputs) {
    const Tensor &tensor = program.tensors[static_cast<size_t>(output)];
    if (tensor.role != Role::Output || !tensor.shape.empty() ||
        tensor.name == "loss")
      continue;
    Expected<double> value = session->getScalar(tensor.name);
    if (!value)
      return value.takeError();
    more[tensor.name] = jsonNumber(*value);
  }
  if (!log)
    return Error::success();
  llvm::json::Array sent;
  for (const cleave_sent &c : result->communication)
    sent.push_back(
        llvm::json::Object{{"kind", c.kind},
                           {"axes", c.axes},
                           {"count", c.count},
                           {"elements", c.elements},
                           {"bytes", c.bytes},
                           {"ms", static_cast<double>(c.nanoseconds) / 1e6}});
  llvm::json::Object line{{"step", index + 1},
                          {"loss", jsonNumber(*loss)},
                          {"lr", rate},
                          {"tokens_per_s", jsonNumber(tokensPerSecond)},
                          {"ms", result->seconds * 1e3},
                          {"page_faults", result->pageFaults}};
  if (scale)
    line["loss_scale"] = scale->scale;
  if (const Offloaded &moved = result->offloaded;
      moved.fetched + moved.evicted > 0)
    line["offload"] = llvm::json::Object{{"fetched_bytes", moved.fetched},
                                         {"evicted_bytes", moved.evicted}};
  if (result->updatedAgain > 0)
    line["updated_again"] = result->updatedAgain;
  for (auto &[name, value] : more)
    line[name] = std::move(value);
  llvm::json::Object breakdown;
  double rest = result->seconds * 1e3;
  for (auto part :
       {TimeClass::Contraction, TimeClass::Attention, TimeClass::RowWise,
        TimeClass::Optimizer, TimeClass::Communication, TimeClass::Offload}) {
    if (part == TimeClass::Offload && !session->getProgram().tierBytes)
      continue;
    double ms = static_cast<double>(result->breakdown[part]) / 1e6;
    breakdown[timeClassName(part)] = ms;
    rest -= ms;
  }
  breakdown["idle"] = std::max(0.0, rest);
  line["breakdown"] = std::move(breakdown);
  if (!sent.empty())
    line["communication"] = std::move(sent);
  return writeLog(std::move(line));
}

Error Trainer::save() {
  llvm::SmallString<128> path(options.saveDirectory);
  llvm::sys::path::append(path, "step-" + Twine(session->getStep()));
  SaveOptions how;
  how.nonFinite = options.saveNonFinite;
  how.run = describeRun();
  if (Error error = session->saveCheckpoint(path, position, how))
    return error;
  saved = path.str().str();
  if (!session->isLeader())
    return Error::success();
  progress->note("saved " + path);
  return removeOld();
}

Error Trainer::removeOld() const {
  if (options.keep == 0)
    return Error::success();
  // Later steps belong to a run that was resumed from an earlier one and went
  // further.
  std::vector<std::pair<int64_t, std::string>> found;
  std::error_code error;
  for (llvm::sys::fs::directory_iterator it(options.saveDirectory, error), end;
       !error && it != end; it.increment(error)) {
    llvm::StringRef name = llvm::sys::path::filename(it->path());
    int64_t step;
    if (name.consume_front("step-") && !name.getAsInteger(10, step) &&
        step <= session->getStep() && isOwnCheckpoint(it->path()))
      found.push_back({step, it->path()});
  }
  if (error)
    return makeError(options.saveDirectory +
                     ": cannot read: " + error.message());
  llvm::sort(found);
  for (size_t i = 0; static_cast<int64_t>(found.size() - i) > options.keep; ++i)
    if (Error failed = removeCheckpoint(found[i].second))
      return failed;
  return Error::success();
}

Error Trainer::saveNow() {
  tried = session->getStep();
  return save();
}

Error Trainer::trainSteps(int64_t first, int64_t last) {
  for (int64_t index = first; index < last && !endedBy; ++index) {
    if (Error error = trainStep(index))
      return error;
    if (session->getStep() == index) {
      stopped();
      return Error::success(); // a signal came while the command wrote nothing
    }
    if (evalTokens && options.evalEvery > 0 &&
        ((index + 1) % options.evalEvery == 0 || index + 1 == last))
      if (Error error = evaluate())
        return error;
    // All processes see it at the same step.
    bool end = stopped();
    if (saveAsked && options.saveEvery == 0)
      progress->note("SIGUSR1: nothing is saved without --save-every");
    if (options.saveEvery > 0 &&
        (saveAsked || (index + 1) % options.saveEvery == 0))
      if (Error error = saveNow())
        return error;
    saveAsked = false;
    if (end)
      break;
  }
  return Error::success();
}

Error Trainer::trainAndSave(int64_t first, int64_t last) {
  tried = first;
  Error failure = trainSteps(first, last);
  bool failed = bool(failure);
  // The last state is saved even between two multiples, and even if the next
  // step failed: a failed step changes nothing. Not after a failure of one of
  // several processes, since they save together.
  bool alone = session->getLocalRanks() == session->getRanks();
  if (options.saveEvery == 0 || session->getStep() <= tried ||
      (failed && !alone))
    return failure;
  Error unsaved = saveNow();
  if (failed && unsaved)
    return makeError(llvm::toString(std::move(failure)) + "; and " +
                     llvm::toString(std::move(unsaved)));
  return failed ? std::move(failure) : std::move(unsaved);
}

Expected<int> Trainer::run() {
  watchSignals(/*begun=*/false);
  if (Error error = setUp())
    return error;
  int64_t first = session->getStep();
  int64_t last = std::min(options.stopAt, options.steps);
  // Launchers pass on what is drawn, and mpirun gives its processes a terminal
  // of its own, with its width unknown.
  progress.emplace(first, last, out(), options.progress, !startedAsRank());
  if (first >= last)
    progress->note("nothing to do: " + Twine(first) + " of " + Twine(last) +
                   " steps are done");
  if (!options.trace.empty()) {
    int64_t traced = std::clamp<int64_t>(last - first, 0, options.traceSteps);
    if (Error error = session->startTrace("train", traced))
      return error;
  }
  watchSignals(/*begun=*/true);
  Error failure = trainAndSave(first, last);
  progress->finish();
  if (failure)
    return failure;
  if (!options.trace.empty())
    if (Error error = writeTrace())
      return error;
  if (options.reportMemory)
    if (Error error = reportMemory())
      return error;
  if (options.reportCommunication)
    if (Error error = reportCommunication())
      return error;
  if (!endedBy)
    return 0;
  std::string end = (llvm::Twine(signalName(endedBy)) + ": ended after step " +
                     Twine(session->getStep()))
                        .str();
  if (saved.empty())
    out() << end << ", and nothing was saved\n";
  else
    out() << end << "; resume with\n  " << resumeCommand(saved) << "\n";
  return 128 + endedBy;
}

bool Trainer::stopped() {
  // All ranks end after the same step. An error here is found by the next step.
  int64_t asked = 2 * int64_t(stopSignal()) + takeSaveSignal();
  Expected<int64_t> all = session->largest(asked);
  if (!all) {
    llvm::consumeError(all.takeError());
    return endedBy != 0;
  }
  if (!endedBy)
    endedBy = static_cast<int>(*all / 2);
  saveAsked |= *all % 2 != 0;
  return endedBy != 0;
}

llvm::raw_ostream &Trainer::out() const {
  return !session || session->isLeader() ? llvm::outs() : llvm::nulls();
}

std::string Trainer::speaker(llvm::StringRef message) const {
  if (!session || session->isLeader() || message.contains("rank "))
    return "";
  return ("rank " + Twine(session->getRank()) + ": ").str();
}

void Trainer::fail(llvm::StringRef message) {
  if (session)
    session->fail(message);
}
