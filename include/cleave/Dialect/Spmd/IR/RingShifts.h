//===- RingShifts.h - Rotations of values around rings ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Counts how often values are rotated around rings, for verification. A
/// rotated value is another tensor of the same sharding, so that shardings
/// alone do not show whether the operands of an op belong together.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_IR_RINGSHIFTS_H
#define CLEAVE_DIALECT_SPMD_IR_RINGSHIFTS_H

#include "cleave/Dialect/Spmd/IR/OpFactors.h"
#include "cleave/Dialect/Spmd/IR/Resharding/Collective.h"
#include "mlir/IR/Operation.h"

namespace cleave::spmd {

/// The rotations of the values of one function. Each method records those of
/// the results of an op, or returns an error, as the predicate of a sentence
/// about the op.
class RingShifts {
public:
  explicit RingShifts(const Mesh &mesh) : mesh(mesh) {}

  /// Records the result of a collective.
  std::optional<std::string> move(mlir::Operation *op, const Collective &move);
  /// Records the result of an op that forwards its first operand.
  void same(mlir::Operation *op);
  /// Records the results of an op of `rule`, whose factors have the axes
  /// `axes`.
  std::optional<std::string> op(mlir::Operation *op,
                                const graph::ShardingRule &rule,
                                const FactorAxes &axes);
  /// Checks a result of the function, which must not be rotated.
  std::optional<std::string> result(mlir::Value value);

private:
  /// The number of rotations along `ring`, modulo its size.
  struct RingShift {
    AxisList ring;
    int64_t steps = 0;
    bool operator==(const RingShift &other) const {
      return steps == other.steps && ring == other.ring;
    }
    std::string str() const;
  };
  RingShift make(llvm::ArrayRef<AxisRef> ring, int64_t steps) const;
  /// Returns nothing for rotations around different rings.
  std::optional<RingShift> sum(const RingShift &a, const RingShift &b) const;

  const Mesh &mesh;
  /// The values that are rotated.
  llvm::DenseMap<mlir::Value, RingShift> shifts;
};

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_IR_RINGSHIFTS_H
