//===- StepCollectives.h - Collectives that a step needs once ---*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Collectives and casts that need not run for each micro-batch:
///
/// - collectives of values that depend on parameters, optimizer state and
///   constants alone: part G may gather them before forward; the results are
///   kept until the last part has read them;
/// - casts of such values to fewer bits: part G makes the 16-bit copies of
///   parameters, whether or not it gathers them;
/// - reductions of accumulated gradients: part R runs them after the last
///   backward;
/// - reductions of gradients that an earlier step has left as state: part G
///   begins them, and they go on while the micro-batches run.
///
/// Collectives are recognized by their interface, and classified by dataflow.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SPLIT_STEPCOLLECTIVES_H
#define CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SPLIT_STEPCOLLECTIVES_H

#include "Flow.h"

namespace cleave::pipe {

/// When values that depend on parameters alone are gathered.
enum class GatherMode {
  Each, ///< in each part of each micro-batch that reads them
  Once, ///< before the first forward
  Auto  ///< once if that takes little memory, see `chooseGathers`
};

/// The choice of when to gather.
struct GatherChoice {
  bool once = false;
  /// `each` or `once`, with the reason if the choice was automatic; empty if
  /// there is nothing to gather.
  std::string text;
};

/// Chooses for `entry` by `mode`. `Auto` chooses once if the gathered values
/// have no more bytes than the parameters and the state of a device.
GatherChoice chooseGathers(mlir::func::FuncOp entry, const Flow &flow,
                           const spmd::Mesh &mesh, GatherMode mode);

/// Moves the collectives over `axes` (all axes if empty) that part G can run in
/// front of the barriers that assign them to backward, and merges those that
/// are then equal.
void joinGathers(mlir::func::FuncOp entry, const Flow &flow,
                 const spmd::Mesh &mesh, llvm::ArrayRef<std::string> axes);

/// The collectives and casts of one entry that run once in a step.
class StepCollectives {
public:
  /// Finds the collectives of R, with `gather` those of G over `axes` (all axes
  /// if empty), and with `copy` the casts of G. Where each micro-batch reads
  /// other parameters, nothing of them is made once.
  StepCollectives(mlir::func::FuncOp entry, const Flow &flow,
                  const spmd::Mesh &mesh, bool gather,
                  llvm::ArrayRef<std::string> axes, bool copy);

  /// Whether the op runs in part G of each stage that reads it.
  bool isGathered(mlir::Operation *op) const { return gathered.contains(op); }
  /// Whether the collective runs in part R of each stage that reads it.
  bool isReduced(mlir::Operation *op) const { return reduced.contains(op); }

private:
  llvm::DenseSet<mlir::Operation *> gathered, reduced;
};

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SPLIT_STEPCOLLECTIVES_H
