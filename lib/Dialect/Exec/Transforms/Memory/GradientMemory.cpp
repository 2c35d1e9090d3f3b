//===- GradientMemory.cpp - The memory of gradients -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ProgramMemory.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

/// Whether `value` is an argument, possibly copied.
static bool isCopy(Value value) {
  for (;;) {
    value = rootOf(value);
    auto copy = value.getDefiningOp<CopyOp>();
    if (!copy)
      return isa<BlockArgument>(value);
    value = copy->getOperand(0);
  }
}

/// The elements that `type` spans in memory.
static int64_t extentOf(RankedTensorType type) {
  return extentBytes(type) / elementBytes(type.getElementType());
}

void cleave::exec::markGradients(func::FuncOp part,
                                 const llvm::BitVector &dying,
                                 PartMemory &memory) {
  llvm::DenseSet<unsigned> updated;
  llvm::DenseSet<Value> evicted;
  for (auto [i, value] :
       llvm::enumerate(part.front().getTerminator()->getOperands())) {
    unsigned index = memory.bufferOf.lookup(value);
    if (part.getResultAttr(i, kUpdateAttr)) {
      updated.insert(index);
      // It may have taken the memory of its gradient.
      if (auto evict = value.getDefiningOp<EvictOp>())
        evicted.insert(evict.getInput());
    }
    memory.buffers[index].gradient |=
        part.getResultAttr(i, kGradientAttr) != nullptr;
  }
  for (Operation *op : memory.commands)
    for (Value result : op->getResults()) {
      if (isa<FetchOp, EvictOp>(op) ||
          (!updated.contains(memory.bufferOf.lookup(result)) &&
           !evicted.contains(result)))
        continue;
      int64_t extent = extentOf(tensorTypeOf(result));
      for (Value operand : op->getOperands()) {
        unsigned index = memory.bufferOf.lookup(operand);
        PartBuffer &buffer = memory.buffers[index];
        // A sent value is dead after the part; arguments of the entry stay.
        bool given = buffer.argument < 0
                         ? isCopy(operand)
                         : !dying.test(buffer.argument) ||
                               part.getArgAttr(buffer.argument, kKeptAttr);
        if (!updated.contains(index) && !buffer.constant && !given &&
            !rootOf(operand).getDefiningOp<FetchOp>() &&
            extentOf(tensorTypeOf(operand)) == extent)
          buffer.gradient = true;
      }
    }
}

int64_t ProgramMemory::gradientPeak() {
  std::vector<Interval> live;
  for (auto [i, interval] : llvm::enumerate(intervals))
    if (items[i].kind == MemoryKind::Gradients)
      live.push_back(interval);
  int64_t bytes = live.empty() ? 0 : maxLive(live, nullptr);
  // A value that is kept for the next step has memory all the time.
  for (BlockArgument argument : program.getBody().getArguments())
    if (auto role = program.getArgAttrOfType<StringAttr>(
            argument.getArgNumber(), graph::kRoleAttr);
        role && role == "gradient")
      bytes += bufferOf(argument).bytes;
  return bytes;
}
