//===- Pieces.cpp - Values that are slices of one -------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Pieces.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/IR/OfDevice.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

bool cleave::spmd::isAlike(Value a, Value b, int64_t dim) {
  RankedTensorType x = graph::tensorTypeOf(a), y = graph::tensorTypeOf(b);
  if (x.getRank() != y.getRank() || x.getElementType() != y.getElementType() ||
      writtenShardingAttr(a) != writtenShardingAttr(b) ||
      x.getDimSize(dim) == 0 || y.getDimSize(dim) == 0)
    return false;
  SmallVector<int64_t> shape(x.getShape());
  shape[dim] = y.getDimSize(dim);
  return ArrayRef<int64_t>(shape) == y.getShape();
}

Value cleave::spmd::placeAs(Value whole, Value piece, int64_t dim) {
  RankedTensorType global = writtenGlobalType(piece);
  if (ShardingAttr sharding = writtenShardingAttr(piece); sharding && global) {
    SmallVector<int64_t> shape(global.getShape());
    shape[dim] = shape[dim] / graph::tensorTypeOf(piece).getDimSize(dim) *
                 graph::tensorTypeOf(whole).getDimSize(dim);
    annotate(whole.getDefiningOp(), sharding,
             RankedTensorType::get(shape, global.getElementType()));
  }
  return whole;
}

void cleave::spmd::markOfDevice(Operation *op, Value piece, int64_t dim) {
  if (ShardingAttr sharding = writtenShardingAttr(piece);
      sharding && !sharding.getSharding().dims[dim].empty())
    op->setAttr(kOfDeviceAttr, UnitAttr::get(op->getContext()));
}

Value cleave::spmd::cutFrom(const Pieces &pieces) {
  Value whole;
  int64_t offset = 0;
  for (Value piece : pieces.values) {
    auto slice = piece.getDefiningOp<graph::SliceOp>();
    if (!slice || (whole && slice.getInput() != whole) ||
        slice.getOffsets()[pieces.dim] != offset)
      return nullptr;
    whole = slice.getInput();
    offset += graph::tensorTypeOf(piece).getDimSize(pieces.dim);
  }
  SmallVector<int64_t> shape(
      graph::tensorTypeOf(pieces.values.front()).getShape());
  shape[pieces.dim] = offset;
  return graph::tensorTypeOf(whole).getShape() == ArrayRef<int64_t>(shape)
             ? whole
             : Value();
}

std::optional<Pieces> cleave::spmd::beforeReshape(const Pieces &pieces) {
  Pieces result{{}, 0};
  for (Value piece : pieces.values) {
    auto reshape = piece.getDefiningOp<graph::ReshapeOp>();
    if (!reshape || pieces.dim != 0)
      return std::nullopt;
    Value from = reshape.getInput();
    ArrayRef<int64_t> shape = graph::tensorTypeOf(from).getShape(),
                      rest = graph::tensorTypeOf(piece).getShape().drop_front();
    if (shape.size() <= rest.size() + 1 ||
        shape.take_back(rest.size()) != rest ||
        (!result.values.empty() && !isAlike(from, result.values.front(), 0)))
      return std::nullopt;
    result.values.push_back(from);
  }
  return result;
}

SmallVector<Operation *> cleave::spmd::cut(OpBuilder &builder, Value whole,
                                           const Pieces &pieces) {
  SmallVector<Operation *> slices;
  int64_t offset = 0;
  for (Value piece : pieces.values) {
    RankedTensorType type = graph::tensorTypeOf(piece);
    SmallVector<int64_t> offsets(type.getRank(), 0), strides(type.getRank(), 1);
    offsets[pieces.dim] = offset;
    offset += type.getDimSize(pieces.dim);
    auto slice =
        graph::SliceOp::create(builder, piece.getLoc(), whole, offsets,
                               llvm::to_vector(type.getShape()), strides);
    if (ShardingAttr sharding = writtenShardingAttr(piece))
      annotate(slice, sharding, writtenGlobalType(piece));
    markOfDevice(slice, piece, pieces.dim);
    slices.push_back(slice);
  }
  return slices;
}
