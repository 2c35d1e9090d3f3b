//===- DimensionClasses.h - Dimensions sharded together ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Joins dimensions of values into classes by the sharding rules: dimensions of
/// a class are sharded together, without collectives between them. Examples of
/// classes are the heads of an attention and the inner features of an MLP.
/// Classes are numbered, and found without names of ops or models.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_TRANSFORMS_PROPAGATION_DIMENSIONCLASSES_H
#define CLEAVE_DIALECT_SPMD_TRANSFORMS_PROPAGATION_DIMENSIONCLASSES_H

#include "cleave/Dialect/Graph/IR/ShardingRule.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/IntEqClasses.h"

namespace cleave::spmd {

/// A class of dimensions.
struct DimensionClass {
  /// The numbers of shards that need no padding are the divisors of this
  /// number.
  int64_t divisor = 0;
  /// An op that cannot shard the class, or null.
  mlir::Operation *wholeIn = nullptr;
  /// The dimensions of arguments in the class.
  llvm::SmallVector<std::pair<mlir::BlockArgument, unsigned>, 4> arguments;
  /// The class holds samples (`graph.batch_dim`).
  bool samples = false;
  /// Contractions of the forward pass with a parameter that produce the class,
  /// and those that sum over it.
  llvm::SmallVector<mlir::Operation *, 2> producers, consumers;
  /// Contractions of the forward pass with a parameter, and lookups in one, for
  /// which the class is a batch dimension.
  llvm::SmallVector<mlir::Operation *, 2> stacked;
  /// Ops of the forward pass that look up indices of the class in a parameter,
  /// by values of an input.
  llvm::SmallVector<mlir::Operation *, 1> lookups;
  /// An op of the forward pass that is not a product reduces the class.
  bool reduced = false;
  /// The class is a parallel factor of an attention in the forward pass.
  bool attended = false;
  /// The number of query heads where several of them share one index of the
  /// class (a head of keys and values); 0 where none do.
  int64_t heads = 0;
  /// The dimensions of arguments that produce the shared keys and values.
  llvm::SmallVector<std::pair<mlir::BlockArgument, unsigned>, 2> shared;
};

/// Returns the argument that `value` is a view or a part of, possibly scaled or
/// in another type, or null.
mlir::BlockArgument viewedArgument(mlir::Value value);

/// The dimension classes of one function of one block. A dimension of several
/// factors (a reshape joins two) belongs to the class of the major factor,
/// which an axis shards first.
class DimensionClasses {
public:
  explicit DimensionClasses(mlir::func::FuncOp function);

  /// Returns the class of dimension `dim` of `value`.
  const DimensionClass &of(mlir::Value value, unsigned dim) const {
    return classes[number(value, dim)];
  }
  /// Returns the number of that class.
  unsigned number(mlir::Value value, unsigned dim) const {
    return joined[base.lookup(value) + dim];
  }
  llvm::ArrayRef<DimensionClass> all() const { return classes; }

private:
  void joinOps();
  void describe();
  void addRoles(mlir::Operation *op);
  void addShared(mlir::Operation *op, const graph::ShardingRule &rule,
                 int64_t factor, DimensionClass &known);
  void addSharedState(DimensionClass &known);
  bool dependsOnInput(mlir::Value value) const;

  mlir::func::FuncOp function;
  /// The first node of each value and of each op's factors.
  llvm::DenseMap<mlir::Value, unsigned> base;
  llvm::DenseMap<mlir::Operation *, unsigned> factorBase;
  llvm::IntEqClasses joined;
  std::vector<DimensionClass> classes;
};

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_TRANSFORMS_PROPAGATION_DIMENSIONCLASSES_H
