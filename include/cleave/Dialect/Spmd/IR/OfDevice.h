//===- OfDevice.h - Ops on the shards of one device -------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_IR_OFDEVICE_H
#define CLEAVE_DIALECT_SPMD_IR_OFDEVICE_H

#include "llvm/ADT/StringRef.h"

namespace cleave::spmd {

/// On an op that concatenates the shards of each device, or takes them apart
/// again, along a dimension that is sharded, or rounds the term of each device
/// in a sum over devices. It is no op on global tensors, so that its sharding
/// rule does not hold for it.
inline constexpr llvm::StringLiteral kOfDeviceAttr = "spmd.of_device";

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_IR_OFDEVICE_H
