//===- CheckpointFolder.cpp - Folders of checkpoints, read ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Files/CheckpointFolder.h"
#include "cleave/Executable/Files/CheckpointFiles.h"
#include "cleave/Executable/Format/FileIO.h"
#include "cleave/Executable/Format/InputFile.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

using namespace cleave::runtime;
using namespace cleave::runtime::checkpoint;
using llvm::Error;
using llvm::Expected;
using llvm::StringRef;
using llvm::Twine;
namespace fs = llvm::sys::fs;
namespace sys_path = llvm::sys::path;

bool cleave::runtime::isCheckpoint(StringRef folder) {
  return fs::exists(inside(folder, kTrainingFile));
}

bool cleave::runtime::isOwnCheckpoint(StringRef folder) {
  if (!isCheckpoint(folder))
    return false;
  Expected<llvm::json::Object> facts = readFacts(folder);
  if (facts)
    return facts->getInteger("version") && facts->getInteger("step") &&
           facts->getInteger("seed");
  llvm::consumeError(facts.takeError());
  // One that is damaged, with nothing else beside it.
  Expected<std::vector<std::string>> names = list(folder);
  if (names)
    return llvm::all_of(*names, isOurs);
  llvm::consumeError(names.takeError());
  return false;
}

/// N of a path whose name is step-N.
static std::optional<int64_t> stepOf(StringRef path) {
  StringRef name = sys_path::filename(path);
  int64_t step;
  if (!name.consume_front("step-") || name.getAsInteger(10, step))
    return std::nullopt;
  return step;
}

/// Whether `error` says that there is no such file or folder.
static bool isMissing(std::error_code error) {
  return error == std::errc::no_such_file_or_directory ||
         error == std::errc::not_a_directory;
}

/// Whether a folder holds a checkpoint; an error where that cannot be read.
static Expected<bool> holdsCheckpoint(StringRef folder) {
  std::string path = inside(folder, kTrainingFile);
  fs::file_status status;
  std::error_code error = fs::status(path, status);
  if (!error)
    return true;
  if (isMissing(error))
    return false;
  return makeError(path + ": cannot be read: " + error.message() +
                   "; name the folder of another step to go on from that");
}

Expected<std::string> cleave::runtime::findCheckpoint(StringRef folder) {
  Expected<bool> itself = holdsCheckpoint(folder);
  if (!itself)
    return itself.takeError();
  if (*itself)
    return folder.str();
  std::string latest, unreadable;
  int64_t latestStep = -1;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    std::optional<int64_t> step = stepOf(it->path());
    if (!step || *step <= latestStep)
      continue;
    Expected<bool> holds = holdsCheckpoint(it->path());
    if (holds && !*holds)
      continue;
    // An older one is not taken in place of one that cannot be read.
    unreadable = holds ? "" : llvm::toString(holds.takeError());
    latest = it->path();
    latestStep = *step;
  }
  if (!unreadable.empty())
    return makeError(unreadable);
  if (error && !isMissing(error))
    return makeError(folder + ": cannot be read: " + error.message());
  if (latest.empty())
    return makeError(folder + ": no checkpoint here (training.json, or "
                              "folders named step-N that hold one)");
  return latest;
}

Expected<llvm::json::Object> cleave::runtime::readFacts(StringRef folder) {
  std::string path = inside(folder, kTrainingFile);
  auto buffer = readFile(path);
  if (!buffer)
    return buffer.takeError();
  Expected<llvm::json::Value> value = parseJson((*buffer)->getBuffer());
  if (!value)
    return makeError(path +
                     ": not valid JSON: " + llvm::toString(value.takeError()));
  llvm::json::Object *object = value->getAsObject();
  if (!object)
    return makeError(path + ": not a JSON object");
  // One without the other is damaged.
  if ((object->get("hash") || object->get("files")) &&
      object->getString("hash").value_or("") != hashOfFacts(*object))
    return makeError(path + ": is damaged: it is not what was saved, by its "
                            "hash; resume from another checkpoint");
  return std::move(*object);
}

/// Compares a file with what the facts say of it.
static Error compare(const std::string &path, const FileFacts &facts) {
  Expected<InputFile> file = InputFile::open(path);
  if (!file)
    return file.takeError();
  uint64_t bytes = static_cast<uint64_t>(file->size());
  if (bytes != facts.bytes)
    return makeError(path + ": is damaged: the file is " +
                     (bytes < facts.bytes ? "truncated" : "too long") + ": " +
                     Twine(bytes) + " bytes, of which " + Twine(facts.bytes) +
                     " were saved");
  Expected<FileFacts> own = hashFile(path);
  if (!own)
    return own.takeError();
  if (own->hash != facts.hash)
    return makeError(path +
                     ": is damaged: it is not what was saved, by the "
                     "hash in " +
                     kTrainingFile);
  return Error::success();
}

Expected<std::string>
cleave::runtime::findFile(StringRef folder, StringRef name,
                          const llvm::json::Object &facts) {
  std::string path = inside(folder, name);
  std::optional<FileFacts> own = factsOf(name, facts);
  if (!own)
    return path;
  // A process was ended while it replaced the files.
  std::string next = path + kNext.str();
  if (fs::exists(next) && isFile(next, *own))
    return next;
  if (Error error = compare(path, *own))
    return std::move(error);
  return path;
}

Expected<std::string> cleave::runtime::findWeightFile(StringRef path) {
  StringRef name = sys_path::filename(path),
            folder = sys_path::parent_path(path);
  if (folder.empty())
    folder = ".";
  if (!llvm::is_contained(kWeightFiles, name) || !isCheckpoint(folder))
    return path.str();
  Expected<llvm::json::Object> facts = readFacts(folder);
  if (!facts) {
    // What is beside it need not be of Cleave: the file stands for itself.
    llvm::consumeError(facts.takeError());
    return path.str();
  }
  if (!factsOf(name, *facts))
    return path.str();
  Expected<std::string> file = findFile(folder, name, *facts);
  if (!file)
    return makeError(llvm::toString(file.takeError()) +
                     "; weights of your own belong into another folder");
  return file;
}
