//===- FindLibrary.h - Libraries that are opened at run time ----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_CORE_FINDLIBRARY_H
#define CLEAVE_RUNTIME_CORE_FINDLIBRARY_H

#include "llvm/ADT/StringRef.h"

#include <string>

namespace cleave::runtime {

/// The path of a shared library, as a plugin, to be opened: next to this code,
/// among the libraries that a wheel brings (`libs` of the package), or in the
/// library folder of a build or an installation; else `name`, which the dynamic
/// linker looks for.
std::string findLibrary(llvm::StringRef name);

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_CORE_FINDLIBRARY_H
