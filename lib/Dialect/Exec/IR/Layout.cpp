//===- Layout.cpp - Layouts of tensors ------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/IR/ExecDialect.h"

using namespace mlir;
using namespace cleave::exec;

static SmallVector<int64_t> denseStrides(ArrayRef<int64_t> shape) {
  SmallVector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return strides;
}

Strided cleave::exec::getLayout(RankedTensorType type) {
  if (auto layout = dyn_cast_or_null<LayoutAttr>(type.getEncoding()))
    return {SmallVector<int64_t>(layout.getStrides()), layout.getOffset()};
  return {denseStrides(type.getShape()), 0};
}

/// The stride of a dimension of size 1 is arbitrary: uses that of dense order.
static Strided canonical(ArrayRef<int64_t> shape, const Strided &layout) {
  Strided result = layout;
  for (size_t i = shape.size(); i-- > 0;)
    if (shape[i] == 1)
      result.strides[i] =
          i + 1 == shape.size() ? 1 : shape[i + 1] * result.strides[i + 1];
  return result;
}

RankedTensorType cleave::exec::withLayout(RankedTensorType type,
                                          const Strided &layout) {
  Strided plain = canonical(type.getShape(), layout);
  bool dense = plain.offset == 0 && ArrayRef(plain.strides) ==
                                        ArrayRef(denseStrides(type.getShape()));
  Attribute encoding;
  if (!dense)
    encoding = LayoutAttr::get(type.getContext(), plain.strides, plain.offset);
  return RankedTensorType::get(type.getShape(), type.getElementType(),
                               encoding);
}

bool cleave::exec::isDense(RankedTensorType type) {
  return withLayout(type, getLayout(type)).getEncoding() == nullptr;
}

RankedTensorType cleave::exec::denseType(RankedTensorType type) {
  return RankedTensorType::get(type.getShape(), type.getElementType());
}

int64_t cleave::exec::extentBytes(RankedTensorType type) {
  if (type.getNumElements() == 0)
    return 0;
  Strided layout = getLayout(type);
  int64_t last = layout.offset;
  for (auto [size, stride] : llvm::zip_equal(type.getShape(), layout.strides))
    last += (size - 1) * stride;
  return (last + 1) * elementBytes(type.getElementType());
}

bool cleave::exec::isMatrix(RankedTensorType type, bool rowsOnly) {
  if (type.getRank() < 2 || type.getRank() > 3)
    return false;
  Strided layout = getLayout(type);
  ArrayRef<int64_t> shape = type.getShape().take_back(2),
                    strides = ArrayRef(layout.strides).take_back(2);
  bool byRows = (strides[1] == 1 || shape[1] == 1) &&
                (strides[0] >= shape[1] || shape[0] == 1);
  bool byColumns = (strides[0] == 1 || shape[0] == 1) &&
                   (strides[1] >= shape[0] || shape[1] == 1);
  return byRows || (!rowsOnly && byColumns);
}

bool cleave::exec::isLines8(RankedTensorType type, bool columns) {
  if (type.getRank() != 2)
    return false;
  Strided layout = getLayout(type);
  int64_t along = columns ? 0 : 1, across = 1 - along;
  return layout.strides[along] == 1 && layout.offset % 16 == 0 &&
         layout.strides[across] % 16 == 0 &&
         layout.strides[across] >= type.getDimSize(along);
}

bool cleave::exec::isHeadView(RankedTensorType type) {
  Type element = type.getElementType();
  if (type.getRank() != 4 ||
      !(element.isF32() || element.isBF16() || element.isF16()))
    return false;
  Strided layout = getLayout(type);
  return (layout.strides[3] == 1 || type.getDimSize(3) == 1) &&
         (layout.strides[2] >= type.getDimSize(3) || type.getDimSize(2) == 1);
}

//===----------------------------------------------------------------------===//
// Addresses as indices
//===----------------------------------------------------------------------===//

namespace {
/// A dimension of a tensor, for resolving addresses into indices.
struct Axis {
  int64_t size, stride;
  /// Its index in the tensor, before merging.
  unsigned dim;
  /// Its stride after the move.
  int64_t moved = 0;
  /// The first and the last index addressed.
  int64_t first = 0, last = 0;
};
} // namespace

/// The axes of `type` from the largest stride to the smallest, when each
/// address belongs to one index only.
static std::optional<SmallVector<Axis>> axesOf(RankedTensorType type) {
  SmallVector<Axis> axes;
  Strided layout = getLayout(type);
  for (auto [dim, size] : llvm::enumerate(type.getShape()))
    if (size > 1)
      axes.push_back({size, layout.strides[dim], static_cast<unsigned>(dim)});
  llvm::sort(axes,
             [](const Axis &a, const Axis &b) { return a.stride > b.stride; });
  int64_t inner = 0;
  for (const Axis &axis : llvm::reverse(axes)) {
    if (axis.stride <= inner)
      return std::nullopt;
    inner += (axis.size - 1) * axis.stride;
  }
  return axes;
}

/// Resolves `distance` into indices: the first ones addressed.
static bool resolveOffset(MutableArrayRef<Axis> axes, int64_t distance) {
  if (distance < 0)
    return false;
  for (Axis &axis : axes) {
    axis.first = axis.last = distance / axis.stride;
    if (axis.first >= axis.size)
      return false;
    distance %= axis.stride;
  }
  return distance == 0;
}

/// The axis along which `size` steps of `stride` go; null when there is none.
static Axis *resolveStride(MutableArrayRef<Axis> axes, int64_t size,
                           int64_t stride) {
  Axis *axis = llvm::find_if(
      axes, [&](const Axis &axis) { return axis.stride <= stride; });
  if (axis == axes.end() || stride % axis->stride != 0)
    return nullptr;
  axis->last += (size - 1) * (stride / axis->stride);
  return axis->last < axis->size ? axis : nullptr;
}

std::optional<Strided> cleave::exec::rebase(RankedTensorType from,
                                            RankedTensorType to,
                                            const Strided &moved) {
  std::optional<SmallVector<Axis>> all = axesOf(from);
  if (!all)
    return std::nullopt;
  // Axes that stay contiguous are merged, because dimensions of `to` may cross
  // them.
  SmallVector<Axis> axes;
  for (Axis axis : *all) {
    axis.moved = moved.strides[axis.dim];
    if (!axes.empty() && axes.back().stride == axis.stride * axis.size &&
        axes.back().moved == axis.moved * axis.size)
      axes.back() = {axes.back().size * axis.size, axis.stride, axis.dim,
                     axis.moved};
    else
      axes.push_back(axis);
  }
  Strided old = getLayout(to);
  if (!resolveOffset(axes, old.offset - getLayout(from).offset))
    return std::nullopt;
  Strided result;
  result.offset = moved.offset;
  for (const Axis &axis : axes)
    result.offset += axis.first * axis.moved;
  for (auto [size, stride] : llvm::zip_equal(to.getShape(), old.strides)) {
    if (size == 1 || stride == 0) {
      result.strides.push_back(0);
      continue;
    }
    Axis *axis = resolveStride(axes, size, stride);
    if (!axis)
      return std::nullopt;
    result.strides.push_back(stride / axis->stride * axis->moved);
  }
  return canonical(to.getShape(), result);
}

bool Box::overlaps(const Box &other) const {
  for (size_t i = 0; i < start.size(); ++i)
    if (start[i] + size[i] <= other.start[i] ||
        other.start[i] + other.size[i] <= start[i])
      return false;
  return true;
}

std::optional<Box> cleave::exec::boxWithin(RankedTensorType whole,
                                           RankedTensorType part) {
  std::optional<SmallVector<Axis>> axes = axesOf(whole);
  Strided layout = getLayout(part);
  if (!axes || !resolveOffset(*axes, layout.offset - getLayout(whole).offset))
    return std::nullopt;
  // A dimension of `part` may cross contiguous axes: splits it there, from the
  // innermost.
  int64_t rank = whole.getRank();
  SmallVector<SmallVector<std::pair<int64_t, int64_t>>> steps(rank);
  for (auto [size, stride] : llvm::zip_equal(part.getShape(), layout.strides)) {
    int64_t left = size, step = stride;
    while (left > 1) {
      Axis *axis = llvm::find_if(
          *axes, [&](const Axis &axis) { return axis.stride <= step; });
      if (step <= 0 || axis == axes->end() || step % axis->stride != 0)
        return std::nullopt;
      int64_t inAxis = step / axis->stride, count = left;
      if (axis->first + inAxis * (left - 1) >= axis->size) {
        // Only a whole axis can be crossed.
        if (axis->size % inAxis != 0 || left % (axis->size / inAxis) != 0)
          return std::nullopt;
        count = axis->size / inAxis;
        if (count < 2)
          return std::nullopt;
      }
      axis->last += (count - 1) * inAxis;
      if (axis->last >= axis->size)
        return std::nullopt;
      steps[axis->dim].push_back({inAxis, count});
      left /= count;
      step *= count;
    }
  }
  Box box;
  box.start.assign(rank, 0);
  box.size.assign(rank, 1);
  for (const Axis &axis : *axes) {
    llvm::sort(steps[axis.dim]);
    box.start[axis.dim] = axis.first;
    for (auto [step, count] : steps[axis.dim]) {
      if (step != box.size[axis.dim])
        return std::nullopt; // gaps, or elements addressed twice
      box.size[axis.dim] *= count;
    }
  }
  return box;
}
