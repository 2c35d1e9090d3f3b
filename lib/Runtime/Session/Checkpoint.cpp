//===- Checkpoint.cpp - Checkpoints of a session --------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Weights.h"
#include "cleave/Executable/Format/FileIO.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Runtime/Core/NewCheckpoint.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/Path.h"

using namespace cleave::runtime;
using llvm::Error;
using llvm::Expected;
using llvm::Twine;

static constexpr int64_t checkpointVersion = 1;

TrainingState Session::getTrainingState(int64_t dataPosition) const {
  TrainingState state;
  state.seed = seed;
  state.step = step;
  state.updatesPerStep = getProgram().updatesPerStep();
  state.skipped = skipped;
  state.lossScale = lossScale;
  state.dataPosition = dataPosition;
  state.threads = getThreads();
  state.contractions = choices;
  return state;
}

/// Removes what killed processes have left in a locked folder.
static Error clean(const FolderLock &lock, llvm::StringRef folder) {
  // Of a file system without locks another process may write there.
  return lock.isHeld() ? removeLeftovers(folder.empty() ? "." : folder)
                       : Error::success();
}

Error Session::lockFolder(llvm::StringRef folder) {
  Expected<FolderLock> taken = FolderLock::take(folder);
  if (!taken)
    return taken.takeError();
  lock = std::move(*taken);
  return clean(lock, folder);
}

Error Session::saveCheckpoint(llvm::StringRef directory, int64_t dataPosition,
                              const SaveOptions &options) const {
  if (!options.nonFinite)
    if (Error error = checkFinite())
      return makeError(directory + ": the checkpoint was not written: " +
                       llvm::toString(std::move(error)));
  // The first rank writes; all ranks take part in reading their shards, also
  // where it cannot write, and learn of that.
  int files = 0;
  Busy busy(alone() || !isLeader() ? nullptr : first().getCommunicator());
  Error error = isLeader()
                    ? writeCheckpoint(directory, dataPosition, options, files)
                    : Error::success();
  for (; files < 2; ++files)
    if (Error lost = save("", /*optimizer=*/files == 1))
      return llvm::joinErrors(std::move(error), std::move(lost));
  return ofLeader(std::move(error));
}

Error Session::writeCheckpoint(llvm::StringRef directory, int64_t dataPosition,
                               const SaveOptions &options, int &files) const {
  llvm::SmallString<128> target(directory);
  while (target.size() > 1 && target.ends_with("/"))
    target.pop_back();
  llvm::StringRef parent = llvm::sys::path::parent_path(target);
  if (Error error = createFolders(parent))
    return error;
  // Other writers of this folder finish soon, but a run keeps its lock.
  FolderLock briefly;
  if (!lock.covers(parent)) {
    Expected<FolderLock> taken = FolderLock::take(parent, /*patience=*/3);
    if (!taken)
      return taken.takeError();
    briefly = std::move(*taken);
    if (Error error = clean(briefly, parent))
      return error;
  }
  Expected<NewCheckpoint> made = NewCheckpoint::begin(target);
  if (!made)
    return made.takeError();

  TrainingState state = getTrainingState(dataPosition);
  llvm::json::Object contractions;
  for (const auto &[key, name] : state.contractions)
    contractions[key] = name;
  llvm::json::Object training{
      {"version", checkpointVersion},
      {"seed", state.seed},
      {"step", state.step},
      {"updates_per_step", state.updatesPerStep},
      {"data_position", state.dataPosition},
      {"threads", state.threads},
      {"contractions", std::move(contractions)},
      {"program_version", int64_t(getProgram().version)},
  };
  if (state.skipped > 0)
    training["skipped"] = state.skipped;
  if (state.lossScale)
    training["loss_scale"] =
        llvm::json::Object{{"scale", state.lossScale->scale},
                           {"growth", state.lossScale->growth},
                           {"hysteresis", state.lossScale->hysteresis}};
  for (const auto &[name, text] :
       {std::pair("run", &options.run), std::pair("kept", &options.kept)}) {
    if (text->empty())
      continue;
    Expected<llvm::json::Value> facts = parseJson(*text);
    if (!facts)
      return facts.takeError();
    training[name] = std::move(*facts);
  }
  for (llvm::StringRef name : {kModelFile, kOptimizerFile}) {
    Error error =
        save(made->path(name), name == kOptimizerFile, &made->facts(name));
    ++files;
    if (error)
      return error;
  }
  return made->commit(std::move(training));
}

Expected<TrainingState>
cleave::runtime::readTrainingState(llvm::StringRef directory) {
  std::string path = (directory + "/" + kTrainingFile).str();
  Expected<llvm::json::Object> facts = readFacts(directory);
  if (!facts)
    return facts.takeError();
  const llvm::json::Object *object = &*facts;
  if (object->getInteger("version") != checkpointVersion)
    return makeError(
        path + ": not a checkpoint of version " + Twine(checkpointVersion) +
        ", which is read here: it has " +
        (object->getInteger("version")
             ? "version " + Twine(*object->getInteger("version")).str()
             : "none"));
  auto seed = object->getInteger("seed");
  auto step = object->getInteger("step");
  auto position = object->getInteger("data_position");
  int64_t updates = object->getInteger("updates_per_step").value_or(1);
  // Far above any real training, and far from where sums overflow.
  constexpr int64_t most = int64_t(1) << 60;
  if (!seed || !step || !position || *step < 0 || *position < 0 ||
      *step > most || *position > most || updates < 1 ||
      updates > most / std::max<int64_t>(*step, 1))
    return makeError(path + ": seed, step or data_position is missing or out "
                            "of range");
  int64_t skipped = object->getInteger("skipped").value_or(0);
  if (skipped < 0 || skipped > *step)
    return makeError(path + ": skipped is out of range");
  TrainingState state;
  if (const llvm::json::Object *scale = object->getObject("loss_scale")) {
    LossScaleState own{scale->getNumber("scale").value_or(0),
                       scale->getInteger("growth").value_or(-1),
                       scale->getInteger("hysteresis").value_or(-1)};
    if (!own.isValid())
      return makeError(path + ": loss_scale is out of range");
    state.lossScale = own;
  }
  state.skipped = skipped;
  state.seed = *seed;
  state.step = *step;
  state.updatesPerStep = updates;
  state.dataPosition = *position;
  state.threads = static_cast<int>(object->getInteger("threads").value_or(0));
  for (const auto &[name, text] :
       {std::pair("run", &state.run), std::pair("kept", &state.kept)})
    if (const llvm::json::Object *facts = object->getObject(name))
      llvm::raw_string_ostream(*text)
          << llvm::json::Value(llvm::json::Object(*facts));
  if (const llvm::json::Object *choices = object->getObject("contractions"))
    for (const auto &[key, name] : *choices)
      state.contractions[llvm::StringRef(key).str()] =
          name.getAsString().value_or("").str();
  return state;
}

Expected<TrainingState>
Session::readCheckpoint(llvm::StringRef directory,
                        std::vector<Loaded> &files) const {
  Expected<TrainingState> state = readTrainingState(directory);
  if (!state)
    return state.takeError();
  // Steps of this program that make as many updates.
  int64_t each = getProgram().updatesPerStep(),
          done = (state->step - state->skipped) * state->updatesPerStep;
  if (done % each != 0)
    return makeError(directory + ": " + Twine(done) +
                     " updates were made, and a step of this program makes " +
                     Twine(each) +
                     ": its optimizer would count others; compile it for "
                     "micro-batches that divide them");
  state->step = done / each + state->skipped;
  state->updatesPerStep = each;
  Expected<llvm::json::Object> facts = readFacts(directory);
  if (!facts)
    return facts.takeError();
  for (llvm::StringRef name : {kModelFile, kOptimizerFile}) {
    Expected<std::string> file = findFile(directory, name, *facts);
    if (!file)
      return file.takeError();
    Expected<Loaded> loaded = check(*file, name == kOptimizerFile);
    if (!loaded)
      return loaded.takeError();
    for (const Tensor *tensor : loaded->absent)
      if (!llvm::is_contained(state->absent, tensor->optional))
        state->absent.push_back(tensor->optional);
    files.push_back(std::move(*loaded));
  }
  return state;
}

Expected<TrainingState> Session::loadCheckpoint(llvm::StringRef directory) {
  Busy busy = this->busy();
  std::vector<Loaded> files;
  Expected<TrainingState> state = readCheckpoint(directory, files);
  // If one process alone could not read its files, the others must not go on.
  std::string wrong = state ? "nothing" : llvm::toString(state.takeError());
  if (Error error = agree({{"what is wrong with the checkpoint", wrong}}))
    return makeError(directory + ": " + llvm::toString(std::move(error)));
  if (files.size() != 2)
    return makeError(wrong);
  if (Error error = agree(
          {{"the step of the checkpoint", std::to_string(state->step)},
           {"its seed", std::to_string(state->seed)},
           {"its skipped steps", std::to_string(state->skipped)},
           {"its position in the data", std::to_string(state->dataPosition)}}))
    return makeError(directory + ": " + llvm::toString(std::move(error)));
  if (Error error = take(files))
    return error;
  seed = state->seed;
  step = state->step;
  skipped = state->skipped;
  setLossScale(state->lossScale);
  return state;
}
