//===- FindStepOptions.cpp - Options that a step's cost depends on --------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Pipe/Transforms/RecomputePolicy.h"
#include "cleave/Dialect/Spmd/Transforms/Recipes.h"
#include "cleave/Pipelines/ScheduleOptions.h"
#include "cleave/Planning/CostForms.h"
#include "cleave/Scheduling/Generators/Generators.h"

using namespace mlir;
using namespace cleave;
using closedforms::Axis;
using closedforms::Split;
using closedforms::StepOptions;

/// What options say that no form knows; empty if there is nothing.
static std::string findUnknown(const CompileOptions &options) {
  const PhaseOptions &phases = options.phases;
  PipelineShape shape = pipelineShape(phases);
  auto known = {"adamw", "sgd", "lion"};
  return !phases.compress.empty()       ? "compressed gradients"
         : phases.stageDensity          ? "compressed stages"
         : !phases.updateDelay.empty()  ? "delayed updates"
         : phases.grains                ? "a sum in grains"
         : phases.gradHorizon           ? "interlocking gradients"
         : !phases.prune.empty()        ? "pruned weights"
         : !phases.quantize.empty()     ? "quantized weights"
         : shape.asynchronous           ? "an asynchronous schedule"
         : phases.schedule == "auto"    ? "a schedule that is searched for"
         : !phases.scheduleText.empty() ? "a schedule written by hand"
         : !llvm::is_contained(known, phases.optimizer.rule)
             ? "the optimizer " + phases.optimizer.rule
             : "";
}

static Split splitOf(spmd::RecipeSplit split) {
  switch (split) {
  case spmd::RecipeSplit::Samples:
    return Split::Samples;
  case spmd::RecipeSplit::Features:
    return Split::Features;
  case spmd::RecipeSplit::Sequence:
    return Split::Sequence;
  case spmd::RecipeSplit::Resting:
    return Split::Nothing;
  }
  return Split::Nothing;
}

/// Reads the mesh and the recipes. Returns what no form knows of them.
static std::string readAxes(const PhaseOptions &phases, StepOptions &step) {
  auto axes = spmd::parseMesh(phases.mesh);
  auto plan = spmd::parsePlan(phases.recipes);
  if (!axes || !plan) {
    // Was said where it was given.
    if (!axes)
      llvm::consumeError(axes.takeError());
    if (!plan)
      llvm::consumeError(plan.takeError());
    return "this mesh and plan";
  }
  if (!plan->placements.empty())
    return "the placement " + plan->placements.front().str();
  int sequences = 0, trading = 0;
  for (const spmd::MeshAxis &known : *axes) {
    Axis axis;
    axis.name = known.name;
    axis.size = known.size;
    if (known.name == spmd::kPipelineAxis)
      axis.split = Split::Stages;
    else
      axis.split = splitOf(spmd::splitBy(plan->recipes, known.name));
    for (const spmd::RecipeCall &call : plan->recipes) {
      if (!llvm::is_contained(call.axes, known.name))
        continue;
      if (!closedforms::addRecipe(axis, call.name))
        return "the recipe " + call.name;
      // The axes of SUMMA are those of squares, rows and columns.
      axis.rows |= axis.isSumma() && axis.split == Split::Samples &&
                   call.axes[call.axes.size() - 2] == known.name;
    }
    bool sequence = axis.split == Split::Sequence && axis.size > 1;
    sequences += sequence;
    trading += sequence && axis.tradesHeads();
    step.axes.push_back(axis);
  }
  return sequences - trading > 1 || trading > 1
             ? "a sequence over several axes, other than heads over one and "
               "positions over another"
             : "";
}

/// Whether tokens are sent to nodes first, as --spmd-exchange-rows does:
/// experts are over the axis "node", and over others inside it.
static void readDispatch(const PhaseOptions &phases, StepOptions &step) {
  if (phases.expertDispatch == "flat")
    return;
  // In the order in which the dimension of experts is sharded.
  std::vector<Axis *> sending;
  for (const std::string &name : rowAxes(phases))
    for (Axis &axis : step.axes)
      if (axis.name == name && axis.size > 1 && axis.sendsRows())
        sending.push_back(&axis);
  if (sending.size() > 1 && sending.front()->name == "node")
    sending.front()->relays = true;
}

/// Reads the stages of a pipeline.
static void readStages(const PhaseOptions &phases, StepOptions &step) {
  std::optional<int64_t> positions = pipelineSize(phases.mesh);
  if (!positions || *positions < 2)
    return;
  std::string error;
  const scheduling::Generator *generator =
      phases.schedule.empty()
          ? scheduling::findGenerator("1f1b", error)
          : scheduling::findGenerator(phases.schedule, error);
  scheduling::StageMap map;
  if (generator)
    map.kind = generator->map;
  map.devices = *positions;
  if (map.kind == scheduling::StageMap::Kind::Bidirectional) {
    step.unknown = "a bidirectional schedule";
    return;
  }
  int64_t stages = countStages(phases);
  for (int64_t stage = 0; stage + 1 < stages; ++stage)
    step.boundaries += map.device(stage) != map.device(stage + 1);
  step.endsMeet = map.device(0) == map.device(stages - 1);
}

/// The shares of blocks that are computed again.
static void readRecompute(StringRef policy, double blocks, StepOptions &step) {
  std::string error;
  auto parsed = pipe::RecomputePolicy::parse(policy, error);
  if (!parsed)
    return;
  step.repeatsRegions = parsed->hasRegions();
  auto count = std::max<int64_t>(1, std::llround(blocks));
  for (int64_t block = 0; block < count; ++block) {
    const pipe::RecomputeChoice &choice = parsed->of(block);
    bool all = choice.full || choice.price > 0;
    step.fullShare += all ? 1.0 / count : 0;
    step.selectiveShare += choice.selective && !all ? 1.0 / count : 0;
  }
}

StepOptions cleave::findStepOptions(const CompileOptions &options,
                                    StringRef policy,
                                    const closedforms::ModelSizes &sizes) {
  const PhaseOptions &phases = options.phases;
  StepOptions step;
  step.unknown = findUnknown(options);
  if (!step.unknown.empty())
    return step;
  step.unknown = readAxes(phases, step);
  if (!step.unknown.empty())
    return step;
  readDispatch(phases, step);
  readStages(phases, step);
  readRecompute(policy, static_cast<double>(sizes.attentions.size()), step);
  step.microBatches = static_cast<double>(phases.microBatches);
  step.hasCopies = phases.precision != "f32";
  // Matmuls of 8 bits read 16-bit values, and these are on the wire
  // (Micikevicius et al., arXiv 2209.05433, section 3.1).
  if (step.hasCopies) {
    step.copyBytes = step.activationBytes = 2;
    step.gradientBytes = phases.gradientType == "f32" ? 4 : 2;
    step.streamBytes = phases.residual == "f32" ? 4 : 2;
    step.sumBytes = phases.roundsSums() && !phases.widensSums() ? 2 : 4;
  }
  // Of both factors and of the gradient of a matmul the largest magnitude, in
  // f32, from all ranks.
  if (phases.precision == "fp8")
    step.scaleBytes =
        3.0 * 2 * 4 * static_cast<double>(sizes.contractions.size());
  const graph::OptimizerOptions &optimizer = phases.optimizer;
  step.moments = optimizer.rule == "adamw"   ? 2
                 : optimizer.rule == "lion"  ? 1
                 : optimizer.get("momentum") ? 1
                                             : 0;
  step.fusedAttention = phases.fusedAttention;
  step.slicesSends = phases.pipeSlices != "off";
  step.gathersOnce =
      phases.pipeGather == "once" || pipelineShape(phases).gathersOnce;
  for (const Axis &axis : step.axes) {
    if (axis.experts && axis.size > 1 && sizes.mixtures.empty())
      step.unknown = "the recipe expert in a model without mixtures";
    if (axis.isSumma() && axis.size > 1 && !sizes.mixtures.empty())
      step.unknown = "the recipe " + axis.recipe + " in a mixture of experts";
  }
  if (sizes.stream() == 0)
    for (const Axis &axis : step.axes)
      if (axis.size > 1 &&
          (axis.split == Split::Features || axis.split == Split::Stages))
        step.unknown =
            "\"" + axis.name + "\" in a model without a residual stream";
  return step;
}
