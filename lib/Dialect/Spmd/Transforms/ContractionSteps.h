//===- ContractionSteps.h - The steps of one product ------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// van de Geijn and Watts, "SUMMA" (1997), as Xu et al. use it (Optimus, arXiv
/// 2104.05343): each step multiplies one part of what would have to be
/// gathered.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_CONTRACTIONSTEPS_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_CONTRACTIONSTEPS_H

#include "Eras.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "mlir/IR/Builders.h"

namespace cleave::spmd {

/// One dimension of an operand or of the result, and how it is split.
struct SplitDimension {
  unsigned dim;
  AxisList axes;
};

/// What is sent part after part; equal ones receive the same.
struct SentParts {
  mlir::Value value;
  ShardingAttr lie;
  unsigned dim;
  AxisList axes;
  unsigned era;

  bool operator==(const SentParts &other) const = default;
};

/// One contraction that is marked with `spmd.steps`.
class ContractionSteps {
public:
  ContractionSteps(mlir::Operation *op, MeshOp mesh, const Eras &eras);

  /// Finds what goes in parts, and takes the mark away.
  llvm::LogicalResult read();

  mlir::Operation *getOp() const { return op; }
  int64_t getParts() const { return parts; }
  /// What is sent of operand `index`; nothing where it stays.
  std::optional<SentParts> sent(unsigned index) const;
  /// Whether what is received of operand `index` may be kept for the products
  /// that follow.
  bool isHeld(unsigned index) const { return held[index]; }
  /// What is sent of operand `index` is not what others send of it.
  void setApart(unsigned index, int64_t number) { apart[index] = number; }

  /// Operand `index` as it lies, where `builder` is.
  mlir::Value operand(mlir::OpBuilder &builder, unsigned index) const;
  /// Sends part number `part` of operand `index`, which is `value`.
  mlir::Value broadcast(mlir::OpBuilder &builder, unsigned index,
                        mlir::Value value, int64_t part) const;
  /// Step number `part`, on what it multiplies.
  void step(mlir::OpBuilder &builder, llvm::ArrayRef<mlir::Value> operands,
            int64_t part);
  /// Puts what the steps made into the place of the product.
  void finish(mlir::OpBuilder &builder);

private:
  llvm::LogicalResult findTable(ShardingAttr lie, unsigned tensor, int64_t dim);
  llvm::LogicalResult findFactor();
  mlir::Location location(llvm::ArrayRef<AxisRef> axes) const;
  mlir::Value constrain(mlir::OpBuilder &builder, mlir::Value value,
                        ShardingAttr sharding) const;

  mlir::Operation *op;
  Mesh mesh;
  mlir::FlatSymbolRefAttr meshName;
  unsigned era;
  /// The operands that were there before what the op belongs to.
  bool early[2];
  bool held[2] = {false, false};
  std::optional<int64_t> apart[2];
  /// Of both operands and of the result.
  llvm::SmallVector<ShardingAttr, 3> lies;
  /// Where they have the factor that lies in two ways.
  std::optional<SplitDimension> at[3];
  int64_t parts = 1;
  /// Of the steps so far.
  mlir::Value sum;
};

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_CONTRACTIONSTEPS_H
