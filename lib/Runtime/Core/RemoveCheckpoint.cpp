//===- RemoveCheckpoint.cpp - Checkpoints that are removed ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Files/CheckpointFiles.h"
#include "cleave/Executable/Format/FileIO.h"
#include "cleave/Runtime/Core/NewCheckpoint.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Path.h"

#include <cerrno>
#include <cstdio>

using namespace cleave::runtime;
using namespace cleave::runtime::checkpoint;

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
