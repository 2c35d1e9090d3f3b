//===- Rules.cpp - The table of update rules, and their settings ----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Rules.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include <cstdio>
#include <cstdlib>

using namespace cleave::graph;
using llvm::StringRef;

OptimizerRule::~OptimizerRule() = default;

llvm::ArrayRef<const OptimizerRule *> cleave::graph::optimizerRules() {
  static const OptimizerRule *const rules[] = {
      &adamwRule(), &sgdRule(),       &lionRule(), &adagradRule(),
      &lambRule(),  &adafactorRule(), &muonRule(), &adamw8bitRule()};
  return rules;
}

const OptimizerRule *cleave::graph::findOptimizerRule(StringRef name) {
  for (const OptimizerRule *rule : optimizerRules())
    if (rule->name() == name)
      return rule;
  return nullptr;
}

std::string cleave::graph::optimizerRuleNames() {
  std::string names;
  llvm::ArrayRef<const OptimizerRule *> rules = optimizerRules();
  for (auto [i, rule] : llvm::enumerate(rules)) {
    if (i)
      names += i + 1 == rules.size() ? " and " : ", ";
    names += rule->name();
  }
  return names;
}

const OptimizerSetting *OptimizerRule::find(StringRef setting) const {
  for (const OptimizerSetting &known : settings())
    if (known.name == setting)
      return &known;
  return nullptr;
}

double OptimizerOptions::get(StringRef setting) const {
  if (auto it = settings.find(setting.str()); it != settings.end())
    return it->second;
  const OptimizerRule *known = findOptimizerRule(rule);
  const OptimizerSetting *found = known ? known->find(setting) : nullptr;
  return found ? found->value : 0.0;
}

OptimizerSettings
cleave::graph::completeSettings(const OptimizerRule &rule,
                                const OptimizerSettings &given) {
  OptimizerSettings result;
  for (const OptimizerSetting &setting : rule.settings())
    result[setting.name.str()] = setting.value;
  for (const auto &[name, value] : given)
    result[name] = value;
  return result;
}

/// The values that a setting may have, as the end of a sentence.
static std::string rangeOf(const OptimizerSetting &setting) {
  if (setting.isFlag)
    return "true or false";
  bool bounded = setting.below < std::numeric_limits<double>::infinity();
  std::string above = "finite";
  if (setting.least == 0.0 && !bounded)
    above += " and not negative";
  else if (setting.least > std::numeric_limits<double>::lowest())
    above = "at least " + settingText(setting.least);
  return bounded ? above + " and below " + settingText(setting.below) : above;
}

std::string cleave::graph::checkSettings(const OptimizerRule &rule,
                                         const OptimizerSettings &settings) {
  for (const auto &[name, value] : settings) {
    const OptimizerSetting *known = rule.find(name);
    if (!known) {
      std::string names = llvm::join(
          llvm::map_range(rule.settings(),
                          [](const auto &own) { return own.name.str(); }),
          ", ");
      return llvm::formatv("{0} has no setting {1}; it has {2}", rule.name(),
                           name, names);
    }
    bool inRange = value >= known->least && value < known->below;
    if (known->isFlag)
      inRange = value == 0.0 || value == 1.0;
    if (!inRange)
      return llvm::formatv("{0} of {1} is {2}; it must be {3}", name,
                           rule.name(), settingText(value), rangeOf(*known));
  }
  return rule.contradiction(completeSettings(rule, settings));
}

std::string cleave::graph::settingText(double value) {
  char text[32];
  for (int digits : {6, 15, 17}) {
    std::snprintf(text, sizeof(text), "%.*g", digits, value);
    if (std::strtod(text, nullptr) == value)
      break;
  }
  return text;
}

std::optional<double> cleave::graph::parseSetting(StringRef text) {
  if (text == "true" || text == "false")
    return text == "true" ? 1.0 : 0.0;
  double value;
  if (text.getAsDouble(value))
    return std::nullopt;
  return value;
}

std::vector<NamedSetting> cleave::graph::allOptimizerSettings() {
  std::vector<NamedSetting> result;
  for (const OptimizerRule *rule : optimizerRules())
    for (const OptimizerSetting &setting : rule->settings()) {
      std::string value = setting.isFlag
                              ? std::string(setting.value ? "true" : "false")
                              : settingText(setting.value);
      std::string text =
          llvm::formatv("{0}: {1} ({2})", rule->name(), setting.text, value);
      auto known = llvm::find_if(result, [&](const NamedSetting &other) {
        return other.name == setting.name;
      });
      if (known == result.end())
        result.push_back({setting.name, setting.isFlag, text});
      else
        known->text += "; " + text;
    }
  return result;
}
