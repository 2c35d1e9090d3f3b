//===- LayoutTest.cpp - Views against the elements they name --------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/IR/ExecDialect.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/MLIRContext.h"
#include "gtest/gtest.h"
#include <random>

using namespace mlir;
using namespace cleave::exec;

/// The addresses of all elements, in row-major order of indices.
static std::vector<int64_t> addresses(RankedTensorType type) {
  Strided layout = getLayout(type);
  std::vector<int64_t> result{layout.offset};
  for (auto [size, stride] : llvm::zip_equal(type.getShape(), layout.strides)) {
    std::vector<int64_t> next;
    for (int64_t at : result)
      for (int64_t i = 0; i < size; ++i)
        next.push_back(at + i * stride);
    result = std::move(next);
  }
  return result;
}

namespace {
struct Layouts : testing::Test {
  Layouts() { context.loadDialect<ExecDialect>(); }

  RankedTensorType type(ArrayRef<int64_t> shape) {
    return RankedTensorType::get(shape, Float32Type::get(&context));
  }
  RankedTensorType type(ArrayRef<int64_t> shape, ArrayRef<int64_t> strides,
                        int64_t offset = 0) {
    return withLayout(type(shape), {SmallVector<int64_t>(strides), offset});
  }

  /// Element by element: where `from` moves, `to` must follow.
  void expectFollows(RankedTensorType from, RankedTensorType to,
                     const Strided &moved, const Strided &result) {
    std::map<int64_t, int64_t> place;
    std::vector<int64_t> before = addresses(from),
                         after = addresses(withLayout(from, moved));
    for (size_t i = 0; i < before.size(); ++i)
      place[before[i]] = after[i];
    std::vector<int64_t> seen = addresses(to),
                         now = addresses(withLayout(to, result));
    for (size_t i = 0; i < seen.size(); ++i)
      ASSERT_EQ(now[i], place.at(seen[i]));
  }

  MLIRContext context;
};
} // namespace

TEST_F(Layouts, ReshapeOfTransposeNeedsACopy) {
  RankedTensorType dense = type({4, 6}), flat = type({24});
  EXPECT_FALSE(rebase(dense, flat, {{1, 4}, 0}));
  std::optional<Strided> same = rebase(dense, flat, {{6, 1}, 0});
  ASSERT_TRUE(same);
  EXPECT_EQ(same->strides[0], 1);
}

TEST_F(Layouts, SplitsADimension) {
  // [8, 6] as [2, 4, 6], in a buffer whose rows are 10 apart.
  std::optional<Strided> split =
      rebase(type({8, 6}), type({2, 4, 6}), {{10, 1}, 3});
  ASSERT_TRUE(split);
  EXPECT_EQ(ArrayRef(split->strides), (ArrayRef<int64_t>{40, 10, 1}));
  EXPECT_EQ(split->offset, 3);
}

TEST_F(Layouts, StaysInside) {
  // The last elements would come from the next row.
  EXPECT_FALSE(rebase(type({4, 6}), type({3}, {1}, 4), {{100, 1}, 0}));
  EXPECT_TRUE(rebase(type({4, 6}), type({2}, {1}, 4), {{100, 1}, 0}));
}

TEST_F(Layouts, RandomViewsFollow) {
  std::mt19937_64 rng(3);
  int followed = 0;
  for (int round = 0; round < 2000; ++round) {
    SmallVector<int64_t> shape;
    for (unsigned i = 0, rank = 1 + rng() % 4; i < rank; ++i)
      shape.push_back(1 + rng() % 5);
    RankedTensorType from = type(shape);
    // A view: a slice of a permutation, perhaps with a dimension split.
    Strided layout = getLayout(from), view;
    SmallVector<int64_t> order(shape.size()), sizes;
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), rng);
    for (int64_t dim : order) {
      int64_t start = rng() % shape[dim], step = 1 + rng() % 2;
      int64_t count = 1 + rng() % ((shape[dim] - start + step - 1) / step);
      view.offset += start * layout.strides[dim];
      sizes.push_back(count);
      view.strides.push_back(step * layout.strides[dim]);
    }
    RankedTensorType to = withLayout(type(sizes), view);
    // The move: another order of dimensions, with gaps.
    Strided moved;
    moved.strides.resize(shape.size());
    moved.offset = rng() % 7;
    std::shuffle(order.begin(), order.end(), rng);
    int64_t stride = 1;
    for (int64_t dim : order) {
      moved.strides[dim] = stride;
      stride = stride * shape[dim] + rng() % 3;
    }
    std::optional<Strided> result = rebase(from, to, moved);
    ASSERT_TRUE(result);
    expectFollows(from, to, moved, *result);
    // And the other way round, where the view covers everything.
    if (to.getNumElements() != from.getNumElements())
      continue;
    ++followed;
    Strided back = getLayout(withLayout(to, *result));
    std::optional<Strided> again = rebase(to, from, back);
    ASSERT_TRUE(again);
    expectFollows(to, from, back, *again);
  }
  EXPECT_GT(followed, 20);
}

TEST_F(Layouts, BoxesAreExact) {
  RankedTensorType whole = type({2, 8, 12});
  // [2, 4, 8, 3]: heads of 3 channels in the first 12, split and permuted.
  std::optional<Box> box =
      boxWithin(whole, type({2, 2, 8, 3}, {96, 3, 12, 1}, 6));
  ASSERT_TRUE(box);
  EXPECT_EQ(ArrayRef(box->start), (ArrayRef<int64_t>{0, 0, 6}));
  EXPECT_EQ(ArrayRef(box->size), (ArrayRef<int64_t>{2, 8, 6}));
  // Every second channel is no box.
  EXPECT_FALSE(boxWithin(whole, type({2, 8, 6}, {96, 12, 2})));
  // An element twice is none either.
  EXPECT_FALSE(boxWithin(whole, type({2, 8, 2}, {96, 12, 0})));
}
