//===- PhasePipelines.cpp - Phases as pipelines of cleave-opt -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Pipelines/PhasePipelines.h"
#include "cleave/Pipelines/Options.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassOptions.h"
#include "mlir/Pass/PassRegistry.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/FormatVariadic.h"
#include <list>

using namespace mlir;
using namespace cleave;

/// Options of the pipelines besides those of the table and of update rules.
static constexpr StringLiteral kRule = "optimizer",
                               kWriteOut = "write-out-actions";

/// `weight_decay` as flags have it.
static std::string hyphened(StringRef name) {
  return llvm::join(llvm::split(name, '_'), "-");
}

namespace {

/// The options as texts.
struct PipelineTexts : detail::PassOptions {
  PipelineTexts() {
    for (const cleave::Option &row : optionTable())
      if (!row.flag.empty())
        add(row.flag);
    for (graph::NamedSetting &setting : graph::allOptimizerSettings())
      add(hyphened(setting.name));
    for (StringRef name : {kRule, kWriteOut})
      add(name.str());
  }

  /// The text of an option; nothing where it is not given.
  std::optional<StringRef> find(StringRef name) const {
    for (const Text &own : texts)
      if (own.name == name && own.value->getNumOccurrences())
        return StringRef(own.value->getValue());
    return std::nullopt;
  }

private:
  struct Text {
    std::string name;
    std::unique_ptr<Option<std::string>> value;
  };

  void add(std::string name) {
    // The option refers to the name, which must not move.
    Text &own = texts.emplace_back(Text{std::move(name), nullptr});
    own.value = std::make_unique<Option<std::string>>(
        *this, StringRef(own.name), llvm::cl::desc(""));
  }

  std::list<Text> texts;
};

} // namespace

/// Reads the optimizer. Returns what is wrong, or "".
static std::string readOptimizer(const PipelineTexts &texts,
                                 graph::OptimizerOptions &out) {
  out.rule = texts.find(kRule).value_or(out.rule).str();
  const graph::OptimizerRule *rule = graph::findOptimizerRule(out.rule);
  if (!rule)
    return "unknown optimizer '" + out.rule + "'; there are " +
           graph::optimizerRuleNames();
  for (const graph::NamedSetting &setting : graph::allOptimizerSettings()) {
    std::string name = hyphened(setting.name);
    std::optional<StringRef> text = texts.find(name);
    if (!text)
      continue;
    std::optional<double> value = graph::parseSetting(*text);
    if (!value)
      return name + " is '" + text->str() + "', which is not a number";
    if (!rule->find(setting.name))
      return name + " has no effect with optimizer=" + out.rule;
    out.settings[setting.name.str()] = *value;
  }
  return graph::checkSettings(*rule, out.settings);
}

/// Reads the options of a phase. Returns what is wrong, or "".
static std::string readOptions(const PipelineTexts &texts,
                               CompileOptions &out) {
  auto say = [](const OptionMistake &mistake) {
    return mistake.str(Entrance::CommandLine);
  };
  if (std::string mistake = readOptimizer(texts, out.phases.optimizer);
      !mistake.empty())
    return mistake;
  for (const Option &row : optionTable())
    if (!row.flag.empty())
      if (std::optional<StringRef> text = texts.find(row.flag))
        if (auto mistake = row.set(out, *text, row.unit))
          return say(*mistake);
  if (llvm::Error error = completeOptions(out))
    return llvm::toString(std::move(error));
  if (auto mistake = checkOptions(out))
    return say(*mistake);
  if (std::optional<StringRef> text = texts.find(kWriteOut)) {
    if (*text != "true" && *text != "false")
      return kWriteOut.str() + " is true or false, not '" + text->str() + "'";
    out.phases.writeOutActions = *text == "true";
  }
  settleTarget(out);
  return "";
}

/// Adds the passes of `phase`, with the options of `text`.
static LogicalResult
addFromText(Phase phase, OpPassManager &passes, StringRef text,
            function_ref<LogicalResult(const Twine &)> errorHandler) {
  PipelineTexts texts;
  if (failed(texts.parseFromString(text)))
    return failure();
  CompileOptions options;
  if (std::string mistake = readOptions(texts, options); !mistake.empty())
    return errorHandler(mistake);
  // It compares whole programs.
  if (phase >= Phase::Scheduled && options.phases.recompute == "auto")
    return errorHandler("--recompute auto is decided by cleave-compile, whose "
                        "--dump-phases says which policy it chose; give that");
  addPhase(passes, phase, options.phases);
  return success();
}

void cleave::registerPhasePipelines() {
  static constexpr StringLiteral descriptions[] = {
      "The phase model: its verifier",
      "The phase step: forward, backward and update on whole tensors",
      "The phase placed: every value has a sharding",
      "The phase local: shapes per rank, and collectives",
      "The phase scheduled: parts, and the order of their actions",
      "The phase executable: kernels, library calls, and offsets"};
  for (auto [i, description] : llvm::enumerate(descriptions)) {
    auto phase = static_cast<Phase>(i);
    mlir::registerPassPipeline(
        ("phase-" + phaseName(phase)).str(),
        (description + "; options are those of cleave-compile, without hyphens")
            .str(),
        [phase](OpPassManager &passes, StringRef options,
                function_ref<LogicalResult(const Twine &)> errorHandler) {
          return addFromText(phase, passes, options, errorHandler);
        },
        // There are too many to list for each phase.
        [](function_ref<void(const detail::PassOptions &)>) {});
  }
}

//===----------------------------------------------------------------------===//
// As text
//===----------------------------------------------------------------------===//

/// A value as `cleave-opt` reads it.
static std::string quoted(StringRef value) {
  bool plain = !value.empty() && llvm::none_of(value, [](char c) {
    return StringRef(" ,;{}\"'\n\t").contains(c);
  });
  if (plain || !value.contains('"'))
    return plain ? value.str() : ("\"" + value + "\"").str();
  return ("{" + value + "}").str();
}

static std::string textOf(const OptionValue &value) {
  if (auto *flag = std::get_if<bool>(&value))
    return *flag ? "on" : "off";
  if (auto *integer = std::get_if<int64_t>(&value))
    return std::to_string(*integer);
  if (auto *number = std::get_if<double>(&value))
    return llvm::formatv("{0}", llvm::format("%.17g", *number)).str();
  return std::get<std::string>(value);
}

std::string cleave::pipelineOptions(const CompileOptions &options) {
  std::string text;
  auto add = [&](StringRef name, StringRef value) {
    text += (text.empty() ? "" : " ") + name.str() + "=" + quoted(value);
  };
  const graph::OptimizerOptions &optimizer = options.phases.optimizer;
  const graph::OptimizerOptions plain;
  if (optimizer.rule != plain.rule)
    add(kRule, optimizer.rule);
  for (const auto &[name, value] : optimizer.settings)
    add(hyphened(name), textOf(value));
  for (const Option &row : optionTable())
    if (!row.flag.empty() && !row.isDefault(options))
      add(row.flag,
          textOf(row.get(options)) +
              (row.kind == OptionKind::Size && row.unit > 1 ? "B" : ""));
  if (options.phases.writeOutActions)
    add(kWriteOut, "true");
  return text;
}
