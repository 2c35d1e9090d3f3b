//===- OptimizerFlags.cpp - Flags of the optimizer's settings -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Flags.h"
#include "llvm/ADT/StringExtras.h"
#include <cmath>

using namespace cleave;
using llvm::StringRef;

std::string cleave::describeOptimizers() {
  std::string text = "The update rule";
  for (const graph::OptimizerRule *rule : graph::optimizerRules())
    text += (text.size() > 15 ? "; " : ": ") + rule->name().str() + ", " +
            rule->summary().str();
  return text + ". Default: adamw";
}

SettingFlags::SettingFlags() {
  std::vector<graph::NamedSetting> all = graph::allOptimizerSettings();
  // Options refer to the texts, which must not move.
  settings.reserve(all.size());
  for (graph::NamedSetting &known : all) {
    Setting &own = settings.emplace_back();
    own.name = known.name.str();
    own.flag = llvm::join(llvm::split(known.name, '_'), "-");
    own.text = std::move(known.text);
    own.option = std::make_unique<cl::opt<std::string>>(
        StringRef(own.flag), cl::desc(own.text), cl::cat(training),
        known.isFlag ? cl::ValueOptional : cl::ValueRequired);
    if (!known.isFlag)
      own.option->setValueStr("number");
  }
}

std::string SettingFlags::read(graph::OptimizerSettings &out) const {
  for (const Setting &own : settings) {
    if (!own.option->getNumOccurrences())
      continue;
    StringRef text = own.option->getValue();
    bool isFlag = own.option->getValueExpectedFlag() == cl::ValueOptional;
    std::optional<double> value =
        isFlag && text.empty() ? 1.0 : graph::parseSetting(text);
    if (!value || (!isFlag && (text == "true" || text == "false")))
      return "--" + own.flag + " is '" + text.str() +
             "', which is not a number";
    out[own.name] = *value;
  }
  return "";
}

std::string cleave::checkOptimizerFlags(const Flags &flags) {
  const graph::OptimizerRule *rule = graph::findOptimizerRule(flags.optimizer);
  if (!rule)
    return "unknown optimizer '" + flags.optimizer + "'; there are " +
           graph::optimizerRuleNames();
  graph::OptimizerSettings given;
  if (std::string mistake = flags.settings.read(given); !mistake.empty())
    return mistake;
  // A flag without effect was probably meant for another optimizer.
  for (const auto &[name, value] : given)
    if (!rule->find(name))
      return "--" + llvm::join(llvm::split(StringRef(name), '_'), "-") +
             " has no effect with --optimizer " + flags.optimizer;
  if (std::string mistake = graph::checkSettings(*rule, given);
      !mistake.empty())
    return mistake;
  return "";
}
