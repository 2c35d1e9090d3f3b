//===- FileIO.h - Files that appear whole -----------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_FILEIO_H
#define CLEAVE_RUNTIME_FILEIO_H

#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include "llvm/Support/raw_ostream.h"

namespace cleave::runtime {

/// Writes to a file beside `path` and renames it: `path` holds all of it, or
/// what it held before.
llvm::Error
writeFileAtomically(llvm::StringRef path,
                    llvm::function_ref<void(llvm::raw_ostream &)> write);

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_FILEIO_H
