//===- CheckReshard.h - Executes a reshard on virtual ranks -----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TESTING_CHECKRESHARD_H
#define CLEAVE_TESTING_CHECKRESHARD_H

#include "cleave/Testing/RandomReshard.h"
#include "mlir/IR/MLIRContext.h"
#include <string>

namespace cleave {

/// Plans `reshard`, verifies the collectives, and executes them by the
/// interpreter, one rank for each mesh position, on values drawn from `seed`.
/// It does the same with a plan that reduces, gathers the whole tensor and
/// slices it, and repeats both after `--spmd-optimize-collectives`. Returns the
/// differences from the whole tensor, or an empty string. A partial source is
/// the sum (max, min) of as many tensors as it has addends; a target that stays
/// partial is reduced at the end.
std::string checkReshard(mlir::MLIRContext *context,
                         const RandomReshard &reshard, uint64_t seed);

} // namespace cleave

#endif // CLEAVE_TESTING_CHECKRESHARD_H
