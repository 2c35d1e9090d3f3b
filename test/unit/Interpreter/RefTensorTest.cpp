//===- RefTensorTest.cpp - Tensors of the reference interpreter ---------- ===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Interpreter/RefTensor.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/MLIRContext.h"
#include <cmath>
#include <gtest/gtest.h>
#include <limits>

using namespace cleave;

namespace {
struct RefTensorTest : testing::Test {
  mlir::MLIRContext context;
  mlir::Type f32 = mlir::Float32Type::get(&context);
  mlir::Type bf16 = mlir::BFloat16Type::get(&context);
  mlir::Type f16 = mlir::Float16Type::get(&context);
  mlir::Type e4m3 = mlir::Float8E4M3FNType::get(&context);
  mlir::Type e5m2 = mlir::Float8E5M2Type::get(&context);
  mlir::Type integer(unsigned bits) {
    return mlir::IntegerType::get(&context, bits);
  }
};
} // namespace

TEST_F(RefTensorTest, RoundsToNearestEven) {
  // Eight binary digits: between 256 and 258 lies a tie.
  EXPECT_EQ(roundTo(bf16, 257.0), 256.0);
  EXPECT_EQ(roundTo(bf16, 259.0), 260.0);
  // Rounding to f32 first would make this a tie.
  EXPECT_EQ(roundTo(bf16, 257.0 + std::ldexp(1.0, -40)), 258.0);
  EXPECT_EQ(roundTo(f16, 65519.0), 65504.0);
  EXPECT_EQ(roundTo(f16, 65520.0), std::numeric_limits<double>::infinity());
  EXPECT_EQ(roundTo(f16, std::ldexp(3.0, -26)), std::ldexp(1.0, -24));
  EXPECT_EQ(roundTo(f32, 0.1), double(0.1f));
  EXPECT_TRUE(std::isnan(roundTo(bf16, std::nan(""))));
}

TEST_F(RefTensorTest, RoundsToEightBits) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(roundTo(e4m3, 17.0), 16.0);
  EXPECT_EQ(roundTo(e4m3, 19.0), 20.0);
  EXPECT_EQ(roundTo(e4m3, 17.0 + std::ldexp(1.0, -40)), 18.0);
  EXPECT_EQ(roundTo(e4m3, std::ldexp(3.0, -10)), std::ldexp(1.0, -8));
  EXPECT_EQ(roundTo(e4m3, std::ldexp(1.0, -10)), 0.0);
  // There is no infinity.
  EXPECT_EQ(roundTo(e4m3, 1000.0), 448.0);
  EXPECT_EQ(roundTo(e4m3, -infinity), -448.0);
  EXPECT_TRUE(std::isnan(roundTo(e4m3, std::nan(""))));
  EXPECT_EQ(roundTo(e5m2, 9.0), 8.0);
  EXPECT_EQ(roundTo(e5m2, 11.0), 12.0);
  EXPECT_EQ(roundTo(e5m2, std::ldexp(3.0, -17)), std::ldexp(1.0, -15));
  EXPECT_EQ(roundTo(e5m2, 61439.0), 57344.0);
  EXPECT_EQ(roundTo(e5m2, -61440.0), -infinity);
  EXPECT_TRUE(std::isnan(roundTo(e5m2, std::nan(""))));
}

TEST_F(RefTensorTest, IntegersWrapAndClamp) {
  EXPECT_EQ(wrapTo(integer(8), 130), -126);
  EXPECT_EQ(wrapTo(integer(32), int64_t(1) << 31), -(int64_t(1) << 31));
  EXPECT_EQ(wrapTo(integer(1), 3), 1);
  EXPECT_EQ(truncateTo(integer(32), -1.9), -1);
  EXPECT_EQ(truncateTo(integer(32), 1e20), std::numeric_limits<int32_t>::max());
  EXPECT_EQ(truncateTo(integer(64), 1e20), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(truncateTo(integer(64), -1e20),
            std::numeric_limits<int64_t>::min());
  EXPECT_EQ(truncateTo(integer(8), std::nan("")), 0);
}

TEST_F(RefTensorTest, BroadcastStrides) {
  RefTensor tensor({3, 1}, f32);
  EXPECT_EQ(broadcastStrides(tensor, {2, 3, 4}),
            (llvm::SmallVector<int64_t, 4>{0, 1, 0}));
  std::vector<int64_t> visited;
  forEachIndex<1>({2, 3, 2}, {broadcastStrides(tensor, {2, 3, 2})},
                  [&](int64_t, const std::array<int64_t, 1> &at) {
                    visited.push_back(at[0]);
                  });
  EXPECT_EQ(visited,
            (std::vector<int64_t>{0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2}));
}

TEST_F(RefTensorTest, EmptyAndScalarIndexSpaces) {
  int64_t calls = 0;
  auto count = [&](int64_t, const std::array<int64_t, 1> &) { ++calls; };
  forEachIndex<1>({2, 0}, {llvm::SmallVector<int64_t, 4>{0, 1}}, count);
  EXPECT_EQ(calls, 0);
  forEachIndex<1>({}, {llvm::SmallVector<int64_t, 4>{}}, count);
  EXPECT_EQ(calls, 1);
}
