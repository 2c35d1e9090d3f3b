//===- Masks.h - The keys that attention sees -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A boolean mask is a conjunction of terms. Each term becomes, in this order
/// of preference, nothing (if all true), `causal`, `window`, `segments`, or
/// part of the `mask` operand. Terms that depend on no input are evaluated, so
/// that all spellings of a causal mask are recognised; chunks of positions that
/// see each other are segments that are constant.
///
/// An additive mask is a bias: its numbers are added to the scores. -inf masks
/// a key. A finite number does not: if all keys of a row have it, the softmax
/// of the row depends on the scores, or is uniform if the sum rounds the scores
/// away. A finite number is treated as a mask only if the result is bitwise the
/// same: the number is so low that exp gives 0 beside any visible key, and
/// every row is known to have a visible key. A bias that is not known remains a
/// bias.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_RAISE_MASKS_H
#define CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_RAISE_MASKS_H

#include "Folding.h"
#include "KnownValues.h"

namespace cleave::graph {

/// The keys that are visible to each query, and the biases of their scores.
struct Visibility {
  bool causal = false;
  std::optional<int64_t> window;
  mlir::Value segments;
  llvm::SmallVector<mlir::Value> masks, biases;
};

/// A value times a number.
struct Scaled {
  mlir::Value value;
  double factor = 1;
};

/// `factor * value` if it is one number that may mask keys.
std::optional<double> maskingNumber(mlir::Value value, double factor = 1);

/// Collects the masks and biases of scores [b, a, q, k]; `finish` is called
/// last.
class MaskAnalysis {
public:
  MaskAnalysis(Folding &folding, KnownValues &known,
               llvm::ArrayRef<int64_t> shape)
      : b(folding), known(known), shape(shape) {}

  /// Masks later keys; those that are `window` positions back; those of other
  /// segments.
  void causal();
  void window(int64_t window);
  void segments(mlir::Value ids);

  /// Adds the condition `value`, or its negation: keys are visible where it is
  /// true.
  void mask(mlir::Value value, bool negated = false);

  /// Adds it to the scores.
  void bias(mlir::Value value, double factor = 1);

  /// Replaces scores by `number` where `condition`, or its negation, is false;
  /// returns whether an equivalent mask is possible, which `finish` decides.
  bool replaced(mlir::Value condition, bool negated, double number);

  /// Decides whether finite numbers mask keys. Returns null if they replace
  /// scores without an equivalent mask.
  const Visibility *finish();

private:
  /// A term that masks keys by a finite number, in rows with other visible
  /// keys.
  struct Finite {
    /// The visible keys, as elements and as a condition.
    Elements kept;
    mlir::Value condition;
    bool negated;
    /// The bias of the visible keys' scores.
    std::optional<Scaled> rest;
    /// The bias of all scores, used if no mask is equivalent; none if the
    /// number replaces the scores.
    std::optional<Scaled> whole;
  };

  void narrow(int64_t window);
  void seesOwnKey();
  void addMask(mlir::Value value, bool negated);
  bool addKnown(mlir::Value value, bool negated);
  struct Pairs;
  bool addPattern(const Elements &visible);
  bool addBand(const Pairs &pairs);
  bool addChunks(const Pairs &pairs);
  bool addSegments(mlir::Value value, bool negated);
  mlir::Value positions(mlir::Value value, size_t dim);
  bool containsMask(mlir::Value value);
  void addBias(mlir::Value value, double factor);
  bool addKnownBias(mlir::Value value, double factor);
  bool addSelect(mlir::Value value, double factor);
  bool addFinite(mlir::Value condition, bool negated,
                 std::optional<Scaled> rest, std::optional<Scaled> whole);
  void maskKeys(const Elements &kept, mlir::Value condition, bool negated,
                std::optional<Scaled> rest);
  bool everyRowKeepsAKey();

  Folding &b;
  KnownValues &known;
  llvm::SmallVector<int64_t> shape;
  Visibility result;
  /// Conditions that are known, and whether there are unknown conditions or
  /// biases, which may mask any key.
  std::vector<Elements> conditions;
  bool unknown = false;
  std::vector<Finite> finite;
  /// Whether there is a condition under which only the key at each query's own
  /// position is known to be visible.
  bool ownKey = false;
};

} // namespace cleave::graph

#endif // CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_RAISE_MASKS_H
