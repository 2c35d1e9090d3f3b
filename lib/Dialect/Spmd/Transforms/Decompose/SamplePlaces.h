//===- SamplePlaces.h - Where values hold samples ---------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A batch that is repeated, joined with another one, taken apart or regrouped
/// holds samples along one factor of a dimension: the concatenation of two
/// batches of B is a dimension of (2, B), of which B are samples.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_DECOMPOSE_SAMPLEPLACES_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_DECOMPOSE_SAMPLEPLACES_H

#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace cleave::spmd {

inline llvm::ArrayRef<int64_t> shapeOf(mlir::Value value) {
  return mlir::cast<mlir::RankedTensorType>(value.getType()).getShape();
}

/// Dimension `dim` has the factors (outer, samples, inner), major to minor.
struct SamplePlace {
  int64_t dim = 0, outer = 1, inner = 1;
  bool operator==(const SamplePlace &) const = default;
};

/// The samples among those of the arguments: a batch has the factors (outer,
/// samples, inner).
struct SampleFactors {
  int64_t outer = 1, samples = 1, inner = 1;
  bool operator==(const SampleFactors &) const = default;
};

/// How an op computes on samples.
enum class SampleMode : uint8_t {
  /// On operands as they are in the model.
  Original,
  /// On operands in the order (samples, outer, inner), along one factor.
  Ordered,
  /// As a reshape, a concatenation or a slice that moves the samples.
  Moves
};

/// What is known of one op.
struct SampleUse {
  SampleMode mode = SampleMode::Original;
  /// The factor of the op's sharding rule that holds the samples, or -1, and
  /// its factors.
  int64_t factor = -1;
  SamplePlace place;
};

/// Follows samples forward through the ops of a function of one block.
class SamplePlaces {
public:
  /// If `reorders` is false, samples are followed only as far as nothing has to
  /// be changed.
  SamplePlaces(mlir::func::FuncOp function, SampleFactors factors,
               bool reorders);

  const SampleFactors &factors() const { return known; }
  std::optional<SamplePlace> of(mlir::Value value) const {
    auto found = places.find(value);
    return found == places.end() ? std::nullopt : std::optional(found->second);
  }
  SampleUse use(mlir::Operation *op) const { return uses.lookup(op); }
  /// The operations and bytes of the ops that can be sharded along samples.
  int64_t covered() const { return work; }
  /// The reshapes, concatenations and slices after which samples are not
  /// followed.
  llvm::ArrayRef<mlir::Operation *> lost() const { return losing; }

private:
  void visit(mlir::Operation *op);
  bool visitMove(mlir::Operation *op);
  std::optional<SamplePlace> reshaped(mlir::Value input, mlir::Value output);
  std::optional<SamplePlace> joined(mlir::ValueRange inputs, int64_t dim,
                                    int64_t inner);
  std::optional<SamplePlace> sliced(mlir::Value input, int64_t offset,
                                    int64_t size, int64_t stride);
  void visitOther(mlir::Operation *op);

  SampleFactors known;
  bool reorders;
  int64_t work = 0;
  llvm::SmallVector<mlir::Operation *> losing;
  llvm::DenseMap<mlir::Value, SamplePlace> places;
  llvm::DenseMap<mlir::Operation *, SampleUse> uses;
};

/// Gives `op` the order of `place` along its factor `factor`, if its result
/// depends on the index along it: by the table `starts` of the index at which
/// each piece of `place.inner` elements begins. Changes nothing and returns
/// false where the op has no such table.
bool setSampleStarts(mlir::Operation *op, int64_t factor, mlir::Value starts);

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_DECOMPOSE_SAMPLEPLACES_H
