//===- FuzzModels.cpp - Random models in every phase ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Fuzz.h"
#include "mlir/IR/Verifier.h"
#include "llvm/Support/FormatVariadic.h"
#include <cmath>
#include <map>

using namespace mlir;
using namespace cleave;

namespace {
/// The findings of the run.
struct Tally {
  int64_t models = 0, ops = 0, skipped = 0, failures = 0, checked = 0,
          padded = 0, cut = 0, cuts = 0;
  double worst = 0, worstDifference = 0;
};
} // namespace

/// Reports that model `seed` fails, and how to reproduce it.
static void report(uint64_t seed, const StepForm &phase, const Twine &what,
                   Tally &tally) {
  ++tally.failures;
  llvm::errs() << "seed " << seed << ", phase '" << phase.name << "' ("
               << phase.pipeline << "): " << what
               << "\n  cleave-fuzz --seed=" << seed << " --count=1 --phase='"
               << phase.name << "'\n";
}

/// A direction that crosses a kink gives a wrong difference: a model is wrong
/// only if the differences disagree in each of several directions.
static void checkDifferences(const RandomGraph &graph, uint64_t seed,
                             const StepForm &phase,
                             const ReferenceResult &expected, Tally &tally) {
  Random rng(seed + 1);
  double best = INFINITY;
  for (double step : {1e-5, 1e-6, 1e-7, 1e-6}) {
    FailureOr<double> error = finiteDifferenceError(graph, expected, rng, step);
    if (failed(error))
      return report(seed, phase, "the moved model fails", tally);
    best = std::min(best, *error);
    if (best <= 1e-5)
      break;
  }
  ++tally.checked;
  tally.worstDifference = std::max(tally.worstDifference, best);
  if (!(best <= 1e-5))
    report(seed, phase,
           "finite differences disagree by " + Twine(std::to_string(best)),
           tally);
}

static bool isFinite(const ReferenceResult &result) {
  auto finite = [](const NamedTensors &tensors) {
    return llvm::all_of(tensors, [](auto &entry) {
      return llvm::all_of(entry.second.floats,
                          [](double x) { return std::isfinite(x); });
    });
  };
  return finite(result.outputs) && finite(result.published);
}

/// In typed mode, a phase that only arranges ops differently has the same bits.
static void compareBits(uint64_t seed, const StepForm &phase,
                        const ReferenceResult &expected,
                        const ReferenceResult &actual, Tally &tally) {
  Difference difference = compareResults(expected, actual);
  if (difference.error != 0)
    report(seed, phase,
           "in typed mode '" + difference.name + "' has different bits", tally);
}

static void runModel(MLIRContext &context, uint64_t seed,
                     ArrayRef<StepForm> phases, const FuzzOptions &options,
                     Tally &tally) {
  RandomGraph graph = drawRandomGraph(&context, seed, {});
  if (failed(verify(*graph.module)))
    return report(seed, phases[0], "the model is not valid", tally);
  std::map<std::string, ReferenceResult> results, typedResults;
  bool isPadded = false;
  int64_t cuts = 0;
  for (const StepForm &phase : phases) {
    bool isReference = llvm::any_of(phases, [&](const StepForm &other) {
      return other.expected == phase.name;
    });
    if (!StringRef(phase.name).starts_with(options.only) && !isReference)
      continue;
    PhaseFacts facts;
    auto result = runPhase(graph, phase, Precision::Exact, &facts);
    isPadded |= facts.isPadded;
    if (failed(result)) {
      report(seed, phase, "fails", tally);
      if (isReference)
        return;
      continue;
    }
    if (results.empty()) {
      if (!isFinite(*result)) {
        ++tally.skipped;
        return;
      }
    } else {
      const ReferenceResult &wanted = results.at(phase.expected);
      Difference difference =
          phase.usesGradients
              ? compareResults({{{"loss", wanted.outputs.at("loss")}}, {}},
                               *result)
              : compareResults(wanted, *result);
      if (!(difference.error <= options.tolerance))
        report(seed, phase,
               "'" + difference.name + "' differs by " +
                   Twine(llvm::formatv("{0:e}", difference.error).str()),
               tally);
      tally.worst = std::max(tally.worst, difference.error);
      cuts += facts.stages > 1;
    }
    if (isReference)
      results.emplace(phase.name, std::move(*result));
    if (isReference || phase.sameBits) {
      auto typed = runPhase(graph, phase, Precision::Typed);
      if (failed(typed))
        report(seed, phase, "fails in typed mode", tally);
      else if (phase.sameBits)
        compareBits(seed, phase, typedResults.at(phase.expected), *typed,
                    tally);
      else
        typedResults.emplace(phase.name, std::move(*typed));
    }
  }
  ++tally.models;
  tally.padded += isPadded;
  tally.cut += cuts > 0;
  tally.cuts += cuts;
  graph.module->walk([&](Operation *op) {
    tally.ops += isa_and_nonnull<func::FuncOp>(op->getParentOp());
  });
  const ReferenceResult &step = results.at(phases[0].name);
  if (options.differences > 0 && seed % options.differences == 0 &&
      graph.isDerivative)
    checkDifferences(graph, seed, phases[0], step, tally);
  if (options.verbose)
    llvm::outs() << "seed " << seed << ": loss "
                 << step.outputs.at("loss").floats[0] << "\n";
}

int cleave::fuzzModels(const DialectRegistry &registry,
                       const std::vector<StepForm> &phases,
                       const FuzzOptions &options) {
  Tally tally;
  for (int64_t i = 0; i < options.count;) {
    // A context keeps all constants: use a new one from time to time.
    MLIRContext own(registry, MLIRContext::Threading::DISABLED);
    for (int64_t last = std::min<int64_t>(options.count, i + 50); i < last; ++i)
      runModel(own, options.seed + i, phases, options, tally);
  }
  llvm::outs() << tally.models << " models of "
               << (tally.models ? tally.ops / tally.models : 0)
               << " ops on average, " << phases.size() << " phases, "
               << tally.padded << " padded for their devices, " << tally.cut
               << " cut into stages in " << tally.cuts << " ways, "
               << tally.skipped << " skipped (not finite), " << tally.failures
               << " failures; largest difference "
               << llvm::format("%.1e", tally.worst) << "; " << tally.checked
               << " checked by finite differences, within "
               << llvm::format("%.1e", tally.worstDifference) << "\n";
  return tally.failures || tally.models == 0 ? 1 : 0;
}
