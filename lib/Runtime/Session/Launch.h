//===- Launch.h - How ranks find each other ---------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_SESSION_LAUNCH_H
#define CLEAVE_LIB_RUNTIME_SESSION_LAUNCH_H

#include "cleave/Runtime/Session/Launcher.h"
#include "cleave/Runtime/Session/Rank.h"
#include <functional>

namespace cleave::runtime {

/// Connects this process with the others of its launch, and returns how its
/// ranks connect: by the MPI plugin (libcleave_mpi.so, or $CLEAVE_MPI_PLUGIN)
/// if MPI started it, else over TCP. `secret` is what the launcher has given to
/// all processes and to no others, or "". `interrupted` is asked while this one
/// waits for others.
llvm::Expected<Connect> openProcesses(llvm::StringRef secret = "",
                                      std::function<bool()> interrupted = {});

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_SESSION_LAUNCH_H
