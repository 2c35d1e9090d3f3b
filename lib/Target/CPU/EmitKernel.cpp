//===- EmitKernel.cpp - Rows and groups of a kernel -----------------------===//
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

KernelEmitter::KernelEmitter(KernelOp kernel, llvm::Module &module,
                             const CpuTarget &target)
    : kernel(kernel), module(module), target(target), b(module.getContext()),
      math(b), maxLanes(target.vectorBits / 32), rows(kernel.getRows()),
      cols(kernel.getCols()) {}

//===----------------------------------------------------------------------===//
// Types and helpers
//===----------------------------------------------------------------------===//

llvm::Type *KernelEmitter::scalarType(Type type) {
  if (type.isF64())
    return b.getDoubleTy();
  if (type.isF32())
    return b.getFloatTy();
  // Narrow floats as their codes: they are only loaded, stored and converted,
  // and LLVM's own types of 16 bits would be converted on some processors.
  if (auto real = dyn_cast<FloatType>(type))
    return b.getIntNTy(real.getWidth());
  if (type.isIndex())
    return b.getInt64Ty();
  return b.getIntNTy(type.getIntOrFloatBitWidth());
}

llvm::Type *KernelEmitter::memoryType(Type type) {
  return type.isInteger(1) ? b.getInt8Ty() : scalarType(type);
}

llvm::Type *KernelEmitter::lanesOf(llvm::Type *type, unsigned lanes) {
  return lanes == 1 ? type : llvm::FixedVectorType::get(type, lanes);
}

llvm::Value *KernelEmitter::spread(llvm::Value *value, unsigned lanes) {
  if (lanes == 1 || value->getType()->isVectorTy())
    return value;
  return b.CreateVectorSplat(lanes, value);
}

llvm::Value *KernelEmitter::laneMask(llvm::Value *remaining, unsigned lanes) {
  SmallVector<llvm::Constant *> numbers;
  for (unsigned i = 0; i < lanes; ++i)
    numbers.push_back(b.getInt32(i));
  llvm::Value *limit = b.CreateTrunc(
      b.CreateBinaryIntrinsic(llvm::Intrinsic::umin, remaining, index(lanes)),
      b.getInt32Ty());
  return b.CreateICmpULT(llvm::ConstantVector::get(numbers),
                         b.CreateVectorSplat(lanes, limit));
}

KernelEmitter::Loop KernelEmitter::beginLoop(llvm::Value *from, llvm::Value *to,
                                             int64_t step,
                                             ArrayRef<llvm::Value *> carried) {
  Loop loop;
  llvm::BasicBlock *before = b.GetInsertBlock();
  loop.header = llvm::BasicBlock::Create(b.getContext(), "loop", function);
  llvm::BasicBlock *body =
      llvm::BasicBlock::Create(b.getContext(), "body", function);
  loop.exit = llvm::BasicBlock::Create(b.getContext(), "exit", function);
  loop.step = index(step);
  b.CreateBr(loop.header);
  b.SetInsertPoint(loop.header);
  loop.index = b.CreatePHI(b.getInt64Ty(), 2, "i");
  loop.index->addIncoming(from, before);
  for (llvm::Value *value : carried) {
    llvm::PHINode *phi = b.CreatePHI(value->getType(), 2);
    phi->addIncoming(value, before);
    loop.carried.push_back(phi);
  }
  b.CreateCondBr(b.CreateICmpSLT(loop.index, to), body, loop.exit);
  b.SetInsertPoint(body);
  return loop;
}

void KernelEmitter::endLoop(Loop &loop, ArrayRef<llvm::Value *> next) {
  llvm::BasicBlock *latch = b.GetInsertBlock();
  loop.index->addIncoming(b.CreateNSWAdd(loop.index, loop.step), latch);
  for (auto [phi, value] : llvm::zip(loop.carried, next))
    phi->addIncoming(value, latch);
  b.CreateBr(loop.header);
  b.SetInsertPoint(loop.exit);
}

//===----------------------------------------------------------------------===//
// Dependences
//===----------------------------------------------------------------------===//

/// 0: the same for all rows; 1: depends on the row; 2: depends on the column.
int KernelEmitter::levelOf(Operation *op) {
  auto it = levels.find(op);
  if (it != levels.end())
    return it->second;
  int structural = isa<PassOp>(op->getParentOp()) ? 2 : 1;
  int level = 0;
  auto ofMap = [](AffineMap map) {
    return map.isFunctionOfDim(1) ? 2 : map.isFunctionOfDim(0) ? 1 : 0;
  };
  if (auto load = dyn_cast<LoadOp>(op)) {
    // Inputs keep their values while the kernel runs, except elements that are
    // overwritten in place, each after its last read.
    auto arg = dyn_cast<BlockArgument>(load.getMemory());
    bool input = arg && arg.getArgNumber() < kernel.getNumInputs();
    level = input ? ofMap(load.getMap()) : structural;
  } else if (auto number = dyn_cast<IndexOp>(op)) {
    level = ofMap(number.getMap());
  } else if (auto philox = dyn_cast<PhiloxOp>(op)) {
    level = ofMap(philox.getMap());
  } else if (isa<StoreOp, AccumulateOp, ReduceOp, ScanOp, KeepOp, PassOp,
                 YieldOp>(op)) {
    level = structural;
  }
  if (level < structural)
    for (Value operand : op->getOperands())
      if (Operation *def = operand.getDefiningOp())
        level = std::max(level, levelOf(def));
  return levels[op] = level;
}

LogicalResult KernelEmitter::prepare() {
  if (kernel.accumulates()) {
    int64_t base = 0;
    kernel.getBody().walk([&](AccumulateOp op) {
      int64_t width = isa<PassOp>(op->getParentOp()) ? cols : 1;
      int64_t size = elementBytes(op.getValue().getType());
      int64_t groupBytes = (width * size + 63) / 64 * 64;
      partials[op] = {base, groupBytes, width};
      base += groupBytes * kernel.getItems();
    });
  }
  // Vectors of the flat index serve short rows, if no op needs the boundaries
  // of rows.
  bool crosses = false, rowEffects = false;
  int passes = 0;
  for (Operation &op : kernel.getBody().front()) {
    if (auto pass = dyn_cast<PassOp>(op)) {
      ++passes;
      for (Operation &inner : pass.getBody().front())
        crosses |= isa<ReduceOp, ScanOp, AccumulateOp>(inner);
    } else {
      crosses |= isa<KeepOp, AccumulateOp>(op);
      rowEffects |= isa<StoreOp>(op);
    }
  }
  if (passes == 0)
    cols = 1;
  bool ragged = cols % maxLanes != 0;
  flat = !crosses && passes <= 1 && (cols == 1 || !rowEffects) &&
         (cols < maxLanes || (ragged && cols < 16 * maxLanes)) && rows > 1;
  return success();
}

LogicalResult KernelEmitter::emitBlock(Block &block, int level) {
  for (Operation &op : block)
    if (levelOf(&op) == level)
      if (failed(emitOp(op)))
        return failure();
  return success();
}

LogicalResult KernelEmitter::emitInvariant() {
  Block &block = kernel.getBody().front();
  point = {};
  for (Operation &op : block) {
    if (levelOf(&op) == 0 && failed(emitOp(op)))
      return failure();
    if (auto pass = dyn_cast<PassOp>(op))
      if (failed(emitBlock(pass.getBody().front(), 0)))
        return failure();
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Functions
//===----------------------------------------------------------------------===//

void KernelEmitter::createFunction(StringRef name) {
  llvm::Type *ptr = b.getPtrTy();
  auto *type = llvm::FunctionType::get(
      b.getVoidTy(), {ptr, b.getInt64Ty(), b.getInt64Ty(), ptr}, false);
  function = llvm::Function::Create(type, llvm::Function::ExternalLinkage, name,
                                    module);
  function->setDoesNotThrow();
  function->addFnAttr("target-cpu", target.cpu);
  function->addFnAttr("prefer-vector-width", std::to_string(target.vectorBits));
  function->addFnAttr("min-legal-vector-width",
                      std::to_string(target.vectorBits));
  // A row that is kept may be larger than the guard page of a stack.
  function->addFnAttr("probe-stack", "inline-asm");
  llvm::Argument *args = function->getArg(0);
  args->setName("args");
  function->getArg(1)->setName("begin");
  function->getArg(2)->setName("end");
  function->getArg(3)->setName("scratch");
  begin = function->getArg(1);
  end = function->getArg(2);
  scratch = function->getArg(3);
  b.SetInsertPoint(
      llvm::BasicBlock::Create(module.getContext(), "entry", function));
  values.clear();
  allocated.clear();
  for (BlockArgument arg : kernel.getBody().front().getArguments())
    values[arg] = b.CreateLoad(
        ptr, b.CreateConstInBoundsGEP1_64(ptr, args, arg.getArgNumber()));
}

void KernelEmitter::emitKeeps() {
  // Rows are on the stack, up to a size that any thread's stack has; longer
  // ones in memory allocated for the call.
  onStack = 0;
  for (KeepOp keep : kernel.getBody().front().getOps<KeepOp>()) {
    auto type = cast<RankedTensorType>(keep.getRow().getType());
    llvm::Type *element = memoryType(type.getElementType());
    int64_t bytes = type.getNumElements() *
                    module.getDataLayout().getTypeAllocSize(element);
    bytes = (bytes + 63) / 64 * 64;
    values[keep.getRow()] = emitMemory(bytes);
  }
  // The sums of one group are nobody else's.
  if (kernel.accumulates() && !kernel.isTwoStage())
    scratch = emitMemory(kernel.getGroupBytes());
}

/// Aligned memory of one call of the kernel.
llvm::Value *KernelEmitter::emitMemory(int64_t bytes) {
  constexpr int64_t stackBytes = 256 << 10;
  onStack += bytes;
  if (onStack <= stackBytes) {
    auto *slot = b.CreateAlloca(b.getInt8Ty(), index(bytes));
    slot->setAlignment(llvm::Align(64));
    return slot;
  }
  llvm::FunctionCallee allocate = module.getOrInsertFunction(
      "aligned_alloc", b.getPtrTy(), b.getInt64Ty(), b.getInt64Ty());
  llvm::Value *memory = b.CreateCall(allocate, {index(64), index(bytes)});
  auto *lost = llvm::BasicBlock::Create(b.getContext(), "lost", function);
  auto *found = llvm::BasicBlock::Create(b.getContext(), "found", function);
  b.CreateCondBr(b.CreateIsNull(memory), lost, found);
  b.SetInsertPoint(lost);
  b.CreateCall(module.getOrInsertFunction("abort", b.getVoidTy()));
  b.CreateUnreachable();
  b.SetInsertPoint(found);
  allocated.push_back(memory);
  return memory;
}

void KernelEmitter::emitReturn() {
  for (llvm::Value *memory : allocated)
    b.CreateCall(
        module.getOrInsertFunction("free", b.getVoidTy(), b.getPtrTy()),
        {memory});
  b.CreateRetVoid();
}

LogicalResult KernelEmitter::emitRows() {
  Loop loop = beginLoop(begin, end, 1);
  point = {};
  point.row = loop.index;
  if (failed(emitBlock(kernel.getBody().front(), 1)))
    return failure();
  endLoop(loop);
  return success();
}

void KernelEmitter::emitInitialPartials() {
  kernel.getBody().walk([&](AccumulateOp op) {
    const Partial &partial = partials[op];
    Type type = op.getValue().getType();
    llvm::Type *element = memoryType(type);
    llvm::Value *pointer = partialPointer(partial, group);
    llvm::Value *initial = identity(op.getKind(), type, element);
    Loop loop = beginLoop(index(0), index(partial.width), 1);
    b.CreateStore(initial, b.CreateGEP(element, pointer, loop.index));
    endLoop(loop);
  });
}

LogicalResult KernelEmitter::emitGroups() {
  // Group g begins at row g * rows / groups.
  auto firstOf = [&](llvm::Value *number) {
    return b.CreateUDiv(b.CreateNSWMul(number, index(rows)),
                        index(kernel.getItems()));
  };
  Loop groups = beginLoop(begin, end, 1);
  group = groups.index;
  emitInitialPartials();
  Loop loop =
      beginLoop(firstOf(group), firstOf(b.CreateNSWAdd(group, index(1))), 1);
  point = {};
  point.row = loop.index;
  if (failed(emitBlock(kernel.getBody().front(), 1)))
    return failure();
  endLoop(loop);
  if (!kernel.isTwoStage())
    emitSums(index(0), index(kernel.getFinishItems()));
  endLoop(groups);
  return success();
}

LogicalResult KernelEmitter::emitFlat() {
  llvm::Value *from = b.CreateNSWMul(begin, index(cols));
  llvm::Value *to = b.CreateNSWMul(end, index(cols));
  if (auto valid = kernel.getValid())
    to = b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, to, index(*valid));
  auto body = [&](llvm::Value *at, unsigned lanes, llvm::Value *mask) {
    point = {};
    point.lanes = lanes;
    point.row = at;
    point.rowStep = {1, 1};
    point.colStep = {0, 1};
    point.mask = mask;
    for (Operation &op : kernel.getBody().front()) {
      if (auto pass = dyn_cast<PassOp>(op)) {
        for (Operation &inner : pass.getBody().front())
          if (levelOf(&inner) > 0 && failed(emitOp(inner)))
            return failure();
      } else if (levelOf(&op) > 0 && failed(emitOp(op))) {
        return failure();
      }
    }
    return success();
  };
  llvm::Value *span = b.CreateNSWSub(to, from);
  llvm::Value *whole =
      b.CreateNSWAdd(from, b.CreateAnd(span, index(-int64_t(maxLanes))));
  Loop main = beginLoop(from, whole, maxLanes);
  if (failed(body(main.index, maxLanes, nullptr)))
    return failure();
  endLoop(main);
  // At most one more vector: a loop would be slower when there is none.
  Loop tail = beginLoop(whole, to, maxLanes);
  llvm::Value *mask = laneMask(b.CreateNSWSub(to, tail.index), maxLanes);
  if (failed(body(tail.index, maxLanes, mask)))
    return failure();
  endLoop(tail);
  return success();
}

/// Stores the columns [from, to) of the sums of all groups.
void KernelEmitter::emitSums(llvm::Value *from, llvm::Value *to) {
  int64_t groups = kernel.getItems();
  kernel.getBody().walk([&](AccumulateOp op) {
    const Partial &partial = partials[op];
    Type type = op.getValue().getType();
    llvm::Type *element = memoryType(type);
    unsigned lanes = partial.width == 1 ? 1 : maxLanes;
    llvm::Value *last = b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, to,
                                                index(partial.width));
    Loop loop = beginLoop(from, last, lanes);
    point = {};
    point.lanes = lanes;
    point.row = index(0);
    point.col = loop.index;
    if (lanes > 1)
      point.mask = laneMask(b.CreateNSWSub(last, loop.index), lanes);
    auto load = [&](llvm::Value *group) -> llvm::Value * {
      llvm::Value *at =
          b.CreateGEP(element, partialPointer(partial, group), loop.index);
      llvm::Type *vector = lanesOf(element, lanes);
      llvm::Align align(module.getDataLayout().getTypeAllocSize(element));
      if (lanes == 1)
        return b.CreateAlignedLoad(vector, at, align);
      return b.CreateMaskedLoad(vector, at, align, point.mask,
                                llvm::Constant::getNullValue(vector));
    };
    Loop inner = beginLoop(index(1), index(groups), 1, {load(index(0))});
    llvm::Value *next =
        combine(op.getKind(), type, inner.carried[0], load(inner.index));
    endLoop(inner, {next});
    llvm::Value *result = inner.carried[0];
    if (type.isInteger(1))
      result = b.CreateTrunc(result, lanesOf(b.getInt1Ty(), lanes));
    storeTo(op.getMemory(), type, placeOf(op.getMap(), {}), result);
    endLoop(loop);
  });
}

void KernelEmitter::emitFinish() {
  createFunction(kernel.getFinishName());
  emitSums(begin, end);
  emitReturn();
}

LogicalResult KernelEmitter::emit() {
  if (failed(prepare()))
    return failure();
  createFunction(kernel.getFunctionName());
  emitKeeps();
  if (failed(emitInvariant()))
    return failure();
  LogicalResult result = flat                   ? emitFlat()
                         : kernel.accumulates() ? emitGroups()
                                                : emitRows();
  if (failed(result))
    return failure();
  emitReturn();
  if (kernel.isTwoStage())
    emitFinish();
  return success();
}
