//===- Launch.h - How ranks find each other ---------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_SESSION_LAUNCH_H
#define CLEAVE_LIB_RUNTIME_SESSION_LAUNCH_H

#include "cleave/Runtime/Rank.h"

namespace cleave::runtime {

/// Whether mpirun, or srun with an MPI interface, started this process.
bool startedByMpi();

/// Processes of the launch on this machine, as far as the launcher says; 1
/// otherwise.
int processesHere();

/// Opens the MPI plugin (libcleave_mpi.so, or $CLEAVE_MPI_PLUGIN) and returns
/// what connects this process.
llvm::Expected<Connect> openMpi();

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_SESSION_LAUNCH_H
