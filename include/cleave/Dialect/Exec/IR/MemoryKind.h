//===- MemoryKind.h - What memory is used for -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_EXEC_IR_MEMORYKIND_H
#define CLEAVE_DIALECT_EXEC_IR_MEMORYKIND_H

#include "llvm/ADT/StringRef.h"
#include <cstdint>

namespace cleave::exec {

/// What a device's memory holds, in the order of reports.
enum class MemoryKind : uint8_t {
  Parameters,
  Masters, ///< copies of parameters in full precision
  State,   ///< of the optimizer
  Gradients,
  Kept,          ///< values that updates overwrite, until they are validated
  Saved,         ///< by forward for backward
  Temporaries,   ///< of forward, backward and updates
  Communication, ///< what collectives and transfers write
  Library,       ///< scratch memory of library calls and kernels
  Inputs,        ///< inputs, outputs, scalars and buffers of the model
  Constants,
  Fetched ///< what is fetched from the second tier, while it is in memory
};
inline constexpr unsigned kMemoryKinds = 12;

inline llvm::StringRef memoryKindName(MemoryKind kind) {
  static constexpr llvm::StringLiteral names[kMemoryKinds] = {
      "parameters", "masters", "state",       "gradients",
      "kept",       "saved",   "temporaries", "communication",
      "library",    "inputs",  "constants",   "fetched"};
  return names[static_cast<unsigned>(kind)];
}

/// The kind of a tensor with the role `role` (see `graph.role`), which has
/// memory for the life of the process.
inline MemoryKind memoryKindOfRole(llvm::StringRef role) {
  if (role == "parameter")
    return MemoryKind::Parameters;
  if (role == "master")
    return MemoryKind::Masters;
  if (role == "state")
    return MemoryKind::State;
  if (role == "gradient")
    return MemoryKind::Gradients;
  return role == "constant" ? MemoryKind::Constants : MemoryKind::Inputs;
}

/// On a program: the action and the command in which its peak is, as a
/// dictionary of `action`, `command` (from 1 on), `commands` and `at`, the op
/// and its source line.
inline constexpr llvm::StringLiteral kPeakTimeAttr = "exec.peak_time";
/// On a program: the bytes in use over its actions, as a dictionary of
/// `actions`, `begins` (the time of the first command of each; repeated actions
/// are there once), `times` and `bytes`, which has kMemoryKinds numbers for
/// each time. Of times near to each other, only that of the most bytes is
/// there.
inline constexpr llvm::StringLiteral kMemoryProfileAttr = "exec.profile";

} // namespace cleave::exec

#endif // CLEAVE_DIALECT_EXEC_IR_MEMORYKIND_H
