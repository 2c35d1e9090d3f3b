//===- SpmdOps.h - The spmd dialect -----------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_IR_SPMDOPS_H
#define CLEAVE_DIALECT_SPMD_IR_SPMDOPS_H

#include "cleave/Dialect/Graph/IR/Attributes/AttributeTable.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Spmd/IR/Axes.h"
#include "cleave/Dialect/Spmd/IR/Resharding/Permutation.h"
#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

namespace cleave::spmd {

/// Registers the models by which collectives forward indices unchanged.
void registerIndexUseModels(mlir::DialectRegistry &registry);

/// The names of the attributes of this dialect on functions and other ops.
inline constexpr llvm::StringLiteral kShardingAttr = "spmd.sharding";
/// On an op of one result, until recipes are applied: the dimension that holds
/// samples in another order than the arguments, and is sharded as theirs are.
inline constexpr llvm::StringLiteral kSamplesAttr = "spmd.samples";
/// On an attention: the axis of its ring, along which keys and values rotate.
inline constexpr llvm::StringLiteral kRingAttr = "spmd.ring";
/// On a contraction that is computed in steps: the shardings of its two
/// operands and of its result.
inline constexpr llvm::StringLiteral kStepsAttr = "spmd.steps";
/// On an op whose operands may be broadcast in steps: the numbers of the
/// operands whose parts are kept in memory for later products that read the
/// same parts and do not run in lockstep with this op.
inline constexpr llvm::StringLiteral kHeldAttr = "spmd.held";
/// On an attention: the axis of its two rings. Keys rotate first, for complete
/// rows of scores, then values.
inline constexpr llvm::StringLiteral kTwoRingAttr = "spmd.two_ring";
inline constexpr llvm::StringLiteral kShardingsAttr = "spmd.shardings";
inline constexpr llvm::StringLiteral kGlobalTypeAttr = "spmd.global_type";
inline constexpr llvm::StringLiteral kGlobalTypesAttr = "spmd.global_types";

/// The attributes of this dialect.
llvm::ArrayRef<graph::AttributeRow> attributeTable();

/// The sharding of one dimension, as stored in the attribute.
struct DimSharding {
  llvm::ArrayRef<AxisRef> axes;
  /// Propagation may add axes.
  bool open = false;

  bool operator==(const DimSharding &other) const = default;
  DimSharding allocateInto(mlir::StorageUniquer::StorageAllocator &a) const {
    return {copyAll(a, axes), open};
  }
};

inline llvm::hash_code hash_value(const DimSharding &dim) {
  return llvm::hash_combine(
      llvm::hash_combine_range(dim.axes.begin(), dim.axes.end()), dim.open);
}

} // namespace cleave::spmd

#include "cleave/Dialect/Spmd/IR/SpmdDialect.h.inc"

#define GET_ATTRDEF_CLASSES
#include "cleave/Dialect/Spmd/IR/SpmdAttributes.h.inc"

#include "cleave/Dialect/Spmd/IR/SpmdInterfaces.h.inc"

#define GET_OP_CLASSES
#include "cleave/Dialect/Spmd/IR/SpmdOps.h.inc"

namespace cleave::spmd {

/// Returns the mesh `name` as seen from `from`, or null.
MeshOp lookupMesh(mlir::Operation *from, mlir::FlatSymbolRefAttr name);

/// Returns the only mesh of `module`, or null. Reports no error.
MeshOp findMesh(mlir::ModuleOp module);

/// Returns the sharding of `value` in a partitioned function, read from the
/// attribute of the op or argument that defines it; nothing without one.
std::optional<Sharding> writtenSharding(mlir::Value value);
/// The same as the attribute, which names the mesh, too; null without one.
ShardingAttr writtenShardingAttr(mlir::Value value);
/// Returns the global type (before partitioning) of `value` in a partitioned
/// function, read from the same place; null without one.
mlir::RankedTensorType writtenGlobalType(mlir::Value value);

/// Sets the sharding and the global type of the only result of `op`.
void annotate(mlir::Operation *op, ShardingAttr sharding, mlir::Type global);

/// Checks a sharding of a tensor of type `type`: its rank is that of the
/// tensor, and its axes are axes of the mesh that do not overlap. Errors are
/// reported by `emitError`; the mesh is looked up from `from`.
llvm::LogicalResult
verifySharding(llvm::function_ref<mlir::InFlightDiagnostic()> emitError,
               mlir::Operation *from, ShardingAttr sharding, mlir::Type type);

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_IR_SPMDOPS_H
