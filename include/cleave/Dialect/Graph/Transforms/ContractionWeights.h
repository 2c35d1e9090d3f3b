//===- ContractionWeights.h - Parameters that multiply ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Finds the parameters that forward reads as factors of contractions and as
/// nothing else, with the dimensions that are summed over: the weights that are
/// pruned and quantized. Embeddings, which are read by index, norms and biases
/// are none of them.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_TRANSFORMS_CONTRACTIONWEIGHTS_H
#define CLEAVE_DIALECT_GRAPH_TRANSFORMS_CONTRACTIONWEIGHTS_H

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include <string>

namespace cleave::graph {

/// A parameter of at least two dimensions in its framework.
struct ContractionWeight {
  mlir::BlockArgument argument;
  std::string name;
  /// The stored dimensions that contractions sum over, and all others, each in
  /// order.
  llvm::SmallVector<int64_t> inputs, outputs;
  /// Why it is no weight of contractions; empty if it is one.
  std::string reason;
};

/// All parameters of `entry`, which has one block, that have at least two
/// dimensions, in order. Only forward is looked at: neither what depends on a
/// seed or on a gradient, nor what only updates read.
std::vector<ContractionWeight> findContractionWeights(mlir::func::FuncOp entry);

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_TRANSFORMS_CONTRACTIONWEIGHTS_H
