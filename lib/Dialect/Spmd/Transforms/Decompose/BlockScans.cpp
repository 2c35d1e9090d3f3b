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
/// %left = graph.linear_scan %a, %first {dim = 1}  // products of the factors
/// %states = graph.linear_scan %left_at_last, %own_at_last {dim = 0}
/// %h = %own + %left * %state_before
/// ```
/// Of the dimension of blocks only the last states and products are read as a
/// whole: ranks that have one block each gather these alone.
///
//===----------------------------------------------------------------------===//

#include "BlockScans.h"
#include "cleave/Dialect/Graph/IR/Formula.h"

using namespace mlir;
using namespace cleave;
using graph::tensorTypeOf;

namespace {
/// Builds the ops of one recurrence in blocks.
class BlockedScan {
public:
  BlockedScan(graph::LinearScanOp op, int64_t blocks)
      : builder(op), f{builder, op.getLoc()}, op(op), blockDim(op.getDim()),
        dim(blockDim + 1), reverse(op.getReverse()) {
    shape.assign(op.getType().getShape().begin(),
                 op.getType().getShape().end());
    shape[blockDim] /= blocks;
    shape.insert(shape.begin() + blockDim, blocks);
  }

  Value build() {
    Value factor = f.reshape(op.getFactor(), shape);
    Value own = scan(factor, f.reshape(op.getInput(), shape), dim);
    int64_t size = shape[dim], first = reverse ? size - 1 : 0,
            last = size - 1 - first;
    Value left =
        scan(factor,
             padded(at(factor, dim, first), dim, first, size - 1 - first), dim);
    Value states = scan(at(left, dim, last), at(own, dim, last), blockDim);
    Value result = f.add(own, f.mul(left, before(states)));
    return f.reshape(result, op.getType().getShape());
  }

private:
  Value scan(Value factor, Value input, int64_t along) {
    return graph::LinearScanOp::create(builder, f.loc, factor, input, along,
                                       reverse);
  }
  /// The `count` elements of `x` from `index` on along `along`.
  Value at(Value x, int64_t along, int64_t index, int64_t count = 1) {
    SmallVector<int64_t> offsets(shape.size(), 0), ones(shape.size(), 1),
        sizes(tensorTypeOf(x).getShape());
    offsets[along] = index;
    sizes[along] = count;
    return graph::SliceOp::create(builder, f.loc, x, offsets, sizes, ones);
  }
  /// `x` between as many zeros along `along`.
  Value padded(Value x, int64_t along, int64_t below, int64_t above) {
    SmallVector<int64_t> none(shape.size(), 0), low = none, high = none;
    low[along] = below;
    high[along] = above;
    return graph::PadOp::create(builder, f.loc, x, APFloat(0.0), low, high,
                                none);
  }
  /// The states with which blocks begin, of those with which they end.
  Value before(Value states) {
    int64_t rest = shape[blockDim] - 1;
    return reverse ? padded(at(states, blockDim, 1, rest), blockDim, 0, 1)
                   : padded(at(states, blockDim, 0, rest), blockDim, 1, 0);
  }

  OpBuilder builder;
  graph::Formula f;
  graph::LinearScanOp op;
  /// The dimension of blocks, and that of the places of a block.
  int64_t blockDim, dim;
  bool reverse;
  SmallVector<int64_t> shape;
};
} // namespace

void cleave::spmd::blockScan(graph::LinearScanOp op, int64_t blocks) {
  Value result = BlockedScan(op, blocks).build();
  op.getOutput().replaceAllUsesWith(result);
  op.erase();
}
