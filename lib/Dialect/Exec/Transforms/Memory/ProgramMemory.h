//===- ProgramMemory.h - The memory of one entry ----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_MEMORY_PROGRAMMEMORY_H
#define CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_MEMORY_PROGRAMMEMORY_H

#include "PartMemory.h"
#include "cleave/Dialect/Exec/IR/MemoryKind.h"
#include "cleave/Dialect/Exec/Transforms/Memory/Packing.h"
#include "llvm/ADT/BitVector.h"
#include <map>

namespace cleave::exec {

/// Facts that attributes have of the arguments and results of a part.
struct PartFacts {
  llvm::BitVector argumentTier, resultTier, dies, kept;
  llvm::SmallVector<std::optional<unsigned>> aliases;
};

/// The parts of a module, by name.
struct PartTable {
  llvm::StringMap<mlir::func::FuncOp> functions;
  llvm::StringMap<PartMemory> memories;
  /// By part, for those that an entry runs.
  std::map<mlir::Operation *, PartFacts> facts;

  const PartFacts &factsOf(mlir::func::FuncOp part);
};

/// The repeated actions of an entry: each has a representative, the
/// corresponding action of the first repetition.
struct Repeats {
  std::vector<unsigned> representative;
  /// For each action, the range [first, last] of representatives of its
  /// repeated region; only itself outside of one.
  std::vector<std::pair<unsigned, unsigned>> region;
  /// The repetition an action belongs to, unique over the entry.
  std::vector<unsigned> repetition;
  /// True for an action in a region of several repetitions.
  std::vector<bool> repeats;
};

/// Finds runs of equal sequences of parts; those in `known` are given.
Repeats findRepeats(llvm::ArrayRef<llvm::StringRef> parts,
                    llvm::ArrayRef<RepeatAttr> known = {});

/// Memory that values of an entry share.
struct ProgramBuffer {
  int64_t bytes = 0;
  /// Its fixed offset for the life of the process; -1 if the packing assigns
  /// it.
  int64_t fixed = -1;
  /// The offset in the packing.
  int64_t packed = -1;
  bool returned = false;
  Interval life{-1, -1, 0};
  mlir::Value value;
  /// Whether it holds sums over micro-batches; whether it holds a gradient.
  bool accumulates = false, gradient = false;
  /// Whether forward saves it for backward; whether a transfer or a collective
  /// of the whole step writes it.
  bool saved = false, communicated = false;
  /// Whether it is in the second tier.
  bool tier = false;
  /// Whether it holds a value that an update overwrites, saved until that is
  /// validated.
  bool kept = false;
};

MemoryKind kindOf(const ProgramBuffer &buffer);
MemoryKind kindOf(const PartBuffer &buffer);

/// A buffer that is in use at the peak.
struct LiveItem {
  int64_t bytes;
  MemoryKind kind;
  std::string name;
};

/// The plan of one entry.
class ProgramMemory {
public:
  ProgramMemory(ProgramOp program, PartTable &parts);

  /// Unites values that share memory; the caller sets fixed offsets afterwards.
  mlir::LogicalResult analyse();
  /// Packs buffers without a fixed offset.
  void packBuffers(Packings &packings);
  /// Writes rows of offsets; the packed part of the arena begins at `base`, and
  /// that of the second tier at `tierBase`. With `profile`, also the bytes in
  /// use over time.
  void write(int64_t base, int64_t tierBase, bool profile);

  ProgramBuffer &bufferOf(mlir::Value value) { return buffers[leader(value)]; }
  const Packing &getPacking() const { return packing; }
  const Packing &getTierPacking() const { return tierPacking; }
  /// The buffers in use at the peak, the largest first.
  std::vector<LiveItem> liveAtPeak() const;
  /// The peak bytes of gradients.
  int64_t gradientPeak();
  /// See `kPeakTimeAttr` and `kMemoryProfileAttr`.
  mlir::DictionaryAttr describePeakTime();
  mlir::DictionaryAttr describeProfile();

private:
  /// The name in the schedule of the action with that number.
  std::string nameOfAction(unsigned action) const;
  unsigned leader(mlir::Value value);
  /// The type of `value` and the source line where it is computed.
  std::string nameOf(mlir::Value value) const;
  /// A use of a value of the entry.
  struct Touch {
    unsigned repetition;
    std::pair<unsigned, unsigned> region;
    bool repeats;
  };
  /// By the leader of a buffer.
  using Touches = std::vector<llvm::SmallVector<Touch, 2>>;
  /// Gives each action the time at which it starts; returns their lengths, and
  /// the end as `time`.
  std::vector<int64_t> startActions(int64_t &time);
  /// Finds where buffers are used, and so how long they live.
  Touches touchBuffers();
  /// Lets the lives of `roots` span the repetitions that use them.
  void spanRepetitions(llvm::ArrayRef<unsigned> roots,
                       const llvm::DenseMap<unsigned, unsigned> &sameAs,
                       Touches &touches, llvm::ArrayRef<int64_t> length,
                       int64_t time);
  /// Adds the buffers that only one action uses; returns their actions and
  /// numbers.
  std::vector<std::pair<unsigned, unsigned>> addInternal();
  /// Sets `saved` and `communicated` of all buffers.
  void markSaved();
  int64_t address(mlir::Value value, int64_t base, int64_t tierBase);
  llvm::DenseMap<unsigned, unsigned> shareSlots(llvm::ArrayRef<unsigned> roots);
  void settleSlots();

  ProgramOp program;
  PartTable &parts;
  std::vector<RunOp> runs;
  /// Of each run.
  std::vector<mlir::func::FuncOp> functions;
  std::vector<const PartMemory *> memories;
  std::vector<const PartFacts *> facts;
  llvm::DenseMap<mlir::Value, unsigned> index;
  std::vector<unsigned> parent;
  /// By leader; of other values they are not used.
  std::vector<ProgramBuffer> buffers;
  Repeats repeats;
  std::vector<int64_t> start;
  /// The buffers that values of one result use in turn, of several each.
  std::vector<std::vector<unsigned>> turns;
  /// Offsets of internal buffers, by representative action; -1 elsewhere.
  std::vector<std::vector<int64_t>> internal;
  Packing packing, tierPacking;
  std::vector<Interval> intervals;
  /// A buffer that the packing places: of a value, or the scratch memory of an
  /// op.
  struct Item {
    int64_t bytes;
    MemoryKind kind;
    mlir::Value value;
    mlir::Operation *scratchOf;
  };
  /// Of each interval.
  std::vector<Item> items;
};

} // namespace cleave::exec

#endif // CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_MEMORY_PROGRAMMEMORY_H
