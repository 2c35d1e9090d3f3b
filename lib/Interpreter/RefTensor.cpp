//===- RefTensor.cpp - Tensors of the reference interpreter ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Interpreter/RefTensor.h"
#include <cmath>
#include <limits>

using namespace mlir;
using namespace cleave;

static int64_t product(ArrayRef<int64_t> shape) {
  int64_t result = 1;
  for (int64_t size : shape)
    result *= size;
  return result;
}

RefTensor::RefTensor(ArrayRef<int64_t> shape, Type element)
    : shape(shape), element(element) {
  if (isFloat())
    floats.assign(product(shape), 0.0);
  else
    ints.assign(product(shape), 0);
}

int64_t RefTensor::size() const { return product(shape); }

SmallVector<int64_t, 4> RefTensor::strides() const {
  SmallVector<int64_t, 4> result(shape.size(), 1);
  for (int64_t dim = rank() - 2; dim >= 0; --dim)
    result[dim] = result[dim + 1] * shape[dim + 1];
  return result;
}

SmallVector<int64_t, 4> cleave::broadcastStrides(const RefTensor &tensor,
                                                 ArrayRef<int64_t> shape) {
  SmallVector<int64_t, 4> own = tensor.strides();
  SmallVector<int64_t, 4> result(shape.size(), 0);
  size_t lead = shape.size() - own.size();
  for (size_t dim = 0; dim < own.size(); ++dim)
    if (tensor.shape[dim] != 1)
      result[lead + dim] = own[dim];
  return result;
}

/// `x` rounded to `digits` binary digits, with exponents from `minExponent` on
/// and no finite value above `largest`: what is too large becomes infinity.
static double roundToDigits(double x, int digits, int minExponent,
                            double largest) {
  if (x == 0 || !std::isfinite(x))
    return x;
  int exponent = std::max(std::ilogb(x), minExponent);
  double unit = std::ldexp(1.0, exponent - (digits - 1));
  double rounded = std::nearbyint(x / unit) * unit;
  if (std::fabs(rounded) > largest)
    return std::copysign(std::numeric_limits<double>::infinity(), x);
  return rounded;
}

double cleave::roundTo(Type element, double x) {
  if (element.isF32())
    return static_cast<float>(x);
  if (element.isBF16())
    return roundToDigits(x, 8, -126, std::ldexp(255.0, 120));
  if (element.isF16())
    return roundToDigits(x, 11, -14, 65504.0);
  if (isa<Float8E5M2Type>(element))
    return roundToDigits(x, 3, -14, 57344.0);
  if (isa<Float8E4M3FNType>(element)) {
    // It has no infinities.
    double rounded = roundToDigits(x, 4, -6, 448.0);
    return std::isinf(rounded) ? std::copysign(448.0, x) : rounded;
  }
  return x;
}

int64_t cleave::wrapTo(Type element, int64_t x) {
  switch (element.getIntOrFloatBitWidth()) {
  case 1:
    return x & 1;
  case 8:
    return static_cast<int8_t>(x);
  case 32:
    return static_cast<int32_t>(x);
  default:
    return x;
  }
}

int64_t cleave::truncateTo(Type element, double x) {
  if (element.isInteger(1))
    return x != 0;
  if (std::isnan(x))
    return 0;
  int bits = element.getIntOrFloatBitWidth();
  double limit = std::ldexp(1.0, bits - 1);
  int64_t smallest = -1 - (std::numeric_limits<int64_t>::max() >> (64 - bits));
  if (x >= limit)
    return -1 - smallest;
  if (x < -limit)
    return smallest;
  return static_cast<int64_t>(x);
}

void cleave::settle(RefTensor &tensor, Precision precision) {
  if (!tensor.isFloat()) {
    for (int64_t &x : tensor.ints)
      x = wrapTo(tensor.element, x);
  } else if (precision == Precision::Typed && !tensor.element.isF64()) {
    for (double &x : tensor.floats)
      x = roundTo(tensor.element, x);
  }
}

bool cleave::accumulatesInF32(Type element, Precision precision) {
  return precision == Precision::Typed && isa<FloatType>(element) &&
         element.getIntOrFloatBitWidth() < 32;
}

/// Calls `fn(at, i)` for element `i` of a slice of `shape`, where `at` is its
/// offset in a tensor like `whole`.
template <typename Fn>
static void forEachInSlice(const RefTensor &whole, ArrayRef<int64_t> offsets,
                           ArrayRef<int64_t> shape, Fn fn) {
  SmallVector<int64_t, 4> strides = whole.strides();
  int64_t first = 0;
  for (auto [offset, stride] : llvm::zip_equal(offsets, strides))
    first += offset * stride;
  forEachIndex<1>(shape, {strides},
                  [&](int64_t i, const std::array<int64_t, 1> &at) {
                    fn(first + at[0], i);
                  });
}

RefTensor cleave::cutSlice(const RefTensor &whole, ArrayRef<int64_t> offsets,
                           ArrayRef<int64_t> shape) {
  RefTensor part(shape, whole.element);
  forEachInSlice(whole, offsets, shape, [&](int64_t at, int64_t i) {
    part.copyElement(i, whole, at);
  });
  return part;
}

void cleave::pasteSlice(RefTensor &whole, ArrayRef<int64_t> offsets,
                        const RefTensor &part) {
  forEachInSlice(whole, offsets, part.shape, [&](int64_t at, int64_t i) {
    whole.copyElement(at, part, i);
  });
}

bool cleave::sameElements(const RefTensor &a, const RefTensor &b) {
  if (a.shape != b.shape || a.ints != b.ints)
    return false;
  for (auto [x, y] : llvm::zip_equal(a.floats, b.floats))
    if (x != y && !(std::isnan(x) && std::isnan(y)))
      return false;
  return true;
}
