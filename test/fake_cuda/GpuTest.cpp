//===- GpuTest.cpp - Copies of a GPU, on the fake driver ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Gpu.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include <cstdlib>
#include <gtest/gtest.h>
#include <random>

using namespace cleave::runtime::cuda;

namespace {

constexpr int64_t chunk = Gpu::kChunkBytes;

class GpuTest : public testing::TestWithParam<const char *> {
protected:
  void SetUp() override {
    ::setenv("CLEAVE_CUDA_LIBRARIES", CLEAVE_FAKE_CUDA_FOLDER, 1);
    ::setenv("CLEAVE_FAKE_ORDER", GetParam(), 1);
    ASSERT_FALSE(llvm::sys::fs::createTemporaryFile("gpu", "txt", file));
    ::setenv("CLEAVE_FAKE_RECORD", file.c_str(), 1);
  }
  void TearDown() override {
    ::unsetenv("CLEAVE_FAKE_RECORD");
    llvm::sys::fs::remove(file);
  }
  /// The sizes of the copies of this kind that were recorded.
  std::vector<int64_t> copies(const std::string &kind) const {
    std::vector<int64_t> sizes;
    auto text = llvm::MemoryBuffer::getFile(file);
    llvm::StringRef rest = text ? (*text)->getBuffer() : "";
    std::string mark = "kind=copy-" + kind + " bytes=";
    for (size_t at; (at = rest.find(mark)) != llvm::StringRef::npos;) {
      rest = rest.substr(at + mark.size());
      int64_t bytes = 0;
      rest.consumeInteger(10, bytes);
      sizes.push_back(bytes);
    }
    return sizes;
  }

  llvm::SmallString<128> file;
};

/// Of any size, to and from memory that is not pinned, in pieces that go
/// through two pinned memories: each is filled again only when it has been
/// copied.
TEST_P(GpuTest, CopiesInChunks) {
  auto gpu = llvm::cantFail(Gpu::open(0));
  constexpr int64_t room = 5 * chunk + 64;
  CUdeviceptr memory = llvm::cantFail(gpu->allocate(room));
  std::mt19937_64 random(1);
  std::vector<char> all(room), given(room), found(room);
  std::vector<int64_t> expected;
  for (int64_t bytes : {int64_t(0), int64_t(1), chunk - 1, chunk, chunk + 1,
                        2 * chunk, 3 * chunk + 5, 5 * chunk - 1}) {
    for (size_t i = 0; i + 8 <= given.size(); i += 8) {
      uint64_t bits = random();
      std::memcpy(&given[i], &bits, 8);
    }
    // What lies around it stays.
    int64_t at = bytes % 3;
    ASSERT_FALSE(gpu->write(memory + CUdeviceptr(at), given.data(), bytes));
    std::memcpy(all.data() + at, given.data(), size_t(bytes));
    std::fill(found.begin(), found.end(), char(1));
    ASSERT_FALSE(gpu->read(memory + CUdeviceptr(at), found.data(), bytes));
    EXPECT_EQ(std::memcmp(found.data(), given.data(), size_t(bytes)), 0)
        << bytes;
    EXPECT_EQ(found[size_t(bytes)], 1) << bytes;
    for (int64_t left = bytes; left > 0; left -= chunk)
      expected.push_back(std::min(left, chunk));
  }
  EXPECT_EQ(copies("htod"), expected);
  EXPECT_EQ(copies("dtoh"), expected);
  ASSERT_FALSE(gpu->read(memory, found.data(), room));
  EXPECT_EQ(found, all);
}

INSTANTIATE_TEST_SUITE_P(Orders, GpuTest,
                         testing::Values("earliest", "latest", "3"));

} // namespace
