//===- FuzzNative.cpp - Native code against the interpreter ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Fuzz.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Dialect/Spmd/Transforms/Recipes.h"
#include "cleave/Testing/DrawnOptions.h"
#include "cleave/Testing/Native.h"
#include "llvm/Support/FormatVariadic.h"
#include <map>

using namespace mlir;
using namespace cleave;

namespace {
/// The findings of the comparisons with native code.
struct NativeTally {
  int64_t models = 0, notFinite = 0, unstable = 0, failures = 0;
  double worst = 0;
  std::map<std::string, int64_t> ops;
};
} // namespace

/// The number of ranks of the drawn mesh.
static int ranksOf(const CompileOptions &options) {
  int64_t ranks = 1;
  for (const spmd::MeshAxis &axis :
       llvm::cantFail(spmd::parseMesh(options.phases.mesh)))
    ranks *= axis.size;
  return static_cast<int>(ranks);
}

static void runNative(ModuleOp module, const NamedTensors &inputs,
                      CompileOptions native, const Twine &name, bool verbose,
                      NativeTally &tally) {
  if (verbose)
    llvm::errs() << name << ", " << givenText(native) << "\n";
  NativeOutcome outcome = compareNative(module, inputs, native);
  // A model may be too small to be split: it runs as one stage.
  if (StringRef(outcome.message).contains("stages: it has only")) {
    dropStages(native);
    native.phases.threads = ranksOf(native);
    outcome = compareNative(module, inputs, native);
  }
  // The drawn options may not be possible in backward.
  if (StringRef(outcome.message)
          .contains("optimizer fusion into backward is not possible")) {
    native.phases.optimizerFusion = "auto";
    outcome = compareNative(module, inputs, native);
  }
  for (auto &[op, count] : outcome.ops)
    tally.ops[op] += count;
  switch (outcome.kind) {
  case NativeOutcome::Kind::Equal:
    ++tally.models;
    tally.worst = std::max(tally.worst, outcome.worst);
    return;
  case NativeOutcome::Kind::NotFinite:
    ++tally.notFinite;
    return;
  case NativeOutcome::Kind::Unstable:
    ++tally.unstable;
    if (verbose)
      llvm::errs() << name << " is unstable: " << outcome.message << "\n";
    return;
  case NativeOutcome::Kind::Different:
    ++tally.failures;
    llvm::errs() << name << " (" << givenText(native)
                 << "): " << outcome.message << "\n";
    return;
  }
}

int cleave::fuzzNative(const DialectRegistry &registry,
                       const FuzzOptions &options) {
  NativeTally tally;
  for (int64_t i = 0; i < options.count; ++i) {
    MLIRContext context(registry, MLIRContext::Threading::DISABLED);
    uint64_t seed = options.seed + i;
    RandomGraph graph = drawRandomGraph(&context, seed, {});
    runNative(*graph.module, graph.inputs, drawNativeOptions(seed),
              "seed " + Twine(seed), options.verbose, tally);
  }
  llvm::outs() << tally.models << " models agree, " << tally.notFinite
               << " not finite, " << tally.unstable << " unstable, "
               << tally.failures << " failures; largest difference "
               << llvm::format("%.2f", tally.worst) << " of the tolerance\n";
  return tally.failures || tally.models == 0 ? 1 : 0;
}

int cleave::fuzzNativeOfModule(MLIRContext &context,
                               const FuzzOptions &options) {
  std::optional<GivenModule> given = readGiven(context, options);
  if (!given)
    return 1;
  NativeTally tally;
  for (int64_t i = 0; i < options.arrangements; ++i) {
    CompileOptions native = drawNativeOptions(options.seed + i);
    if (options.oneMicroBatch) {
      native.phases.microBatches = 1;
      native.phases.grains = 0;
    }
    // It may be too small to be split into stages.
    dropStages(native);
    // A module with a mesh of its own is not sharded again.
    if (!given->module->getOps<spmd::MeshOp>().empty()) {
      native.phases.mesh.clear();
      native.phases.recipes.clear();
    }
    runNative(*given->module, given->inputs, native, options.module,
              options.verbose, tally);
  }
  llvm::json::Object ops;
  for (auto &[name, number] : tally.ops)
    ops[name] = number;
  llvm::outs() << llvm::formatv("{0:2}", llvm::json::Value(llvm::json::Object{
                                             {"agree", tally.models},
                                             {"not_finite", tally.notFinite},
                                             {"unstable", tally.unstable},
                                             {"failures", tally.failures},
                                             {"worst", tally.worst},
                                             {"ops", std::move(ops)}}))
               << "\n";
  return tally.failures || tally.models == 0 ? 1 : 0;
}
