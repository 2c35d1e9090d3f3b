//===- SavedCut.h - Saved values between two parts --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_RECOMPUTE_SAVEDCUT_H
#define CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_RECOMPUTE_SAVEDCUT_H

#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Machines/MachineModel.h"
#include <map>

namespace cleave::pipe {

/// The ops that one program recomputes, for the report.
struct RecomputeTally {
  struct Group {
    int64_t ops = 0;
    /// The bytes of results that would have been saved otherwise.
    int64_t bytes = 0;
  };
  /// By kind of op and line of the model.
  std::map<std::pair<std::string, std::string>, Group> groups;
  /// The bytes saved for one micro-batch without recomputation, less those
  /// saved with it.
  int64_t unsaved = 0;
  /// The work of recomputation for one micro-batch, by stage and block.
  std::map<std::pair<int64_t, int64_t>, machines::Work> work;

  /// The number of the next contraction that has a clone.
  int64_t twins = 0;

  Group &groupOf(mlir::Operation *op);
  /// Writes it as attributes of `program`.
  void write(ProgramOp program) const;
};

/// What may be recomputed, and at which cost.
struct RecomputeRules {
  llvm::function_ref<bool(mlir::OpResult)> may;
  /// The bytes that not running an op again is worth.
  llvm::function_ref<int64_t(mlir::Operation *)> price;
  /// The number of the block of an op, or -1.
  llvm::function_ref<int64_t(mlir::Operation *)> blockOf;
  const spmd::Mesh &mesh;
};

/// Chooses what `producer` saves for `consumer`: the least bytes, prices of ops
/// included, from which the values that may be recomputed can be made again.
/// Replaces both invocations by new ones, and returns these.
std::pair<InvokeOp, InvokeOp> saveLess(InvokeOp producer, InvokeOp consumer,
                                       const RecomputeRules &rules,
                                       RecomputeTally &tally);

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_RECOMPUTE_SAVEDCUT_H
