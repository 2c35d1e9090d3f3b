//===- Checkpoint.cpp - Weights and checkpoints ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Core/FileIO.h"
#include "cleave/Runtime/Core/Placement.h"
#include "cleave/Runtime/Core/ProgramIO.h"
#include "cleave/Runtime/Core/Safetensors.h"
#include "cleave/Runtime/Session/Session.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/xxhash.h"

#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

using namespace cleave::runtime;
using llvm::Error;
using llvm::Expected;
using llvm::Twine;

static constexpr int64_t checkpointVersion = 1;

//===----------------------------------------------------------------------===//
// Tensors
//===----------------------------------------------------------------------===//

static bool belongs(const Tensor &tensor, bool optimizer) {
  if (optimizer)
    return tensor.role == Role::State;
  return tensor.role == Role::Parameter || tensor.role == Role::Buffer;
}

/// The shape of a tensor in files.
static const std::vector<int64_t> &fileShape(const Tensor &tensor) {
  return tensor.frameworkShape.empty() ? tensor.shape : tensor.frameworkShape;
}

/// The names under which a file may hold `tensor`: tied weights have several.
static std::vector<std::string> namesOf(const Tensor &tensor) {
  std::vector<std::string> all = tensor.aliases;
  all.insert(all.begin(), tensor.name);
  return all;
}

/// The names to try if `file` has none of `tensor`'s own: a parameter may start
/// as another one.
static std::vector<std::string> namesIn(const SafetensorsFile &file,
                                        const Program &program,
                                        const Tensor &tensor) {
  std::vector<std::string> own = namesOf(tensor);
  auto given = [&](const std::string &name) {
    return file.find(name) != nullptr;
  };
  if (tensor.role != Role::Parameter || tensor.of.empty() ||
      llvm::any_of(own, given))
    return own;
  for (const Tensor &other : program.tensors)
    if (other.name == tensor.of)
      if (std::vector<std::string> names = namesOf(other);
          llvm::any_of(names, given))
        return names;
  return own;
}

struct Session::Loaded {
  SafetensorsFile file;
  std::vector<std::pair<const Tensor *, const SafetensorsFile::Entry *>> found;
};

Expected<Session::Loaded> Session::check(llvm::StringRef path,
                                         bool optimizer) const {
  Expected<SafetensorsFile> file = SafetensorsFile::open(path);
  if (!file)
    return file.takeError();
  using Entry = SafetensorsFile::Entry;
  std::vector<std::pair<const Tensor *, const Entry *>> found;
  std::vector<std::string> missing, problems, extra;
  llvm::StringSet<> known;
  for (const Tensor &tensor : getProgram().tensors) {
    if (!belongs(tensor, optimizer))
      continue;
    // Any of the names is sufficient; several must agree.
    const Entry *source = nullptr;
    std::vector<std::string> all = namesIn(*file, getProgram(), tensor);
    for (const std::string &name : all) {
      known.insert(name);
      const Entry *entry = file->find(name);
      if (!entry)
        continue;
      if (entry->dtype != safetensorsName(tensor.dtype) ||
          entry->shape != fileShape(tensor)) {
        problems.push_back("'" + name + "' is " + entry->dtype + " " +
                           shapeText(entry->shape) + " in the file, but " +
                           safetensorsName(tensor.dtype).str() + " " +
                           shapeText(fileShape(tensor)) + " in the program");
        continue;
      }
      if (source && std::memcmp(source->data, entry->data,
                                static_cast<size_t>(entry->bytes)) != 0)
        problems.push_back("'" + source->name + "' and '" + name +
                           "' are tied in the program, but differ in the file");
      else
        source = entry;
    }
    if (source) {
      found.push_back({&tensor, source});
      if (Error error = checkTokenIds(tensor, source->data))
        problems.push_back(llvm::toString(std::move(error)));
    } else if (llvm::none_of(all, [&](const std::string &name) {
                 return file->find(name) != nullptr;
               }))
      missing.push_back("'" + tensor.name + "'");
  }
  for (const Entry &entry : file->getEntries())
    if (!known.count(entry.name))
      extra.push_back("'" + entry.name + "'");
  if (!missing.empty())
    problems.push_back("missing in the file: " + llvm::join(missing, ", "));
  if (!extra.empty())
    problems.push_back("unknown to the program: " + llvm::join(extra, ", "));
  if (!problems.empty())
    return makeError(path + ": the file does not fit the program: " +
                     llvm::join(problems, "; "));
  return Loaded{std::move(*file), std::move(found)};
}

Error Session::take(Loaded &loaded, bool optimizer) {
  // Over all tensors that were read: an outdated file of one machine would not
  // be noticed later.
  std::string hashes;
  for (auto [tensor, entry] : loaded.found) {
    if (!alone())
      hashes += tensor->name + '\n' +
                llvm::utohexstr(llvm::xxh3_64bits(llvm::StringRef(
                    entry->data, static_cast<size_t>(entry->bytes)))) +
                '\n';
    if (isEverywhere(*tensor)) {
      loaded.file.copyTo(*entry, data(*tensor));
      for (int rank = 1; rank < getLocalRanks(); ++rank)
        std::memcpy(data(*tensor, rank), data(*tensor),
                    static_cast<size_t>(entry->bytes));
      continue;
    }
    write(*tensor, entry->data);
    loaded.file.forget(*entry);
  }
  return agree(
      {{optimizer ? "the optimizer state that was read (hash)"
                  : "the weights that were read (hash)",
        llvm::utohexstr(llvm::xxh3_64bits(hashes), /*LowerCase=*/true)}});
}

Error Session::load(llvm::StringRef path, bool optimizer) {
  Expected<Loaded> loaded = check(path, optimizer);
  if (!loaded)
    return loaded.takeError();
  if (Error error = finishUpdate())
    return error;
  if (Error error = take(*loaded, optimizer))
    return makeError(path + ": " + llvm::toString(std::move(error)));
  return Error::success();
}

Error Session::save(llvm::StringRef path, bool optimizer) const {
  if (Error error = finishUpdate())
    return error;
  std::vector<SafetensorsItem> items;
  llvm::json::Object aliases;
  for (const Tensor &tensor : getProgram().tensors) {
    if (!belongs(tensor, optimizer))
      continue;
    if (!isLeader()) {
      // The process that writes needs the shards of this one.
      if (Error error = read(tensor, nullptr))
        return error;
      continue;
    }
    bool split = !isEverywhere(tensor);
    items.push_back({tensor.name, tensor.dtype, fileShape(tensor),
                     split ? nullptr : data(tensor),
                     [this, &tensor](void *to) { return read(tensor, to); }});
    if (!tensor.aliases.empty())
      aliases[tensor.name] = llvm::json::Array(tensor.aliases);
  }
  if (!isLeader())
    return Error::success();
  std::map<std::string, std::string> metadata;
  // The names that transformers and others expect.
  metadata["format"] = "pt";
  if (!aliases.empty()) {
    std::string text;
    llvm::raw_string_ostream(text) << llvm::json::Value(std::move(aliases));
    metadata["tied"] = text;
  }
  return writeSafetensors(path, items, metadata);
}

Error Session::loadWeights(llvm::StringRef path) { return load(path, false); }
Error Session::saveWeights(llvm::StringRef path) const {
  return save(path, false);
}
Error Session::loadOptimizer(llvm::StringRef path) { return load(path, true); }
Error Session::saveOptimizer(llvm::StringRef path) const {
  return save(path, true);
}

//===----------------------------------------------------------------------===//
// Checkpoints
//===----------------------------------------------------------------------===//

static std::string inside(llvm::StringRef directory, llvm::StringRef name) {
  llvm::SmallString<128> path(directory);
  llvm::sys::path::append(path, name);
  return path.str().str();
}

static llvm::StringRef fileName(bool optimizer) {
  return optimizer ? "optimizer.safetensors" : "model.safetensors";
}

TrainingState Session::getTrainingState(int64_t dataPosition) const {
  TrainingState state;
  state.seed = seed;
  state.step = step;
  state.updatesPerStep = getProgram().updatesPerStep();
  state.dataPosition = dataPosition;
  state.threads = getThreads();
  for (const auto &[key, method] : tuner.getChoices())
    state.contractions[key] = methodName(method).str();
  return state;
}

/// Exchanges the names of two files in one step, if the system supports it.
static bool swapNames(const std::string &one, llvm::StringRef other) {
#ifdef RENAME_EXCHANGE
  return ::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.str().c_str(),
                     RENAME_EXCHANGE) == 0;
#else
  return false;
#endif
}

Error Session::lockFolder(llvm::StringRef folder) {
  Expected<FolderLock> taken = FolderLock::take(folder);
  if (!taken)
    return taken.takeError();
  lock = std::move(*taken);
  return Error::success();
}

Error Session::saveCheckpoint(llvm::StringRef directory, int64_t dataPosition,
                              const SaveOptions &options) const {
  if (!options.nonFinite)
    if (Error error = checkFinite())
      return makeError(directory + ": the checkpoint was not written: " +
                       llvm::toString(std::move(error)));
  if (!isLeader()) {
    // The first rank writes; all ranks take part in reading their shards.
    if (Error error = save("", /*optimizer=*/false))
      return error;
    return save("", /*optimizer=*/true);
  }
  llvm::SmallString<128> target(directory);
  while (target.size() > 1 && target.ends_with("/"))
    target.pop_back();
  llvm::StringRef parent = llvm::sys::path::parent_path(target);
  auto fail = [&](const Twine &message) {
    return makeError(target + ": cannot write the checkpoint: " + message);
  };
  if (!parent.empty())
    if (std::error_code error = llvm::sys::fs::create_directories(parent))
      return fail(error.message());
  // Other writers of this folder finish soon, but a run keeps its lock.
  FolderLock briefly;
  if (!lock.covers(parent)) {
    Expected<FolderLock> taken = FolderLock::take(parent, /*patience=*/3);
    if (!taken)
      return taken.takeError();
    briefly = std::move(*taken);
  }
  std::string suffix = ("." + Twine(::getpid())).str();
  std::string temporary = (target + ".tmp" + suffix).str();
  if (std::error_code error =
          llvm::sys::fs::create_directory(temporary, /*IgnoreExisting=*/false))
    return fail(error.message());

  TrainingState state = getTrainingState(dataPosition);
  llvm::json::Object contractions;
  for (const auto &[key, name] : state.contractions)
    contractions[key] = name;
  llvm::json::Value training = llvm::json::Object{
      {"version", checkpointVersion},
      {"seed", state.seed},
      {"step", state.step},
      {"updates_per_step", state.updatesPerStep},
      {"data_position", state.dataPosition},
      {"threads", state.threads},
      {"contractions", std::move(contractions)},
      {"program_version", int64_t(getProgram().version)},
  };
  if (!options.run.empty()) {
    Expected<llvm::json::Value> run = parseJson(options.run);
    if (!run)
      return run.takeError();
    (*training.getAsObject())["run"] = std::move(*run);
  }
  Error error = saveWeights(inside(temporary, "model.safetensors"));
  if (!error)
    error = saveOptimizer(inside(temporary, "optimizer.safetensors"));
  if (!error)
    error = writeFileAtomically(
        inside(temporary, "training.json"), [&](llvm::raw_ostream &os) {
          os << llvm::formatv("{0:2}", training) << "\n";
        });
  if (error) {
    llvm::sys::fs::remove_directories(temporary);
    return error;
  }
  // An older checkpoint of that name is exchanged with the new one, so that
  // there is one at any time.
  bool replaces = llvm::sys::fs::exists(target);
  if (replaces && swapNames(temporary, target)) {
    llvm::sys::fs::remove_directories(temporary);
    return Error::success();
  }
  // If the file system does not support that, the old one is renamed and
  // removed last.
  std::string old = (target + ".old" + suffix).str();
  if (replaces)
    if (std::error_code code = llvm::sys::fs::rename(target, old)) {
      llvm::sys::fs::remove_directories(temporary);
      return fail(code.message());
    }
  if (std::error_code code = llvm::sys::fs::rename(temporary, target)) {
    if (replaces)
      llvm::sys::fs::rename(old, target);
    llvm::sys::fs::remove_directories(temporary);
    return fail(code.message());
  }
  if (replaces)
    llvm::sys::fs::remove_directories(old);
  return Error::success();
}

Expected<TrainingState>
cleave::runtime::readTrainingState(llvm::StringRef directory) {
  std::string path = inside(directory, "training.json");
  auto buffer = llvm::MemoryBuffer::getFile(path);
  if (!buffer)
    return makeError(path + ": cannot read: " + buffer.getError().message());
  Expected<llvm::json::Value> value = parseJson((*buffer)->getBuffer());
  if (!value)
    return makeError(path +
                     ": not valid JSON: " + llvm::toString(value.takeError()));
  const llvm::json::Object *object = value->getAsObject();
  if (!object || object->getInteger("version") != checkpointVersion)
    return makeError(path + ": not a checkpoint of version " +
                     Twine(checkpointVersion));
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
  TrainingState state;
  state.seed = *seed;
  state.step = *step;
  state.updatesPerStep = updates;
  state.dataPosition = *position;
  state.threads = static_cast<int>(object->getInteger("threads").value_or(0));
  if (const llvm::json::Object *run = object->getObject("run"))
    llvm::raw_string_ostream(state.run)
        << llvm::json::Value(llvm::json::Object(*run));
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
          done = state->step * state->updatesPerStep;
  if (done % each != 0)
    return makeError(directory + ": " + Twine(done) +
                     " updates were made, and a step of this program makes " +
                     Twine(each) +
                     ": its optimizer would count others; compile it for "
                     "micro-batches that divide them");
  state->step = done / each;
  state->updatesPerStep = each;
  for (bool optimizer : {false, true}) {
    Expected<Loaded> loaded =
        check(inside(directory, fileName(optimizer)), optimizer);
    if (!loaded)
      return loaded.takeError();
    files.push_back(std::move(*loaded));
  }
  return state;
}

Expected<TrainingState> Session::loadCheckpoint(llvm::StringRef directory) {
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
           {"its position in the data", std::to_string(state->dataPosition)}}))
    return makeError(directory + ": " + llvm::toString(std::move(error)));
  if (Error error = finishUpdate())
    return error;
  for (bool optimizer : {false, true})
    if (Error error = take(files[optimizer], optimizer))
      return makeError(inside(directory, fileName(optimizer)) + ": " +
                       llvm::toString(std::move(error)));
  seed = state->seed;
  step = state->step;
  return state;
}
