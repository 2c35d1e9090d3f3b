//===- WorkerGradients.h - The gradients of each worker ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_COMPRESSION_WORKERGRADIENTS_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_COMPRESSION_WORKERGRADIENTS_H

#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/ShardingRule.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"

namespace cleave::spmd {

using graph::Formula;
using graph::tensorTypeOf;

/// The sharding that an argument of `step` was given; replicated without one.
Sharding givenSharding(mlir::func::FuncOp step, mlir::BlockArgument argument);

/// The samples of a batch in the order of the mesh: `[outer, workers, rest]`.
/// `outer` counts what is major to the workers: micro-batches.
struct SampleOrder {
  int64_t outer = 1, workers = 1;
};

/// Rewrites gradients as a sum over workers: the terms of each worker's samples
/// become the slices of a tensor with one more dimension, the first.
///
/// A gradient is a sum over samples, which some op computes: the first one on
/// the way back whose operands run along samples and whose result does not. It
/// becomes a `graph.per_worker`, and so does what follows it and is linear.
class WorkerGradients {
public:
  WorkerGradients(mlir::func::FuncOp step, SampleOrder order);

  /// Whether `value` is a sum over samples, or linear in such sums.
  bool isSum(mlir::Value value);

  /// `value`, for which `isSum` holds, as `[workers, ...]`: the sum over
  /// workers is `value`. Reports a located error where it cannot be parted.
  mlir::FailureOr<mlir::Value> partsOf(mlir::Value value);

private:
  /// The operands of an op along which samples run, as the major part of a
  /// dimension, and those that are sums.
  struct Operands {
    llvm::SmallVector<std::optional<int64_t>> samples;
    llvm::SmallVector<bool> sums;
    bool anySamples = false, anySums = false;
  };

  bool draws(mlir::Operation *op);
  void locate();
  void locateResults(mlir::Operation *op);
  Operands read(mlir::Operation *op, const graph::ShardingRule &rule);
  bool sumsSamples(mlir::Operation *op, const graph::ShardingRule &rule,
                   unsigned result, const Operands &operands);
  mlir::LogicalResult part(mlir::Operation *op);
  mlir::Value splitSamples(mlir::OpBuilder &builder, mlir::Value value,
                           int64_t dim);

  mlir::func::FuncOp step;
  SampleOrder order;
  /// For a value with samples, the dimension whose major part they are, or -1
  /// where they are elsewhere.
  llvm::DenseMap<mlir::Value, int64_t> samples;
  llvm::DenseMap<mlir::Value, bool> sums;
  llvm::DenseMap<mlir::Value, mlir::Value> parts;
};

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_COMPRESSION_WORKERGRADIENTS_H
