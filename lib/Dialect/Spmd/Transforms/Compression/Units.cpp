//===- Units.cpp - What a compressor chooses from -------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Units.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;
using graph::Formula;
using graph::tensorTypeOf;

Units Units::whole(ArrayRef<int64_t> shape) { return pieces(shape, 1); }

Units Units::pieces(ArrayRef<int64_t> shape, int64_t count, int64_t size) {
  Units units(shape);
  units.number = count;
  units.elements =
      size > 0 ? size
               : llvm::divideCeil(ShapedType::getNumElements(shape), count);
  return units;
}

Units Units::shards(ArrayRef<int64_t> shape, ArrayRef<int64_t> shard) {
  Units units(shape);
  units.inOrder = false;
  for (auto [all, own] : llvm::zip_equal(shape, shard)) {
    units.parts.push_back(all / own);
    units.number *= all / own;
  }
  units.elements = ShapedType::getNumElements(shard);
  return units;
}

/// Each dimension as its parts and what is in one.
SmallVector<int64_t> Units::cutShape() const {
  SmallVector<int64_t> cut;
  for (auto [size, count] : llvm::zip_equal(shape, parts))
    cut.append({count, size / count});
  return cut;
}

/// The order of dimensions that brings all parts before what is in them, or
/// back.
SmallVector<int64_t> Units::permutation(int64_t leading, bool back) const {
  SmallVector<int64_t> order = llvm::to_vector(llvm::seq<int64_t>(0, leading));
  int64_t rank = shape.size();
  if (back)
    for (int64_t dim = 0; dim < rank; ++dim)
      order.append({leading + dim, leading + rank + dim});
  else
    for (int64_t first : {0, 1})
      for (int64_t dim = 0; dim < rank; ++dim)
        order.push_back(leading + 2 * dim + first);
  return order;
}

Value Units::split(Formula &f, Value value) const {
  RankedTensorType type = tensorTypeOf(value);
  int64_t leading = type.getRank() - shape.size();
  SmallVector<int64_t> target(type.getShape().take_front(leading));
  if (!inOrder) {
    SmallVector<int64_t> cut = target;
    llvm::append_range(cut, cutShape());
    value = graph::TransposeOp::create(f.builder, f.loc, f.reshape(value, cut),
                                       permutation(leading, /*back=*/false));
  } else if (int64_t all = ShapedType::getNumElements(shape);
             all != number * elements) {
    SmallVector<int64_t> flat = target, zeros(leading + 1, 0), high = zeros;
    flat.push_back(all);
    high.back() = number * elements - all;
    value = graph::PadOp::create(f.builder, f.loc, f.reshape(value, flat),
                                 llvm::APFloat(0.0), zeros, high, zeros);
  }
  target.append({number, elements});
  return f.reshape(value, target);
}

Value Units::join(Formula &f, Value value) const {
  RankedTensorType type = tensorTypeOf(value);
  int64_t leading = type.getRank() - 2;
  SmallVector<int64_t> target(type.getShape().take_front(leading));
  if (!inOrder) {
    SmallVector<int64_t> cut = target;
    llvm::append_range(cut, parts);
    for (auto [size, count] : llvm::zip_equal(shape, parts))
      cut.push_back(size / count);
    value = graph::TransposeOp::create(f.builder, f.loc, f.reshape(value, cut),
                                       permutation(leading, /*back=*/true));
  } else if (int64_t all = ShapedType::getNumElements(shape);
             all != number * elements) {
    SmallVector<int64_t> flat = target, zeros(leading + 1, 0),
                         ones(leading + 1, 1);
    flat.push_back(number * elements);
    SmallVector<int64_t> sizes = target;
    sizes.push_back(all);
    value = graph::SliceOp::create(f.builder, f.loc, f.reshape(value, flat),
                                   zeros, sizes, ones);
  }
  llvm::append_range(target, shape);
  return f.reshape(value, target);
}
