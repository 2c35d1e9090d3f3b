//===- SlicePlan.h - What it takes to send slices ---------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SLICEPLAN_H
#define CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SLICEPLAN_H

#include "Stages.h"
#include "cleave/Dialect/Spmd/IR/SplitFurther.h"
#include <map>

namespace cleave::pipe {

/// A value of a micro-batch that `stage` makes and others read.
struct SentValue {
  mlir::Value value;
  int64_t stage;
  /// Of each other stage, the ops that read it.
  std::map<int64_t, llvm::SmallVector<mlir::Operation *>> readers;
};

/// How a value is sent in slices. Elements are those that a device of each
/// stage sends for one micro-batch, in ring terms.
struct SlicePlan {
  /// Of a slice, and how many there are.
  spmd::Sharding sharding;
  int64_t parts = 1;
  /// Ops of the stage that are made on slices alone, in their order.
  std::vector<std::pair<mlir::Operation *, spmd::FurtherSplit>> ops;
  /// What is sent to other stages, whole and in slices.
  double linkBefore = 0, link = 0;
  /// The same, with what collectives send that come or go.
  double before = 0, after = 0;
};

/// What the stage that makes `value` sends to others; nothing where it is read
/// in none, or only by a later part of a micro-batch than makes it: no part of
/// that stage could gather it then.
std::optional<SentValue> describeSent(const Flow &flow, const Stages &stages,
                                      mlir::Value value);

/// The values of `entry` that devices of a stage have in common and send to
/// others, in their order.
llvm::SmallVector<mlir::Value> valuesToSlice(const spmd::Mesh &mesh,
                                             const Flow &flow,
                                             const Stages &stages,
                                             mlir::func::FuncOp entry);

/// The shardings of slices of `value` over devices that all have it, along each
/// dimension that divides.
std::vector<spmd::Sharding> waysToSlice(const spmd::Mesh &mesh,
                                        mlir::Value value);

SlicePlan planSlice(const spmd::Mesh &mesh, const Flow &flow,
                    const Stages &stages, const SentValue &sent,
                    const spmd::Sharding &sharding);

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SLICEPLAN_H
