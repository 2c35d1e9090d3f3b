//===- DeferChecksTest.cpp ------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Transforms/DeferChecks.h"
#include "cleave/Executable/Format/Rows.h"
#include "gtest/gtest.h"

using namespace cleave;
using namespace cleave::runtime;

namespace {

/// A letter for each command: c checks, w writes to the parameter, t to the
/// second tier, and f to other memory.
Part partOf(llvm::StringRef commands) {
  Part part;
  part.buffers.resize(3);
  for (Buffer &buffer : part.buffers)
    buffer.bytes = 64;
  part.buffers[2].tier = true;
  for (char letter : commands) {
    Command &command = part.commands.emplace_back();
    command.kind = letter == 'c' ? CommandKind::Check : CommandKind::Fill;
    command.check.flag.buffer = 0;
    command.fill.dst.buffer = letter == 'w' ? 1 : letter == 't' ? 2 : 0;
  }
  return part;
}

/// The commands with capital letters for checks that still stop the step, after
/// others were deferred. Entries are lists of parts.
std::vector<std::string> deferred(std::vector<std::string> parts,
                                  std::vector<std::vector<int32_t>> entries) {
  Program program;
  Tensor &parameter = program.tensors.emplace_back();
  parameter.role = Role::Parameter;
  parameter.dtype = DType::F32;
  parameter.shape = {16};
  parameter.offset = 128;
  for (const std::string &commands : parts)
    program.parts.push_back(partOf(commands));
  for (auto [index, actions] : llvm::enumerate(entries)) {
    std::vector<PlacedAction> placed;
    for (int32_t part : actions)
      placed.push_back({{part, 0}, {0, 128, 0}});
    setActions(program.entries["entry" + std::to_string(index)], placed);
  }
  deferChecks(program);
  for (auto [text, part] : llvm::zip_equal(parts, program.parts))
    for (auto [letter, command] : llvm::zip_equal(text, part.commands))
      if (command.kind == CommandKind::Check && !command.check.deferred)
        letter = 'C';
  return parts;
}

using Texts = std::vector<std::string>;

TEST(DeferChecks, TheLastOneStops) {
  EXPECT_EQ(deferred({"fcf", "c", "fcw"}, {{0, 1, 2}}),
            (Texts{"fcf", "c", "fCw"}));
  EXPECT_EQ(deferred({"c", "f"}, {{0, 1}}), (Texts{"C", "f"}));
  EXPECT_EQ(deferred({"f"}, {{0}}), (Texts{"f"}));
}

TEST(DeferChecks, NothingIsWrittenBeforeThatIsKept) {
  EXPECT_EQ(deferred({"ccwc", "fc"}, {{0, 1}}), (Texts{"cCwc", "fC"}));
  EXPECT_EQ(deferred({"ctc"}, {{0}}), (Texts{"CtC"}));
  // An update before all checks is none between them.
  EXPECT_EQ(deferred({"wccw"}, {{0}}), (Texts{"wcCw"}));
}

TEST(DeferChecks, APartOfSeveralEntries) {
  // The check is the last of the second entry.
  EXPECT_EQ(deferred({"c", "cw", "f"}, {{0, 1}, {0, 2}}),
            (Texts{"C", "Cw", "f"}));
  // Micro-batches.
  EXPECT_EQ(deferred({"cf", "cw"}, {{0, 0, 0, 1}}), (Texts{"cf", "Cw"}));
  EXPECT_EQ(deferred({"cf"}, {{0, 0}}), (Texts{"Cf"}));
}

} // namespace
