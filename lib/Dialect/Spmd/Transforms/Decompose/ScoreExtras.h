//===- ScoreExtras.h - Masks and biases in the steps of a ring --*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A mask or a bias broadcasts to the scores of attention. In a ring, block m
/// of n blocks of queries attends in step t to block (m - t) mod n of the keys.
/// One value for each key is passed around with the keys. One value for each
/// pair of positions stays with its queries: a step reads the columns of the
/// block of keys that has arrived.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_DECOMPOSE_SCOREEXTRAS_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_DECOMPOSE_SCOREEXTRAS_H

#include "cleave/Dialect/Graph/IR/Formula.h"

namespace cleave::spmd {

/// How a mask or a bias takes part in a ring.
enum class ScoreExtra {
  None, ///< there is none
  Same, ///< has no dimension of keys: the same in each step
  Keys, ///< has one value for each key, whatever the query
  Pairs ///< has values for pairs of queries and keys
};
ScoreExtra scoreExtra(mlir::Value value);

/// Whether a value like `value` is passed around with the keys.
inline bool travels(mlir::Value value) {
  return scoreExtra(value) == ScoreExtra::Keys;
}

/// Returns the columns of step `step` of `value`, a mask or bias of Pairs, of
/// shape [.., q, k]: [.., q, k / parts].
mlir::Value columnsOfStep(graph::Formula &f, mlir::Value value, int64_t parts,
                          int64_t step);

/// The inverse, for all steps: returns the rows [.., q, k] whose columns in
/// step t are `steps[t]`, each [.., q, k / parts].
mlir::Value rowsOfSteps(graph::Formula &f, llvm::ArrayRef<mlir::Value> steps);

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_DECOMPOSE_SCOREEXTRAS_H
