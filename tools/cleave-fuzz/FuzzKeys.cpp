//===- FuzzKeys.cpp - Plans with renamed keys of reports ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Fuzz.h"
#include "cleave/Testing/DrawnOptions.h"
#include "cleave/Testing/ReportKeys.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace cleave;

/// Ranks are threads of this process where a program runs.
static constexpr int64_t kRanks = 4;

int cleave::fuzzKeys(const DialectRegistry &registry,
                     const FuzzOptions &options) {
  int64_t models = 0, refused = 0, keys = 0, failures = 0;
  std::map<std::string, int64_t> questions;
  for (int64_t i = 0; i < options.count; ++i) {
    MLIRContext context(registry, MLIRContext::Threading::DISABLED);
    RandomGraph graph = drawRandomGraph(&context, options.seed + i, {});
    CompileOptions drawn = drawOptions(graph, kRanks);
    drawn.verify = Verify::Never;
    auto asked = planQuestions(*graph.module, drawn);
    asked.empty() ? ++refused : ++models;
    if (!asked.empty() && models == 1)
      asked.push_back({"measure", CompileOptions()});
    for (const PlanQuestion &question : asked) {
      ++questions[question.name];
      std::string wrong = compareRenamed(*graph.module, question, keys);
      if (wrong.empty())
        continue;
      ++failures;
      llvm::errs() << "seed " << graph.seed << ", " << question.name << ": "
                   << wrong << " when keys of reports are renamed\n";
    }
  }
  llvm::json::Object counts;
  for (const auto &[name, count] : questions)
    counts[name] = count;
  llvm::outs() << llvm::formatv("{0:2}", llvm::json::Value(llvm::json::Object{
                                             {"models", models},
                                             {"refused", refused},
                                             {"questions", std::move(counts)},
                                             {"keys", keys},
                                             {"failures", failures}}))
               << "\n";
  return failures || models == 0 ? 1 : 0;
}
