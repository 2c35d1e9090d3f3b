//===- PipelineOptions.cpp - Options of pipelines -------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "DeclareOptions.h"
#include "OptionRules.h"
#include "cleave/Pipelines/ScheduleOptions.h"
#include "cleave/Scheduling/Generators/Generators.h"

using namespace cleave;
using llvm::StringRef;

static std::string describeSchedules() {
  std::string names;
  for (const scheduling::Generator &generator : scheduling::generators())
    names += generator.name.str() +
             (generator.name == "1f1b" ? " (the default), " : ", ");
  return "The order of a pipeline: " + names +
         "or auto, which searches for the fastest. --schedule=help says more";
}

static bool hasPipeline(const CompileOptions &options) {
  return pipelineSize(options.phases.mesh).has_value();
}

/// Modules may begin where stages do.
static bool hasStages(const CompileOptions &options) {
  return hasPipeline(options) || options.phases.gradHorizon;
}

void cleave::declarePipeline(OptionTable &table) {
  const std::string idle = " needs a pipeline, and {mesh} has no axis \"pp\"";
  table.text("schedule", &PhaseOptions::schedule)
      .plain()
      .form("name")
      .drawn({"gpipe", "1f1b", "zb-h1", "pipedream", "auto", "2f2b"})
      .says(describeSchedules())
      .valid([](StringRef name) -> std::string {
        std::string error;
        if (name.empty() || name == "auto" ||
            scheduling::findGenerator(name, error))
          return "";
        return error;
      })
      .refused(asynchronousProblem)
      .idleUnless(hasPipeline, idle);
  table.text("schedule-text", &PhaseOptions::scheduleText)
      .withoutFlag()
      .inPython("schedule")
      .says("Instead of {schedule}, an order written by hand: a line for each "
            "position of the pipeline, as F0 F1 B0 B1 U");
  table.text("schedule-file", &PhaseOptions::scheduleFile)
      .inPython("schedule")
      .form("file")
      .says("Instead of {schedule}, the file of an order written by hand: a "
            "line for each position of the pipeline, as F0 F1 B0 B1 U, with or "
            "without transfers; docs/Parallelism.md describes the format")
      .refused(handWrittenProblem);
  table.integer("virtual-stages", &PhaseOptions::chunks)
      .formerly("chunks")
      .least(1)
      .drawn({"1", "2", "0"})
      .says("Stages for each position of the pipeline; by default as the "
            "schedule requires")
      .idleUnless(hasPipeline, idle);
  table.text("stages", &PhaseOptions::stages)
      .form("names")
      .says("Where stages begin, from the second on: at the first reader of a "
            "parameter whose name has this prefix (transformer.h.6.,"
            "transformer.h.12.). By default, stages have even cost")
      .idleUnless(hasStages, idle);
  table.choice("pipe-slices", &PhaseOptions::pipeSlices, {"auto", "on", "off"})
      .says("Whether ranks that hold replicas of a value send it to other "
            "stages in slices, gathered there: auto: if fewer elements are "
            "sent in total, or as many where pp is major to the axes of these "
            "ranks in the mesh; on: wherever it is divisible (links between "
            "stages may be slower than those within one); off: never")
      .idleUnless(hasPipeline, idle);
  table.size("max-saved-bytes", &PhaseOptions::maxSavedBytes)
      .formerly("max-saved-mib", 1 << 20)
      .least(0)
      .drawn({"1GiB", "0", "-5", "lots"})
      .says("The limit of the memory that a pipeline position may have saved "
            "for backward at a time; {schedule} auto respects it, any other "
            "order that exceeds it is an error")
      .idleUnless(hasPipeline, idle);
  table.text("measured-costs", &PhaseOptions::measuredFrom)
      .form("file")
      .says("A trace written by cleave-run --trace: schedules are predicted, "
            "and searched for, by the times of the pipeline's parts in it, "
            "instead of by {machine}");
  table.integer("max-staleness", &PhaseOptions::maxStaleness)
      .form("updates")
      .least(0)
      .drawn({"0", "1", "-1"})
      .says("For an asynchronous schedule: the largest number of updates of "
            "other micro-batches between the read of the parameters by one "
            "micro-batch and its own update; 0 means one after another")
      .needs(updatesAfterEach, ": updates are after all micro-batches, so that "
                               "none is missing; leave the bound out, or "
                               "choose the schedule pipedream");
  table.flag("post-validation", &PhaseOptions::postValidation)
      .says("In a pipeline, each stage updates when its own gradients are "
            "complete; if the scalars computed from all stages, as for a clip, "
            "differ from those it assumed, it updates again from a copy of the "
            "old values (arXiv 2401.10241, section 4). The bits are the same; "
            "the copy takes as much memory as parameters and state");
  table
      .choice("pipe-gather", &PhaseOptions::pipeGather,
              {"each", "once", "auto"})
      .says("When sharded parameters (zero3) are gathered. each, the default: "
            "in forward and in backward of each micro-batch, and released "
            "after the last use; once: before the first forward of a step, and "
            "held until the last backward; auto: once if the gathered "
            "parameters have no more bytes than the parameters and the "
            "optimizer's state of a device, else each")
      .refused([](const CompileOptions &options) -> std::string {
        return options.phases.pipeGather == "once" && updatesAfterEach(options)
                   ? ": an asynchronous schedule updates parameters after each "
                     "micro-batch, so that what is gathered is another value "
                     "for each; leave it out, or choose a synchronous schedule"
                   : "";
      });
}
