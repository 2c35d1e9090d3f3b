//===- RunList.h - What a program repeats -----------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_RUNLIST_H
#define CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_RUNLIST_H

#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Pipe/IR/Shorten.h"

namespace cleave::exec {

/// Where the runs of a program belong in a shortened schedule.
using RunPlaces = llvm::DenseMap<mlir::Operation *, pipe::ShortSchedule::Place>;

/// The runs of a program of a schedule that lacks some micro-batches.
class RunList {
public:
  RunList(ProgramOp program, int64_t removed)
      : runs(program.getBody().getOps<RunOp>()), removed(removed) {}

  /// What is to be repeated for the micro-batches that are lacking, for each
  /// repetition of the schedule, and nothing where its runs are not alike. Runs
  /// behind repetitions get to know of how much later a micro-batch they are.
  std::optional<llvm::SmallVector<mlir::Attribute>>
  repeat(const RunPlaces &places);

private:
  std::optional<RepeatAttr> repeatBetween(size_t first, size_t last);
  bool setLater(const RunPlaces &places);
  int64_t stepBetween(size_t i, size_t j);

  llvm::SmallVector<RunOp> runs;
  int64_t removed;
  /// Of a part that is repeated, where the repetition ends, and how often the
  /// part comes in what is not written out.
  llvm::StringMap<std::pair<size_t, int64_t>> repeated;
};

} // namespace cleave::exec

#endif // CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_RUNLIST_H
