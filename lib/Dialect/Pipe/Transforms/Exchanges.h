//===- Exchanges.h - Collectives that a step needs once ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// What devices exchange need not be exchanged for each micro-batch where it is
/// the same for all of them:
///
/// - what is made of parameters, optimizer's state and constants alone: a part
///   of its own may gather it before forward (G), to be kept until the last
///   part has read it;
/// - sums over micro-batches that become gradients: a part of its own reduces
///   them behind the last of backward (R).
///
/// A collective is known by its interface, and what it belongs to by dataflow.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_EXCHANGES_H
#define CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_EXCHANGES_H

#include "Flow.h"

namespace cleave::pipe {

/// When what is made of parameters alone is exchanged.
enum class GatherMode {
  Each, ///< by each part of each micro-batch that reads it
  Once, ///< before the first forward
  Auto  ///< once where that holds little, as `chooseGathers` says
};

/// Whether there are parts G.
struct GatherChoice {
  bool once = false;
  /// `each` or `once`, and why where it was left open; empty where there is
  /// nothing to gather.
  std::string text;
};

/// Chooses for `entry` as `mode` says. `Auto`: once where what is gathered has
/// no more bytes than the parameters and the state of a device.
GatherChoice chooseGathers(mlir::func::FuncOp entry, const Flow &flow,
                           const spmd::Mesh &mesh, GatherMode mode);

/// Takes what a part G can exchange in front of the barriers that leave it to
/// backward, and makes one of what is then the same.
void joinGathers(mlir::func::FuncOp entry, const Flow &flow,
                 const spmd::Mesh &mesh);

/// The collectives of one entry that run once.
class Exchanges {
public:
  /// With `gather`, also those of G.
  Exchanges(mlir::func::FuncOp entry, const Flow &flow, const spmd::Mesh &mesh,
            bool gather);

  /// Whether G of each stage that reads it runs the collective.
  bool isGathered(mlir::Operation *op) const { return gathered.contains(op); }
  /// Whether R of each stage that reads it does.
  bool isReduced(mlir::Operation *op) const { return reduced.contains(op); }

private:
  llvm::DenseSet<mlir::Operation *> gathered, reduced;
};

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_EXCHANGES_H
