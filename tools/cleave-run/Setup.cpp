//===- Setup.cpp - Before the first step ----------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Trainer.h"
#include "cleave/Executable/Files/CheckpointFolder.h"
#include "cleave/Executable/Files/Conversion.h"
#include "cleave/Executable/Format/FileIO.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/xxhash.h"

#include <algorithm>
#include <charconv>
#include <utility>

using namespace cleave::run;
using namespace cleave::runtime;
using llvm::Error;
using llvm::Expected;
using llvm::Twine;

Error Trainer::fillWithOnes(llvm::StringRef name) {
  const Tensor *tensor = session->find(name);
  if (!tensor || tensor->role != Role::Input)
    return makeError("the program has no input '" + name +
                     "' to fill with "
                     "ones");
  if (name == options.idsInput || name == options.labelsInput)
    return makeError("input '" + name +
                     "' is filled with ones, and takes no "
                     "tokens");
  std::optional<Conversion> fromByte = Conversion::find("U8", tensor->dtype);
  if (!fromByte)
    return makeError("input '" + name + "' is " + dtypeName(tensor->dtype) +
                     "; integers and booleans are filled with ones");
  std::vector<char> bytes(static_cast<size_t>(tensor->numElements()), 1);
  std::vector<char> ones(static_cast<size_t>(session->bytes(*tensor)));
  fromByte->run(bytes.data(), ones.data(), tensor->numElements());
  session->write(*tensor, ones.data());
  return Error::success();
}

/// Refuses a program with numbers of an update that only Python computes.
static Error checkScalars(const Program &program) {
  for (const Tensor &tensor : program.tensors)
    if (tensor.role == Role::Scalar &&
        llvm::StringRef(tensor.name).starts_with("update."))
      return makeError("the update takes '" + tensor.name +
                       "' of each step, a number that the Python code of its "
                       "optimizer computes: train the program from Python");
  return Error::success();
}

Error Trainer::findInputs() {
  const Program &program = session->getProgram();
  const Entry &entry = program.entries.find("train")->second;
  if (Error error = checkScalars(program))
    return error;
  auto isTokens = [](const Tensor &tensor) {
    return tensor.role == Role::Input &&
           (tensor.dtype == DType::I64 || tensor.dtype == DType::I32);
  };
  auto named = [&](const std::string &name, const Tensor *&result) -> Error {
    result = session->find(name);
    if (result && isTokens(*result))
      return Error::success();
    std::string known;
    for (int32_t index : entry.inputs)
      if (const Tensor &tensor = program.tensors[static_cast<size_t>(index)];
          isTokens(tensor))
        known += (known.empty() ? "" : ", ") + tensor.name;
    return makeError("the program has no integer input '" + name +
                     "'; it has " + (known.empty() ? "none" : known));
  };
  if (!options.idsInput.empty())
    if (Error error = named(options.idsInput, ids))
      return error;
  if (!options.labelsInput.empty())
    if (Error error = named(options.labelsInput, labels))
      return error;
  for (const std::string &name : options.onesInputs)
    if (Error error = fillWithOnes(name))
      return error;
  auto isOnes = [&](const Tensor &tensor) {
    return llvm::any_of(options.onesInputs, [&](const std::string &name) {
      return session->find(name) == &tensor;
    });
  };
  for (int32_t index : entry.inputs) {
    const Tensor &tensor = program.tensors[static_cast<size_t>(index)];
    if (&tensor == labels && !ids)
      return makeError("--labels-input names '" + tensor.name +
                       "', the first input of integers, which takes the tokens "
                       "unless --ids-input names another; name that too");
    if (&tensor == ids || &tensor == labels || isOnes(tensor))
      continue;
    if (isTokens(tensor) && !ids) {
      ids = &tensor;
    } else if (isTokens(tensor) && !labels) {
      labels = &tensor;
    } else {
      return makeError("input '" + tensor.name +
                       "' has no data: cleave-run feeds token ids and labels, "
                       "and ones to what --ones-input names");
    }
  }
  if (!ids)
    return makeError("the program has no integer input for token ids: "
                     "cleave-run trains on sequences of tokens, and a program "
                     "in Python on any inputs (cleave.compile)");
  if (ids->shape.size() != 2)
    return makeError("input '" + ids->name + "' has shape " +
                     shapeText(ids->shape) +
                     ", but token ids are [batch, sequence]");
  if (labels && labels->shape != ids->shape)
    return makeError("input '" + labels->name + "' has shape " +
                     shapeText(labels->shape) + ", but '" + ids->name +
                     "' has " + shapeText(ids->shape));
  batch = ids->shape[0];
  length = ids->shape[1];
  idsBuffer.resize(static_cast<size_t>(batch * length));
  labelsBuffer.resize(idsBuffer.size());
  return Error::success();
}

Error Trainer::explainResume(Error error) const {
  if (resumeFrom == options.resume)
    return error;
  return makeError(llvm::toString(std::move(error)) +
                   "; this is the latest checkpoint of " + options.resume +
                   ": --resume takes the folder of an earlier one too");
}

Error Trainer::loadState() {
  if (!resumeFrom.empty()) {
    // What was another run is said before what its files lack.
    Expected<TrainingState> before = readTrainingState(resumeFrom);
    if (!before)
      llvm::consumeError(before.takeError());
    else if (Error error = compareRun(*before))
      return error;
    Expected<TrainingState> state = session->loadCheckpoint(resumeFrom);
    if (!state)
      return explainResume(state.takeError());
    position = state->dataPosition;
    // No data have as many sequences; the position of a `cleave.feed.Feed`
    // holds more than their number.
    if (position >> 44)
      return makeError(resumeFrom + ": its position is that of a feed in "
                                    "Python, and counts no sequences of "
                                    "cleave-run");
    if (command)
      if (Error error = seekCommand(*state))
        return error;
    out() << "resumed from " << resumeFrom << " after step " << state->step
          << "\n";
    for (const std::string &technique : state->absent)
      out() << "the checkpoint has no state of " << technique
            << ", which begins as zero\n";
    if (state->threads != session->getThreads())
      out() << "the checkpoint was made with " << state->threads
            << (state->threads == 1 ? " thread" : " threads")
            << " of all ranks together, and this run has "
            << session->getThreads()
            << ": results may differ in the last bits\n";
    return Error::success();
  }
  return loadStart();
}

Error Trainer::loadStart() {
  if (std::exchange(started, true))
    return Error::success();
  for (const std::string &path : options.weights)
    if (Error error = session->loadWeights(path))
      return error;
  if (!options.weights.empty())
    return Error::success();
  return session->initialiseRandomly(seed);
}

/// A new run does not write next to the checkpoints of another run, and a
/// resumed one names later checkpoints of its folder: `--resume` takes the
/// latest of a folder.
Error Trainer::checkOthers() const {
  Expected<std::string> other = findCheckpoint(options.saveDirectory);
  if (!other) {
    llvm::consumeError(other.takeError());
    return Error::success();
  }
  if (resumeFrom.empty())
    return makeError(
        options.saveDirectory + ": holds checkpoints of another run (" +
        *other +
        "), of which --resume would take the latest; continue with "
        "--resume " +
        options.saveDirectory + ", name another --save-dir, or remove them");
  Expected<TrainingState> state = readTrainingState(*other);
  if (!state)
    llvm::consumeError(state.takeError());
  else if (state->step > session->getStep())
    out() << *other << " is later than the start of this run: --resume "
          << options.saveDirectory << " takes it until this run is further\n";
  return Error::success();
}

Error Trainer::openLog() {
  if (options.log.empty() || !session->isLeader())
    return Error::success();
  Expected<int> special = openSpecial(options.log);
  if (!special)
    return special.takeError();
  if (*special >= 0) {
    log =
        std::make_unique<llvm::raw_fd_ostream>(*special, /*shouldClose=*/true);
    return Error::success();
  }
  std::error_code error;
  log = std::make_unique<llvm::raw_fd_ostream>(
      options.log, error,
      resumeFrom.empty() ? llvm::sys::fs::CD_CreateAlways
                         : llvm::sys::fs::CD_OpenAlways,
      llvm::sys::fs::FA_Write,
      resumeFrom.empty() ? llvm::sys::fs::OF_None : llvm::sys::fs::OF_Append);
  if (error) {
    log.reset();
    return makeError(options.log + ": cannot write: " + error.message());
  }
  return Error::success();
}

/// All settings that decide what is computed, or which collectives processes
/// run.
Error Trainer::agreeOnOptions() const {
  const LearningRate &rates = options.learningRate;
  static constexpr const char *kinds[] = {"constant", "linear", "cosine"};
  auto number = [](int64_t value) { return std::to_string(value); };
  auto real = [](double value) {
    char text[32];
    return std::string(text, std::to_chars(text, text + 32, value).ptr);
  };
  auto given = [](bool value) -> std::string { return value ? "yes" : "no"; };
  return session->agree(
      {{"--lr-schedule", kinds[static_cast<size_t>(rates.kind)]},
       {"--lr", real(rates.rate)},
       {"--warmup", number(static_cast<int64_t>(rates.warmup))},
       {"--min-lr", real(rates.minimum)},
       {"--steps", number(options.steps)},
       {"--stop-at", number(options.stopAt)},
       {"--eval-every", number(options.evalEvery)},
       {"--eval-batches", number(options.evalBatches)},
       {"--save-every", number(options.saveEvery)},
       {"--trace-steps", number(options.traceSteps)},
       {"--label-shift", number(options.labelShift.value_or(-1))},
       {"--ids-input", options.idsInput},
       {"--labels-input", options.labelsInput},
       {"--ones-input", llvm::join(options.onesInputs, ",")},
       {"the number of --weights", number(options.weights.size())},
       {"whether --resume is given", given(!options.resume.empty())},
       {"whether --random-init is given", given(options.randomInit)},
       {"whether --eval-data is given", given(!options.evalData.empty())},
       {"whether --log is given", given(!options.log.empty())},
       {"whether --trace is given", given(!options.trace.empty())},
       {"whether --report-memory is given", given(options.reportMemory)},
       {"whether --report-communication is given",
        given(options.reportCommunication)}});
}

Error Trainer::setUp() {
  seed = options.seed.value_or(0);
  SessionOptions sessionOptions;
  sessionOptions.threads = options.threads;
  sessionOptions.offloadFolder = options.offloadDir;
  sessionOptions.ranksPerDevice = options.ranksPerDevice;
  sessionOptions.pinCaller = true;
  sessionOptions.timing = true;
  if (!options.resume.empty()) {
    Expected<std::string> found = findCheckpoint(options.resume);
    if (!found)
      return found.takeError();
    resumeFrom = *found;
    // Choices of implementations are needed to repeat the same bits.
    Expected<TrainingState> state = readTrainingState(resumeFrom);
    if (!state)
      return explainResume(state.takeError());
    if (options.seed && *options.seed != state->seed)
      return makeError(resumeFrom + ": the checkpoint has seed " +
                       Twine(state->seed) + ", not " + Twine(*options.seed));
    seed = state->seed;
    sessionOptions.contractions = state->contractions;
  }
  sessionOptions.seed = seed;
  residentBefore = residentBytes("VmRSS");
  // Before this thread is bound to a core.
  if (!options.dataCommand.empty()) {
    command.emplace(options.dataCommand, options.tokenizer);
    commandHash = saltedHash(options.dataCommand);
  }
  if (!options.tokenizer.empty()) {
    auto file = readFile(options.tokenizer);
    if (!file)
      return file.takeError();
    tokenizerHash = llvm::utohexstr(
        llvm::xxh3_64bits(llvm::arrayRefFromStringRef((*file)->getBuffer())),
        /*LowerCase=*/true);
  }
  Expected<std::unique_ptr<Session>> opened =
      Session::open(options.artifact, sessionOptions);
  if (!opened)
    return opened.takeError();
  session = std::move(*opened);
  if (Error error = agreeOnOptions())
    return error;
  if (!session->hasEntry("train"))
    return makeError(options.artifact +
                     ": the program has no 'train' entry: "
                     "cleave-compile makes one of a model that has a loss");
  const Tensor *loss = session->find("loss");
  if (!loss || loss->role != Role::Output)
    return makeError(options.artifact +
                     ": the program has no output 'loss': "
                     "give the result of the model's entry that name");
  if (!options.offloadDir.empty() && !session->offloads())
    return makeError("--offload-dir has no effect: the program offloads "
                     "nothing; cleave-compile --offload says what it shall");
  int threads =
      session->getThreads() / session->getRanks() * session->getLocalRanks();
  if (options.threads > threads)
    out() << "the program is planned for " << threads
          << " threads; no more are used\n";
  if (Error error = findInputs())
    return makeError(options.artifact + ": " +
                     llvm::toString(std::move(error)));
  if (Error error = findLabelShift())
    return error;
  if (Error error = openData())
    return error;
  auto hash = [](const std::optional<TokenData> &tokens) {
    return tokens ? tokens->hash() : Expected<std::string>("none");
  };
  Expected<std::string> trained = hash(data), evaluated = hash(evalTokens);
  if (Error error =
          llvm::joinErrors(trained.takeError(), evaluated.takeError()))
    return error;
  // Of the command a hash is compared: it may have passwords, and what differs
  // is printed.
  std::string commands =
      command ? saltedHash(options.dataCommand, "ranks") : "none";
  if (Error error =
          session->agree({{"--data-command (hash)", commands},
                          {"the training data (hash)", *trained},
                          {"the evaluation data (hash)", *evaluated}}))
    return error;
  if (Error error = loadState())
    return error;
  // Checked now, so that writing does not fail only later.
  if (!options.trace.empty() && session->isLeader())
    if (Error error = checkWritable(options.trace))
      return error;
  if (options.saveEvery > 0 && session->isLeader()) {
    if (Error error = checkWritableFolder(options.saveDirectory))
      return error;
    if (Error error = session->lockFolder(options.saveDirectory))
      return error;
    if (Error error = checkOthers())
      return error;
  }
  if (options.saveEvery == 0)
    out() << "no checkpoints: the trained weights end with this run; "
             "--save-every N keeps them\n";
  return openLog();
}
