//===- TokenDataTest.cpp - Tests of data and schedules --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Data/TokenData.h"
#include "cleave/Executable/Format/FileIO.h"
#include "cleave/Runtime/Session/LearningRate.h"
#include "llvm/Support/FileSystem.h"
#include "gtest/gtest.h"
#include <unistd.h>

#include <algorithm>

using namespace cleave::runtime;

namespace {

class TokenDataTest : public testing::Test {
protected:
  void SetUp() override {
    ASSERT_FALSE(llvm::sys::fs::createUniqueDirectory("tokens", folder));
  }
  void TearDown() override { llvm::sys::fs::remove_directories(folder); }

  llvm::SmallString<128> folder;
};

TEST(LearningRate, Values) {
  LearningRate s{LearningRate::Kind::Cosine, 1.0, 10, 110, 0.0};
  EXPECT_EQ(s.at(0), 0.0);
  EXPECT_EQ(s.at(5), 0.5);
  EXPECT_EQ(s.at(10), 1.0);
  EXPECT_NEAR(s.at(60), 0.5, 1e-15);
  EXPECT_EQ(s.at(110), 0.0);
  EXPECT_EQ(s.at(500), 0.0);
  s.kind = LearningRate::Kind::Linear;
  s.minimum = 0.5;
  EXPECT_EQ(s.at(60), 0.75);
  EXPECT_EQ(s.at(200), 0.5);
}

TEST(WindowOrder, DealsEachWindowOncePerEpoch) {
  WindowOrder order(103, 11, 1, true, 5);
  EXPECT_EQ(order.size(), 10);
  EXPECT_EQ(order.leftOver(), 2);
  std::vector<int64_t> epochs[2];
  for (int64_t p = 0; p < 20; ++p)
    epochs[p / 10].push_back(order.start(p));
  EXPECT_NE(epochs[0], epochs[1]);
  // A position alone says what comes next.
  WindowOrder again(103, 11, 1, true, 5);
  EXPECT_EQ(again.start(17), epochs[1][7]);
  for (auto &epoch : epochs) {
    std::sort(epoch.begin(), epoch.end());
    for (int64_t i = 0; i < 10; ++i)
      EXPECT_EQ(epoch[i], i * 10);
  }
  EXPECT_EQ(WindowOrder(10, 11, 1, true, 5).size(), 0);
}

TEST_F(TokenDataTest, Files) {
  auto write = [&](const char *name, const std::string &bytes) {
    std::string path = (folder + "/" + name).str();
    EXPECT_FALSE(bool(writeFileAtomically(
        path, [&](llvm::raw_ostream &os) { os << bytes; })));
    return path;
  };
  auto open = [](const std::string &path, const char *type = "u16") {
    return TokenData::open(path, "", type);
  };
  auto message = [&](const std::string &path, const char *type = "u16") {
    auto data = open(path, type);
    return data ? "" : llvm::toString(data.takeError());
  };
  auto at = [](const TokenData &tokens, int64_t i) {
    int64_t token = -1;
    EXPECT_FALSE(bool(tokens.read(i, 1, &token)));
    return token;
  };
  std::string raw("\x01\x00\x02\x01\xff\xff\x00\x00", 8);
  std::string bin = write("a.bin", raw);
  auto data = open(bin);
  ASSERT_TRUE(bool(data));
  EXPECT_EQ(data->size(), 4);
  EXPECT_EQ(at(*data, 1), 258);
  EXPECT_EQ(at(*data, 2), 65535);
  EXPECT_EQ(at(*open(bin, "u32"), 1), 65535);
  EXPECT_EQ(at(*open(bin, "u8"), 3), 1);
  // A file that becomes shorter.
  auto cut = open(write("cut.bin", raw));
  ASSERT_TRUE(bool(cut));
  write("cut.bin", raw);
  EXPECT_EQ(at(*cut, 3), 0) << "another file of this name is not read";
  auto shortened = open((folder + "/cut.bin").str());
  ASSERT_TRUE(bool(shortened));
  ASSERT_EQ(::truncate((folder + "/cut.bin").str().c_str(), 4), 0);
  EXPECT_EQ(at(*shortened, 1), 258);
  int64_t tokens[4];
  EXPECT_NE(llvm::toString(shortened->read(0, 4, tokens))
                .find("the file was shortened while it was read"),
            std::string::npos);
  EXPECT_NE(message(write("odd.bin", "123")).find("not a multiple"),
            std::string::npos);
  EXPECT_NE(message(bin, "f32").find("unknown token type"), std::string::npos);
  EXPECT_NE(message((folder + "/none.bin").str()).find("cannot read"),
            std::string::npos);
  EXPECT_NE(message(write("t.txt", "text")).find("--tokenizer"),
            std::string::npos);

  auto npy = [&](std::string descr, std::string order, std::string shape) {
    std::string header = "{'descr': '" + descr +
                         "', 'fortran_order': " + order +
                         ", 'shape': " + shape + ", }\n";
    std::string bytes("\x93NUMPY\x01\x00", 8);
    bytes += char(header.size());
    bytes += char(0);
    return bytes + header + raw;
  };
  auto good = open(write("g.npy", npy("<u2", "False", "(2, 2)")));
  ASSERT_TRUE(bool(good)) << llvm::toString(good.takeError());
  EXPECT_EQ(good->size(), 4);
  EXPECT_EQ(at(*good, 1), 258);
  EXPECT_NE(message(write("f.npy", npy("<f4", "False", "(2,)"))).find("<f4"),
            std::string::npos);
  EXPECT_NE(
      message(write("o.npy", npy("<u2", "True", "(2, 2)"))).find("Fortran"),
      std::string::npos);
  EXPECT_NE(
      message(write("l.npy", npy("<u2", "False", "(5,)"))).find("truncated"),
      std::string::npos);
  EXPECT_NE(message(write("n.npy", "nothing of it")).find("not a NumPy"),
            std::string::npos);
}

} // namespace
