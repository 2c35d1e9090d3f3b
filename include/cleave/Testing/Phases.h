//===- Phases.h - Executing one model in every phase ------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TESTING_PHASES_H
#define CLEAVE_TESTING_PHASES_H

#include "cleave/Testing/RandomGraph.h"

namespace cleave {

/// One form of a training step: the passes that make it from a model.
struct StepForm {
  std::string name;
  /// Passes as text, in the syntax of `--pass-pipeline`.
  std::string pipeline;
  /// The earlier phase whose results are expected of this one.
  std::string expected = "step";
  /// It executes the same ops in another arrangement: in typed mode, too, the
  /// results are the same, bit by bit.
  bool sameBits = false;
  std::string entry = "train";
  /// Micro-batches of a step on several devices: shardings are drawn, and
  /// `sharded` is run behind `pipeline`; 0 for a step on one device.
  int64_t shardedMicroBatches = 0;
  /// Of such a step: the stages of its pipeline; 0 for none.
  int64_t stages = 0;
  std::string sharded = "";
};

/// All phases that the interpreter can execute. The first is the bare gradient,
/// with which finite differences are compared.
std::vector<StepForm> allPhases();

/// The module that `phase` makes of the model, and `inputs` for its entry.
/// State starts at 0, `lr` is 0.01 and `step` 1. Null where a pass has failed.
mlir::OwningOpRef<mlir::ModuleOp> lowerToPhase(const RandomGraph &graph,
                                               const StepForm &phase,
                                               NamedTensors &inputs);

/// What a step that was executed has.
struct PhaseFacts {
  /// Whether an argument is padded.
  bool isPadded = false;
  /// The stages that compute some of forward.
  int64_t stages = 0;
};

/// The step that `phase` makes of the model, executed. A pass or an op that
/// fails has reported why.
llvm::FailureOr<ReferenceResult> runPhase(const RandomGraph &graph,
                                          const StepForm &phase,
                                          Precision precision,
                                          PhaseFacts *facts = nullptr);

/// The largest difference of loss, gradients and updated values between two
/// runs, relative to the norm of each (or to 1e-4 of that of all gradients),
/// and where it is.
struct Difference {
  double error = 0;
  std::string name;
};
Difference compareResults(const ReferenceResult &expected,
                          const ReferenceResult &actual);

/// Compares the derivative of the loss along a random direction in the space of
/// parameters with central differences: `|difference| / (|derivative| + 1e-3
/// |gradient| |direction|)`.
llvm::FailureOr<double> finiteDifferenceError(const RandomGraph &graph,
                                              const ReferenceResult &expected,
                                              Random &rng, double step);

} // namespace cleave

#endif // CLEAVE_TESTING_PHASES_H
