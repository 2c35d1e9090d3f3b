//===- CollectivePlanTest.cpp - Collectives as calls of a library
//-----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Cuda/CollectivePlan.h"
#include "gtest/gtest.h"

using namespace cleave::runtime;
using namespace cleave::runtime::cuda;

namespace {

TEST(CollectivePlan, OnlyStridesAreStaged) {
  CollectiveCommand c;
  c.axes = {{0, 1, 2}};
  c.collective = CollectiveKind::AllReduce;
  c.src.buffer = c.dst.buffer = 0;
  c.sizes = {8, 16};
  c.srcStrides = c.dstStrides = {16, 1};
  EXPECT_EQ(collectiveStagingBytes(c), 0);
  // Any order of the dimensions is one order of the elements.
  c.srcStrides = c.dstStrides = {1, 8};
  EXPECT_EQ(collectiveStagingBytes(c), 0);
  c.srcStrides = c.dstStrides = {32, 1};
  EXPECT_EQ(collectiveStagingBytes(c), 8 * 16 * 4);
  auto at = [](const Ref &) { return uint64_t(1) << 20; };
  auto plan = planCollective(c, {0, at, uint64_t(1) << 21});
  ASSERT_TRUE(bool(plan));
  EXPECT_EQ(plan->before.size(), 1u);
  ASSERT_EQ(plan->calls.size(), 1u);
  EXPECT_EQ(plan->calls[0].src, uint64_t(1) << 21);
  EXPECT_EQ(plan->calls[0].dst, uint64_t(1) << 21);
  EXPECT_EQ(plan->after.size(), 1u);
}

TEST(CollectivePlan, MaximaAreOfOrderedIntegers) {
  CollectiveCommand c;
  c.axes = {{0, 1, 2}};
  c.collective = CollectiveKind::AllReduce;
  c.reduction = ReductionKind::Max;
  c.dtype = DType::BF16;
  c.src.buffer = c.dst.buffer = 0;
  c.sizes = {64};
  c.srcStrides = c.dstStrides = {1};
  auto at = [](const Ref &) { return uint64_t(1) << 20; };
  auto plan = planCollective(c, {0, at, uint64_t(1) << 21});
  ASSERT_TRUE(bool(plan));
  ASSERT_EQ(plan->calls.size(), 1u);
  EXPECT_EQ(plan->calls[0].dtype, DType::I32);
  EXPECT_EQ(plan->before[0].symbol, "cleave_to_order_2");
  EXPECT_EQ(plan->after[0].symbol, "cleave_from_order_2");
  c.dtype = DType::F8E4M3;
  EXPECT_FALSE(isPlannable(c));
}

} // namespace
