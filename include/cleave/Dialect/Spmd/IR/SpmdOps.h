//===- SpmdOps.h - The spmd dialect -----------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_IR_SPMDOPS_H
#define CLEAVE_DIALECT_SPMD_IR_SPMDOPS_H

#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Spmd/IR/Axes.h"
#include "cleave/Dialect/Spmd/IR/Permutation.h"
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

/// The names of the attributes of this dialect on functions and other ops.
inline constexpr llvm::StringLiteral kShardingAttr = "spmd.sharding";
/// On an attention: the axis around which its keys travel.
inline constexpr llvm::StringLiteral kRingAttr = "spmd.ring";
/// On a contraction that is computed in steps: the shardings of its operands
/// and of its result.
inline constexpr llvm::StringLiteral kStepsAttr = "spmd.steps";
/// On an op whose operands may be received in steps: the numbers of those that
/// are then kept for later products that read the same, which do not go with it
/// in lockstep.
inline constexpr llvm::StringLiteral kHeldAttr = "spmd.held";
/// The same, where values travel another ring, behind whole rows of scores.
inline constexpr llvm::StringLiteral kTwoRingAttr = "spmd.two_ring";
inline constexpr llvm::StringLiteral kShardingsAttr = "spmd.shardings";
inline constexpr llvm::StringLiteral kGlobalTypeAttr = "spmd.global_type";
inline constexpr llvm::StringLiteral kGlobalTypesAttr = "spmd.global_types";

/// How one dimension is split, as the attribute stores it.
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
#include "cleave/Dialect/Spmd/IR/SpmdEnums.h.inc"

#define GET_ATTRDEF_CLASSES
#include "cleave/Dialect/Spmd/IR/SpmdAttributes.h.inc"

#include "cleave/Dialect/Spmd/IR/SpmdInterfaces.h.inc"

#define GET_OP_CLASSES
#include "cleave/Dialect/Spmd/IR/SpmdOps.h.inc"

namespace cleave::spmd {

/// The mesh named by a sharding used at `from`, or null.
MeshOp lookupMesh(mlir::Operation *from, mlir::FlatSymbolRefAttr name);

/// The one mesh of `module`, or null (no error is reported).
MeshOp findMesh(mlir::ModuleOp module);

/// Where `value` of a partitioned function lies, as it is written on the op or
/// the argument that gives it.
std::optional<Sharding> writtenSharding(mlir::Value value);
/// The type of the whole tensor of which `value` is a shard, likewise; null
/// where it is not written.
mlir::RankedTensorType writtenGlobalType(mlir::Value value);

/// Notes on an op with one result its sharding and its type as a whole tensor.
void annotate(mlir::Operation *op, ShardingAttr sharding, mlir::Type global);

/// Checks a sharding for a tensor of type `type`: axes of the mesh, each used
/// once.
llvm::LogicalResult
verifySharding(llvm::function_ref<mlir::InFlightDiagnostic()> emitError,
               mlir::Operation *from, ShardingAttr sharding, mlir::Type type);

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_IR_SPMDOPS_H
