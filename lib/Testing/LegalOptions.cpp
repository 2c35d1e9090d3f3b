//===- LegalOptions.cpp - Drawn options that a model can have -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// What a model refuses, by its sizes or by what it lacks, is seen when its
/// passes run. Options that are refused are changed in as few places as is
/// tried: one, or several in turn, until nothing is refused.
///
//===----------------------------------------------------------------------===//

#include "cleave/Pipelines/Options.h"
#include "cleave/Testing/DrawnOptions.h"
#include "llvm/ADT/StringExtras.h"
#include <functional>

using namespace mlir;
using namespace cleave;

/// The texts of the recipes of a plan.
static std::vector<std::string> callsOf(StringRef recipes) {
  std::vector<std::string> calls;
  int depth = 0;
  std::string call;
  for (char c : recipes) {
    depth += (c == '(') - (c == ')');
    if (c == ',' && depth == 0) {
      calls.push_back(call);
      call.clear();
      continue;
    }
    call += c;
  }
  if (!call.empty())
    calls.push_back(call);
  return calls;
}

/// Takes a recipe away, with axes that no other recipe names.
static void dropRecipe(PhaseOptions &options, size_t number) {
  std::vector<std::string> calls = callsOf(options.recipes);
  if (number >= calls.size())
    return;
  std::string gone = calls[number];
  calls.erase(calls.begin() + number);
  options.recipes = llvm::join(calls, ",");
  SmallVector<StringRef> axes;
  StringRef(options.mesh).split(axes, ',', -1, /*KeepEmpty=*/false);
  std::vector<std::string> kept;
  for (StringRef axis : axes) {
    StringRef name = axis.split('=').first;
    auto names = [&](StringRef call) {
      SmallVector<StringRef> words;
      call.split('(').second.rtrim(')').split(words, ',');
      return llvm::is_contained(words, name);
    };
    if (!names(gone) || name == "dp" ||
        llvm::any_of(calls,
                     [&](const std::string &call) { return names(call); }))
      kept.push_back(axis.str());
  }
  options.mesh = llvm::join(kept, ",");
}

/// Sets an option to its default.
static void reset(const Option &option, CompileOptions &options) {
  static const CompileOptions defaults;
  option.put(options, option.get(defaults));
}

/// The changes that `options` have, those first that leave the most: each
/// option is set to its default, group by group, and the layout last.
static std::vector<std::function<void(CompileOptions &)>>
changesOf(const CompileOptions &options) {
  std::vector<std::function<void(CompileOptions &)>> changes;
  auto addGroup = [&](OptionGroup group) {
    for (const Option &option : optionTable())
      if (option.group == group && !option.isDefault(options) &&
          option.name != "mesh" && option.name != "plan")
        changes.push_back([&option](CompileOptions &o) { reset(option, o); });
  };
  for (OptionGroup group : {OptionGroup::Lossy, OptionGroup::Interlock})
    addGroup(group);
  if (options.phases.optimizer.maxGradNorm != 0)
    changes.emplace_back(
        [](CompileOptions &o) { o.phases.optimizer.maxGradNorm = 0; });
  // The check of a step is on by default, and many others wait for it.
  if (options.phases.checkFinite)
    changes.emplace_back(
        [](CompileOptions &o) { o.phases.checkFinite = false; });
  for (OptionGroup group :
       {OptionGroup::Pipeline, OptionGroup::Numerics, OptionGroup::Memory,
        OptionGroup::Communication, OptionGroup::Precision, OptionGroup::Target,
        OptionGroup::Layout})
    addGroup(group);
  for (size_t i = 0, count = callsOf(options.phases.recipes).size(); i < count;
       ++i)
    changes.emplace_back([i](CompileOptions &o) { dropRecipe(o.phases, i); });
  if (!options.parameters.empty())
    changes.emplace_back([](CompileOptions &o) { o.parameters.clear(); });
  changes.emplace_back([](CompileOptions &o) {
    o.phases.mesh.clear(), o.phases.recipes.clear();
  });
  return changes;
}

DrawnOutcome cleave::compareLegal(const RandomGraph &graph,
                                  CompileOptions &options, double tolerance,
                                  std::string &refusal) {
  DrawnOutcome outcome = compareDrawn(graph, options, tolerance);
  refusal = outcome.kind == DrawnOutcome::Kind::Refused ? outcome.message : "";
  if (refusal.empty())
    return outcome;
  CompileOptions several = options;
  const auto changes = changesOf(options);
  for (bool together : {false, true})
    for (const auto &change : changes) {
      CompileOptions changed = together ? several : options;
      change(changed);
      if (together)
        several = changed;
      DrawnOutcome next = compareDrawn(graph, changed, tolerance);
      if (next.kind == DrawnOutcome::Kind::Refused)
        continue;
      options = changed;
      return next;
    }
  return outcome;
}
