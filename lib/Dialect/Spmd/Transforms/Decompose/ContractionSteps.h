//===- ContractionSteps.h - The steps of one product ------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Steps of products by van de Geijn and Watts, "SUMMA" (1997), as used by Xu
/// et al. (Optimus, arXiv 2104.05343): each step multiplies one part of an
/// operand that would otherwise be gathered.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_DECOMPOSE_CONTRACTIONSTEPS_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_DECOMPOSE_CONTRACTIONSTEPS_H

#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Dialect/Spmd/Transforms/Propagation/SeedOrder.h"
#include "mlir/IR/Builders.h"

namespace cleave::spmd {

/// One dimension of an operand or of the result, and its axes.
struct SplitDimension {
  unsigned dim;
  AxisList axes;
};

/// A value that is broadcast part by part. Equal ones are broadcasts of the
/// same parts.
struct SentParts {
  mlir::Value value;
  ShardingAttr sharding;
  unsigned dim;
  AxisList axes;
  unsigned seedIndex;

  bool operator==(const SentParts &other) const = default;
};

/// One contraction with the attribute `spmd.steps`.
class ContractionSteps {
public:
  ContractionSteps(mlir::Operation *op, MeshOp mesh,
                   const SeedOrder &seedOrder);

  /// Finds the dimension of the steps, and removes the attribute. Reports
  /// shardings that steps cannot compute with.
  llvm::LogicalResult read();

  mlir::Operation *getOp() const { return op; }
  int64_t getParts() const { return parts; }
  /// Returns the broadcast of operand `index`; nothing where it is not sent.
  std::optional<SentParts> sent(unsigned index) const;
  /// Whether the received parts of operand `index` may be kept for later
  /// products.
  bool isHeld(unsigned index) const { return held[index]; }
  /// Sets the number `apart` of the broadcasts of operand `index`, so that they
  /// are not merged with those of other products.
  void setApart(unsigned index, int64_t number) { apart[index] = number; }

  /// Returns operand `index`, annotated with its sharding, at `builder`.
  mlir::Value operand(mlir::OpBuilder &builder, unsigned index) const;
  /// Builds the broadcast of part number `part` of `value`, operand `index`.
  mlir::Value broadcast(mlir::OpBuilder &builder, unsigned index,
                        mlir::Value value, int64_t part) const;
  /// Builds step number `part` on its operands, and adds it to the sum so far.
  void step(mlir::OpBuilder &builder, llvm::ArrayRef<mlir::Value> operands,
            int64_t part);
  /// Replaces the product by the result of the steps.
  void finish(mlir::OpBuilder &builder);

private:
  llvm::LogicalResult findTable(ShardingAttr sharding, unsigned tensor,
                                int64_t dim);
  llvm::LogicalResult findFactor();
  mlir::Location location(llvm::ArrayRef<AxisRef> axes) const;
  mlir::Value constrain(mlir::OpBuilder &builder, mlir::Value value,
                        ShardingAttr sharding) const;

  mlir::Operation *op;
  Mesh mesh;
  mlir::FlatSymbolRefAttr meshName;
  unsigned seedIndex;
  /// Whether each operand belongs to an earlier seed index than the op.
  bool early[2];
  bool held[2] = {false, false};
  std::optional<int64_t> apart[2];
  /// The shardings of both operands and of the result.
  llvm::SmallVector<ShardingAttr, 3> shardings;
  /// The dimension of the steps in both operands and in the result.
  std::optional<SplitDimension> at[3];
  int64_t parts = 1;
  /// The result of the steps so far.
  mlir::Value sum;
};

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_DECOMPOSE_CONTRACTIONSTEPS_H
