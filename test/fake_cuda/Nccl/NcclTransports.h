//===- NcclTransports.h - The data that calls move ---------------*- C++
//-*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TEST_FAKE_CUDA_NCCLTRANSPORTS_H
#define CLEAVE_TEST_FAKE_CUDA_NCCLTRANSPORTS_H

#include "NcclState.h"

namespace fake::nccl {

/// Makes the calls of the group one op of each stream; returns a Result.
int endGroup();

/// A call on a stream, which reads `sent` and writes `received` blocks of its
/// elements; of a group, if one has begun. Returns a Result.
int add(void *handle, void *stream, Call call, size_t sent, size_t received);

} // namespace fake::nccl

#endif // CLEAVE_TEST_FAKE_CUDA_NCCLTRANSPORTS_H
