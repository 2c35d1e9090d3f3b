//===- SliceTransfers.h - Transfers between stages in slices ----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// If a value is replicated over devices of a stage, each of them may send only
/// a slice of it to the next stage, which gathers the slices: the
/// scatter/gather optimization of Narayanan et al. (arXiv 2104.04473,
/// section 4.1), derived from shardings. If the value depends on a sum over
/// these devices, the sender computes only its slice of the sum.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SPLIT_SLICETRANSFERS_H
#define CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SPLIT_SLICETRANSFERS_H

#include "Stages.h"

namespace cleave::pipe {

/// Which values are sent in slices: those for which fewer elements are sent in
/// total, or as many between ranks that are closer to each other than stages
/// are; all that can be; or none.
enum class Slices { Auto, On, Off };

/// Rewrites `entry` and updates `flow` and `stages`. Returns the number of
/// values sent in slices, or failure if the analysis of the flow fails
/// afterwards.
llvm::FailureOr<int64_t> sliceTransfers(mlir::func::FuncOp entry,
                                        spmd::MeshOp mesh, Flow &flow,
                                        Stages &stages, Slices wanted);

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SPLIT_SLICETRANSFERS_H
