//===- TargetTraits.h - What a target is ---------------------- -*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SUPPORT_TARGETTRAITS_H
#define CLEAVE_SUPPORT_TARGETTRAITS_H

#include "llvm/ADT/StringRef.h"
#include <cstdint>

namespace cleave {

/// What decisions ask of a target: what kind of device it is, not its name.
class TargetTraits {
public:
  /// The CPU.
  TargetTraits() = default;

  /// Of a target's name: "cuda", or "cpu", which is empty in an executable.
  static TargetTraits of(llvm::StringRef name) {
    TargetTraits traits;
    traits.gpu = name == "cuda";
    return traits;
  }

  /// A GPU by whose multiprocessors work is divided; the CPU, which has none.
  static TargetTraits withMultiprocessors(int64_t number) {
    TargetTraits traits;
    traits.gpu = number > 0;
    traits.multiprocessors = number;
    return traits;
  }

  bool isGpu() const { return gpu; }
  /// Those by which the work of kernels is divided; 0 if they are not known, or
  /// on the CPU.
  int64_t getMultiprocessors() const { return multiprocessors; }

private:
  bool gpu = false;
  int64_t multiprocessors = 0;
};

} // namespace cleave

#endif // CLEAVE_SUPPORT_TARGETTRAITS_H
