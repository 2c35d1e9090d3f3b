//===- MinimumCut.cpp - The cheapest set of vertices to save --------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "MinimumCut.h"
#include <algorithm>
#include <deque>

using namespace cleave::pipe;

void MinimumCut::addEdge(unsigned from, unsigned to, int64_t capacity) {
  edges[from].push_back(
      {to, static_cast<unsigned>(edges[to].size()), capacity});
  edges[to].push_back({from, static_cast<unsigned>(edges[from].size() - 1), 0});
}

/// Computes distances from the source in the residual graph.
bool MinimumCut::findLevels() {
  level.assign(edges.size(), -1);
  level[source] = 0;
  std::deque<unsigned> queue{source};
  while (!queue.empty()) {
    unsigned node = queue.front();
    queue.pop_front();
    for (const Edge &edge : edges[node])
      if (edge.capacity > 0 && level[edge.to] < 0) {
        level[edge.to] = level[node] + 1;
        queue.push_back(edge.to);
      }
  }
  return level[sink] >= 0;
}

/// Augments the flow along one path of increasing distance; returns 0 if there
/// is none. It is not recursive, because a model's graph is thousands of
/// vertices deep.
int64_t MinimumCut::augment() {
  std::vector<std::pair<unsigned, unsigned>> path; // (node, edge index)
  unsigned node = source;
  while (node != sink) {
    bool advanced = false;
    for (unsigned &i = next[node]; i < edges[node].size(); ++i) {
      const Edge &edge = edges[node][i];
      if (edge.capacity > 0 && level[edge.to] == level[node] + 1) {
        path.push_back({node, i});
        node = edge.to;
        advanced = true;
        break;
      }
    }
    if (advanced)
      continue;
    if (path.empty())
      return 0;
    // A dead end: step back past it.
    node = path.back().first;
    path.pop_back();
    ++next[node];
  }
  int64_t flow = kInfinite;
  for (auto [from, i] : path)
    flow = std::min(flow, edges[from][i].capacity);
  for (auto [from, i] : path) {
    Edge &edge = edges[from][i];
    edge.capacity -= flow;
    edges[edge.to][edge.reverse].capacity += flow;
  }
  return flow;
}

std::vector<bool> MinimumCut::solve() {
  while (findLevels()) {
    next.assign(edges.size(), 0);
    while (augment() > 0)
      ;
  }
  // The vertices that still reach the sink; the cut is on their border.
  std::vector<bool> reaches(edges.size(), false);
  reaches[sink] = true;
  std::deque<unsigned> queue{sink};
  while (!queue.empty()) {
    unsigned node = queue.front();
    queue.pop_front();
    for (const Edge &edge : edges[node])
      // The opposite edge leads from edge.to to node.
      if (!reaches[edge.to] && edges[edge.to][edge.reverse].capacity > 0) {
        reaches[edge.to] = true;
        queue.push_back(edge.to);
      }
  }
  std::vector<bool> cut(source / 2, false);
  for (unsigned v = 0; v < cut.size(); ++v)
    cut[v] = hasCost[v] && !reaches[entry(v)] && reaches[exit(v)];
  return cut;
}
