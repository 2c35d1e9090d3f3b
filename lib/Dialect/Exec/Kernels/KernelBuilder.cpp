//===- KernelBuilder.cpp - Scalar code of graph ops -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/Kernels/KernelBuilder.h"
#include "cleave/Dialect/Exec/IR/OrderedReduce.h"
#include "cleave/Dialect/Graph/IR/TensorType.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;
using graph::tensorTypeOf;

#include "cleave/Dialect/Exec/Kernels/KernelLowering.cpp.inc"

KernelBuilder::KernelBuilder(Location loc, Block &block, int64_t rows,
                             int64_t cols)
    : b(loc.getContext()), loc(loc), block(block), rows(rows), cols(cols) {
  b.setInsertionPointToEnd(&block);
}

LogicalResult KernelBuilder::emit(Operation *op, Level where) {
  placement = where;
  loc = op->getLoc();
  auto lowering = dyn_cast<KernelLoweringInterface>(op);
  if (!lowering)
    return op->emitOpError("has no kernel code");
  return lowering.emitKernel(*this);
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

/// The type of a kernel argument for `tensor`: its layout without the offset,
/// which is in the pointer.
static RankedTensorType argumentType(Value tensor) {
  RankedTensorType type = tensorTypeOf(tensor);
  Strided layout = getLayout(type);
  layout.offset = 0;
  return withLayout(type, layout);
}

BlockArgument KernelBuilder::inputFor(Value tensor) {
  BlockArgument &arg = argOf[tensor];
  if (!arg) {
    arg = block.addArgument(argumentType(tensor), loc);
    inputArgs.push_back({tensor, arg});
  }
  return arg;
}

BlockArgument KernelBuilder::outputFor(Value result) {
  BlockArgument &arg = argOf[result];
  if (!arg) {
    arg = block.addArgument(argumentType(result), loc);
    outputArgs.push_back({result, arg});
  }
  return arg;
}

AffineMap KernelBuilder::mapFor(const Access &access, Level level,
                                ArrayRef<int64_t> steps) {
  MLIRContext *context = b.getContext();
  AffineExpr expr = accessExpr(context, access.joinedMemory(),
                               access.memoryOffset, rows, cols, level);
  for (auto [i, step] : llvm::enumerate(steps))
    expr = expr + getAffineSymbolExpr(i, context) * step;
  return AffineMap::get(2, steps.size(),
                        simplifyAffineExpr(expr, 2, steps.size()), context);
}

Value KernelBuilder::load(BlockArgument memory, AffineMap map,
                          ValueRange indices, Value where) {
  Type element = cast<RankedTensorType>(memory.getType()).getElementType();
  Value loaded;
  if (indices.empty() && !where) {
    Value &known = loads[{memory, AffineMapAttr::get(map)}];
    if (!known)
      known = LoadOp::create(b, loc, element, memory, ValueRange(), Value(),
                             AffineMapAttr::get(map));
    loaded = known;
  } else {
    loaded = LoadOp::create(b, loc, element, memory, indices, where,
                            AffineMapAttr::get(map));
  }
  Type compute = computeType(element);
  return compute == element ? loaded : cast(loaded, compute);
}

Value cleave::throughViews(Value tensor) {
  while (auto view = tensor.getDefiningOp<ViewOp>()) {
    RankedTensorType from = tensorTypeOf(view.getInput()),
                     to = tensorTypeOf(tensor);
    if (!isDense(from) || !isDense(to) ||
        from.getNumElements() != to.getNumElements() ||
        from.getElementType() != to.getElementType())
      break;
    tensor = view.getInput();
  }
  return tensor;
}

/// The value that all elements of `tensor` have, which then needs no memory;
/// null if it is not such a constant.
Value KernelBuilder::splat(Value tensor) {
  DenseElementsAttr elements;
  if (!matchPattern(tensor, m_Constant(&elements)) || !elements.isSplat())
    return {};
  auto value = mlir::cast<TypedAttr>(elements.getSplatValue<Attribute>());
  Value scalar = arith::ConstantOp::create(b, loc, value);
  return cast(scalar, computeType(value.getType()));
}

Value KernelBuilder::read(Value tensor, const Access &access, Level level) {
  tensor = throughViews(tensor);
  if (placement == Level::Row)
    level = Level::Row;
  if (Value same = splat(tensor))
    return same;
  if (Value known = values.lookup(tensor)) {
    // The fuser ensures that only in-order reads use values defined in the
    // kernel.
    reads.push_back({tensor, access, level, /*indexed=*/false});
    return cast(known, computeType(known.getType()));
  }
  reads.push_back({tensor, access, level, /*indexed=*/false});
  return load(inputFor(tensor), mapFor(access, level), {}, {});
}

Value KernelBuilder::readBroadcast(Value tensor, ArrayRef<int64_t> shape) {
  return read(tensor, Access::broadcast(tensorTypeOf(tensor), shape));
}

Value KernelBuilder::readInOrder(Value tensor, Level level) {
  return read(tensor, Access::identity(tensorTypeOf(tensor)), level);
}

Value KernelBuilder::readScalar(Value tensor, ArrayRef<int64_t> index) {
  return read(tensor, Access::element(tensorTypeOf(tensor), index));
}

Value KernelBuilder::readIndexed(Value tensor, const Access &access,
                                 ValueRange indices, ArrayRef<int64_t> steps,
                                 Value where, Level level) {
  tensor = throughViews(tensor);
  if (placement == Level::Row)
    level = Level::Row;
  if (Value same = splat(tensor))
    return where ? select(where, same, constant(same.getType(), 0)) : same;
  reads.push_back({tensor, access, level, /*indexed=*/true});
  return load(inputFor(tensor), mapFor(access, level, steps), indices, where);
}

void KernelBuilder::define(Value result, Value value, Level level) {
  if (placement == Level::Row)
    level = Level::Row;
  value = cast(value, tensorTypeOf(result).getElementType());
  values[result] = value;
  valueLevels[result] = level;
  definitions.push_back(
      {result, level, /*plain=*/true, Access::identity(tensorTypeOf(result))});
}

void KernelBuilder::defineAt(Value result, Value value, const Access &access,
                             Level level) {
  if (placement == Level::Row)
    level = Level::Row;
  value = cast(value, tensorTypeOf(result).getElementType());
  definitions.push_back({result, level, /*plain=*/false, access});
  StoreOp::create(b, loc, value, outputFor(result),
                  AffineMapAttr::get(mapFor(access, level)));
}

void KernelBuilder::storeResult(Value result) {
  Access access = Access::identity(tensorTypeOf(result));
  StoreOp::create(
      b, loc, values.lookup(result), outputFor(result),
      AffineMapAttr::get(mapFor(access, valueLevels.lookup(result))));
}

Value KernelBuilder::lookup(Value result) const {
  return values.lookup(result);
}

void KernelBuilder::accumulate(ReductionKind kind, Value value, Value result) {
  value = cast(value, tensorTypeOf(result).getElementType());
  Access access = Access::identity(tensorTypeOf(result));
  AffineExpr expr = accessExpr(b.getContext(), access.joinedMemory(), 0, 1,
                               cols, Level::Element);
  // A single column keeps its dimension: the value belongs to an element.
  if (cols == 1)
    expr = b.getAffineDimExpr(1);
  definitions.push_back({result, Level::Element, /*plain=*/false, access});
  AccumulateOp::create(b, loc, kind, value, outputFor(result),
                       AffineMap::get(2, 0, expr));
}

void KernelBuilder::accumulateAll(ReductionKind kind, Value value,
                                  Value result) {
  if (placement == Level::Element)
    value = reduce(kind, value);
  value = cast(value, tensorTypeOf(result).getElementType());
  definitions.push_back({result, Level::Row, /*plain=*/false,
                         Access::identity(tensorTypeOf(result))});
  AccumulateOp::create(b, loc, kind, value, outputFor(result),
                       AffineMap::get(2, 0, b.getAffineConstantExpr(0)));
}

//===----------------------------------------------------------------------===//
// Rows, indices, random bits
//===----------------------------------------------------------------------===//

Value KernelBuilder::reduce(ReductionKind kind, Value value, bool ordered) {
  auto op = ReduceOp::create(b, loc, kind, value);
  if (ordered)
    op->setAttr(kOrderedAttr, b.getUnitAttr());
  return op;
}

Value KernelBuilder::scan(Value value, bool reverse, Value factor) {
  return ScanOp::create(b, loc, value, factor, reverse);
}

Value KernelBuilder::index(ArrayRef<int64_t> sizes, unsigned dim) {
  SmallVector<int64_t> steps(sizes.size(), 0);
  steps[dim] = 1;
  Access access;
  access.sizes.assign(sizes.begin(), sizes.end());
  access.memory.assign(steps.begin(), steps.end());
  return IndexOp::create(b, loc, AffineMapAttr::get(mapFor(access, placement)));
}

Value KernelBuilder::philox(Value seed, Value step, Value base,
                            int64_t baseMultiple, ArrayRef<int64_t> sizes,
                            ArrayRef<int64_t> steps, int64_t id) {
  Access access;
  access.sizes.assign(sizes.begin(), sizes.end());
  access.memory.assign(steps.begin(), steps.end());
  return PhiloxOp::create(b, loc, b.getI32Type(), seed, step, parameter(id),
                          base, mapFor(access, placement), 0, baseMultiple);
}

Value KernelBuilder::parameter(int64_t value) {
  auto number = b.getI64IntegerAttr(value);
  for (auto [known, arg] : parameterArgs)
    if (known == number)
      return load(arg, mapFor(Access(), Level::Row), {}, {});
  auto type = RankedTensorType::get({}, b.getI64Type());
  parameterArgs.push_back({number, block.addArgument(type, loc)});
  return load(parameterArgs.back().second, mapFor(Access(), Level::Row), {},
              {});
}

//===----------------------------------------------------------------------===//
// Scalar arithmetic
//===----------------------------------------------------------------------===//

Type KernelBuilder::computeType(Type element) {
  bool narrow = isa<FloatType>(element) && element.getIntOrFloatBitWidth() < 32;
  return narrow ? b.getF32Type() : element;
}

Value KernelBuilder::constant(Type type, double value) {
  if (isa<FloatType>(type))
    return arith::ConstantOp::create(b, loc, b.getFloatAttr(type, value));
  return arith::ConstantOp::create(b, loc,
                                   b.getIntegerAttr(type, (int64_t)value));
}

static bool isFloat(Value v) { return isa<FloatType>(v.getType()); }

template <typename FloatOp, typename IntegerOp>
static Value arithmetic(OpBuilder &b, Location loc, Value x, Value y) {
  return isFloat(x) ? b.createOrFold<FloatOp>(loc, x, y)
                    : b.createOrFold<IntegerOp>(loc, x, y);
}

Value KernelBuilder::add(Value x, Value y) {
  return arithmetic<arith::AddFOp, arith::AddIOp>(b, loc, x, y);
}
Value KernelBuilder::sub(Value x, Value y) {
  return arithmetic<arith::SubFOp, arith::SubIOp>(b, loc, x, y);
}
Value KernelBuilder::mul(Value x, Value y) {
  return arithmetic<arith::MulFOp, arith::MulIOp>(b, loc, x, y);
}
Value KernelBuilder::div(Value x, Value y) {
  return arithmetic<arith::DivFOp, arith::DivSIOp>(b, loc, x, y);
}
Value KernelBuilder::max(Value x, Value y) {
  if (isFloat(x))
    return arith::MaximumFOp::create(b, loc, x, y);
  if (x.getType().isInteger(1))
    return arith::OrIOp::create(b, loc, x, y);
  return arith::MaxSIOp::create(b, loc, x, y);
}
Value KernelBuilder::min(Value x, Value y) {
  if (isFloat(x))
    return arith::MinimumFOp::create(b, loc, x, y);
  if (x.getType().isInteger(1))
    return arith::AndIOp::create(b, loc, x, y);
  return arith::MinSIOp::create(b, loc, x, y);
}
Value KernelBuilder::neg(Value x) {
  if (isFloat(x))
    return b.createOrFold<arith::NegFOp>(loc, x);
  return sub(constant(x.getType(), 0), x);
}
Value KernelBuilder::exp(Value x) { return math::ExpOp::create(b, loc, x); }
Value KernelBuilder::log(Value x) { return math::LogOp::create(b, loc, x); }
Value KernelBuilder::sqrt(Value x) { return math::SqrtOp::create(b, loc, x); }
Value KernelBuilder::select(Value condition, Value x, Value y) {
  return b.createOrFold<arith::SelectOp>(loc, condition, x, y);
}

Value KernelBuilder::cast(Value x, Type to) {
  Type from = x.getType();
  if (from == to)
    return x;
  if (auto toFloat = dyn_cast<FloatType>(to)) {
    if (auto fromFloat = dyn_cast<FloatType>(from)) {
      // Narrow floats become others by way of f32.
      if (fromFloat.getWidth() < 32 && toFloat.getWidth() < 32)
        return cast(cast(x, b.getF32Type()), to);
      if (fromFloat.getWidth() < toFloat.getWidth())
        return b.createOrFold<arith::ExtFOp>(loc, to, x);
      return b.createOrFold<arith::TruncFOp>(loc, to, x);
    }
    if (from.isInteger(1))
      return b.createOrFold<arith::UIToFPOp>(loc, to, x);
    return b.createOrFold<arith::SIToFPOp>(loc, to, x);
  }
  if (isa<FloatType>(from)) {
    if (to.isInteger(1))
      return arith::CmpFOp::create(b, loc, arith::CmpFPredicate::UNE, x,
                                   constant(from, 0));
    return b.createOrFold<arith::FPToSIOp>(loc, to, x);
  }
  if (to.isInteger(1))
    return arith::CmpIOp::create(b, loc, arith::CmpIPredicate::ne, x,
                                 constant(from, 0));
  if (from.isInteger(1))
    return b.createOrFold<arith::ExtUIOp>(loc, to, x);
  if (from.getIntOrFloatBitWidth() < to.getIntOrFloatBitWidth())
    return b.createOrFold<arith::ExtSIOp>(loc, to, x);
  return b.createOrFold<arith::TruncIOp>(loc, to, x);
}
