//===- Launcher.h - Who started this process --------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_SESSION_LAUNCHER_H
#define CLEAVE_RUNTIME_SESSION_LAUNCHER_H

namespace cleave::runtime {

/// Whether mpirun, or srun with an MPI interface, started this process.
bool startedByMpi();

/// All processes of the launch, as far as the launcher says; 0 otherwise.
int processesInAll();

/// Processes of the launch on this machine, as far as the launcher says; 1
/// otherwise.
int processesHere();

/// The number of this process among them, from 0 on.
int numberHere();

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_SESSION_LAUNCHER_H
