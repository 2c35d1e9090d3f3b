//===- ShapeKernels.cpp - Scalar code of reductions and movement ----------===//
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
using exec::Reduction;

namespace {

RankedTensorType typeOf(Value v) { return cast<RankedTensorType>(v.getType()); }

Reduction reductionOf(ReductionKind kind) {
  switch (kind) {
  case ReductionKind::sum:
    return Reduction::Sum;
  case ReductionKind::max:
    return Reduction::Max;
  case ReductionKind::min:
    return Reduction::Min;
  }
  llvm_unreachable("covered switch");
}

int64_t product(ArrayRef<int64_t> shape) {
  int64_t n = 1;
  for (int64_t d : shape)
    n *= d;
  return n;
}

/// An op that computes each element of result 0 on its own.
template <typename Derived, typename OpTy>
struct FlatModel : KernelLoweringInterface::ExternalModel<Derived, OpTy> {
  KernelSpace getKernelSpace(Operation *op) const {
    return KernelSpace::flat(numElements(op->getResult(0)));
  }
};

//===----------------------------------------------------------------------===//
// Reductions
//===----------------------------------------------------------------------===//

struct ReduceModel
    : KernelLoweringInterface::ExternalModel<ReduceModel, ReduceOp> {
  enum class Form { None, All, Rows, Columns, FewRows };

  /// Unit dimensions are neutral: which of the others are reduced?
  static Form formOf(ReduceOp op) {
    auto type = typeOf(op.getInput());
    SmallVector<bool> reduced;
    for (int64_t d = 0; d < type.getRank(); ++d)
      if (type.getDimSize(d) != 1)
        reduced.push_back(llvm::is_contained(op.getDims(), d));
    if (!llvm::is_contained(reduced, true))
      return Form::None;
    if (!llvm::is_contained(reduced, false))
      return Form::All;
    // A few long rows are added up element by element, in one stage.
    int64_t m = numElements(op.getOutput()), rows = type.getNumElements() / m;
    if (llvm::is_sorted(reduced, std::greater<>()))
      return rows <= 8 && m >= 65536 ? Form::FewRows : Form::Columns;
    return Form::Rows;
  }

  KernelSpace getKernelSpace(Operation *operation) const {
    auto op = cast<ReduceOp>(operation);
    int64_t n = numElements(op.getInput()), m = numElements(op.getOutput());
    switch (formOf(op)) {
    case Form::None:
    case Form::All:
      return KernelSpace::flat(n);
    case Form::Rows:
      return KernelSpace::fixed(m, n / m);
    case Form::Columns:
      return KernelSpace::fixed(n / m, m);
    case Form::FewRows:
      return KernelSpace::flat(m);
    }
    llvm_unreachable("covered switch");
  }

  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    auto op = cast<ReduceOp>(operation);
    auto type = typeOf(op.getInput());
    Reduction kind = reductionOf(op.getKind());
    switch (formOf(op)) {
    case Form::None:
      k.define(op.getOutput(), k.readInOrder(op.getInput()));
      break;
    case Form::All:
      k.accumulateAll(kind, k.readInOrder(op.getInput()), op.getOutput());
      break;
    case Form::FewRows: {
      // One element of each row; unit dimensions make no difference.
      int64_t m = numElements(op.getOutput());
      int64_t rows = type.getNumElements() / m;
      SmallVector<int64_t> dims, sizes;
      for (int64_t d = 0; d < type.getRank(); ++d)
        if (!llvm::is_contained(op.getDims(), d)) {
          dims.push_back(d);
          sizes.push_back(type.getDimSize(d));
        }
      Value sum;
      for (int64_t r = 0; r < rows; ++r) {
        SmallVector<int64_t> begin(type.getRank(), 0);
        int64_t rest = r;
        for (int64_t d = type.getRank() - 1; d >= 0; --d)
          if (llvm::is_contained(op.getDims(), d)) {
            begin[d] = rest % type.getDimSize(d);
            rest /= type.getDimSize(d);
          }
        Value x =
            k.read(op.getInput(), Access::get(type, sizes, dims, {}, begin));
        if (!sum)
          sum = x;
        else if (kind == Reduction::Sum)
          sum = k.add(sum, x);
        else
          sum = kind == Reduction::Max ? k.max(sum, x) : k.min(sum, x);
      }
      k.define(op.getOutput(), sum);
      break;
    }
    case Form::Columns:
      k.accumulate(kind, k.readInOrder(op.getInput()), op.getOutput());
      break;
    case Form::Rows: {
      // Kept dimensions make the row, reduced ones the columns.
      SmallVector<int64_t> dims, sizes;
      for (bool reduced : {false, true})
        for (int64_t d = 0; d < type.getRank(); ++d)
          if (llvm::is_contained(op.getDims(), d) == reduced) {
            dims.push_back(d);
            sizes.push_back(type.getDimSize(d));
          }
      Value x = k.read(op.getInput(), Access::get(type, sizes, dims));
      k.define(op.getOutput(), k.reduce(kind, x), Level::Row);
      break;
    }
    }
    return success();
  }
};

struct CumulativeSumModel
    : KernelLoweringInterface::ExternalModel<CumulativeSumModel,
                                             CumulativeSumOp> {
  KernelSpace getKernelSpace(Operation *operation) const {
    auto op = cast<CumulativeSumOp>(operation);
    int64_t cols = typeOf(op.getInput()).getDimSize(op.getDim());
    return KernelSpace::fixed(numElements(op.getInput()) / cols, cols);
  }
  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    auto op = cast<CumulativeSumOp>(operation);
    auto type = typeOf(op.getInput());
    SmallVector<int64_t> dims, sizes;
    for (int64_t d = 0; d < type.getRank(); ++d)
      if (d != (int64_t)op.getDim())
        dims.push_back(d);
    dims.push_back(op.getDim());
    for (int64_t d : dims)
      sizes.push_back(type.getDimSize(d));
    Value x = k.read(op.getInput(), Access::get(type, sizes, dims));
    Value y = k.scan(x, op.getReverse());
    if ((int64_t)op.getDim() == type.getRank() - 1)
      k.define(op.getOutput(), y);
    else
      k.defineAt(op.getOutput(), y,
                 Access::get(typeOf(op.getOutput()), sizes, dims));
    return success();
  }
};

//===----------------------------------------------------------------------===//
// Movement
//===----------------------------------------------------------------------===//

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
                             typeOf(op->getResult(0)).getShape()));
    return success();
  }
};

struct TransposeModel : FlatModel<TransposeModel, TransposeOp> {
  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    auto op = cast<TransposeOp>(operation);
    k.define(
        op.getOutput(),
        k.read(op.getInput(), Access::get(typeOf(op.getInput()),
                                          typeOf(op.getOutput()).getShape(),
                                          op.getPermutation())));
    return success();
  }
};

struct SliceModel : FlatModel<SliceModel, SliceOp> {
  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    auto op = cast<SliceOp>(operation);
    auto type = typeOf(op.getInput());
    k.define(op.getOutput(),
             k.read(op.getInput(),
                    Access::get(
                        type, typeOf(op.getOutput()).getShape(),
                        llvm::to_vector(llvm::seq<int64_t>(0, type.getRank())),
                        op.getStrides(), op.getOffsets())));
    return success();
  }
};

Value i64Constant(KernelBuilder &k, int64_t value) {
  OpBuilder &b = k.getBuilder();
  return arith::ConstantOp::create(b, k.getLoc(), b.getI64IntegerAttr(value));
}

Value compare(KernelBuilder &k, arith::CmpIPredicate predicate, Value a,
              int64_t value) {
  return arith::CmpIOp::create(k.getBuilder(), k.getLoc(), predicate, a,
                               i64Constant(k, value));
}

/// `where and condition`, where a null `where` is true.
Value both(KernelBuilder &k, Value where, Value condition) {
  return where ? k.min(where, condition) : condition;
}

struct PadModel : FlatModel<PadModel, PadOp> {
  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    using P = arith::CmpIPredicate;
    auto op = cast<PadOp>(operation);
    OpBuilder &b = k.getBuilder();
    auto type = typeOf(op.getInput());
    auto shape = typeOf(op.getOutput()).getShape();
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

/// One copy into its part of the result for each operand.
struct ConcatModel
    : KernelDecompositionInterface::ExternalModel<ConcatModel, ConcatOp> {
  SmallVector<Value> decompose(Operation *operation, OpBuilder &b) const {
    auto op = cast<ConcatOp>(operation);
    int64_t dim = op.getDim(), position = 0;
    auto outType = typeOf(op.getOutput());
    SmallVector<int64_t> indexShape(outType.getRank(), 1);
    indexShape[dim] = outType.getDimSize(dim);
    auto indexType = RankedTensorType::get(indexShape, b.getI64Type());
    Value index = IotaOp::create(b, op.getLoc(), indexType, dim, 0);
    Value result;
    for (Value input : op.getInputs()) {
      auto type = typeOf(input);
      SmallVector<int64_t> low(type.getRank(), 0), high(type.getRank(), 0),
          interior(type.getRank(), 0);
      low[dim] = position;
      high[dim] = outType.getDimSize(dim) - position - type.getDimSize(dim);
      Value padded = PadOp::create(
          b, op.getLoc(), outType, input, b.getF64FloatAttr(0),
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
    return {result};
  }
};

/// One element of each row at a time: the largest of those that are left.
struct TopKModel : KernelDecompositionInterface::ExternalModel<TopKModel, TopKOp> {
  SmallVector<Value> decompose(Operation *operation, OpBuilder &b) const {
    auto op = cast<TopKOp>(operation);
    Formula f{b, op.getLoc()};
    RankedTensorType type = typeOf(op.getInput());
    int64_t last = type.getRank() - 1, size = type.getShape().back();
    SmallVector<int64_t> indexShape(type.getRank(), 1), column(type.getShape());
    indexShape.back() = size;
    column.back() = 1;
    Value index = IotaOp::create(
        b, op.getLoc(), RankedTensorType::get(indexShape, b.getI64Type()), last, 0);
    auto infinity = [&](bool negative) {
      return f.splat(RankedTensorType::get({}, type.getElementType()),
                     negative ? -INFINITY : INFINITY);
    };
    auto reduce = [&](ReductionKind kind, Value x) {
      Value y = ReduceOp::create(b, op.getLoc(), kind, x, b.getDenseI64ArrayAttr({last}));
      return f.reshape(y, column);
    };
    Value x = op.getInput();
    // NaN counts as infinity.
    Value keys = f.select(f.compare(Predicate::ne, x, x), infinity(false), x);
    Value left; // Where no element was chosen yet.
    SmallVector<Value> values, indices;
    for (int64_t i = 0; i < static_cast<int64_t>(op.getK()); ++i) {
      Value open = left ? f.select(left, keys, infinity(true)) : keys;
      Value top = reduce(ReductionKind::max, open);
      Value here = f.compare(Predicate::eq, open, top);
      if (left)
        here = AndOp::create(b, op.getLoc(), here, left);
      Value at = f.select(here, index, f.scalar(index, size));
      Value chosen = reduce(ReductionKind::min, f.broadcast(at, type.getShape()));
      Value is = f.compare(Predicate::eq, index, chosen);
      values.push_back(reduce(ReductionKind::sum, f.select(is, x, f.scalar(x, 0.0))));
      indices.push_back(chosen);
      Value rest = NotOp::create(b, op.getLoc(), is);
      left = left ? AndOp::create(b, op.getLoc(), left, rest).getResult() : rest;
    }
    auto join = [&](ArrayRef<Value> parts) -> Value {
      if (parts.size() == 1)
        return parts.front();
      Value joined = ConcatOp::create(b, op.getLoc(), parts, last);
      return ConcatModel().decompose(joined.getDefiningOp(), b).front();
    };
    return {join(values), join(indices)};
  }
};

struct GatherModel : KernelLoweringInterface::ExternalModel<GatherModel, GatherOp> {
  KernelSpace getKernelSpace(Operation *operation) const {
    auto op = cast<GatherOp>(operation);
    auto type = typeOf(op.getInput());
    int64_t n = numElements(op.getOutput());
    int64_t slice = product(type.getShape().drop_front(op.getDim() + 1));
    return slice == 1 ? KernelSpace::flat(n)
                      : KernelSpace::fixed(n / slice, slice);
  }

  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    auto op = cast<GatherOp>(operation);
    auto type = typeOf(op.getInput()), ids = typeOf(op.getIndices());
    int64_t dim = op.getDim(), batch = op.getBatch();
    int64_t rank = ids.getRank() - batch;
    ArrayRef<int64_t> shape = typeOf(op.getOutput()).getShape();
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
    auto ids = typeOf(op.getIndices());
    auto shape = typeOf(op.getOutput()).getShape();
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

//===----------------------------------------------------------------------===//
// Windows of an image
//===----------------------------------------------------------------------===//

struct PatchesModel : FlatModel<PatchesModel, PatchesOp> {
  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    using P = arith::CmpIPredicate;
    auto op = cast<PatchesOp>(operation);
    auto type = typeOf(op.getInput());
    auto strides = exec::getLayout(type).strides;
    // Loops: n, oh, ow, c, kh, kw.
    auto shape = typeOf(op.getOutput()).getShape();
    Access access = Access::get(type, shape, {0, -1, -1, 1, -1, -1});
    Value where;
    for (int64_t i = 0; i < 2; ++i) {
      int64_t stride = op.getStride()[i], dilation = op.getDilation()[i];
      access.memory[1 + i] = stride * strides[2 + i];
      access.memory[4 + i] = dilation * strides[2 + i];
      access.logical[1 + i] = access.logical[4 + i] = 1; // never in order
      access.memoryOffset -= op.getPadding()[i] * strides[2 + i];
      if (op.getPadding()[i] == 0)
        continue;
      Value at = k.add(k.mul(k.index(shape, 1 + i), i64Constant(k, stride)),
                       k.mul(k.index(shape, 4 + i), i64Constant(k, dilation)));
      at = k.sub(at, i64Constant(k, op.getPadding()[i]));
      where = both(k, where, compare(k, P::sge, at, 0));
      where = both(k, where, compare(k, P::slt, at, type.getDimSize(2 + i)));
    }
    Value x = k.readIndexed(op.getInput(), access, {}, {}, where);
    k.define(op.getOutput(), x);
    return success();
  }
};

/// Each element of the image sums its places in the windows, along a row.
struct PatchesGradModel
    : KernelLoweringInterface::ExternalModel<PatchesGradModel, PatchesGradOp> {
  KernelSpace getKernelSpace(Operation *operation) const {
    auto op = cast<PatchesGradOp>(operation);
    return KernelSpace::fixed(numElements(op.getOutput()),
                              product(op.getKernel()));
  }

  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    using P = arith::CmpIPredicate;
    auto op = cast<PatchesGradOp>(operation);
    OpBuilder &b = k.getBuilder();
    auto type = typeOf(op.getGradient());
    auto image = typeOf(op.getOutput()).getShape();
    auto strides = exec::getLayout(type).strides;
    // Loops: n, c, h, w, kh, kw.
    SmallVector<int64_t> loops(image);
    loops.append({op.getKernel()[0], op.getKernel()[1]});
    Access access = Access::get(type, loops, {0, 3, -1, -1, 4, 5});
    SmallVector<Value> indices;
    SmallVector<int64_t> steps;
    Value where;
    for (int64_t i = 0; i < 2; ++i) {
      int64_t stride = op.getStride()[i];
      Value at =
          k.add(k.index(loops, 2 + i), i64Constant(k, op.getPadding()[i]));
      at = k.sub(at, k.mul(k.index(loops, 4 + i),
                           i64Constant(k, op.getDilation()[i])));
      where = both(k, where, compare(k, P::sge, at, 0));
      Value rest =
          arith::RemSIOp::create(b, k.getLoc(), at, i64Constant(k, stride));
      where = both(k, where, compare(k, P::eq, rest, 0));
      at = k.div(at, i64Constant(k, stride));
      where = both(k, where, compare(k, P::slt, at, type.getDimSize(1 + i)));
      indices.push_back(at);
      steps.push_back(strides[1 + i]);
    }
    Value g = k.readIndexed(op.getGradient(), access, indices, steps, where);
    k.define(op.getOutput(), k.reduce(Reduction::Sum, g), Level::Row);
    return success();
  }
};

//===----------------------------------------------------------------------===//
// Rotary embedding
//===----------------------------------------------------------------------===//

/// Runs over pairs: the columns are half of the last dimension.
struct RopeModel : KernelLoweringInterface::ExternalModel<RopeModel, RopeOp> {
  KernelSpace getKernelSpace(Operation *operation) const {
    auto type = typeOf(cast<RopeOp>(operation).getInput());
    int64_t half = type.getShape().back() / 2;
    return KernelSpace::fixed(type.getNumElements() / 2 / half, half);
  }

  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    auto op = cast<RopeOp>(operation);
    auto type = typeOf(op.getInput());
    int64_t rank = type.getRank(), half = type.getShape().back() / 2;
    SmallVector<int64_t> loops(type.getShape()), steps(rank, 1);
    loops.back() = half;
    steps.back() = op.getInterleaved() ? 2 : 1;
    // The place of element `which` of each pair in a tensor broadcast to it.
    auto place = [&](Value tensor, int64_t which) {
      auto t = typeOf(tensor);
      SmallVector<int64_t> dims, begin(t.getRank(), 0);
      for (int64_t i = 0; i < rank; ++i) {
        int64_t d = i - (rank - t.getRank());
        dims.push_back(
            d < 0 || (t.getDimSize(d) == 1 && type.getDimSize(i) != 1) ? -1
                                                                       : d);
      }
      if (t.getRank() && dims.back() >= 0)
        begin.back() = which * (op.getInterleaved() ? 1 : half);
      return Access::get(t, loops, dims, steps, begin);
    };
    auto readBoth = [&](Value tensor) {
      return std::pair(k.read(tensor, place(tensor, 0)),
                       k.read(tensor, place(tensor, 1)));
    };
    auto [x1, x2] = readBoth(op.getInput());
    auto [c1, c2] = readBoth(op.getCos());
    auto [s1, s2] = readBoth(op.getSin());
    Value y1, y2;
    if (op.getAdjoint()) {
      y1 = k.add(k.mul(x1, c1), k.mul(x2, s2));
      y2 = k.sub(k.mul(x2, c2), k.mul(x1, s1));
    } else {
      y1 = k.sub(k.mul(x1, c1), k.mul(x2, s1));
      y2 = k.add(k.mul(x2, c2), k.mul(x1, s2));
    }
    k.defineAt(op.getOutput(), y1, place(op.getOutput(), 0));
    k.defineAt(op.getOutput(), y2, place(op.getOutput(), 1));
    return success();
  }
};

} // namespace

void cleave::attachShapeKernels(MLIRContext *context) {
  ReduceOp::attachInterface<ReduceModel>(*context);
  CumulativeSumOp::attachInterface<CumulativeSumModel>(*context);
  TopKOp::attachInterface<TopKModel>(*context);
  ReshapeOp::attachInterface<ReshapeModel>(*context);
  BroadcastOp::attachInterface<BroadcastModel>(*context);
  TransposeOp::attachInterface<TransposeModel>(*context);
  SliceOp::attachInterface<SliceModel>(*context);
  PadOp::attachInterface<PadModel>(*context);
  ConcatOp::attachInterface<ConcatModel>(*context);
  GatherOp::attachInterface<GatherModel>(*context);
  OneHotOp::attachInterface<OneHotModel>(*context);
  PatchesOp::attachInterface<PatchesModel>(*context);
  PatchesGradOp::attachInterface<PatchesGradModel>(*context);
  RopeOp::attachInterface<RopeModel>(*context);
}
