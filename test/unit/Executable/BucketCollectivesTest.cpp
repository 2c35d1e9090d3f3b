//===- BucketCollectivesTest.cpp ------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Transforms/BucketCollectives.h"
#include "cleave/Executable/Format/Rows.h"
#include "gtest/gtest.h"

using namespace cleave;
using namespace cleave::runtime;

namespace {

/// An all-reduce in place of 16 numbers over axis 0, and its wait.
std::vector<Command> exchange(int32_t token, int32_t buffer) {
  Command command, wait;
  command.kind = CommandKind::Collective;
  command.label = wait.label = "sum" + std::to_string(token);
  command.collective.axes = {{0, 1, 2}};
  command.collective.sizes = {16};
  command.collective.src.buffer = command.collective.dst.buffer = buffer;
  command.collective.token = wait.wait.token = token;
  wait.kind = CommandKind::Wait;
  return {command, wait};
}

Command fill(int32_t buffer) {
  Command command;
  command.kind = CommandKind::Fill;
  command.label = "fill" + std::to_string(buffer);
  command.fill.dst.buffer = buffer;
  return command;
}

std::vector<Command>
sequence(std::initializer_list<std::vector<Command>> pieces) {
  std::vector<Command> result;
  for (const std::vector<Command> &piece : pieces)
    result.insert(result.end(), piece.begin(), piece.end());
  return result;
}

/// The part after buckets of 256 bytes were made; six buffers of 64 bytes.
std::vector<Command> joined(
    std::vector<Command> commands,
    std::vector<int64_t> offsets = {0, 64, 128, 192, 256, 320},
    llvm::function_ref<int64_t(double)> maxBytes = [](double) { return 256; }) {
  Program program;
  Part &part = program.parts.emplace_back();
  part.buffers.resize(6);
  for (Buffer &buffer : part.buffers)
    buffer.bytes = 64;
  part.commands = std::move(commands);
  setActions(program.entries["train"], {{{0, 0}, std::move(offsets)}});
  bucketCollectives(program, maxBytes);
  return program.parts.front().commands;
}

/// Exchanges as lists of the buffers of their blocks, waits as a dot and the
/// first of these; other commands by their labels.
std::string text(const std::vector<Command> &commands) {
  std::string result;
  std::map<int32_t, int32_t> firstOf;
  for (const Command &command : commands) {
    if (!result.empty())
      result += ' ';
    if (command.kind == CommandKind::Wait) {
      auto it = firstOf.find(command.wait.token);
      result += it == firstOf.end() ? "." : '.' + std::to_string(it->second);
      continue;
    }
    if (command.kind != CommandKind::Collective) {
      result += command.label;
      continue;
    }
    firstOf[command.collective.token] = command.collective.src.buffer;
    result += '[' + std::to_string(command.collective.src.buffer);
    for (const CollectiveBlock &block : command.collective.more)
      result += ' ' + std::to_string(block.src.buffer);
    result += ']';
  }
  return result;
}

TEST(BucketCollectives, SmallOnesGoTogether) {
  auto commands = joined(sequence(
      {exchange(0, 0), {fill(3)}, exchange(1, 1), exchange(2, 2), {fill(4)}}));
  EXPECT_EQ(text(commands), "fill3 [0 1 2] fill4 .0");
  EXPECT_EQ(commands[1].label, "sum0 and 2 more");
}

/// Both begin behind the last of their own, in the order in which they were
/// opened.
TEST(BucketCollectives, OneBeginsBehindItsLast) {
  auto other = exchange(1, 1);
  other[0].collective.dtype = DType::I32;
  EXPECT_EQ(text(joined(sequence({exchange(0, 0),
                                  other,
                                  {fill(3)},
                                  exchange(2, 2),
                                  {fill(4)},
                                  {fill(1)}}))),
            "[1] fill3 [0 2] fill4 .1 fill1 .0");
}

TEST(BucketCollectives, MemoryIsNotTouchedBefore) {
  EXPECT_EQ(text(joined(sequence(
                {exchange(0, 0), exchange(1, 1), {fill(0)}, exchange(2, 2)}))),
            "[0 1] .0 fill0 [2] .2");
}

/// Buffer 3 begins in the last byte of buffer 1.
TEST(BucketCollectives, NorIsWhatTakesItsPlace) {
  EXPECT_EQ(
      text(joined(
          sequence({exchange(0, 0), exchange(1, 1), {fill(3)}, exchange(2, 2)}),
          {0, 64, 256, 127, 512, 640})),
      "[0 1] .0 fill3 [2] .2");
}

TEST(BucketCollectives, OneThatReadsAnotherComesAfterIt) {
  auto second = exchange(1, 1);
  second[0].collective.src.buffer = 0;
  EXPECT_EQ(text(joined(sequence({exchange(0, 0), second}))), "[0] .0 [0] .0");
}

TEST(BucketCollectives, BucketsAreFull) {
  EXPECT_EQ(
      text(joined(sequence({exchange(0, 0), exchange(1, 1), exchange(2, 2),
                            exchange(3, 3), exchange(4, 4)}))),
      "[0 1 2 3] .0 [4] .4");
  EXPECT_EQ(
      text(joined(sequence({exchange(0, 0), exchange(1, 1)}),
                  {0, 64, 128, 192, 256, 320}, [](double) { return 63; })),
      "[0] .0 [1] .1");
}

/// Three all-reduces of 64 bytes of one type, two of another.
TEST(BucketCollectives, ASizeFollowsFromAllThatGoesSo) {
  auto other = [](int32_t token, int32_t buffer) {
    auto commands = exchange(token, buffer);
    commands[0].collective.dtype = DType::I32;
    return commands;
  };
  std::vector<double> asked;
  auto sizeOf = [&](double bytes) -> int64_t {
    asked.push_back(bytes);
    return bytes > 128 ? 128 : 64;
  };
  EXPECT_EQ(text(joined(sequence({exchange(0, 0), other(1, 1), exchange(2, 2),
                                  other(3, 3), exchange(4, 4)}),
                        {0, 64, 128, 192, 256, 320}, sizeOf)),
            "[0 2] [1] .1 [3] .0 .3 [4] .4");
  EXPECT_EQ(asked, (std::vector<double>{192, 128}));
}

TEST(BucketCollectives, WhatDiffersGoesApart) {
  auto other = [](auto change) {
    auto commands = exchange(1, 1);
    change(commands[0].collective);
    return text(joined(sequence({exchange(0, 0), commands, exchange(2, 2)})));
  };
  EXPECT_EQ(other([](auto &c) { c.reduction = ReductionKind::Max; }),
            "[0 2] [1] .0 .1");
  EXPECT_EQ(other([](auto &c) { c.dtype = DType::I32; }), "[0 2] [1] .0 .1");
  EXPECT_EQ(other([](auto &c) { c.axes = {{1, 1, 2}}; }), "[0 2] [1] .0 .1");
  EXPECT_EQ(other([](auto &c) { c.collective = CollectiveKind::Permute; }),
            "[1] .1 [0 2] .0");
}

} // namespace
