//===- WorkOrder.h - Which work waits for which -----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The events that order the work of an entry on several streams: a stream
/// waits for another one only where it uses the same memory, one of them
/// writing, and nothing orders the two yet. Each wait is needed: without it
/// there would be such a pair. Plans only, without a device.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_CUDA_WORKORDER_H
#define CLEAVE_LIB_RUNTIME_CUDA_WORKORDER_H

#include "WorkRecord.h"

namespace cleave::runtime::cuda {

/// One work of an entry, in the order of the table.
struct Work {
  /// 0 is that of computation; -1: it does nothing.
  int32_t stream = -1;
  /// Whether the host waits for stream 0 behind it.
  bool finishes = false;
  /// The index of the work of another stream that the table awaits here, or -1:
  /// if stream 0 has to wait for it, then here.
  int32_t ends = -1;
  const MemoryUse *use = nullptr;
};

/// `stream` waits for the end of a work; -1: for all that stream 0 has so far.
struct WorkWait {
  int32_t stream = 0, work = -1;
};

/// The waits before each work.
std::vector<std::vector<WorkWait>> orderWork(llvm::ArrayRef<Work> list,
                                             int32_t streams);

} // namespace cleave::runtime::cuda

#endif // CLEAVE_LIB_RUNTIME_CUDA_WORKORDER_H
