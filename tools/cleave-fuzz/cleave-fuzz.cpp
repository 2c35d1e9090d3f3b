//===- cleave-fuzz.cpp - Executes random models in every phase ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Interpreter/TensorFile.h"
#include "cleave/Pipelines/Register.h"
#include "cleave/Support/CommandLine.h"
#include "cleave/Testing/CheckReshard.h"
#include "cleave/Testing/Faults.h"
#include "cleave/Testing/Native.h"
#include "cleave/Testing/Phases.h"
#include "cleave/Testing/ShardingRules.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Parser/Parser.h"
#include "llvm/Support/CommandLine.h"
#include <cmath>
#include <map>

using namespace mlir;
using namespace cleave;
namespace cl = llvm::cl;

static cl::OptionCategory category("cleave-fuzz");
static cl::opt<uint64_t> firstSeed("seed", cl::desc("The first seed"),
                                   cl::init(1), cl::cat(category));
static cl::opt<int64_t> count("count", cl::desc("How many models"),
                              cl::init(100), cl::cat(category));
static cl::opt<double> tolerance("tolerance",
                                 cl::desc("Largest relative difference"),
                                 cl::init(1e-9), cl::cat(category));
static cl::opt<int64_t>
    differences("finite-differences",
                cl::desc("Check the gradients of every n-th model by finite "
                         "differences (0: none)"),
                cl::init(10), cl::cat(category));
static cl::opt<bool> emit("emit",
                          cl::desc("Print the first model, and run nothing"),
                          cl::cat(category));
static cl::opt<std::string>
    only("phase",
         cl::desc("Compare with the phases alone whose names begin so"),
         cl::cat(category));
static cl::opt<bool> listPhases("list-phases", cl::desc("Print the phases"),
                                cl::cat(category));
static cl::opt<std::string> rulesOf(
    "rules", cl::value_desc("module"),
    cl::desc("Test the sharding rule of each op of the entry `train` of "
             "a module, and print what was tested as JSON"),
    cl::cat(category));
static cl::opt<std::string> inputsFile("inputs", cl::value_desc("file"),
                                       cl::desc("With --rules, --native-of "
                                                "or --faults-of: its inputs; "
                                                "of the last, several files "
                                                "with commas between"),
                                       cl::cat(category));
static cl::opt<bool> randomRules("random-rules",
                                 cl::desc("Test the sharding rules of the ops "
                                          "of random models' steps"),
                                 cl::cat(category));
static cl::opt<bool>
    native("native",
           cl::desc("Compile random models to native code, and compare it with "
                    "the interpreter"),
           cl::cat(category));
static cl::opt<std::string>
    nativeOf("native-of", cl::value_desc("module"),
             cl::desc("The same with the model of a file, in several "
                      "arrangements; prints what was tested as JSON"),
             cl::cat(category));
static cl::opt<int64_t>
    arrangements("arrangements", cl::init(4),
                 cl::desc("With --native-of: how many options are drawn"),
                 cl::cat(category));
static cl::opt<bool>
    oneMicroBatch("one-micro-batch",
                  cl::desc("With --native-of: the batch is not cut"),
                  cl::cat(category));
static cl::opt<bool>
    reshards("reshards",
             cl::desc("Move tensors between random shardings of random meshes, "
                      "on the interpreter's ranks"),
             cl::cat(category));
static cl::opt<std::string>
    faultsOf("faults-of", cl::value_desc("module"),
             cl::desc("Make movements of the entry `train` of a module of the "
                      "local phase wrong, --count times, and print as JSON how "
                      "many the verifier rejects and how many give other "
                      "results"),
             cl::cat(category));
static cl::opt<bool> verbose("verbose", cl::desc("Print a line per model"),
                             cl::cat(category));

namespace {
/// What the run found.
struct Tally {
  int64_t models = 0, ops = 0, skipped = 0, failures = 0, checked = 0,
          padded = 0, cut = 0, cuts = 0;
  double worst = 0, worstDifference = 0;
};
} // namespace

/// Reports that model `seed` fails, and how to see it again.
static void report(uint64_t seed, const StepForm &phase, const Twine &what,
                   Tally &tally) {
  ++tally.failures;
  llvm::errs() << "seed " << seed << ", phase '" << phase.name << "' ("
               << phase.pipeline << "): " << what
               << "\n  cleave-fuzz --seed=" << seed << " --count=1 --phase='"
               << phase.name << "'\n";
}

/// A direction that crosses a kink gives a wrong difference: only a model whose
/// differences disagree in every one of several directions is wrong.
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

/// In typed mode, what is only arranged in another way has the same bits.
static void compareBits(uint64_t seed, const StepForm &phase,
                        const ReferenceResult &expected,
                        const ReferenceResult &actual, Tally &tally) {
  Difference difference = compareResults(expected, actual);
  if (difference.error != 0)
    report(seed, phase,
           "in typed mode '" + difference.name + "' has other bits", tally);
}

static void runModel(MLIRContext &context, uint64_t seed,
                     ArrayRef<StepForm> phases, Tally &tally) {
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
    if (!StringRef(phase.name).starts_with(only) && !isReference)
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
      Difference difference =
          compareResults(results.at(phase.expected), *result);
      if (!(difference.error <= tolerance))
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
  if (differences > 0 && seed % differences == 0 && graph.isDerivative)
    checkDifferences(graph, seed, phases[0], step, tally);
  if (verbose)
    llvm::outs() << "seed " << seed << ": loss "
                 << step.outputs.at("loss").floats[0] << "\n";
}

using RuleTallies = std::map<std::string, RuleTally>;

/// Prints what was tested, by op; returns the exit status.
static int printTallies(const RuleTallies &tallies) {
  llvm::json::Object ops;
  int64_t failures = 0;
  for (auto &[name, tally] : tallies) {
    ops[name] =
        llvm::json::Object{{"ops", tally.ops},     {"splits", tally.splits},
                           {"sums", tally.sums},   {"pads", tally.pads},
                           {"inner", tally.inner}, {"failures", tally.failures},
                           {"worst", tally.worst}};
    failures += tally.failures;
  }
  llvm::outs() << llvm::formatv("{0:2}", llvm::json::Value(std::move(ops)))
               << "\n";
  return failures || tallies.empty() ? 1 : 0;
}

/// Tests the rules of a module from a file.
static int checkRulesOfFile(MLIRContext &context) {
  OwningOpRef<ModuleOp> module =
      parseSourceFile<ModuleOp>(StringRef(rulesOf), &context);
  std::string error;
  auto inputs = readTensorFile(inputsFile, &context, error);
  if (!inputs)
    llvm::errs() << "error: " << error << "\n";
  RuleTallies tallies;
  if (!module || !inputs ||
      failed(checkShardingRules(*module, "train", *inputs, tallies)))
    return 1;
  return printTallies(tallies);
}

/// Tests the rules of the steps of random models, with both optimizers.
static int checkRulesOfModels(MLIRContext &context) {
  RuleTallies tallies;
  for (int64_t i = 0; i < count; ++i)
    for (const char *pipeline : {"graph-differentiate,graph-apply-optimizer",
                                 "graph-chunk-loss,graph-differentiate,graph-"
                                 "apply-optimizer{optimizer="
                                 "sgd momentum=0.9 max-grad-norm=0.1}"}) {
      RandomGraph graph = drawRandomGraph(&context, firstSeed + i, {});
      StepForm phase{"", pipeline};
      NamedTensors inputs;
      OwningOpRef<ModuleOp> module = lowerToPhase(graph, phase, inputs);
      if (!module ||
          failed(checkShardingRules(*module, phase.entry, inputs, tallies)))
        return 1;
    }
  return printTallies(tallies);
}

/// Random reshards; prints how many have what.
static int checkReshards(const DialectRegistry &registry) {
  int64_t failures = 0, subAxes = 0, severalAxes = 0, partial = 0, uneven = 0;
  for (int64_t i = 0; i < count;) {
    MLIRContext context(registry, MLIRContext::Threading::DISABLED);
    for (int64_t last = std::min<int64_t>(count, i + 500); i < last; ++i) {
      uint64_t seed = firstSeed + i;
      RandomReshard reshard = drawReshard(seed);
      subAxes += reshard.hasSubAxes();
      severalAxes += reshard.hasSeveralAxes();
      partial += reshard.isPartial();
      uneven += reshard.isUneven();
      std::string error = checkReshard(&context, reshard, seed);
      if (error.empty())
        continue;
      ++failures;
      llvm::errs() << "seed " << seed << ": " << error
                   << "\n  cleave-fuzz --reshards --count=1 --seed=" << seed
                   << "\n";
    }
  }
  llvm::outs() << count << " reshards, " << failures << " failures; " << subAxes
               << " with sub-axes, " << severalAxes
               << " with several axes on a dimension, " << partial
               << " from partial values, " << uneven << " of uneven sizes\n";
  return failures || count == 0 ? 1 : 0;
}

//===----------------------------------------------------------------------===//
// Faults
//===----------------------------------------------------------------------===//

namespace {
/// What became of the faults of one class.
struct FaultTally {
  int64_t drawn = 0, equivalent = 0, rejected = 0, unequal = 0;
};
} // namespace

/// Draws faults of a partitioned program; ends with 1 where one is found
/// neither by the verifier nor by its results.
static int runFaults(MLIRContext &context) {
  OwningOpRef<ModuleOp> module =
      parseSourceFile<ModuleOp>(StringRef(faultsOf), &context);
  if (!module)
    return 1;
  std::vector<NamedTensors> inputs;
  std::vector<ReferenceResult> expected;
  for (StringRef file : llvm::split(StringRef(inputsFile), ',')) {
    std::string error;
    auto tensors = readTensorFile(file, &context, error);
    if (!tensors) {
      llvm::errs() << "error: " << error << "\n";
      return 1;
    }
    auto result = Interpreter(*module, Precision::Exact).run("train", *tensors);
    if (failed(result))
      return 1;
    inputs.push_back(std::move(*tensors));
    expected.push_back(std::move(*result));
  }
  unsigned movements = countMovements(*module, "train");
  if (movements == 0) {
    llvm::errs() << "error: '" << faultsOf << "' has no movements in @train\n";
    return 1;
  }
  FaultTally tallies[kFaultClasses];
  int64_t missed = 0;
  for (int64_t i = 0; i < count; ++i) {
    Random random(firstSeed + i);
    auto fault = static_cast<FaultClass>(random.integer(0, kFaultClasses - 1));
    unsigned index = random.integer(0, movements - 1);
    std::string what;
    OwningOpRef<ModuleOp> faulty =
        injectFault(*module, "train", index, fault, random, what);
    if (!faulty)
      continue;
    FaultTally &tally = tallies[static_cast<unsigned>(fault)];
    ++tally.drawn;
    FaultVerdict verdict =
        judgeFault(*faulty, "train", inputs, expected, tolerance);
    tally.equivalent += verdict.equivalent;
    tally.rejected += !verdict.equivalent && verdict.rejected;
    tally.unequal += !verdict.equivalent && verdict.unequal;
    bool isMissed =
        !verdict.equivalent && !verdict.unequal && !verdict.rejected;
    missed += isMissed;
    if (verbose || isMissed)
      llvm::errs() << faultName(fault) << ": " << what << ": "
                   << (verdict.equivalent ? "equivalent"
                       : verdict.rejected ? "rejected"
                                          : "accepted")
                   << (verdict.unequal ? ", other results\n"
                                       : ", the same results\n");
  }
  llvm::json::Object classes;
  for (unsigned i = 0; i < kFaultClasses; ++i)
    classes[faultName(static_cast<FaultClass>(i))] =
        llvm::json::Object{{"drawn", tallies[i].drawn},
                           {"equivalent", tallies[i].equivalent},
                           {"rejected", tallies[i].rejected},
                           {"unequal", tallies[i].unequal}};
  llvm::outs() << llvm::formatv("{0:2}", llvm::json::Value(llvm::json::Object{
                                             {"movements", movements},
                                             {"missed", missed},
                                             {"classes", std::move(classes)}}))
               << "\n";
  return missed ? 1 : 0;
}

//===----------------------------------------------------------------------===//
// Native code
//===----------------------------------------------------------------------===//

namespace {
/// What the comparisons with native code found.
struct NativeTally {
  int64_t models = 0, notFinite = 0, unstable = 0, failures = 0;
  double worst = 0;
  std::map<std::string, int64_t> ops;
};
} // namespace

static void runNative(ModuleOp module, const NamedTensors &inputs,
                      NativeOptions options, const Twine &name,
                      NativeTally &tally) {
  if (verbose)
    llvm::errs() << name << ", " << options.text() << "\n";
  NativeOutcome outcome = compareNative(module, inputs, options);
  // A model may be too small to be cut: it runs as one stage.
  if (options.positions > 1 &&
      StringRef(outcome.message).contains("stages, and has only")) {
    options.positions = options.chunks = 1;
    options.threads = static_cast<int>(options.devices);
    outcome = compareNative(module, inputs, options);
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
    llvm::errs() << name << " (" << options.text() << "): " << outcome.message
                 << "\n";
    return;
  }
}

static int runNativeOfModels(const DialectRegistry &registry) {
  NativeTally tally;
  for (int64_t i = 0; i < count; ++i) {
    MLIRContext context(registry, MLIRContext::Threading::DISABLED);
    uint64_t seed = firstSeed + i;
    RandomGraph graph = drawRandomGraph(&context, seed, {});
    runNative(*graph.module, graph.inputs, NativeOptions::draw(seed),
              "seed " + Twine(seed), tally);
  }
  llvm::outs() << tally.models << " models agree, " << tally.notFinite
               << " not finite, " << tally.unstable << " unstable, "
               << tally.failures << " failures; largest difference "
               << llvm::format("%.2f", tally.worst) << " of what is allowed\n";
  return tally.failures || tally.models == 0 ? 1 : 0;
}

static int runNativeOfFile(MLIRContext &context) {
  OwningOpRef<ModuleOp> module =
      parseSourceFile<ModuleOp>(StringRef(nativeOf), &context);
  std::string error;
  auto inputs = readTensorFile(inputsFile, &context, error);
  if (!inputs)
    llvm::errs() << "error: " << error << "\n";
  if (!module || !inputs)
    return 1;
  NativeTally tally;
  for (int64_t i = 0; i < arrangements; ++i) {
    NativeOptions options = NativeOptions::draw(firstSeed + i);
    if (oneMicroBatch)
      options.microBatches = 1;
    // It may be too small to be cut into stages.
    options.positions = 1;
    // A module that says where it runs is not split again.
    if (!module->getOps<spmd::MeshOp>().empty()) {
      options.devices = 1;
      options.zero = 0;
    }
    runNative(*module, *inputs, options, nativeOf, tally);
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

int main(int argc, char **argv) {
  printVersionOf("cleave-fuzz");
  cl::HideUnrelatedOptions(category);
  cl::ParseCommandLineOptions(
      argc, argv,
      "Draws random models and executes them in every phase by the reference "
      "interpreter;\nloss, gradients and updates must agree. Ends with status "
      "1 "
      "when some do not.\n");
  DialectRegistry registry;
  registerAllDialects(registry);
  registerAllPasses();
  MLIRContext context(registry, MLIRContext::Threading::DISABLED);

  std::vector<StepForm> phases = allPhases();
  if (listPhases) {
    for (const StepForm &phase : phases)
      llvm::outs() << phase.name << ": " << phase.pipeline << "\n";
    return 0;
  }
  if (emit) {
    drawRandomGraph(&context, firstSeed, {}).module->print(llvm::outs());
    return 0;
  }
  if (llvm::none_of(phases, [](const StepForm &phase) {
        return StringRef(phase.name).starts_with(only);
      })) {
    llvm::errs() << "the name of no phase begins with '" << only
                 << "'; see --list-phases\n";
    return 2;
  }
  if (!rulesOf.empty())
    return checkRulesOfFile(context);
  if (native)
    return runNativeOfModels(registry);
  if (!nativeOf.empty())
    return runNativeOfFile(context);
  if (randomRules)
    return checkRulesOfModels(context);
  if (reshards)
    return checkReshards(registry);
  if (!faultsOf.empty())
    return runFaults(context);
  Tally tally;
  for (int64_t i = 0; i < count;) {
    // A context keeps all constants it has seen: a new one now and then.
    MLIRContext own(registry, MLIRContext::Threading::DISABLED);
    for (int64_t last = std::min<int64_t>(count, i + 50); i < last; ++i)
      runModel(own, firstSeed + i, phases, tally);
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
