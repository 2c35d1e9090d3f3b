//===- RunPhases.h - Executing one model in every phase ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TESTING_RUNPHASES_H
#define CLEAVE_TESTING_RUNPHASES_H

#include "cleave/Testing/RandomGraph.h"

namespace cleave {

/// One form of a training step: the passes that build it from a model.
struct StepForm {
  std::string name;
  /// Passes as text, in the syntax of `--pass-pipeline`.
  std::string pipeline;
  /// The earlier phase whose results this one must reproduce.
  std::string expected = "step";
  /// Whether it executes the same ops in another arrangement: the results are
  /// then equal bit by bit, also in typed mode.
  bool sameBits = false;
  std::string entry = "train";
  /// The micro-batches of a step on several devices: shardings are drawn, and
  /// `sharded` runs after `pipeline`; 0 for a step on one device.
  int64_t shardedMicroBatches = 0;
  /// For such a step, the number of pipeline stages; 0 for none.
  int64_t stages = 0;
  std::string sharded = "";
  /// Whether only the loss is that of `expected`: an update uses up the
  /// gradients.
  bool usesGradients = false;
};

/// All phases that the interpreter can execute. The first is the gradient
/// alone, with which finite differences are compared.
std::vector<StepForm> allPhases();

/// Builds the module of `phase` from the model, and `inputs` for its entry.
/// State starts at 0, `lr` is 0.01 and `step` 1. Null if a pass has failed.
mlir::OwningOpRef<mlir::ModuleOp> lowerToPhase(const RandomGraph &graph,
                                               const StepForm &phase,
                                               NamedTensors &inputs);

/// Features of an executed step.
struct PhaseFacts {
  /// Whether an argument is padded.
  bool isPadded = false;
  /// The number of stages that compute ops of forward.
  int64_t stages = 0;
};

/// Builds and executes the step of `phase`. A pass or an op that fails has
/// reported an error.
llvm::FailureOr<ReferenceResult> runPhase(const RandomGraph &graph,
                                          const StepForm &phase,
                                          Precision precision,
                                          PhaseFacts *facts = nullptr);

/// The largest difference of loss, gradients and updated values between two
/// runs, relative to the norm of each (or to 1e-4 of that of all gradients),
/// and the tensor that has it.
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

#endif // CLEAVE_TESTING_RUNPHASES_H
