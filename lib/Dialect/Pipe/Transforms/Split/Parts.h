//===- Parts.h - The parts of an entry, with their values -------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SPLIT_PARTS_H
#define CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SPLIT_PARTS_H

#include "Flow.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"

namespace cleave::pipe {

class StepCollectives;
class Stages;

/// A part of one stage.
struct Slot {
  PartId id;
  int64_t stage = 0;
  bool operator==(const Slot &other) const = default;
};

/// A value that a part returns to later parts or to the program.
struct Export {
  mlir::Value value;
  /// The result kind of `pipe.invoke`.
  std::string kind;
  /// Which of several results that are the same value: one for each argument
  /// that the value updates.
  unsigned copy = 0;
  bool operator==(const Export &other) const = default;
};

/// A value that a part reads from an earlier one.
struct Import {
  Slot from;
  Export source;
  /// The value of the entry that it replaces inside the importing part.
  mlir::Value value;
};

struct Part {
  Slot slot;
  llvm::DenseSet<mlir::Operation *> ops;
  /// Values that the part must compute or import.
  llvm::DenseSet<mlir::Value> needed;
  llvm::SmallVector<Import> imports;
  llvm::SmallVector<Export> exports;
  InvokeOp invoke;
};

/// The source of a result of the entry; unset if it is an argument.
struct EntryResult {
  std::optional<std::pair<Slot, Export>> source;
};

/// Replaces `entry` by a program of its parts in the given stages, and returns
/// it. `exchanges` have parts of their own; with `split`, backward has two
/// parts; with `treeSums`, sums over micro-batches are binary trees. Emits an
/// error for a sum over micro-batches that a micro-batch reads.
llvm::FailureOr<ProgramOp> splitEntry(mlir::func::FuncOp entry,
                                      const Flow &flow, const Stages &stages,
                                      const StepCollectives &exchanges,
                                      bool split, bool treeSums);

/// Replaces `entry` by a program of `parts`, in the order in which they run,
/// each outlined as a function, and returns it. `results` are the sources of
/// the entry's results. `copies` become further results: the same update in
/// another stage that holds the argument, with the number of the entry's
/// result. With `split`, backward has two parts.
ProgramOp outlineParts(
    mlir::func::FuncOp entry, const Flow &flow,
    llvm::MutableArrayRef<Part> parts, llvm::ArrayRef<EntryResult> results,
    llvm::ArrayRef<std::pair<unsigned, std::pair<Slot, Export>>> copies,
    bool treeSums, bool split);

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SPLIT_PARTS_H
