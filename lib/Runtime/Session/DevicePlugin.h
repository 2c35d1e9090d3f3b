//===- DevicePlugin.h - Devices that are plugins ----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_SESSION_DEVICEPLUGIN_H
#define CLEAVE_LIB_RUNTIME_SESSION_DEVICEPLUGIN_H

#include "cleave/Executable/Format/Artifact.h"
#include "cleave/Runtime/Core/Device.h"

namespace cleave::runtime {

/// Opens device number `ordinal` of the target of the artifact, for rank
/// `rank`, by the plugin of that target, or by the one that the environment
/// variable CLEAVE_CUDA_PLUGIN names (for "cuda"). The artifact must outlive
/// it.
llvm::Expected<cleave_device *> openDevicePlugin(const Artifact &artifact,
                                                 int64_t rank, int ordinal);

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_SESSION_DEVICEPLUGIN_H
