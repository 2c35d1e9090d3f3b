//===- AxesTest.cpp - The algebra of mesh axes ----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Spmd/IR/Axes.h"
#include "gtest/gtest.h"
#include <random>

using namespace cleave::spmd;

namespace {

Mesh makeMesh(std::initializer_list<std::pair<const char *, int64_t>> axes) {
  Mesh mesh;
  for (auto [name, size] : axes)
    mesh.axes.push_back({name, size});
  return mesh;
}

TEST(Axes, SizesOfAxesAndDigits) {
  Mesh mesh = makeMesh({{"x", 8}, {"y", 3}});
  EXPECT_EQ(mesh.size(AxisRef{"x"}), 8);
  EXPECT_EQ(mesh.size(AxisRef{"x", 2, 4}), 4);
  EXPECT_EQ(mesh.size(AxisList{{"x", 1, 2}, {"y"}}), 6);
  EXPECT_EQ(mesh.size(), 24);
}

TEST(Axes, CheckNamesWhatIsWrong) {
  Mesh mesh = makeMesh({{"x", 8}});
  EXPECT_FALSE(mesh.check({"x"}));
  EXPECT_FALSE(mesh.check({"x", 2, 2}));
  EXPECT_EQ(*mesh.check({"z"}), "the mesh has no axis \"z\"");
  EXPECT_TRUE(mesh.check({"x", 1, 3}));
  EXPECT_TRUE(mesh.check({"x", 4, 4}));
  EXPECT_EQ(*mesh.check({"x", 1, 8}),
            "\"x\":(1)8 is the entire axis: write \"x\"");
}

TEST(Axes, Overlap) {
  Mesh mesh = makeMesh({{"x", 8}, {"y", 8}, {"one", 1}});
  EXPECT_TRUE(mesh.overlap({"x"}, AxisRef{"x", 4, 2}));
  EXPECT_TRUE(mesh.overlap({"x", 1, 4}, AxisRef{"x", 2, 4}));
  EXPECT_FALSE(mesh.overlap({"x", 1, 2}, AxisRef{"x", 2, 4}));
  EXPECT_FALSE(mesh.overlap({"x"}, AxisRef{"y"}));
  EXPECT_TRUE(mesh.overlap({"one"}, AxisRef{"one"}));
  // Of 24 positions, the major four and the minor four are not independent.
  Mesh other = makeMesh({{"x", 24}});
  EXPECT_TRUE(other.overlap({"x", 1, 4}, AxisRef{"x", 6, 4}));
  EXPECT_FALSE(other.overlap({"x", 8, 3}, AxisRef{"x", 1, 4}));
}

TEST(Axes, RefineCutsAtTheDigitsOfOthers) {
  Mesh mesh = makeMesh({{"x", 24}, {"y", 4}, {"one", 1}});
  EXPECT_EQ(
      *mesh.refine(AxisList{{"y"}, {"x"}}, AxisList{{"x", 2, 4}, {"y", 2, 2}}),
      (AxisList{
          {"y", 1, 2}, {"y", 2, 2}, {"x", 1, 2}, {"x", 2, 4}, {"x", 8, 3}}));
  EXPECT_EQ(*mesh.refine(AxisList{{"x", 1, 2}}, AxisList{{"x", 4, 6}}),
            (AxisList{{"x", 1, 2}}));
  EXPECT_EQ(*mesh.refine(AxisList{{"one"}}, AxisList{{"one"}}),
            (AxisList{{"one"}}));
  // Neither digit is a number of the other's.
  EXPECT_FALSE(mesh.refine(AxisList{{"x", 1, 4}}, AxisList{{"x", 1, 6}}));
  EXPECT_FALSE(mesh.refine(AxisList{{"x", 1, 2}}, AxisList{{"x", 3, 8}}));
}

TEST(Axes, SetPartIsTheInverseOfPartIndex) {
  Mesh mesh = makeMesh({{"x", 24}, {"y", 3}});
  AxisList list{{"y"}, {"x", 4, 3}, {"x", 1, 2}};
  for (int64_t number = 0; number < mesh.size(); ++number) {
    auto coordinates = mesh.coordinates(number);
    EXPECT_EQ(mesh.position(coordinates), number);
    int64_t own = mesh.partIndex(list, coordinates);
    for (int64_t index = 0; index < 18; ++index) {
      auto moved = coordinates;
      mesh.setPart(list, index, moved);
      EXPECT_EQ(mesh.partIndex(list, moved), index);
      mesh.setPart(list, own, moved);
      EXPECT_EQ(moved, coordinates);
    }
  }
}

// What the first factor cannot take whole it takes in part: the samples of a
// dimension that holds more stay split.
TEST(Axes, AFactorTakesTheMajorAxesThatDivideIt) {
  Mesh mesh = makeMesh({{"mb", 2}, {"a", 3}});
  AxisList rest;
  auto parts =
      dimToFactors(mesh, AxisList{{"mb"}, {"a"}}, {int64_t(4), 3}, rest);
  EXPECT_EQ(parts[0], (AxisList{{"mb"}}));
  EXPECT_TRUE(parts[1].empty());
  EXPECT_EQ(rest, (AxisList{{"a"}}));
}

TEST(Axes, NormalizeJoinsDigits) {
  Mesh mesh = makeMesh({{"x", 8}, {"y", 2}});
  EXPECT_EQ(mesh.normalize(AxisList{{"x", 1, 2}, {"x", 2, 4}}),
            (AxisList{{"x"}}));
  EXPECT_EQ(mesh.normalize(AxisList{{"x", 2, 2}, {"x", 4, 2}}),
            (AxisList{{"x", 2, 4}}));
  // In the other order the digits are exchanged: nothing joins.
  EXPECT_EQ(mesh.normalize(AxisList{{"x", 2, 4}, {"x", 1, 2}}),
            (AxisList{{"x", 2, 4}, {"x", 1, 2}}));
}

TEST(Axes, SplitCutsInsideAnAxis) {
  Mesh mesh = makeMesh({{"x", 8}, {"y", 3}});
  auto cut = mesh.split(AxisList{{"y"}, {"x"}}, 6);
  ASSERT_TRUE(cut);
  EXPECT_EQ(cut->first, (AxisList{{"y"}, {"x", 1, 2}}));
  EXPECT_EQ(cut->second, (AxisList{{"x", 2, 4}}));
  EXPECT_FALSE(mesh.split(AxisList{{"y"}, {"x"}}, 2));
  EXPECT_FALSE(mesh.split(AxisList{{"y"}}, 6));
}

TEST(Axes, CommonPrefix) {
  Mesh mesh = makeMesh({{"x", 8}, {"y", 2}});
  EXPECT_EQ(
      mesh.commonPrefix(AxisList{{"x"}, {"y"}}, AxisList{{"x", 1, 2}, {"y"}}),
      (AxisList{{"x", 1, 2}}));
  EXPECT_EQ(mesh.commonPrefix(AxisList{{"x"}}, AxisList{{"x"}, {"y"}}),
            (AxisList{{"x"}}));
  EXPECT_TRUE(mesh.commonPrefix(AxisList{{"x"}}, AxisList{{"y"}}).empty());
  EXPECT_TRUE(mesh.isPrefix({}, AxisList{{"y"}}));
}

TEST(Axes, LocalShapeNamesTheDimension) {
  Mesh mesh = makeMesh({{"x", 4}});
  Sharding sharding = Sharding::replicated(2);
  sharding.dims[1] = {{"x"}};
  unsigned dim;
  auto shape = localShape(mesh, sharding, {3, 8}, dim);
  ASSERT_TRUE(shape);
  EXPECT_EQ(*shape, (llvm::SmallVector<int64_t>{3, 2}));
  EXPECT_FALSE(localShape(mesh, sharding, {3, 6}, dim));
  EXPECT_EQ(dim, 1u);
}

//===----------------------------------------------------------------------===//
// Properties, on meshes and lists drawn at random
//===----------------------------------------------------------------------===//

class AxesProperty : public testing::TestWithParam<unsigned> {
protected:
  void SetUp() override {
    random.seed(GetParam());
    static const char *names[] = {"a", "b", "c"};
    static const int64_t sizes[] = {1, 2, 3, 4, 6, 8, 12};
    for (const char *name : names)
      mesh.axes.push_back({name, sizes[random() % std::size(sizes)]});
  }

  /// A list that uses no digit twice.
  AxisList draw() {
    AxisList list;
    for (int i = 0; i < 4; ++i) {
      const MeshAxis &axis = mesh.axes[random() % mesh.axes.size()];
      AxisRef candidate{axis.name};
      if (random() % 2) {
        int64_t pre = 1 + random() % axis.size;
        int64_t size = 2 + random() % axis.size;
        candidate = {axis.name, pre, size};
      }
      if (!mesh.check(candidate) && !mesh.overlap(candidate, list))
        list.push_back(candidate);
    }
    return list;
  }

  std::mt19937 random;
  Mesh mesh;
};

TEST_P(AxesProperty, NormalizeKeepsEveryPart) {
  for (int round = 0; round < 50; ++round) {
    AxisList list = draw(), normal = mesh.normalize(list);
    EXPECT_EQ(mesh.size(list), mesh.size(normal));
    EXPECT_EQ(mesh.normalize(normal), normal);
    for (int64_t d = 0; d < mesh.size(); ++d)
      EXPECT_EQ(mesh.partIndex(list, mesh.coordinates(d)),
                mesh.partIndex(normal, mesh.coordinates(d)));
  }
}

TEST_P(AxesProperty, PartsAreEvenlyFilled) {
  for (int round = 0; round < 50; ++round) {
    AxisList list = draw();
    std::vector<int64_t> count(mesh.size(list), 0);
    for (int64_t d = 0; d < mesh.size(); ++d)
      ++count[mesh.partIndex(list, mesh.coordinates(d))];
    for (int64_t c : count)
      EXPECT_EQ(c, mesh.size() / mesh.size(list));
  }
}

TEST_P(AxesProperty, SplitIsDivisionWithRemainder) {
  for (int round = 0; round < 50; ++round) {
    AxisList list = draw();
    for (int64_t n = 1; n <= mesh.size(list); ++n) {
      auto cut = mesh.split(list, n);
      if (!cut)
        continue;
      EXPECT_EQ(mesh.size(cut->first), n);
      int64_t minor = mesh.size(cut->second);
      for (int64_t d = 0; d < mesh.size(); ++d) {
        auto at = mesh.coordinates(d);
        EXPECT_EQ(mesh.partIndex(list, at),
                  mesh.partIndex(cut->first, at) * minor +
                      mesh.partIndex(cut->second, at));
      }
    }
  }
}

TEST_P(AxesProperty, CommonPrefixIsMajorPartOfBoth) {
  for (int round = 0; round < 50; ++round) {
    AxisList a = draw(), b = draw();
    AxisList common = mesh.commonPrefix(a, b);
    EXPECT_EQ(common, mesh.commonPrefix(b, a));
    EXPECT_TRUE(mesh.isPrefix(common, a));
    EXPECT_TRUE(mesh.isPrefix(common, b));
    EXPECT_EQ(mesh.commonPrefix(a, a), mesh.normalize(a));
    for (const AxisList &list : {a, b})
      for (int64_t d = 0; d < mesh.size(); ++d) {
        auto at = mesh.coordinates(d);
        EXPECT_EQ(mesh.partIndex(common, at),
                  mesh.partIndex(list, at) /
                      (mesh.size(list) / mesh.size(common)));
      }
  }
}

TEST_P(AxesProperty, FactorsOfADimensionRejoin) {
  static const int64_t sizes[] = {1, 2, 3, 4, 6, 8, 24};
  for (int round = 0; round < 50; ++round) {
    AxisList list = mesh.normalize(draw());
    llvm::SmallVector<int64_t> factors;
    for (int i = 0; i < 3; ++i)
      factors.push_back(sizes[random() % std::size(sizes)]);
    AxisList rest;
    auto parts = dimToFactors(mesh, list, factors, rest);
    // A minor factor is split only behind completely split ones.
    for (size_t i = 1; i < parts.size(); ++i)
      if (mesh.size(parts[i]) > 1)
        EXPECT_EQ(mesh.size(parts[i - 1]), factors[i - 1]);
    if (!rest.empty())
      continue;
    EXPECT_EQ(factorsToDim(mesh, parts, factors), list);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, AxesProperty, testing::Range(0u, 20u));

} // namespace
