//===- PaddedSizes.h - Sizes of padded dimensions ---------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Computes the size of each dimension of a program after padding the
/// dimensions that annotations shard unevenly. Dimensions that the sharding
/// rules join are padded together, so that no value is sliced and padded again
/// between them.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_PARTITION_PADDEDSIZES_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_PARTITION_PADDEDSIZES_H

#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/IntEqClasses.h"
#include <set>

namespace cleave::spmd {

/// The padded sizes of all functions of a module. Arguments of one name are one
/// tensor.
///
/// A factor that must be replicated is never padded, nor one that is a minor
/// factor of a dimension, where padding would lie between elements. An
/// annotation separates classes where it changes the sharding of a dimension: a
/// dimension that it shards is joined with the readers, one that it replicates
/// with the producer. Dimensions that are sharded over micro-batches stay one
/// class.
class PaddedSizes {
public:
  PaddedSizes(mlir::ModuleOp module, const Mesh &mesh);

  /// Whether any dimension is padded.
  bool any() const { return padded; }
  /// Returns the padded size of dimension `dim` of `value`, a value of the
  /// original module.
  int64_t of(mlir::Value value, unsigned dim) const {
    return sizeOf(base.lookup(value) + dim);
  }
  llvm::SmallVector<int64_t> shapeOf(mlir::Value value) const;
  /// Returns the padded size of factor `factor` of `op`.
  int64_t ofFactor(mlir::Operation *op, int64_t factor) const;
  /// Returns the rule of `op` before padding.
  const graph::ShardingRule &ruleOf(mlir::Operation *op) const {
    return rules.find(op)->second;
  }

private:
  struct Class {
    /// Divides all sizes of the class.
    int64_t unit = 0;
    /// The product of the sizes of the axes of the class.
    int64_t parts = 1;
    /// Whether an annotation shards the class unevenly.
    bool uneven = false;
    std::set<std::string> axes;
  };
  /// The axes that an annotation gives to a node.
  struct Split {
    unsigned node;
    AxisList axes;
  };

  void addFunction(mlir::func::FuncOp function);
  void joinArguments(mlir::ModuleOp module);
  void joinOp(mlir::Operation *op);
  void addSplit(unsigned node, llvm::ArrayRef<AxisRef> axes);
  void joinSamples(llvm::ArrayRef<mlir::func::FuncOp> functions,
                   const Mesh &mesh);
  void findUneven(const Mesh &mesh);
  int64_t sizeOf(unsigned node) const;

  /// The size of each node: a dimension of a value, or a factor of an op.
  llvm::SmallVector<int64_t> sizes;
  llvm::DenseMap<mlir::Value, unsigned> base;
  llvm::DenseMap<mlir::Operation *, unsigned> factorBase;
  llvm::DenseMap<mlir::Operation *, graph::ShardingRule> rules;
  /// Factors that can be padded.
  llvm::DenseMap<mlir::Operation *, llvm::SmallVector<bool>> free;
  llvm::IntEqClasses joined;
  std::vector<Class> classes;
  std::vector<Split> splits;
  bool padded = false;
};

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_PARTITION_PADDEDSIZES_H
