//===- EmitPass.cpp - Loops over the columns of a row ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "KernelEmitter.h"
#include "cleave/Dialect/Exec/IR/OrderedReduce.h"
#include "llvm/IR/Module.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::cpu;
using namespace cleave::exec;

/// Narrow floats are codes here, of which neither order nor sum is theirs.
static bool isNarrow(Type type) {
  return isa<FloatType>(type) && type.getIntOrFloatBitWidth() < 32;
}

llvm::Value *KernelEmitter::identity(ReductionKind kind, Type type,
                                     llvm::Type *result) {
  if (kind == ReductionKind::Sum)
    return llvm::Constant::getNullValue(result);
  bool max = kind == ReductionKind::Max;
  if (isNarrow(type)) {
    const llvm::fltSemantics &format =
        cast<FloatType>(type).getFloatSemantics();
    llvm::APFloat least = llvm::APFloat::semanticsHasInf(format)
                              ? llvm::APFloat::getInf(format, /*Negative=*/max)
                              : llvm::APFloat::getLargest(format, max);
    return llvm::ConstantInt::get(result, least.bitcastToAPInt());
  }
  llvm::Type *scalar = result->getScalarType();
  if (scalar->isFloatingPointTy())
    return llvm::ConstantFP::getInfinity(result, /*Negative=*/max);
  unsigned bits = scalar->getIntegerBitWidth();
  if (bits == 1)
    return llvm::ConstantInt::get(result, max ? 0 : 1);
  return llvm::ConstantInt::get(result,
                                max ? llvm::APInt::getSignedMinValue(bits)
                                    : llvm::APInt::getSignedMaxValue(bits));
}

llvm::Value *KernelEmitter::combine(ReductionKind kind, Type type,
                                    llvm::Value *x, llvm::Value *y) {
  if (isNarrow(type)) {
    llvm::Type *f32 = x->getType()->getWithNewType(b.getFloatTy());
    return truncate(combine(kind, Float32Type::get(type.getContext()),
                            extend(x, type, f32), extend(y, type, f32)),
                    type, x->getType());
  }
  llvm::Type *scalar = x->getType()->getScalarType();
  bool real = scalar->isFloatingPointTy();
  bool boolean = scalar->isIntegerTy(1);
  switch (kind) {
  case ReductionKind::Sum:
    return real ? b.CreateFAdd(x, y) : b.CreateAdd(x, y);
  case ReductionKind::Max:
    // The new value is tested for NaN; an earlier NaN stays.
    return real      ? math.maximum(y, x)
           : boolean ? b.CreateOr(x, y)
                     : b.CreateBinaryIntrinsic(llvm::Intrinsic::smax, x, y);
  case ReductionKind::Min:
    return real      ? math.minimum(y, x)
           : boolean ? b.CreateAnd(x, y)
                     : b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, x, y);
  }
  llvm_unreachable("unknown reduction");
}

llvm::Value *KernelEmitter::reduceLanes(ReductionKind kind, Type element,
                                        llvm::Value *x) {
  auto *type = dyn_cast<llvm::FixedVectorType>(x->getType());
  if (!type)
    return x;
  // Halves are added until one lane is left.
  for (unsigned n = type->getNumElements() / 2; n; n /= 2) {
    SmallVector<int> low, high;
    for (unsigned i = 0; i < n; ++i) {
      low.push_back(i);
      high.push_back(n + i);
    }
    x = combine(kind, element, b.CreateShuffleVector(x, low),
                b.CreateShuffleVector(x, high));
  }
  return b.CreateExtractElement(x, uint64_t(0));
}

unsigned KernelEmitter::unrollOf(PassOp pass, unsigned lanes) {
  if (lanes < maxLanes)
    return 1;
  unsigned ops = 0, heavy = 0;
  bool reduces = false, ordered = false;
  std::optional<unsigned> drawn;
  for (Operation &op : pass.getBody().front()) {
    if (auto philox = dyn_cast<PhiloxOp>(op))
      if (cols >= 64 && isAligned64(philox))
        drawn = 64 / lanes;
    if (auto reduce = dyn_cast<ReduceOp>(op)) {
      reduces = true;
      ordered |= reduce->hasAttr(kOrderedAttr);
    }
    heavy += op.getName().getDialectNamespace() == "math";
    ops += levelOf(&op) == 2;
  }
  // Several chains of a reduction hide the latency of its additions; other
  // short bodies gain a little from fewer branches. The chains of an ordered
  // sum depend on nothing else.
  if (drawn && !ordered)
    return *drawn;
  unsigned unroll = ordered                 ? 4
                    : ops > 40 || heavy > 2 ? (reduces ? 2 : 1)
                    : heavy                 ? 2
                    : reduces || ops < 12   ? 4
                                            : 2;
  while (unroll > 1 && cols < int64_t(unroll * lanes))
    unroll /= 2;
  return unroll;
}

void KernelEmitter::finishPass(PassOp pass) {
  Block &body = pass.getBody().front();
  auto yield = cast<YieldOp>(body.getTerminator());
  for (auto [result, value] : llvm::zip(pass.getResults(), yield.getValues()))
    values[result] = running.lookup(value.getDefiningOp());
}

LogicalResult KernelEmitter::emitPass(PassOp pass) {
  Block &body = pass.getBody().front();
  Point row = point;
  if (failed(emitBlock(body, 1)))
    return failure();
  // A row may end early if it is the last.
  std::optional<int64_t> valid = kernel.getValid();
  bool ragged = valid && *valid != rows * cols;
  llvm::Value *columns = index(cols);
  if (ragged)
    columns = b.CreateBinaryIntrinsic(
        llvm::Intrinsic::smin, columns,
        b.CreateNSWSub(index(*valid), b.CreateNSWMul(point.row, columns)));
  if (!body.getOps<ScanOp>().empty())
    return emitScanPass(pass, columns);

  unsigned lanes = maxLanes;
  while (lanes > 1 && int64_t(lanes / 2) >= cols)
    lanes /= 2;
  unsigned unroll = unrollOf(pass, lanes);
  int64_t block = int64_t(lanes) * unroll;

  auto reduces = llvm::to_vector(body.getOps<ReduceOp>());
  SmallVector<llvm::Value *> initial;
  for (unsigned u = 0; u < unroll; ++u)
    for (ReduceOp op : reduces)
      initial.push_back(identity(op.getKind(), op.getType(),
                                 lanesOf(scalarType(op.getType()), lanes)));

  // The main loop: `unroll` vectors at a time.
  llvm::Value *mainEnd = b.CreateAnd(columns, index(-block));
  Loop main = beginLoop(index(0), mainEnd, block, initial);
  draws.clear();
  SmallVector<llvm::Value *> next;
  for (unsigned u = 0; u < unroll; ++u) {
    point = row;
    point.lanes = lanes;
    point.col = u ? b.CreateNSWAdd(main.index, index(u * lanes)) : main.index;
    point.colStep = {1, u ? std::gcd(block, int64_t(u * lanes)) : block};
    copyInBlock = block == 64 ? u : -1;
    for (auto [k, op] : llvm::enumerate(reduces))
      running[op] = main.carried[u * reduces.size() + k];
    if (failed(emitBlock(body, 2)))
      return failure();
    for (ReduceOp op : reduces)
      next.push_back(running[op]);
  }
  copyInBlock = -1;
  endLoop(main, next);

  // Chains are combined in a fixed order.
  SmallVector<llvm::Value *> chains(main.carried.begin(), main.carried.end());
  size_t count = reduces.size();
  for (unsigned n = unroll / 2; n; n /= 2)
    for (unsigned u = 0; u < n; ++u)
      for (size_t k = 0; k < count; ++k)
        chains[u * count + k] =
            combine(reduces[k].getKind(), reduces[k].getType(),
                    chains[u * count + k], chains[(u + n) * count + k]);
  chains.resize(count);

  // The remaining columns: one vector at a time.
  if (ragged || cols % block != 0) {
    Loop tail = beginLoop(mainEnd, columns, lanes, chains);
    point = row;
    point.lanes = lanes;
    point.col = tail.index;
    point.colStep = {1, int64_t(lanes)};
    if (ragged || cols % lanes != 0)
      point.mask = laneMask(b.CreateNSWSub(columns, tail.index), lanes);
    for (auto [k, op] : llvm::enumerate(reduces))
      running[op] = tail.carried[k];
    if (failed(emitBlock(body, 2)))
      return failure();
    next.clear();
    for (ReduceOp op : reduces)
      next.push_back(running[op]);
    endLoop(tail, next);
    chains.assign(tail.carried.begin(), tail.carried.end());
  }
  point = row;
  for (auto [k, op] : llvm::enumerate(reduces))
    running[op] = reduceLanes(op.getKind(), op.getType(), chains[k]);
  finishPass(pass);
  return success();
}

/// A pass with a running sum goes column by column, in the sum's direction.
LogicalResult KernelEmitter::emitScanPass(PassOp pass, llvm::Value *columns) {
  Block &body = pass.getBody().front();
  Point row = point;
  std::optional<bool> reverse;
  SmallVector<Operation *> carried;
  SmallVector<llvm::Value *> initial;
  for (Operation &op : body) {
    if (auto scan = dyn_cast<ScanOp>(op)) {
      if (reverse && *reverse != scan.getReverse())
        return scan.emitError("runs against another exec.scan of its pass");
      reverse = scan.getReverse();
      initial.push_back(identity(ReductionKind::Sum, scan.getType(),
                                 scalarType(scan.getType())));
    } else if (auto reduce = dyn_cast<ReduceOp>(op)) {
      initial.push_back(identity(reduce.getKind(), reduce.getType(),
                                 scalarType(reduce.getType())));
    } else {
      continue;
    }
    carried.push_back(&op);
  }
  Loop loop = beginLoop(index(0), columns, 1, initial);
  point = row;
  point.col = loop.index;
  if (*reverse)
    point.col = b.CreateNSWSub(b.CreateNSWSub(columns, index(1)), loop.index);
  for (auto [op, phi] : llvm::zip(carried, loop.carried))
    running[op] = phi;
  if (failed(emitBlock(body, 2)))
    return failure();
  SmallVector<llvm::Value *> next;
  for (Operation *op : carried)
    next.push_back(running[op]);
  endLoop(loop, next);
  for (auto [op, phi] : llvm::zip(carried, loop.carried))
    running[op] = phi;
  point = row;
  finishPass(pass);
  return success();
}
