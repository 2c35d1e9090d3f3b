//===- Costs.h - How long parts take on a machine ---------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Estimates from shapes alone: each op takes the time of its flops, and that
/// of the bytes that it reads, writes and sends. Where a run was measured, what
/// it took stands in their place.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_PIPE_TRANSFORMS_COSTS_H
#define CLEAVE_DIALECT_PIPE_TRANSFORMS_COSTS_H

#include "cleave/Dialect/Graph/IR/TensorBytes.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "cleave/Dialect/Pipe/IR/Simulate.h"

namespace cleave::spmd {
struct Mesh;
} // namespace cleave::spmd

namespace cleave::pipe {

/// What is done, of one run or of several together.
struct Work {
  double flops = 0;
  /// Read and written; sent to other devices by collectives.
  double bytes = 0, sentBytes = 0;

  Work &operator+=(const Work &other) {
    flops += other.flops;
    bytes += other.bytes;
    sentBytes += other.sentBytes;
    return *this;
  }
};

/// What one device does in a second. The defaults are those of a few cores of a
/// server and of a network between such; their proportions decide how stages
/// are balanced and which schedule is fastest, and their sizes the seconds of a
/// timeline.
struct MachineModel {
  double flops = 1e11;
  /// Bytes of its memory, and those that it sends to another device.
  double memory = 2e10, link = 5e9;

  /// Reads `flops=1e11,memory=2e10,link=5e9`, of which what is left out stays
  /// as it is by default; on failure returns nothing and sets `error`.
  static std::optional<MachineModel> parse(llvm::StringRef text,
                                           std::string &error);

  double secondsOf(const Work &work) const {
    return work.flops / flops + work.bytes / memory + work.sentBytes / link;
  }
};

/// Of one op: nothing for a view.
Work workOf(mlir::Operation *op, const spmd::Mesh &mesh);
/// Of all ops of a part.
Work workOf(InvokeOp invoke, const spmd::Mesh &mesh);

/// What a part of one stage gives to another stage, for each run: the results
/// of `invoke` that parts of the stage `to` read.
llvm::SmallVector<unsigned> resultsReadBy(InvokeOp invoke, int64_t to);

/// The seconds that parts, in the order of `describeParts`, and what they send
/// other stages take. A sum over micro-batches, which is sent once, counts in
/// equal shares for each of them.
Costs costsOf(ProgramOp program, const spmd::Mesh &mesh,
              const MachineModel &machine);

/// Those that `text` has, of the form of `MeasuredCosts`; `from` is what
/// messages call the run. Located errors.
llvm::FailureOr<Costs> measuredCostsOf(ProgramOp program, llvm::StringRef text,
                                       llvm::StringRef from);

} // namespace cleave::pipe

#endif // CLEAVE_DIALECT_PIPE_TRANSFORMS_COSTS_H
