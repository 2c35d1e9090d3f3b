//===- CommandDataTest.cpp - Tests of tokens that a command writes --------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Data/CommandData.h"
#include "gtest/gtest.h"

#include <chrono>

using namespace cleave::runtime;

namespace {

bool never() { return false; }

/// The next `count` sequences, or the message of an error.
std::string next(CommandData &data, int64_t count, int64_t length,
                 std::vector<std::vector<int64_t>> &found) {
  std::vector<int64_t> row(static_cast<size_t>(length));
  for (int64_t i = 0; i < count; ++i) {
    llvm::Expected<bool> read = data.read(1, row.data(), never);
    if (!read)
      return llvm::toString(read.takeError());
    if (!*read)
      return "interrupted";
    found.push_back(row);
  }
  return "";
}

/// The error of reading one sequence of two tokens.
std::string mistake(const char *command) {
  CommandData data(command, "");
  data.setSequences(2, 0);
  std::vector<std::vector<int64_t>> found;
  return next(data, 1, 2, found);
}

/// What `seek` says.
std::string difference(CommandData &data, const CommandPosition &position,
                       bool compare) {
  llvm::Expected<std::string> found = data.seek(position, compare);
  return found ? *found : llvm::toString(found.takeError());
}

TEST(CommandData, FormsOfRows) {
  CommandData data("printf '1 2 3\\n[4, 5]\\n{6,7}\\n\\n(8)\\t9,,10\\r\\n-11'",
                   "");
  data.setSequences(11, 0);
  std::vector<std::vector<int64_t>> found;
  ASSERT_EQ(next(data, 2, 11, found), "");
  std::vector<int64_t> row{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, -11};
  EXPECT_EQ(found[0], row);
  EXPECT_EQ(found[1], row);
  EXPECT_EQ(data.takeNote(),
            "data command: an epoch has 6 rows with 11 tokens, 1 sequences");
  EXPECT_EQ(data.takeNote(), "");
}

/// Rows of 1, 2, ... tokens, which count, are joined and cut; the last tokens
/// of an epoch fill no sequence. Each epoch begins anew.
TEST(CommandData, Sequences) {
  for (int64_t length : {1, 2, 3, 7, 40})
    for (int64_t overlap : {0, 1}) {
      if (overlap >= length)
        continue;
      CommandData data("i=0; for n in 1 2 3 4 5 6 7 8 9; do r=; for k in $(seq "
                       "$n); do r=\"$r $i\"; i=$((i+1)); done; echo $r; done",
                       "");
      data.setSequences(length, overlap);
      int64_t step = length - overlap, count = (45 - length) / step + 1;
      std::vector<std::vector<int64_t>> found;
      ASSERT_EQ(next(data, 3 * count, length, found), "");
      for (int64_t i = 0; i < 3 * count; ++i)
        for (int64_t k = 0; k < length; ++k)
          ASSERT_EQ(found[static_cast<size_t>(i)][static_cast<size_t>(k)],
                    i % count * step + k)
              << length << " " << overlap;
      EXPECT_EQ(data.getPosition().epoch, 2);
      EXPECT_EQ(data.getPosition().sequence, count);
      int64_t left = 45 - ((count - 1) * step + length);
      std::string note = data.takeNote();
      EXPECT_NE(note.find(std::to_string(count) + " sequences"),
                std::string::npos);
      EXPECT_EQ(note.find("the last") != std::string::npos, left > 0) << note;
      if (left)
        EXPECT_NE(note.find("the last " + std::to_string(left) + " tokens"),
                  std::string::npos);
    }
}

TEST(CommandData, MoreTokensThanThePipeHolds) {
  CommandData data("seq 0 299999 | tr '\\n' ' '", "");
  data.setSequences(1000, 0);
  std::vector<int64_t> tokens(700 * 1000);
  llvm::Expected<bool> read = data.read(700, tokens.data(), never);
  ASSERT_TRUE(read && *read);
  for (size_t i = 0; i < tokens.size(); ++i)
    ASSERT_EQ(tokens[i], static_cast<int64_t>(i % 300000));
}

TEST(CommandData, EpochsHaveANumber) {
  CommandData data("echo $CLEAVE_EPOCH $CLEAVE_EPOCH", "");
  data.setSequences(2, 0);
  std::vector<std::vector<int64_t>> found;
  ASSERT_EQ(next(data, 3, 2, found), "");
  EXPECT_EQ(found[2], (std::vector<int64_t>{2, 2}));
}

TEST(CommandData, Mistakes) {
  EXPECT_EQ(mistake("echo 1; exit 3"),
            "the data command ended with status 3 after 1 row of epoch 0: that "
            "is not the end of the data");
  // What it wrote before is used.
  EXPECT_EQ(mistake("echo 1; echo 4; kill -9 $$"), "");
  EXPECT_EQ(mistake("echo 1; kill -9 $$"),
            "the data command was ended by signal 9 after 1 row of epoch 0: "
            "that is not the end of the data");
  EXPECT_EQ(mistake("exec 2> /dev/null; no-such-command"),
            "the data command ended with status 127 after 0 rows of epoch 0: "
            "that is not the end of the data");
  EXPECT_EQ(mistake("true"),
            "the data command wrote 0 rows with 0 tokens, which do not fill "
            "one sequence of 2");
  EXPECT_EQ(mistake("echo 7"),
            "the data command wrote 1 row with 1 tokens, which do not fill one "
            "sequence of 2");
  const char *integers = "' is no token id; a row is a line of integers, "
                         "separated by spaces, tabs or commas";
  EXPECT_EQ(mistake("printf '1\\n2x'"),
            std::string("the data command, row 2 of epoch 0: '2x") + integers);
  EXPECT_EQ(mistake("echo 1.5"),
            std::string("the data command, row 1 of epoch 0: '1.") + integers);
  EXPECT_EQ(mistake("echo 1-2"),
            std::string("the data command, row 1 of epoch 0: '1-") + integers);
  EXPECT_EQ(mistake("echo '!no message'"),
            std::string("the data command, row 1 of epoch 0: '!") + integers);
  EXPECT_EQ(mistake("echo - 3"),
            "the data command, row 1 of epoch 0: '-' is no token id");
  EXPECT_EQ(mistake("echo 9223372036854775808"),
            "the data command, row 1 of epoch 0: '9223372036854775808' is no "
            "token id");
  EXPECT_EQ(mistake("echo 1000000000000000000000000"),
            "the data command, row 1 of epoch 0: '100000000000000000000' is no "
            "token id");
}

TEST(CommandData, Seek) {
  const char *text = "seq $((CLEAVE_EPOCH * 100)) $((CLEAVE_EPOCH * 100 + 20))";
  CommandData data(text, "");
  data.setSequences(4, 1);
  std::vector<std::vector<int64_t>> expected;
  std::vector<CommandPosition> positions{data.getPosition()};
  for (int i = 0; i < 15; ++i) {
    ASSERT_EQ(next(data, 1, 4, expected), "");
    positions.push_back(data.getPosition());
  }
  for (size_t at = 0; at < positions.size(); ++at) {
    CommandData other(text, "");
    other.setSequences(4, 1);
    EXPECT_EQ(difference(other, positions[at], /*compare=*/true), "");
    EXPECT_EQ(other.getPosition().digest, positions[at].digest);
    std::vector<std::vector<int64_t>> found;
    ASSERT_EQ(next(other, 15 - static_cast<int64_t>(at), 4, found), "");
    EXPECT_EQ(found, std::vector(expected.begin() + static_cast<ptrdiff_t>(at),
                                 expected.end()));
  }
  // Other rows, and fewer of them.
  CommandData other("seq 0 8; seq 10 30", "");
  other.setSequences(4, 1);
  EXPECT_EQ(difference(other, positions[5], /*compare=*/true),
            "the first 5 sequences of epoch 0 that the data command writes are "
            "not those that were used before");
  EXPECT_EQ(difference(other, positions[5], /*compare=*/false), "");
  CommandData fewer("seq 0 8", "");
  fewer.setSequences(4, 1);
  EXPECT_EQ(difference(fewer, positions[5], /*compare=*/true),
            "the data command wrote 2 sequences in epoch 0, of which 5 were "
            "used before");
  EXPECT_EQ(difference(fewer, positions[5], /*compare=*/false), "");
  EXPECT_EQ(fewer.getPosition().epoch, 2);
}

/// A command that writes nothing is not waited for, and what it has started
/// ends with it.
TEST(CommandData, Interrupted) {
  auto start = std::chrono::steady_clock::now();
  {
    CommandData data("sleep 100 & sleep 100; wait", "");
    data.setSequences(2, 0);
    int64_t row[2];
    llvm::Expected<bool> read = data.read(1, row, [] { return true; });
    ASSERT_TRUE(bool(read));
    EXPECT_FALSE(*read);
  }
  {
    CommandData stubborn("trap '' TERM; echo 1 2; while true; do sleep 1; done",
                         "");
    stubborn.setSequences(2, 0);
    std::vector<std::vector<int64_t>> found;
    EXPECT_EQ(next(stubborn, 1, 2, found), "");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

} // namespace
