//===- Costs.h - How long parts take on a machine ---------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Costs of parts: estimates from shapes (the time of an op is that of its
/// flops and of the bytes that it reads, writes and sends), or costs measured
/// in a run.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_PIPE_TRANSFORMS_COSTS_H
#define CLEAVE_DIALECT_PIPE_TRANSFORMS_COSTS_H

#include "cleave/Dialect/Graph/IR/TensorBytes.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "cleave/Machines/MachineModel.h"
#include "cleave/Scheduling/Timeline/Simulate.h"

namespace cleave::spmd {
struct Mesh;
} // namespace cleave::spmd

namespace cleave::pipe {

using machines::MachineModel;
using machines::Work;

/// Returns the work of one op; zero for a view.
Work workOf(mlir::Operation *op, const spmd::Mesh &mesh);
/// Returns the work of all ops of a part.
Work workOf(InvokeOp invoke, const spmd::Mesh &mesh);

/// Returns the results of `invoke` that parts of the stage `to` read.
llvm::SmallVector<unsigned> resultsReadBy(InvokeOp invoke, int64_t to);

/// Estimates the seconds of parts, in the order of `describeParts`, and of the
/// transfers of their results to other stages. The transfer of a sum over
/// micro-batches, which happens once, is divided equally among them.
Costs costsOf(ProgramOp program, const spmd::Mesh &mesh,
              const MachineModel &machine);

/// Parses measured costs in the form of `MeasuredCosts`; `from` is the name of
/// the run for messages. Emits located errors.
llvm::FailureOr<Costs> measuredCostsOf(ProgramOp program, llvm::StringRef text,
                                       llvm::StringRef from);

} // namespace cleave::pipe

#endif // CLEAVE_DIALECT_PIPE_TRANSFORMS_COSTS_H
