//===- Trainer.h - A training run -------------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TOOLS_CLEAVERUN_TRAINER_H
#define CLEAVE_TOOLS_CLEAVERUN_TRAINER_H

#include "cleave/Runtime/Data/CommandData.h"
#include "cleave/Runtime/Data/TokenData.h"
#include "cleave/Runtime/Session/LearningRate.h"
#include "cleave/Runtime/Session/Session.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/raw_ostream.h"
#include <optional>

namespace cleave::run {

/// How a run displays its steps. `Auto`: a bar on a terminal without a launcher
/// of processes, else nothing.
enum class ProgressForm : uint8_t { Auto, Bar, Lines, None };

/// The options of the command line.
struct Options {
  std::string artifact, data, dataCommand, tokenizer, tokenType;
  /// Files of weights; a later one replaces what an earlier one has given.
  std::vector<std::string> weights;
  std::string evalData, saveDirectory, resume, log, trace;
  std::string idsInput, labelsInput;
  /// Inputs that are filled with ones.
  std::vector<std::string> onesInputs;
  runtime::LearningRate learningRate;
  int64_t steps = 0, stopAt = 0;
  int64_t evalEvery = 0, evalBatches = 0, saveEvery = 0, keep = 0;
  int64_t traceSteps = 0;
  std::optional<int64_t> seed;
  std::optional<int64_t> labelShift;
  int threads = 0;
  std::string offloadDir;
  int ranksPerDevice = 1;
  bool randomInit = false, reportMemory = false, reportCommunication = false;
  bool saveNonFinite = false, acceptChanges = false;
  ProgressForm progress = ProgressForm::Auto;
  /// The whole command line.
  std::vector<std::string> words;
};

/// Displays steps: a line for each, a bar, or nothing.
class Progress {
public:
  /// Writes to `out`. `alone`: whether no launcher started this process.
  Progress(int64_t first, int64_t total, llvm::raw_ostream &out,
           ProgressForm form, bool alone);
  void step(int64_t step, double loss, double rate, double seconds,
            double tokensPerSecond);
  /// Prints a line above the bar.
  void note(const llvm::Twine &text);
  void finish();

private:
  void clear();
  int64_t first, total;
  llvm::raw_ostream &out;
  ProgressForm form;
  bool drawn = false;
  double smoothed = 0;
};

/// The sequences of a batch: the token at place `i` of row `b`, and where it is
/// in the data.
struct Sequences {
  llvm::function_ref<int64_t(int64_t b, int64_t i)> token;
  llvm::function_ref<std::string(int64_t b, int64_t i)> place;
};

class Trainer {
public:
  explicit Trainer(const Options &options) : options(options) {}

  /// Trains; returns the exit code.
  llvm::Expected<int> run();
  /// Tells the other ranks that this process ends with an error.
  void fail(llvm::StringRef message);
  /// The rank of this process as a prefix of messages, if it is not the first
  /// one; a message of the communicator includes the rank already.
  std::string speaker(llvm::StringRef message) const;

private:
  llvm::Error setUp();
  llvm::Error agreeOnOptions() const;
  llvm::Error fillWithOnes(llvm::StringRef name);
  llvm::Error findInputs();
  llvm::Error loadState();
  /// Reads or draws the parameters of a run that begins, once.
  llvm::Error loadStart();
  /// What labels are: given, recorded, or else what the loss does to them.
  llvm::Error findLabelShift();
  /// An evaluation of made-up tokens: labels from column `counted` on are
  /// ignored; those of column `changed` are others.
  struct Trial {
    std::optional<int64_t> counted = {};
    int64_t changed = -1;
  };
  struct Tried {
    double loss = 0, weight = 0;
  };
  llvm::Expected<Tried> evaluateLabels(const Trial &trial);
  /// Whether the loss shifts its labels, if that is to be seen.
  llvm::Expected<std::optional<bool>> lossShifts();
  /// Says how to continue if the latest of several checkpoints is damaged.
  llvm::Error explainResume(llvm::Error error) const;
  llvm::Error openData();
  /// Reads what the run of a checkpoint has read of the command.
  llvm::Error seekCommand(const runtime::TrainingState &state);
  /// Reads a batch of the command; false if a signal ends the run before.
  llvm::Expected<bool> readCommand();
  llvm::Error openLog();
  llvm::Error checkOthers() const;
  /// The facts of this run for a checkpoint, as JSON.
  std::string describeRun() const;
  /// Prints the differences from the run of a checkpoint; fails if resuming
  /// would be wrong.
  llvm::Error compareRun(const runtime::TrainingState &state) const;
  /// The command that resumes from a checkpoint.
  std::string resumeCommand(llvm::StringRef checkpoint) const;
  /// Fills the inputs with sequences; rows from `rows` on are padding.
  llvm::Error fillBatch(const Sequences &sequences, int64_t rows);
  /// Sets the inputs to what the buffers hold.
  llvm::Error setTokens();
  /// The same with the windows from `position` on.
  llvm::Error fillBatch(const runtime::TokenData &data,
                        runtime::WindowOrder &order, int64_t position,
                        int64_t rows);
  /// The same with what `readCommand` has read.
  llvm::Error fillFromCommand();
  /// Adds a line of JSON to the log, if there is one.
  llvm::Error writeLog(llvm::json::Object line);
  llvm::Error trainStep(int64_t index);
  /// Says that a step was skipped, whose gradients overflowed at `scale`.
  llvm::Error reportSkipped(int64_t index, const runtime::StepResult &result,
                            double scale);
  /// Reports the loss of all evaluation data, as if they were one batch.
  llvm::Error evaluate();
  /// Trains until the last step, a signal or an error, which may be that of a
  /// checkpoint.
  llvm::Error trainSteps(int64_t first, int64_t last);
  /// The same, and saves the last state.
  llvm::Error trainAndSave(int64_t first, int64_t last);
  llvm::Error save();
  /// The same, and notes the step at which it was tried.
  llvm::Error saveNow();
  /// Removes the oldest checkpoints; keeps the last --keep.
  llvm::Error removeOld() const;
  /// Writes the traces of all processes, on the first one.
  llvm::Error writeTrace();
  /// Collective, as the next one: all processes call it.
  llvm::Error reportMemory() const;
  llvm::Error reportCommunication() const;
  /// Whether a signal to any process ends the run; also records requests to
  /// save.
  bool stopped();
  /// The output of the first rank; discarded on others.
  llvm::raw_ostream &out() const;

  const Options &options;
  std::unique_ptr<runtime::Session> session;
  std::string resumeFrom;
  int64_t seed = 0, position = 0;
  /// The step at which a checkpoint was last written, or failed to be.
  int64_t tried = 0;
  /// Whether the parameters of a run that begins are there.
  bool started = false;
  const runtime::Tensor *ids = nullptr, *labels = nullptr;
  int64_t batch = 0, length = 0, shift = 0;
  std::vector<int64_t> idsBuffer, labelsBuffer, windowTokens;
  /// Hashes of the training data, the tokenizer and the data command, for
  /// checkpoints.
  std::string dataDigest, tokenizerHash, commandHash;
  std::optional<runtime::TokenData> data, evalTokens;
  std::optional<runtime::WindowOrder> order, evalOrder;
  /// In the place of `data`: the sequences of a batch, and the position after
  /// the last step.
  std::optional<runtime::CommandData> command;
  std::vector<int64_t> commandRows;
  runtime::CommandPosition commandUsed;
  std::unique_ptr<llvm::raw_fd_ostream> log;
  std::optional<Progress> progress;
  /// The latest checkpoint of this run.
  std::string saved;
  /// The signal that ends the run; whether a signal asked for a checkpoint.
  int endedBy = 0;
  bool saveAsked = false;
  /// The resident size of the process before it loaded the program.
  int64_t residentBefore = 0;
  /// Start and length of each traced step, in nanoseconds.
  std::vector<std::pair<int64_t, int64_t>> tracedSteps;
};

/// The name of the program that a command runs first: what a person recognises
/// it by, without what may be a password.
std::string redacted(llvm::StringRef command);

/// A hash from which a password, if it is all that is unknown of a text, cannot
/// be found by trying many: it is slow, and has a salt, which is drawn if none
/// is given and stands before a colon.
std::string saltedHash(llvm::StringRef text, llvm::StringRef salt = "");

/// A number for JSON, where NaN and infinity become null.
llvm::json::Value jsonNumber(double value);

/// The resident size of this process, now ("VmRSS") or at most ("VmHWM").
int64_t residentBytes(llvm::StringRef field);

/// The signal that asked this process to end after the current step, or 0. A
/// second one ends it at once.
int stopSignal();
/// Whether a signal has asked for a checkpoint since the last call.
bool takeSaveSignal();
/// Handles, before the first step, the signals that ask for a checkpoint, and
/// with `begun` also those that ask to end.
void watchSignals(bool begun);
/// The name of a signal, such as "SIGTERM".
const char *signalName(int number);

} // namespace cleave::run

#endif // CLEAVE_TOOLS_CLEAVERUN_TRAINER_H
