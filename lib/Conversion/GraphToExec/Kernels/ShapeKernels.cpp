//===- ShapeKernels.cpp - Scalar code of layout ops -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "KernelModels.h"
#include "mlir/Dialect/Arith/IR/Arith.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

namespace {

struct ReshapeModel : FlatModel<ReshapeModel, ReshapeOp> {
  LogicalResult emitKernel(Operation *op, KernelBuilder &k) const {
    k.define(op->getResult(0), k.readInOrder(op->getOperand(0)));
    return success();
  }
};

struct BroadcastModel : FlatModel<BroadcastModel, BroadcastOp> {
  LogicalResult emitKernel(Operation *op, KernelBuilder &k) const {
    k.define(op->getResult(0),
             k.readBroadcast(op->getOperand(0),
                             tensorTypeOf(op->getResult(0)).getShape()));
    return success();
  }
};

struct TransposeModel : FlatModel<TransposeModel, TransposeOp> {
  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    auto op = cast<TransposeOp>(operation);
    k.define(op.getOutput(),
             k.read(op.getInput(),
                    Access::get(tensorTypeOf(op.getInput()),
                                tensorTypeOf(op.getOutput()).getShape(),
                                op.getPermutation())));
    return success();
  }
};

struct SliceModel : FlatModel<SliceModel, SliceOp> {
  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    auto op = cast<SliceOp>(operation);
    auto type = tensorTypeOf(op.getInput());
    k.define(op.getOutput(),
             k.read(op.getInput(),
                    Access::get(
                        type, tensorTypeOf(op.getOutput()).getShape(),
                        llvm::to_vector(llvm::seq<int64_t>(0, type.getRank())),
                        op.getStrides(), op.getOffsets())));
    return success();
  }
};

struct PadModel : FlatModel<PadModel, PadOp> {
  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    using P = arith::CmpIPredicate;
    auto op = cast<PadOp>(operation);
    OpBuilder &b = k.getBuilder();
    auto type = tensorTypeOf(op.getInput());
    auto shape = tensorTypeOf(op.getOutput()).getShape();
    auto strides = exec::getLayout(type).strides;
    SmallVector<Value> indices;
    SmallVector<int64_t> steps, loopDims(shape.size(), -1);
    Value where;
    for (int64_t d = 0; d < type.getRank(); ++d) {
      int64_t low = op.getLow()[d], spread = op.getInterior()[d] + 1;
      if (low == 0 && op.getHigh()[d] == 0 && spread == 1) {
        loopDims[d] = d;
        continue;
      }
      Value at = k.sub(k.index(shape, d), i64Constant(k, low));
      where = both(k, where, compare(k, P::sge, at, 0));
      if (spread != 1) {
        Value rest =
            arith::RemSIOp::create(b, k.getLoc(), at, i64Constant(k, spread));
        where = both(k, where, compare(k, P::eq, rest, 0));
        at = k.div(at, i64Constant(k, spread));
      }
      where = both(k, where, compare(k, P::slt, at, type.getDimSize(d)));
      indices.push_back(at);
      steps.push_back(strides[d]);
    }
    Access access = Access::get(type, shape, loopDims);
    if (!where) {
      k.define(op.getOutput(), k.read(op.getInput(), access));
      return success();
    }
    Value x = k.readIndexed(op.getInput(), access, indices, steps, where);
    Value fill = k.constant(x.getType(), op.getValue().convertToDouble());
    k.define(op.getOutput(), k.select(where, x, fill));
    return success();
  }
};

struct ConcatModel
    : KernelDecompositionInterface::ExternalModel<ConcatModel, ConcatOp> {
  SmallVector<Value> decompose(Operation *op, OpBuilder &b) const {
    return {decomposeConcat(cast<ConcatOp>(op), b)};
  }
};

} // namespace

/// One copy for each operand, into its slice of the result.
Value cleave::decomposeConcat(ConcatOp op, OpBuilder &b) {
  int64_t dim = op.getDim(), position = 0;
  auto outType = tensorTypeOf(op.getOutput());
  SmallVector<int64_t> indexShape(outType.getRank(), 1);
  indexShape[dim] = outType.getDimSize(dim);
  auto indexType = RankedTensorType::get(indexShape, b.getI64Type());
  Value index = IotaOp::create(b, op.getLoc(), indexType, dim, 0);
  Value result;
  for (Value input : op.getInputs()) {
    auto type = tensorTypeOf(input);
    SmallVector<int64_t> low(type.getRank(), 0), high(type.getRank(), 0),
        interior(type.getRank(), 0);
    low[dim] = position;
    high[dim] = outType.getDimSize(dim) - position - type.getDimSize(dim);
    Value padded =
        PadOp::create(b, op.getLoc(), outType, input, b.getF64FloatAttr(0),
                      b.getDenseI64ArrayAttr(low), b.getDenseI64ArrayAttr(high),
                      b.getDenseI64ArrayAttr(interior));
    if (result) {
      auto limit = DenseElementsAttr::get(
          RankedTensorType::get({}, b.getI64Type()), (int64_t)position);
      Value bound = ConstantOp::create(b, op.getLoc(), limit);
      Value here =
          CompareOp::create(b, op.getLoc(), Predicate::ge, index, bound);
      result = SelectOp::create(b, op.getLoc(), here, padded, result);
    } else {
      result = padded;
    }
    position += type.getDimSize(dim);
  }
  return result;
}

void cleave::attachShapeKernels(MLIRContext *context) {
  ReshapeOp::attachInterface<ReshapeModel>(*context);
  BroadcastOp::attachInterface<BroadcastModel>(*context);
  TransposeOp::attachInterface<TransposeModel>(*context);
  SliceOp::attachInterface<SliceModel>(*context);
  PadOp::attachInterface<PadModel>(*context);
  ConcatOp::attachInterface<ConcatModel>(*context);
}
