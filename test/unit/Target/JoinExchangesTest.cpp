//===- JoinExchangesTest.cpp ----------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Target/Program/JoinExchanges.h"
#include "cleave/Runtime/Core/Rows.h"
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
std::vector<Command> joined(std::vector<Command> commands,
                            std::vector<int64_t> offsets = {0, 64, 128, 192,
                                                            256, 320},
                            int64_t maxBytes = 256) {
  Program program;
  Part &part = program.parts.emplace_back();
  part.buffers.resize(6);
  for (Buffer &buffer : part.buffers)
    buffer.bytes = 64;
  part.commands = std::move(commands);
  setActions(program.entries["train"], {{{0, 0}, std::move(offsets)}});
  joinExchanges(program, maxBytes);
  return program.parts.front().commands;
}

/// Exchanges as lists of the buffers of their blocks, each followed by its
/// wait; other commands by their labels.
std::string text(const std::vector<Command> &commands) {
  std::string result;
  for (size_t i = 0; i < commands.size(); ++i) {
    const Command &command = commands[i];
    if (i > 0)
      result += ' ';
    if (command.kind != CommandKind::Collective) {
      result += command.label;
      continue;
    }
    result += '[' + std::to_string(command.collective.src.buffer);
    for (const ExchangeBlock &block : command.collective.more)
      result += ' ' + std::to_string(block.src.buffer);
    result += ']';
    ++i;
    if (i == commands.size() || commands[i].kind != CommandKind::Wait ||
        commands[i].wait.token != command.collective.token)
      result += " without its wait";
  }
  return result;
}

TEST(JoinExchanges, SmallOnesGoTogether) {
  auto commands = joined(sequence(
      {exchange(0, 0), {fill(3)}, exchange(1, 1), exchange(2, 2), {fill(4)}}));
  EXPECT_EQ(text(commands), "fill3 fill4 [0 1 2]");
  EXPECT_EQ(commands[2].label, "sum0 and 2 more");
}

TEST(JoinExchanges, MemoryIsNotTouchedBefore) {
  EXPECT_EQ(text(joined(sequence(
                {exchange(0, 0), exchange(1, 1), {fill(0)}, exchange(2, 2)}))),
            "[0 1] fill0 [2]");
}

/// Buffer 3 begins in the last byte of buffer 1.
TEST(JoinExchanges, NorIsWhatTakesItsPlace) {
  EXPECT_EQ(
      text(joined(
          sequence({exchange(0, 0), exchange(1, 1), {fill(3)}, exchange(2, 2)}),
          {0, 64, 256, 127, 512, 640})),
      "[0 1] fill3 [2]");
}

TEST(JoinExchanges, OneThatReadsAnotherComesAfterIt) {
  auto second = exchange(1, 1);
  second[0].collective.src.buffer = 0;
  EXPECT_EQ(text(joined(sequence({exchange(0, 0), second}))), "[0] [0]");
}

TEST(JoinExchanges, BucketsAreFull) {
  EXPECT_EQ(
      text(joined(sequence({exchange(0, 0), exchange(1, 1), exchange(2, 2),
                            exchange(3, 3), exchange(4, 4)}))),
      "[0 1 2 3] [4]");
  EXPECT_EQ(text(joined(sequence({exchange(0, 0), exchange(1, 1)}),
                        {0, 64, 128, 192, 256, 320}, 63)),
            "[0] [1]");
}

TEST(JoinExchanges, WhatDiffersGoesApart) {
  auto other = [](auto change) {
    auto commands = exchange(1, 1);
    change(commands[0].collective);
    return text(joined(sequence({exchange(0, 0), commands, exchange(2, 2)})));
  };
  EXPECT_EQ(other([](auto &c) { c.reduction = Reduction::Max; }), "[0 2] [1]");
  EXPECT_EQ(other([](auto &c) { c.dtype = DType::I32; }), "[0 2] [1]");
  EXPECT_EQ(other([](auto &c) { c.axes = {{1, 1, 2}}; }), "[0 2] [1]");
  EXPECT_EQ(other([](auto &c) { c.collective = CollectiveKind::Permute; }),
            "[1] [0 2]");
}

} // namespace
