//===- CollectiveOrderTest.cpp - Whether ranks wait for each other
//----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Format/CollectiveOrder.h"
#include "gtest/gtest.h"

using namespace cleave::runtime;

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

constexpr CollectiveStreams kinds[] = {CollectiveStreams::One,
                                       CollectiveStreams::OfGroups};

TEST(CollectiveOrder, TransfersThatCross) {
  for (CollectiveStreams streams : kinds) {
    std::string rank = streams == CollectiveStreams::One ? "rank" : "position";
    // A receive that begins early does not keep a send behind it from its turn.
    EXPECT_EQ(findCollectiveDeadlock({position(0, false), position(1, false)},
                                     streams),
              "");
    EXPECT_EQ(
        findCollectiveDeadlock({position(0, true), position(1, true)}, streams),
        "entry 'train' has collectives that wait for each other: " + rank +
            " 0 is at the receive of part 'first' (receives), and " + rank +
            " 1 is at the receive of part 'second' (receives)");
  }
}

/// All ranks agree on a check, before or after a transfer.
Program agreeing(int32_t own, bool first) {
  Program program = position(own, false);
  std::vector<Command> &commands = program.parts[0].commands;
  Command check;
  check.kind = CommandKind::Check;
  commands = {
      transfer(own == 0 ? CollectiveKind::Receive : CollectiveKind::Send,
               1 - own, 0),
      wait(0)};
  commands.insert(first ? commands.begin() : commands.end(), check);
  return program;
}

TEST(CollectiveOrder, AgreementsOfHosts) {
  for (CollectiveStreams streams : kinds) {
    for (bool first : {false, true})
      EXPECT_EQ(findCollectiveDeadlock({agreeing(0, first), agreeing(1, first)},
                                       streams),
                "");
    std::string stuck = findCollectiveDeadlock(
        {agreeing(0, false), agreeing(1, true)}, streams);
    EXPECT_NE(stuck.find("the agreement on a check of part 'second'"),
              std::string::npos)
        << stuck;
    // One that the other position does not come to.
    Program without = agreeing(1, true);
    without.parts[0].commands.erase(without.parts[0].commands.begin());
    EXPECT_NE(findCollectiveDeadlock({agreeing(0, false), without}, streams),
              "");
  }
}

} // namespace
