//===- RunPhases.cpp - Executing one model in every phase -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Testing/RunPhases.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "cleave/Testing/RandomShardings.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassRegistry.h"
#include <cmath>

using namespace mlir;
using namespace cleave;

/// A placeholder in a pipeline for a number of thousandths drawn from a model's
/// seed.
static constexpr StringLiteral kDrawnCut = "<drawn>";

/// A step with an update, of which the model's loss is known before.
static StepForm updating(StringRef name, StringRef pipeline) {
  StepForm form{name.str(), pipeline.str()};
  form.usesGradients = true;
  return form;
}

/// Adds stages of a pipeline with random boundaries.
static void addStages(std::vector<StepForm> &phases, const std::string &adamw,
                      const std::string &clipped) {
  for (int64_t stages : {2, 3, 5}) {
    std::string number = std::to_string(stages), cuts;
    for (int64_t i = 1; i < stages; ++i)
      cuts += (i > 1 ? "," : "") + std::string(kDrawnCut);
    auto staged = [&](StringRef microBatches) {
      return (",spmd-apply-recipes{mesh=pp=" + number +
              "},spmd-seed-shardings{micro-batches=" + microBatches +
              "},spmd-propagate,spmd-partition,spmd-verify,pipe-split-stages{"
              "at=" +
              cuts + "},pipe-recompute,pipe-schedule,pipe-verify")
          .str();
    };
    phases.push_back(
        {number + " stages 1", "graph-differentiate" + staged("1"), "step"});
    phases.push_back(
        {number + " stages 2", "graph-differentiate" + staged("2"), "step"});
    phases.push_back(
        {number + " stages adamw 1",
         "graph-chunk-loss," + adamw + ",canonicalize,cse" + staged("1"),
         "adamw"});
    phases.push_back({number + " stages clipped sgd 2",
                      clipped + ",canonicalize,cse" + staged("2"),
                      "clipped sgd"});
    // Backward in two parts.
    std::string split = staged("4");
    split.insert(split.find("at="), "split-backward=true ");
    StringRef schedule = "pipe-schedule";
    split.insert(split.find(schedule) + schedule.size(), "{kind=zb-h1}");
    phases.push_back(
        {number + " stages split 4", "graph-differentiate" + split, "step"});
  }
}

/// Adds steps on several devices: each argument gets a random sharding.
static void addShards(std::vector<StepForm> &phases, const std::string &adamw,
                      const std::string &clipped) {
  for (int64_t microBatches : {1, 2}) {
    std::string number = std::to_string(microBatches);
    auto add = [&](const char *name, const std::string &pipeline,
                   const char *expected) {
      StepForm form{"sharded " + (name + number), pipeline, expected};
      form.shardedMicroBatches = microBatches;
      form.sharded = "spmd-seed-shardings{micro-batches=" + number +
                     "},spmd-pad,spmd-propagate,spmd-partition,spmd-verify";
      if (expected != StringRef("step"))
        form.sharded += ",spmd-optimize-collectives,spmd-verify";
      phases.push_back(form);
    };
    add("", "graph-differentiate", "step");
    add("adamw ", "graph-chunk-loss," + adamw + ",canonicalize,cse", "adamw");
    add("clipped sgd ", clipped + ",canonicalize,cse", "clipped sgd");
  }
}

/// Adds the same in stages, which send values that ranks share in slices, or
/// whole with a global norm.
static void addShardedStages(std::vector<StepForm> &phases,
                             const std::string &adamw,
                             const std::string &clipped) {
  struct Staged {
    const char *slices;
    std::string pipeline;
    const char *expected;
    int64_t stages, microBatches;
  };
  for (const Staged &own :
       {Staged{"auto", "graph-differentiate", "step", 2, 2},
        Staged{"on", "graph-chunk-loss," + adamw + ",canonicalize,cse", "adamw",
               3, 1},
        Staged{"off", clipped + ",canonicalize,cse", "clipped sgd", 3, 2}}) {
    StepForm form{std::string("sharded stages ") + own.slices, own.pipeline,
                  own.expected};
    form.stages = own.stages;
    form.shardedMicroBatches = own.microBatches;
    std::string cuts = kDrawnCut.str();
    for (int64_t i = 2; i < own.stages; ++i)
      cuts += "," + kDrawnCut.str();
    form.sharded = "spmd-seed-shardings{micro-batches=" +
                   std::to_string(own.microBatches) +
                   "},spmd-pad,spmd-propagate,spmd-partition,"
                   "spmd-optimize-collectives,spmd-verify,pipe-split-stages{"
                   "at=" +
                   cuts + " slices=" + own.slices +
                   "},pipe-recompute,pipe-schedule,pipe-verify";
    phases.push_back(form);
  }
}

std::vector<StepForm> cleave::allPhases() {
  // A gradient that is zero up to rounding (of a query that has one key) is
  // divided by nearly `eps`: with 1e-8, the update would show the rounding.
  std::string adamw = "graph-differentiate,graph-apply-optimizer{eps=1e-4}";
  std::string clipped = "graph-differentiate,graph-apply-optimizer{optimizer="
                        "sgd momentum=0.9 max-grad-norm=0.1}";
  std::vector<StepForm> phases = {
      {"step", "graph-differentiate"},
      {"canonical step", "graph-differentiate,canonicalize,cse"},
      {"canonical model", "canonicalize,cse,graph-differentiate"},
      {"chunked loss", "graph-chunk-loss,graph-differentiate"},
      updating("adamw", adamw),
      {"canonical adamw", adamw + ",canonicalize,cse", "adamw"},
      updating("clipped sgd", clipped),
  };
  // A step of several micro-batches, each on one shard.
  for (int64_t microBatches : {1, 2, 4}) {
    std::string number = std::to_string(microBatches);
    std::string place =
        ",spmd-seed-shardings{micro-batches=" + number + "},spmd-propagate";
    std::string local = place + ",spmd-partition,spmd-verify";
    bool one = microBatches == 1;
    phases.push_back(
        {"placed " + number, "graph-differentiate" + place, "step", true});
    phases.push_back(
        {"local " + number, "graph-differentiate" + local, "step", one});
    phases.push_back({"local adamw " + number,
                      "graph-chunk-loss," + adamw + ",canonicalize,cse" + local,
                      "adamw"});
    phases.push_back({"local clipped sgd " + number,
                      clipped + ",canonicalize,cse" + local, "clipped sgd"});
    std::string split = local + ",pipe-split-stages";
    std::string schedule = ",pipe-schedule,pipe-verify";
    phases.push_back({"scheduled " + number,
                      "graph-differentiate" + split + schedule, "step", one});
    phases.push_back(
        {"recomputed " + number,
         "graph-differentiate" + split + ",pipe-recompute" + schedule, "step",
         one});
    phases.push_back(
        {"scheduled adamw " + number,
         adamw + ",canonicalize,cse" + split + ",pipe-recompute" + schedule,
         "adamw"});
    phases.push_back({"scheduled clipped sgd " + number,
                      "graph-chunk-loss," + clipped + ",canonicalize,cse" +
                          split + ",pipe-recompute" + schedule,
                      "clipped sgd"});
  }
  addStages(phases, adamw, clipped);
  addShards(phases, adamw, clipped);
  addShardedStages(phases, adamw, clipped);
  return phases;
}

/// Runs passes without printing remarks. Sets `stale`, and prints nothing,
/// where a cut of stages is refused because it parts a read of a written buffer
/// from what writes it.
static LogicalResult runPipeline(ModuleOp module, StringRef pipeline,
                                 bool &stale) {
  PassManager manager(module->getName());
  std::string message;
  llvm::raw_string_ostream os(message);
  if (failed(parsePassPipeline(pipeline, manager, os)))
    return module->emitError() << message;
  ScopedDiagnosticHandler handler(
      module.getContext(), [&](Diagnostic &diagnostic) {
        stale |= StringRef(diagnostic.str()).contains("keep its initial value");
        return success(stale ||
                       diagnostic.getSeverity() == DiagnosticSeverity::Remark);
      });
  return manager.run(module);
}

/// Adds a value for each argument of the entry that the model does not have.
static void addStepInputs(FunctionOpInterface function, NamedTensors &inputs) {
  for (unsigned i = 0, e = function.getNumArguments(); i < e; ++i) {
    auto name = function.getArgAttrOfType<StringAttr>(i, graph::kNameAttr);
    auto type = dyn_cast<RankedTensorType>(function.getArgumentTypes()[i]);
    if (!name || !type || inputs.count(name.str()))
      continue;
    RefTensor tensor(type);
    if (name == "lr")
      tensor.floats[0] = 0.01;
    if (name == "loss_scale")
      tensor.floats[0] = 8.0;
    if (name == "step")
      tensor.ints[0] = 1;
    inputs[name.str()] = std::move(tensor);
  }
}

/// The same with cuts that `random` draws, each for itself or, if `together`,
/// one for all: stages between are then without ops.
static OwningOpRef<ModuleOp> lowerOnce(const RandomGraph &graph,
                                       const StepForm &phase,
                                       NamedTensors &inputs, Random &random,
                                       bool together, bool &stale) {
  OwningOpRef<ModuleOp> module = graph.module.get().clone();
  std::string pipeline = phase.pipeline, sharded = phase.sharded;
  int64_t all = random.integer(0, 1000);
  for (std::string *text : {&pipeline, &sharded})
    for (size_t at; (at = text->find(kDrawnCut.str())) != std::string::npos;)
      text->replace(at, kDrawnCut.size(),
                    std::to_string(together ? all : random.integer(0, 1000)));
  if (failed(runPipeline(*module, pipeline, stale)))
    return nullptr;
  inputs = graph.inputs;
  if (auto function = dyn_cast_or_null<FunctionOpInterface>(
          SymbolTable::lookupSymbolIn(*module, phase.entry)))
    addStepInputs(function, inputs);
  if (phase.shardedMicroBatches) {
    RandomShardingOptions options;
    options.microBatches = phase.shardedMicroBatches;
    // Half of them are divisible.
    options.uneven = graph.seed % 2 ? 0.5 : 0;
    options.stages = phase.stages;
    drawShardings(*module, phase.entry, graph.seed, options);
    if (failed(runPipeline(*module, sharded, stale)))
      return nullptr;
  }
  return module;
}

OwningOpRef<ModuleOp> cleave::lowerToPhase(const RandomGraph &graph,
                                           const StepForm &phase,
                                           NamedTensors &inputs) {
  Random random(graph.seed);
  constexpr int mostDraws = 64;
  for (int i = 0; i < mostDraws; ++i) {
    bool stale = false;
    OwningOpRef<ModuleOp> module =
        lowerOnce(graph, phase, inputs, random, i >= mostDraws / 2, stale);
    if (module || !stale)
      return module;
  }
  graph.module.get().emitError("no legal cut of stages was drawn");
  return nullptr;
}

static PhaseFacts factsOf(FunctionOpInterface function) {
  PhaseFacts facts;
  for (unsigned i = 0, e = function.getNumArguments(); i < e; ++i)
    facts.isPadded |= function.getArgAttr(i, graph::kValidShapeAttr) != nullptr;
  llvm::DenseSet<int64_t> stages;
  function.walk([&](pipe::InvokeOp invoke) {
    if (invoke.getPart() == "F")
      stages.insert(invoke.getStage());
  });
  facts.stages = stages.size();
  return facts;
}

FailureOr<ReferenceResult> cleave::runPhase(const RandomGraph &graph,
                                            const StepForm &phase,
                                            Precision precision,
                                            PhaseFacts *facts) {
  NamedTensors inputs;
  OwningOpRef<ModuleOp> module = lowerToPhase(graph, phase, inputs);
  if (!module)
    return failure();
  auto function = module->lookupSymbol<FunctionOpInterface>(phase.entry);
  if (facts && function)
    *facts = factsOf(function);
  return Interpreter(*module, precision).run(phase.entry, inputs);
}

static double norm(const RefTensor &tensor) {
  double sum = 0;
  for (double x : tensor.floats)
    sum += x * x;
  return std::sqrt(sum);
}

/// The norm of all gradients together.
static double gradientNorm(const ReferenceResult &result) {
  double sum = 0;
  for (auto &[name, tensor] : result.published)
    sum += norm(tensor) * norm(tensor);
  return std::sqrt(sum);
}

Difference cleave::compareResults(const ReferenceResult &expected,
                                  const ReferenceResult &actual) {
  Difference worst;
  auto note = [&](double error, StringRef name) {
    // A difference that is NaN is the worst, whatever follows.
    if (!std::isnan(worst.error) && !(error <= worst.error))
      worst = {error, name.str()};
  };
  auto compare = [&](const NamedTensors &left, const NamedTensors &right,
                     double floor) {
    for (auto &[name, tensor] : left) {
      auto it = right.find(name);
      if (it == right.end()) {
        note(std::nan(""), name + ", which is missing");
        continue;
      }
      if (tensor.shape != it->second.shape) {
        note(std::nan(""), name);
        continue;
      }
      double sum = 0;
      for (auto [a, b] : llvm::zip_equal(tensor.floats, it->second.floats))
        sum += (a - b) * (a - b);
      for (auto [a, b] : llvm::zip_equal(tensor.ints, it->second.ints))
        sum += a != b;
      note(std::sqrt(sum) / std::max({norm(tensor), floor, 1e-12}), name);
    }
  };
  double floor = 1e-4 * gradientNorm(expected);
  compare(expected.outputs, actual.outputs, floor);
  compare(expected.published, actual.published, floor);
  return worst;
}

FailureOr<double> cleave::finiteDifferenceError(const RandomGraph &graph,
                                                const ReferenceResult &expected,
                                                Random &rng, double step) {
  NamedTensors moved[2] = {graph.inputs, graph.inputs};
  double derivative = 0, length = 0;
  for (auto &[name, gradient] : expected.published)
    for (int64_t i = 0, e = gradient.size(); i < e; ++i) {
      double direction = rng.normal();
      derivative += direction * gradient.floats[i];
      length += direction * direction;
      moved[0][name].floats[i] += step * direction;
      moved[1][name].floats[i] -= step * direction;
    }
  double losses[2];
  for (int side : {0, 1}) {
    auto result =
        Interpreter(*graph.module, Precision::Exact).run("loss", moved[side]);
    if (failed(result))
      return failure();
    losses[side] = result->outputs.at("loss").floats[0];
  }
  double difference = (losses[0] - losses[1]) / (2 * step) - derivative;
  return std::fabs(difference) /
         (std::fabs(derivative) +
          1e-3 * gradientNorm(expected) * std::sqrt(length) + 1e-12);
}
