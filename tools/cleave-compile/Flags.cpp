//===- Flags.cpp - The command line of cleave-compile ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Flags.h"
#include "PrecisionPatterns.h"
#include "cleave/Dialect/Graph/Transforms/Pruning.h"
#include "cleave/Dialect/Graph/Transforms/UpdateDelay.h"
#include "cleave/Dialect/Pipe/Transforms/RecomputePolicy.h"
#include "cleave/Dialect/Spmd/Transforms/Compression.h"
#include "cleave/Dialect/Spmd/Transforms/Recipes.h"
#include "cleave/Pipelines/MeasureMachine.h"
#include "cleave/Pipelines/PredictStep.h"
#include "cleave/Pipelines/ScheduleOptions.h"
#include "cleave/Reports/Reports.h"
#include "cleave/Scheduling/Generators/Generators.h"
#include "cleave/Target/CPU/CodeGen.h"
#include "cleave/Target/CUDA/CompileCuda.h"
#include "llvm/Support/MathExtras.h"
#include <thread>

using namespace mlir;
using namespace cleave;

cl::OptionCategory cleave::general("General");
cl::OptionCategory cleave::training("Training step");
cl::OptionCategory cleave::target("Target");

void cleave::listRecipes(raw_ostream &os) {
  os << "recipe         axes           splits\n";
  for (const spmd::RecipeInfo &info : spmd::recipeTable()) {
    std::string axes;
    for (const spmd::RecipeAxis &axis : info.axes)
      axes += (axes.empty() ? "" : ",") + axis.name.str();
    os << llvm::formatv("{0,-14} {1,-14} {2}\n", info.name, axes, info.summary);
  }
}

std::string cleave::describeSchedules() {
  std::string names;
  for (const scheduling::Generator &generator : scheduling::generators())
    names += generator.name.str() +
             (generator.name == "1f1b" ? " (the default), " : ", ");
  return "The order of a pipeline: " + names +
         "or auto, which searches for the fastest. --schedule=help says more";
}

void cleave::listSchedules(raw_ostream &os) {
  os << "schedule     stages of a position\n";
  for (const scheduling::Generator &generator : scheduling::generators())
    os << llvm::formatv("{0,-12} {1,-9}  {2}\n", generator.name,
                        generator.chunks ? std::to_string(generator.chunks)
                                         : "2 or more",
                        generator.description);
  os << "auto         --chunks   the fastest by the estimated costs of the "
        "stages, within --max-saved-mib\n"
        "Saved values are counted in micro-batches of even stages, m of them, "
        "on p positions.\nIn bytes, those with a split backward (";
  std::string split;
  for (const scheduling::Generator &generator : scheduling::generators())
    if (generator.split)
      split += generator.name.str() + ", ";
  os << split
     << "auto) save more for each:\nalso what the gradients of weights (W) "
        "need "
        "of those of inputs (I).\n";
}

/// Why the schedule is invalid; empty if it is valid.
static std::string checkScheduleFlags(const Flags &flags) {
  if (!flags.schedule.empty() && !flags.scheduleFile.empty())
    return "--schedule and --schedule-file exclude each other";
  if (!isPipeSlices(flags.pipeSlices))
    return "--pipe-slices is auto, on or off, not '" + flags.pipeSlices + "'";
  if (flags.memoryLimit.getNumOccurrences() && flags.memoryLimit <= 0)
    return "--memory-limit must be positive";
  if (flags.recompute.getNumOccurrences() && !flags.recomputeFile.empty())
    return "--recompute and --recompute-file exclude each other";
  if (std::string error; flags.recompute != "auto" &&
                         flags.recompute.getNumOccurrences() &&
                         !pipe::RecomputePolicy::parse(flags.recompute, error))
    return "--recompute: " + error;
  if (flags.maxStaleness.getNumOccurrences() && flags.maxStaleness < 0)
    return "--max-staleness must not be negative";
  if (!flags.pipeGather.empty() && !isPipeGather(flags.pipeGather))
    return "--pipe-gather is each, once or auto, not '" + flags.pipeGather +
           "'";
  if (!flags.scheduleFormat.empty() &&
      !parseScheduleFormat(flags.scheduleFormat))
    return "--schedule-format is text, svg or perfetto, not '" +
           flags.scheduleFormat + "'";
  for (const cl::Option *flag :
       {static_cast<const cl::Option *>(&flags.scheduleFormat),
        static_cast<const cl::Option *>(&flags.measured)})
    if (flag->getNumOccurrences() && flags.emit != "schedule")
      return ("--" + flag->ArgStr + " needs --emit=schedule").str();
  // The schedule of a file is checked after it has been read.
  PhaseOptions options;
  options.schedule = flags.schedule;
  auto machine = readMachine(flags.machine);
  if (!machine)
    return "--machine: " + llvm::toString(machine.takeError());
  options.machine = *machine;
  options.mesh = flags.mesh;
  options.grains = flags.deterministic;
  options.optimizer.maxGradNorm = flags.clip;
  options.optimizerFusion = flags.optimizerFusion;
  options.checkFinite = flags.checkFinite == "on";
  options.precision = flags.precision;
  options.pipeGather = flags.pipeGather;
  if (flags.scheduleFile.empty())
    options.maxStaleness = flags.maxStaleness;
  std::string mistake = checkSchedule(options);
  return mistake.empty() ? mistake : "--" + mistake;
}

/// Why the flags of the target are invalid; empty if they are valid.
static std::string checkTarget(const Flags &flags) {
  bool cuda = flags.targetName == "cuda";
  if (!cuda && flags.targetName != "cpu")
    return "--target is cpu or cuda, not '" + flags.targetName + "'";
  if (std::string mistake = checkArchitecture(flags.architecture);
      !mistake.empty())
    return "--arch: " + mistake;
  if (!cuda && flags.architecture.getNumOccurrences() && flags.emit != "cuda")
    return "--arch is of --target cuda";
  if (cuda)
    for (const cl::Option *flag :
         {static_cast<const cl::Option *>(&flags.cpu),
          static_cast<const cl::Option *>(&flags.vectorBits),
          static_cast<const cl::Option *>(&flags.threads)})
      if (flag->getNumOccurrences())
        return ("--" + flag->ArgStr + " is of --target cpu").str();
  if (cuda && flags.emit == "llvm")
    return "--emit=llvm is of --target cpu; --emit=cuda shows the kernels";
  return "";
}

/// Why the mesh or the recipes are invalid; empty if they are valid.
static std::string checkMesh(const Flags &flags) {
  auto axes = spmd::parseMesh(flags.mesh);
  if (!axes)
    return "--mesh: " + llvm::toString(axes.takeError());
  auto plan = spmd::parsePlan(flags.recipe);
  if (!plan)
    return "--recipe: " + llvm::toString(plan.takeError());
  for (const spmd::RecipeCall &call : plan->recipes)
    for (const std::string &bound : call.axes)
      if (llvm::none_of(*axes, [&](const spmd::MeshAxis &axis) {
            return axis.name == bound;
          }))
        return "--recipe: '" + call.name + "' is bound to axis \"" + bound +
               "\", which --mesh does not have";
  return {};
}

/// Of flags that `checkLossScale` has accepted.
static runtime::LossScaling readLossScaling(const Flags &flags) {
  runtime::LossScaling scaling;
  double constant = 0;
  if (!StringRef(flags.lossScale).getAsDouble(constant)) {
    scaling.dynamic = false;
    scaling.initial = static_cast<float>(constant);
    scaling.minimum = std::min(scaling.initial, scaling.minimum);
    return scaling;
  }
  scaling.initial = static_cast<float>(flags.lossScaleInit);
  scaling.minimum = static_cast<float>(flags.lossScaleMin);
  scaling.window = flags.lossScaleWindow;
  scaling.hysteresis = flags.lossScaleHysteresis;
  return scaling;
}

static std::string checkLossScale(const Flags &flags) {
  const llvm::cl::Option *all[] = {&flags.lossScale, &flags.lossScaleInit,
                                   &flags.lossScaleMin, &flags.lossScaleWindow,
                                   &flags.lossScaleHysteresis};
  for (const llvm::cl::Option *option : all)
    if (option->getNumOccurrences() && flags.precision != "fp16")
      return "--" + option->ArgStr.str() +
             " needs --precision fp16: other types do not scale the loss";
  double constant = 0;
  bool dynamic = flags.lossScale == "dynamic";
  if (!dynamic && StringRef(flags.lossScale).getAsDouble(constant))
    return "--loss-scale is dynamic or a number, not '" + flags.lossScale + "'";
  for (const llvm::cl::Option *option : ArrayRef(all).drop_front())
    if (!dynamic && option->getNumOccurrences())
      return "--" + option->ArgStr.str() +
             " is a setting of --loss-scale dynamic";
  std::string why = readLossScaling(flags).problem();
  return why.empty() ? why : "--loss-scale: " + why;
}

std::string cleave::checkFlags(const Flags &flags) {
  if (std::string mistake = checkOptimizerFlags(flags); !mistake.empty())
    return mistake;
  if (!isOptimizerFusion(flags.optimizerFusion))
    return "--optimizer-fusion is auto, none, backward or forward, not '" +
           flags.optimizerFusion + "'";
  if (std::string why = offloadProblem(flags.offload); !why.empty())
    return "--offload: " + why;
  if (flags.checkFinite != "on" && flags.checkFinite != "off")
    return "--check-finite is on or off, not '" + flags.checkFinite + "'";
  if (!isPrecision(flags.precision))
    return "--precision is f32, bf16, fp16 or fp8, not '" + flags.precision +
           "'";
  for (const llvm::cl::Option *option :
       {static_cast<const llvm::cl::Option *>(&flags.fp8History),
        static_cast<const llvm::cl::Option *>(&flags.fp8Margin)})
    if (option->getNumOccurrences() && flags.precision != "fp8")
      return "--" + option->ArgStr.str() +
             " needs --precision fp8: other types have no scales of tensors";
  if (flags.fp8History < 1)
    return "--fp8-history is the number of steps whose maxima decide a scale, "
           "at least 1";
  if (flags.fp8Margin < 0 || flags.fp8Margin > 100)
    return "--fp8-margin is a power of two, 0 to 100";
  if (!flags.precisionPolicy.empty()) {
    if (flags.precision == "f32")
      return "--precision-policy needs --precision bf16 or fp16: all ops are "
             "computed in f32 without";
    if (auto policy = PrecisionPatterns::read(flags.precisionPolicy); !policy)
      return "--precision-policy: " + llvm::toString(policy.takeError());
  }
  if (!isActivationReduction(flags.activationReduction))
    return "--activation-reduction is auto, f32, products or 16bit, not '" +
           flags.activationReduction + "'";
  if (!isMergeProducts(flags.mergeProducts))
    return "--merge-products is auto, on or off, not '" + flags.mergeProducts +
           "'";
  if (flags.mergeProducts == "on" && flags.precision == "f32")
    return "--merge-products on needs --precision bf16 or fp16: weights in f32 "
           "are not copied";
  if (flags.compress.getNumOccurrences())
    if (std::string why = spmd::compressionProblem(flags.compress);
        !why.empty())
      return "--compress: " + why;
  if (flags.updateDelay.getNumOccurrences())
    if (std::string why = graph::updateDelayProblem(flags.updateDelay);
        !why.empty())
      return "--update-delay: " + why;
  if (flags.compressOver.getNumOccurrences() &&
      !flags.compress.getNumOccurrences())
    return "--compress-over needs --compress";
  if (flags.compressStages.getNumOccurrences())
    if (std::string why = densityProblem(flags.compressStages); !why.empty())
      return "--compress-stages " + why;
  if (flags.prune.getNumOccurrences())
    if (std::string why = graph::pruningProblem(flags.prune); !why.empty())
      return "--prune: " + why;
  if (flags.quantize.getNumOccurrences())
    if (std::string why = graph::quantizationProblem(flags.quantize);
        !why.empty())
      return "--quantize: " + why;
  if (!isSavePrecision(flags.savePrecision))
    return "--save-precision is f32, bf16, fp16 or fp8, not '" +
           flags.savePrecision + "'";
  if (!isResidual(flags.residual))
    return "--residual is 16bit or f32, not '" + flags.residual + "'";
  if (flags.residual.getNumOccurrences() && flags.precision == "f32")
    return "--residual needs --precision bf16 or fp16: all values are f32 "
           "without";
  bool narrow = flags.activationReduction == "16bit" ||
                flags.activationReduction == "products";
  if (narrow && flags.precision == "f32")
    return "--activation-reduction needs --precision bf16 or fp16: all sums "
           "are f32 without";
  if (narrow && flags.precision == "fp8")
    return "--activation-reduction " + flags.activationReduction +
           " needs --precision bf16 or fp16: sums of products of 8 bits are "
           "f32";
  if (flags.gradientType == "fp8" || !isPrecision(flags.gradientType))
    return "--gradient-dtype is f32, bf16 or fp16, not '" + flags.gradientType +
           "'";
  if (!isGradientType(flags.gradientType, flags.precision))
    return "--gradient-dtype " + flags.gradientType + " needs --precision " +
           flags.gradientType +
           ": a gradient is f32, or of the type that contractions read";
  if (std::string mistake = checkLossScale(flags); !mistake.empty())
    return mistake;
  if (flags.fusedAttention != "on" && flags.fusedAttention != "off")
    return "--fused-attention is on or off, not '" + flags.fusedAttention + "'";
  if (flags.maxLogitsBytes < 1)
    return "--max-logits-mib must be positive";
  if (flags.collectiveChunkBytes.getNumOccurrences() &&
      !flags.collectiveChunks.getNumOccurrences())
    return "--collective-chunk-kib needs --collective-chunks";
  for (const cl::opt<int64_t> *flag :
       {&flags.microBatches, &flags.threads, &flags.chunks, &flags.gradHorizon,
        &flags.collectiveChunks})
    if (flag->getNumOccurrences() && *flag < 1)
      return ("--" + flag->ArgStr + " must be positive").str();
  if (std::string mistake = checkMesh(flags); !mistake.empty())
    return mistake;
  if (std::string mistake = checkScheduleFlags(flags); !mistake.empty())
    return mistake;
  if (std::string mistake = checkFitFlags(flags); !mistake.empty())
    return mistake;
  for (const cl::Option *flag :
       {static_cast<const cl::Option *>(&flags.modules),
        static_cast<const cl::Option *>(&flags.head)})
    if (flag->getNumOccurrences() && !flags.gradHorizon.getNumOccurrences())
      return ("--" + flag->ArgStr + " needs --grad-horizon").str();
  if (flags.deterministic < 0 ||
      (flags.deterministic && !llvm::isPowerOf2_64(flags.deterministic)))
    return "--deterministic must be a power of 2";
  if (flags.deterministic && (flags.microBatches.getNumOccurrences() ||
                              flags.threads.getNumOccurrences()))
    return "--deterministic divides the batch into grains and one thread "
           "computes each: leave out --micro-batches and --threads";
  if (flags.threads > runtime::Program::kMaxThreads)
    return ("--threads is at most " +
            llvm::Twine(runtime::Program::kMaxThreads))
        .str();
  if (auto known = CpuTarget::get(flags.cpu, flags.vectorBits); !known)
    return llvm::toString(known.takeError());
  if (std::string mistake = checkTarget(flags); !mistake.empty())
    return mistake;
  bool shown = flags.emit == "llvm" || flags.emit == "cuda" ||
               flags.emit == "schedule" || flags.emit == "memory";
  if (!flags.emit.empty() && !shown && !parsePhase(flags.emit))
    return "--emit is model, step, placed, local, scheduled, executable, llvm, "
           "cuda, schedule or memory, not '" +
           flags.emit + "'";
  if (flags.explain.getNumOccurrences() && !parseDetail(flags.explain))
    return "--explain is summary, layers, full or memory, not '" +
           flags.explain + "'";
  if (!flags.emit.empty() && !flags.explain.empty())
    return "--explain is of an artifact: it excludes --emit";
  if (!flags.predict.empty() && flags.targetName != "cuda")
    return "--predict is of --target cuda";
  if (!flags.predict.empty() &&
      !llvm::is_contained(predictedDevices(), StringRef(flags.predict)))
    return "--predict is h200, h100 or a100, not '" + flags.predict + "'";
  if (flags.planOnly && (!flags.output.empty() || !flags.emit.empty()))
    return "--plan-only generates no code: it excludes -o and --emit";
  if (flags.emit.empty() && flags.output.empty() && flags.reportFile.empty() &&
      flags.explain.empty() && !flags.planOnly && flags.fit.empty() &&
      flags.measureMachine.empty())
    return "nothing to write: give -o, --emit, --report, --explain, "
           "--plan-only, --fit or --measure-machine";
  if (flags.emit.empty() && flags.output == "-")
    return "an artifact cannot be written to standard output";
  if (!flags.emit.empty() && flags.emit != "schedule" &&
      !flags.reportFile.empty())
    return "--report needs an artifact: it excludes --emit";
  return "";
}

std::vector<std::string> cleave::flagsOutOfPlace(const Flags &flags) {
  std::vector<std::string> found;
  if (pipelineSize(flags.mesh))
    return found;
  // Modules may begin where stages do.
  bool modules = flags.gradHorizon.getNumOccurrences();
  for (const cl::Option *flag : std::initializer_list<const cl::Option *>{
           &flags.schedule, &flags.chunks, &flags.stages, &flags.pipeSlices,
           &flags.maxSavedBytes})
    if (flag->getNumOccurrences() && !(modules && flag == &flags.stages))
      found.push_back(("--" + flag->ArgStr +
                       " needs a pipeline, and --mesh has no axis \"" +
                       spmd::kPipelineAxis + "\"")
                          .str());
  return found;
}

CompileOptions cleave::collectOptions(const Flags &flags,
                                      const std::string &scheduleText) {
  CompileOptions options;
  options.phases.optimizer.rule = flags.optimizer;
  // Its mistakes are found by checkFlags.
  (void)flags.settings.read(options.phases.optimizer.settings);
  options.phases.optimizer.maxGradNorm = flags.clip;
  options.phases.optimizerFusion = flags.optimizerFusion;
  options.phases.checkFinite = flags.checkFinite == "on";
  options.phases.precision = flags.precision;
  options.phases.fp8History = flags.fp8History;
  options.phases.fp8Margin = flags.fp8Margin;
  options.phases.residual = flags.residual;
  options.lossScaling = readLossScaling(flags);
  options.phases.savePrecision = flags.savePrecision;
  options.phases.activationReduction = flags.activationReduction;
  options.phases.mergeProducts = flags.mergeProducts;
  options.phases.compress = flags.compress;
  options.phases.compressOver = flags.compressOver;
  if (flags.compressStages.getNumOccurrences())
    options.phases.stageDensity = flags.compressStages;
  options.phases.prune = flags.prune;
  options.phases.quantize = flags.quantize;
  options.phases.updateDelay = flags.updateDelay;
  options.phases.gradientType = flags.gradientType;
  options.phases.postValidation = flags.postValidation;
  options.phases.offload = flags.offload;
  options.phases.microBatches = flags.microBatches;
  options.phases.grains = flags.deterministic;
  options.phases.mesh = flags.mesh;
  options.phases.stages = flags.stages;
  options.phases.schedule = flags.schedule;
  options.phases.chunks = flags.chunks;
  options.phases.pipeSlices = flags.pipeSlices;
  options.phases.fusedAttention = flags.fusedAttention == "on";
  // A limit asks for what fits it.
  bool chosen = flags.recompute.getNumOccurrences();
  options.phases.recompute =
      !chosen && flags.memoryLimit > 0 ? "auto" : flags.recompute.getValue();
  options.memoryLimit = flags.memoryLimit;
  options.phases.maxStaleness = flags.maxStaleness;
  options.phases.pipeGather = flags.pipeGather;
  options.phases.scheduleText = scheduleText;
  options.phases.scheduleFile = flags.scheduleFile;
  // Its mistakes are found by checkFlags.
  if (auto machine = readMachine(flags.machine))
    options.phases.machine = std::move(*machine);
  else
    llvm::consumeError(machine.takeError());
  if (flags.maxSavedBytes.getNumOccurrences())
    options.phases.maxSavedBytes = flags.maxSavedBytes;
  options.phases.gradHorizon = flags.gradHorizon;
  options.phases.modules = flags.modules;
  options.phases.head = flags.head;
  options.phases.recipes = flags.recipe;
  // Each chunk reads and writes the gradient of the head's weight: a GPU would
  // do little else.
  options.phases.maxLogitsBytes =
      flags.targetName == "cuda" && !flags.maxLogitsBytes.getNumOccurrences()
          ? int64_t(1) << 30
          : int64_t(flags.maxLogitsBytes);
  // Scratch memory of a GPU does not depend on threads of the host.
  options.phases.threads =
      flags.deterministic || flags.targetName == "cuda" ? 1
      : flags.threads                                   ? flags.threads
                      : std::max(1u, std::thread::hardware_concurrency());
  options.bucketBytes = flags.bucketBytes;
  options.phases.collectiveChunks = flags.collectiveChunks;
  options.phases.collectiveChunkBytes = flags.collectiveChunkBytes;
  options.target = flags.targetName;
  options.architecture = flags.architecture;
  options.predict = flags.predict;
  options.cpu = flags.cpu;
  options.vectorBits = flags.vectorBits;
  return options;
}
