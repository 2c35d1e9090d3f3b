//===- IndexKernels.cpp - Scalar code of lookups and of packed bits -------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "KernelModels.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "mlir/Dialect/Arith/IR/Arith.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

namespace {

/// Chooses one element of each row at a time: the largest remaining one.
struct TopKModel
    : KernelDecompositionInterface::ExternalModel<TopKModel, TopKOp> {
  SmallVector<Value> decompose(Operation *operation, OpBuilder &b) const {
    auto op = cast<TopKOp>(operation);
    Formula f{b, op.getLoc()};
    RankedTensorType type = tensorTypeOf(op.getInput());
    int64_t last = type.getRank() - 1, size = type.getShape().back();
    SmallVector<int64_t> indexShape(type.getRank(), 1), column(type.getShape());
    indexShape.back() = size;
    column.back() = 1;
    Value index = IotaOp::create(
        b, op.getLoc(), RankedTensorType::get(indexShape, b.getI64Type()), last,
        0);
    auto infinity = [&](bool negative) {
      return f.splat(RankedTensorType::get({}, type.getElementType()),
                     negative ? -INFINITY : INFINITY);
    };
    auto reduce = [&](ReductionKind kind, Value x) {
      Value y = ReduceOp::create(b, op.getLoc(), kind, x,
                                 b.getDenseI64ArrayAttr({last}));
      return f.reshape(y, column);
    };
    Value x = op.getInput();
    // NaN counts as infinity.
    Value keys = f.select(f.compare(Predicate::ne, x, x), infinity(false), x);
    Value left; // the elements that were not chosen yet
    SmallVector<Value> values, indices;
    for (int64_t i = 0; i < static_cast<int64_t>(op.getK()); ++i) {
      Value open = left ? f.select(left, keys, infinity(true)) : keys;
      Value top = reduce(ReductionKind::Max, open);
      Value here = f.compare(Predicate::eq, open, top);
      if (left)
        here = AndOp::create(b, op.getLoc(), here, left);
      Value at = f.select(here, index, f.scalar(index, size));
      Value chosen =
          reduce(ReductionKind::Min, f.broadcast(at, type.getShape()));
      Value is = f.compare(Predicate::eq, index, chosen);
      values.push_back(
          reduce(ReductionKind::Sum, f.select(is, x, f.scalar(x, 0.0))));
      indices.push_back(chosen);
      Value rest = NotOp::create(b, op.getLoc(), is);
      left =
          left ? AndOp::create(b, op.getLoc(), left, rest).getResult() : rest;
    }
    auto join = [&](ArrayRef<Value> parts) -> Value {
      if (parts.size() == 1)
        return parts.front();
      return decomposeConcat(ConcatOp::create(b, op.getLoc(), parts, last), b);
    };
    return {join(values), join(indices)};
  }
};

struct GatherModel
    : KernelLoweringInterface::ExternalModel<GatherModel, GatherOp> {
  KernelSpace getKernelSpace(Operation *operation) const {
    auto op = cast<GatherOp>(operation);
    auto type = tensorTypeOf(op.getInput());
    int64_t n = numElements(op.getOutput());
    int64_t slice = product(type.getShape().drop_front(op.getDim() + 1));
    return slice == 1 ? KernelSpace::flat(n)
                      : KernelSpace::fixed(n / slice, slice);
  }

  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    auto op = cast<GatherOp>(operation);
    auto type = tensorTypeOf(op.getInput()),
         ids = tensorTypeOf(op.getIndices());
    int64_t dim = op.getDim(), batch = op.getBatch();
    int64_t rank = ids.getRank() - batch;
    ArrayRef<int64_t> shape = tensorTypeOf(op.getOutput()).getShape();
    SmallVector<int64_t> idDims(shape.size(), -1), dataDims(shape.size(), -1);
    for (int64_t i = 0; i < (int64_t)shape.size(); ++i) {
      if (i < dim)
        dataDims[i] = i;
      else if (i < dim + rank)
        idDims[i] = batch + i - dim;
      else
        dataDims[i] = i - rank + 1;
      if (i < batch)
        idDims[i] = i;
    }
    Value id = k.read(op.getIndices(), Access::get(ids, shape, idDims));
    id = k.cast(id, k.getBuilder().getI64Type());
    Value where;
    if (op.getOrigin()) {
      using P = arith::CmpIPredicate;
      id = k.sub(id, k.readScalar(op.getOrigin(), {0}));
      where = both(k, compare(k, P::sge, id, 0),
                   compare(k, P::slt, id, type.getDimSize(dim)));
    }
    int64_t step = exec::getLayout(type).strides[dim];
    k.define(op.getOutput(),
             k.readIndexed(op.getInput(), Access::get(type, shape, dataDims),
                           id, step, where));
    return success();
  }
};

struct OneHotModel : FlatModel<OneHotModel, OneHotOp> {
  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    auto op = cast<OneHotOp>(operation);
    auto ids = tensorTypeOf(op.getIndices());
    auto shape = tensorTypeOf(op.getOutput()).getShape();
    auto dims = llvm::to_vector(llvm::seq<int64_t>(0, ids.getRank()));
    dims.push_back(-1);
    Value id = k.read(op.getIndices(), Access::get(ids, shape, dims));
    id = k.cast(id, k.getBuilder().getI64Type());
    Value named;
    if (auto ignored = op.getIgnoreIndex())
      named = compare(k, arith::CmpIPredicate::ne, id, *ignored);
    if (op.getOrigin())
      id = k.sub(id, k.readScalar(op.getOrigin(), {0}));
    Value hit = arith::CmpIOp::create(k.getBuilder(), k.getLoc(),
                                      arith::CmpIPredicate::eq, id,
                                      k.index(shape, ids.getRank()));
    k.define(op.getOutput(), named ? both(k, named, hit) : hit);
    return success();
  }
};

/// Each byte reads its eight flags.
struct PackBitsModel : FlatModel<PackBitsModel, PackBitsOp> {
  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    auto op = cast<PackBitsOp>(operation);
    auto type = tensorTypeOf(op.getInput());
    auto shape = tensorTypeOf(op.getOutput()).getShape();
    int64_t rank = type.getRank(), last = rank - 1,
            size = type.getDimSize(last);
    Type wide = k.getBuilder().getI32Type();
    Value byte;
    for (int64_t bit = 0; bit < std::min<int64_t>(size, 8); ++bit) {
      SmallVector<int64_t> steps(rank, 1), begin(rank, 0);
      steps[last] = 8;
      begin[last] = bit;
      Access access =
          Access::get(type, shape, llvm::to_vector(llvm::seq<int64_t>(0, rank)),
                      steps, begin);
      Value flag;
      if (size % 8 == 0 || bit < size % 8) {
        flag = k.read(op.getInput(), access);
      } else {
        // The last byte has no such flag.
        Value inside = compare(k, arith::CmpIPredicate::slt,
                               k.index(shape, last), size / 8);
        flag = k.readIndexed(op.getInput(), access, {}, {}, inside);
      }
      Value own = k.mul(k.cast(flag, wide), k.constant(wide, 1 << bit));
      byte = byte ? k.add(byte, own) : own;
    }
    k.define(op.getOutput(), byte);
    return success();
  }
};

struct UnpackBitsModel : FlatModel<UnpackBitsModel, UnpackBitsOp> {
  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    auto op = cast<UnpackBitsOp>(operation);
    auto type = tensorTypeOf(op.getInput());
    auto shape = tensorTypeOf(op.getOutput()).getShape();
    OpBuilder &b = k.getBuilder();
    int64_t last = type.getRank() - 1;
    auto dims = llvm::to_vector(llvm::seq<int64_t>(0, last));
    dims.push_back(-1);
    Value at = k.index(shape, last);
    Value place = k.div(at, i64Constant(k, 8));
    int64_t step = exec::getLayout(type).strides[last];
    Value byte = k.readIndexed(op.getInput(), Access::get(type, shape, dims),
                               place, step);
    Value bit =
        k.cast(k.sub(at, k.mul(place, i64Constant(k, 8))), b.getI32Type());
    Value shifted = arith::ShRSIOp::create(b, k.getLoc(),
                                           k.cast(byte, b.getI32Type()), bit);
    Value low = arith::AndIOp::create(b, k.getLoc(), shifted,
                                      k.constant(b.getI32Type(), 1));
    k.define(op.getOutput(),
             arith::CmpIOp::create(b, k.getLoc(), arith::CmpIPredicate::ne, low,
                                   k.constant(b.getI32Type(), 0)));
    return success();
  }
};

} // namespace

void cleave::attachIndexKernels(MLIRContext *context) {
  TopKOp::attachInterface<TopKModel>(*context);
  GatherOp::attachInterface<GatherModel>(*context);
  OneHotOp::attachInterface<OneHotModel>(*context);
  PackBitsOp::attachInterface<PackBitsModel>(*context);
  UnpackBitsOp::attachInterface<UnpackBitsModel>(*context);
}
