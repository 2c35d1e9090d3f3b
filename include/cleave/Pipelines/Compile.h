//===- Compile.h - From a model to a program that runs ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// What `cleave-compile` and the Python module have in common.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PIPELINES_COMPILE_H
#define CLEAVE_PIPELINES_COMPILE_H

#include "cleave/Executable/Format/Program.h"
#include "cleave/Pipelines/Phases.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"
#include "llvm/Support/Error.h"
#include "llvm/Support/JSON.h"
#include <map>
#include <memory>
#include <set>

namespace cleave {

class PhaseTimes;

/// Settings of one parameter that differ from the optimizer's.
struct ParameterOptions {
  std::optional<double> weightDecay;
  std::optional<double> lrScale;
  /// The update rule; empty: the optimizer's.
  std::string rule;
  /// Other settings of the rule.
  graph::OptimizerSettings settings;
};

/// When a module is verified: not at all, after each phase, or after each pass,
/// which takes a fifth of the time of a plan and names the pass of an error.
enum class Verify : uint8_t { Never, Phases, Passes };

struct CompileOptions {
  PhaseOptions phases;
  /// By `graph.name`.
  std::map<std::string, ParameterOptions> parameters;
  /// What runs the program: "cpu" or "cuda".
  std::string target = "cpu";
  TargetTraits traits() const { return TargetTraits::of(target); }
  /// The architecture of the GPU, such as "sm_90".
  std::string architecture = "sm_90";
  /// Target processor; empty: the one this runs on.
  std::string cpu;
  /// Width of the target's vectors in bits; 0: what `cpu` has.
  int vectorBits = 0;
  /// The bytes that a device may need, what is outside of its arena included;
  /// 0: no limit. With `phases.recompute` "auto", what is recomputed follows.
  int64_t memoryLimit = 0;
  /// How the loss is scaled, with `phases.scalesLoss()`.
  runtime::LossScaling lossScaling;
  /// Up to so many bytes of reductions and gathers are merged; -1:
  /// as many as take the least time on the machine.
  int64_t bucketBytes = -1;
  /// That limit where it does not depend on the program: the size of chunks of
  /// activations is chosen before there is one.
  std::optional<int64_t> fixedBucketBytes() const {
    if (bucketBytes < 0 && phases.collectiveChunks <= 1)
      return std::nullopt;
    return bucketBytes < 0 ? int64_t(1) << 20 : bucketBytes;
  }
  /// The GPU that a step is predicted for (see Planning/PredictStep.h); none if
  /// empty.
  std::string predict;
  /// The folder that the module of each phase is written to (see DumpPhases.h);
  /// none if empty.
  std::string dumpPhases;
  /// "off", or whether the time of "phases" or also of "passes" is printed.
  std::string timePhases = "off";
  /// Where that is measured; null if it is not.
  std::shared_ptr<PhaseTimes> times;
  /// Whether a plan that is dearer than its closed form is refused (see
  /// Planning/CostForms.h).
  bool checkCost = false;
  /// When the module is verified.
  Verify verify = Verify::Phases;
  /// The options of the table that were given, by name.
  std::set<std::string> given;
};

/// Reads and checks options from the JSON object that the Python module passes:
/// those of the table (see Options.h) with underscores (`micro_batches`),
/// `optimizer` and `parameters`. An unknown key is an error.
llvm::Expected<CompileOptions> parseCompileOptions(llvm::StringRef json);

/// Writes the settings of parameters as attributes of the arguments. Reports,
/// at the module's location, names that no entry has.
llvm::LogicalResult
annotateParameters(mlir::ModuleOp module,
                   const std::map<std::string, ParameterOptions> &parameters);

/// Decides what follows from the target, and `own.phases.recompute` where it is
/// "default".
void settleTarget(CompileOptions &own);

/// Takes `module` to `phase` from the one before.
llvm::LogicalResult runOnePhase(mlir::ModuleOp module, Phase phase,
                                const CompileOptions &options);

/// Gives `module` the contents of `other`.
void takeContents(mlir::ModuleOp module, mlir::ModuleOp other);

/// The program of each position of the pipeline, and the object file of their
/// kernels: code of the processor, or data that hold the code of a device.
struct CompiledProgram {
  std::vector<runtime::Program> positions;
  std::string object;
};

} // namespace cleave

#endif // CLEAVE_PIPELINES_COMPILE_H
