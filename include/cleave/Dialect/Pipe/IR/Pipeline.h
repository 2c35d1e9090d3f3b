//===- Pipeline.h - The parts of a pipeline of equal stages -----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_PIPE_IR_PIPELINE_H
#define CLEAVE_DIALECT_PIPE_IR_PIPELINE_H

#include "cleave/Dialect/Pipe/IR/Schedule.h"

namespace cleave::pipe {

struct PipelineOptions {
  /// Backward is I (the gradient of the stage's input) and then W (those of
  /// its weights), or B in place of both; otherwise it is B alone.
  bool split = true;
  /// The update follows each micro-batch, with no flush.
  bool asynchronous = false;
  /// Besides what the stage before gives, the second stage's forward reads the
  /// first's, and the first's backward the second's.
  std::vector<std::pair<int64_t, int64_t>> skips = {};
};

/// Forward F, backward and update U of each stage. Forward reads that of the
/// stage before, backward that of the stage behind and forward; the update
/// reads the gradients of all micro-batches. Each forward saves 1.
std::vector<PartInfo> describePipeline(int64_t stages,
                                       const PipelineOptions &options = {});

} // namespace cleave::pipe

#endif // CLEAVE_DIALECT_PIPE_IR_PIPELINE_H
