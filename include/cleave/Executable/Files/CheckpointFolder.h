//===- CheckpointFolder.h - Folders of checkpoints --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_EXECUTABLE_FILES_CHECKPOINTFOLDER_H
#define CLEAVE_EXECUTABLE_FILES_CHECKPOINTFOLDER_H

#include "cleave/Executable/Format/FileHash.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include "llvm/Support/JSON.h"
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

} // namespace cleave::runtime

#endif // CLEAVE_EXECUTABLE_FILES_CHECKPOINTFOLDER_H
