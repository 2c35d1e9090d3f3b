//===- MinimumCut.h - The cheapest set of vertices to save ------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_RECOMPUTE_MINIMUMCUT_H
#define CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_RECOMPUTE_MINIMUMCUT_H

#include "llvm/ADT/SmallVector.h"
#include <cstdint>
#include <limits>
#include <vector>

namespace cleave::pipe {

/// A minimum vertex cut between sources and sinks, by Dinic's algorithm. Each
/// vertex is an edge from its entry to its exit, whose capacity is the vertex's
/// cost.
class MinimumCut {
public:
  static constexpr int64_t kInfinite = std::numeric_limits<int64_t>::max() / 4;

  explicit MinimumCut(unsigned vertices)
      : edges(2 * vertices + 2), hasCost(vertices, false) {
    source = 2 * vertices;
    sink = source + 1;
  }

  /// Sets a positive cost; a vertex without a cost is never in the cut.
  void setCost(unsigned vertex, int64_t cost) {
    hasCost[vertex] = true;
    addEdge(entry(vertex), exit(vertex), cost);
  }
  /// Sets the cost of a vertex behind the cut: one that is needed and made from
  /// others.
  void setMakingCost(unsigned vertex, int64_t cost) {
    addEdge(source, entry(vertex), cost);
  }
  /// Adds a dependency of `to` on `from`.
  void connect(unsigned from, unsigned to) {
    addEdge(exit(from), entry(to), kInfinite);
  }
  void addSource(unsigned vertex) { addEdge(source, entry(vertex), kInfinite); }
  void addSink(unsigned vertex) { addEdge(exit(vertex), sink, kInfinite); }

  /// Returns the vertices of the minimum cut that is nearest to the sinks.
  std::vector<bool> solve();

private:
  struct Edge {
    unsigned to;
    /// Index of the opposite edge in `edges[to]`.
    unsigned reverse;
    int64_t capacity;
  };

  static unsigned entry(unsigned vertex) { return 2 * vertex; }
  static unsigned exit(unsigned vertex) { return 2 * vertex + 1; }
  void addEdge(unsigned from, unsigned to, int64_t capacity);
  bool findLevels();
  int64_t augment();

  std::vector<llvm::SmallVector<Edge, 4>> edges;
  std::vector<bool> hasCost;
  std::vector<int> level;
  std::vector<unsigned> next;
  unsigned source, sink;
};

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_RECOMPUTE_MINIMUMCUT_H
