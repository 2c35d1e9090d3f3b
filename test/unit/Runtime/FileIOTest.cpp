//===- FileIOTest.cpp - Tests of reading and writing files ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Format/FileIO.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "gtest/gtest.h"

#include <sys/stat.h>
#include <thread>

using namespace cleave::runtime;
namespace fs = llvm::sys::fs;

namespace {

class FileIO : public testing::Test {
protected:
  void SetUp() override {
    ASSERT_FALSE(fs::createUniqueDirectory("files", folder));
  }
  void TearDown() override { fs::remove_directories(folder); }

  std::string in(const llvm::Twine &name) const {
    return (folder + "/" + name).str();
  }
  /// The message of writing `text`, or "".
  static std::string write(const std::string &path, llvm::StringRef text) {
    return llvm::toString(
        writeFileAtomically(path, [&](llvm::raw_ostream &os) { os << text; }));
  }
  static std::string read(const std::string &path) {
    auto buffer = llvm::MemoryBuffer::getFile(path);
    return buffer ? (*buffer)->getBuffer().str() : "cannot read";
  }
  int files() const {
    std::error_code error;
    int count = 0;
    for (fs::directory_iterator it(folder, error), end; !error && it != end;
         it.increment(error))
      ++count;
    return count;
  }

  llvm::SmallString<128> folder;
};

TEST_F(FileIO, WritesWholeFilesOrNone) {
  EXPECT_EQ(write(in("a"), "one"), "");
  EXPECT_EQ(write(in("a"), "two"), "");
  EXPECT_EQ(read(in("a")), "two");
  EXPECT_EQ(write(in("none/a"), "x"),
            in("none/a") + ": cannot write: No such file or directory");
  ASSERT_FALSE(fs::create_directory(in("folder")));
  EXPECT_EQ(write(in("folder"), "x"),
            in("folder") + ": cannot write: Is a directory");
  EXPECT_EQ(files(), 2);
}

TEST_F(FileIO, FollowsLinks) {
  EXPECT_EQ(write(in("a"), "one"), "");
  ASSERT_FALSE(fs::create_link("a", in("link")));
  EXPECT_EQ(write(in("link"), "two"), "");
  EXPECT_EQ(read(in("a")), "two");
  bool isLink = false;
  ASSERT_FALSE(fs::is_symlink_file(in("link"), isLink));
  EXPECT_TRUE(isLink);
}

TEST_F(FileIO, WritesToPipesAndDevicesInPlace) {
  ASSERT_EQ(::mkfifo(in("pipe").c_str(), 0600), 0);
  std::string seen;
  std::thread reader([&] { seen = read(in("pipe")); });
  EXPECT_EQ(write(in("pipe"), "text"), "");
  reader.join();
  EXPECT_EQ(seen, "text");
  fs::file_status status;
  ASSERT_FALSE(fs::status(in("pipe"), status));
  EXPECT_EQ(status.type(), fs::file_type::fifo_file);
  if (!fs::exists("/dev/full"))
    GTEST_SKIP() << "no /dev/full here";
  // By a link: a mistake shall not cost the machine its device.
  ASSERT_FALSE(fs::create_link("/dev/full", in("full")));
  for (size_t size : {1, 1 << 20})
    EXPECT_EQ(write(in("full"), std::string(size, 'x')),
              in("full") + ": cannot write: No space left on device");
  ASSERT_FALSE(fs::status(in("full"), status));
  EXPECT_EQ(status.type(), fs::file_type::character_file);
}

TEST_F(FileIO, SaysBeforehandWhatCannotBeWritten) {
  auto check = [](const std::string &path) {
    return llvm::toString(checkWritable(path));
  };
  auto checkFolder = [](const std::string &path) {
    return llvm::toString(checkWritableFolder(path));
  };
  EXPECT_EQ(write(in("a"), "one"), "");
  EXPECT_EQ(check(in("a")), "");
  EXPECT_EQ(check(in("new")), "");
  EXPECT_EQ(check(in("none/a")),
            in("none/a") + ": cannot write: No such file or directory");
  EXPECT_EQ(check(in("a/b")), in("a/b") + ": cannot write: Not a directory");
  EXPECT_EQ(check(in("")), in("") + ": cannot write: Is a directory");
  EXPECT_EQ(checkFolder(in("")), "");
  EXPECT_EQ(checkFolder(in("new/newer")), "");
  EXPECT_EQ(checkFolder("surely/not/here"), "");
  EXPECT_EQ(checkFolder(in("a")), in("a") + ": cannot write: Not a directory");
  EXPECT_EQ(checkFolder(in("a/b")),
            in("a/b") + ": cannot write: Not a directory");
  EXPECT_EQ(files(), 1);
}

TEST_F(FileIO, DeepJsonIsAnError) {
  auto message = [](const std::string &text) {
    auto value = parseJson(text);
    return value ? "" : llvm::toString(value.takeError());
  };
  auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_EQ(message(nested(64)), "");
  EXPECT_EQ(message(nested(65)), "nested more than 64 deep");
  EXPECT_EQ(message(std::string(1 << 20, '{')), "nested more than 64 deep");
  // Brackets in strings nest nothing.
  EXPECT_EQ(message("\"" + std::string(100, '[') + "\\\"[\""), "");
  EXPECT_NE(message("[1"), "");
}

} // namespace
