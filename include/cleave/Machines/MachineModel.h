//===- MachineModel.h - Rates of a device and its link ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_MACHINES_MACHINEMODEL_H
#define CLEAVE_MACHINES_MACHINEMODEL_H

#include "llvm/ADT/StringRef.h"
#include <cmath>
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
  /// Of `flops`, those of contractions of 32-bit, 16-bit and 8-bit factors, and
  /// those of attention; of `bytes`, those of all other ops.
  double contraction = 0, contraction16 = 0, contraction8 = 0, attention = 0,
         streamed = 0;

  Work &operator+=(const Work &other) {
    flops += other.flops;
    bytes += other.bytes;
    sentBytes += other.sentBytes;
    contraction += other.contraction;
    contraction16 += other.contraction16;
    contraction8 += other.contraction8;
    attention += other.attention;
    streamed += other.streamed;
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
  /// Seconds that a collective takes beside those of its bytes.
  double latency = 2e-5;
  /// Rates by class of op, as `cleave-compile --measure-machine` measures them;
  /// 0: not given. Operations per second of contractions and attention, and
  /// bytes per second that other ops read and write, as if each did so in
  /// memory: fusion and caches are in the rate.
  double contraction = 0, contraction16 = 0, contraction8 = 0, attention = 0,
         streamed = 0;

  /// Parses `flops=1e11,memory=2e10,link=5e9` and, of the classes,
  /// `contraction=`, `contraction-16bit=`, `contraction-8bit=`, `attention=`
  /// and `streamed=`, and the seconds `latency=`; what is left out keeps its
  /// default. On failure returns nothing and sets `error`.
  static std::optional<MachineModel> parse(llvm::StringRef text,
                                           std::string &error);

  /// Whether the rate of a class is given.
  bool hasClasses() const {
    return contraction + contraction16 + contraction8 + attention + streamed >
           0;
  }

  /// The bytes of a bucket with which `bytes` of gradients, which become known
  /// one after the other, are summed soonest: each of bytes / bucket buckets
  /// takes the latency, and the last is sent when nothing is left to compute
  /// meanwhile. bytes / bucket · latency + bucket / link is least at the root
  /// of bytes · latency · link.
  double bucketBytes(double bytes) const {
    return std::sqrt(bytes * latency * link);
  }

  /// The time of `work` in seconds, without overlap: by its flops and bytes, or
  /// by classes, where a class without a rate takes the one that is nearest.
  double secondsOf(const Work &work) const {
    if (!hasClasses())
      return work.flops / flops + work.bytes / memory + work.sentBytes / link;
    double wide = contraction > 0 ? contraction : flops;
    double half = contraction16 > 0 ? contraction16 : wide;
    return work.contraction / wide + work.contraction16 / half +
           work.contraction8 / (contraction8 > 0 ? contraction8 : half) +
           work.attention / (attention > 0 ? attention : wide) +
           work.streamed / (streamed > 0 ? streamed : memory) +
           work.sentBytes / link;
  }
};

} // namespace cleave::machines

#endif // CLEAVE_MACHINES_MACHINEMODEL_H
