//===- FinalizeProgram.h - The rewrites of command tables -------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_EXECUTABLE_TRANSFORMS_FINALIZEPROGRAM_H
#define CLEAVE_EXECUTABLE_TRANSFORMS_FINALIZEPROGRAM_H

#include "cleave/Executable/Format/Program.h"
#include "llvm/ADT/STLFunctionalExtras.h"

namespace cleave {

/// What a command table says besides its commands, and what decides about
/// these.
struct FinalizeOptions {
  /// Of the GPU, if the program is for one; else empty.
  std::string target, architecture;
  /// Of the CPU, if the program is for one.
  std::string cpu;
  int vectorBits = 0;
  /// Of collectives of one kind, of whose operands a part sends so many
  /// bytes, those that are merged have up to the bytes returned.
  llvm::function_ref<int64_t(double)> bucketBytes;
  /// Whether sums of a library have one order, even on one device.
  bool fixedOrder = false;
  /// On a GPU: AttentionCommand::libraryBytes of a command.
  llvm::function_ref<int64_t(const runtime::Command &)> libraryBytes;
  runtime::LossScaling lossScaling;
  /// What a checkpoint says of how the program updates.
  std::string metadata;
};

/// The last rewrites of the programs of all positions, which are as they were
/// translated. Returns why two exchanges of them would wait for each other
/// forever, or "".
std::string finalizePrograms(std::vector<runtime::Program> &programs,
                             const FinalizeOptions &options);

} // namespace cleave

#endif // CLEAVE_EXECUTABLE_TRANSFORMS_FINALIZEPROGRAM_H
