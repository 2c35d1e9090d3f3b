//===- DrawnOptions.cpp - Random options of a step ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Testing/DrawnOptions.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Spmd/Transforms/Recipes.h"
#include "cleave/Pipelines/Options.h"
#include "cleave/Scheduling/Generators/Generators.h"
#include "mlir/Pass/PassManager.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace cleave;

template <typename T>
static T choose(Random &rng, std::initializer_list<T> values) {
  return values
      .begin()[rng.integer(0, static_cast<int64_t>(values.size()) - 1)];
}

void cleave::drawSettings(Random &rng, double smallestEpsilon,
                          graph::OptimizerOptions &options) {
  const graph::OptimizerRule *rule = graph::findOptimizerRule(options.rule);
  graph::OptimizerSettings &settings = options.settings;
  for (const graph::OptimizerSetting &setting : rule->settings()) {
    std::string name = setting.name.str();
    if (setting.isDivisorFloor)
      settings[name] = smallestEpsilon * choose(rng, {1.0, 3.0, 10.0});
    else if (!setting.drawn.empty() && rng.chance(0.7))
      settings.try_emplace(name, rng.pick(setting.drawn));
  }
  // Flags that contradict what else is drawn are left out.
  for (const graph::OptimizerSetting &setting : rule->settings())
    if (setting.isFlag && !graph::checkSettings(*rule, settings).empty())
      settings.erase(setting.name.str());
}

graph::OptimizerOptions cleave::drawOptimizer(Random &rng,
                                              double smallestEpsilon) {
  graph::OptimizerOptions options;
  options.rule = rng.pick(graph::optimizerRules())->name().str();
  options.maxGradNorm = choose(rng, {0.0, 0.0, 0.1, 10.0});
  drawSettings(rng, smallestEpsilon, options);
  return options;
}

namespace {
/// The axes of a mesh, as long as there are ranks for them.
class MeshDraw {
public:
  MeshDraw(Random &rng, int64_t ranks) : rng(rng), left(ranks) {}

  /// Whether there are ranks for `count` more axes.
  bool fits(size_t count) const { return left >= int64_t(1) << count; }

  /// Adds an axis, if it is new.
  void add(StringRef name, bool even) {
    if (llvm::is_contained(names, name))
      return;
    int64_t size = even || left < 3 || rng.chance(0.7) ? 2
                   : left < 4                          ? 3
                                                       : rng.integer(3, 4);
    left /= size;
    names.push_back(name.str());
    text += (text.empty() ? "" : ",") + name.str() + "=" + std::to_string(size);
  }

  std::string text;

private:
  Random &rng;
  int64_t left;
  SmallVector<std::string> names;
};
} // namespace

/// A mesh, and recipes on it. `more` draws their axes: mostly one of its own
/// for a second recipe that computes with the same, and the axis of another
/// recipe where that is possible.
static void drawMesh(Random &rng, Random &more, int64_t ranks,
                     PhaseOptions &options) {
  MeshDraw mesh(rng, ranks);
  if (rng.chance(0.35))
    mesh.add("pp", false);
  if (rng.chance(0.3) && mesh.fits(1))
    mesh.add("dp", false);
  SmallVector<std::string> calls, computing;
  for (int64_t i = 0, count = choose(rng, {0, 1, 1, 2}); i < count; ++i) {
    const spmd::RecipeInfo &recipe = rng.pick(spmd::recipeTable());
    if (!mesh.fits(recipe.axes.size()))
      continue;
    std::string call = recipe.name.str();
    bool folded = recipe.folds && !computing.empty() && more.chance(0.5);
    for (const spmd::RecipeAxis &axis : recipe.axes) {
      std::string name = folded ? computing.back() : axis.name.str();
      if (!folded && llvm::is_contained(computing, name) && more.chance(0.7))
        name += "2";
      mesh.add(name, recipe.even);
      if (axis.split != spmd::RecipeSplit::Resting)
        computing.push_back(name);
      call += (&axis == recipe.axes.begin() ? "(" : ",") + name;
    }
    calls.push_back(call + ")");
  }
  options.mesh = mesh.text;
  options.recipes = llvm::join(calls, ",");
}

/// The order of a pipeline's actions. Returns whether updates run behind each
/// micro-batch.
static bool drawPipeline(Random &rng, PhaseOptions &options) {
  int64_t count = scheduling::generators().size();
  int64_t number = rng.integer(-1, count);
  if (number == count)
    options.schedule = "auto";
  else if (number >= 0)
    options.schedule = scheduling::generators()[number].name.str();
  bool asynchronous = number >= 0 && number < count &&
                      scheduling::generators()[number].asynchronous;
  // With one micro-batch there is one update, whenever it runs.
  if (asynchronous) {
    options.microBatches = 1;
    if (rng.chance(0.3))
      options.maxStaleness = rng.integer(0, 1);
  }
  if (rng.chance(0.1))
    options.chunks = rng.integer(1, 3);
  options.pipeSlices = choose(rng, {"auto", "on", "off"});
  // Rarely draws contradictory options.
  options.postValidation =
      rng.chance(options.optimizerFusion == "forward" ? 0.03 : 0.4);
  if (rng.chance(0.1))
    options.maxSavedBytes = int64_t(1) << 20;
  return asynchronous;
}

/// Draws rules of single parameters: rarely, and where the step's cannot update
/// one.
static void drawRules(Random &rng, const RandomGraph &graph,
                      CompileOptions &options) {
  const graph::OptimizerOptions &optimizer = options.phases.optimizer;
  const graph::OptimizerRule &rule = *graph::findOptimizerRule(optimizer.rule);
  // Without a model, as options are listed, there are no parameters.
  auto loss = graph.module
                  ? graph.module.get().lookupSymbol<func::FuncOp>("loss")
                  : func::FuncOp();
  for (BlockArgument argument :
       loss ? loss.getArguments() : MutableArrayRef<BlockArgument>()) {
    if (!graph::isTrained(loss, argument.getArgNumber()))
      continue;
    const graph::OptimizerRule *other =
        rng.pick(graph::optimizerRules().take_front(2));
    bool updated = graph::whyRefused(rule, loss, argument).empty();
    if (updated && (other == &rule || !rng.chance(0.1)))
      continue;
    graph::OptimizerOptions own;
    own.rule = other->name().str();
    drawSettings(rng, 1e-4, own);
    ParameterOptions &given =
        options.parameters[graph::getArgString(loss, argument.getArgNumber(),
                                               graph::kNameAttr)
                               .str()];
    given.rule = own.rule;
    given.settings = own.settings;
  }
}

/// Compressed gradients, where samples are sharded over "dp". What depends on
/// the sign of a gradient that is 0 but for rounding, or on which of two
/// gradients of one magnitude is larger, is not drawn.
static void drawCompression(Random &rng, bool asynchronous,
                            PhaseOptions &options) {
  bool usable =
      StringRef(options.mesh).contains("dp=") && !asynchronous &&
      options.grains == 0 &&
      (options.optimizerFusion == "auto" || options.optimizerFusion == "none");
  if (usable && rng.chance(0.8))
    options.compress =
        choose(rng, {"topk,density=1,smallest=0,unit=shard",
                     "threshold,keep=1,every=2,smallest=0,unit=shard",
                     "powersgd,rank=1,min_rate=0.4", "int8,smallest=0"});
  // Between nodes, behind a dense sum within each.
  if (!options.compress.empty() && rng.chance(0.3)) {
    options.compressOver = "node";
    options.mesh = "node=2," + options.mesh;
    options.recipes =
        "dp(node)," + (options.recipes.empty() ? "dp" : options.recipes);
  }
}

/// All elements of what stages send, with their indices: which of several of
/// one magnitude is sent depends on rounding.
static void drawStageCompression(Random &rng, PhaseOptions &options) {
  if (StringRef(options.mesh).contains("pp=") && options.grains == 0 &&
      options.gradHorizon == 0 && rng.chance(0.3))
    options.stageDensity = 1.0;
}

/// Pruned and quantized weights. Magnitudes and quotients that decide are those
/// of random numbers, which rounding hardly moves.
static void drawWeights(Random &rng, PhaseOptions &options) {
  if (rng.chance(0.15))
    options.prune = choose(
        rng, {"2:4,steps=9", "0.5,steps=9", "0.4", "0.7,cubic,steps=9", "2:4"});
  if (options.precision != "fp8" && rng.chance(0.15))
    options.quantize = "int8";
}

/// Delayed updates, with what they go with.
static void drawDelay(Random &rng, bool asynchronous, PhaseOptions &options) {
  if (rng.chance(0.25) && !asynchronous && !options.postValidation &&
      options.optimizerFusion != "forward")
    options.updateDelay = choose(rng, {"1", "2", "3,w*=1"});
  if (!options.updateDelay.empty() && StringRef(options.mesh).contains("dp=") &&
      options.grains == 0 && options.optimizerFusion != "backward" &&
      options.compress.empty() && rng.chance(0.5))
    options.updateDelay += ",reduce=next";
}

CompileOptions cleave::drawOptions(const RandomGraph &graph, int64_t ranks) {
  Random rng(graph.seed ^ 0x0d12a);
  std::vector<std::string> parameters;
  for (const auto &[name, tensor] : graph.inputs)
    if (StringRef(name).starts_with("w"))
      parameters.push_back(name);
  CompileOptions result;
  result.verify = Verify::Passes;
  PhaseOptions &options = result.phases;
  options.optimizer = drawOptimizer(rng, 1e-4);
  options.optimizerFusion =
      choose(rng, {"auto", "auto", "none", "backward", "forward", "forward"});
  options.microBatches = int64_t(1) << rng.integer(0, 2);
  if (rng.chance(0.15))
    options.grains = int64_t(1) << rng.integer(0, 2);
  // An update after each gradient waits neither for the check of all gradients
  // nor for their norm or another micro-batch: mostly they are left out.
  Random check(graph.seed ^ 0xf171);
  bool backward = options.optimizerFusion == "backward";
  options.checkFinite = !backward && check.chance(0.8);
  if (backward && check.chance(0.8)) {
    options.optimizer.maxGradNorm = 0.0;
    options.microBatches = 1;
    options.grains = 0;
  }
  Random axes(graph.seed ^ 0xa8e5);
  drawMesh(rng, axes, ranks, options);
  bool asynchronous =
      StringRef(options.mesh).contains("pp=") && drawPipeline(rng, options);
  options.pipeGather = choose(rng, {"", "each", "once", "auto"});
  // Such updates wait for nothing: what would is mostly left out.
  if (asynchronous && check.chance(0.8)) {
    options.optimizer.maxGradNorm = 0.0;
    options.optimizerFusion = "auto";
    options.checkFinite = options.postValidation = false;
    options.pipeGather = "each";
    options.grains = 0;
  }
  // Grains are in the place of micro-batches.
  if (options.grains)
    options.microBatches = 1;
  options.maxLogitsBytes =
      choose(rng, {int64_t(64), int64_t(256), int64_t(100) << 20});
  options.writeOutActions = rng.chance(0.2);
  if (rng.chance(0.08)) {
    options.gradHorizon = rng.integer(1, 2);
    options.modules = "2";
  }
  // Drawn separately, which leaves other options unchanged.
  Random types(graph.seed ^ 0xbf16);
  if (types.chance(0.4)) {
    bool scaled = options.checkFinite && !asynchronous && types.chance(0.3);
    options.precision = scaled ? "fp16" : "bf16";
    options.residual = types.chance(0.3) ? "f32" : "16bit";
    options.activationReduction = choose(types, {"f32", "products", "16bit"});
    if (types.chance(0.3))
      options.gradientType = options.precision;
  }
  Random narrow(graph.seed ^ 0xf8);
  if (options.precision == "bf16" && narrow.chance(0.4)) {
    options.precision = "fp8";
    options.activationReduction = options.gradientType = "f32";
    options.fp8History = choose(narrow, {int64_t(1), int64_t(2), int64_t(16)});
    options.fp8Margin = narrow.integer(0, 1);
  }
  Random merged(graph.seed ^ 0x3e26);
  if (options.precision != "f32" && merged.chance(0.6))
    options.mergeMatmuls = "on";
  Random memory(graph.seed ^ 0x3e3c);
  options.fusedAttention = memory.chance(0.8);
  options.recompute =
      choose(memory, {"free", "free", "none", "full", "selective"});
  options.savePrecision =
      choose(memory, {"f32", "f32", "f32", "bf16", "fp16", "fp8"});
  Random tier(graph.seed ^ 0x0ff1);
  if (tier.chance(0.3)) {
    options.offload = choose(tier, {"state", "saved", "state,saved",
                                    "state,masters", "state,masters,saved"});
    // Without 16-bit copies there are no masters.
    if (options.precision == "f32")
      options.offload = choose(tier, {"state", "saved", "state,saved"});
    options.offloadedBytes = choose(tier, {int64_t(1), int64_t(256)});
  }
  Random compression(graph.seed ^ 0xc09f);
  drawCompression(compression, asynchronous, options);
  Random elements(graph.seed ^ 0xd7c7);
  drawStageCompression(elements, options);
  Random weights(graph.seed ^ 0x2b4);
  drawWeights(weights, options);
  Random delay(graph.seed ^ 0xde1a);
  drawDelay(delay, asynchronous, options);
  result.bucketBytes = choose(rng, {int64_t(1), int64_t(256), int64_t(-1)});
  Random chunks(graph.seed ^ 0xc4c4);
  options.collectiveChunks =
      choose(chunks, {int64_t(1), int64_t(2), int64_t(4)});
  if (options.collectiveChunks > 1)
    options.collectiveChunkBytes = chunks.chance(0.7) ? 1 : 64;
  for (int64_t i = 0; i < 2 && !parameters.empty() && rng.chance(0.4); ++i) {
    ParameterOptions &own = result.parameters[rng.pick(parameters)];
    if (rng.chance(0.5))
      own.weightDecay = choose(rng, {0.0, 0.3});
    own.lrScale = choose(rng, {0.0, 0.5, 2.0});
  }
  Random rules(graph.seed ^ 0x90a7);
  drawRules(rules, graph, result);
  return result;
}

/// The value of an option among few; whether it is given, for sizes and for
/// numbers that are none by default. Empty for layouts, of which there are
/// many.
static std::string shownValue(const Option &option,
                              const CompileOptions &options) {
  static const CompileOptions defaults;
  bool isDefault = option.isDefault(options);
  OptionValue value = option.get(options);
  if (auto *text = std::get_if<std::string>(&value)) {
    if (option.kind == OptionKind::Choice ||
        option.group != OptionGroup::Layout)
      return isDefault && option.kind != OptionKind::Choice
                 ? "default"
                 : StringRef(*text).split(',').first.str();
    return "";
  }
  if (option.kind == OptionKind::Integer &&
      std::get<int64_t>(option.get(defaults)) > 0)
    return std::to_string(std::get<int64_t>(value));
  if (auto *flag = std::get_if<bool>(&value))
    return *flag ? "true" : "false";
  return isDefault ? "false" : "true";
}

std::set<std::string> cleave::choicesOf(const CompileOptions &options) {
  const PhaseOptions &own = options.phases;
  const graph::OptimizerOptions &optimizer = own.optimizer;
  std::set<std::string> result;
  auto add = [&](StringRef name, const auto &value) {
    result.insert(llvm::formatv("{0}={1}", name, value).str());
  };
  add("optimizer", optimizer.rule);
  for (const graph::OptimizerSetting &setting :
       graph::findOptimizerRule(optimizer.rule)->settings())
    if (!setting.drawn.empty())
      add(setting.name, optimizer.get(setting.name) > 0);
  for (const Option &option : optionTable())
    if (std::string value = shownValue(option, options); !value.empty())
      add(option.key(), value);
  add("write_out", own.writeOutActions);
  add("parameter_settings", !options.parameters.empty());
  add("parameter_rules",
      llvm::any_of(options.parameters, [](const auto &entry) {
        return !entry.second.rule.empty();
      }));
  auto plan = spmd::parsePlan(own.recipes);
  if (!plan)
    llvm::consumeError(plan.takeError());
  else
    for (const spmd::RecipeCall &call : plan->recipes)
      add("recipe", call.name);
  return result;
}

std::string cleave::givenText(const CompileOptions &options) {
  const graph::OptimizerOptions &optimizer = options.phases.optimizer;
  std::string text;
  llvm::raw_string_ostream os(text);
  for (const Option &option : optionTable()) {
    if (option.isDefault(options))
      continue;
    os << option.key() << "=";
    std::visit([&](const auto &value) { os << value; }, option.get(options));
    os << " ";
  }
  os << "write_out=" << options.phases.writeOutActions << " " << optimizer.rule;
  for (const auto &[name, value] : optimizer.settings)
    os << " " << name << "=" << graph::settingText(value);
  os << " max_grad_norm=" << optimizer.maxGradNorm;
  return text;
}

std::set<std::string> cleave::passesOf(MLIRContext *context,
                                       const CompileOptions &options,
                                       Phase last) {
  std::set<std::string> names;
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    PassManager manager(context);
    addPhase(manager, static_cast<Phase>(i), options.phases);
    std::string text;
    llvm::raw_string_ostream os(text);
    manager.printAsTextualPipeline(os);
    // Names follow `(` or `,`, outside of options.
    std::string name;
    int depth = 0;
    for (char c : text) {
      depth += (c == '{') - (c == '}');
      if (depth == 0 && (llvm::isAlnum(c) || c == '-')) {
        name += c;
        continue;
      }
      if (!name.empty())
        names.insert(name);
      name.clear();
    }
  }
  return names;
}
