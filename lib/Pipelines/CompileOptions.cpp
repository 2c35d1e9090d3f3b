//===- CompileOptions.cpp - Options from JSON, and onto arguments ---------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Pipelines/Compile.h"
#include "cleave/Pipelines/MeasureMachine.h"
#include "cleave/Pipelines/ScheduleOptions.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

using namespace mlir;
using namespace cleave;

namespace llvm::json {

/// Reads numbers and flags by name, except those named in `others`.
static bool readSettings(const Value &value, ArrayRef<StringRef> others,
                         graph::OptimizerSettings &out, Path path) {
  const Object *object = value.getAsObject();
  if (!object) {
    path.report("expected object");
    return false;
  }
  for (const auto &[key, setting] : *object) {
    StringRef name = key;
    if (llvm::is_contained(others, name))
      continue;
    if (auto number = setting.getAsNumber())
      out[name.str()] = *number;
    else if (auto flag = setting.getAsBoolean())
      out[name.str()] = *flag;
    else {
      path.field(name).report("expected a number, or true or false");
      return false;
    }
  }
  return true;
}

static bool fromJSON(const Value &value, ParameterOptions &out, Path path) {
  ObjectMapper map(value, path);
  return map && map.mapOptional("weight_decay", out.weightDecay) &&
         map.mapOptional("lr_scale", out.lrScale) &&
         map.mapOptional("kind", out.rule) &&
         readSettings(value, {"weight_decay", "lr_scale", "kind"}, out.settings,
                      path);
}

} // namespace llvm::json

/// Reads the optimizer's rule (`kind`) and its settings.
static bool readOptimizer(const llvm::json::Value &value,
                          graph::OptimizerOptions &out, llvm::json::Path path) {
  llvm::json::ObjectMapper map(value, path);
  if (!map || !map.mapOptional("kind", out.rule) ||
      !map.mapOptional("max_grad_norm", out.maxGradNorm) ||
      !llvm::json::readSettings(value, {"kind", "max_grad_norm"}, out.settings,
                                path))
    return false;
  const graph::OptimizerRule *rule = graph::findOptimizerRule(out.rule);
  if (!rule) {
    path.field("kind").report("expected the name of an update rule");
    return false;
  }
  for (const auto &[name, value] : out.settings)
    if (!rule->find(name)) {
      path.field(name).report("the update rule has no such setting");
      return false;
    }
  return true;
}

namespace cleave::runtime {
/// {"dynamic", "initial", "minimum", "window", "hysteresis"}
static bool fromJSON(const llvm::json::Value &value, LossScaling &scaling,
                     llvm::json::Path path) {
  double initial = scaling.initial, minimum = scaling.minimum;
  llvm::json::ObjectMapper map(value, path);
  if (!map || !map.mapOptional("dynamic", scaling.dynamic) ||
      !map.mapOptional("initial", initial) ||
      !map.mapOptional("minimum", minimum) ||
      !map.mapOptional("window", scaling.window) ||
      !map.mapOptional("hysteresis", scaling.hysteresis))
    return false;
  scaling.initial = static_cast<float>(initial);
  scaling.minimum = static_cast<float>(minimum);
  if (std::string why = scaling.problem(); !why.empty()) {
    path.report("out of range");
    return false;
  }
  return true;
}
} // namespace cleave::runtime

llvm::Expected<CompileOptions>
cleave::parseCompileOptions(llvm::StringRef json) {
  auto value = llvm::json::parse(json);
  if (!value)
    return value.takeError();
  CompileOptions options;
  llvm::json::Path::Root root("options");
  llvm::json::Path path(root);
  llvm::json::ObjectMapper map(*value, path);
  bool read =
      map && map.mapOptional("micro_batches", options.phases.microBatches) &&
      map.mapOptional("optimizer_fusion", options.phases.optimizerFusion) &&
      map.mapOptional("check_finite", options.phases.checkFinite) &&
      map.mapOptional("precision", options.phases.precision) &&
      map.mapOptional("fp8_history", options.phases.fp8History) &&
      map.mapOptional("fp8_margin", options.phases.fp8Margin) &&
      map.mapOptional("residual", options.phases.residual) &&
      map.mapOptional("loss_scale", options.lossScaling) &&
      map.mapOptional("save_precision", options.phases.savePrecision) &&
      map.mapOptional("activation_reduction",
                      options.phases.activationReduction) &&
      map.mapOptional("merge_products", options.phases.mergeProducts) &&
      map.mapOptional("compress", options.phases.compress) &&
      map.mapOptional("compress_over", options.phases.compressOver) &&
      map.mapOptional("compress_stages", options.phases.stageDensity) &&
      map.mapOptional("prune", options.phases.prune) &&
      map.mapOptional("quantize", options.phases.quantize) &&
      map.mapOptional("update_delay", options.phases.updateDelay) &&
      map.mapOptional("gradient_dtype", options.phases.gradientType) &&
      map.mapOptional("post_validation", options.phases.postValidation) &&
      map.mapOptional("grains", options.phases.grains) &&
      map.mapOptional("mesh", options.phases.mesh) &&
      map.mapOptional("recipes", options.phases.recipes) &&
      map.mapOptional("stages", options.phases.stages) &&
      map.mapOptional("chunks", options.phases.chunks) &&
      map.mapOptional("pipe_slices", options.phases.pipeSlices) &&
      map.mapOptional("schedule", options.phases.schedule) &&
      map.mapOptional("schedule_text", options.phases.scheduleText) &&
      map.mapOptional("schedule_file", options.phases.scheduleFile) &&
      map.mapOptional("max_saved_bytes", options.phases.maxSavedBytes) &&
      map.mapOptional("fused_attention", options.phases.fusedAttention) &&
      map.mapOptional("recompute", options.phases.recompute) &&
      map.mapOptional("max_staleness", options.phases.maxStaleness) &&
      map.mapOptional("pipe_gather", options.phases.pipeGather) &&
      map.mapOptional("machine", options.phases.machine) &&
      map.mapOptional("measured_costs", options.phases.measuredFrom) &&
      map.mapOptional("grad_horizon", options.phases.gradHorizon) &&
      map.mapOptional("modules", options.phases.modules) &&
      map.mapOptional("head", options.phases.head) &&
      map.mapOptional("threads", options.phases.threads) &&
      map.mapOptional("max_logits_bytes", options.phases.maxLogitsBytes) &&
      map.mapOptional("memory_limit", options.memoryLimit) &&
      map.mapOptional("offload", options.phases.offload) &&
      map.mapOptional("bucket_bytes", options.bucketBytes) &&
      map.mapOptional("collective_chunks", options.phases.collectiveChunks) &&
      map.mapOptional("collective_chunk_bytes",
                      options.phases.collectiveChunkBytes) &&
      map.mapOptional("moved_bytes", options.phases.movedBytes) &&
      map.mapOptional("target", options.target) &&
      map.mapOptional("arch", options.architecture) &&
      map.mapOptional("cpu", options.cpu) &&
      map.mapOptional("vector_bits", options.vectorBits) &&
      map.mapOptional("parameters", options.parameters);
  if (read)
    if (const llvm::json::Value *optimizer =
            value->getAsObject()->get("optimizer"))
      read = readOptimizer(*optimizer, options.phases.optimizer,
                           path.field("optimizer"));
  if (read && !isOptimizerFusion(options.phases.optimizerFusion)) {
    path.field("optimizer_fusion")
        .report("expected \"auto\", \"none\", \"backward\" or \"forward\"");
    read = false;
  }
  if (read && !isPrecision(options.phases.precision)) {
    path.field("precision")
        .report("expected \"f32\", \"bf16\", \"fp16\" or \"fp8\"");
    read = false;
  }
  if (read && !isSavePrecision(options.phases.savePrecision)) {
    path.field("save_precision")
        .report("expected \"f32\", \"bf16\", \"fp16\" or \"fp8\"");
    read = false;
  }
  if (read && !isResidual(options.phases.residual)) {
    path.field("residual").report("expected \"16bit\" or \"f32\"");
    read = false;
  }
  if (read && !isActivationReduction(options.phases.activationReduction)) {
    path.field("activation_reduction")
        .report("expected \"auto\", \"f32\", \"products\" or \"16bit\"");
    read = false;
  }
  if (read && !isMergeProducts(options.phases.mergeProducts)) {
    path.field("merge_products").report("expected \"auto\", \"on\" or \"off\"");
    read = false;
  }
  if (read && options.phases.precision == "fp8" &&
      options.phases.activationReduction != "f32" &&
      options.phases.activationReduction != "auto") {
    path.field("activation_reduction").report("expected \"f32\" with \"fp8\"");
    read = false;
  }
  if (read &&
      !isGradientType(options.phases.gradientType, options.phases.precision)) {
    path.field("gradient_dtype").report("expected \"f32\" or the precision");
    read = false;
  }
  if (read && options.phases.collectiveChunks < 1) {
    path.field("collective_chunks").report("expected a positive number");
    read = false;
  }
  if (read && options.phases.collectiveChunkBytes < 0) {
    path.field("collective_chunk_bytes")
        .report("expected a number that is not negative");
    read = false;
  }
  if (read && !isPipeSlices(options.phases.pipeSlices)) {
    path.field("pipe_slices").report("expected \"auto\", \"on\" or \"off\"");
    read = false;
  }
  if (read && options.phases.stageDensity) {
    std::string why = densityProblem(*options.phases.stageDensity);
    read = why.empty();
    if (!read)
      path.field("compress_stages")
          .report("expected a number above 0 and at most 1");
  }
  if (read && !options.phases.pipeGather.empty() &&
      !isPipeGather(options.phases.pipeGather)) {
    path.field("pipe_gather").report("expected \"each\", \"once\" or \"auto\"");
    read = false;
  }
  if (read && !offloadProblem(options.phases.offload).empty()) {
    path.field("offload").report(
        "expected some of \"state\", \"masters\" and \"saved\"");
    read = false;
  }
  if (!read)
    return root.getError();
  if (!options.phases.measuredFrom.empty()) {
    auto costs = readMeasuredCosts(options.phases.measuredFrom);
    if (!costs)
      return costs.takeError();
    options.phases.measuredCosts = std::move(*costs);
  }
  auto machine = readMachine(options.phases.machine);
  if (!machine)
    return machine.takeError();
  options.phases.machine = std::move(*machine);
  return options;
}

LogicalResult cleave::annotateParameters(
    ModuleOp module,
    const std::map<std::string, ParameterOptions> &parameters) {
  llvm::DenseSet<StringRef> seen;
  Builder builder(module.getContext());
  for (auto function : module.getOps<func::FuncOp>()) {
    graph::EntryAttributes attributes(function);
    for (unsigned i = 0; i < function.getNumArguments(); ++i) {
      auto name = function.getArgAttrOfType<StringAttr>(i, graph::kNameAttr);
      if (!name)
        continue;
      auto it = parameters.find(name.str());
      if (it == parameters.end())
        continue;
      seen.insert(name.getValue());
      if (it->second.weightDecay)
        attributes.setArg(i, graph::kWeightDecayAttr,
                          builder.getF64FloatAttr(*it->second.weightDecay));
      if (it->second.lrScale)
        attributes.setArg(i, graph::kLrScaleAttr,
                          builder.getF64FloatAttr(*it->second.lrScale));
      NamedAttrList own;
      if (!it->second.rule.empty())
        own.set(graph::kRuleEntry, builder.getStringAttr(it->second.rule));
      for (const auto &[setting, value] : it->second.settings)
        own.set(setting, builder.getF64FloatAttr(value));
      if (!own.empty())
        attributes.setArg(i, graph::kOptimizerAttr,
                          own.getDictionary(module.getContext()));
    }
    attributes.write();
  }
  for (const auto &[name, settings] : parameters)
    if (!seen.contains(StringRef(name)))
      return emitError(module.getLoc()) << "options name the parameter '"
                                        << name << "', which no entry has";
  return success();
}
