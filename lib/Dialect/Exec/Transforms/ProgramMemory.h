//===- ProgramMemory.h - The memory of one entry ----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_PROGRAMMEMORY_H
#define CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_PROGRAMMEMORY_H

#include "PartMemory.h"
#include "cleave/Dialect/Exec/Transforms/Packing.h"

namespace cleave::exec {

/// The parts of a module, by name.
struct PartTable {
  llvm::StringMap<mlir::func::FuncOp> functions;
  llvm::StringMap<PartMemory> memories;
};

/// Which actions of an entry repeat: each has a representative, the action of
/// the first repetition at its place.
struct Repeats {
  std::vector<unsigned> representative;
  /// For each action, the range [first, last] of representatives that its
  /// repeated region covers; itself alone outside of one.
  std::vector<std::pair<unsigned, unsigned>> region;
  /// The repetition an action belongs to, unique over the entry.
  std::vector<unsigned> repetition;
  /// True for an action in a region of several repetitions.
  std::vector<bool> repeats;
};

/// Finds runs of equal sequences of parts; those in `known` are as it says.
Repeats findRepeats(llvm::ArrayRef<llvm::StringRef> parts,
                    llvm::ArrayRef<RepeatAttr> known = {});

/// Memory that values of an entry share.
struct ProgramBuffer {
  int64_t bytes = 0;
  /// Where it lies for the life of the process; -1: the packing says.
  int64_t fixed = -1;
  /// Offset in the packing.
  int64_t packed = -1;
  bool returned = false;
  Interval life{-1, -1, 0};
  mlir::Value value;
  /// Sums over micro-batches live in it; a gradient does.
  bool accumulates = false, gradient = false;
  /// What an update overwrites lies in it until that is validated.
  bool kept = false;
};

/// Something in use at the worst time.
struct LiveItem {
  int64_t bytes;
  std::string kind, name;
};

/// The plan of one entry.
class ProgramMemory {
public:
  ProgramMemory(ProgramOp program, PartTable &parts);

  /// Unites values; the fixed places are set afterwards by the caller.
  mlir::LogicalResult analyse();
  /// Packs what has no fixed place.
  void packBuffers();
  /// Writes rows of offsets; the packed part of the arena begins at `base`.
  void write(int64_t base);

  ProgramBuffer &bufferOf(mlir::Value value) { return buffers[leader(value)]; }
  mlir::ArrayRef<RunOp> getRuns() const { return runs; }
  const Packing &getPacking() const { return packing; }
  /// What is in use at the worst time, the largest first.
  std::vector<LiveItem> liveAtPeak() const;
  /// The most bytes of gradients at a time.
  int64_t gradientPeak();

private:
  unsigned leader(mlir::Value value);
  int64_t address(mlir::Value value, int64_t base);
  llvm::DenseMap<unsigned, unsigned> shareSlots(llvm::ArrayRef<unsigned> roots);
  void settleSlots();

  ProgramOp program;
  PartTable &parts;
  std::vector<RunOp> runs;
  llvm::DenseMap<mlir::Value, unsigned> index;
  std::vector<unsigned> parent;
  llvm::DenseMap<unsigned, ProgramBuffer> buffers;
  Repeats repeats;
  std::vector<int64_t> start;
  /// The places that values of one result lie at in turn, of several each.
  std::vector<std::vector<unsigned>> turns;
  /// Places of internal buffers, by representative action; -1 elsewhere.
  std::vector<std::vector<int64_t>> internal;
  Packing packing;
  std::vector<Interval> intervals;
  std::vector<LiveItem> items;
};

} // namespace cleave::exec

#endif // CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_PROGRAMMEMORY_H
