//===- Pipeline.h - The parts of a pipeline of equal stages -----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SCHEDULING_PIPELINE_H
#define CLEAVE_SCHEDULING_PIPELINE_H

#include "cleave/Scheduling/Schedule.h"

namespace cleave::scheduling {

struct PipelineOptions {
  /// Whether backward can be split: I (the gradient of the stage's input) and
  /// then W (the gradients of its weights), or B in place of both. Otherwise
  /// backward is B alone.
  bool split = true;
  /// Whether each micro-batch has its own update, with no flush.
  bool asynchronous = false;
  /// Skip connections, as pairs of stages: forward of the second stage also
  /// reads results of forward of the first one, and backward of the first stage
  /// those of backward of the second one.
  std::vector<std::pair<int64_t, int64_t>> skips = {};
};

/// Returns forward F, backward and update U of each stage. Forward reads the
/// forward of the previous stage; backward reads the backward of the next stage
/// and the forward of its own; the update reads the gradients of all
/// micro-batches. Each forward saves 1 (see `PartInfo::saved`).
std::vector<PartInfo> describePipeline(int64_t stages,
                                       const PipelineOptions &options = {});

} // namespace cleave::scheduling

#endif // CLEAVE_SCHEDULING_PIPELINE_H
