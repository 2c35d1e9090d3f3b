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

/// Plans `reshard`, verifies the movements, and executes them by the
/// interpreter, one rank for each position of the mesh, on values that follow
/// from `seed`; and the long way round: reduced, gathered whole, and cut. Both
/// before and after `--spmd-optimize-collectives`. Returns what differs from
/// the whole tensor, or an empty string. A partial source is the sum (max, min)
/// of as many tensors as it has parts; a target that stays partial is reduced
/// at the end.
std::string checkReshard(mlir::MLIRContext *context,
                         const RandomReshard &reshard, uint64_t seed);

} // namespace cleave

#endif // CLEAVE_TESTING_CHECKRESHARD_H
