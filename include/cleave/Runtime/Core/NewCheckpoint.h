//===- NewCheckpoint.h - Writing and removing checkpoints -------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_CORE_NEWCHECKPOINT_H
#define CLEAVE_RUNTIME_CORE_NEWCHECKPOINT_H

#include "cleave/Executable/Files/CheckpointFolder.h"
#include <map>

namespace cleave::runtime {

/// A checkpoint that is being written: it gets its name with `commit`, or what
/// was written is removed. At any moment, also of a power cut, there is the one
/// before or the new one. What others have put into the folder stays.
class NewCheckpoint {
public:
  /// Fails if `target` is something else than a checkpoint, a link to one or an
  /// empty folder. The caller has the lock of the folder around it.
  static llvm::Expected<NewCheckpoint> begin(llvm::StringRef target);
  /// Where to write a file, and what was written there.
  std::string path(llvm::StringRef name) const;
  FileFacts &facts(llvm::StringRef name) { return files[name.str()]; }
  /// Writes training.json with the hashes, and replaces what was there.
  llvm::Error commit(llvm::json::Object training);

  NewCheckpoint(NewCheckpoint &&other) noexcept;
  ~NewCheckpoint();

private:
  NewCheckpoint() = default;
  llvm::Error commitInside(const llvm::json::Value &training);
  llvm::Error commitFolder(const llvm::json::Value &training);
  void abandon() const;

  std::string target;
  /// The folder that gets the name; empty if files are replaced one by one.
  std::string temporary;
  std::map<std::string, FileFacts> files;
  bool done = false;
};

/// Removes a checkpoint, in whole or not at all. Of a link only the link, and
/// of a folder in which others have files, only those of the checkpoint.
llvm::Error removeCheckpoint(llvm::StringRef folder);

/// Removes folders that killed processes have left, which hold nothing but
/// files of checkpoints. The caller has the lock of `folder`.
llvm::Error removeLeftovers(llvm::StringRef folder);

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_CORE_NEWCHECKPOINT_H
