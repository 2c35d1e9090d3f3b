//===- BucketCollectives.h - Buckets of small exchanges ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_EXECUTABLE_TRANSFORMS_BUCKETCOLLECTIVES_H
#define CLEAVE_EXECUTABLE_TRANSFORMS_BUCKETCOLLECTIVES_H

#include "cleave/Executable/Format/Program.h"
#include "llvm/ADT/STLFunctionalExtras.h"

namespace cleave {

/// Merges reductions and gathers of one kind among the same ranks into one
/// exchange, up to so many bytes of operands on a rank as `maxBytes` returns of
/// those that a part sends by collectives that could be merged; a larger
/// exchange stays alone. An exchange begins behind the last that was merged
/// into it, later than before, but never after a command that uses its memory,
/// so that the memory plan stays valid. Its wait is before the first such
/// command. The result depends on the program alone: it is the same on every
/// rank. Li et al., "PyTorch Distributed" (arXiv 2006.15704), section 3.2,
/// "gradient bucketing".
void bucketCollectives(runtime::Program &program,
                       llvm::function_ref<int64_t(double)> maxBytes);

} // namespace cleave

#endif // CLEAVE_EXECUTABLE_TRANSFORMS_BUCKETCOLLECTIVES_H
