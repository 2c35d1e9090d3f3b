//===- CheckpointFolder.cpp - Folders of checkpoints ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The order of writes. A new checkpoint is a folder of another name; its files
/// and the folder are on the disk before it is renamed, and the rename is
/// before anything older is removed.
///
/// A checkpoint that replaces one of its name is written into the same folder:
/// first X.next beside each file X; then training.json, whose hashes say which
/// of the two belongs to it; then X.next is renamed to X. A reader, and the
/// next writer, go by the hashes.
///
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Core/CheckpointFolder.h"
#include "cleave/Runtime/Core/FileIO.h"
#include "cleave/Runtime/Core/ProgramIO.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/Path.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

using namespace cleave::runtime;
using llvm::Error;
using llvm::Expected;
using llvm::StringRef;
using llvm::Twine;
namespace fs = llvm::sys::fs;
namespace sys_path = llvm::sys::path;

static constexpr llvm::StringLiteral kWeightFiles[] = {kModelFile,
                                                       kOptimizerFile};
static constexpr llvm::StringLiteral kNext = ".next";

static std::string inside(StringRef folder, StringRef name) {
  llvm::SmallString<128> path(folder);
  sys_path::append(path, name);
  return path.str().str();
}

static Error cannotWrite(StringRef path, int error) {
  return makeError(path + ": cannot write: " + std::strerror(error));
}

static Error cannotRemove(StringRef path, int error) {
  return makeError(path + ": cannot remove: " + std::strerror(error));
}

//===----------------------------------------------------------------------===//
// Names
//===----------------------------------------------------------------------===//

/// Whether this is the name of a file of checkpoints, or one that was being
/// written.
static bool isOurs(StringRef name) {
  StringRef stem = name;
  if (size_t at = name.rfind(".tmp-"); at != StringRef::npos)
    if (StringRef end = name.drop_front(at + 5);
        end.size() == 8 && llvm::all_of(end, llvm::isHexDigit))
      stem = name.take_front(at);
  if (stem == kTrainingFile)
    return true;
  stem.consume_back(kNext);
  return llvm::is_contained(kWeightFiles, stem);
}

/// The names in a folder.
static Expected<std::vector<std::string>> list(StringRef folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error, /*follow_symlinks=*/false), end;
       !error && it != end; it.increment(error))
    names.push_back(sys_path::filename(it->path()).str());
  if (error)
    return makeError(folder + ": cannot read: " + error.message());
  llvm::sort(names);
  return names;
}

/// Whether a path itself, not what a link refers to, is of a type.
static bool isItself(StringRef path, fs::file_type type) {
  fs::file_status status;
  (void)fs::status(path, status, /*follow=*/false); // sets the type, too
  return status.type() == type;
}

/// Removes one name, which may be gone.
static Error removeName(StringRef path) {
  if (::unlink(path.str().c_str()) != 0 && errno != ENOENT)
    return cannotRemove(path, errno);
  return Error::success();
}

/// Removes the files of a checkpoint from a folder.
static Error removeOurs(StringRef folder) {
  Expected<std::vector<std::string>> names = list(folder);
  if (!names)
    return names.takeError();
  for (const std::string &name : *names)
    if (isOurs(name))
      if (Error error = removeName(inside(folder, name)))
        return error;
  return Error::success();
}

/// Removes the files of a checkpoint, and the folder if nothing else is in it.
static Error removeFolder(StringRef folder) {
  if (Error error = removeOurs(folder))
    return error;
  if (::rmdir(folder.str().c_str()) != 0 && errno != ENOENT &&
      errno != ENOTEMPTY && errno != EEXIST)
    return cannotRemove(folder, errno);
  return Error::success();
}

/// A name beside `target` that nothing has, such as step-1.tmp.4f8a01c2.
static std::string nameBeside(StringRef target, StringRef what) {
  llvm::SmallString<128> model(target), name;
  model += ".";
  model += what;
  model += ".%%%%%%%%";
  do
    fs::createUniquePath(model, name, /*MakeAbsolute=*/false);
  while (fs::exists(name));
  return name.str().str();
}

/// Exchanges the names of two files in one step. False if the system does not
/// support it.
static Expected<bool> swapNames(const std::string &one,
                                const std::string &other) {
#ifdef RENAME_EXCHANGE
  if (::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(),
                  RENAME_EXCHANGE) == 0)
    return true;
  if (errno != ENOSYS && errno != EINVAL && errno != ENOTSUP)
    return cannotWrite(other, errno);
#endif
  return false;
}

//===----------------------------------------------------------------------===//
// Reading
//===----------------------------------------------------------------------===//

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

Expected<std::string> cleave::runtime::findCheckpoint(StringRef folder) {
  if (isCheckpoint(folder))
    return folder.str();
  std::string latest;
  int64_t latestStep = -1;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    std::optional<int64_t> step = stepOf(it->path());
    if (step && *step > latestStep && isCheckpoint(it->path())) {
      latest = it->path();
      latestStep = *step;
    }
  }
  if (latest.empty())
    return makeError(folder + ": no checkpoint here (training.json, or "
                              "folders named step-N that hold one)");
  return latest;
}

/// The hash of what training.json says, but for the hash itself.
static std::string hashOfFacts(const llvm::json::Object &facts) {
  llvm::json::Object others = facts;
  others.erase("hash");
  std::string text;
  llvm::raw_string_ostream(text) << llvm::json::Value(std::move(others));
  return hashOf(text);
}

Expected<llvm::json::Object> cleave::runtime::readFacts(StringRef folder) {
  std::string path = inside(folder, kTrainingFile);
  auto buffer = openFile(path);
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

/// What the facts say of a file; nothing in those of earlier versions.
static std::optional<FileFacts> factsOf(StringRef name,
                                        const llvm::json::Object &facts) {
  const llvm::json::Object *files = facts.getObject("files"),
                           *own = files ? files->getObject(name) : nullptr;
  if (!own)
    return std::nullopt;
  return FileFacts{static_cast<uint64_t>(own->getInteger("bytes").value_or(-1)),
                   own->getString("xxh3_128_of_mib").value_or("").str()};
}

/// Whether a file is there, with this size and hash.
static bool isFile(const std::string &path, const FileFacts &facts) {
  uint64_t bytes = 0;
  if (fs::file_size(path, bytes) || bytes != facts.bytes)
    return false;
  Expected<FileFacts> own = hashFile(path);
  if (own)
    return own->hash == facts.hash;
  llvm::consumeError(own.takeError()); // as one that is not there
  return false;
}

/// Compares a file with what the facts say of it.
static Error compare(const std::string &path, const FileFacts &facts) {
  auto buffer = openFile(path);
  if (!buffer)
    return buffer.takeError();
  uint64_t bytes = (*buffer)->getBufferSize();
  buffer->reset();
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

//===----------------------------------------------------------------------===//
// Writing
//===----------------------------------------------------------------------===//

/// Removes what was being written into the folder of a checkpoint, but for what
/// its training.json names.
static Error removeUnnamed(const std::string &folder, bool &named) {
  Expected<llvm::json::Object> facts = readFacts(folder);
  Expected<std::vector<std::string>> names = list(folder);
  named = false;
  if (!facts || !names) {
    // Without its facts nothing is known of it: all of it stays.
    llvm::consumeError(facts.takeError());
    return names.takeError();
  }
  for (const std::string &name : *names) {
    if (!isOurs(name) || name == kTrainingFile ||
        llvm::is_contained(kWeightFiles, name))
      continue;
    StringRef stem = name;
    stem.consume_back(kNext);
    std::optional<FileFacts> own = factsOf(stem, *facts);
    if (own && isFile(inside(folder, name), *own))
      named = true;
    else if (Error error = removeName(inside(folder, name)))
      return error;
  }
  return Error::success();
}

/// Gives their names to the files that training.json names.
static Error nameFiles(const std::string &folder) {
  // It is on the disk before what it replaces goes.
  if (Error error = syncFolder(folder))
    return error;
  for (StringRef name : kWeightFiles) {
    std::string path = inside(folder, name), next = path + kNext.str();
    if (::rename(next.c_str(), path.c_str()) != 0 && errno != ENOENT)
      return cannotWrite(path, errno);
  }
  return syncFolder(folder);
}

Expected<NewCheckpoint> NewCheckpoint::begin(StringRef target) {
  NewCheckpoint made;
  made.target = target.str();
  auto other = [&] {
    return makeError(target + ": is there and is no checkpoint; nothing of it "
                              "is replaced");
  };
  if (isItself(target, fs::file_type::directory_file)) {
    if (isOwnCheckpoint(target)) {
      // What a process that was ended has begun is ended first.
      bool named = false;
      Error error = removeUnnamed(made.target, named);
      if (!error && named)
        error = nameFiles(made.target);
      if (error)
        return std::move(error);
      return made;
    }
    Expected<std::vector<std::string>> names = list(target);
    if (!names)
      return names.takeError();
    // Weights alone may be of others, whatever their name is.
    if (!names->empty())
      return other();
  } else if (isItself(target, fs::file_type::symlink_file)) {
    if (!isOwnCheckpoint(target))
      return other();
  } else if (!isItself(target, fs::file_type::file_not_found)) {
    return other();
  }
  made.temporary = nameBeside(target, "tmp");
  if (::mkdir(made.temporary.c_str(), 0777) != 0) {
    int error = errno;
    made.done = true;
    return cannotWrite(target, error);
  }
  return made;
}

NewCheckpoint::NewCheckpoint(NewCheckpoint &&other) noexcept
    : target(std::move(other.target)), temporary(std::move(other.temporary)),
      files(std::move(other.files)), done(other.done) {
  other.done = true;
}

NewCheckpoint::~NewCheckpoint() {
  if (!done)
    abandon();
}

void NewCheckpoint::abandon() const {
  // What cannot be removed is reported by the failure that led here, and is
  // removed by the next save.
  bool named;
  llvm::consumeError(temporary.empty() ? removeUnnamed(target, named)
                                       : removeFolder(temporary));
}

std::string NewCheckpoint::path(StringRef name) const {
  return temporary.empty() ? inside(target, name) + kNext.str()
                           : inside(temporary, name);
}

static Error writeFacts(const std::string &folder,
                        const llvm::json::Value &training) {
  return writeFileAtomically(inside(folder, kTrainingFile),
                             [&](llvm::raw_ostream &os) {
                               os << llvm::formatv("{0:2}", training) << "\n";
                             });
}

Error NewCheckpoint::commit(llvm::json::Object training) {
  llvm::json::Object hashes;
  for (const auto &[name, own] : files)
    hashes[name] =
        llvm::json::Object{{"bytes", static_cast<int64_t>(own.bytes)},
                           {"xxh3_128_of_mib", own.hash}};
  training["files"] = std::move(hashes);
  // As it will be read: a number may have more than one text.
  std::string text;
  llvm::raw_string_ostream(text) << llvm::json::Value(std::move(training));
  Expected<llvm::json::Value> read = parseJson(text);
  if (!read)
    return read.takeError();
  llvm::json::Value value = std::move(*read);
  (*value.getAsObject())["hash"] = hashOfFacts(*value.getAsObject());
  return temporary.empty() ? commitInside(value) : commitFolder(value);
}

Error NewCheckpoint::commitInside(const llvm::json::Value &training) {
  if (Error error = writeFacts(target, training))
    return error;
  done = true;
  return nameFiles(target);
}

Error NewCheckpoint::commitFolder(const llvm::json::Value &training) {
  if (Error error = writeFacts(temporary, training))
    return error;
  if (Error error = syncFolder(temporary))
    return error;
  StringRef parent = sys_path::parent_path(target);
  if (isItself(target, fs::file_type::symlink_file)) {
    // The link goes, not what it refers to.
    Expected<bool> swapped = swapNames(temporary, target);
    if (!swapped)
      return swapped.takeError();
    if (*swapped) {
      done = true;
      if (Error error = syncFolder(parent))
        return error;
      return removeName(temporary);
    }
    if (Error error = removeName(target))
      return error;
  }
  // This replaces an empty folder, and nothing else.
  if (::rename(temporary.c_str(), target.c_str()) != 0)
    return cannotWrite(target, errno);
  done = true;
  return syncFolder(parent);
}

//===----------------------------------------------------------------------===//
// Removing
//===----------------------------------------------------------------------===//

Error cleave::runtime::removeCheckpoint(StringRef folder) {
  StringRef parent = sys_path::parent_path(folder);
  if (isItself(folder, fs::file_type::symlink_file)) {
    if (Error error = removeName(folder))
      return error;
    return syncFolder(parent);
  }
  Expected<std::vector<std::string>> names = list(folder);
  if (!names)
    return names.takeError();
  if (!llvm::all_of(*names, isOurs)) {
    // Without training.json it is no checkpoint any more.
    if (Error error = removeName(inside(folder, kTrainingFile)))
      return error;
    if (Error error = syncFolder(folder))
      return error;
    return removeOurs(folder);
  }
  // Under another name first: half of a checkpoint never has the name of one.
  std::string removed = nameBeside(folder, "removed");
  if (::rename(folder.str().c_str(), removed.c_str()) != 0)
    return cannotRemove(folder, errno);
  if (Error error = syncFolder(parent))
    return error;
  return removeFolder(removed);
}

/// Whether a name is one of those that `nameBeside` gives, or that earlier
/// versions gave, which ended with the number of the process.
static bool isBeside(StringRef name) {
  auto [stem, end] = name.rsplit('.');
  return !end.empty() && llvm::all_of(end, llvm::isAlnum) &&
         (stem.ends_with(".tmp") || stem.ends_with(".old") ||
          stem.ends_with(".removed"));
}

Error cleave::runtime::removeLeftovers(StringRef folder) {
  Expected<std::vector<std::string>> names = list(folder);
  if (!names)
    return names.takeError();
  for (const std::string &name : *names) {
    std::string path = inside(folder, name);
    if (!isBeside(name))
      continue;
    // A link that has given its name to a checkpoint.
    if (isItself(path, fs::file_type::symlink_file) && isOwnCheckpoint(path))
      if (Error error = removeName(path))
        return error;
    if (!isItself(path, fs::file_type::directory_file))
      continue;
    Expected<std::vector<std::string>> own = list(path);
    if (!own) {
      // What cannot be read may be of another user.
      llvm::consumeError(own.takeError());
      continue;
    }
    if (llvm::all_of(*own, isOurs))
      if (Error error = removeFolder(path))
        return error;
  }
  return Error::success();
}
