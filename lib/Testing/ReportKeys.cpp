//===- ReportKeys.cpp - Plans do not follow from reports ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Testing/ReportKeys.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Pipelines/ScheduleOptions.h"
#include "cleave/Planning/Fit.h"
#include "cleave/Planning/GenerateCode.h"
#include "cleave/Planning/MeasureMachine.h"
#include "cleave/Planning/PlanPhases.h"

using namespace mlir;
using namespace cleave;
namespace json = llvm::json;

/// What every key begins with in the second plan.
static constexpr llvm::StringLiteral kPrefix = "renamed ";

namespace {
/// What was decided, by name; and reports as they were written.
struct Decided {
  std::map<std::string, std::string> texts;
  std::vector<std::string> reports;
};
} // namespace

static std::string textOf(ModuleOp module) {
  std::string text;
  llvm::raw_string_ostream os(text);
  module.print(os, OpPrintingFlags().enableDebugInfo(false));
  return text;
}

static std::string joined(const std::vector<std::string> &lines) {
  return llvm::join(lines, "\n");
}

/// Plans and compiles a model, and reports it.
static void compile(ModuleOp model, const CompileOptions &options,
                    Decided &decided) {
  OwningOpRef<ModuleOp> module = model.clone();
  FailureOr<Report> schedule = failure();
  Decisions decisions;
  auto after = [&](Phase phase, ModuleOp reached) {
    if (phase != Phase::Scheduled)
      return;
    decided.texts["the scheduled phase"] = textOf(reached);
    schedule = scheduleReport(reached, costSource(options.phases));
  };
  LogicalResult planned =
      runPhases(*module, Phase::Executable, options, after, &decisions);
  if (decisions.recompute)
    decided.texts["the policy of recomputation"] = decisions.recompute->policy;
  if (failed(planned) || failed(schedule))
    return;
  decided.texts["the executable phase"] = textOf(*module);
  FailureOr<PlannedProgram> program = planProgram(*module, options);
  if (failed(program))
    return;
  decided.texts["the limit"] = checkLimit(program->memory, options);
  decided.texts["programs"] = runtime::toJSON(program->positions);
  if (!options.traits().isGpu()) {
    FailureOr<CompiledProgram> code = generateCode(*module, options, *program);
    if (succeeded(code))
      decided.texts["kernels"] = code->object;
  }
  ProgramFacts facts = describeProgram(*module, options, decisions, *program);
  Report report = programReport(*module, facts, *schedule);
  for (Detail detail : {Detail::Summary, Detail::Layers, Detail::Full,
                        Detail::Memory, Detail::Cost})
    decided.texts["lines of detail " + std::to_string(int(detail))] =
        joined(explainReport(report, detail));
  if (facts.prediction)
    decided.texts["the prediction"] =
        joined(explainPrediction(*facts.prediction));
  decided.reports = {schedule->str(), report.str()};
}

static Decided decide(ModuleOp model, const PlanQuestion &question) {
  Decided decided;
  std::string &messages = decided.texts["messages"];
  ScopedDiagnosticHandler handler(model.getContext(),
                                  [&](Diagnostic &diagnostic) {
                                    messages += diagnostic.str() + "\n";
                                    return success();
                                  });
  if (auto asked = parseFitQuestion(question.name)) {
    FailureOr<FitAnswer> fit = findFit(model, question.options, *asked);
    if (failed(fit))
      return decided;
    decided.texts["what fits"] = joined(explainFit(*fit));
    decided.reports = {fitReport(*fit).str()};
  } else if (question.name == "measure") {
    // Rates differ from one run to the next.
    auto rates = measureMachine(model, question.options);
    decided.texts["whether a rate is known"] =
        !rates ? llvm::toString(rates.takeError())
        : StringRef(*rates).contains("\ncontraction=") ? "known"
                                                       : "unknown";
  } else {
    compile(model, question.options, decided);
  }
  return decided;
}

/// `value` with its keys as they are without the prefix; counts them, and says
/// which one has none.
static json::Value restored(const json::Value &value, int64_t &keys,
                            std::string &without) {
  if (const json::Array *array = value.getAsArray()) {
    json::Array all;
    for (const json::Value &item : *array)
      all.push_back(restored(item, keys, without));
    return all;
  }
  const json::Object *object = value.getAsObject();
  if (!object)
    return value;
  json::Object all;
  for (const auto &[name, item] : *object) {
    StringRef key = name;
    if (!key.consume_front(kPrefix))
      without = key.str();
    ++keys;
    all[key] = restored(item, keys, without);
  }
  return all;
}

/// What two reports say differently but for the names of keys.
static std::string compareReports(StringRef plain, StringRef renamed,
                                  int64_t &keys) {
  auto first = json::parse(plain), second = json::parse(renamed);
  if (!first || !second) {
    llvm::consumeError(first.takeError());
    llvm::consumeError(second.takeError());
    return "a report is not JSON";
  }
  std::string without;
  json::Value back = restored(*second, keys, without);
  if (!without.empty())
    return "a report has the key '" + without + "', which is not renamed";
  return back == *first ? "" : "a report says something else";
}

std::string cleave::compareRenamed(ModuleOp model, const PlanQuestion &question,
                                   int64_t &keys) {
  Decided plain = decide(model, question);
  renameReportKeys(kPrefix);
  Decided renamed = decide(model, question);
  renameReportKeys("");
  for (const auto &[name, text] : plain.texts)
    if (auto other = renamed.texts.find(name);
        other == renamed.texts.end() || other->second != text)
      return name + " differs";
  if (plain.texts.size() != renamed.texts.size() ||
      plain.reports.size() != renamed.reports.size())
    return "more is decided";
  for (auto [first, second] : llvm::zip_equal(plain.reports, renamed.reports))
    if (std::string wrong = compareReports(first, second, keys); !wrong.empty())
      return wrong;
  return "";
}

/// The bytes that a device needs; nothing if the options are refused.
static std::optional<int64_t> bytesNeeded(ModuleOp model,
                                          const CompileOptions &options) {
  ScopedDiagnosticHandler handler(model.getContext(),
                                  [](Diagnostic &) { return success(); });
  OwningOpRef<ModuleOp> module = model.clone();
  if (failed(runPhases(*module, Phase::Executable, options, nullptr)))
    return std::nullopt;
  FailureOr<PlannedProgram> planned = planProgram(*module, options);
  if (failed(planned))
    return std::nullopt;
  return planned->memory.neededBytes();
}

std::vector<PlanQuestion> cleave::planQuestions(ModuleOp model,
                                                const CompileOptions &options) {
  std::optional<int64_t> bytes = bytesNeeded(model, options);
  if (!bytes)
    return {};
  std::vector<PlanQuestion> questions{{"plan", options}};
  auto add = [&](StringRef name, int64_t limit) -> CompileOptions & {
    questions.push_back({name.str(), options});
    questions.back().options.memoryLimit = limit;
    return questions.back().options;
  };
  add("limit", *bytes * 15 / 16).phases.recompute = "auto";
  add("refused", 1).phases.recompute = "auto";
  add("over", *bytes - 1);
  add("micro-batch", *bytes * 7 / 8).phases.recompute = "auto";
  CompileOptions &grown = add("devices", *bytes * 7 / 8);
  if (grown.phases.mesh.empty())
    grown.phases.mesh = "dp=1";
  CompileOptions &gpu = add("predict", 0);
  gpu.target = "cuda";
  gpu.predict = "h200";
  return questions;
}
