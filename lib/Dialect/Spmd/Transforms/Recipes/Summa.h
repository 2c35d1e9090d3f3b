//===- Summa.h - Where weights and values lie in blocks ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_SUMMA_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_SUMMA_H

#include "Annotator.h"
#include "llvm/ADT/DenseSet.h"

namespace cleave::spmd {

/// A dimension of a value.
using Place = std::pair<mlir::Value, unsigned>;

/// The sharding rule of an op that has one.
graph::ShardingRule ruleOf(mlir::Operation *op);
/// Whether `op` is a product of operands with a rule.
bool isProduct(mlir::Operation *op);
/// The major factor of a dimension that is not 1, or -1.
int64_t factorOf(const graph::ShardingRule &rule,
                 llvm::ArrayRef<int64_t> factors);
/// The dimension along which `mapping` has `factor`.
std::optional<unsigned> dimOf(const graph::ShardingRule &rule,
                              const graph::FactorMapping &mapping,
                              int64_t factor);
/// The argument that `value` is a view of, and its dimension there.
std::optional<Place> argumentOf(mlir::Value value, unsigned dim);

/// The recipe over one pair of axes. Summa.cpp splits arguments,
/// SummaSteps.cpp marks the products that go in steps then.
class Summa {
public:
  Summa(Annotator &annotator, llvm::StringRef row, llvm::StringRef col)
      : annotator(annotator), row(annotator.getMesh().find(row)->name),
        col(annotator.getMesh().find(col)->name),
        parts(annotator.getMesh().size(AxisRef{row})) {}

  llvm::LogicalResult run();

private:
  llvm::LogicalResult splitWeight(mlir::func::FuncOp function,
                                  mlir::Operation *op, unsigned operand);
  llvm::LogicalResult splitWeights(mlir::func::FuncOp function);
  void remarkWhole(mlir::BlockArgument table, unsigned dim, int64_t places,
                   llvm::StringRef axis);
  void splitRest(mlir::func::FuncOp function);
  void mark(mlir::func::FuncOp function);

  std::optional<unsigned> weightOf(mlir::func::FuncOp function,
                                   mlir::Operation *op);
  std::optional<int64_t> choose(const DimensionClasses &classes,
                                mlir::Operation *op,
                                llvm::ArrayRef<int64_t> factors,
                                mlir::Value weight, unsigned operand);
  Sharding layout(mlir::func::FuncOp function, mlir::Value value);
  mlir::BlockArgument gradientOf(mlir::func::FuncOp function, mlir::Value value,
                                 llvm::SmallVectorImpl<unsigned> &dims);

  bool isFeature(const DimensionClasses &classes, mlir::Value value,
                 unsigned dim) {
    return features.contains(classes.number(value, dim));
  }

  Annotator &annotator;
  /// The mesh's own text: it outlives the call.
  llvm::StringRef row, col;
  int64_t parts;
  /// Whether there is a weight.
  bool found = false;
  /// Of the function at hand: the classes that values have in parts over `col`.
  llvm::SmallDenseSet<unsigned> features;
};

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_SUMMA_H
