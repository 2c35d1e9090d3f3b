//===- CpuDevice.h - The processor as a device ------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_CPU_CPUDEVICE_H
#define CLEAVE_RUNTIME_CPU_CPUDEVICE_H

#include "cleave/Executable/Format/Artifact.h"
#include "cleave/Runtime/CPU/ThreadTeam.h"
#include "cleave/Runtime/Core/Device.h"
#include <string>

namespace cleave::runtime {

/// The threads of `team` as a device that runs the program of rank number
/// `rank`. Its second tier is a file in `tierFolder`; empty: in the folder for
/// temporary files. The artifact and the team must outlive the device. An error
/// if the library of contractions cannot be opened.
llvm::Expected<cleave_device *> openCpuDevice(const Artifact &artifact,
                                              int64_t rank,
                                              const ThreadTeam &team,
                                              std::string tierFolder);

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_CPU_CPUDEVICE_H
