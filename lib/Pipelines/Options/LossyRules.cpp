//===- LossyRules.cpp - Rules of what changes the mathematics -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "OptionRules.h"
#include "cleave/Dialect/Graph/Transforms/UpdateDelay.h"
#include "cleave/Pipelines/ScheduleOptions.h"

using namespace cleave;
using llvm::StringRef;

std::string cleave::compressionProblem(const CompileOptions &all) {
  const PhaseOptions &options = all.phases;
  if (options.mesh.empty())
    return ": compressed gradients need a mesh: nothing is summed over ranks "
           "without one";
  if (options.grains > 0)
    return ": compressed gradients depend on the number of ranks: they cannot "
           "be "
           "deterministic for every number of them";
  if (pipelineShape(options).asynchronous)
    return ": compressed gradients need a synchronous schedule: '" +
           options.schedule + "' updates after each micro-batch";
  if (options.optimizerFusion == "backward")
    return ": compressed gradients are complete after backward: updates cannot "
           "run in it";
  if (options.optimizerFusion == "forward")
    return ": compressed gradients leave a residual for the next step: updates "
           "cannot be deferred to it";
  return "";
}

std::string cleave::stageCompressionProblem(const CompileOptions &all) {
  const PhaseOptions &options = all.phases;
  if (countStages(options) < 2)
    return ": compressed boundaries of stages need a pipeline of two or more "
           "stages: the mesh has no axis \"pp\" with them";
  if (options.grains > 0)
    return ": compressed boundaries depend on where stages begin: they cannot "
           "be "
           "deterministic for every number of ranks";
  if (options.gradHorizon != 0)
    return ": compressed boundaries do not go with a gradient horizon: its "
           "heads "
           "read copies of what modules send";
  return "";
}

std::string cleave::updateDelayProblem(const CompileOptions &all) {
  const PhaseOptions &options = all.phases;
  llvm::Expected<graph::UpdateDelay> delay =
      graph::UpdateDelay::parse(options.updateDelay);
  if (!delay)
    return ": " + llvm::toString(delay.takeError());
  if (!delay->any())
    return "";
  if (pipelineShape(options).asynchronous)
    return ": delayed updates need a synchronous schedule: '" +
           options.schedule + "' updates after each micro-batch";
  if (options.optimizerFusion == "forward")
    return ": delayed updates run in the step that they are for: they cannot "
           "be "
           "deferred to the next one";
  if (options.postValidation)
    return ": delayed updates need no validation afterwards: their gradients "
           "were checked in the steps before";
  if (!delay->reducesNext())
    return "";
  if (!options.compress.empty())
    return ": 'reduce=next' adds up whole gradients: they cannot "
           "be compressed";
  if (options.mesh.empty())
    return ": 'reduce=next' needs a mesh: nothing is summed over "
           "ranks without one";
  if (options.grains > 0)
    return ": 'reduce=next' keeps the terms of each rank, which "
           "depend on the number of ranks: they cannot be deterministic for "
           "every number of them";
  if (options.optimizerFusion == "backward")
    return ": 'reduce=next' keeps gradients until backward is "
           "complete: updates cannot run in it";
  return "";
}
