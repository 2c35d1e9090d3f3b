//===- DelayWaitsTest.cpp -------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Transforms/DelayWaits.h"
#include "cleave/Executable/Format/Rows.h"
#include "gtest/gtest.h"
#include <functional>

using namespace cleave;
using namespace cleave::runtime;

namespace {

Command exchange(int32_t token, int32_t src, int32_t dst) {
  Command command;
  command.kind = CommandKind::Collective;
  command.label = "exchange" + std::to_string(token);
  command.collective.token = token;
  command.collective.src.buffer = src;
  command.collective.dst.buffer = dst;
  command.collective.sizes = {16};
  command.collective.srcStrides = command.collective.dstStrides = {1};
  return command;
}

/// A gather of two blocks of 4 floats each, from byte `from` of buffer 0 on, to
/// byte `to` of buffer 1 on.
Command gather(int32_t token, int64_t from, int64_t to) {
  Command command = exchange(token, 0, 1);
  command.collective.collective = CollectiveKind::AllGather;
  command.collective.src.offset = from;
  command.collective.dst.offset = to;
  command.collective.sizes = {4};
  command.collective.dstOffsets = {0, 4};
  return command;
}

/// The product of a 2 x 4 matrix, from byte `offset` of buffer 1 on, and one of
/// 4 x 2 in buffer 2, in buffer 3.
Command product(int64_t offset) {
  Command command;
  command.kind = CommandKind::Contract;
  command.label = "product" + std::to_string(offset);
  ContractCommand &c = command.contract;
  c.m = c.n = 2;
  c.k = c.lda = 4;
  c.ldb = c.ldc = 2;
  c.a = {1, offset};
  c.b = {2, 0};
  c.c = {3, 0};
  return command;
}

Command waitFor(int32_t token) {
  Command command;
  command.kind = CommandKind::Wait;
  command.label = "wait" + std::to_string(token);
  command.wait.token = token;
  return command;
}

Command fill(int32_t buffer) {
  Command command;
  command.kind = CommandKind::Fill;
  command.label = "fill" + std::to_string(buffer);
  command.fill.dst.buffer = buffer;
  return command;
}

/// The labels of the commands of a part of six buffers of 64 bytes, after waits
/// were delayed; `actions` are rows of offsets.
std::vector<std::string> labels(std::vector<Command> commands,
                                std::vector<std::vector<int64_t>> actions) {
  Program program;
  Part &part = program.parts.emplace_back();
  part.buffers.resize(6);
  for (Buffer &buffer : part.buffers)
    buffer.bytes = 64;
  part.commands = std::move(commands);
  std::vector<PlacedAction> placed;
  for (std::vector<int64_t> &offsets : actions)
    placed.push_back({{0, 0}, std::move(offsets)});
  setActions(program.entries["train"], placed);
  delayWaits(program);
  std::vector<std::string> result;
  for (const Command &command : program.parts.front().commands)
    result.push_back(command.label);
  return result;
}

const std::vector<int64_t> kApart = {0, 64, 128, 192, 256, 320};

using Labels = std::vector<std::string>;

TEST(DelayWaits, RunsWhatTouchesOtherMemory) {
  EXPECT_EQ(labels({exchange(0, 0, 1), waitFor(0), fill(2), fill(1), fill(3)},
                   {kApart}),
            (Labels{"exchange0", "fill2", "wait0", "fill1", "fill3"}));
}

TEST(DelayWaits, WhatIsSentMustStay) {
  EXPECT_EQ(labels({exchange(0, 0, 1), waitFor(0), fill(2), fill(0)}, {kApart}),
            (Labels{"exchange0", "fill2", "wait0", "fill0"}));
}

TEST(DelayWaits, NothingNeedsIt) {
  EXPECT_EQ(labels({exchange(0, 0, 1), waitFor(0), fill(2)}, {kApart}),
            (Labels{"exchange0", "fill2", "wait0"}));
}

/// In one action only, buffer 2 begins in the last byte of buffer 0.
TEST(DelayWaits, PlacesOfEveryActionCount) {
  EXPECT_EQ(labels({exchange(0, 0, 1), waitFor(0), fill(3), fill(2)},
                   {kApart, {1000, 64, 1063, 192, 256, 320}}),
            (Labels{"exchange0", "fill3", "wait0", "fill2"}));
}

TEST(DelayWaits, SeveralAreEndedInOrder) {
  EXPECT_EQ(labels({exchange(0, 0, 1), waitFor(0), exchange(1, 2, 3),
                    waitFor(1), fill(4), fill(3), fill(1)},
                   {kApart}),
            (Labels{"exchange0", "exchange1", "fill4", "wait1", "fill3",
                    "wait0", "fill1"}));
  EXPECT_EQ(labels({exchange(0, 0, 1), waitFor(0), exchange(1, 1, 2),
                    waitFor(1), fill(4)},
                   {kApart}),
            (Labels{"exchange0", "wait0", "exchange1", "fill4", "wait1"}));
}

/// Products read chunks of a buffer while other chunks arrive in it.
TEST(DelayWaits, ChunksOfABufferAreApart) {
  EXPECT_EQ(labels({gather(0, 0, 0), waitFor(0), gather(1, 16, 32), waitFor(1),
                    product(0), product(32)},
                   {kApart}),
            (Labels{"exchange0", "exchange1", "wait0", "product0", "wait1",
                    "product32"}));
  // From the middle of one chunk to that of the next.
  EXPECT_EQ(labels({gather(0, 0, 0), waitFor(0), gather(1, 16, 32), waitFor(1),
                    product(16), product(32)},
                   {kApart}),
            (Labels{"exchange0", "exchange1", "wait0", "wait1", "product16",
                    "product32"}));
  // Other commands use whole buffers.
  EXPECT_EQ(labels({gather(0, 0, 0), waitFor(0), fill(2), fill(1)}, {kApart}),
            (Labels{"exchange0", "fill2", "wait0", "fill1"}));
}

/// A matrix between two rows of a buffer that is sent.
TEST(DelayWaits, RangesReachFromTheFirstElementToTheLast) {
  Command rows = gather(0, 0, 0);
  rows.collective.sizes = {2, 2};
  rows.collective.dstStrides = {2, 1};
  rows.collective.srcStrides = {12, 1};
  auto at = [](int64_t offset) {
    Command command = product(0);
    command.contract.c = {0, offset};
    command.contract.a = {4, 0};
    return command;
  };
  // Rows of 2 floats at bytes 0 and 48 of buffer 0.
  EXPECT_EQ(labels({rows, waitFor(0), at(16), fill(5)}, {kApart}),
            (Labels{"exchange0", "wait0", "product0", "fill5"}));
  rows.collective.srcStrides = {2, 1};
  EXPECT_EQ(labels({rows, waitFor(0), at(16), fill(5)}, {kApart}),
            (Labels{"exchange0", "product0", "fill5", "wait0"}));
}

//===----------------------------------------------------------------------===//
// Over parts
//===----------------------------------------------------------------------===//

/// A part and the rows of its runs.
struct TestPart {
  std::vector<Command> commands;
  std::vector<std::vector<int64_t>> runs = {kApart};
};

/// The labels of the commands of each part, run in the order of `actions`,
/// after waits were delayed over parts.
std::vector<std::vector<std::string>>
labelsOver(const std::vector<TestPart> &parts,
           const std::vector<int32_t> &actions,
           const std::function<void(Program &)> &change = {}) {
  Program program;
  program.microBatches = 4;
  std::vector<size_t> done(parts.size(), 0);
  for (const TestPart &own : parts) {
    Part &part = program.parts.emplace_back();
    part.buffers.resize(6);
    for (Buffer &buffer : part.buffers)
      buffer.bytes = 64;
    part.commands = own.commands;
  }
  std::vector<PlacedAction> placed;
  for (int32_t part : actions) {
    size_t run = done[static_cast<size_t>(part)]++;
    placed.push_back({{part, static_cast<int32_t>(run)},
                      parts[static_cast<size_t>(part)].runs[run]});
  }
  setActions(program.entries["train"], placed);
  if (change)
    change(program);
  delayWaits(program);
  delayWaitsOverParts(program);
  std::vector<std::vector<std::string>> result;
  for (const Part &part : program.parts)
    for (result.emplace_back(); const Command &command : part.commands) {
      result.back().push_back(command.label);
      // Both ends say so where the wait is in another part.
      if (command.kind == CommandKind::Wait && command.wait.transfer)
        result.back().back() += " of " + std::to_string(command.wait.token);
      if (command.kind == CommandKind::Collective && command.collective.spans)
        result.back().back() +=
            " as " + std::to_string(command.collective.token);
    }
  return result;
}

using PartLabels = std::vector<Labels>;

TEST(DelayWaitsOverParts, WaitsBeforeTheFirstUse) {
  EXPECT_EQ(labelsOver({{{exchange(0, 0, 1), waitFor(0)}},
                        {{fill(2), fill(3)}},
                        {{fill(4), fill(1), fill(5)}}},
                       {0, 1, 2}),
            (PartLabels{{"exchange0 as 1"},
                        {"fill2", "fill3"},
                        {"fill4", "wait0 of 1", "fill1", "fill5"}}));
}

TEST(DelayWaitsOverParts, WaitsBehindTheLastPartIfNothingUsesIt) {
  EXPECT_EQ(
      labelsOver({{{exchange(0, 0, 1), waitFor(0)}}, {{fill(2)}}}, {0, 1}),
      (PartLabels{{"exchange0 as 1"}, {"fill2", "wait0 of 1"}}));
}

TEST(DelayWaitsOverParts, SeveralKeepTheirOrder) {
  EXPECT_EQ(labelsOver({{{exchange(0, 0, 1), waitFor(0), exchange(1, 2, 3),
                          waitFor(1)}},
                        {{fill(4), fill(5)}}},
                       {0, 1}),
            (PartLabels{{"exchange0 as 2", "exchange1 as 3"},
                        {"fill4", "fill5", "wait0 of 2", "wait1 of 3"}}));
}

/// Parts of micro-batches run meanwhile; one of them in the memory of the
/// exchange, in its second run.
TEST(DelayWaitsOverParts, PartsOfMicroBatchesArePassed) {
  TestPart each{{fill(2)}, {kApart, kApart}};
  EXPECT_EQ(
      labelsOver({{{exchange(0, 0, 1), waitFor(0)}}, each, {{fill(1)}}},
                 {0, 1, 1, 2}),
      (PartLabels{{"exchange0 as 1"}, {"fill2"}, {"wait0 of 1", "fill1"}}));
  each.runs[1] = {0, 64, 100, 192, 256, 320};
  EXPECT_EQ(labelsOver({{{exchange(0, 0, 1), waitFor(0)}}, each, {{fill(1)}}},
                       {0, 1, 1, 2}),
            (PartLabels{{"exchange0", "wait0"}, {"fill2"}, {"fill1"}}));
}

/// What is left under way by a part of a micro-batch ends in it.
TEST(DelayWaitsOverParts, PartsOfMicroBatchesKeepTheirWaits) {
  EXPECT_EQ(labelsOver({{{exchange(0, 0, 1), waitFor(0)}, {kApart, kApart}},
                        {{fill(2)}}},
                       {0, 0, 1}),
            (PartLabels{{"exchange0", "wait0"}, {"fill2"}}));
}

/// No rank waits in a part that may be skipped, nor behind its flag.
TEST(DelayWaitsOverParts, PartsThatMayBeSkippedHaveNoWait) {
  auto flagIn = [](int32_t buffer) {
    return
        [buffer](Program &program) { program.parts[1].unless = {buffer, 0}; };
  };
  EXPECT_EQ(
      labelsOver({{{exchange(0, 0, 1), waitFor(0)}}, {{fill(2)}}, {{fill(3)}}},
                 {0, 1, 2}, flagIn(2)),
      (PartLabels{{"exchange0 as 1"}, {"fill2"}, {"fill3", "wait0 of 1"}}));
  EXPECT_EQ(
      labelsOver({{{exchange(0, 0, 1), waitFor(0)}}, {{fill(1)}}, {{fill(3)}}},
                 {0, 1, 2}, flagIn(2)),
      (PartLabels{{"exchange0", "wait0"}, {"fill1"}, {"fill3"}}));
  EXPECT_EQ(
      labelsOver({{{exchange(0, 0, 1), waitFor(0)}}, {{fill(2)}}, {{fill(3)}}},
                 {0, 1, 2}, flagIn(1)),
      (PartLabels{{"exchange0", "wait0"}, {"fill2"}, {"fill3"}}));
}

} // namespace
