//===- Optimizer.h - The update of a training step --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_TRANSFORMS_OPTIMIZER_H
#define CLEAVE_DIALECT_GRAPH_TRANSFORMS_OPTIMIZER_H

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include <optional>

namespace cleave::graph {

/// The optimizer and its options. Defaults are PyTorch's; the learning rate is
/// an argument of the step.
struct OptimizerOptions {
  enum class Kind : uint8_t { AdamW, Sgd };

  Kind kind = Kind::AdamW;
  /// AdamW: decay rates of the means of gradients and of their squares.
  double beta1 = 0.9, beta2 = 0.999;
  /// AdamW: added to the denominator.
  double epsilon = 1e-8;
  /// Weight decay; if absent, 0.01 for AdamW and 0 for SGD.
  std::optional<double> weightDecay;
  /// SGD: with 0 there is no momentum buffer.
  double momentum = 0.0, dampening = 0.0;
  bool nesterov = false;
  /// Clip the gradients' global norm to this; 0 does not clip.
  double maxGradNorm = 0.0;
  /// Stop a step whose loss or gradients are not finite. With clipping, the
  /// norm is checked in any case.
  bool checkFinite = false;

  double effectiveWeightDecay() const {
    return weightDecay.value_or(kind == Kind::AdamW ? 0.01 : 0.0);
  }
};

/// Rewrites `step`, which computes gradients, into a whole training step;
/// reports at its location an option that is out of range.
llvm::LogicalResult applyOptimizer(mlir::func::FuncOp step,
                                   const OptimizerOptions &options);

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_TRANSFORMS_OPTIMIZER_H
