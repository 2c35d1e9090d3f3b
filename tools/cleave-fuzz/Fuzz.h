//===- Fuzz.h - What is drawn and compared ----------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TOOLS_CLEAVE_FUZZ_FUZZ_H
#define CLEAVE_TOOLS_CLEAVE_FUZZ_FUZZ_H

#include "cleave/Testing/RunPhases.h"

namespace cleave {

/// The values of the flags.
struct FuzzOptions {
  /// The seed of the first draw, and the number of draws.
  uint64_t seed = 1;
  int64_t count = 100;
  /// The largest relative difference allowed.
  double tolerance = 1e-9;
  /// Every n-th model is checked by finite differences; 0: none.
  int64_t differences = 10;
  /// The prefix of the names of the phases to compare.
  std::string only;
  /// A module, and files of its inputs.
  std::string module, inputs;
  /// Options of a step as JSON, and those that it is planned by.
  std::string stepOptions = "{}", plannedOptions = "{}";
  /// For a module: the number of options drawn, and whether its batch is split.
  int64_t arrangements = 4;
  bool oneMicroBatch = false;
  bool verbose = false;
};

/// A module and inputs of its entry.
struct GivenModule {
  mlir::OwningOpRef<mlir::ModuleOp> module;
  NamedTensors inputs;
};
/// Reads the files that `options` name; returns an error message.
std::optional<GivenModule> readGiven(mlir::MLIRContext &context,
                                     const FuzzOptions &options);

// Each function prints its findings and returns the exit status: 0 if at least
// one comparison was made and none failed.

/// Runs random models in every phase of `phases` by the interpreter.
int fuzzModels(const mlir::DialectRegistry &registry,
               const std::vector<StepForm> &phases, const FuzzOptions &options);

/// Runs random models with random options of a step by the interpreter.
int fuzzDrawn(const mlir::DialectRegistry &registry,
              const FuzzOptions &options);

/// Plans random models with random options as they are and with all keys of
/// reports renamed.
int fuzzKeys(const mlir::DialectRegistry &registry, const FuzzOptions &options);

/// Prints the drawn options, and the passes that they run; compiles nothing.
int listDrawn(const mlir::DialectRegistry &registry,
              const FuzzOptions &options);

/// Tests the sharding rules of the ops of a module, and of random models' steps
/// with both optimizers.
int checkRulesOfModule(mlir::MLIRContext &context, const FuzzOptions &options);
int checkRulesOfModels(mlir::MLIRContext &context, const FuzzOptions &options);

/// Reshards tensors between random shardings on the interpreter's ranks.
int fuzzReshards(const mlir::DialectRegistry &registry,
                 const FuzzOptions &options);

/// Makes collectives of a partitioned program wrong; 1 if a fault is found
/// neither by the verifier nor by its results.
int fuzzFaults(mlir::MLIRContext &context, const FuzzOptions &options);

/// Makes plans of a model dearer, each in one way, and prints what
/// `--check-cost` says of each.
int fuzzCost(mlir::MLIRContext &context, const FuzzOptions &options);

/// Makes parts of drawn pipelines read copies that their positions do not
/// update; 1 if there was no program.
int fuzzReaders(const mlir::DialectRegistry &registry,
                const FuzzOptions &options);

/// Compares native code of random models, and of a module, with the
/// interpreter.
int fuzzNative(const mlir::DialectRegistry &registry,
               const FuzzOptions &options);
int fuzzNativeOfModule(mlir::MLIRContext &context, const FuzzOptions &options);

} // namespace cleave

#endif // CLEAVE_TOOLS_CLEAVE_FUZZ_FUZZ_H
