//===- CommandLaunches.h - Launches of command kernels ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// How a CUDA device runs the commands that are neither generated kernels nor
/// contractions: which kernels of lib/Target/CUDA/Kernels, on which grids and
/// with which arguments. Only plans, without a device.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_EXECUTABLE_CUDA_COMMANDLAUNCHES_H
#define CLEAVE_EXECUTABLE_CUDA_COMMANDLAUNCHES_H

#include "cleave/Executable/Format/Program.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/Support/Error.h"

namespace cleave::runtime::cuda {

/// One launch of a kernel. Launches of a device are in order on one stream.
struct Launch {
  std::string symbol;
  uint32_t grid[3] = {1, 1, 1};
  uint32_t block = 1;
  /// Dynamic shared memory. Above 48 KiB, the function's attribute has to allow
  /// it.
  uint32_t sharedBytes = 0;
  /// The bytes of all parameters, and where each begins.
  std::vector<char> parameters;
  std::vector<uint32_t> offsets;

  /// Appends a parameter.
  template <typename T> void add(const T &value) {
    static_assert(std::is_trivially_copyable_v<T>);
    addBytes(&value, sizeof(T), alignof(T));
  }
  /// Appends a parameter that is a structure of `values`.
  template <typename T> void addAll(llvm::ArrayRef<T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    addBytes(values.data(), values.size() * sizeof(T), alignof(T));
  }

private:
  void addBytes(const void *from, size_t bytes, size_t alignment) {
    size_t at = (parameters.size() + alignment - 1) / alignment * alignment;
    offsets.push_back(static_cast<uint32_t>(at));
    parameters.resize(at + bytes);
    __builtin_memcpy(parameters.data() + at, from, bytes);
  }
};

/// Where a command's operands are on the device.
struct Addresses {
  /// The address of a reference that is present.
  llvm::function_ref<uint64_t(const Ref &)> at;
  /// Scratch memory of `launchScratchBytes`, aligned to 256 bytes. Commands
  /// that run one after the other may share it.
  uint64_t scratch = 0;
  /// Checks: the CheckStatus on the device, which is zero before a step, and
  /// what it records of this one.
  uint64_t status = 0;
  int32_t checkIndex = 0;
};

/// Bytes of scratch memory that the launches of a command need, or a library
/// that may run it instead.
int64_t launchScratchBytes(const Command &command);

/// Bytes of memory that algorithms of contractions may use.
inline constexpr int64_t kContractionWorkspaceBytes = int64_t(32) << 20;

/// Bytes of scratch memory of the command that needs the most.
int64_t launchScratchBytes(const Program &program);

/// Bytes of memory besides the arena in which a device runs the program: of
/// contractions, of the command that needs the most scratch memory, and of
/// collectives.
int64_t outsideBytes(const Program &program);

/// The launches of an attention, scatter-add, top-k, orthonormalize, sort-rows,
/// grouped-contract, copy, fill or check command; none if it does nothing. An
/// error if it is beyond what kernels support: heads of more than 256 channels,
/// or 2^31 positions, rows, selected elements or blocks.
llvm::Expected<std::vector<Launch>> planLaunches(const Command &command,
                                                 const Addresses &addresses);

} // namespace cleave::runtime::cuda

#endif // CLEAVE_EXECUTABLE_CUDA_COMMANDLAUNCHES_H
