//===- Pruning.h - Which weights are removed, and when ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_TRANSFORMS_PRUNING_H
#define CLEAVE_DIALECT_GRAPH_TRANSFORMS_PRUNING_H

#include "llvm/ADT/StringRef.h"
#include <optional>
#include <string>

namespace cleave::graph {

/// What `--prune` says.
struct PruneSettings {
  /// Of each four elements along the input dimension two are zero; otherwise
  /// `sparsity` of all elements of a tensor are.
  bool groups = false;
  double sparsity = 0.5;
  /// Whether the sparsity grows as `sparsity (1 - (1 - t/steps)^3)`, otherwise
  /// it is that from the first step on.
  bool cubic = false;
  /// The step after which masks are fixed.
  int64_t steps = 1;
};

/// Reads "2:4", "0.9", "0.9,cubic,steps=1000"; of text that says nothing of the
/// kind, sets `error`.
std::optional<PruneSettings> parsePruning(llvm::StringRef text,
                                          std::string &error);

/// Why `text` says no pruning; empty if it does.
std::string pruningProblem(llvm::StringRef text);

/// Why `text` names no quantization; empty if it does. There is "int8".
std::string quantizationProblem(llvm::StringRef text);

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_TRANSFORMS_PRUNING_H
