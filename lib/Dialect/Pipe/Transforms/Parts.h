//===- Parts.h - What the parts of an entry take and give -------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_PARTS_H
#define CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_PARTS_H

#include "Flow.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"

namespace cleave::pipe {

class Exchanges;
class Stages;

/// A part of one stage.
struct Slot {
  PartId id;
  int64_t stage = 0;
  bool operator==(const Slot &other) const = default;
};

/// A value that a part gives to later ones or to the program.
struct Export {
  mlir::Value value;
  std::string kind;
  bool operator==(const Export &other) const = default;
};

/// A value that a part takes from an earlier one.
struct Import {
  Slot from;
  Export source;
  /// The value it stands for inside the importing part.
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

/// A result of the entry: unset for an argument.
struct EntryResult {
  std::optional<std::pair<Slot, Export>> source;
};

/// Replaces `entry` by a program of its parts, in the stages that are given;
/// `exchanges` have parts of their own; with `split`, backward has two parts.
/// Reports a sum over micro-batches that one of them needs whole. Returns the
/// program.
llvm::FailureOr<ProgramOp> splitEntry(mlir::func::FuncOp entry,
                                      const Flow &flow, const Stages &stages,
                                      const Exchanges &exchanges, bool split,
                                      bool treeSums);

/// Replaces `entry` by a program of `parts`, in the order in which they run,
/// each a function of its own. `results` are those of the entry; behind them
/// come `copies`: the same update in another stage that holds what is updated,
/// by the number of the result. With `split`, backward has two parts. Returns
/// the program.
ProgramOp outlineParts(
    mlir::func::FuncOp entry, const Flow &flow,
    llvm::MutableArrayRef<Part> parts, llvm::ArrayRef<EntryResult> results,
    llvm::ArrayRef<std::pair<unsigned, std::pair<Slot, Export>>> copies,
    bool treeSums, bool split);

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_PARTS_H
