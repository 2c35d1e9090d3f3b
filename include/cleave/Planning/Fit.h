//===- Fit.h - What fits a memory limit -------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Questions that are answered by planning one compilation after another: the
/// largest micro-batch that fits a memory limit, and the fewest devices.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PLANNING_FIT_H
#define CLEAVE_PLANNING_FIT_H

#include "cleave/Pipelines/Compile.h"
#include "cleave/Reports/PlanFacts.h"

namespace cleave {

/// What is varied until a plan fits.
struct FitQuestion {
  enum class Kind : uint8_t { MicroBatch, Devices };
  Kind kind = Kind::MicroBatch;
  /// Of devices: the axis of the mesh that grows. Empty: the axis over which a
  /// recipe shards what rests between steps, else one over which a recipe
  /// shards features, else the first.
  std::string axis;
};

/// Parses `micro-batch`, `devices` or `devices:<axis>`.
std::optional<FitQuestion> parseFitQuestion(llvm::StringRef text);

/// The mesh has at most this many devices.
inline constexpr int64_t kMostFitDevices = 4096;

/// Plans `model`, a module in the model phase, with `options.memoryLimit` for
/// one number of micro-batches or mesh after another, until a plan fits.
///
/// The numbers of micro-batches are the divisors of the batch, upwards: a
/// micro-batch becomes smaller. The sizes of the axis are the one given and its
/// multiples by powers of 2 and, unless the axis shards features, the divisors
/// of the batch; growing ends when twice in turn a larger mesh needs no less.
///
/// The answer has the plans that were tried. Fails, with an error at the
/// module, if the question has no answer for this model and these options.
llvm::FailureOr<FitAnswer> findFit(mlir::ModuleOp model,
                                   const CompileOptions &options,
                                   const FitQuestion &question);

} // namespace cleave

#endif // CLEAVE_PLANNING_FIT_H
