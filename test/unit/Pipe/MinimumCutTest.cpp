//===- MinimumCutTest.cpp - The cheapest set of vertices to save ----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "MinimumCut.h"
#include "gtest/gtest.h"
#include <random>

using namespace cleave::pipe;

namespace {

TEST(MinimumCut, ChoosesTheSmallerOfAChain) {
  // 0 -> 1 -> 2, of costs 4, 1, 2.
  MinimumCut graph(3);
  graph.setCost(0, 4);
  graph.setCost(1, 1);
  graph.setCost(2, 2);
  graph.connect(0, 1);
  graph.connect(1, 2);
  graph.addSource(0);
  graph.addSink(2);
  EXPECT_EQ(graph.solve(), (std::vector<bool>{false, true, false}));
}

TEST(MinimumCut, OfEqualCutsTheOneNearestToTheSinks) {
  MinimumCut graph(2);
  graph.setCost(0, 3);
  graph.setCost(1, 3);
  graph.connect(0, 1);
  graph.addSource(0);
  graph.addSink(1);
  EXPECT_EQ(graph.solve(), (std::vector<bool>{false, true}));
}

TEST(MinimumCut, WhatNoSourceReachesIsFree) {
  MinimumCut graph(2);
  graph.setCost(1, 5);
  graph.connect(0, 1);
  graph.addSink(1);
  EXPECT_EQ(graph.solve(), (std::vector<bool>{false, false}));
}

/// Against all subsets of vertices, on random graphs.
TEST(MinimumCut, IsTheCheapestSubset) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    unsigned n = 2 + random() % 7;
    std::vector<int64_t> cost(n);
    std::vector<std::pair<unsigned, unsigned>> edges;
    std::vector<bool> source(n), sink(n);
    MinimumCut graph(n);
    for (unsigned v = 0; v < n; ++v) {
      graph.setCost(v, cost[v] = 1 + random() % 9);
      if ((source[v] = random() % 3 == 0))
        graph.addSource(v);
      if ((sink[v] = random() % 3 == 0))
        graph.addSink(v);
      for (unsigned u = 0; u < v; ++u)
        if (random() % 2) {
          edges.push_back({u, v});
          graph.connect(u, v);
        }
    }
    auto separates = [&](unsigned cut) {
      std::vector<bool> reached(n, false);
      for (unsigned v = 0; v < n; ++v) { // Edges lead upwards.
        reached[v] = source[v];
        for (auto [from, to] : edges)
          if (to == v && reached[from])
            reached[v] = true;
        if (cut >> v & 1)
          reached[v] = false;
        if (reached[v] && sink[v])
          return false;
      }
      return true;
    };
    auto total = [&](unsigned cut) {
      int64_t sum = 0;
      for (unsigned v = 0; v < n; ++v)
        if (cut >> v & 1)
          sum += cost[v];
      return sum;
    };
    int64_t best = std::numeric_limits<int64_t>::max();
    for (unsigned cut = 0; cut < 1u << n; ++cut)
      if (separates(cut))
        best = std::min(best, total(cut));
    std::vector<bool> found = graph.solve();
    unsigned mask = 0;
    for (unsigned v = 0; v < n; ++v)
      mask |= static_cast<unsigned>(found[v]) << v;
    EXPECT_TRUE(separates(mask));
    EXPECT_EQ(total(mask), best);
  }
}

} // namespace
