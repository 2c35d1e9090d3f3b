//===- CostReport.cpp - A plan beside its closed form ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "../ReportParts.h"
#include "../ReportText.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FormatVariadic.h"

using namespace cleave;
using llvm::StringRef;
namespace json = llvm::json;

static json::Object describe(const CostFacts::Pair &pair) {
  return json::Object{
      {"form", pair.form < 0 ? json::Value(nullptr) : json::Value(pair.form)},
      {"plan", pair.plan},
      {"ratio", pair.form > 0 ? json::Value(pair.plan / pair.form)
                              : json::Value(nullptr)}};
}

json::Object cleave::describeCost(const CostFacts &cost) {
  json::Array sent, excesses, replicated, kept;
  for (const CostFacts::Replicated &entry : cost.replicated)
    replicated.push_back(json::Object{{"axis", entry.axis},
                                      {"ranks", entry.ranks},
                                      {"times", entry.times},
                                      {"line", entry.line}});
  if (!cost.missing.empty())
    return json::Object{{"missing", cost.missing},
                        {"replicated", std::move(replicated)}};
  for (const CostFacts::Row &row : cost.sent)
    sent.push_back(json::Object{{"kind", row.kind},
                                {"axes", row.axes},
                                {"terms", row.terms},
                                {"count", row.count},
                                {"elements", describe(row.elements)},
                                {"bytes", describe(row.bytes)},
                                {"exceeds", row.exceeds}});
  for (const CostFacts::Kept &term : cost.kept)
    kept.push_back(json::Object{{"term", term.term},
                                {"elements", term.elements},
                                {"ranks", term.ranks}});
  for (const CostFacts::Excess &excess : cost.excesses)
    excesses.push_back(excess.text);
  return json::Object{{"missing", nullptr},
                      {"replicated", std::move(replicated)},
                      {"sent", std::move(sent)},
                      {"operations", describe(cost.operations)},
                      {"model_operations", cost.modelOperations},
                      {"repeated", describe(cost.repeated)},
                      {"parameter_bytes", describe(cost.parameterBytes)},
                      {"state_bytes", describe(cost.stateBytes)},
                      {"kept", std::move(kept)},
                      {"working", cost.working},
                      {"excesses", std::move(excesses)}};
}

/// `form 1.0 GiB, plan 1.1 GiB, ratio 1.100`.
template <typename Format>
static std::string sides(const json::Object &pair, Format format) {
  auto form = pair.getNumber("form"), ratio = pair.getNumber("ratio");
  return "form " + (form ? format(*form) : "none") + ", plan " +
         format(number(pair, "plan")) +
         (ratio ? llvm::formatv(", ratio {0:f3}", *ratio).str() : "");
}

std::vector<std::string> cleave::explainReplicated(const json::Object &report) {
  std::vector<std::string> lines;
  const json::Object *cost = report.getObject("cost");
  const json::Array *found = cost ? cost->getArray("replicated") : nullptr;
  if (!found)
    return lines;
  for (const json::Value &value : *found) {
    const json::Object &entry = *value.getAsObject();
    lines.push_back(
        llvm::formatv("replicated: the {0} ranks of \"{1}\" compute {2:f2} "
                      "times the operations of a step together",
                      entry.getInteger("ranks").value_or(1),
                      textOf(entry, "axis"), number(entry, "times"))
            .str());
    if (std::string line = textOf(entry, "line"); !line.empty())
      lines.back() += ", most of the repeated ones at " + line;
  }
  return lines;
}

std::vector<std::string> cleave::explainCost(const json::Object &report) {
  const json::Object *cost = report.getObject("cost");
  if (!cost)
    return {"cost: no step is trained"};
  std::vector<std::string> replicated = explainReplicated(report);
  if (std::string missing = textOf(*cost, "missing"); !missing.empty()) {
    replicated.insert(replicated.begin(),
                      "cost: no closed form for " + missing);
    return replicated;
  }
  auto operations = [](double n) { return llvm::formatv("{0:e3}", n).str(); };
  std::vector<std::string> lines{
      "of one rank of each pipeline position, in a step",
      "operations: " + sides(*cost->getObject("operations"), operations),
      "parameters at rest: " +
          sides(*cost->getObject("parameter_bytes"), formatBytes),
      "optimizer state: " +
          sides(*cost->getObject("state_bytes"), formatBytes)};
  for (const json::Value &value : *cost->getArray("sent")) {
    const json::Object &row = *value.getAsObject();
    std::string terms = textOf(row, "terms");
    lines.push_back(textOf(row, "kind") + " over " + textOf(row, "axes") +
                    ": " + sides(*row.getObject("bytes"), formatBytes) +
                    (terms.empty() ? "" : " (" + terms + ")"));
  }
  llvm::append_range(lines, replicated);
  for (const json::Value &excess : *cost->getArray("excesses"))
    lines.push_back("excess: " + excess.getAsString()->str());
  return lines;
}
