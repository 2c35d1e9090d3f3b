//===- MachineModel.h - Rates of a device and its link ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_MACHINES_MACHINEMODEL_H
#define CLEAVE_MACHINES_MACHINEMODEL_H

#include "llvm/ADT/StringRef.h"
#include <optional>
#include <string>

namespace cleave::machines {

/// The work of one or several runs.
struct Work {
  /// Floating-point operations.
  double flops = 0;
  /// Bytes read and written in memory; bytes sent to other devices by
  /// collectives.
  double bytes = 0, sentBytes = 0;

  Work &operator+=(const Work &other) {
    flops += other.flops;
    bytes += other.bytes;
    sentBytes += other.sentBytes;
    return *this;
  }
};

/// The rates of one device. The defaults are those of a few server cores and of
/// a network between servers. Their ratios decide how stages are balanced and
/// which schedule is fastest; their magnitudes decide the seconds of a
/// timeline.
struct MachineModel {
  /// Floating-point operations per second.
  double flops = 1e11;
  /// Bytes per second: of memory, and of the link to another device.
  double memory = 2e10, link = 5e9;

  /// Parses `flops=1e11,memory=2e10,link=5e9`; rates that are left out keep
  /// their defaults. On failure returns nothing and sets `error`.
  static std::optional<MachineModel> parse(llvm::StringRef text,
                                           std::string &error);

  /// The time of `work` in seconds, without overlap.
  double secondsOf(const Work &work) const {
    return work.flops / flops + work.bytes / memory + work.sentBytes / link;
  }
};

} // namespace cleave::machines

#endif // CLEAVE_MACHINES_MACHINEMODEL_H
