//===- DimensionClasses.h - Dimensions that are split together --*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The sharding rules join dimensions of values into classes: where one is
/// split, so are the others, without any movement. A class is what people call
/// "the heads" or "the features of the MLP"; here nothing has a name.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_DIMENSIONCLASSES_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_DIMENSIONCLASSES_H

#include "cleave/Dialect/Graph/IR/ShardingRule.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/IntEqClasses.h"

namespace cleave::spmd {

/// What holds for all dimensions of a class.
struct DimensionClass {
  /// The numbers of parts that fit divide this.
  int64_t divisor = 0;
  /// An op needs it whole.
  mlir::Operation *wholeIn = nullptr;
  /// The argument dimensions in it.
  llvm::SmallVector<std::pair<mlir::BlockArgument, unsigned>, 4> arguments;
  /// It holds samples (`graph.batch_dim`).
  bool samples = false;
  /// Contractions of the forward pass that make it from a parameter, and those
  /// that sum over it with a parameter.
  llvm::SmallVector<mlir::Operation *, 2> producers, consumers;
  /// Those that go side by side along it, each with a part of a parameter.
  llvm::SmallVector<mlir::Operation *, 2> stacked;
  /// Ops of the forward pass that look up places of it in a parameter by values
  /// of an input.
  llvm::SmallVector<mlir::Operation *, 1> lookups;
  /// The forward pass combines all of it, other than in a product.
  bool reduced = false;
  /// Parallel in attention of the forward pass.
  bool attended = false;
  /// What that runs through is cut into this many at most: heads, of which
  /// several may share one place of the class. 0 where nothing is shared.
  int64_t heads = 0;
  /// The argument dimensions that make what is shared.
  llvm::SmallVector<std::pair<mlir::BlockArgument, unsigned>, 2> shared;
};

/// The classes of one function of one block. Where a dimension has several
/// factors (a reshape joins two), it belongs to the class of the major one: an
/// axis splits that first.
class DimensionClasses {
public:
  explicit DimensionClasses(mlir::func::FuncOp function);

  /// The class of dimension `dim` of `value`.
  const DimensionClass &of(mlir::Value value, unsigned dim) const {
    return classes[number(value, dim)];
  }
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

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_DIMENSIONCLASSES_H
