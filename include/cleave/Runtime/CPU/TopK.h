//===- TopK.h - The largest elements of rows --------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_CPU_TOPK_H
#define CLEAVE_RUNTIME_CPU_TOPK_H

#include "cleave/Executable/Format/Program.h"
#include "cleave/Runtime/CPU/ThreadTeam.h"

namespace cleave::runtime {

/// The k largest elements of each row [columns], in decreasing order, and their
/// indices; equal ones in the order of indices. NaN counts as infinity.
/// `scratch` has the size that TopKScratch.h says.
void topK(const TopKCommand &command, const float *in, float *values,
          int64_t *indices, char *scratch, const ThreadTeam &team);

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_CPU_TOPK_H
