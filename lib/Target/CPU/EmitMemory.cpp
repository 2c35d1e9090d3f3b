//===- EmitMemory.cpp - Loads, stores, accumulations ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "KernelEmitter.h"
#include "llvm/IR/Module.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::cpu;
using namespace cleave::exec;

/// The value of `expr`: integers of any width, scalars or vectors. Division
/// rounds down.
llvm::Value *KernelEmitter::evaluate(AffineExpr expr,
                                     ArrayRef<llvm::Value *> dims,
                                     ArrayRef<llvm::Value *> symbols) {
  if (auto dim = dyn_cast<AffineDimExpr>(expr))
    return dims[dim.getPosition()];
  if (auto symbol = dyn_cast<AffineSymbolExpr>(expr))
    return symbols[symbol.getPosition()];
  if (auto constant = dyn_cast<AffineConstantExpr>(expr))
    return llvm::ConstantInt::getSigned(dims[0]->getType(),
                                        constant.getValue());
  auto binary = cast<AffineBinaryOpExpr>(expr);
  llvm::Value *x = evaluate(binary.getLHS(), dims, symbols);
  llvm::Value *y = evaluate(binary.getRHS(), dims, symbols);
  auto *zero = llvm::Constant::getNullValue(x->getType());
  // Row, column and their sums and products are not negative; only then plain
  // unsigned division is right.
  SmallVector<int64_t> extents = {rows * cols, cols};
  auto range = rangeOf(binary.getLHS(), extents);
  bool natural = range && range->first >= 0;
  switch (expr.getKind()) {
  case AffineExprKind::Add:
    return b.CreateAdd(x, y);
  case AffineExprKind::Mul:
    return b.CreateMul(x, y);
  case AffineExprKind::Mod: {
    if (natural)
      return b.CreateURem(x, y);
    llvm::Value *r = b.CreateSRem(x, y);
    return b.CreateSelect(b.CreateICmpSLT(r, zero), b.CreateAdd(r, y), r);
  }
  case AffineExprKind::CeilDiv:
    // ceil(x / y) = -floor(-x / y).
    return b.CreateNeg(
        evaluate((-binary.getLHS()).floorDiv(binary.getRHS()), dims, symbols));
  default: {
    if (natural)
      return b.CreateUDiv(x, y);
    llvm::Value *q = b.CreateSDiv(x, y);
    llvm::Value *negative = b.CreateICmpSLT(b.CreateSRem(x, y), zero);
    return b.CreateSub(q, b.CreateZExt(negative, x->getType()));
  }
  }
}

/// `expr` at each lane.
llvm::Value *KernelEmitter::evaluateLanes(AffineExpr expr,
                                          ArrayRef<llvm::Value *> symbols) {
  unsigned lanes = point.lanes;
  // 32 bits are faster, if all intermediate values fit.
  SmallVector<int64_t> extents = {rows * cols + lanes, cols + lanes};
  bool narrow = true;
  expr.walk([&](AffineExpr e) {
    auto range = rangeOf(e, extents);
    narrow &= range && range->first > -(int64_t(1) << 31) &&
              range->second < (int64_t(1) << 31);
  });
  llvm::Type *type = narrow ? b.getInt32Ty() : b.getInt64Ty();
  SmallVector<llvm::Constant *> numbers;
  for (unsigned i = 0; i < lanes; ++i)
    numbers.push_back(llvm::ConstantInt::get(type, i));
  llvm::Constant *iota = llvm::ConstantVector::get(numbers);
  auto dim = [&](llvm::Value *first, LaneStep step) {
    llvm::Value *vector =
        b.CreateVectorSplat(lanes, b.CreateTrunc(first, type));
    return step.stride ? b.CreateAdd(vector, iota) : vector;
  };
  llvm::Value *zero = index(0);
  llvm::Value *dims[] = {dim(point.row ? point.row : zero, point.rowStep),
                         dim(point.col ? point.col : zero,
                             point.col ? point.colStep : LaneStep{0, 1})};
  SmallVector<llvm::Value *> wide;
  for (llvm::Value *symbol : symbols)
    wide.push_back(spread(symbol, lanes));
  return evaluate(expr, dims, wide);
}

KernelEmitter::Place KernelEmitter::placeOf(AffineMap map, ValueRange indices) {
  AffineExpr expr = map.getResult(0);
  if (flat)
    expr = flatten(expr, cols);
  SmallVector<llvm::Value *> symbols;
  SmallVector<bool> varying;
  for (Value value : indices) {
    symbols.push_back(get(value));
    varying.push_back(symbols.back()->getType()->isVectorTy());
  }
  LaneGeometry geometry{point.lanes, point.rowStep, point.colStep, varying};
  std::optional<LaneStep> step = stepOf(expr, geometry);
  llvm::Value *zero = index(0);
  llvm::Value *dims[] = {point.row ? point.row : zero,
                         point.col ? point.col : zero};
  if (point.lanes == 1 || (step && step->stride == 0))
    return {Place::Uniform, evaluate(expr, dims, symbols)};
  if (step && step->stride == 1)
    return {Place::Contiguous, evaluate(expr, dims, symbols)};
  return {Place::Scattered, evaluateLanes(expr, symbols)};
}

llvm::Value *KernelEmitter::pointer(Value memory, llvm::Type *element,
                                    llvm::Value *offset) {
  return b.CreateGEP(element, get(memory), offset);
}

llvm::Value *KernelEmitter::loadFrom(Value memory, Type type, Place place,
                                     llvm::Value *where) {
  llvm::Type *element = memoryType(type);
  llvm::Align align(module.getDataLayout().getTypeAllocSize(element));
  unsigned lanes = point.lanes;
  auto finish = [&](llvm::Value *value) -> llvm::Value * {
    if (!type.isInteger(1))
      return value;
    return b.CreateICmpNE(value,
                          llvm::Constant::getNullValue(value->getType()));
  };
  if (place.kind == Place::Uniform && where && where->getType()->isVectorTy()) {
    place.kind = Place::Scattered;
    place.offset = spread(place.offset, lanes);
  }
  if (place.kind == Place::Uniform) {
    // If no element may be read, the first one is read instead.
    llvm::Value *offset = place.offset;
    if (where)
      offset = b.CreateSelect(where, offset, index(0));
    llvm::Value *value =
        b.CreateAlignedLoad(element, pointer(memory, element, offset), align);
    if (where)
      value =
          b.CreateSelect(where, value, llvm::Constant::getNullValue(element));
    return finish(value);
  }
  llvm::Type *vector = lanesOf(element, lanes);
  llvm::Value *mask = point.mask;
  if (where) {
    where = spread(where, lanes);
    mask = mask ? b.CreateAnd(mask, where) : where;
  }
  llvm::Value *at = pointer(memory, element, place.offset);
  llvm::Constant *zero = llvm::Constant::getNullValue(vector);
  if (place.kind == Place::Scattered) {
    if (!mask)
      mask = b.getAllOnesMask(llvm::ElementCount::getFixed(lanes));
    return finish(b.CreateMaskedGather(vector, at, align, mask, zero));
  }
  if (mask)
    return finish(b.CreateMaskedLoad(vector, at, align, mask, zero));
  return finish(b.CreateAlignedLoad(vector, at, align));
}

void KernelEmitter::storeTo(Value memory, Type type, Place place,
                            llvm::Value *value) {
  llvm::Type *element = memoryType(type);
  llvm::Align align(module.getDataLayout().getTypeAllocSize(element));
  unsigned lanes = point.lanes;
  value = spread(value, lanes);
  if (type.isInteger(1))
    value = b.CreateZExt(value, lanesOf(element, lanes));
  if (lanes == 1) {
    b.CreateAlignedStore(value, pointer(memory, element, place.offset), align);
    return;
  }
  if (place.kind != Place::Contiguous) {
    llvm::Value *at = pointer(memory, element, spread(place.offset, lanes));
    llvm::Value *mask =
        point.mask ? point.mask
                   : b.getAllOnesMask(llvm::ElementCount::getFixed(lanes));
    b.CreateMaskedScatter(value, at, align, mask);
    return;
  }
  llvm::Value *at = pointer(memory, element, place.offset);
  if (point.mask)
    b.CreateMaskedStore(value, at, align, point.mask);
  else
    b.CreateAlignedStore(value, at, align);
}

llvm::Value *KernelEmitter::partialPointer(const Partial &partial,
                                           llvm::Value *group) {
  llvm::Value *offset = b.CreateNSWAdd(
      b.CreateNSWMul(group, index(partial.groupBytes)), index(partial.base));
  return b.CreateGEP(b.getInt8Ty(), scratch, offset);
}

void KernelEmitter::emitAccumulate(AccumulateOp op) {
  Type type = op.getValue().getType();
  llvm::Type *element = memoryType(type);
  llvm::Align align(module.getDataLayout().getTypeAllocSize(element));
  llvm::Value *at = partialPointer(partials[op], group);
  if (point.col)
    at = b.CreateGEP(element, at, point.col);
  llvm::Type *vector = lanesOf(element, point.lanes);
  llvm::Value *value = spread(get(op.getValue()), point.lanes);
  if (type.isInteger(1))
    value = b.CreateZExt(value, vector);
  llvm::Value *old =
      point.mask ? b.CreateMaskedLoad(vector, at, align, point.mask,
                                      llvm::Constant::getNullValue(vector))
                 : (llvm::Value *)b.CreateAlignedLoad(vector, at, align);
  llvm::Value *sum = combine(op.getKind(), type, old, value);
  if (point.mask)
    b.CreateMaskedStore(sum, at, align, point.mask);
  else
    b.CreateAlignedStore(sum, at, align);
}
