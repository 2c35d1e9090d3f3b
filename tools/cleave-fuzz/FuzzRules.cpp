//===- FuzzRules.cpp - Sharding rules, by execution -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Fuzz.h"
#include "cleave/Testing/ShardingRules.h"
#include "llvm/Support/FormatVariadic.h"
#include <map>

using namespace mlir;
using namespace cleave;

using RuleTallies = std::map<std::string, RuleTally>;

/// Prints what was tested, by op; returns the exit status.
static int printTallies(const RuleTallies &tallies) {
  llvm::json::Object ops;
  int64_t failures = 0;
  for (auto &[name, tally] : tallies) {
    ops[name] =
        llvm::json::Object{{"ops", tally.ops},     {"splits", tally.splits},
                           {"sums", tally.sums},   {"pads", tally.pads},
                           {"inner", tally.inner}, {"failures", tally.failures},
                           {"worst", tally.worst}};
    failures += tally.failures;
  }
  llvm::outs() << llvm::formatv("{0:2}", llvm::json::Value(std::move(ops)))
               << "\n";
  return failures || tallies.empty() ? 1 : 0;
}

int cleave::checkRulesOfModule(MLIRContext &context,
                               const FuzzOptions &options) {
  std::optional<GivenModule> given = readGiven(context, options);
  RuleTallies tallies;
  if (!given || failed(checkShardingRules(*given->module, "train",
                                          given->inputs, tallies)))
    return 1;
  return printTallies(tallies);
}

int cleave::checkRulesOfModels(MLIRContext &context,
                               const FuzzOptions &options) {
  RuleTallies tallies;
  for (int64_t i = 0; i < options.count; ++i)
    for (const char *pipeline : {"graph-differentiate,graph-apply-optimizer",
                                 "graph-chunk-loss,graph-differentiate,graph-"
                                 "apply-optimizer{optimizer="
                                 "sgd momentum=0.9 max-grad-norm=0.1}"}) {
      RandomGraph graph = drawRandomGraph(&context, options.seed + i, {});
      StepForm phase{"", pipeline};
      NamedTensors inputs;
      OwningOpRef<ModuleOp> module = lowerToPhase(graph, phase, inputs);
      if (!module ||
          failed(checkShardingRules(*module, phase.entry, inputs, tallies)))
        return 1;
    }
  return printTallies(tallies);
}
