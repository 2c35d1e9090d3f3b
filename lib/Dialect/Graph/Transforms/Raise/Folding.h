//===- Folding.h - Ops that fold as they are built --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_RAISE_FOLDING_H
#define CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_RAISE_FOLDING_H

#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "llvm/ADT/DenseMap.h"

namespace cleave::graph {

/// The casts that were built of values of one block, in its order.
using BuiltCasts =
    llvm::DenseMap<std::pair<mlir::Value, mlir::Type>, mlir::Value>;

/// Builds ops at one place. What computes nothing is left out, so that patterns
/// meet one form of equal computations.
class Folding {
public:
  Folding(mlir::OpBuilder &builder, mlir::Location loc, BuiltCasts &casts)
      : builder(builder), loc(loc), casts(casts) {}

  mlir::OpBuilder &getBuilder() { return builder; }
  mlir::Location getLoc() const { return loc; }

  mlir::Value reshape(mlir::Value x, llvm::ArrayRef<int64_t> shape);
  mlir::Value transpose(mlir::Value x, llvm::ArrayRef<int64_t> permutation);
  mlir::Value broadcast(mlir::Value x, llvm::ArrayRef<int64_t> shape);
  mlir::Value cast(mlir::Value x, mlir::Type element);

  mlir::Value add(mlir::Value a, mlir::Value b);
  mlir::Value scaled(mlir::Value x, double factor);
  mlir::Value both(mlir::Value a, mlir::Value b);
  mlir::Value negated(mlir::Value condition);
  mlir::Value greater(mlir::Value x, double number);
  /// `x` where `condition` is true, and 0 elsewhere.
  mlir::Value where(mlir::Value condition, mlir::Value x);

private:
  mlir::Value scalar(mlir::Type element, double number);

  mlir::OpBuilder &builder;
  mlir::Location loc;
  BuiltCasts &casts;
};

} // namespace cleave::graph

#endif // CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_RAISE_FOLDING_H
