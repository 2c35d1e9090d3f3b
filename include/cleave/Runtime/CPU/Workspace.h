//===- Workspace.h - Memory of library calls --------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_CPU_WORKSPACE_H
#define CLEAVE_RUNTIME_CPU_WORKSPACE_H

#include "cleave/Executable/Format/Program.h"

namespace cleave::runtime {

/// Returns the bytes of workspace that the contractions of `program` need at
/// most, whatever method is chosen for each when it is loaded.
int64_t workspaceBytes(const Program &program);

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_CPU_WORKSPACE_H
