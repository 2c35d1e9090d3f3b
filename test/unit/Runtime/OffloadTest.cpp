//===- OffloadTest.cpp - Tests of the second tier -------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Runtime/CPU/FileTier.h"
#include "gtest/gtest.h"

#include <numeric>
#include <vector>

using namespace cleave::runtime;

namespace {

constexpr int64_t kBytes = 1 << 20;

std::unique_ptr<FileTier> makeTier(int64_t bytes = 2 * kBytes) {
  auto tier = FileTier::create("", bytes);
  EXPECT_TRUE(bool(tier)) << llvm::toString(tier.takeError());
  return tier ? std::move(*tier) : nullptr;
}

TEST(FileTier, BeginsWithZeros) {
  auto tier = makeTier();
  std::vector<char> read(kBytes, 1);
  EXPECT_FALSE(bool(tier->read(kBytes, read.data(), kBytes)));
  EXPECT_EQ(read, std::vector<char>(kBytes, 0));
}

TEST(FileTier, CopiesInTheOrderInWhichCopiesBegin) {
  auto tier = makeTier();
  std::vector<char> first(kBytes), second(kBytes), read(kBytes);
  std::iota(first.begin(), first.end(), 1);
  std::iota(second.begin(), second.end(), 2);
  FileTier::Move out, in, again;
  out.memory = first.data();
  again.memory = second.data();
  in.memory = read.data();
  for (FileTier::Move *move : {&out, &in, &again}) {
    move->offset = 4096;
    move->bytes = kBytes;
    move->evicts = move != &in;
    tier->start(*move);
  }
  EXPECT_TRUE(tier->wait(in));
  EXPECT_EQ(read, first);
  tier->drain();
  EXPECT_TRUE(tier->wait(out) && tier->wait(again));
  // A copy can run again.
  tier->start(in);
  EXPECT_TRUE(tier->wait(in));
  EXPECT_EQ(read, second);
  EXPECT_EQ(tier->failure(), "");
}

TEST(FileTier, FailsBeyondItsEnd) {
  auto tier = makeTier(100);
  std::vector<char> data(200);
  EXPECT_TRUE(llvm::toString(tier->read(0, data.data(), 200))
                  .find("cannot read 100 of 200 bytes") != std::string::npos);
  EXPECT_NE(tier->failure().find("the file has ended"), std::string::npos);
  // Nothing is read or written any more.
  EXPECT_TRUE(bool(tier->write(0, data.data(), 10)));
}

TEST(FileTier, NeedsAFolder) {
  auto tier = FileTier::create("/nonexistent/folder", 100);
  ASSERT_FALSE(bool(tier));
  EXPECT_EQ(llvm::toString(tier.takeError()),
            "/nonexistent/folder: cannot create the file for what is "
            "offloaded: No such file or directory (--offload-dir, "
            "offload_dir, name another folder)");
}

/// Fetches offloaded buffer 0 to buffer 1, copies it to 2, and evicts that.
Program moving() {
  Program program;
  program.arenaBytes = 256;
  program.tierBytes = 64;
  Part part;
  part.name = "U";
  part.buffers = {{64, "offloaded", true}, {64, "activation"}, {64, "result"}};
  auto add = [&](CommandKind kind, const std::string &label) -> Command & {
    Command &command = part.commands.emplace_back();
    command.kind = kind;
    command.label = label;
    return command;
  };
  add(CommandKind::Fetch, "fetch").move = {{1, 0}, {0, 0}, 64, 7};
  add(CommandKind::Wait, "fetch").wait.token = 7;
  CopyCommand &copy = add(CommandKind::Copy, "copy").copy;
  copy = {{1, 0}, {2, 0}, 4, {16}, {1}, {1}};
  add(CommandKind::Evict, "evict").move = {{2, 0}, {0, 0}, 64, 8};
  add(CommandKind::Wait, "evict").wait.token = 8;
  program.parts.push_back(part);
  Entry &entry = program.entries["train"];
  entry.actions = {{0, 0}};
  entry.rows = {{0, {Column::of({0}), Column::of({0}), Column::of({64})}}};
  return program;
}

std::string problemOf(const Program &program) {
  return llvm::toString(validate(program));
}

TEST(Arrival, IsVerified) {
  EXPECT_EQ(problemOf(moving()), "");
  Program same = moving();
  auto read = parseProgram(toJSON(same));
  ASSERT_TRUE(bool(read)) << llvm::toString(read.takeError());
  EXPECT_TRUE(read->parts[0].commands == same.parts[0].commands);
  EXPECT_EQ(read->tierBytes, 64);
}

TEST(Arrival, AFetchBehindItsReaderIsRefused) {
  Program program = moving();
  std::vector<Command> &commands = program.parts[0].commands;
  std::rotate(commands.begin(), commands.begin() + 2, commands.begin() + 3);
  EXPECT_EQ(problemOf(program),
            "part 'U': command 1 (fetch) fetches buffer 1, which an earlier "
            "command uses");
}

TEST(Arrival, AWaitBehindAReaderIsRefused) {
  Program program = moving();
  std::swap(program.parts[0].commands[1], program.parts[0].commands[2]);
  EXPECT_EQ(problemOf(program), "part 'U': command 1 (copy) uses memory of "
                                "fetch, which has not arrived");
}

TEST(Arrival, MemoryThatOverlapsCounts) {
  Program program = moving();
  // The copy goes where the fetch arrives.
  program.entries["train"].rows[0].columns[2] = Column::of({32});
  std::swap(program.parts[0].commands[1], program.parts[0].commands[2]);
  program.parts[0].commands[1].copy.src = {2, 0};
  EXPECT_EQ(problemOf(program), "part 'U': command 1 (copy) uses memory of "
                                "fetch, which has not arrived");
}

TEST(Arrival, AnEvictionEndsBeforeItsMemoryIsUsed) {
  Program program = moving();
  std::vector<Command> &commands = program.parts[0].commands;
  commands.insert(commands.begin() + 4, commands[2]);
  EXPECT_EQ(problemOf(program), "part 'U': command 4 (copy) uses memory of "
                                "evict, which has not arrived");
}

TEST(Arrival, OtherCommandsCannotUseTheTier) {
  Program program = moving();
  program.parts[0].commands[2].copy.src = {0, 0};
  EXPECT_EQ(problemOf(program),
            "part 'U', command 2 (copy): 'src' names buffer 0, which is in "
            "the second tier");
  program = moving();
  program.parts[0].commands[0].move.tier = {1, 0};
  EXPECT_EQ(problemOf(program),
            "part 'U', command 0 (fetch): 'tier' names buffer 1, which is "
            "not in the second tier");
  program = moving();
  program.tierBytes = 32;
  EXPECT_EQ(problemOf(program),
            "entry 'train': buffer 0 of part 'U' of 64 bytes at offset 0 does "
            "not fit the second tier of 32");
}

} // namespace
