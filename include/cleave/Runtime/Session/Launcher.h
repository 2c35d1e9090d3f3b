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

/// Whether this process is one of several that variables describe: those of
/// torchrun (RANK, WORLD_SIZE), or of a step of Slurm without MPI.
bool startedByVariables();

/// Whether this process is a rank of a launch.
inline bool startedAsRank() { return startedByMpi() || startedByVariables(); }

/// All processes of the launch, as far as the launcher says; 0 otherwise.
int processesInAll();

/// Processes of the launch on this machine, as far as the launcher says; 1
/// otherwise.
int processesHere();

/// The number of this process among them, from 0 on.
int numberHere();

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_SESSION_LAUNCHER_H
