//===- OptionsFromJson.cpp - Options from JSON ----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Pipelines/Options.h"

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

/// Sets an option by a former name, where numbers may count other bytes.
static std::optional<OptionMistake> setFormer(const Option &option,
                                              const FormerName &former,
                                              CompileOptions &options,
                                              const llvm::json::Value &given) {
  if (auto number = given.getAsInteger(); number && former.unit != 1)
    return option.set(options, std::to_string(*number), former.unit);
  return option.set(options, given);
}

/// `; did you mean 'precision'?`, if an option is called almost so.
static std::string nearestOption(StringRef key) {
  std::string nearest;
  unsigned least = 3;
  for (const Option &option : optionTable())
    if (unsigned distance = key.edit_distance(option.key()); distance < least) {
      least = distance;
      nearest = option.key();
    }
  return nearest.empty() ? "" : "; did you mean '" + nearest + "'?";
}

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

llvm::Expected<CompileOptions>
cleave::parseCompileOptions(llvm::StringRef json) {
  auto value = llvm::json::parse(json);
  if (!value)
    return value.takeError();
  CompileOptions options;
  llvm::json::Path::Root root("options");
  llvm::json::Path path(root);
  llvm::json::ObjectMapper map(*value, path);
  if (!map || !map.mapOptional("parameters", options.parameters))
    return root.getError();
  auto refuse = [](const OptionMistake &mistake) {
    return llvm::createStringError(mistake.str(Entrance::Python));
  };
  const llvm::json::Object &object = *value->getAsObject();
  for (const auto &[key, given] : object) {
    const Option *option = findOption(key), *former = findFormer(key);
    if (former && object.get(former->key()))
      return refuse({"", key.str() + " is the former name of {" + former->name +
                             "}: give one of them"});
    if (key != "parameters" && key != "optimizer" && !former &&
        (!option || option->key() != key))
      return llvm::createStringError("unknown option '" + key.str() + "'" +
                                     nearestOption(key));
  }
  if (const llvm::json::Value *optimizer = object.get("optimizer"))
    if (!readOptimizer(*optimizer, options.phases.optimizer,
                       path.field("optimizer")))
      return root.getError();
  // In the order of the table, in which later options refer to earlier ones.
  for (const Option &option : optionTable()) {
    if (const llvm::json::Value *given = object.get(option.key()))
      if (auto mistake = option.set(options, *given))
        return refuse(*mistake);
    for (const FormerName &former : option.former)
      if (const llvm::json::Value *given = object.get(keyOfOption(former.name)))
        if (auto mistake = setFormer(option, former, options, *given))
          return refuse(*mistake);
  }
  if (llvm::Error error = completeOptions(options))
    return error;
  if (auto mistake = checkOptions(options))
    return refuse(*mistake);
  return options;
}

std::vector<std::string> cleave::warnOfOptions(llvm::StringRef json) {
  std::vector<std::string> warnings;
  auto options = parseCompileOptions(json);
  if (!options) {
    llvm::consumeError(options.takeError()); // said where they are refused
    return warnings;
  }
  auto value = llvm::cantFail(llvm::json::parse(json));
  for (const auto &[key, given] : *value.getAsObject())
    if (const Option *option = findFormer(key))
      warnings.push_back(formerNote(*option, key, Entrance::Python));
  for (const OptionMistake &idle : findIdleOptions(*options))
    warnings.push_back(idle.str(Entrance::Python));
  return warnings;
}
