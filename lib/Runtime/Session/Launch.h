//===- Launch.h - How ranks find each other ---------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_SESSION_LAUNCH_H
#define CLEAVE_LIB_RUNTIME_SESSION_LAUNCH_H

#include "cleave/Runtime/Session/Rank.h"
#include "cleave/Runtime/Session/Launcher.h"

namespace cleave::runtime {

/// Opens the MPI plugin (libcleave_mpi.so, or $CLEAVE_MPI_PLUGIN) and returns
/// the connection of this process.
llvm::Expected<Connect> openMpi();

/// The path of a plugin: next to this code, or in the library folder of a build
/// or an installation.
std::string findPlugin(llvm::StringRef name);

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_SESSION_LAUNCH_H
