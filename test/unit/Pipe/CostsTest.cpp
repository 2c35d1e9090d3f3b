//===- CostsTest.cpp - How a machine is described -------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Pipe/Transforms/Costs.h"
#include "gtest/gtest.h"

using namespace cleave::pipe;

namespace {

TEST(Machine, Rates) {
  std::string error;
  auto machine = MachineModel::parse("", error);
  ASSERT_TRUE(machine) << error;
  EXPECT_EQ(machine->flops, 1e11);
  EXPECT_EQ(machine->memory, 2e10);
  EXPECT_EQ(machine->link, 5e9);
  machine = MachineModel::parse(" link=1e10, flops = 2.5e12", error);
  ASSERT_TRUE(machine) << error;
  EXPECT_EQ(machine->flops, 2.5e12);
  EXPECT_EQ(machine->memory, 2e10);
  EXPECT_EQ(machine->link, 1e10);
  // 2 s of flops, 3 of memory, 0.5 of the link.
  EXPECT_DOUBLE_EQ(machine->secondsOf({5e12, 6e10, 5e9}), 5.5);
}

/// Rates by classes take the place of flops and bytes; a class without a rate
/// takes the nearest one.
TEST(Machine, RatesOfClasses) {
  Work work{10e12, 6e10, 5e9, 4e12, 2e12, 1e12, 3e12, 1e10};
  std::string error;
  auto machine = MachineModel::parse(
      "contraction=2e12,contraction-16bit=4e12,attention=1e12,streamed=5e9",
      error);
  ASSERT_TRUE(machine) << error;
  EXPECT_DOUBLE_EQ(machine->secondsOf(work), 2 + 0.5 + 0.25 + 3 + 2 + 1);
  machine->contraction8 = 8e12;
  EXPECT_DOUBLE_EQ(machine->secondsOf(work), 2 + 0.5 + 0.125 + 3 + 2 + 1);
  machine = MachineModel::parse("contraction=2e12,memory=1e10", error);
  ASSERT_TRUE(machine) << error;
  EXPECT_DOUBLE_EQ(machine->secondsOf(work), 2 + 1 + 0.5 + 1.5 + 1 + 1);
}

/// Of all sizes the one of the least time: latencies of all buckets, and
/// the last one's bytes.
TEST(Machine, BucketsOfLeastTime) {
  std::string error;
  for (llvm::StringRef rates : {"", "latency=1e-4,link=1e9"})
    for (double bytes : {1e4, 1e6, 3e9}) {
      auto machine = MachineModel::parse(rates, error);
      ASSERT_TRUE(machine) << error;
      auto seconds = [&](double bucket) {
        return bytes / bucket * machine->latency + bucket / machine->link;
      };
      double best = machine->bucketBytes(bytes);
      for (double factor = 0.1; factor < 10; factor *= 1.1)
        EXPECT_GE(seconds(best * factor), seconds(best) * (1 - 1e-12));
    }
}

TEST(Machine, BadRates) {
  for (llvm::StringRef text : {"flops", "flops=", "flops=0", "flops=-1",
                               "flops=nan", "flops=inf", "speed=1", "1e11"}) {
    std::string error;
    EXPECT_FALSE(MachineModel::parse(text, error)) << text.str();
    EXPECT_TRUE(llvm::StringRef(error).starts_with(
        ("'" + text + "' is not a rate; write flops=").str()))
        << error;
  }
}

} // namespace
