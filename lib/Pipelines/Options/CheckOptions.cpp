//===- CheckOptions.cpp - Rules of options with each other ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Pipelines/Options.h"
#include "cleave/Pipelines/PhaseTimes.h"
#include "cleave/Pipelines/PlanFile.h"
#include "cleave/Pipelines/ScheduleOptions.h"
#include "cleave/Support/OpenText.h"
#include <cmath>

using namespace cleave;
using llvm::StringRef;

/// The mistake that a rule has found; `text` is as in OptionRules.h.
static OptionMistake mistakeOf(const Option &option, std::string text) {
  bool continues =
      StringRef(text).starts_with(" ") || StringRef(text).starts_with(":");
  return {continues ? option.name : "", std::move(text)};
}

std::optional<OptionMistake>
cleave::checkOptions(const CompileOptions &options) {
  for (const Option &option : optionTable())
    if (option.contradiction && !option.isDefault(options))
      if (std::string why = option.contradiction(options); !why.empty())
        return mistakeOf(option, std::move(why));
  const graph::OptimizerOptions &optimizer = options.phases.optimizer;
  if (!(optimizer.maxGradNorm >= 0 && std::isfinite(optimizer.maxGradNorm)))
    return OptionMistake{"", "the norm that gradients are clipped to is finite "
                             "and not negative"};
  return std::nullopt;
}

std::vector<OptionMistake>
cleave::findIdleOptions(const CompileOptions &options) {
  std::vector<OptionMistake> found;
  for (const Option &option : optionTable())
    if (option.idle && !option.isDefault(options))
      if (std::string why = option.idle(options); !why.empty())
        found.push_back(mistakeOf(option, std::move(why)));
  return found;
}

/// Reads the file of a schedule written by hand.
static llvm::Error readSchedule(PhaseOptions &options, bool isWritten) {
  if (options.scheduleFile.empty()) {
    if (!options.scheduleText.empty())
      options.scheduleFile = "<schedule>";
    return llvm::Error::success();
  }
  if (isWritten)
    return llvm::Error::success();
  std::string error;
  auto buffer = openText(options.scheduleFile, &error);
  if (!buffer)
    return llvm::createStringError(error);
  if (buffer->getBuffer().contains('\0'))
    return llvm::createStringError(options.scheduleFile +
                                   " is not a schedule: it is not text");
  options.scheduleText = buffer->getBuffer().str();
  return llvm::Error::success();
}

llvm::Error cleave::completeOptions(CompileOptions &options) {
  PhaseOptions &phases = options.phases;
  if (llvm::Error error = readPlanFile(options))
    return error;
  if (llvm::Error error =
          readSchedule(phases, options.given.count("schedule-text")))
    return error;
  if (!phases.measuredFrom.empty()) {
    auto costs = readMeasuredCosts(phases.measuredFrom);
    if (!costs)
      return costs.takeError();
    phases.measuredCosts = std::move(*costs);
  }
  // A limit asks for what fits it.
  if (options.memoryLimit > 0 && !options.given.count("recompute"))
    phases.recompute = "auto";
  auto machine = readMachine(phases.machine);
  if (!machine)
    return machine.takeError();
  phases.machine = std::move(*machine);
  if (options.timePhases != "off")
    options.times =
        std::make_shared<PhaseTimes>(options.timePhases == "passes");
  return llvm::Error::success();
}
