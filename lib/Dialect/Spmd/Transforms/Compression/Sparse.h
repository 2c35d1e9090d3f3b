//===- Sparse.h - Sums of chosen elements -----------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_COMPRESSION_SPARSE_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_COMPRESSION_SPARSE_H

#include "Compressor.h"
#include "Units.h"

namespace cleave::spmd {

/// The elements of largest magnitude of each worker and unit.
struct LargestElements {
  Units units;
  /// All terms, `[workers, units, size]`.
  mlir::Value terms;
  /// `[workers, units, count]`, from the largest magnitude down: the elements,
  /// their magnitudes, and their indices in the unit.
  mlir::Value values, magnitudes, indices;
};

LargestElements chooseLargest(WorkerTerms &terms, int64_t count);

/// The units that `terms` are compressed in: the tensor, or its shards.
Units unitsOf(const WorkerTerms &terms);

/// Every rank of a unit gets the `sent` values of all workers and adds them up
/// at the indices of `chosen`, worker by worker; a worker keeps the rest.
CompressedSum sumSparse(WorkerTerms &terms, const LargestElements &chosen,
                        mlir::Value sent);

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_COMPRESSION_SPARSE_H
