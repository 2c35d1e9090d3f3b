//===- SliceTransfers.h - What stages send, in slices -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Devices that run a stage together may all have the same value, and all send
/// it to the next stage. Instead each may send its slice, which the next stage
/// gathers: the scatter/gather optimisation of Narayanan et al.
/// (arXiv 2104.04473, 4.1), found from shardings. Where the value is made of a
/// sum over these devices, the sender needs no more than its part of it.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SLICETRANSFERS_H
#define CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SLICETRANSFERS_H

#include "Stages.h"

namespace cleave::pipe {

/// Which values are sent in slices: where fewer elements are sent in all, where
/// it can be, none.
enum class Slices { Auto, On, Off };

/// Rewrites `entry`, whose flow and stages follow. Returns how many values it
/// slices, or failure where `flow` can be analyzed no more.
llvm::FailureOr<int64_t> sliceTransfers(mlir::func::FuncOp entry,
                                        spmd::MeshOp mesh, Flow &flow,
                                        Stages &stages, Slices wanted);

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SLICETRANSFERS_H
