//===- FactorClaimsTest.cpp - Which tensor decides a factor's axes --------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Spmd/IR/FactorClaims.h"
#include "gtest/gtest.h"
#include <functional>

using namespace cleave::spmd;
using namespace cleave::graph;

namespace {

/// x [b, i], w [o, i] -> y [b, o].
struct Claims : testing::Test {
  Claims() {
    mesh.axes = {{"dp", 2}, {"tp", 4}};
    b = rule.addFactor(8);
    i = rule.addFactor(16, FactorKind::Reduction, ReductionKind::Sum,
                       PaddingNeed::Zero);
    o = rule.addFactor(32);
    rule.operands = {{{b}, {i}}, {{o}, {i}}};
    rule.results = {{{b}, {o}}};
    x = w = y = Sharding::replicated(2, true);
  }

  FactorClaims collect() {
    return collectClaims(mesh, rule, {&x, &w}, {&y}, note());
  }
  FactorClaims ordered() {
    FactorClaims claims = collect();
    orderClaims(mesh, rule, claims);
    return claims;
  }
  FactorAxes grant(llvm::ArrayRef<FactorClaim> claims) {
    return grantClaims(mesh, rule, claims, {&x, &w}, {&y}, note());
  }
  Conflict note() { return said; }

  Mesh mesh;
  ShardingRule rule;
  int64_t b, i, o;
  Sharding x, w, y;
  std::vector<std::string> conflicts;
  std::function<void(const std::string &)> said = [this](const std::string &c) {
    conflicts.push_back(c);
  };
};

// A list claims each of its beginnings, so that others may agree on one.
TEST_F(Claims, EachBeginningOfAListIsAClaim) {
  x.dims[0] = {{"dp"}, {"tp"}};
  FactorClaims claims = collect();
  ASSERT_EQ(claims.size(), 2u);
  EXPECT_EQ(claims[0].axes, (AxisList{{"dp"}}));
  EXPECT_FALSE(claims[0].all);
  EXPECT_EQ(claims[1].axes, (AxisList{{"dp"}, {"tp"}}));
  EXPECT_TRUE(claims[1].all);
}

TEST_F(Claims, OperandsComeBeforeResultsUnlessTheRuleSaysOtherwise) {
  x.dims[0] = y.dims[0] = {{"dp"}};
  EXPECT_FALSE(collect().front().isResult);
  rule.resultsFirst = true;
  EXPECT_TRUE(collect().front().isResult);
}

// Case 7.
TEST_F(Claims, AReplicatedFactorIsNotClaimed) {
  rule.factors[i].kind = FactorKind::Replicated;
  w.dims[1] = {{"tp"}};
  EXPECT_TRUE(collect().empty());
  ASSERT_EQ(conflicts.size(), 1u);
  EXPECT_EQ(conflicts[0], "operand 1 shards dimension 1 over {\"tp\"}, which "
                          "the op needs replicated");
}

// Case 1: two small tensors before a large one.
TEST_F(Claims, MoreTensorsComeFirst) {
  w.dims[0] = {{"tp"}};
  x.dims[0] = y.dims[0] = {{"tp"}};
  FactorClaims claims = ordered();
  EXPECT_EQ(claims.front().factor, b);
  EXPECT_EQ(claims.front().voters, 2);
}

// Case 2: w has 512 elements, x 128.
TEST_F(Claims, LargerTensorsComeFirst) {
  x.dims[0] = w.dims[0] = {{"tp"}};
  FactorClaims claims = ordered();
  EXPECT_EQ(claims.front().factor, o);
  EXPECT_EQ(claims.front().elements, 512);
}

// Case 3: x and y have 128 elements each.
TEST_F(Claims, TheFirstOfEqualOnesStaysFirst) {
  rule.factors[o].size = 16;
  x.dims[1] = y.dims[0] = {{"tp"}};
  EXPECT_EQ(ordered().front().factor, i);
}

// Case 4.
TEST_F(Claims, AnAnnotationComesBeforeMoreTensors) {
  rule.resultsFirst = true;
  x.dims[1] = w.dims[1] = y.dims[0] = {{"tp"}};
  EXPECT_EQ(ordered().front().factor, b);
}

// The order alone decides: what is granted follows it, whatever it is.
TEST_F(Claims, ClaimsAreMetInTheirOrder) {
  x.dims[0] = {{"tp"}};
  w.dims[0] = {{"tp"}};
  FactorClaims claims = collect();
  EXPECT_EQ(grant(claims)[b], (AxisList{{"tp"}}));
  std::reverse(claims.begin(), claims.end());
  FactorAxes axes = grant(claims);
  EXPECT_EQ(axes[o], (AxisList{{"tp"}}));
  EXPECT_TRUE(axes[b].empty());
}

// Case 6.
TEST_F(Claims, ALongerListContinuesWhatIsGranted) {
  x.dims[0] = {{"dp"}};
  y.dims[0] = {{"dp"}, {"tp"}};
  EXPECT_EQ(grant(ordered())[b], (AxisList{{"dp"}, {"tp"}}));
  EXPECT_TRUE(conflicts.empty());
}

} // namespace
