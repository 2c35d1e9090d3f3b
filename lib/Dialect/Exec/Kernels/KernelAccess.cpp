//===- KernelAccess.cpp - The element of each row and column --------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/Kernels/KernelBuilder.h"
#include "mlir/IR/AffineExpr.h"

using namespace mlir;
using namespace cleave;

Access Access::get(RankedTensorType type, ArrayRef<int64_t> sizes,
                   ArrayRef<int64_t> dims, ArrayRef<int64_t> steps,
                   ArrayRef<int64_t> begin) {
  auto strides = exec::getLayout(type).strides;
  SmallVector<int64_t> dense(type.getRank(), 1);
  for (int64_t d = type.getRank() - 2; d >= 0; --d)
    dense[d] = dense[d + 1] * type.getDimSize(d + 1);
  Access access;
  access.sizes.assign(sizes.begin(), sizes.end());
  for (size_t i = 0; i < sizes.size(); ++i) {
    int64_t step = steps.empty() ? 1 : steps[i];
    bool through = dims[i] >= 0;
    access.logical.push_back(through ? dense[dims[i]] * step : 0);
    access.memory.push_back(through ? strides[dims[i]] * step : 0);
  }
  for (size_t d = 0; d < begin.size(); ++d) {
    access.logicalOffset += begin[d] * dense[d];
    access.memoryOffset += begin[d] * strides[d];
  }
  return access;
}

Access Access::identity(RankedTensorType type) {
  return get(type, type.getShape(),
             llvm::to_vector(llvm::seq<int64_t>(0, type.getRank())));
}

Access Access::broadcast(RankedTensorType type, ArrayRef<int64_t> shape) {
  int64_t lead = (int64_t)shape.size() - type.getRank();
  SmallVector<int64_t> dims;
  for (int64_t i = 0; i < (int64_t)shape.size(); ++i) {
    int64_t d = i - lead;
    dims.push_back(d < 0 || (type.getDimSize(d) == 1 && shape[i] != 1) ? -1
                                                                       : d);
  }
  return get(type, shape, dims);
}

Access Access::element(RankedTensorType type, ArrayRef<int64_t> index) {
  return get(type, {}, {}, {}, index);
}

static SmallVector<Stride, 4> join(ArrayRef<int64_t> sizes,
                                   ArrayRef<int64_t> steps) {
  SmallVector<Stride, 4> loops;
  for (auto [size, step] : llvm::zip(sizes, steps)) {
    if (size == 1)
      continue;
    if (!loops.empty() && loops.back().step == step * size) {
      loops.back().size *= size;
      loops.back().step = step;
    } else {
      loops.push_back({size, step});
    }
  }
  return loops;
}

SmallVector<Stride, 4> Access::joinedLogical() const {
  return join(sizes, logical);
}

SmallVector<Stride, 4> Access::joinedMemory() const {
  return join(sizes, memory);
}

/// The offset of element `linear` of the nest.
static AffineExpr nestExpr(ArrayRef<Stride> loops, AffineExpr linear) {
  AffineExpr sum = getAffineConstantExpr(0, linear.getContext());
  int64_t inner = 1;
  for (size_t i = loops.size(); i-- > 0;) {
    AffineExpr index = inner == 1 ? linear : linear.floorDiv(inner);
    if (i != 0)
      index = index % loops[i].size;
    if (loops[i].step != 0)
      sum = sum + index * loops[i].step;
    inner *= loops[i].size;
  }
  return sum;
}

AffineExpr cleave::accessExpr(MLIRContext *context, ArrayRef<Stride> loops,
                              int64_t offset, int64_t rows, int64_t cols,
                              Level level) {
  AffineExpr row = getAffineDimExpr(0, context);
  AffineExpr col = getAffineDimExpr(1, context);
  AffineExpr base = getAffineConstantExpr(offset, context);
  if (level == Level::Row)
    return nestExpr(loops, row) + base;

  // Splits the nest where the columns begin.
  SmallVector<Stride, 4> outer, inner;
  int64_t product = 1;
  for (Stride loop : llvm::reverse(loops)) {
    if (product == cols) {
      outer.push_back(loop);
      continue;
    }
    int64_t left = cols / product;
    if (cols % product == 0 && left % loop.size == 0) {
      inner.push_back(loop);
      product *= loop.size;
    } else if (cols % product == 0 && loop.size % left == 0) {
      inner.push_back({left, loop.step});
      outer.push_back({loop.size / left, loop.step * left});
      product = cols;
    } else {
      return nestExpr(loops, row * cols + col) + base;
    }
  }
  std::reverse(outer.begin(), outer.end());
  std::reverse(inner.begin(), inner.end());
  AffineExpr expr = nestExpr(outer, row) + nestExpr(inner, col) + base;
  // One row, or one column: the dimension still appears in the map, so that a
  // value of each element is not taken for one of the row.
  return expr;
}
