//===- FuzzDrawn.cpp - Random models with random options ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Fuzz.h"
#include "cleave/Dialect/Spmd/Transforms/Recipes.h"
#include "cleave/Scheduling/Generators/Generators.h"
#include "cleave/Testing/DrawnOptions.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace cleave;

/// Ranks of the interpreter, which computes each rank separately.
static constexpr int64_t kRanks = 8;

static void addTo(std::map<std::string, int64_t> &counts,
                  const std::set<std::string> &names) {
  for (const std::string &name : names)
    ++counts[name];
}

static llvm::json::Object toJson(const std::map<std::string, int64_t> &counts) {
  llvm::json::Object object;
  for (const auto &[name, count] : counts)
    object[name] = count;
  return object;
}

/// A message without names and numbers, by which messages are counted.
static std::string kindOf(StringRef message) {
  std::string text;
  bool quoted = false;
  for (char c : message.take_until([](char c) { return c == '\n'; })) {
    if (c == '\'' && quoted)
      quoted = false;
    else if (c == '\'')
      quoted = true;
    else if (!quoted && !llvm::isDigit(c))
      text += c;
  }
  return text;
}

int cleave::fuzzDrawn(const DialectRegistry &registry,
                      const FuzzOptions &options) {
  int64_t models = 0, notFinite = 0, refused = 0, changed = 0, failures = 0;
  double worst = 0;
  std::map<std::string, int64_t> choices, passes, refusals;
  for (int64_t i = 0; i < options.count; ++i) {
    MLIRContext context(registry, MLIRContext::Threading::DISABLED);
    uint64_t seed = options.seed + i;
    // In f32, a constant written by a rewrite is rounded.
    RandomGraphOptions form;
    form.element = "f64";
    RandomGraph graph = drawRandomGraph(&context, seed, form);
    CompileOptions drawn = drawOptions(graph, kRanks);
    std::string refusal;
    DrawnOutcome outcome =
        compareLegal(graph, drawn, options.tolerance, refusal);
    if (!refusal.empty())
      ++refusals[kindOf(refusal)];
    changed += !refusal.empty();
    std::set<std::string> own = choicesOf(drawn);
    if (options.verbose)
      llvm::errs() << "seed " << seed << ": " << drawn.phases.mesh << " "
                   << llvm::join(own, " ") << "\n";
    switch (outcome.kind) {
    case DrawnOutcome::Kind::Equal:
      ++models;
      worst = std::max(worst, outcome.worst);
      addTo(choices, own);
      addTo(passes, passesOf(&context, drawn, Phase::Scheduled));
      break;
    case DrawnOutcome::Kind::NotFinite:
      ++notFinite;
      break;
    case DrawnOutcome::Kind::Refused:
      ++refused;
      break;
    case DrawnOutcome::Kind::Different:
      ++failures;
      llvm::errs() << "seed " << seed << " (mesh " << drawn.phases.mesh << "; "
                   << llvm::join(own, " ") << "): " << outcome.message
                   << "\n  cleave-fuzz --options --count=1 --seed=" << seed
                   << "\n";
      break;
    }
  }
  llvm::outs() << llvm::formatv("{0:2}", llvm::json::Value(llvm::json::Object{
                                             {"agree", models},
                                             {"not_finite", notFinite},
                                             {"changed", changed},
                                             {"refused", refused},
                                             {"failures", failures},
                                             {"worst", worst},
                                             {"choices", toJson(choices)},
                                             {"passes", toJson(passes)},
                                             {"refusals", toJson(refusals)}}))
               << "\n";
  return failures || models == 0 ? 1 : 0;
}

int cleave::listDrawn(const DialectRegistry &registry,
                      const FuzzOptions &options) {
  MLIRContext context(registry, MLIRContext::Threading::DISABLED);
  std::map<std::string, int64_t> choices, passes;
  for (int64_t i = 0; i < options.count; ++i) {
    RandomGraph graph;
    graph.seed = options.seed + i;
    CompileOptions drawn = drawOptions(graph, kRanks);
    addTo(choices, choicesOf(drawn));
    addTo(passes, passesOf(&context, drawn, Phase::Executable));
  }
  llvm::outs() << llvm::formatv("{0:2}", llvm::json::Value(llvm::json::Object{
                                             {"choices", toJson(choices)},
                                             {"passes", toJson(passes)}}))
               << "\n";
  return 0;
}
