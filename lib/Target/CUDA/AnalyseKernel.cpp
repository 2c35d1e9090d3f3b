//===- AnalyseKernel.cpp - What depends on the form of a kernel -----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "KernelPrinter.h"
#include "SoftmaxParts.h"
#include "mlir/IR/TypeUtilities.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::cuda;
using namespace cleave::exec;

/// Pieces of `vector` columns must not extend beyond the end of a row, and are
/// of use only where something is accessed by them.
void KernelPrinter::chooseVector() {
  int64_t ends = ragged ? int64_t(*kernel.getValid()) : 0;
  if (!llvm::isPowerOf2_64(vector) || vector > 16)
    vector = 1;
  while (cols % vector != 0 || ends % vector != 0)
    vector /= 2;
  bool scans = false, used = false;
  inPass = true;
  kernel.getBody().walk([&](Operation *op) {
    scans |= isa<ScanOp>(op);
    if (!isa<PassOp>(op->getParentOp()))
      return;
    if (auto load = dyn_cast<LoadOp>(op))
      used |= !load.getWhere() && accessBytes(load.getMemory(), load.getMap(),
                                              load.getIndices()) > 0;
    else if (auto store = dyn_cast<StoreOp>(op))
      used |= accessBytes(store.getMemory(), store.getMap(), {}) > 0;
  });
  inPass = false;
  if (scans || !used)
    vector = 1;
}

/// Whether all results with an element for each of the rows and columns are
/// narrow, and there are some: what they are computed from may be as exact as
/// they need.
static bool hasNarrowResults(KernelOp kernel) {
  bool some = false;
  for (BlockArgument arg :
       kernel.getBody().getArguments().drop_front(kernel.getNumInputs())) {
    auto type = cast<RankedTensorType>(arg.getType());
    if (type.getNumElements() <
        static_cast<int64_t>(kernel.getRows() * kernel.getCols()))
      continue;
    auto real = dyn_cast<FloatType>(type.getElementType());
    if (!real || real.getWidth() > 16)
      return false;
    some = true;
  }
  return some;
}

void KernelPrinter::analyse() {
  fast = hasNarrowResults(kernel);
  chooseVector();
  pieces = llvm::divideCeil(cols, threads * vector);
  if (kernel.hasApartColumns())
    std::swap(pieces, tiles);
  bool crosses = false, scans = false;
  int64_t passes = 0;
  for (Operation &op : kernel.getBody().front()) {
    crosses |= isa<KeepOp, AccumulateOp>(op);
    if (auto pass = dyn_cast<PassOp>(op)) {
      ++passes;
      for (Operation &inner : pass.getBody().front()) {
        crosses |= isa<ReduceOp, ScanOp, AccumulateOp>(inner);
        scans |= isa<ScanOp>(inner);
      }
    }
  }
  flat = !crosses && passes <= 1;
  if (passes == 0)
    cols = vector = 1;

  // Rows that are kept, and partial sums, are in registers while these last.
  constexpr int64_t registers = 64;
  int64_t used = 0, index = 0;
  for (KeepOp keep : kernel.getBody().front().getOps<KeepOp>()) {
    auto type = cast<RankedTensorType>(keep.getRow().getType());
    int64_t words =
        pieces * vector * llvm::divideCeil(byteSize(type.getElementType()), 4);
    Slot slot{"kept" + std::to_string(index++), false};
    slot.registers = !scans && used + words <= registers;
    if (slot.registers)
      used += words;
    else
      sharedBytes +=
          llvm::divideCeil(
              type.getNumElements() * byteSize(type.getElementType()), 16) *
          16;
    kept[keep.getRow()] = slot;
    names[keep.getRow()] = slot.name;
  }
  int64_t base = 0;
  kernel.getBody().walk([&](AccumulateOp op) {
    bool inside = isa<PassOp>(op->getParentOp());
    int64_t size = byteSize(op.getValue().getType());
    int64_t words = inside ? pieces * vector * llvm::divideCeil(size, 4) : 1;
    Slot slot{"partial" + std::to_string(sums.size()), false};
    slot.registers = !inside || (!scans && used + words <= registers);
    if (slot.registers)
      used += words;
    sums[op] = slot;
    partialBase[op] = base;
    base += llvm::divideCeil((inside ? cols : 1) * size, 64) * 64 *
            kernel.getItems();
  });
  chooseTeams(scans);
  // The threads of a scan have no columns of their own, and only unrolled loops
  // have their elements in registers.
  if (!flat && !scans)
    holdRows(pieces <= 16 ? registers - used : 0);
}

/// Teams are of use, and have no memory in common, while rows that are kept and
/// sums are in registers.
void KernelPrinter::chooseTeams(bool scans) {
  auto inMemory = [](auto &entry) { return !entry.second.registers; };
  teams = kernel.getTeams();
  if (!kernel.accumulates() || scans || threads * teams > 1024 ||
      llvm::any_of(kept, inMemory) || llvm::any_of(sums, inMemory))
    teams = 1;
  if (threads * teams % 32 != 0) {
    threads = llvm::divideCeil(threads, 32) * 32;
    tiles = llvm::divideCeil(cols, threads * vector);
  }
  int64_t items = kernel.getItems();
  idle = teams > 1 && (rows % items != 0 || rows / items % teams != 0);
}

/// Chooses the rows of memory that stay in at most `registers`, or in shared
/// memory.
void KernelPrinter::holdRows(int64_t registers) {
  auto isOfRow = [](ValueRange indices) {
    return llvm::none_of(indices, [](Value index) {
      Operation *def = index.getDefiningOp();
      return def && isa<PassOp>(def->getParentOp());
    });
  };
  for (PassOp pass : kernel.getBody().front().getOps<PassOp>()) {
    auto see = [&](Value memory, AffineMap map, ValueRange indices, bool read) {
      if (!isa<BlockArgument>(memory) || !map.isFunctionOfDim(1) ||
          !isOfRow(indices))
        return;
      // What all rows of a block read alike is near, and registers are few.
      if (kernel.accumulates() && !map.isFunctionOfDim(0) && indices.empty())
        return;
      if (Held *known = findHeld(memory, map, indices))
        known->used |= read && known->firstPass != pass;
      else
        held.push_back({memory, map, SmallVector<Value>(indices), pass, ""});
    };
    for (Operation &op : pass.getBody().front()) {
      if (auto load = dyn_cast<LoadOp>(op); load && !load.getWhere())
        see(load.getMemory(), load.getMap(), load.getIndices(), true);
      else if (auto store = dyn_cast<StoreOp>(op))
        see(store.getMemory(), store.getMap(), {}, false);
    }
  }
  int64_t number = 0;
  llvm::erase_if(held, [&](Held &row) {
    auto type = cast<RankedTensorType>(row.memory.getType());
    int64_t words =
        llvm::divideCeil(pieces * vector * byteSize(type.getElementType()), 4);
    if (!row.used)
      return true;
    // Blocks that have a fourth of a multiprocessor's registers for a row leave
    // no room for another block, which would be busy while one waits.
    constexpr int64_t most = (64 << 10) / 4;
    if (words <= registers && words * threads * teams <= most) {
      registers -= words;
    } else {
      // Reductions have some shared memory too.
      constexpr int64_t others = 4096;
      int64_t bytes =
          llvm::divideCeil(cols * byteSize(type.getElementType()), 16) * 16;
      if (teams > 1 || sharedBytes + bytes + others > sharedLimit ||
          !needsRow(row))
        return true;
      row.sharedAt = sharedBytes;
      sharedBytes += bytes;
    }
    row.name = "row" + std::to_string(number++);
    return false;
  });
}

/// Whether a pass reads the row again that is not part of a softmax in one pass
/// (`printSoftmaxPass`).
bool KernelPrinter::needsRow(const Held &row) {
  for (PassOp pass : kernel.getBody().front().getOps<PassOp>()) {
    LoadOp ofSum = exponentialSum(pass).first;
    for (LoadOp load : pass.getBody().front().getOps<LoadOp>())
      if (!load.getWhere() && load != ofSum && pass != row.firstPass &&
          load.getMemory() == row.memory && load.getMap() == row.map &&
          load.getIndices() == ValueRange(row.indices))
        return true;
  }
  return false;
}
