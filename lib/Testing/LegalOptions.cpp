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

#include "cleave/Testing/DrawnOptions.h"
#include "llvm/ADT/StringExtras.h"

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

/// The changes that are tried, those first that leave the most.
static const std::vector<void (*)(CompileOptions &)> &changes() {
  static const std::vector<void (*)(CompileOptions &)> all = {
      [](CompileOptions &o) { o.phases.prune.clear(); },
      [](CompileOptions &o) { o.phases.quantize.clear(); },
      [](CompileOptions &o) {
        o.phases.gradHorizon = 0, o.phases.modules = "";
      },
      [](CompileOptions &o) { o.phases.compress.clear(); },
      [](CompileOptions &o) { o.phases.optimizer.maxGradNorm = 0; },
      [](CompileOptions &o) { o.phases.checkFinite = false; },
      [](CompileOptions &o) { o.phases.postValidation = false; },
      [](CompileOptions &o) { o.phases.pipeGather = ""; },
      [](CompileOptions &o) { o.phases.chunks = 0; },
      [](CompileOptions &o) { o.phases.maxStaleness = -1; },
      [](CompileOptions &o) { o.phases.stageDensity.reset(); },
      [](CompileOptions &o) { o.phases.updateDelay.clear(); },
      [](CompileOptions &o) { o.phases.offload.clear(); },
      [](CompileOptions &o) { o.phases.grains = 0; },
      [](CompileOptions &o) { o.phases.microBatches = 1; },
      [](CompileOptions &o) { dropRecipe(o.phases, 0); },
      [](CompileOptions &o) { dropRecipe(o.phases, 1); },
      [](CompileOptions &o) { o.parameters.clear(); },
      [](CompileOptions &o) { o.phases.optimizerFusion = "auto"; },
      [](CompileOptions &o) { o.phases.schedule.clear(); },
      [](CompileOptions &o) {
        o.phases.mesh.clear(), o.phases.recipes.clear();
      },
  };
  return all;
}

DrawnOutcome cleave::compareLegal(const RandomGraph &graph,
                                  CompileOptions &options, double tolerance,
                                  std::string &refusal) {
  DrawnOutcome outcome = compareDrawn(graph, options, tolerance);
  refusal = outcome.kind == DrawnOutcome::Kind::Refused ? outcome.message : "";
  if (refusal.empty())
    return outcome;
  CompileOptions several = options;
  for (bool together : {false, true})
    for (auto change : changes()) {
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
