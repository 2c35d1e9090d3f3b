//===- RunList.h - Repetitions in a program ---------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_CONVERSION_PIPETOEXEC_RUNLIST_H
#define CLEAVE_LIB_CONVERSION_PIPETOEXEC_RUNLIST_H

#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Scheduling/ReducePeriods.h"
#include <map>

namespace cleave::exec {

/// The positions of a program's runs in a shortened schedule.
using RunPlaces =
    llvm::DenseMap<mlir::Operation *, scheduling::ReducedSchedule::Place>;

/// The runs of a program whose schedule lacks some micro-batches.
class RunList {
public:
  RunList(ProgramOp program, int64_t removed);

  /// For each repetition of the schedule, the runs to be repeated for the
  /// missing micro-batches; nothing if the runs are not regular. Sets on runs
  /// after repetitions by how much their micro-batch is later.
  std::optional<llvm::SmallVector<mlir::Attribute>>
  repeat(const RunPlaces &places);

private:
  std::optional<RepeatAttr> repeatBetween(size_t first, size_t last);
  bool setLater(const RunPlaces &places, const std::map<int32_t, size_t> &ends);
  /// By how many micro-batches run j is later than run i of the same part,
  /// otherwise 0.
  int64_t stepBetween(size_t i, size_t j) const;

  llvm::SmallVector<RunOp> runs;
  int64_t removed;
  /// For each run, a number that runs of the same part have in common, its
  /// micro-batch, and the next run of its part.
  std::vector<unsigned> numbers;
  std::vector<int64_t> microBatches;
  std::vector<size_t> nextLike;
  /// For each repeated part, the end of its repetition, and its number of runs
  /// that are not written out.
  llvm::StringMap<std::pair<size_t, int64_t>> repeated;
};

} // namespace cleave::exec

#endif // CLEAVE_LIB_CONVERSION_PIPETOEXEC_RUNLIST_H
