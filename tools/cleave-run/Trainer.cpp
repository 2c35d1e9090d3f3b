//===- Trainer.cpp - A training run ---------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Trainer.h"
#include "cleave/Runtime/FileIO.h"
#include "cleave/Runtime/ProgramIO.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/Path.h"

#include <algorithm>
#include <cmath>

using namespace cleave::run;
using namespace cleave::runtime;
using llvm::Error;
using llvm::Expected;
using llvm::Twine;

//===----------------------------------------------------------------------===//
// Setting up
//===----------------------------------------------------------------------===//

/// A checkpoint, or the latest of those in a folder.
static Expected<std::string> findCheckpoint(llvm::StringRef directory) {
  auto isCheckpoint = [](const Twine &path) {
    return llvm::sys::fs::exists(path + "/training.json");
  };
  if (isCheckpoint(directory))
    return directory.str();
  std::string latest;
  int64_t latestStep = -1;
  std::error_code error;
  for (llvm::sys::fs::directory_iterator it(directory, error), end;
       !error && it != end; it.increment(error)) {
    llvm::StringRef name = llvm::sys::path::filename(it->path());
    int64_t step;
    if (name.consume_front("step-") && !name.getAsInteger(10, step) &&
        step > latestStep && isCheckpoint(it->path())) {
      latest = it->path();
      latestStep = step;
    }
  }
  if (latest.empty())
    return makeError(directory + ": no checkpoint here (training.json, or "
                                 "folders named step-N that hold one)");
  return latest;
}

Error Trainer::findInputs() {
  const Program &program = session->getProgram();
  const Entry &entry = program.entries.find("train")->second;
  auto isTokens = [](const Tensor &tensor) {
    return tensor.role == Role::Input &&
           (tensor.dtype == DType::I64 || tensor.dtype == DType::I32);
  };
  auto named = [&](const std::string &name, const Tensor *&result) -> Error {
    result = session->find(name);
    if (!result || !isTokens(*result))
      return makeError("the program has no integer input '" + name + "'");
    return Error::success();
  };
  if (!options.idsInput.empty())
    if (Error error = named(options.idsInput, ids))
      return error;
  if (!options.labelsInput.empty())
    if (Error error = named(options.labelsInput, labels))
      return error;
  for (int32_t index : entry.inputs) {
    const Tensor &tensor = program.tensors[static_cast<size_t>(index)];
    if (&tensor == ids || &tensor == labels)
      continue;
    if (isTokens(tensor) && !ids) {
      ids = &tensor;
    } else if (isTokens(tensor) && !labels) {
      labels = &tensor;
    } else if (llvm::StringRef(tensor.name).contains("mask") &&
               byteSize(tensor.dtype) == 1) {
      // Data without padding sees everything.
      std::fill_n(session->data(tensor), session->bytes(tensor), 1);
      llvm::outs() << "input '" << tensor.name << "' is filled with ones\n";
    } else {
      return makeError("input '" + tensor.name +
                       "' has no data: cleave-run feeds token ids and labels");
    }
  }
  if (!ids)
    return makeError("the program has no integer input for token ids");
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
  // Models of the transformers library shift labels themselves.
  if (Expected<llvm::json::Value> facts = llvm::json::parse(program.metadata)) {
    if (const llvm::json::Object *object = facts->getAsObject())
      shift = object->getInteger("label_shift").value_or(0);
  } else {
    llvm::consumeError(facts.takeError());
  }
  shift = options.labelShift.value_or(shift);
  if (shift != 0 && shift != 1)
    return makeError("label_shift must be 0 or 1");
  idsBuffer.resize(static_cast<size_t>(batch * length));
  labelsBuffer.resize(idsBuffer.size());
  return Error::success();
}

Error Trainer::loadState() {
  if (!resumeFrom.empty()) {
    Expected<TrainingState> state = session->loadCheckpoint(resumeFrom);
    if (!state)
      return state.takeError();
    position = state->dataPosition;
    llvm::outs() << "resumed from " << resumeFrom << " after step "
                 << state->step << "\n";
    if (state->threads != session->getThreads())
      llvm::outs() << "the checkpoint was made by " << state->threads
                   << " threads, this run has " << session->getThreads()
                   << ": results may differ in the last bits\n";
    return Error::success();
  }
  if (!options.weights.empty())
    return session->loadWeights(options.weights);
  return session->initialiseRandomly(seed);
}

Error Trainer::openData() {
  auto open = [&](const std::string &path, std::optional<TokenData> &tokens,
                  std::optional<WindowOrder> &windows, bool shuffle) -> Error {
    Expected<TokenData> opened =
        TokenData::open(path, options.tokenizer, options.tokenType);
    if (!opened)
      return opened.takeError();
    tokens.emplace(std::move(*opened));
    windows.emplace(tokens->size(), length + shift, shift, shuffle,
                    static_cast<uint64_t>(seed));
    if (windows->size() == 0)
      return makeError(path + ": " + Twine(tokens->size()) +
                       " tokens do not fill one sequence of " +
                       Twine(length + shift));
    llvm::outs() << path << ": " << tokens->size() << " tokens, "
                 << windows->size() << " sequences of " << length;
    if (windows->leftOver())
      llvm::outs() << "; the last " << windows->leftOver()
                   << " tokens fill no sequence and are not used";
    llvm::outs() << "\n";
    return Error::success();
  };
  if (Error error = open(options.data, data, order, /*shuffle=*/true))
    return error;
  if (options.evalData.empty())
    return Error::success();
  if (!session->hasEntry("evaluate"))
    return makeError(options.artifact +
                     ": the program cannot evaluate; compile it with an "
                     "'evaluate' entry or leave out --eval-data");
  return open(options.evalData, evalTokens, evalOrder, /*shuffle=*/false);
}

Error Trainer::openLog() {
  if (options.log.empty())
    return Error::success();
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

Error Trainer::setUp() {
  seed = options.seed.value_or(0);
  SessionOptions sessionOptions;
  sessionOptions.threads = options.threads;
  sessionOptions.pinCaller = true;
  sessionOptions.timing = true;
  if (!options.resume.empty()) {
    Expected<std::string> found = findCheckpoint(options.resume);
    if (!found)
      return found.takeError();
    resumeFrom = *found;
    // Choices of implementations are part of what makes bits repeat.
    Expected<TrainingState> state = readTrainingState(resumeFrom);
    if (!state)
      return state.takeError();
    if (options.seed && *options.seed != state->seed)
      return makeError(resumeFrom + ": the checkpoint has seed " +
                       Twine(state->seed) + ", not " + Twine(*options.seed));
    seed = state->seed;
    sessionOptions.contractions = state->contractions;
  }
  sessionOptions.seed = seed;
  Expected<std::unique_ptr<Session>> opened =
      Session::open(options.artifact, sessionOptions);
  if (!opened)
    return opened.takeError();
  session = std::move(*opened);
  if (!session->hasEntry("train"))
    return makeError(options.artifact + ": the program has no 'train' entry");
  const Tensor *loss = session->find("loss");
  if (!loss || loss->role != Role::Output)
    return makeError(options.artifact + ": the program has no output 'loss'");
  if (options.threads > session->getThreads())
    llvm::outs() << "the program is planned for " << session->getThreads()
                 << " threads; no more are used\n";
  if (Error error = findInputs())
    return error;
  if (Error error = openData())
    return error;
  if (Error error = loadState())
    return error;
  if (const Tensor *scale = session->find("loss_scale"))
    if (scale->role == Role::Scalar)
      if (Error error = session->setScalar("loss_scale", 1.0))
        return error;
  return openLog();
}

//===----------------------------------------------------------------------===//
// Steps
//===----------------------------------------------------------------------===//

Error Trainer::fillBatch(const TokenData &tokens, WindowOrder &windows,
                         int64_t at, int64_t rows) {
  for (int64_t b = 0; b < batch; ++b) {
    int64_t start = windows.start(at + std::min(b, rows - 1));
    for (int64_t i = 0; i < length; ++i) {
      size_t to = static_cast<size_t>(b * length + i);
      idsBuffer[to] = tokens[start + i];
      labelsBuffer[to] =
          b < rows || !labels ? tokens[start + i + shift] : labels->ignoreIndex;
    }
  }
  auto set = [&](const Tensor *tensor,
                 const std::vector<int64_t> &values) -> Error {
    if (!tensor)
      return Error::success();
    if (tensor->dtype == DType::I64)
      return session->setInput(tensor->name, values.data(), DType::I64,
                               tensor->shape);
    std::vector<int32_t> narrow(values.begin(), values.end());
    return session->setInput(tensor->name, narrow.data(), DType::I32,
                             tensor->shape);
  };
  if (Error error = set(ids, idsBuffer))
    return error;
  return set(labels, labelsBuffer);
}

llvm::json::Value cleave::run::jsonNumber(double value) {
  if (std::isfinite(value))
    return value;
  return nullptr;
}

Error Trainer::trainStep(int64_t index) {
  if (Error error = fillBatch(*data, *order, position, batch))
    return error;
  double rate = options.schedule.at(index);
  if (session->find("lr"))
    if (Error error = session->setScalar("lr", rate))
      return error;
  Executor &executor = session->getExecutor();
  int64_t clock = executor.traceClock();
  Expected<StepResult> result = session->run("train");
  if (!result)
    return makeError("step " + Twine(index + 1) + ": " +
                     llvm::toString(result.takeError()));
  bool traced = !options.trace.empty() &&
                static_cast<int64_t>(tracedSteps.size()) < options.traceSteps;
  if (traced)
    tracedSteps.push_back({clock, executor.traceClock() - clock});
  position += batch;
  Expected<double> loss = session->getScalar("loss");
  if (!loss)
    return loss.takeError();
  double tokensPerSecond =
      static_cast<double>(batch * length) / result->seconds;
  progress->step(index + 1, *loss, rate, result->seconds, tokensPerSecond);
  if (!log)
    return Error::success();
  llvm::json::Object line{{"step", index + 1},
                          {"loss", jsonNumber(*loss)},
                          {"lr", rate},
                          {"tokens_per_s", jsonNumber(tokensPerSecond)},
                          {"ms", result->seconds * 1e3},
                          {"page_faults", result->pageFaults}};
  if (session->find("grad_norm")) {
    Expected<double> norm = session->getScalar("grad_norm");
    if (!norm)
      return norm.takeError();
    line["grad_norm"] = jsonNumber(*norm);
  }
  llvm::json::Object breakdown;
  double rest = result->seconds * 1e3;
  for (auto part :
       {TimeClass::Contraction, TimeClass::Attention, TimeClass::RowWise,
        TimeClass::Optimizer, TimeClass::Communication}) {
    double ms = static_cast<double>(result->breakdown[part]) / 1e6;
    breakdown[timeClassName(part)] = ms;
    rest -= ms;
  }
  breakdown["idle"] = std::max(0.0, rest);
  line["breakdown"] = std::move(breakdown);
  *log << llvm::json::Value(std::move(line)) << "\n";
  log->flush();
  return Error::success();
}

Error Trainer::save() {
  llvm::SmallString<128> path(options.saveDirectory);
  llvm::sys::path::append(path, "step-" + Twine(session->getStep()));
  if (Error error = session->saveCheckpoint(path, position))
    return error;
  progress->note("saved " + path);
  if (!llvm::is_contained(saved, path.str().str()))
    saved.push_back(path.str().str());
  // Only what this run has written is ever removed.
  while (options.keep > 0 &&
         static_cast<int64_t>(saved.size()) > options.keep) {
    llvm::sys::fs::remove_directories(saved.front());
    saved.erase(saved.begin());
  }
  return Error::success();
}

Expected<int> Trainer::run() {
  if (Error error = setUp())
    return error;
  int64_t first = session->getStep();
  int64_t last = options.stopAt > 0 ? std::min(options.stopAt, options.steps)
                                    : options.steps;
  progress.emplace(first, last);
  if (first >= last)
    progress->note("nothing to do: " + Twine(first) + " of " + Twine(last) +
                   " steps are done");
  if (!options.trace.empty()) {
    size_t commands = 0;
    for (const Action &action :
         session->getProgram().entries.find("train")->second.actions)
      commands += session->getProgram()
                      .parts[static_cast<size_t>(action.part)]
                      .commands.size();
    session->getExecutor().startTrace(commands *
                                      static_cast<size_t>(options.traceSteps));
  }
  watchInterrupts();
  int64_t savedAt = first;
  Error failure = Error::success();
  for (int64_t index = first; index < last && !failure && !interrupted();
       ++index) {
    failure = trainStep(index);
    if (failure)
      break;
    if (evalTokens && options.evalEvery > 0 &&
        ((index + 1) % options.evalEvery == 0 || index + 1 == last))
      failure = evaluate();
    if (!failure && options.saveEvery > 0 &&
        (index + 1) % options.saveEvery == 0) {
      failure = save();
      savedAt = index + 1;
    }
  }
  // The last state is kept even between two multiples.
  if (!failure && options.saveEvery > 0 && session->getStep() > savedAt)
    failure = save();
  progress->finish();
  if (!failure && !options.trace.empty())
    failure = writeTrace();
  if (failure)
    return failure;
  if (log && log->has_error()) {
    std::string message = log->error().message();
    log->clear_error();
    return makeError(options.log + ": cannot write: " + message);
  }
  if (options.reportMemory)
    report();
  return interrupted() ? 130 : 0;
}

//===----------------------------------------------------------------------===//
// Reports
//===----------------------------------------------------------------------===//

Error Trainer::writeTrace() {
  const std::vector<TraceEvent> &events = session->getExecutor().getTrace();
  return writeFileAtomically(options.trace, [&](llvm::raw_ostream &os) {
    llvm::json::OStream json(os);
    auto event = [&](llvm::StringRef name, llvm::StringRef category,
                     int64_t start, int64_t duration, int track,
                     std::optional<int64_t> microBatch) {
      json.object([&] {
        json.attribute("name", llvm::json::fixUTF8(name));
        json.attribute("cat", category);
        json.attribute("ph", "X");
        json.attribute("ts", static_cast<double>(start) / 1e3);
        json.attribute("dur", static_cast<double>(duration) / 1e3);
        json.attribute("pid", 0);
        json.attribute("tid", track);
        if (microBatch)
          json.attributeObject(
              "args", [&] { json.attribute("micro_batch", *microBatch); });
      });
    };
    json.object([&] {
      json.attribute("displayTimeUnit", "ms");
      json.attributeArray("traceEvents", [&] {
        for (auto [i, step] : llvm::enumerate(tracedSteps))
          event(("traced step " + Twine(i + 1)).str(), "step", step.first,
                step.second, 0, std::nullopt);
        for (const TraceEvent &e : events) {
          llvm::StringRef category = timeClassName(e.command->timeClass);
          event(e.command->label.empty() ? category : e.command->label,
                category, e.start, e.duration, 1, e.microBatch);
        }
      });
    });
    os << "\n";
  });
}

/// The largest resident size of this process so far, in bytes.
static int64_t peakResident() {
  auto buffer = llvm::MemoryBuffer::getFileAsStream("/proc/self/status");
  if (!buffer)
    return 0;
  llvm::StringRef text = (*buffer)->getBuffer();
  size_t at = text.find("VmHWM:");
  int64_t kilobytes = 0;
  if (at != llvm::StringRef::npos)
    text.substr(at + 6).ltrim().consumeInteger(10, kilobytes);
  return kilobytes * 1024;
}

void Trainer::report() const {
  MemoryReport memory = session->getMemory();
  auto line = [](llvm::StringRef name, int64_t bytes) {
    llvm::outs() << llvm::format("%10.1f MiB  ",
                                 static_cast<double>(bytes) / (1 << 20))
                 << name << "\n";
  };
  line("arena", memory.arena);
  for (const auto &[kind, bytes] : memory.byKind)
    line("  " + kind, bytes);
  line("workspace of the library", memory.workspace);
  line("peak resident size of the process", peakResident());
}
