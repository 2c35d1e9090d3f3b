//===- Phases.cpp - The phases of compilation -----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Pipelines/Phases.h"
#include "cleave/Conversion/Passes.h"
#include "cleave/Dialect/Exec/Transforms/Passes.h"
#include "cleave/Dialect/Graph/IR/Attributes/ChosenPrecision.h"
#include "cleave/Dialect/Graph/Transforms/Passes.h"
#include "cleave/Dialect/Graph/Transforms/Pruning.h"
#include "cleave/Dialect/Graph/Transforms/UpdateDelay.h"
#include "cleave/Dialect/Pipe/Transforms/Passes.h"
#include "cleave/Dialect/Spmd/Transforms/Compression.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "cleave/Dialect/Spmd/Transforms/Recipes.h"
#include "cleave/Pipelines/RaiseModel.h"
#include "cleave/Pipelines/ScheduleOptions.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Transforms/Passes.h"

using namespace mlir;
using namespace cleave;

static constexpr StringLiteral phaseNames[] = {
    "model", "step", "placed", "local", "scheduled", "executable"};

StringRef cleave::phaseName(Phase phase) {
  return phaseNames[static_cast<size_t>(phase)];
}

std::optional<Phase> cleave::parsePhase(StringRef name) {
  for (auto [i, known] : llvm::enumerate(phaseNames))
    if (name == known)
      return static_cast<Phase>(i);
  return std::nullopt;
}

/// The simplifications that every phase begins from: folds, and each value
/// computed once.
static void addCleanup(OpPassManager &passes) {
  static graph::KeepPrecision keep;
  GreedyRewriteConfig config;
  config.setListener(&keep);
  passes.addPass(createCanonicalizerPass(config));
  passes.addPass(createCSEPass());
}

/// The optimizer, with the checks of the step.
static graph::OptimizerOptions optimizerOf(const PhaseOptions &phases) {
  graph::OptimizerOptions result = phases.optimizer;
  result.checkFinite = phases.checkFinite;
  result.scaleLoss = phases.scalesLoss();
  return result;
}

/// Heads behind modules: those that are named, or the stages.
static graph::InterlockOptions interlockOptions(const PhaseOptions &options) {
  graph::InterlockOptions result;
  result.horizon = options.gradHorizon;
  result.head = options.head;
  result.modules = !options.modules.empty() ? options.modules
                   : !options.stages.empty()
                       ? options.stages
                       : llvm::utostr(countStages(options));
  return result;
}

/// Where stages begin. Modules that are named and as many are the stages.
static std::string stageNames(const PhaseOptions &options) {
  int64_t number = 0;
  StringRef modules = options.modules;
  if (!options.stages.empty() || options.gradHorizon == 0 || modules.empty() ||
      !modules.getAsInteger(10, number) ||
      static_cast<int64_t>(modules.count(',')) + 2 != countStages(options))
    return options.stages;
  return options.modules;
}

/// The bytes of a chunk of f32 logits. Beside it, mixed precision holds its
/// gradient in 16 bits, where f32 overwrites the logits.
static int64_t chunkBytes(const PhaseOptions &options) {
  return options.precision == "f32" ? options.logitsBytes()
                                    : options.logitsBytes() / 3 * 2;
}

/// The parts of the batch. That of an asynchronous schedule is one of them.
static int64_t placedMicroBatches(const PhaseOptions &options) {
  return pipelineShape(options).asynchronous ? 1 : options.microBatches;
}

/// What the front end wrote, by whole ops.
static void addModel(OpPassManager &passes) {
  addRaise(passes);
  passes.addPass(graph::createVerifyModel());
}

/// Forward, backward and update on whole tensors.
static void addStep(OpPassManager &passes, const PhaseOptions &options) {
  // Before differentiation, so that its gradient is not one op either.
  if (!options.fusedAttention)
    passes.addPass(graph::createUnfuseAttention());
  // Differentiation copies what it finds: a slice of a linear that becomes a
  // smaller linear here is small in backward too.
  addCleanup(passes);
  // Gradients have the order of what they are gradients of. Grains, whose sums
  // have the same bits on every mesh, are those of the model's order.
  if (options.grains == 0) {
    spmd::OrderSamplesOptions order;
    order.mesh = options.mesh;
    order.recipes = options.recipes;
    order.microBatches = placedMicroBatches(options);
    passes.addPass(spmd::createOrderSamples(order));
  }
  passes.addPass(graph::createGuardIndices());
  // Heads of a fused projection can only be placed where they are a dimension.
  // The slices of a norm by grains are those of the shape, with a mesh and
  // without.
  if (!options.mesh.empty() || options.grains > 0)
    passes.addPass(graph::createFactorParameters());
  graph::DifferentiateOptions differentiate;
  // After weights have their shapes: those of other heads are alike.
  if (options.gradHorizon != 0) {
    graph::InterlockOptions interlock = interlockOptions(options);
    differentiate.entry = interlock.target;
    differentiate.dropEntry = true;
    passes.addPass(graph::createInterlock(interlock));
  }
  // Its gradients are those of what is sent.
  if (options.stageDensity) {
    pipe::CompressStagesOptions compress;
    compress.density = *options.stageDensity;
    compress.count = countStages(options);
    compress.stages = options.stages;
    compress.machine = options.machine;
    // The residual stream is chosen from, and sent, in its own type.
    if (options.precision != "f32")
      compress.precision = options.residual == "f32" ? "f32" : "16bit";
    compress.keepWhole = pipelineShape(options).asynchronous;
    passes.addPass(pipe::createCompressStages(compress));
  }
  passes.addPass(graph::createDifferentiate(differentiate));
  addCleanup(passes);
  passes.addPass(graph::createApplyOptimizerWith(optimizerOf(options)));
  // While tensors are whole: what is kept between steps is sharded as other
  // state is.
  if (!options.updateDelay.empty()) {
    graph::DelayUpdatesOptions delay;
    delay.delay = options.updateDelay;
    passes.addPass(graph::createDelayUpdates(delay));
  }
  // Behind the update, and before it is sharded: a mask is sharded as its
  // parameter.
  if (!options.prune.empty()) {
    graph::PruneOptions prune;
    prune.prune = options.prune;
    passes.addPass(graph::createPrune(prune));
  }
  // The entry without randomness is made from the plain loss, so that the head
  // is joined with its loss in both by the one pass that follows. Nothing runs
  // the plain loss itself: it ends here.
  graph::DeriveEvaluateOptions evaluate;
  evaluate.dropEntry = true;
  passes.addPass(graph::createDeriveEvaluate(evaluate));
  // Of all entries alike. After differentiation, which would find no gradient
  // of rounding; before a head is one op with its loss.
  if (!options.quantize.empty()) {
    graph::QuantizeOptions quantize;
    quantize.type = options.quantize;
    passes.addPass(graph::createQuantize(quantize));
  }
  graph::ChunkLossOptions chunk;
  chunk.maxChunkBytes = chunkBytes(options);
  // The caches of a processor decide where rows end; on a GPU only bytes do.
  if (options.target.isGpu())
    chunk.maxChunkRows = int64_t(1) << 20;
  passes.addPass(graph::createChunkLoss(chunk));
  // Of all entries alike, so that evaluation sees the values of training.
  if (options.precision != "f32") {
    graph::MixedPrecisionOptions mixed;
    // What is not in 8 bits is in bf16.
    bool scaled = options.precision == "fp8";
    mixed.precision = scaled ? "bf16" : options.precision;
    mixed.keepChosen = scaled;
    mixed.wideResidual = options.residual == "f32";
    mixed.roundSums = options.roundsSums();
    mixed.roundGradients = options.gradientType != "f32";
    passes.addPass(graph::createMixedPrecision(mixed));
    if (scaled) {
      graph::ScaleToFp8Options fp8;
      fp8.history = options.fp8History;
      fp8.margin = options.fp8Margin;
      passes.addPass(graph::createScaleToFp8(fp8));
    }
  }
  addCleanup(passes);
  passes.addPass(graph::createVerifyStep());
}

bool cleave::reducesNext(const PhaseOptions &options) {
  llvm::Expected<graph::UpdateDelay> delay =
      graph::UpdateDelay::parse(options.updateDelay);
  if (!delay) {
    // Was reported before.
    llvm::consumeError(delay.takeError());
    return false;
  }
  return delay->any() && delay->reducesNext();
}

/// Every value has a sharding on the mesh.
static void addPlaced(OpPassManager &passes, const PhaseOptions &options) {
  if (!options.mesh.empty() || !options.recipes.empty()) {
    // Where a product is summed over devices, its bias is added once.
    passes.addPass(graph::createSeparateBias());
    // Before anything is cut along the sequence.
    spmd::OrderSequenceOptions order;
    order.mesh = options.mesh;
    order.recipes = options.recipes;
    passes.addPass(spmd::createOrderSequence(order));
    // A head is one op where its classes are whole.
    spmd::DecomposeHeadOptions head;
    head.mesh = options.mesh;
    head.recipes = options.recipes;
    head.microBatches = placedMicroBatches(options);
    head.grains = options.grains;
    head.maxChunkBytes = chunkBytes(options);
    if (options.target.isGpu())
      head.maxChunkRows = int64_t(1) << 20;
    passes.addPass(spmd::createDecomposeHead(head));
    spmd::ApplyRecipesOptions recipes;
    recipes.mesh = options.mesh;
    recipes.recipes = options.recipes;
    recipes.grains = options.grains;
    passes.addPass(spmd::createApplyRecipes(recipes));
    // Before anything is split: steps are ops of whole tensors.
    passes.addPass(spmd::createDecomposeAttention());
    passes.addPass(spmd::createDecomposeContraction());
  }
  // The norm is summed in one order, with a mesh and without.
  if (options.mesh.empty() && options.recipes.empty() && options.grains > 0) {
    spmd::ApplyRecipesOptions recipes;
    recipes.grains = options.grains;
    passes.addPass(spmd::createApplyRecipes(recipes));
  }
  // After recipes: what a device has of the samples is cut into micro-batches.
  spmd::PlaceOptions place;
  place.microBatches = placedMicroBatches(options);
  place.grains = options.grains;
  passes.addPass(spmd::createPlace(place));
  // Where the order of samples is known, and nothing is sharded yet but what
  // recipes annotate.
  if (!options.compress.empty()) {
    spmd::CompressGradientsOptions compress;
    compress.compress = options.compress;
    compress.over = options.compressOver;
    // Parameters of other stages are elsewhere.
    compress.pack = countStages(options) <= 1;
    passes.addPass(spmd::createCompressGradients(compress));
  }
  if (reducesNext(options))
    passes.addPass(spmd::createDelayReductions());
  passes.addPass(spmd::createPad());
  passes.addPass(spmd::createPropagate());
  passes.addPass(spmd::createVerifyPlaced());
}

double PhaseOptions::expertShares() const {
  double shares = 0;
  return llvm::StringRef(expertBuffer).getAsDouble(shares) ? 0 : shares;
}

std::vector<std::string> cleave::rowAxes(const PhaseOptions &options) {
  std::vector<std::string> axes;
  auto plan = spmd::parsePlan(options.recipes);
  if (!plan) {
    llvm::consumeError(plan.takeError()); // Said of the plan.
    return axes;
  }
  for (const spmd::RecipeCall &call : plan->recipes)
    if (llvm::any_of(spmd::recipeTable(), [&](const spmd::RecipeInfo &recipe) {
          return recipe.name == call.name && recipe.sendsRows;
        }))
      llvm::append_range(axes, call.axes);
  return axes;
}

/// Whether updates may run in backward, each as soon as its gradient is there.
static bool updatesInBackward(const PhaseOptions &options) {
  return options.optimizerFusion == "backward" ||
         (options.optimizerFusion == "auto" && options.microBatches == 1 &&
          options.compress.empty() && !reducesNext(options) &&
          !options.checkFinite && options.optimizer.maxGradNorm == 0 &&
          !options.scalesLoss());
}

/// Shapes are those of one device and one micro-batch.
static void addLocal(OpPassManager &passes, const PhaseOptions &options) {
  passes.addPass(spmd::createPartition());
  passes.addPass(spmd::createOptimizeCollectives());
  if (options.widensSums())
    passes.addPass(spmd::createWidenSums());
  // What follows is of this device alone.
  if (!options.mesh.empty() || !options.recipes.empty()) {
    spmd::JoinBiasOptions join;
    join.heads = options.target.isGpu() && options.roundsSums();
    passes.addPass(spmd::createJoinBias(join));
  }
  if (options.mergesProducts()) {
    spmd::MergeMatmulsOptions merge;
    merge.gradients = !updatesInBackward(options);
    passes.addPass(spmd::createMergeMatmuls(merge));
  }
  passes.addPass(spmd::createVerifyLocal());
  // Rounded terms are no longer read as partial sums.
  if (options.roundsSums() && !options.widensSums())
    passes.addPass(spmd::createNarrowSums());
  // Values that are partial by rows are read by any op on single rows.
  passes.addPass(spmd::createKeepRows());
  // After collectives are what they are to be: those of weights go.
  if (std::vector<std::string> axes = rowAxes(options); !axes.empty()) {
    spmd::ExchangeRowsOptions exchange;
    exchange.axes.assign(axes.begin(), axes.end());
    exchange.buffer = options.expertShares();
    exchange.dispatch = options.expertDispatch;
    // Grains are summed as on one device, whatever the mesh.
    exchange.rounds = options.grains == 0;
    passes.addPass(spmd::createExchangeRows(exchange));
  }
}

/// Decides when parameters are gathered. Each micro-batch of an asynchronous
/// schedule reads others.
static void chooseGather(const PhaseOptions &options,
                         pipe::SplitStagesOptions &split) {
  PipelineShape shape = pipelineShape(options);
  split.gather = shape.asynchronous            ? "each"
                 : !options.pipeGather.empty() ? options.pipeGather
                 : shape.gathersOnce           ? "once"
                                               : "each";
  if (shape.asynchronous || shape.gathersOnce || !options.pipeGather.empty() ||
      options.precision == "f32")
    return;
  // Where state alone is sharded at rest, a step gathers 16-bit copies of
  // parameters, once; where parameters are, no rank holds all of them. What is
  // gathered over axes of other recipes is gathered as without these.
  auto plan = spmd::parsePlan(options.recipes);
  if (!plan)
    return llvm::consumeError(plan.takeError()); // Said of the plan.
  if (llvm::any_of(plan->recipes, spmd::shardsParametersAtRest))
    return;
  for (const spmd::RecipeCall &call : plan->recipes)
    if (spmd::shardsAtRest(call)) {
      split.gather = "once";
      llvm::append_range(split.gatherOver, call.axes);
    }
}

void cleave::addParts(OpPassManager &passes, const PhaseOptions &options) {
  pipe::SplitStagesOptions split;
  split.treeSums = options.grains > 0;
  split.stages = stageNames(options);
  PipelineShape shape = pipelineShape(options);
  split.chunks = shape.chunks;
  split.stageMap = shape.map.str();
  split.splitBackward = shape.splitBackward;
  split.machine = options.machine;
  split.keepWhole = shape.asynchronous;
  split.slices = options.pipeSlices;
  chooseGather(options, split);
  bool forward = options.optimizerFusion == "forward";
  split.fusion = forward ? "auto" : options.optimizerFusion;
  if (!options.compress.empty() || reducesNext(options))
    split.fusion = "none";
  // While an update is a few ops on what each device has.
  if (forward)
    passes.addPass(pipe::createDeferUpdate());
  passes.addPass(pipe::createSplitStages(split));
}

void cleave::addRecompute(OpPassManager &passes, const PhaseOptions &options) {
  pipe::RecomputeOptions recompute;
  recompute.policy = options.recomputePolicy().str();
  recompute.machine = options.machine;
  passes.addPass(pipe::createRecompute(recompute));
  // Not from parameters that would have to be fetched again. What becomes
  // several steps (an asynchronous schedule) has several micro-batches.
  if (options.recomputePolicy() != "none" && options.microBatches == 1 &&
      !StringRef(options.offload).contains("masters"))
    passes.addPass(pipe::createRemakeCopies());
  if (options.savePrecision != "f32") {
    pipe::NarrowSavesOptions narrow;
    narrow.type = options.savePrecision;
    passes.addPass(pipe::createNarrowSaves(narrow));
  }
}

/// Parts, and the order of their actions.
static void addScheduled(OpPassManager &passes, const PhaseOptions &options) {
  pipe::FillScheduleOptions fill;
  if (!options.schedule.empty())
    fill.kind = options.schedule;
  fill.schedule = options.scheduleText;
  if (!options.scheduleFile.empty())
    fill.file = options.scheduleFile;
  fill.savedBytes = options.maxSavedBytes;
  fill.maxStaleness = options.maxStaleness;
  fill.machine = options.machine;
  fill.measuredCosts = options.measuredCosts;
  if (!options.measuredFrom.empty())
    fill.measuredFrom = options.measuredFrom;
  addParts(passes, options);
  // What backward recomputes is chosen among what the parts exchange.
  addRecompute(passes, options);
  if (pipelineShape(options).asynchronous) {
    pipe::UpdateEachOptions each;
    each.microBatches = options.microBatches;
    passes.addPass(pipe::createUpdateEach(each));
  }
  if (options.postValidation)
    passes.addPass(pipe::createPostValidate());
  passes.addPass(pipe::createFillSchedule(fill));
  // After parts, what backward recomputes and the order are decided: they are
  // the same as without chunks. The interpreter still runs the result.
  if (options.collectiveChunks > 1 && !options.mesh.empty()) {
    // Equal gathers are merged while they are whole.
    passes.addPass(createCSEPass());
    spmd::ChunkCollectivesOptions chunk;
    chunk.chunks = options.collectiveChunks;
    chunk.minBytes = options.collectiveChunkBytes;
    passes.addPass(spmd::createChunkCollectives(chunk));
  }
  passes.addPass(pipe::createVerifySchedule());
}

/// Kernels, library calls, and a place for every buffer.
static void addExecutable(OpPassManager &passes, const PhaseOptions &options) {
  // From here on order is fixed: each action stands by itself, and a part that
  // adds onto a sum is another than the one that begins it.
  exec::UnrollScheduleOptions unroll;
  unroll.writeOut = options.writeOutActions;
  passes.addPass(exec::createUnrollSchedule(unroll));
  passes.addNestedPass<func::FuncOp>(exec::createSelectCollectives());
  // Shardings, by which the phases before know workers, are not read any more.
  passes.addPass(graph::createInlineWorkers());
  // Here: sorted rows have no sharding, which parts are made by.
  passes.addPass(graph::createSortRows());
  exec::DecomposeOptions decompose;
  decompose.wideAttention = options.wideAttention;
  passes.addNestedPass<func::FuncOp>(exec::createDecompose(decompose));
  // Here every tensor is one rank's.
  passes.addNestedPass<func::FuncOp>(exec::createJoinBlocks());
  passes.addPass(createCSEPass());
  // Views before libraries: a product reads its operands where they lie.
  passes.addNestedPass<func::FuncOp>(exec::createFoldViews());
  exec::SelectKernelsOptions select;
  select.chunkBytes = options.logitsBytes();
  select.products16 = options.target.isGpu();
  select.products8 = options.products8;
  passes.addNestedPass<func::FuncOp>(exec::createSelectKernels(select));
  passes.addPass(exec::createAssignLayouts());
  // After layouts are known.
  passes.addPass(exec::createMatchForms());
  passes.addPass(createCSEPass());
  // What the libraries left is fused into kernels, after layouts are known.
  exec::FuseOptions fuse;
  fuse.processors = options.target.getMultiprocessors();
  passes.addPass(exec::createFuse(fuse));
  passes.addPass(createCSEPass());
  // Between the commands as they are, which memory planning then orders.
  if (!options.offload.empty()) {
    exec::OffloadOptions offload;
    offload.kinds = options.offload;
    offload.minSavedBytes = options.offloadedBytes;
    passes.addPass(exec::createOffload(offload));
  }
  // Before the memory of all the operands is planned. A processor has no
  // launches.
  if (options.target.isGpu() && options.movedBytes >= 0) {
    exec::MergeLaunchesOptions merge;
    merge.threads = options.threads;
    merge.movedBytes = options.movedBytes;
    passes.addPass(exec::createMergeLaunches(merge));
  }
  // Memory last: buffers exist only between commands.
  exec::PlanMemoryOptions plan;
  plan.threads = options.threads;
  plan.profile = true;
  passes.addPass(exec::createPlanMemory(plan));
  passes.addPass(exec::createVerifyExecutable());
}

void cleave::addPhase(OpPassManager &passes, Phase phase,
                      const PhaseOptions &options) {
  switch (phase) {
  case Phase::Model:
    return addModel(passes);
  case Phase::Step:
    return addStep(passes, options);
  case Phase::Placed:
    return addPlaced(passes, options);
  case Phase::Local:
    return addLocal(passes, options);
  case Phase::Scheduled:
    return addScheduled(passes, options);
  case Phase::Executable:
    return addExecutable(passes, options);
  }
}
