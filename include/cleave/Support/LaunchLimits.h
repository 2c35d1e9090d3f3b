//===- LaunchLimits.h - What a launch on a GPU can have ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SUPPORT_LAUNCHLIMITS_H
#define CLEAVE_SUPPORT_LAUNCHLIMITS_H

#include <cstdint>

namespace cleave {

/// The addresses that the parameters of a launch have room for: 4096 bytes.
inline constexpr int64_t kLaunchAddresses = 4096 / sizeof(uint64_t);

} // namespace cleave

#endif // CLEAVE_SUPPORT_LAUNCHLIMITS_H
