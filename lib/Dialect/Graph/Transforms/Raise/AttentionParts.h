//===- AttentionParts.h - Of which attention is built -------------*- C++
//-*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_RAISE_ATTENTIONPARTS_H
#define CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_RAISE_ATTENTIONPARTS_H

#include "Masks.h"
#include "cleave/Dialect/Graph/IR/TensorType.h"

namespace cleave::graph {

/// A condition, or its negation, where it is false, in which scores are
/// replaced by a number.
struct Replacement {
  mlir::Value condition;
  bool negated;
  double number;
};

/// An attention to be built of queries [b, a, q, d], keys [b, g, k, d] and
/// values [b, g, k, e].
struct AttentionParts {
  mlir::Value query, key, value;
  double scale = 1;
  llvm::SmallVector<Scaled> biases;
  llvm::SmallVector<Replacement> replaced;
  /// Of an op that is one already.
  mlir::Value mask, segments;
  bool causal = false;
  std::optional<int64_t> window;
  mlir::Value rng;
  double dropout = 0;
  int64_t dropoutId = 0;
};

using Shape = llvm::SmallVector<int64_t>;

inline llvm::ArrayRef<int64_t> shapeOf(mlir::Value value) {
  return tensorTypeOf(value).getShape();
}

/// `a` followed by `b`.
Shape joined(llvm::ArrayRef<int64_t> a, llvm::ArrayRef<int64_t> b);

/// (x, f) if `value` is x scaled by the number f, by a mul or a div.
std::optional<Scaled> scaledOnce(mlir::Value value);

/// The output of the attention, whose scale is also that of its queries, whose
/// heads of keys and values are not repeated, and whose masks are what their
/// analysis says. Null if they cannot be expressed as attention to a part of
/// the keys.
mlir::Value buildAttention(Folding &b, KnownValues &known,
                           AttentionParts parts);

} // namespace cleave::graph

#endif // CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_RAISE_ATTENTIONPARTS_H
