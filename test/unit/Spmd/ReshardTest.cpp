//===- ReshardTest.cpp - The cheapest way between two shardings -----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Spmd/IR/Resharding/Reshard.h"
#include "../TestAll.h"
#include "cleave/Testing/RandomReshard.h"
#include "gtest/gtest.h"
#include <cstdlib>
#include <functional>
#include <numeric>
#include <set>

using namespace cleave;
using namespace cleave::spmd;

namespace {

constexpr int64_t kBytes = 4;

Sharding makeSharding(std::initializer_list<AxisList> dims,
                      std::initializer_list<PartialAxis> partial = {}) {
  Sharding sharding = Sharding::replicated(dims.size());
  sharding.dims.assign(dims.begin(), dims.end());
  sharding.partial.assign(partial.begin(), partial.end());
  return sharding;
}

/// `all_to_all 12, all_gather 36`
std::string text(const ReshardPlan &plan) {
  std::string result;
  for (const Collective &move : plan.moves) {
    char elements[32];
    std::snprintf(elements, sizeof(elements), " %g", move.elements);
    result += (result.empty() ? "" : ", ") +
              stringifyCollectiveKind(move.kind).str() + elements;
  }
  return plan.error.empty() ? result : plan.error;
}

std::string show(const RandomReshard &reshard) {
  std::string result;
  for (const MeshAxis &axis : reshard.mesh.axes)
    result += axis.name + "=" + std::to_string(axis.size) + " ";
  for (int64_t size : reshard.shape)
    result += std::to_string(size) + "x ";
  return result + reshard.from.str() + " -> " + reshard.to.str();
}

//===----------------------------------------------------------------------===//
// Chosen cases
//===----------------------------------------------------------------------===//

struct Chosen : testing::Test {
  Chosen() {
    mesh.axes = {{"mb", 3, true}, {"x", 2}, {"y", 4}, {"z", 4}, {"one", 1}};
  }
  std::string plan(const Sharding &from, const Sharding &to,
                   llvm::SmallVector<int64_t> shape = {48, 48}) {
    return text(planReshard(mesh, from, to, shape, kBytes));
  }
  Mesh mesh;
  AxisList x{{"x"}}, y{{"y"}}, z{{"z"}}, mb{{"mb"}}, none;
  AxisList xy{{"x"}, {"y"}}, yx{{"y"}, {"x"}};
};

// 48 * 48 = 2304 elements; a half is 1152, a quarter 576.
TEST_F(Chosen, OneMovement) {
  Sharding whole = makeSharding({none, none});
  EXPECT_EQ(plan(whole, whole), "");
  EXPECT_EQ(plan(whole, makeSharding({x, y})), "slice 0");
  EXPECT_EQ(plan(makeSharding({x, none}), whole), "all_gather 1152");
  EXPECT_EQ(plan(makeSharding({x, y}), whole), "all_gather 2016");
  EXPECT_EQ(plan(makeSharding({x, none}), makeSharding({none, x})),
            "all_to_all 576");
  EXPECT_EQ(plan(makeSharding({y, none}), makeSharding({z, none})),
            "permute 576");
  EXPECT_EQ(plan(makeSharding({xy, none}), makeSharding({yx, none})),
            "permute 288");
  EXPECT_EQ(plan(makeSharding({none, none}, {{{"x"}}}), whole),
            "all_reduce 2304");
  EXPECT_EQ(
      plan(makeSharding({none, none}, {{{"y"}}}), makeSharding({y, none})),
      "reduce_scatter 1728");
  EXPECT_EQ(plan(makeSharding({none, none}, {{{"x"}}, {{"y"}}}), whole),
            "all_reduce 4032");
  EXPECT_EQ(plan(makeSharding({none, none}, {{{"x"}}, {{"y"}}}),
                 makeSharding({none, none}, {{{"y"}}})),
            "all_reduce 2304");
}

TEST_F(Chosen, NeverThroughTheWholeWhereAShorterWayExists) {
  // The common major axis stays.
  EXPECT_EQ(plan(makeSharding({xy, none}), makeSharding({x, none})),
            "all_gather 864");
  EXPECT_EQ(plan(makeSharding({xy, none}), makeSharding({x, y})),
            "all_to_all 216");
  // The axis to gather is not the minor one.
  EXPECT_EQ(plan(makeSharding({xy, none}), makeSharding({y, none})),
            "permute 288, all_gather 288");
  // Another axis, of another size.
  EXPECT_EQ(plan(makeSharding({y, none}), makeSharding({x, none})),
            "permute 576, all_gather 576");
  EXPECT_EQ(plan(makeSharding({x, none}), makeSharding({y, none})),
            "slice 0, permute 576");
  // A reduction comes before what makes the tensor larger, and is scattered
  // where the target is split.
  EXPECT_EQ(plan(makeSharding({none, none}, {{{"x"}}, {{"y"}}}),
                 makeSharding({none, y})),
            "reduce_scatter 1728, all_reduce 576");
  EXPECT_EQ(
      plan(makeSharding({none, none}, {{{"y"}}}), makeSharding({x, none})),
      "slice 0, all_reduce 1728");
}

TEST_F(Chosen, DigitsOfAnAxis) {
  AxisList high{{"y", 1, 2}}, low{{"y", 2, 2}};
  EXPECT_EQ(plan(makeSharding({y, none}), makeSharding({high, none})),
            "all_gather 576");
  EXPECT_EQ(plan(makeSharding({y, none}), makeSharding({high, low})),
            "all_to_all 288");
  EXPECT_EQ(plan(makeSharding({high, none}), makeSharding({low, none})),
            "permute 1152");
  EXPECT_EQ(plan(makeSharding({none, none}, {{{"y"}}}),
                 makeSharding({low, none}, {{{"y", 1, 2}}})),
            "reduce_scatter 1152");
}

TEST_F(Chosen, SequentialAxes) {
  AxisList mbx{{"mb"}, {"x"}}, xmb{{"x"}, {"mb"}};
  Sharding whole = makeSharding({none, none});
  // Along with it, other axes move as ever.
  EXPECT_EQ(plan(makeSharding({mbx, none}), makeSharding({mb, none})),
            "all_gather 384");
  EXPECT_EQ(plan(whole, makeSharding({mbx, none})), "slice 0");
  // It accumulates first, and sends nothing by itself.
  EXPECT_EQ(plan(makeSharding({none, none}, {{{"x"}}, {{"mb"}}}), whole),
            "all_reduce 0, all_reduce 2304");
  EXPECT_EQ(plan(makeSharding({none, none}, {{{"x"}}, {{"mb"}}}),
                 makeSharding({x, none}, {{{"mb"}}})),
            "reduce_scatter 1152");
  EXPECT_EQ(plan(makeSharding({mb, none}), whole),
            "data would have to move along the sequential axis \"mb\"");
  EXPECT_EQ(plan(makeSharding({xmb, none}), makeSharding({mb, none})),
            "data would have to move along the sequential axis \"mb\"");
}

TEST_F(Chosen, AxesOfSizeOneMoveNothing) {
  AxisList onex{{"one"}, {"x"}}, one{{"one"}};
  EXPECT_EQ(plan(makeSharding({onex, none}), makeSharding({x, none})), "");
  EXPECT_EQ(plan(makeSharding({onex, none}), makeSharding({one, none})),
            "all_gather 1152");
  EXPECT_EQ(
      plan(makeSharding({none, none}, {{{"one"}}}), makeSharding({none, none})),
      "");
}

TEST_F(Chosen, WhatCannotBe) {
  Sharding whole = makeSharding({none, none});
  EXPECT_EQ(plan(whole, makeSharding({none, none}, {{{"x"}}})),
            "no collective makes a value partial");
  EXPECT_EQ(plan(makeSharding({none, none}, {{{"x"}, ReductionKind::Max}}),
                 makeSharding({none, none}, {{{"x"}}})),
            "no collective makes a value partial");
  EXPECT_EQ(
      plan(makeSharding({none, none}, {{{"x"}}, {{"y"}, ReductionKind::Max}}),
           whole),
      "it is partial by two reductions, whose order is unknown");
  EXPECT_EQ(plan(whole, makeSharding({none, y}), {48, 6}),
            "dimension 1 of size 6 is not divisible by 4");
}

// Digits that cross cannot be exchanged one by one: a way is found all the
// same.
TEST_F(Chosen, CrossingDigits) {
  mesh.axes = {{"x", 12}};
  EXPECT_EQ(
      plan(makeSharding({{{"x", 1, 4}}}), makeSharding({{{"x", 1, 6}}}), {12}),
      "all_gather 9, slice 0");
  EXPECT_EQ(plan(makeSharding({{}, {{"x", 1, 2}}}),
                 makeSharding({{{"x", 3, 2}}, {}})),
            "all_gather 1152, slice 0");
}

//===----------------------------------------------------------------------===//
// Drawn cases
//===----------------------------------------------------------------------===//

double elementsSent(const Mesh &mesh, const Collective &move, double before,
                    double after) {
  AxisList axes = move.axes;
  for (const AxisList &list : move.dims)
    axes.append(list.begin(), list.end());
  double n = mesh.size(axes), share = (n - 1) / n;
  switch (move.kind) {
  case CollectiveKind::Slice:
    return 0;
  case CollectiveKind::AllReduce:
    return 2 * share * before;
  case CollectiveKind::ReduceScatter:
  case CollectiveKind::AllToAll:
    return share * before;
  case CollectiveKind::AllGather:
    return share * after;
  case CollectiveKind::Permute:
  case CollectiveKind::Rotate:
    return before;
  case CollectiveKind::Broadcast:
  case CollectiveKind::Reduce:
    return share * before;
  case CollectiveKind::Send:
  case CollectiveKind::Receive:
  case CollectiveKind::AllToAllRows:
    break;
  }
  return 0;
}

double localElements(const RandomReshard &reshard, const Sharding &sharding) {
  unsigned dim;
  auto shape = localShape(reshard.mesh, sharding, reshard.shape, dim);
  EXPECT_TRUE(shape) << show(reshard);
  double result = 1;
  for (int64_t size : *shape)
    result *= size;
  return result;
}

/// One whose sizes divide: those of others are padded before a plan is made.
RandomReshard drawEven(uint64_t seed, int64_t maxPositions = 16) {
  for (;; seed += uint64_t(1) << 32)
    if (RandomReshard reshard = drawReshard(seed, maxPositions);
        !reshard.isUneven())
      return reshard;
}

TEST(DrawnReshards, EachMoveLeadsToTheNextAndTheLastToTheTarget) {
  int64_t count = testAll() ? 20000 : 1000;
  int64_t subAxes = 0, severalAxes = 0, partial = 0;
  for (int64_t seed = 0; seed < count; ++seed) {
    RandomReshard r = drawEven(seed);
    subAxes += r.hasSubAxes();
    severalAxes += r.hasSeveralAxes();
    partial += r.isPartial();
    ReshardPlan plan = planReshard(r.mesh, r.from, r.to, r.shape, kBytes);
    ASSERT_EQ(plan.error, "") << seed << ": " << show(r);
    Sharding now = r.from;
    for (const Collective &move : plan.moves) {
      double before = localElements(r, now);
      auto error = applyCollective(r.mesh, move, now);
      ASSERT_FALSE(error) << seed << ": " << show(r) << ": " << *error;
      EXPECT_TRUE(sameDims(r.mesh, now.dims, move.sharding.dims)) << show(r);
      EXPECT_TRUE(samePartial(r.mesh, now.partial, move.sharding.partial));
      EXPECT_NEAR(move.elements,
                  elementsSent(r.mesh, move, before, localElements(r, now)),
                  1e-9)
          << show(r);
    }
    EXPECT_TRUE(sameDims(r.mesh, now.dims, r.to.dims)) << show(r);
    EXPECT_TRUE(samePartial(r.mesh, now.partial, r.to.partial)) << show(r);
  }
  // The draw keeps its promise.
  EXPECT_GE(subAxes, count / 4);
  EXPECT_GE(severalAxes, count / 4);
  EXPECT_GE(partial, count / 4);
}

//===----------------------------------------------------------------------===//
// Against every other way
//===----------------------------------------------------------------------===//

/// All ways between all shardings of one tensor, by digits of prime size: each
/// movement in every form that its op has.
class EveryWay {
public:
  explicit EveryWay(const RandomReshard &reshard) : reshard(reshard) {
    for (const MeshAxis &axis : reshard.mesh.axes) {
      int64_t pre = 1;
      while (pre < axis.size) {
        int64_t size = 2;
        while (axis.size / pre % size != 0)
          ++size;
        digits.push_back(
            reshard.mesh.normalize(AxisRef{axis.name, pre, size}).front());
        pre *= size;
      }
    }
  }

  double cheapest() {
    std::map<State, double> best;
    std::set<std::pair<double, State>> queue;
    State goal = stateOf(reshard.to);
    auto reach = [&](const State &state, double cost) {
      auto [it, isNew] = best.try_emplace(state, cost);
      if (!isNew && it->second <= cost)
        return;
      it->second = cost;
      queue.insert({cost, state});
    };
    reach(stateOf(reshard.from), 0);
    while (!queue.empty()) {
      auto [cost, state] = *queue.begin();
      queue.erase(queue.begin());
      if (state == goal)
        return cost;
      if (cost > best[state])
        continue;
      forEachMove(state,
                  [&](const State &next, double sent, CollectiveKind kind) {
                    reach(next, cost + sent * kBytes + latencyOf(kind));
                  });
    }
    return INFINITY;
  }

private:
  struct State {
    std::vector<std::vector<int>> dims;
    std::set<int> partial;
    auto operator<=>(const State &) const = default;
  };
  using Visit = std::function<void(const State &, double, CollectiveKind)>;

  State stateOf(const Sharding &sharding) {
    State state;
    auto indices = [&](llvm::ArrayRef<AxisRef> axes) {
      std::vector<int> list;
      AxisList refined = *reshard.mesh.refine(axes, digits);
      for (const AxisRef &axis : refined)
        if (reshard.mesh.size(axis) > 1)
          list.push_back(llvm::find(digits, axis) - digits.begin());
      return list;
    };
    for (const AxisList &axes : sharding.dims)
      state.dims.push_back(indices(axes));
    for (const PartialAxis &entry : sharding.partial)
      for (int digit : indices(entry.axis))
        state.partial.insert(digit);
    return state;
  }

  int64_t size(int digit) { return reshard.mesh.size(digits[digit]); }
  int64_t size(const std::vector<int> &list) {
    int64_t product = 1;
    for (int digit : list)
      product *= size(digit);
    return product;
  }
  bool divides(const State &state) {
    for (size_t dim = 0; dim < state.dims.size(); ++dim)
      if (reshard.shape[dim] % size(state.dims[dim]))
        return false;
    return true;
  }
  double elements(const State &state) {
    double product = 1;
    for (size_t dim = 0; dim < state.dims.size(); ++dim)
      product *= reshard.shape[dim] / size(state.dims[dim]);
    return product;
  }
  std::vector<int> free(const State &state) {
    std::vector<int> result;
    for (int digit = 0; digit < static_cast<int>(digits.size()); ++digit) {
      bool used = state.partial.count(digit);
      for (auto &list : state.dims)
        used |= llvm::is_contained(list, digit);
      if (!used)
        result.push_back(digit);
    }
    return result;
  }

  /// Calls `fn` for each way to split `state` further by some of `from`.
  void grow(const State &state, const std::vector<int> &from,
            const std::function<void(const State &)> &fn) {
    for (int digit : from)
      for (size_t dim = 0; dim < state.dims.size(); ++dim) {
        State next = state;
        next.dims[dim].push_back(digit);
        next.partial.erase(digit);
        if (!divides(next))
          continue;
        fn(next);
        std::vector<int> rest = from;
        llvm::erase(rest, digit);
        grow(next, rest, fn);
      }
  }
  void shrink(const State &state,
              const std::function<void(const State &)> &fn) {
    for (size_t dim = 0; dim < state.dims.size(); ++dim) {
      if (state.dims[dim].empty())
        continue;
      State next = state;
      next.dims[dim].pop_back();
      fn(next);
      shrink(next, fn);
    }
  }

  void forEachMove(const State &state, const Visit &visit) {
    double l = elements(state);
    grow(state, free(state),
         [&](const State &next) { visit(next, 0, CollectiveKind::Slice); });
    std::vector<int> partial(state.partial.begin(), state.partial.end());
    grow(state, partial, [&](const State &next) {
      visit(next, l - elements(next), CollectiveKind::ReduceScatter);
    });
    shrink(state, [&](const State &next) {
      visit(next, elements(next) - l, CollectiveKind::AllGather);
    });
    for (unsigned set = 1; set < 1u << partial.size(); ++set) {
      State next = state;
      double n = 1;
      for (size_t i = 0; i < partial.size(); ++i)
        if (set >> i & 1) {
          next.partial.erase(partial[i]);
          n *= size(partial[i]);
        }
      visit(next, 2 * (n - 1) / n * l, CollectiveKind::AllReduce);
    }
    for (size_t a = 0; a < state.dims.size(); ++a)
      for (size_t b = 0; b < state.dims.size(); ++b)
        for (size_t begin = 0; a != b && begin < state.dims[a].size();
             ++begin) {
          State next = state;
          std::vector<int> moved(state.dims[a].begin() + begin,
                                 state.dims[a].end());
          next.dims[a].resize(begin);
          next.dims[b].insert(next.dims[b].end(), moved.begin(), moved.end());
          double n = size(moved);
          if (divides(next))
            visit(next, (n - 1) / n * l, CollectiveKind::AllToAll);
        }
    // A permute keeps the shape and the partial digits, and nothing else.
    State empty = state;
    std::vector<int> all = free(state);
    for (auto &list : empty.dims) {
      all.insert(all.end(), list.begin(), list.end());
      list.clear();
    }
    grow(empty, all, [&](const State &next) {
      for (size_t dim = 0; dim < state.dims.size(); ++dim)
        if (size(next.dims[dim]) != size(state.dims[dim]))
          return;
      if (next != state)
        visit(next, l, CollectiveKind::Permute);
    });
  }

  const RandomReshard &reshard;
  AxisList digits;
};

// Where digits cross no plan by digits exists: there is none on so few
// positions.
TEST(DrawnReshards, NoWayIsCheaper) {
  auto check = [](const RandomReshard &r, int64_t seed) {
    ReshardPlan plan = planReshard(r.mesh, r.from, r.to, r.shape, kBytes);
    EXPECT_NEAR(plan.cost(kBytes), EveryWay(r).cheapest(), 1e-6)
        << seed << ": " << show(r) << ": " << text(plan);
  };
  for (int64_t seed = 0, e = testAll() ? 20000 : 2000; seed < e; ++seed)
    check(drawEven(seed, 4), seed);
}

//===----------------------------------------------------------------------===//
// Time
//===----------------------------------------------------------------------===//

// Whatever is asked, the search is bounded, and its answer the same each time.
TEST(DrawnReshards, LargeMeshes) {
  Mesh mesh;
  mesh.axes = {{"a", 16}, {"b", 64}, {"c", 8}};
  AxisList a{{"a"}}, b{{"b"}}, c{{"c"}};
  Sharding from = makeSharding({{{"a"}, {"b"}}, c}),
           to = makeSharding({{{"c"}, {"b", 8, 8}}, {{"b", 1, 8}, {"a"}}});
  llvm::SmallVector<int64_t> shape{8192, 8192};
  ReshardPlan plan = planReshard(mesh, from, to, shape, kBytes);
  EXPECT_EQ(plan.error, "");
  EXPECT_EQ(text(plan), text(planReshard(mesh, from, to, shape, kBytes)));
  // Far from the whole, which has 67 million elements.
  EXPECT_LE(plan.elements(), 8192 * 8192 / 1024);
}

TEST(DrawnReshards, EqualQuestionsAreAnsweredOnce) {
  Mesh mesh;
  mesh.axes = {{"x", 4}};
  ReshardPlanner planner(mesh);
  Sharding from = makeSharding({{{"x"}}}), to = makeSharding({AxisList()});
  const ReshardPlan &first = planner.plan(from, to, {8}, kBytes);
  EXPECT_EQ(&first, &planner.plan(from, to, {8}, kBytes));
  EXPECT_NE(&first, &planner.plan(from, to, {12}, kBytes));
}

} // namespace
