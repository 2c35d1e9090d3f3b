//===- SlicePlan.h - Plans of transfers in slices ---------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SPLIT_SLICEPLAN_H
#define CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SPLIT_SLICEPLAN_H

#include "Stages.h"
#include "cleave/Dialect/Spmd/IR/SplitFurther.h"
#include <map>

namespace cleave::pipe {

/// A value of a micro-batch that `stage` computes and other stages read.
struct SentValue {
  mlir::Value value;
  int64_t stage;
  /// For each other stage, the ops that read the value.
  std::map<int64_t, llvm::SmallVector<mlir::Operation *>> readers;
};

/// A plan to send a value in slices. Costs are the elements that a device of
/// each stage sends for one micro-batch, by ring algorithms.
struct SlicePlan {
  /// The sharding of the slices, and their number.
  spmd::Sharding sharding;
  int64_t parts = 1;
  /// The ops of the stage that are computed on slices, in order.
  std::vector<std::pair<mlir::Operation *, spmd::FurtherSplit>> ops;
  /// The elements sent to other stages, without and with slices.
  double linkBefore = 0, link = 0;
  /// The same, including the collectives that the plan adds or removes.
  double before = 0, after = 0;
};

/// Describes the transfers of `value`. Returns nothing if no other stage reads
/// it, or if a reading stage has no part that could gather it, because it reads
/// the value only in a later part of the micro-batch.
std::optional<SentValue> describeSent(const Flow &flow, const Stages &stages,
                                      mlir::Value value);

/// Returns the values of `entry` that are replicated over devices of a stage
/// and sent to other stages, in order.
llvm::SmallVector<mlir::Value> valuesToSlice(const spmd::Mesh &mesh,
                                             const Flow &flow,
                                             const Stages &stages,
                                             mlir::func::FuncOp entry);

/// Returns the shardings of slices of `value` over the devices that hold
/// replicas of it, along each divisible dimension.
std::vector<spmd::Sharding> waysToSlice(const spmd::Mesh &mesh,
                                        mlir::Value value);

/// Plans to send the value in slices of the given sharding.
SlicePlan planSlice(const spmd::Mesh &mesh, const Flow &flow,
                    const Stages &stages, const SentValue &sent,
                    const spmd::Sharding &sharding);

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SPLIT_SLICEPLAN_H
