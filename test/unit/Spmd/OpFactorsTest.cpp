//===- OpFactorsTest.cpp - Shardings of an op through its factors ---------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Spmd/IR/OpFactors.h"
#include "gtest/gtest.h"

using namespace cleave::spmd;
using namespace cleave::graph;

namespace {

/// x [b, i], w [o, i] -> y [b, o], all factors may be split.
struct Linear : testing::Test {
  Linear() {
    mesh.axes = {{"dp", 2}, {"tp", 4}, {"one", 1}};
    b = rule.addFactor(8);
    i = rule.addFactor(16, FactorKind::Reduction, ReductionKind::Sum,
                       PaddingNeed::Zero);
    o = rule.addFactor(32);
    rule.operands = {{{b}, {i}}, {{o}, {i}}};
    rule.results = {{{b}, {o}}};
    rule.linear = {{0}, {1}};
    x = w = y = Sharding::replicated(2, true);
  }

  FactorAxes merge() {
    conflicts.clear();
    return mergeFactors(mesh, rule, {&x, &w}, {&y},
                        [&](const std::string &c) { conflicts.push_back(c); });
  }
  PartialPlan plan(const FactorAxes &axes) {
    return planPartials(mesh, rule, axes, {&x, &w}, {128, 512});
  }

  Mesh mesh;
  ShardingRule rule;
  int64_t b, i, o;
  Sharding x, w, y;
  std::vector<std::string> conflicts;
};

TEST_F(Linear, BatchAndOutputReachTheResult) {
  x.dims[0] = {{"dp"}};
  w.dims[0] = {{"tp"}};
  FactorAxes axes = merge();
  EXPECT_TRUE(conflicts.empty());
  auto dims = projectFactors(mesh, rule, rule.results[0], axes);
  EXPECT_EQ(dims[0], (AxisList{{"dp"}}));
  EXPECT_EQ(dims[1], (AxisList{{"tp"}}));
  EXPECT_TRUE(plan(axes).results[0].empty());
}

TEST_F(Linear, SplitReductionIsPartial) {
  x.dims[1] = {{"tp"}};
  FactorAxes axes = merge();
  EXPECT_EQ(axes[i], (AxisList{{"tp"}}));
  PartialPlan partial = plan(axes);
  ASSERT_EQ(partial.results[0].size(), 1u);
  EXPECT_EQ(partial.results[0][0], (PartialAxis{{"tp"}, ReductionKind::Sum}));
  EXPECT_TRUE(partial.reductions.empty());
}

TEST_F(Linear, LargerOperandWins) {
  x.dims[1] = {{"dp"}};
  w.dims[1] = {{"tp"}};
  FactorAxes axes = merge();
  EXPECT_EQ(axes[i], (AxisList{{"tp"}}));
  ASSERT_EQ(conflicts.size(), 1u);
  EXPECT_EQ(conflicts[0], "operand 0 shards dimension 1 over {\"dp\"}, another "
                          "operand or result over {\"tp\"}");
}

TEST_F(Linear, AnAxisSplitsOneFactor) {
  x.dims[0] = {{"tp"}};
  w.dims[0] = {{"tp"}};
  FactorAxes axes = merge();
  EXPECT_EQ(axes[o], (AxisList{{"tp"}}));
  EXPECT_TRUE(axes[b].empty());
  EXPECT_EQ(conflicts.size(), 1u);
}

TEST_F(Linear, MoreTensorsOutvoteALargerOne) {
  x.dims[0] = y.dims[0] = {{"tp"}};
  w.dims[0] = {{"tp"}};
  FactorAxes axes = merge();
  EXPECT_EQ(axes[b], (AxisList{{"tp"}}));
  EXPECT_TRUE(axes[o].empty());
}

// In the order of those who ask, not of the factors.
TEST_F(Linear, AnAxisGoesToTheFirstWhoAsks) {
  x.dims[1] = w.dims[1] = {{"tp"}};
  y.dims[0] = {{"tp"}};
  FactorAxes axes = merge();
  EXPECT_EQ(axes[i], (AxisList{{"tp"}}));
  EXPECT_TRUE(axes[b].empty());
  ASSERT_EQ(conflicts.size(), 1u);
  EXPECT_EQ(conflicts[0], "result 0 shards dimension 0 over {\"tp\"}, of which "
                          "\"tp\" shards another factor of the op");
  rule.resultsFirst = true;
  axes = merge();
  EXPECT_EQ(axes[b], (AxisList{{"tp"}}));
  EXPECT_TRUE(axes[i].empty());
}

// A result that is split and partial by its op cannot be both.
TEST_F(Linear, ASplitResultIsNotPartialOnThatAxis) {
  y.dims[0] = {{"tp", 1, 2}};
  EXPECT_EQ(staysPartial(mesh, y, PartialList{{{"tp"}}, {{"dp"}}}),
            (PartialList{{{"tp", 2, 2}}, {{"dp"}}}));
}

TEST_F(Linear, LongerPrefixWins) {
  x.dims[0] = {{"tp", 1, 2}};
  y.dims[0] = {{"tp"}};
  EXPECT_EQ(merge()[b], (AxisList{{"tp"}}));
  EXPECT_TRUE(conflicts.empty());
}

TEST_F(Linear, AxesOfSizeOneMakeNoConflict) {
  for (bool first : {true, false}) {
    x.dims[0] = first ? AxisList{{"one"}, {"dp"}} : AxisList{{"dp"}};
    y.dims[0] = first ? AxisList{{"dp"}} : AxisList{{"one"}, {"dp"}};
    FactorAxes axes = merge();
    EXPECT_TRUE(conflicts.empty());
    EXPECT_EQ(mesh.significant(axes[b]), (AxisList{{"dp"}}));
  }
  // The longer one still wins.
  y.dims[0] = {{"one"}, {"dp"}, {"tp"}};
  EXPECT_EQ(mesh.significant(merge()[b]), (AxisList{{"dp"}, {"tp"}}));
  EXPECT_TRUE(conflicts.empty());
}

TEST_F(Linear, OnePartialOperandPasses) {
  x.partial = {{{"tp"}, ReductionKind::Sum}};
  PartialPlan partial = plan(merge());
  EXPECT_TRUE(partial.reductions.empty());
  EXPECT_EQ(partial.results[0].size(), 1u);
}

TEST_F(Linear, OfTwoPartialOperandsTheSmallerIsReduced) {
  x.partial = w.partial = {{{"tp"}, ReductionKind::Sum}};
  PartialPlan partial = plan(merge());
  ASSERT_EQ(partial.reductions.size(), 1u);
  EXPECT_EQ(partial.reductions[0].operand, 0u);
  EXPECT_EQ(partial.results[0].size(), 1u);
}

// Both factors of a product partial on one digit: one of them is reduced there,
// though the axes are written in another way.
TEST_F(Linear, PartialAxesAreComparedByDigits) {
  x.partial = {{{"tp"}, ReductionKind::Sum}};
  w.partial = {{{"tp", 1, 2}, ReductionKind::Sum}};
  PartialPlan partial = plan(merge());
  ASSERT_EQ(partial.reductions.size(), 1u);
  EXPECT_EQ(partial.reductions[0].operand, 0u);
  EXPECT_EQ(partial.reductions[0].partial,
            (PartialAxis{{"tp", 1, 2}, ReductionKind::Sum}));
  ASSERT_EQ(partial.results[0].size(), 1u);
  EXPECT_EQ(partial.results[0][0], (PartialAxis{{"tp"}, ReductionKind::Sum}));
}

TEST_F(Linear, APartialOperandOfASplitOpIsReduced) {
  x.partial = {{{"tp"}, ReductionKind::Sum}};
  w.dims[0] = {{"tp"}};
  PartialPlan partial = plan(merge());
  ASSERT_EQ(partial.reductions.size(), 1u);
  EXPECT_TRUE(partial.results[0].empty());
}

TEST_F(Linear, AMaximumPassesNothing) {
  x.partial = {{{"tp"}, ReductionKind::Max}};
  PartialPlan partial = plan(merge());
  EXPECT_EQ(partial.reductions.size(), 1u);
}

TEST_F(Linear, AddNeedsBothPartial) {
  rule.linear = {{0, 1}};
  x.partial = {{{"tp"}, ReductionKind::Sum}};
  EXPECT_EQ(plan(merge()).reductions.size(), 1u);
  w.partial = x.partial;
  PartialPlan both = plan(merge());
  EXPECT_TRUE(both.reductions.empty());
  EXPECT_EQ(both.results[0].size(), 1u);
}

TEST_F(Linear, UnreadOperandsHaveNoSay) {
  rule.unused = {1};
  w.dims[0] = {{"tp"}};
  w.partial = {{{"dp"}, ReductionKind::Sum}};
  FactorAxes axes = merge();
  EXPECT_TRUE(axes[o].empty());
  EXPECT_TRUE(plan(axes).reductions.empty());
}

TEST_F(Linear, WholeFactorsRefuseAxesButNotOfSizeOne) {
  rule.factors[i].kind = FactorKind::Replicated;
  x.dims[1] = {{"one"}};
  merge();
  EXPECT_TRUE(conflicts.empty());
  x.dims[1] = {{"dp"}};
  merge();
  EXPECT_EQ(conflicts.size(), 1u);
}

// [4, 2] to [8]: the minor factor of the result lies behind the major one.
TEST(Factors, InnerFactorsAreSplitBehindCompleteOnesOnly) {
  Mesh mesh;
  mesh.axes = {{"x", 2}, {"y", 4}};
  ShardingRule rule;
  int64_t major = rule.addFactor(4), minor = rule.addFactor(2);
  rule.operands = {{{major}, {minor}}};
  rule.results = {{{major, minor}}};
  Sharding from = Sharding::replicated(2), to = Sharding::replicated(1);
  from.dims[1] = {{"x"}};
  std::vector<std::string> conflicts;
  auto merge = [&] {
    conflicts.clear();
    return mergeFactors(mesh, rule, {&from}, {&to},
                        [&](const std::string &c) { conflicts.push_back(c); });
  };
  EXPECT_TRUE(merge()[minor].empty());
  ASSERT_EQ(conflicts.size(), 1u);
  EXPECT_EQ(conflicts[0], "axes {\"x\"} shard a minor factor of a dimension "
                          "whose major factor is not fully sharded");
  from.dims[0] = {{"y"}};
  EXPECT_EQ(merge()[minor], (AxisList{{"x"}}));
  EXPECT_TRUE(conflicts.empty());
}

TEST(Factors, AMixedFactorConcatenatesWhereItIs) {
  // rows r: loss [r], weight gradient [o]: the latter is a sum over rows.
  Mesh mesh;
  mesh.axes = {{"mb", 4}};
  ShardingRule rule;
  int64_t r = rule.addFactor(8, FactorKind::Reduction);
  int64_t o = rule.addFactor(3, FactorKind::Replicated);
  rule.operands = {{{r}, {o}}};
  rule.results = {{{r}}, {{o}}};
  Sharding x = Sharding::replicated(2), loss = Sharding::replicated(1),
           weight = Sharding::replicated(1);
  x.dims[0] = {{"mb"}};
  FactorAxes axes = mergeFactors(mesh, rule, {&x}, {&loss, &weight},
                                 [](const std::string &) { FAIL(); });
  PartialPlan plan = planPartials(mesh, rule, axes, {&x}, {24});
  EXPECT_TRUE(plan.results[0].empty());
  EXPECT_EQ(plan.results[1].size(), 1u);
  EXPECT_EQ(projectFactors(mesh, rule, rule.results[0], axes)[0],
            (AxisList{{"mb"}}));
}

} // namespace
