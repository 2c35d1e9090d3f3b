//===- Fit.cpp - What fits a memory limit ---------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Planning/Fit.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Spmd/Transforms/Recipes.h"
#include "cleave/Pipelines/Options.h"
#include "cleave/Pipelines/ScheduleOptions.h"
#include "cleave/Planning/PlanPhases.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/Support/MathExtras.h"
#include <numeric>
#include <set>

using namespace mlir;
using namespace cleave;

std::optional<FitQuestion> cleave::parseFitQuestion(StringRef text) {
  auto [what, axis] = text.split(':');
  if (text == "micro-batch")
    return FitQuestion{FitQuestion::Kind::MicroBatch, ""};
  if (what == "devices" && (text == what || !axis.empty()))
    return FitQuestion{FitQuestion::Kind::Devices, axis.str()};
  return std::nullopt;
}

namespace {

using Trial = FitAnswer::Trial;

/// Answers one question.
class Fitter {
public:
  Fitter(ModuleOp model, const CompileOptions &options,
         const FitQuestion &question)
      : model(model), options(options), question(question) {
    settleTarget(this->options);
  }

  FailureOr<FitAnswer> run();

private:
  LogicalResult findBatch();
  LogicalResult findAxis();
  Trial tryPlan(const CompileOptions &own);
  void tryMicroBatches();
  void tryDevices();
  std::string meshOf(int64_t size) const;
  bool shards(StringRef axis, spmd::RecipeSplit split) const;
  std::vector<std::string> advise(const Trial &smallest) const;

  ModuleOp model;
  CompileOptions options;
  FitQuestion question;
  /// The samples of all inputs, or their greatest common divisor; 0 if none
  /// has samples.
  int64_t batch = 0;
  std::vector<spmd::MeshAxis> axes;
  std::vector<spmd::RecipeCall> recipes;
  std::vector<Trial> trials;
  std::optional<size_t> answer;
};

} // namespace

/// The devices of a mesh, as written.
static int64_t countDevices(ArrayRef<spmd::MeshAxis> axes) {
  int64_t devices = 1;
  for (const spmd::MeshAxis &axis : axes)
    devices = llvm::SaturatingMultiply<uint64_t>(devices, axis.size);
  return devices;
}

LogicalResult Fitter::findBatch() {
  for (auto function : model.getOps<func::FuncOp>())
    for (unsigned i = 0; i < function.getNumArguments(); ++i)
      if (auto dim =
              function.getArgAttrOfType<IntegerAttr>(i, graph::kBatchDimAttr))
        batch = std::gcd(batch,
                         cast<RankedTensorType>(function.getArgumentTypes()[i])
                             .getDimSize(dim.getInt()));
  if (question.kind != FitQuestion::Kind::MicroBatch)
    return success();
  if (batch == 0)
    return model.emitError("no input of the model has samples (")
           << graph::kBatchDimAttr
           << "), so that its batch is not divisible into micro-batches";
  if (pipelineShape(options.phases).asynchronous)
    return model.emitError(
        "the batch of the model is one micro-batch of an asynchronous "
        "schedule: give the model another batch");
  return success();
}

/// Whether a recipe shards what `split` says over an axis.
bool Fitter::shards(StringRef axis, spmd::RecipeSplit split) const {
  return llvm::any_of(recipes, [&](const spmd::RecipeCall &call) {
    return llvm::is_contained(call.axes, axis) &&
           spmd::splitBy(call, axis) == split;
  });
}

LogicalResult Fitter::findAxis() {
  auto mesh = spmd::parseMesh(options.phases.mesh);
  if (!mesh)
    return model.emitError("mesh: ") << llvm::toString(mesh.takeError());
  axes = std::move(*mesh);
  auto plan = spmd::parsePlan(options.phases.recipes);
  if (!plan)
    return model.emitError("recipe: ") << llvm::toString(plan.takeError());
  recipes = std::move(plan->recipes);
  if (question.kind != FitQuestion::Kind::Devices)
    return success();
  if (axes.empty())
    return model.emitError("the search for devices begins at a mesh, such as "
                           "dp=1, and there is none");
  if (question.axis.empty()) {
    question.axis = axes.front().name;
    for (spmd::RecipeSplit split :
         {spmd::RecipeSplit::Features, spmd::RecipeSplit::Resting})
      for (const spmd::MeshAxis &axis : axes)
        if (shards(axis.name, split))
          question.axis = axis.name;
  }
  if (llvm::none_of(axes, [&](const spmd::MeshAxis &axis) {
        return axis.name == question.axis;
      })) {
    InFlightDiagnostic error = model.emitError("the mesh has no axis \"")
                               << question.axis << "\"; it has ";
    llvm::interleaveComma(
        axes, error, [&](const spmd::MeshAxis &known) { error << known.name; });
    return error;
  }
  return success();
}

Trial Fitter::tryPlan(const CompileOptions &own) {
  Trial trial;
  trial.mesh = own.phases.mesh;
  trial.microBatches = own.phases.microBatches;
  trial.recompute = own.phases.recompute;
  if (auto mistake = checkOptions(own))
    trial.refused = mistake->str(Entrance::CommandLine);
  if (!trial.refused.empty())
    return trial;
  OwningOpRef<ModuleOp> module = model.clone();
  // Why a plan is refused is a fact of the search.
  ScopedDiagnosticHandler handler(
      model.getContext(), [&](Diagnostic &diagnostic) {
        if (trial.refused.empty() &&
            diagnostic.getSeverity() == DiagnosticSeverity::Error)
          trial.refused = diagnostic.str();
        return success();
      });
  Decisions decisions;
  bool planned = succeeded(
      runPhases(*module, Phase::Executable, own, nullptr, &decisions));
  if (decisions.recompute)
    trial.recompute = decisions.recompute->policy;
  if (!planned && decisions.recompute && !decisions.recompute->fits) {
    // Nothing fits: the smallest plan says by how much.
    CompileOptions smallest = own;
    smallest.phases.recompute = trial.recompute;
    trial.refused.clear();
    module = model.clone();
    planned =
        succeeded(runPhases(*module, Phase::Executable, smallest, nullptr));
  }
  if (!planned)
    return trial;
  FailureOr<PlannedProgram> program = planProgram(*module, own);
  if (failed(program))
    return trial;
  const runtime::MemoryPlan &memory = program->memory;
  trial.bytes = memory.neededBytes();
  trial.fits = *trial.bytes <= options.memoryLimit;
  if (const runtime::MemoryPlan::Position *most = memory.most())
    if (auto train = most->entries.find("train"); train != most->entries.end())
      trial.kinds = train->second.kindsAtPeak;
  return trial;
}

void Fitter::tryMicroBatches() {
  for (int64_t count = 1; count <= batch && !answer; ++count) {
    if (batch % count != 0)
      continue;
    CompileOptions own = options;
    own.phases.microBatches = count;
    trials.push_back(tryPlan(own));
    if (trials.back().fits)
      answer = trials.size() - 1;
  }
}

/// The mesh with another size of the axis that grows.
std::string Fitter::meshOf(int64_t size) const {
  std::string text;
  for (const spmd::MeshAxis &axis : axes)
    text += (text.empty() ? "" : ",") + axis.name + "=" +
            std::to_string(axis.name == question.axis ? size : axis.size);
  return text;
}

void Fitter::tryDevices() {
  const spmd::MeshAxis &axis =
      *llvm::find_if(axes, [&](const spmd::MeshAxis &one) {
        return one.name == question.axis;
      });
  int64_t others = countDevices(axes) / axis.size;
  std::set<int64_t> sizes{axis.size};
  for (int64_t size = axis.size; size * others <= kMostFitDevices; size *= 2)
    sizes.insert(size);
  // Samples are divisible by more than powers of 2.
  if (!shards(axis.name, spmd::RecipeSplit::Features) &&
      axis.name != spmd::kPipelineAxis)
    for (int64_t size = axis.size;
         size <= batch && size * others <= kMostFitDevices; ++size)
      if (batch % size == 0)
        sizes.insert(size);
  std::optional<int64_t> least;
  int inVain = 0;
  for (int64_t size : sizes) {
    CompileOptions own = options;
    own.phases.mesh = meshOf(size);
    trials.push_back(tryPlan(own));
    const Trial &trial = trials.back();
    if (trial.fits) {
      answer = trials.size() - 1;
      return;
    }
    if (trial.bytes) {
      inVain = least && *trial.bytes >= *least ? inVain + 1 : 0;
      least = std::min(least.value_or(*trial.bytes), *trial.bytes);
    }
    if (inVain == 2)
      return;
  }
}

/// What would need less memory, for a plan that does not fit.
std::vector<std::string> Fitter::advise(const Trial &smallest) const {
  auto bytes = [&](std::initializer_list<StringRef> kinds) {
    int64_t sum = 0;
    for (StringRef kind : kinds)
      if (auto known = smallest.kinds.find(kind.str());
          known != smallest.kinds.end())
        sum += known->second;
    return sum;
  };
  int64_t state = bytes({"parameters", "state", "gradients"}),
          rest = bytes({"saved", "temporaries"});
  std::vector<std::string> advice;
  if (options.phases.recompute != "auto" && rest > 0)
    advice.push_back("--recompute=auto computes again what the limit has no "
                     "room for");
  if (question.kind == FitQuestion::Kind::Devices && rest > state &&
      options.phases.microBatches < batch)
    advice.push_back("more --micro-batches: most of it is saved for backward "
                     "or temporary");
  if (state >= rest) {
    bool resting = llvm::any_of(axes, [&](const spmd::MeshAxis &axis) {
      return shards(axis.name, spmd::RecipeSplit::Resting);
    });
    if (!resting)
      advice.push_back("a recipe that shards parameters and state at rest (" +
                       spmd::recipesThat([](const spmd::RecipeInfo &info) {
                         return info.axes.front().split ==
                                spmd::RecipeSplit::Resting;
                       }) +
                       "): most of it is theirs");
    advice.push_back("an axis \"" + spmd::kPipelineAxis.str() +
                     "\" of stages, or a recipe that shards features");
  }
  if (question.kind == FitQuestion::Kind::MicroBatch)
    advice.push_back("more devices: --fit=devices finds how many");
  return advice;
}

FailureOr<FitAnswer> Fitter::run() {
  if (failed(findBatch()) || failed(findAxis()))
    return failure();
  FitAnswer fit;
  fit.devices = question.kind == FitQuestion::Kind::Devices;
  if (fit.devices)
    tryDevices();
  else
    tryMicroBatches();
  fit.axis = question.axis;
  fit.limit = options.memoryLimit;
  fit.batch = batch;
  fit.answer = answer;
  for (auto [i, trial] : llvm::enumerate(trials)) {
    if (trial.bytes &&
        (!fit.smallest || *trial.bytes < *trials[*fit.smallest].bytes))
      fit.smallest = i;
    if (auto mesh = spmd::parseMesh(trial.mesh))
      trial.devices = countDevices(*mesh);
    else
      llvm::consumeError(mesh.takeError());
    trial.samples = batch / trial.microBatches;
  }
  if (answer) {
    const Trial &found = trials[*answer];
    fit.flag = fit.devices
                   ? "--mesh=" + found.mesh
                   : "--micro-batches=" + std::to_string(found.microBatches);
  } else if (fit.smallest) {
    fit.advice = advise(trials[*fit.smallest]);
  }
  fit.tried = std::move(trials);
  return fit;
}

FailureOr<FitAnswer> cleave::findFit(ModuleOp model,
                                     const CompileOptions &options,
                                     const FitQuestion &question) {
  return Fitter(model, options, question).run();
}
