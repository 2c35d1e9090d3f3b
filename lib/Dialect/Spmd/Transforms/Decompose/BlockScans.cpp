//===- BlockScans.cpp - Recurrences over shards of a sequence -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A recurrence is linear in the state that it begins with (Martin and Cundy,
/// ICLR 2018, section 2.2). With the dimension [t] as [blocks, t / blocks]:
/// ```mlir
/// %own = graph.linear_scan %a, %x {dim = 1}  // each block from zero
/// %left = graph.linear_scan %a, %first {dim = 1}  // the share left
/// %states = graph.linear_scan %left_at_last, %own_at_last {dim = 0}
/// %h = %own + %left * %state_before
/// ```
/// Of the dimension of blocks only the last states and shares are read as a
/// whole: ranks that have one block each gather these alone. A shift by one
/// place, as gradients of recurrences have them, gathers the first or the last
/// element of each block, and a causal convolution the last elements, as many
/// as its windows reach back.
///
//===----------------------------------------------------------------------===//

#include "BlockScans.h"
#include "cleave/Dialect/Graph/IR/Formula.h"

using namespace mlir;
using namespace cleave;
using graph::tensorTypeOf;

namespace {
/// Builds ops on tensors whose dimension `blockDim`, of `blocks` blocks, is
/// written as two.
class Blocks {
public:
  Blocks(Operation *op, RankedTensorType type, int64_t dim, int64_t blocks)
      : builder(op), f{builder, op->getLoc()}, whole(type.getShape()),
        shape(whole), blockDim(dim), dim(dim + 1) {
    shape[dim] /= blocks;
    shape.insert(shape.begin() + dim, blocks);
  }

  /// The result of the recurrence `op`.
  Value scan(graph::LinearScanOp op) {
    bool reverse = op.getReverse();
    auto along = [&](Value factor, Value input, int64_t dim) -> Value {
      return graph::LinearScanOp::create(builder, f.loc, factor, input, dim,
                                         reverse);
    };
    int64_t size = shape[dim], first = reverse ? size - 1 : 0,
            last = size - 1 - first;
    Value factor = f.reshape(op.getFactor(), shape);
    Value own = along(factor, f.reshape(op.getInput(), shape), dim);
    Value left =
        along(factor, padded(at(factor, dim, first), dim, first, last), dim);
    Value states = along(at(left, dim, last), at(own, dim, last), blockDim);
    Value result = f.add(own, f.mul(left, moved(states, !reverse)));
    return f.reshape(result, whole);
  }

  /// `x` with each element where the next one is, or with `forward` off where
  /// the one before is.
  Value shift(Value x, bool forward) {
    x = f.reshape(x, shape);
    int64_t rest = shape[dim] - 1;
    Value own = at(x, dim, forward ? 0 : 1, rest);
    Value other = moved(at(x, dim, forward ? rest : 0), forward);
    Value result = graph::ConcatOp::create(builder, f.loc,
                                           forward ? ValueRange{other, own}
                                                   : ValueRange{own, other},
                                           builder.getI64IntegerAttr(dim));
    return f.reshape(result, whole);
  }

  /// The windows of `taps` elements, `step` places from each other, that end at
  /// each place of `x`: `[..., t, taps]`.
  Value windows(Value x, int64_t taps, int64_t step) {
    x = f.reshape(x, shape);
    int64_t size = shape[dim], reach = (taps - 1) * step;
    Value before = moved(at(x, dim, size - reach, reach), /*forward=*/true);
    Value all = graph::ConcatOp::create(builder, f.loc, ValueRange{before, x},
                                        builder.getI64IntegerAttr(dim));
    SmallVector<int64_t> split(shape);
    split.push_back(1);
    SmallVector<Value> columns;
    for (int64_t tap = 0; tap < taps; ++tap)
      columns.push_back(f.reshape(at(all, dim, tap * step, size), split));
    Value result = graph::ConcatOp::create(
        builder, f.loc, columns, builder.getI64IntegerAttr(shape.size()));
    SmallVector<int64_t> joined(whole);
    joined.push_back(taps);
    return f.reshape(result, joined);
  }

  /// The adjoint of `windows`: of `[..., t, taps]` the sums for each place.
  Value sumWindows(Value rows, int64_t taps, int64_t step) {
    SmallVector<int64_t> split(shape);
    split.push_back(taps);
    rows = f.reshape(rows, split);
    int64_t size = shape[dim], reach = (taps - 1) * step;
    SmallVector<int64_t> offsets(split.size(), 0), ones(split.size(), 1),
        sizes(split);
    sizes.back() = 1;
    Value all;
    for (int64_t tap = 0; tap < taps; ++tap) {
      offsets.back() = tap;
      Value column =
          graph::SliceOp::create(builder, f.loc, rows, offsets, sizes, ones);
      column =
          padded(f.reshape(column, shape), dim, tap * step, reach - tap * step);
      all = all ? f.add(all, column) : column;
    }
    Value before = moved(at(all, dim, 0, reach), /*forward=*/false);
    Value own = at(all, dim, reach, size);
    return f.reshape(f.add(own, padded(before, dim, size - reach, 0)), whole);
  }

private:
  /// The `count` elements of `x` from `index` on along `along`.
  Value at(Value x, int64_t along, int64_t index, int64_t count = 1) {
    SmallVector<int64_t> offsets(shape.size(), 0), ones(shape.size(), 1),
        sizes(tensorTypeOf(x).getShape());
    offsets[along] = index;
    sizes[along] = count;
    return graph::SliceOp::create(builder, f.loc, x, offsets, sizes, ones);
  }
  /// `x` between zeros along `along`.
  Value padded(Value x, int64_t along, int64_t below, int64_t above) {
    SmallVector<int64_t> none(shape.size(), 0), low = none, high = none;
    low[along] = below;
    high[along] = above;
    return graph::PadOp::create(builder, f.loc, x, APFloat(0.0), low, high,
                                none);
  }
  /// `x` with each block's part in the block after it, or in the one before.
  Value moved(Value x, bool forward) {
    int64_t rest = shape[blockDim] - 1;
    return padded(at(x, blockDim, forward ? 0 : 1, rest), blockDim, forward,
                  !forward);
  }

  OpBuilder builder;
  graph::Formula f;
  SmallVector<int64_t> whole, shape;
  /// The dimension of blocks, and that of the places of a block.
  int64_t blockDim, dim;
};
} // namespace

void cleave::spmd::blockScan(graph::LinearScanOp op, int64_t blocks) {
  Value result =
      Blocks(op, tensorTypeOf(op.getOutput()), op.getDim(), blocks).scan(op);
  op.getOutput().replaceAllUsesWith(result);
  op.erase();
}

std::optional<int64_t> cleave::spmd::shiftedDim(graph::PadOp op) {
  auto slice = op.getInput().getDefiningOp<graph::SliceOp>();
  if (!slice || !op.getValue().isZero() ||
      slice.getInput().getType() != op.getOutput().getType())
    return std::nullopt;
  std::optional<int64_t> dim;
  for (auto [i, size] :
       llvm::enumerate(tensorTypeOf(op.getOutput()).getShape())) {
    if (slice.getStrides()[i] != 1 || op.getInterior()[i] != 0)
      return std::nullopt;
    if (slice.getSizes()[i] == size)
      continue;
    // One side gets as many places as the other loses.
    if (dim || slice.getSizes()[i] != size - 1 ||
        slice.getOffsets()[i] != op.getHigh()[i])
      return std::nullopt;
    dim = i;
  }
  return dim;
}

void cleave::spmd::blockShift(graph::PadOp op, int64_t dim, int64_t blocks) {
  auto slice = op.getInput().getDefiningOp<graph::SliceOp>();
  Value result = Blocks(op, tensorTypeOf(op.getOutput()), dim, blocks)
                     .shift(slice.getInput(), op.getLow()[dim] == 1);
  op.getOutput().replaceAllUsesWith(result);
  op.erase();
  if (slice->use_empty())
    slice.erase();
}

/// The places behind each window of a kernel of several in one row, without
/// strides.
template <typename Op> static std::optional<int64_t> plainReach(Op op) {
  bool plain = llvm::all_of(op.getStride(), [](int64_t n) { return n == 1; }) &&
               llvm::all_of(op.getPadding(), [](int64_t n) { return n == 0; });
  if (!plain || op.getKernel()[0] != 1 || op.getKernel()[1] == 1)
    return std::nullopt;
  return (op.getKernel()[1] - 1) * op.getDilation()[1];
}

std::optional<int64_t> cleave::spmd::causalReach(graph::PatchesOp op) {
  auto pad = op.getInput().getDefiningOp<graph::PadOp>();
  if (!pad || !pad.getValue().isZero() ||
      llvm::any_of(pad.getInterior(), [](int64_t n) { return n != 0; }) ||
      llvm::any_of(pad.getHigh(), [](int64_t n) { return n != 0; }) ||
      llvm::any_of(pad.getLow().drop_back(), [](int64_t n) { return n != 0; }))
    return std::nullopt;
  std::optional<int64_t> reach = plainReach(op);
  if (!reach || *reach != pad.getLow().back() ||
      tensorTypeOf(op.getInput()).getDimSize(2) != 1)
    return std::nullopt;
  return reach;
}

/// The slice of the gradient of windows without the places of the pad.
static graph::SliceOp cutOf(graph::PatchesGradOp op) {
  if (!op.getOutput().hasOneUse())
    return {};
  return dyn_cast<graph::SliceOp>(*op.getOutput().user_begin());
}

std::optional<int64_t> cleave::spmd::causalReach(graph::PatchesGradOp op) {
  graph::SliceOp cut = cutOf(op);
  std::optional<int64_t> reach = plainReach(op);
  if (!cut || !reach || op.getImage()[0] != 1)
    return std::nullopt;
  SmallVector<int64_t> sizes(tensorTypeOf(op.getOutput()).getShape());
  sizes.back() -= *reach;
  if (cut.getSizes() != ArrayRef(sizes) ||
      cut.getOffsets() != ArrayRef<int64_t>{0, 0, 0, *reach} ||
      llvm::any_of(cut.getStrides(), [](int64_t n) { return n != 1; }))
    return std::nullopt;
  return reach;
}

void cleave::spmd::blockWindows(graph::PatchesOp op, int64_t blocks) {
  auto pad = op.getInput().getDefiningOp<graph::PadOp>();
  OpBuilder builder(op);
  graph::Formula f{builder, op.getLoc()};
  Value rows =
      Blocks(op, tensorTypeOf(pad.getInput()), /*dim=*/3, blocks)
          .windows(pad.getInput(), op.getKernel()[1], op.getDilation()[1]);
  // [n, c, h, w, taps] as [n, h, w, c, 1, taps].
  rows = graph::TransposeOp::create(builder, f.loc, rows,
                                    ArrayRef<int64_t>{0, 2, 3, 1, 4});
  op.getOutput().replaceAllUsesWith(
      f.reshape(rows, tensorTypeOf(op.getOutput()).getShape()));
  op.erase();
  if (pad->use_empty())
    pad.erase();
}

void cleave::spmd::blockWindowsGrad(graph::PatchesGradOp op, int64_t blocks) {
  graph::SliceOp cut = cutOf(op);
  OpBuilder builder(op);
  graph::Formula f{builder, op.getLoc()};
  RankedTensorType type = tensorTypeOf(cut.getOutput());
  // [n, h, w, c, 1, taps] as [n, c, h, w, taps].
  SmallVector<int64_t> shape(tensorTypeOf(op.getGradient()).getShape());
  shape.erase(shape.begin() + 4);
  Value rows = graph::TransposeOp::create(builder, f.loc,
                                          f.reshape(op.getGradient(), shape),
                                          ArrayRef<int64_t>{0, 3, 1, 2, 4});
  cut.getOutput().replaceAllUsesWith(
      Blocks(op, type, /*dim=*/3, blocks)
          .sumWindows(rows, op.getKernel()[1], op.getDilation()[1]));
  cut.erase();
  op.erase();
}
