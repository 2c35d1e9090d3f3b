//===- Turns.h - How far values were passed on around rings -----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A value whose parts were passed on is another tensor of the same sharding:
/// only by counting can be told that what meets belongs together.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_TURNS_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_TURNS_H

#include "cleave/Dialect/Spmd/IR/Moves.h"
#include "cleave/Dialect/Spmd/IR/OpFactors.h"
#include "mlir/IR/Operation.h"

namespace cleave::spmd {

/// The steps that the values of one function have done. Each method notes those
/// of the op's results, or returns what is wrong, as the rest of a sentence
/// about the op.
class Turns {
public:
  explicit Turns(const Mesh &mesh) : mesh(mesh) {}

  std::optional<std::string> move(mlir::Operation *op, const Move &move);
  /// An op that gives its first operand on.
  void same(mlir::Operation *op);
  /// An op of `rule`, whose factors are split by `axes`.
  std::optional<std::string> op(mlir::Operation *op,
                                const graph::ShardingRule &rule,
                                const FactorAxes &axes);
  /// What a function gives back has gone all the way around.
  std::optional<std::string> result(mlir::Value value);

private:
  /// How often parts went on along `ring`; nothing where they are at home.
  struct Turn {
    AxisList ring;
    int64_t steps = 0;
    bool operator==(const Turn &other) const {
      return steps == other.steps && ring == other.ring;
    }
    std::string str() const;
  };
  Turn make(llvm::ArrayRef<AxisRef> ring, int64_t steps) const;
  /// Nothing where the two go around different rings.
  std::optional<Turn> sum(const Turn &a, const Turn &b) const;

  const Mesh &mesh;
  /// Values that are not at home.
  llvm::DenseMap<mlir::Value, Turn> turns;
};

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_TURNS_H
