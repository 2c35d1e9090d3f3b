//===- Flags.cpp - The command line of cleave-compile ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Flags.h"
#include "cleave/Dialect/Graph/Transforms/PrecisionPatterns.h"
#include "cleave/Dialect/Spmd/Transforms/Recipes.h"
#include "cleave/Pipelines/PlanFile.h"
#include "cleave/Pipelines/ScheduleOptions.h"
#include "cleave/Planning/PredictStep.h"
#include "cleave/Reports/Reports.h"
#include "cleave/Scheduling/Generators/Generators.h"

using namespace mlir;
using namespace cleave;

cl::OptionCategory cleave::general("General");
cl::OptionCategory cleave::training("Optimizer and parameters");

void cleave::listRecipes(raw_ostream &os) {
  os << "recipe         axes           splits\n";
  for (const spmd::RecipeInfo &info : spmd::recipeTable()) {
    std::string axes;
    for (const spmd::RecipeAxis &axis : info.axes)
      axes += (axes.empty() ? "" : ",") + axis.name.str();
    os << llvm::formatv("{0,-14} {1,-14} {2}\n", info.name, axes, info.summary);
  }
}

void cleave::listSchedules(raw_ostream &os) {
  os << "schedule     stages of a position\n";
  for (const scheduling::Generator &generator : scheduling::generators())
    os << llvm::formatv("{0,-12} {1,-9}  {2}\n", generator.name,
                        generator.chunks ? std::to_string(generator.chunks)
                                         : "2 or more",
                        generator.description);
  os << "auto         --virtual-stages  the fastest by the estimated costs of "
        "the stages, within --max-saved-bytes\n"
        "Saved values are counted in micro-batches of even stages, m of them, "
        "on p positions.\nIn bytes, those with a split backward (";
  std::string split;
  for (const scheduling::Generator &generator : scheduling::generators())
    if (generator.split)
      split += generator.name.str() + ", ";
  os << split
     << "auto) save more for each:\nalso what the gradients of weights (W) "
        "need "
        "of those of inputs (I).\n";
}

std::string cleave::readOptions(const Flags &flags, CompileOptions &options) {
  if (std::string mistake = checkOptimizerFlags(flags); !mistake.empty())
    return mistake;
  options.phases.optimizer.rule = flags.optimizer;
  (void)flags.settings.read(options.phases.optimizer.settings);
  options.predict = flags.predict;
  if (std::string mistake = flags.options.read(options); !mistake.empty())
    return mistake;
  if (flags.options.given("recompute") && !flags.recomputeFile.empty())
    return "--recompute and --recompute-file exclude each other";
  return "";
}

std::string cleave::findMistake(const Flags &flags, CompileOptions options) {
  // Kernels are printed for a GPU that the target is not.
  if (flags.emit == "cuda" && !options.traits().isGpu())
    options.architecture = CompileOptions().architecture;
  auto mistake = checkOptions(options);
  return mistake ? mistake->str(Entrance::CommandLine) : "";
}

/// Why flags of what is written exclude each other; empty if they do not.
static std::string checkOutputs(const Flags &flags,
                                const CompileOptions &options) {
  bool shown = flags.emit == "llvm" || flags.emit == "cuda" ||
               flags.emit == "schedule" || flags.emit == "memory";
  if (!flags.emit.empty() && !shown && !parsePhase(flags.emit))
    return "--emit is model, step, placed, local, scheduled, executable, llvm, "
           "cuda, schedule or memory, not '" +
           flags.emit + "'";
  if (flags.explain.getNumOccurrences() && !parseDetail(flags.explain))
    return "--explain is summary, layers, full, memory or cost, not '" +
           flags.explain + "'";
  if (!flags.emit.empty() && !flags.explain.empty())
    return "--explain is of an artifact: it excludes --emit";
  if (flags.planOnly && (!flags.output.empty() || !flags.emit.empty()))
    return "--plan-only generates no code: it excludes -o and --emit";
  if (flags.emit.empty() && flags.output.empty() && flags.reportFile.empty() &&
      flags.explain.empty() && !flags.planOnly && flags.fit.empty() &&
      flags.measureMachine.empty())
    return "nothing to write: give -o, --emit, --report, --explain, "
           "--plan-only, --fit or --measure-machine";
  if (options.checkCost &&
      ((!flags.emit.empty() && flags.emit != "memory") || !flags.fit.empty() ||
       !flags.measureMachine.empty()))
    return "--check-cost is of the plan of a step: it excludes --emit, but of "
           "memory, --fit and --measure-machine";
  if (!flags.output.empty() && flags.emit.empty() &&
      options.phases.expertOverflow == "grow")
    return "--expert-overflow: grow is of the step of cleave.compile in "
           "Python, which is compiled again, and -o writes an artifact; give "
           "abort, with an --expert-buffer that suffices, as worst";
  if (!flags.savePlan.empty() && !isPlanFile(flags.savePlan))
    return "--save-plan: the name of a plan file ends with .plan";
  if (!flags.savePlan.empty() &&
      (!flags.fit.empty() || !flags.measureMachine.empty()))
    return "--save-plan is of one step: it excludes --fit and "
           "--measure-machine";
  if (flags.emit.empty() && flags.output == "-")
    return "an artifact cannot be written to standard output";
  if (!flags.emit.empty() && flags.emit != "schedule" &&
      !flags.reportFile.empty())
    return "--report needs an artifact: it excludes --emit";
  if (!flags.scheduleFormat.empty() &&
      !parseScheduleFormat(flags.scheduleFormat))
    return "--schedule-format is text, svg or perfetto, not '" +
           flags.scheduleFormat + "'";
  for (const cl::Option *flag :
       {static_cast<const cl::Option *>(&flags.scheduleFormat),
        static_cast<const cl::Option *>(&flags.measured)})
    if (flag->getNumOccurrences() && flags.emit != "schedule")
      return ("--" + flag->ArgStr + " needs --emit=schedule").str();
  return "";
}

std::string cleave::checkFlags(const Flags &flags,
                               const CompileOptions &options) {
  if (!flags.precisionPolicy.empty()) {
    if (options.phases.precision == "f32")
      return "--precision-policy needs --precision bf16 or fp16: all ops are "
             "computed in f32 without";
    if (auto policy = graph::PrecisionPatterns::read(flags.precisionPolicy);
        !policy)
      return "--precision-policy: " + llvm::toString(policy.takeError());
  }
  if (std::string mistake = checkFitFlags(flags, options); !mistake.empty())
    return mistake;
  if (options.traits().isGpu() && flags.emit == "llvm")
    return "--emit=llvm is of --target cpu; --emit=cuda shows the kernels";
  if (!flags.predict.empty() && !options.traits().isGpu())
    return "--predict is of --target cuda";
  if (!flags.predict.empty() &&
      !llvm::is_contained(predictedDevices(), StringRef(flags.predict)))
    return "--predict is h200, h100 or a100, not '" + flags.predict + "'";
  return checkOutputs(flags, options);
}
