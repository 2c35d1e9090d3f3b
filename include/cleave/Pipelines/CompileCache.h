//===- CompileCache.h - Programs that were compiled before ------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Compiled programs in a folder, by all that they follow from: the text of the
/// module with its locations, the options, the files that these name, the build
/// of the compiler and the processor. Only programs for a CPU are kept.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PIPELINES_COMPILECACHE_H
#define CLEAVE_PIPELINES_COMPILECACHE_H

#include "cleave/Pipelines/CacheFolder.h"
#include "cleave/Pipelines/Compile.h"
#include "cleave/Reports/Report.h"

#include <vector>

namespace cleave {

/// What identifies the code that runs: the builds of this library, of LLVM,
/// MLIR and libm, and the processor with its features.
const std::string &codeIdentity();

/// A program, its report, and what the compiler warned of.
struct Compilation {
  CompiledProgram program;
  Report report;
  std::vector<std::string> warnings;
};

/// Whether a program with these options can be in a cache.
bool isCacheable(const CompileOptions &options);

/// The key of the program of a module. `json` is what `options` were read from.
std::string compilationKey(llvm::StringRef module, llvm::StringRef json,
                           const CompileOptions &options);

/// The program under `key`; nothing if there is none that can be read.
std::optional<Compilation> loadCompilation(const CacheFolder &cache,
                                           llvm::StringRef key);

/// Keeps a program, unless it would not be the same when it is read.
llvm::Error storeCompilation(const CacheFolder &cache, llvm::StringRef key,
                             const CompiledProgram &program,
                             const Report &report,
                             const std::vector<std::string> &warnings);

} // namespace cleave

#endif // CLEAVE_PIPELINES_COMPILECACHE_H
