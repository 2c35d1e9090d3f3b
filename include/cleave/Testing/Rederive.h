//===- Rederive.h - A local program after one change ------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TESTING_REDERIVE_H
#define CLEAVE_TESTING_REDERIVE_H

#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/IRMapping.h"

namespace cleave {

/// Copies a function of the `local` phase. One op may be replaced; later ops
/// then get the types and annotations derived from their operands, as far as
/// sharding rules allow, so that only the change is wrong. An op that cannot
/// take its operands keeps its annotations.
class Rederivation {
public:
  /// The annotations of a value: its sharding and its global type.
  struct Claim {
    spmd::Sharding sharding;
    mlir::RankedTensorType global;
  };
  /// Builds the replacement of `op`; null if there is none: the module is then
  /// left unchanged.
  using Replacement = llvm::function_ref<mlir::Value(
      Rederivation &rewriter, mlir::Operation *op, mlir::Value operand)>;

  Rederivation(mlir::func::FuncOp function, spmd::MeshOp mesh);

  /// Replaces the function by its copy. False if `replace` returned nothing;
  /// the function is then unchanged.
  bool run(mlir::Operation *op, Replacement replace);

  const spmd::Mesh &getMesh() const { return mesh; }
  mlir::FlatSymbolRefAttr getMeshName() const { return meshName; }
  mlir::OpBuilder &getBuilder() { return builder; }
  /// The annotations of a value of the copy.
  const Claim &claimOf(mlir::Value value) const {
    return claims.find(value)->second;
  }
  /// The value of the copy for a value of the original.
  mlir::Value now(mlir::Value value) const { return mapping.lookup(value); }
  /// Sets the annotations `claim` on `op`, which has one result.
  mlir::Value define(mlir::Operation *op, const Claim &claim);
  /// The type of one shard, null if the shape is not divisible.
  mlir::RankedTensorType localType(const Claim &claim) const;

private:
  /// By value: the annotations of one value may apply to another.
  void set(mlir::Value value, Claim claim) { claims[value] = std::move(claim); }
  Claim readClaim(mlir::OpResult result) const;
  bool isChanged(mlir::Operation *op) const;
  void copy(mlir::Operation *op);
  bool redo(mlir::Operation *op);
  bool redoMove(mlir::Operation *op);
  bool redoOp(mlir::Operation *op);
  mlir::Operation *buildWhole(mlir::Operation *op, mlir::Block &scratch);

  mlir::func::FuncOp function;
  mlir::FlatSymbolRefAttr meshName;
  spmd::Mesh mesh;
  mlir::OpBuilder builder;
  mlir::IRMapping mapping;
  /// Annotations of values of the original, and of the copy.
  llvm::DenseMap<mlir::Value, Claim> claims;
};

} // namespace cleave

#endif // CLEAVE_TESTING_REDERIVE_H
