//===- CheckpointFiles.h - Names and files of checkpoints -------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_EXECUTABLE_FILES_CHECKPOINTFILES_H
#define CLEAVE_EXECUTABLE_FILES_CHECKPOINTFILES_H

#include "cleave/Executable/Files/CheckpointFolder.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include <optional>
#include <vector>

namespace cleave::runtime::checkpoint {

// Names that the files of this header's functions use.
using llvm::Error;
using llvm::Expected;
using llvm::StringRef;
namespace fs = llvm::sys::fs;
namespace sys_path = llvm::sys::path;

inline constexpr llvm::StringLiteral kWeightFiles[] = {kModelFile,
                                                       kOptimizerFile};
/// Behind the name of a file that replaces another one.
inline constexpr llvm::StringLiteral kNext = ".next";

std::string inside(llvm::StringRef folder, llvm::StringRef name);
llvm::Error cannotWrite(llvm::StringRef path, int error);
llvm::Error cannotRemove(llvm::StringRef path, int error);

/// Whether this is the name of a file of checkpoints, or one that was being
/// written.
bool isOurs(llvm::StringRef name);

/// The names in a folder.
llvm::Expected<std::vector<std::string>> list(llvm::StringRef folder);

/// Whether a path itself, not what a link refers to, is of a type.
bool isItself(llvm::StringRef path, llvm::sys::fs::file_type type);

/// Removes one name, which may be gone.
llvm::Error removeName(llvm::StringRef path);

/// Removes the files of a checkpoint from a folder.
llvm::Error removeOurs(llvm::StringRef folder);

/// Removes the files of a checkpoint, and the folder if nothing else is in it.
llvm::Error removeFolder(llvm::StringRef folder);

/// A name beside `target` that nothing has, such as step-1.tmp.4f8a01c2.
std::string nameBeside(llvm::StringRef target, llvm::StringRef what);

/// The hash of what training.json says, but for the hash itself.
std::string hashOfFacts(const llvm::json::Object &facts);

/// What the facts say of a file; nothing in those of earlier versions.
std::optional<FileFacts> factsOf(llvm::StringRef name,
                                 const llvm::json::Object &facts);

/// Whether a file is there, with this size and hash.
bool isFile(const std::string &path, const FileFacts &facts);

} // namespace cleave::runtime::checkpoint

#endif // CLEAVE_EXECUTABLE_FILES_CHECKPOINTFILES_H
