//===- ContractionTest.cpp - Tests of contractions ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/CPU/Contraction.h"
#include "Runtime/CPU/LibraryMemory.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "gtest/gtest.h"

#include <bit>
#include <cmath>
#include <random>

using namespace cleave::runtime;

namespace {

/// Long sums lose no more digits than short ones: one chain of additions over
/// 3072 products has an error of 5.8e-7 here, its pieces 2.9e-7.
TEST(Contraction, ErrorOfLongSums) {
  ThreadTeam team(2);
  std::mt19937 gen(1);
  std::normal_distribution<float> normal;
  ContractCommand c;
  c.m = 48;
  c.n = 64;
  c.k = 3072;
  c.lda = c.k;
  c.ldb = c.ldc = c.n;
  std::vector<float> a(c.m * c.k), b(c.k * c.n), result(c.m * c.n);
  for (auto *v : {&a, &b})
    for (float &x : *v)
      x = normal(gen);
  for (ContractionMethod method :
       {ContractionMethod::Sgemm, ContractionMethod::Matmul}) {
    Contraction contraction(c, reinterpret_cast<char *>(a.data()),
                            reinterpret_cast<char *>(b.data()),
                            reinterpret_cast<char *>(result.data()), method);
    ASSERT_TRUE(contraction.isValid());
    std::vector<char> workspace(contraction.workspaceBytes() + 64);
    contraction.execute(team,
                        workspace.data() + (-uintptr_t(workspace.data()) & 63));
    double error = 0, norm = 0;
    for (int64_t i = 0; i < c.m; ++i)
      for (int64_t j = 0; j < c.n; ++j) {
        double exact = 0;
        for (int64_t p = 0; p < c.k; ++p)
          exact += double(a[i * c.k + p]) * b[p * c.n + j];
        double off = result[i * c.n + j] - exact;
        error += off * off;
        norm += exact * exact;
      }
    EXPECT_LT(std::sqrt(error / norm), 3.4e-7) << methodName(method).str();
  }
}

TEST(Contraction, WidenedOperands) {
  ThreadTeam team(2);
  for (unsigned seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 gen(seed);
    auto pick = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(gen);
    };
    ContractCommand c;
    c.type = DType::BF16;
    // Now and then of several tiles, and of several pieces.
    c.m = pick(0, 9) ? pick(1, 90) : pick(4000, 8300);
    c.n = pick(0, 9) ? pick(1, 90) : pick(4000, 8300);
    c.k = pick(0, 3) ? pick(1, 90) : pick(500, 1600);
    c.transA = pick(0, 1);
    c.transB = pick(0, 1);
    c.lda = (c.transA ? c.m : c.k) + pick(0, 3);
    c.ldb = (c.transB ? c.k : c.n) + pick(0, 3);
    c.ldc = c.n + pick(0, 3);
    c.alpha = pick(0, 1) ? 1.0f : -0.5f;
    c.beta = pick(0, 1) ? 0.25f : 0.0f;
    std::vector<uint16_t> a((c.transA ? c.k : c.m) * c.lda),
        b((c.transB ? c.n : c.k) * c.ldb);
    std::normal_distribution<float> normal;
    auto fill = [&](std::vector<uint16_t> &values) {
      for (uint16_t &value : values)
        value = std::bit_cast<uint32_t>(normal(gen)) >> 16;
    };
    fill(a);
    fill(b);
    auto number = [](uint16_t bits) {
      return double(std::bit_cast<float>(uint32_t(bits) << 16));
    };
    // With beta 0 the result is not read.
    std::vector<float> result(c.m * c.ldc, c.beta == 0.0f ? NAN : 2.0f);
    Contraction contraction(c, reinterpret_cast<char *>(a.data()),
                            reinterpret_cast<char *>(b.data()),
                            reinterpret_cast<char *>(result.data()),
                            ContractionMethod::Widened);
    ASSERT_TRUE(contraction.isValid());
    std::vector<char> workspace(contraction.workspaceBytes() + 64);
    contraction.execute(team,
                        workspace.data() + (-uintptr_t(workspace.data()) & 63));
    // A few rows and columns of large ones.
    for (int64_t i = 0; i < c.m; i += std::max<int64_t>(1, c.m / 97))
      for (int64_t j = 0; j < c.n; j += std::max<int64_t>(1, c.n / 97)) {
        double exact = 0, size = 0;
        for (int64_t p = 0; p < c.k; ++p) {
          double term = number(a[c.transA ? p * c.lda + i : i * c.lda + p]) *
                        number(b[c.transB ? j * c.ldb + p : p * c.ldb + j]);
          exact += term;
          size += std::abs(term);
        }
        exact = c.alpha * exact + c.beta * (c.beta == 0.0f ? 0.0 : 2.0);
        ASSERT_NEAR(result[i * c.ldc + j], exact, 1e-6 * (size + 1));
      }
  }
  ContractCommand wide;
  EXPECT_FALSE(
      Contraction(wide, nullptr, nullptr, nullptr, ContractionMethod::Widened)
          .isValid());
}

TEST(Contraction, RandomAgainstDefinition) {
  ThreadTeam team(2);
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 gen(seed);
    auto pick = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(gen);
    };
    ContractCommand c;
    int64_t low = pick(0, 3) == 0 ? 0 : 1;
    // Now and then of several squares.
    c.m = pick(0, 19) ? pick(low, 90) : pick(4000, 8300);
    c.n = pick(0, 19) ? pick(low, 90) : pick(4000, 8300);
    // Now and then a sum of several pieces.
    c.k = pick(0, 5) ? pick(low, 90) : pick(500, 1600);
    c.batch = pick(0, 1) ? 1 : pick(1, 5);
    c.transA = pick(0, 1);
    c.transB = pick(0, 1);
    c.lda = std::max<int64_t>(1, c.transA ? c.m : c.k) + pick(0, 3);
    c.ldb = std::max<int64_t>(1, c.transB ? c.k : c.n) + pick(0, 3);
    c.ldc = std::max<int64_t>(1, c.n) + pick(0, 3);
    int64_t sizeA = (c.transA ? c.k : c.m) * c.lda;
    int64_t sizeB = (c.transB ? c.n : c.k) * c.ldb;
    int64_t sizeC = c.m * c.ldc;
    c.batchStrideA = pick(0, 2) ? sizeA : 0;
    c.batchStrideB = pick(0, 2) ? sizeB : 0;
    c.batchStrideC = sizeC + pick(0, 5);
    c.alpha = pick(0, 1) ? 1.0f : -0.5f;
    c.beta = float(pick(0, 1));
    if (pick(0, 4) == 0)
      c.beta = 0.25f;

    std::normal_distribution<float> normal;
    std::vector<float> a(sizeA * c.batch + 1), b(sizeB * c.batch + 1),
        start(c.batchStrideC * c.batch + 1);
    for (auto *v : {&a, &b, &start})
      for (float &x : *v)
        x = normal(gen);
    // With beta 0 the result is not read, even where it holds no number.
    if (c.beta == 0.0f)
      for (float &x : start)
        x = NAN;

    for (ContractionMethod method :
         {ContractionMethod::Sgemm, ContractionMethod::Matmul,
          ContractionMethod::Batch}) {
      std::vector<float> result = start;
      Contraction contraction(c, reinterpret_cast<char *>(a.data()),
                              reinterpret_cast<char *>(b.data()),
                              reinterpret_cast<char *>(result.data()), method);
      if (!contraction.isValid()) {
        EXPECT_EQ(method, ContractionMethod::Matmul);
        continue;
      }
      std::vector<char> workspace(contraction.workspaceBytes() + 64);
      contraction.execute(team, workspace.data() +
                                    (-uintptr_t(workspace.data()) & 63));
      for (int64_t z = 0; z < c.batch; ++z)
        for (int64_t i = 0; i < c.m; ++i)
          for (int64_t j = 0; j < c.ldc; ++j) {
            int64_t at = z * c.batchStrideC + i * c.ldc + j;
            if (j >= c.n) {
              // Between rows nothing is written.
              ASSERT_EQ(std::isnan(result[at]), std::isnan(start[at]));
              if (!std::isnan(start[at]))
                ASSERT_EQ(result[at], start[at]);
              continue;
            }
            double sum = 0, size = 1;
            for (int64_t k = 0; k < c.k; ++k) {
              double x = a[z * c.batchStrideA +
                           (c.transA ? k * c.lda + i : i * c.lda + k)];
              double y = b[z * c.batchStrideB +
                           (c.transB ? j * c.ldb + k : k * c.ldb + j)];
              sum += x * y;
              size += std::fabs(x * y);
            }
            sum *= c.alpha;
            if (c.beta != 0.0f)
              sum += double(c.beta) * start[at];
            ASSERT_NEAR(result[at], sum, 1e-6 * size)
                << methodName(method).str() << " " << z << " " << i << " " << j;
          }
    }
  }
}

/// Once its sizes are known, the library takes no more memory.
TEST(LibraryMemory, Settles) {
#if defined(__linux__) && defined(__x86_64__)
  ASSERT_TRUE(cacheLibraryMemory());
  // One thread: with several, the peak depends on whether they overlap.
  ThreadTeam team(1);
  int64_t n = 700;
  std::vector<float> a(n * n, 1.0f), b(n * n, 1.0f), c(n * n);
  auto multiply = [&] {
    sgemm(false, true, n, n, n, 1.0f, a.data(), n, b.data(), n, 0.0f, c.data(),
          n);
  };
  ThreadTeam::Adopted adopted = team.adopt();
  multiply();
  int64_t before = libraryMemoryBytes();
  EXPECT_GT(before, 0);
  for (int i = 0; i < 20; ++i)
    multiply();
  EXPECT_EQ(libraryMemoryBytes(), before);
  EXPECT_EQ(c[5], 700.0f);
#endif
}

TEST(ContractionTuner, RemembersInAFile) {
  llvm::SmallString<128> path;
  ASSERT_FALSE(llvm::sys::fs::createTemporaryFile("tuning", "json", path));
  ThreadTeam team(1);
  ContractCommand c;
  c.m = c.n = c.k = 32;
  c.lda = c.ldb = c.ldc = 32;
  std::vector<float> a(1024), b(1024), out(1024);
  auto choose = [&](ContractionTuner &tuner) {
    return tuner.choose(c, reinterpret_cast<char *>(a.data()),
                        reinterpret_cast<char *>(b.data()),
                        reinterpret_cast<char *>(out.data()), team);
  };
  ContractionTuner first(path.str().str(), true);
  ContractionMethod method = choose(first);
  ASSERT_EQ(first.getChoices().size(), 1u);
  for (float x : out)
    ASSERT_EQ(x, 0.0f);
  first.save();
  // The opposite choice in the file wins over measurement.
  ContractionMethod other = method == ContractionMethod::Sgemm
                                ? ContractionMethod::Matmul
                                : ContractionMethod::Sgemm;
  ContractionTuner second(path.str().str(), true);
  EXPECT_EQ(choose(second), method);
  second.preset(second.getChoices().begin()->first, other);
  EXPECT_EQ(choose(second), other);
  ContractionTuner off("", false);
  EXPECT_EQ(choose(off), ContractionMethod::Sgemm);
  llvm::sys::fs::remove(path);
}

TEST(ContractionTuner, LeavesFilesOfOthers) {
  for (const char *text : {"notes, not JSON", "[1, 2]", "{\"lr\": 0.1}",
                           "{\"model\": \"gpt2\"}"}) {
    llvm::SmallString<128> path;
    int descriptor;
    ASSERT_FALSE(
        llvm::sys::fs::createTemporaryFile("tuning", "json", descriptor, path));
    {
      llvm::raw_fd_ostream file(descriptor, /*shouldClose=*/true);
      file << text;
    }
    ThreadTeam team(1);
    ContractCommand c;
    c.m = c.n = c.k = 32;
    c.lda = c.ldb = c.ldc = 32;
    std::vector<float> a(1024), b(1024), out(1024);
    ContractionTuner tuner(path.str().str(), true);
    tuner.choose(c, reinterpret_cast<char *>(a.data()),
                 reinterpret_cast<char *>(b.data()),
                 reinterpret_cast<char *>(out.data()), team);
    tuner.save();
    auto after = llvm::MemoryBuffer::getFile(path);
    ASSERT_TRUE(after);
    EXPECT_EQ((*after)->getBuffer(), text);
    llvm::sys::fs::remove(path);
  }
}

} // namespace
