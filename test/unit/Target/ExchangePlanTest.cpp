//===- ExchangePlanTest.cpp - Collectives as calls of a library -----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/CUDA/ExchangePlan.h"
#include "gtest/gtest.h"

using namespace cleave::runtime;
using namespace cleave::runtime::cuda;

namespace {

Command transfer(CollectiveKind kind, int32_t root, int32_t token) {
  Command command;
  command.kind = CommandKind::Collective;
  command.label = kind == CollectiveKind::Send ? "sends" : "receives";
  command.collective.collective = kind;
  command.collective.axes = {{0, 1, 2}};
  command.collective.root = root;
  command.collective.token = token;
  return command;
}

Command wait(int32_t token) {
  Command command;
  command.kind = CommandKind::Wait;
  command.wait = {token, /*transfer=*/true};
  return command;
}

/// The program of one of two positions, each of which sends and receives.
Program position(int32_t own, bool waitsFirst) {
  Program program;
  program.mesh = {{"pp", 2, false}};
  program.pipelineAxis = 0;
  program.position = own;
  Part part;
  part.name = own == 0 ? "first" : "second";
  part.commands = {transfer(CollectiveKind::Receive, 1 - own, 0), wait(0),
                   transfer(CollectiveKind::Send, 1 - own, 1), wait(1)};
  if (!waitsFirst)
    std::swap(part.commands[1], part.commands[2]);
  program.parts = {part};
  program.entries["train"].actions = {{0, 0}};
  return program;
}

TEST(ExchangePlan, TransfersThatCross) {
  // A receive that begins early does not keep a send behind it from its turn.
  EXPECT_EQ(findExchangeDeadlock({position(0, false), position(1, false)}), "");
  EXPECT_EQ(findExchangeDeadlock({position(0, true), position(1, true)}),
            "entry 'train' has collectives that wait for each other: rank 0 is "
            "at the receive of part 'first' (receives), and rank 1 is at the "
            "receive of part 'second' (receives)");
}

TEST(ExchangePlan, OnlyStridesAreStaged) {
  CollectiveCommand c;
  c.axes = {{0, 1, 2}};
  c.collective = CollectiveKind::AllReduce;
  c.src.buffer = c.dst.buffer = 0;
  c.sizes = {8, 16};
  c.srcStrides = c.dstStrides = {16, 1};
  EXPECT_EQ(exchangeStagingBytes(c), 0);
  // Any order of the dimensions is one order of the elements.
  c.srcStrides = c.dstStrides = {1, 8};
  EXPECT_EQ(exchangeStagingBytes(c), 0);
  c.srcStrides = c.dstStrides = {32, 1};
  EXPECT_EQ(exchangeStagingBytes(c), 8 * 16 * 4);
  auto at = [](const Ref &) { return uint64_t(1) << 20; };
  auto plan = planExchange(c, {0, at, uint64_t(1) << 21});
  ASSERT_TRUE(bool(plan));
  EXPECT_EQ(plan->before.size(), 1u);
  ASSERT_EQ(plan->calls.size(), 1u);
  EXPECT_EQ(plan->calls[0].src, uint64_t(1) << 21);
  EXPECT_EQ(plan->calls[0].dst, uint64_t(1) << 21);
  EXPECT_EQ(plan->after.size(), 1u);
}

TEST(ExchangePlan, MaximaAreOfOrderedIntegers) {
  CollectiveCommand c;
  c.axes = {{0, 1, 2}};
  c.collective = CollectiveKind::AllReduce;
  c.reduction = Reduction::Max;
  c.dtype = DType::BF16;
  c.src.buffer = c.dst.buffer = 0;
  c.sizes = {64};
  c.srcStrides = c.dstStrides = {1};
  auto at = [](const Ref &) { return uint64_t(1) << 20; };
  auto plan = planExchange(c, {0, at, uint64_t(1) << 21});
  ASSERT_TRUE(bool(plan));
  ASSERT_EQ(plan->calls.size(), 1u);
  EXPECT_EQ(plan->calls[0].dtype, DType::I32);
  EXPECT_EQ(plan->before[0].symbol, "cleave_to_order_2");
  EXPECT_EQ(plan->after[0].symbol, "cleave_from_order_2");
  c.dtype = DType::F8E4M3;
  EXPECT_FALSE(isPlannable(c));
}

} // namespace
