//===- Mover.h - Brings values to other shardings ---------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_MOVER_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_MOVER_H

#include "cleave/Dialect/Spmd/IR/Reshard.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"

namespace cleave::spmd {

/// Who wants a value moved.
struct MoveCause {
  mlir::Operation *op;
  /// `operand 1 of 'graph.linear'`
  std::string what;
  /// Which annotation is behind a movement along some axes.
  llvm::function_ref<std::string(llvm::ArrayRef<AxisRef>)> annotation = {};
};

/// The local values of one function, and the movements between them.
///
/// A moved value serves all that want it in one era. What crosses from an era
/// to a later one does so in its smallest form: reductions, exchanges and
/// slices belong to the era of the value, and what makes it larger again is
/// done anew, behind a `spmd.barrier`, in each era that wants it.
class Mover {
public:
  Mover(mlir::OpBuilder &builder, mlir::FlatSymbolRefAttr meshName,
        const Mesh &mesh)
      : builder(builder), meshName(meshName), mesh(mesh), planner(mesh) {}

  /// Makes a local value known.
  void define(mlir::Value local, const Sharding &sharding,
              mlir::RankedTensorType global, unsigned era);
  /// The seed that begins the next era.
  void beginEra(mlir::Value seed) { seeds.push_back(seed); }

  const Sharding &shardingOf(mlir::Value local) const {
    return values.find(local)->second.sharding;
  }

  /// The value of `local` with sharding `to`, as `cause`, of era `era`, wants
  /// it. Returns null and sets `error` where there is no way. New ops that make
  /// a value larger stand where the builder does, others behind their operand.
  mlir::Value move(mlir::Value local, const Sharding &to, unsigned era,
                   const MoveCause &cause, std::string &error);

private:
  struct Known {
    Sharding sharding;
    mlir::RankedTensorType global;
    unsigned era = 0;
    /// What it was moved from, or null.
    mlir::Value origin;
  };

  mlir::Value smallestForm(mlir::Value value);
  mlir::Value step(mlir::Value value, const Move &move, bool here,
                   const MoveCause &cause);
  mlir::Value barrier(mlir::Value value, unsigned era, mlir::Location loc);
  double elements(const Known &known);
  void explain(mlir::Value moved, const Sharding &from, const MoveCause &cause);

  mlir::OpBuilder &builder;
  mlir::FlatSymbolRefAttr meshName;
  const Mesh &mesh;
  ReshardPlanner planner;
  llvm::DenseMap<mlir::Value, Known> values;
  llvm::SmallVector<mlir::Value, 1> seeds;
  /// Moved values, by what was moved and the movement.
  std::map<std::pair<const void *, std::string>, mlir::Value> moved;
  /// Barriers, by the value behind them and the era.
  std::map<std::pair<const void *, unsigned>, mlir::Value> barriers;
};

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_MOVER_H
