//===- RefTensor.h - Tensors of the reference interpreter -------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_INTERPRETER_REFTENSOR_H
#define CLEAVE_INTERPRETER_REFTENSOR_H

#include "mlir/IR/BuiltinTypes.h"
#include "llvm/ADT/SmallVector.h"
#include <vector>

namespace cleave {

/// The two modes of arithmetic of the interpreter.
///
/// `Exact`: every float is an f64, whatever its type; nothing is rounded to the
/// type. It computes what the program means.
///
/// `Typed`: within one op, arithmetic on scalars is in f64, and so are sums of
/// f32 and of f64. Sums of narrower floats in contractions, reductions and
/// `scatter_add` accumulate in f32, one term after the other in increasing
/// order of the index. Each result is then rounded once to its element type, to
/// nearest even. It shows the rounding errors of the program: code for a device
/// accumulates in another order, and is compared within a bound.
///
/// In both modes, integers wrap around to the width of their type.
enum class Precision { Exact, Typed };

/// A dense, row-major tensor. Floats of any type are held as doubles,
/// integers and booleans (0, 1) as int64.
struct RefTensor {
  llvm::SmallVector<int64_t, 4> shape;
  /// Element type in the program.
  mlir::Type element;
  /// The elements when `element` is a float, else empty.
  std::vector<double> floats;
  /// The elements when `element` is an integer, else empty.
  std::vector<int64_t> ints;

  RefTensor() = default;
  /// A tensor of zeros.
  RefTensor(llvm::ArrayRef<int64_t> shape, mlir::Type element);
  explicit RefTensor(mlir::RankedTensorType type)
      : RefTensor(type.getShape(), type.getElementType()) {}

  bool isFloat() const { return llvm::isa<mlir::FloatType>(element); }
  int64_t rank() const { return shape.size(); }
  int64_t size() const;
  /// Size of the last dimension; 1 for a scalar.
  int64_t rowSize() const { return shape.empty() ? 1 : shape.back(); }
  /// Row-major strides in elements.
  llvm::SmallVector<int64_t, 4> strides() const;
  mlir::RankedTensorType type() const {
    return mlir::RankedTensorType::get(shape, element);
  }
  /// Copies element `from` of `source`, of the same kind, to element `to`.
  void copyElement(int64_t to, const RefTensor &source, int64_t from) {
    if (isFloat())
      floats[to] = source.floats[from];
    else
      ints[to] = source.ints[from];
  }
};

/// `x` rounded to the float type `element`, to nearest even.
double roundTo(mlir::Type element, double x);

/// `x` reduced to the width of the integer type `element`; i1 is 0 or 1.
int64_t wrapTo(mlir::Type element, int64_t x);

/// `x` as an integer of type `element`: truncated towards zero and clamped to
/// its range, NaN to 0.
int64_t truncateTo(mlir::Type element, double x);

/// Brings every element into the range of its type: floats are rounded under
/// `Typed`, integers wrap.
void settle(RefTensor &tensor, Precision precision);

/// Whether sums of `element` accumulate in f32.
bool accumulatesInF32(mlir::Type element, Precision precision);

/// The strides of `tensor` broadcast to `shape`: 0 along dimensions that are
/// repeated.
llvm::SmallVector<int64_t, 4> broadcastStrides(const RefTensor &tensor,
                                               llvm::ArrayRef<int64_t> shape);

/// Calls `fn(i, offsets)` for each index of `shape` in row-major order, where
/// `i` counts and `offsets[n]` is the offset of the element under `strides[n]`.
template <size_t N, typename Fn>
void forEachIndex(llvm::ArrayRef<int64_t> shape,
                  const std::array<llvm::SmallVector<int64_t, 4>, N> &strides,
                  Fn &&fn) {
  for (int64_t size : shape)
    if (size == 0)
      return;
  llvm::SmallVector<int64_t, 8> index(shape.size(), 0);
  std::array<int64_t, N> offsets{};
  int64_t rank = shape.size();
  for (int64_t i = 0;; ++i) {
    fn(i, offsets);
    int64_t dim = rank - 1;
    for (; dim >= 0; --dim) {
      for (size_t n = 0; n < N; ++n)
        offsets[n] += strides[n][dim];
      if (++index[dim] < shape[dim])
        break;
      for (size_t n = 0; n < N; ++n)
        offsets[n] -= strides[n][dim] * shape[dim];
      index[dim] = 0;
    }
    if (dim < 0)
      return;
  }
}

/// The slice of `whole` of the given shape that begins at `offsets`.
RefTensor cutSlice(const RefTensor &whole, llvm::ArrayRef<int64_t> offsets,
                   llvm::ArrayRef<int64_t> shape);

/// Writes `part` into `whole`, beginning at `offsets`.
void pasteSlice(RefTensor &whole, llvm::ArrayRef<int64_t> offsets,
                const RefTensor &part);

/// True when both hold the same elements, bit by bit; NaN equals NaN.
bool sameElements(const RefTensor &a, const RefTensor &b);

} // namespace cleave

#endif // CLEAVE_INTERPRETER_REFTENSOR_H
