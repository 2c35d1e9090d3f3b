//===- Fuzz.h - What is drawn and compared ----------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TOOLS_CLEAVE_FUZZ_FUZZ_H
#define CLEAVE_TOOLS_CLEAVE_FUZZ_FUZZ_H

#include "cleave/Testing/Phases.h"

namespace cleave {

/// What the flags say.
struct FuzzOptions {
  /// Of the first draw, and how many there are.
  uint64_t seed = 1;
  int64_t count = 100;
  /// Largest relative difference.
  double tolerance = 1e-9;
  /// Every n-th model is checked by finite differences; 0: none.
  int64_t differences = 10;
  /// The phases whose names begin so.
  std::string only;
  /// A module, and files of its inputs.
  std::string module, inputs;
  /// Of a module: how many options are drawn, and whether its batch is cut.
  int64_t arrangements = 4;
  bool oneMicroBatch = false;
  bool verbose = false;
};

/// A module and inputs of its entry.
struct GivenModule {
  mlir::OwningOpRef<mlir::ModuleOp> module;
  NamedTensors inputs;
};
/// Reads the files that `options` name; says what is wrong with them.
std::optional<GivenModule> readGiven(mlir::MLIRContext &context,
                                     const FuzzOptions &options);

// Each prints what was found, and returns the exit status: 0 when at least one
// comparison was made and none failed.

/// Runs random models in every phase of `phases` by the interpreter.
int fuzzModels(const mlir::DialectRegistry &registry,
               const std::vector<StepForm> &phases, const FuzzOptions &options);

/// Tests the sharding rules of the ops of a module, and of random models' steps
/// with both optimizers.
int checkRulesOfModule(mlir::MLIRContext &context, const FuzzOptions &options);
int checkRulesOfModels(mlir::MLIRContext &context, const FuzzOptions &options);

/// Moves tensors between random shardings on the interpreter's ranks.
int fuzzReshards(const mlir::DialectRegistry &registry,
                 const FuzzOptions &options);

/// Makes movements of a partitioned program wrong; 1 where one is found neither
/// by the verifier nor by its results.
int fuzzFaults(mlir::MLIRContext &context, const FuzzOptions &options);

/// Compares native code of random models, and of a module, with the
/// interpreter.
int fuzzNative(const mlir::DialectRegistry &registry,
               const FuzzOptions &options);
int fuzzNativeOfModule(mlir::MLIRContext &context, const FuzzOptions &options);

} // namespace cleave

#endif // CLEAVE_TOOLS_CLEAVE_FUZZ_FUZZ_H
