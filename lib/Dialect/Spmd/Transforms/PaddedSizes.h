//===- PaddedSizes.h - Sizes that divide ------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// How large each dimension of a program is when those that annotations split
/// unevenly are made larger. Dimensions that the sharding rules join grow
/// together: nothing is cut and padded again between them.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_PADDEDSIZES_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_PADDEDSIZES_H

#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/IntEqClasses.h"
#include <set>

namespace cleave::spmd {

/// Of all functions of a module together: arguments of one name are one tensor.
///
/// A factor that must be whole is never padded, nor one that lies behind
/// another in some dimension, where padding would lie between elements. An
/// annotation does not join what it puts elsewhere: a dimension that it splits
/// belongs to what follows, one that it makes whole to what comes before. But
/// what is cut into micro-batches stays one class.
class PaddedSizes {
public:
  PaddedSizes(mlir::ModuleOp module, const Mesh &mesh);

  /// Whether anything is padded at all.
  bool any() const { return padded; }
  /// Dimension `dim` of `value`, a value of the module as it was.
  int64_t of(mlir::Value value, unsigned dim) const {
    return sizeOf(base.lookup(value) + dim);
  }
  llvm::SmallVector<int64_t> shapeOf(mlir::Value value) const;
  /// Factor `factor` of `op`.
  int64_t ofFactor(mlir::Operation *op, int64_t factor) const;
  /// The rule of `op` as it was.
  const graph::ShardingRule &ruleOf(mlir::Operation *op) const {
    return rules.find(op)->second;
  }

private:
  struct Class {
    /// Divides all sizes of the class.
    int64_t unit = 0;
    /// The product of the axes that split it.
    int64_t parts = 1;
    /// Whether what an annotation splits leaves a rest.
    bool uneven = false;
    std::set<std::string> axes;
  };
  /// What an annotation says of a node.
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

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_PADDEDSIZES_H
