//===- NewCheckpoint.cpp - A checkpoint that is written -------------------===//
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

#include "cleave/Runtime/Core/NewCheckpoint.h"
#include "cleave/Executable/Files/CheckpointFiles.h"
#include "cleave/Executable/Format/FileIO.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/Path.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <sys/stat.h>

using namespace cleave::runtime;
using namespace cleave::runtime::checkpoint;

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
