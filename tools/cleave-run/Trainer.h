//===- Trainer.h - A training run -------------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TOOLS_CLEAVERUN_TRAINER_H
#define CLEAVE_TOOLS_CLEAVERUN_TRAINER_H

#include "cleave/Runtime/Schedule.h"
#include "cleave/Runtime/Session.h"
#include "cleave/Runtime/TokenData.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/raw_ostream.h"
#include <optional>

namespace cleave::run {

/// What the command line says.
struct Options {
  std::string artifact, weights, data, tokenizer, tokenType;
  std::string evalData, saveDirectory, resume, log, trace;
  std::string idsInput, labelsInput;
  runtime::Schedule schedule;
  int64_t steps = 0, stopAt = 0;
  int64_t evalEvery = 0, evalBatches = 0, saveEvery = 0, keep = 0;
  int64_t traceSteps = 0;
  std::optional<int64_t> seed;
  std::optional<int64_t> labelShift;
  int threads = 0;
  bool randomInit = false, reportMemory = false, reportCommunication = false;
};

/// One line of output for each step, or a bar on a terminal.
class Progress {
public:
  /// Writes to `out`; the bar only where that is a terminal.
  Progress(int64_t first, int64_t total, llvm::raw_ostream &out);
  void step(int64_t step, double loss, double rate, double seconds,
            double tokensPerSecond);
  /// A line of its own, above the bar.
  void note(const llvm::Twine &text);
  void finish();

private:
  void clear();
  int64_t first, total;
  llvm::raw_ostream &out;
  bool terminal;
  bool drawn = false;
  double smoothed = 0;
};

class Trainer {
public:
  explicit Trainer(const Options &options) : options(options) {}

  /// Trains; the exit code.
  llvm::Expected<int> run();
  /// Tells the other ranks that this process ends with an error.
  void fail(llvm::StringRef message);
  /// Which process has this message, where that is not the first one; a message
  /// of the communicator names the rank already.
  std::string speaker(llvm::StringRef message) const;

private:
  llvm::Error setUp();
  llvm::Error findInputs();
  llvm::Error loadState();
  /// Says how to go on where the latest of several checkpoints is damaged.
  llvm::Error explainResume(llvm::Error error) const;
  llvm::Error openData();
  llvm::Error openLog();
  llvm::Error checkOthers() const;
  /// Fills the inputs with the windows from `position` on; rows from `rows` on
  /// are padding.
  llvm::Error fillBatch(const runtime::TokenData &data,
                        runtime::WindowOrder &order, int64_t position,
                        int64_t rows);
  /// Adds a line of JSON to the log, if there is one.
  llvm::Error writeLog(llvm::json::Object line);
  llvm::Error trainStep(int64_t index);
  /// Reports the loss of all evaluation data, as if it were one batch.
  llvm::Error evaluate();
  llvm::Error save();
  /// Of all processes, which the first one writes.
  llvm::Error writeTrace();
  void reportMemory() const;
  /// All processes ask.
  llvm::Error reportCommunication() const;
  /// Whether any rank was interrupted.
  bool stopped();
  /// Where the first rank speaks; nowhere for others.
  llvm::raw_ostream &out() const;

  const Options &options;
  std::unique_ptr<runtime::Session> session;
  std::string resumeFrom;
  int64_t seed = 0, position = 0;
  const runtime::Tensor *ids = nullptr, *labels = nullptr;
  int64_t batch = 0, length = 0, shift = 0;
  std::vector<int64_t> idsBuffer, labelsBuffer;
  std::optional<runtime::TokenData> data, evalTokens;
  std::optional<runtime::WindowOrder> order, evalOrder;
  std::unique_ptr<llvm::raw_fd_ostream> log;
  std::optional<Progress> progress;
  std::vector<std::string> saved;
  bool ended = false;
  /// Start and length of each traced step, in nanoseconds.
  std::vector<std::pair<int64_t, int64_t>> tracedSteps;
};

/// A number for JSON, which has no NaN and no infinity: they are null.
llvm::json::Value jsonNumber(double value);

/// Set by an interrupt; the step that runs is finished.
bool interrupted();
void watchInterrupts();

} // namespace cleave::run

#endif // CLEAVE_TOOLS_CLEAVERUN_TRAINER_H
