//===- CheckpointFolder.h - Folders of checkpoints --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_CORE_CHECKPOINTFOLDER_H
#define CLEAVE_RUNTIME_CORE_CHECKPOINTFOLDER_H

#include "cleave/Executable/Format/FileHash.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include "llvm/Support/JSON.h"
#include <map>
#include <string>

namespace cleave::runtime {

/// The files of a checkpoint; a folder without the last one is none.
inline constexpr llvm::StringLiteral kModelFile = "model.safetensors";
inline constexpr llvm::StringLiteral kOptimizerFile = "optimizer.safetensors";
inline constexpr llvm::StringLiteral kTrainingFile = "training.json";

/// Whether a folder, or what a link refers to, holds a checkpoint.
bool isCheckpoint(llvm::StringRef folder);

/// Whether one that Cleave has written is there: it is removed or replaced.
bool isOwnCheckpoint(llvm::StringRef folder);

/// The checkpoint in a folder, or the latest of those in it that are named
/// step-N.
llvm::Expected<std::string> findCheckpoint(llvm::StringRef folder);

/// Reads training.json, and compares its hash. One without a hash, of an
/// earlier version, is taken as it is.
llvm::Expected<llvm::json::Object> readFacts(llvm::StringRef folder);

/// The path of a file of a checkpoint whose facts were read: it has the size
/// and the hash that they say. Files of earlier versions have none.
llvm::Expected<std::string> findFile(llvm::StringRef folder,
                                     llvm::StringRef name,
                                     const llvm::json::Object &facts);

/// The same for a file of weights by its path, which may lie in a checkpoint.
llvm::Expected<std::string> findWeightFile(llvm::StringRef path);

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

#endif // CLEAVE_RUNTIME_CORE_CHECKPOINTFOLDER_H
