//===- Resharder.h - Collectives that reshard values ------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_PARTITION_RESHARDER_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_PARTITION_RESHARDER_H

#include "cleave/Dialect/Spmd/IR/Resharding/Reshard.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"

namespace cleave::spmd {

/// The reason for a reshard.
struct ReshardCause {
  /// The op that needs the value in another sharding.
  mlir::Operation *op;
  /// The operand or result, such as `operand 1 of 'graph.linear'`.
  std::string what;
  /// Returns the annotation that caused a collective over some axes.
  llvm::function_ref<std::string(llvm::ArrayRef<AxisRef>)> annotation = {};
};

/// Reshards the local values of one function.
///
/// All readers of one seed index share a resharded value. A value that is read
/// at a later seed index crosses to it in its smallest form. Reductions,
/// exchanges and slices belong to the seed index of the value. Collectives that
/// enlarge it again are repeated for each seed index of a reader, after an
/// `spmd.barrier`.
class Resharder {
public:
  Resharder(mlir::OpBuilder &builder, mlir::FlatSymbolRefAttr meshName,
            const Mesh &mesh)
      : builder(builder), meshName(meshName), mesh(mesh), planner(mesh) {}

  /// Adds a local value with its sharding, global type and seed index.
  void define(mlir::Value local, const Sharding &sharding,
              mlir::RankedTensorType global, unsigned seedIndex);
  /// Adds the seed of the next seed index.
  void addSeed(mlir::Value seed) { seeds.push_back(seed); }

  const Sharding &shardingOf(mlir::Value local) const {
    return values.find(local)->second.sharding;
  }

  /// Why no reshard exists.
  struct Refusal {
    std::string text;
    /// Whether it is that data would move along a sequential axis.
    bool alongSequential = false;
  };

  /// Returns `local` resharded to `to`, for the op `cause` of seed index
  /// `seedIndex`. Returns null and sets `refusal` where no reshard exists. New
  /// ops that enlarge a value are inserted at the builder's position, others
  /// after their operand.
  mlir::Value move(mlir::Value local, const Sharding &to, unsigned seedIndex,
                   const ReshardCause &cause, Refusal &refusal);

private:
  struct Known {
    Sharding sharding;
    mlir::RankedTensorType global;
    unsigned seedIndex = 0;
    /// The value before the collective that produced this one, or null.
    mlir::Value origin;
  };

  mlir::Value smallestForm(mlir::Value value);
  mlir::Value step(mlir::Value value, const Collective &move, bool here,
                   const ReshardCause &cause);
  mlir::Value barrier(mlir::Value value, unsigned seedIndex,
                      mlir::Location loc);
  double elements(const Known &known);
  void explain(mlir::Value moved, const Sharding &from,
               const ReshardCause &cause);

  mlir::OpBuilder &builder;
  mlir::FlatSymbolRefAttr meshName;
  const Mesh &mesh;
  ReshardPlanner planner;
  llvm::DenseMap<mlir::Value, Known> values;
  llvm::SmallVector<mlir::Value, 1> seeds;
  /// Results of collectives, by operand and collective.
  std::map<std::pair<const void *, std::string>, mlir::Value> moved;
  /// Barriers, by their operand and seed index.
  std::map<std::pair<const void *, unsigned>, mlir::Value> barriers;
};

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_PARTITION_RESHARDER_H
