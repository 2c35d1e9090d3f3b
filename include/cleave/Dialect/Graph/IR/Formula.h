//===- Formula.h - Ops written as formulas ----------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_FORMULA_H
#define CLEAVE_DIALECT_GRAPH_IR_FORMULA_H

#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/TensorType.h"

namespace cleave::graph {

/// Builds ops at one location and at the builder's insertion point, so that the
/// code of a gradient or an update reads like its formula.
struct Formula {
  mlir::OpBuilder &builder;
  mlir::Location loc;

  mlir::Value neg(mlir::Value a);
  mlir::Value add(mlir::Value a, mlir::Value b);
  mlir::Value sub(mlir::Value a, mlir::Value b);
  mlir::Value mul(mlir::Value a, mlir::Value b);
  mlir::Value div(mlir::Value a, mlir::Value b);
  mlir::Value pow(mlir::Value a, mlir::Value b);
  mlir::Value compare(Predicate predicate, mlir::Value a, mlir::Value b);
  mlir::Value select(mlir::Value condition, mlir::Value a, mlir::Value b);
  mlir::Value sum(mlir::Value a, llvm::ArrayRef<int64_t> dims);
  /// The result has the type `element`, or, where that is null, that of the
  /// operands.
  mlir::Value contract(llvm::StringRef equation, mlir::Value a, mlir::Value b,
                       mlir::Type element = {});

  /// A scalar of `like`'s element type, which broadcasts against anything.
  mlir::Value scalar(mlir::Value like, double value);
  /// A splat of `type`.
  mlir::Value splat(mlir::RankedTensorType type, double value);

  /// Returns its operand where nothing changes.
  mlir::Value cast(mlir::Value a, mlir::Type element);
  mlir::Value reshape(mlir::Value a, llvm::ArrayRef<int64_t> shape);
  mlir::Value broadcast(mlir::Value a, llvm::ArrayRef<int64_t> shape);

  /// The adjoint of broadcasting to `a`'s shape: sums over each dimension
  /// along which a tensor of `shape` was repeated.
  mlir::Value reduceTo(mlir::Value a, llvm::ArrayRef<int64_t> shape);
  /// Restores, as size 1, the dimensions that reducing a tensor of `shape` over
  /// `dims` removed, and repeats the values along them.
  mlir::Value expandTo(mlir::Value a, llvm::ArrayRef<int64_t> dims,
                       llvm::ArrayRef<int64_t> shape);
};

/// The value that all elements of a constant have, as a double.
std::optional<double> getSplatValue(mlir::Value value);

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_IR_FORMULA_H
