//===- ScheduleOptions.cpp - Which schedule is asked for ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Pipelines/ScheduleOptions.h"
#include "cleave/Dialect/Pipe/Transforms/Costs.h"
#include "cleave/Dialect/Spmd/Transforms/Recipes.h"
#include "cleave/Scheduling/Generators/Generators.h"
#include "llvm/ADT/StringSwitch.h"
#include <map>

using namespace cleave;
using llvm::StringRef;

/// Larger numbers of stages and micro-batches are as wrong as this one.
static constexpr int64_t kMostNumber = int64_t(1) << 40;

/// Calls `visit` with each action of a schedule, and where it stands.
static void
forEachAction(const scheduling::Schedule &schedule,
              const scheduling::SchedulePlaces &places,
              llvm::function_ref<void(const scheduling::Action &,
                                      const scheduling::TextPlace &)>
                  visit) {
  for (auto [actions, own] : llvm::zip_equal(schedule.devices, places.actions))
    for (auto [action, place] : llvm::zip_equal(actions, own))
      visit(action, place);
}

PipelineShape cleave::pipelineShape(const PhaseOptions &options) {
  PipelineShape shape;
  std::string error;
  if (!options.scheduleText.empty()) {
    scheduling::SchedulePlaces places;
    auto written =
        scheduling::Schedule::parse(options.scheduleText, error, &places);
    int64_t stages = 1;
    if (written)
      forEachAction(
          *written, places, [&](const scheduling::Action &action, auto &) {
            stages = std::max(stages, std::min(action.stage, kMostNumber) + 1);
            shape.splitBackward |= action.part == "I" || action.part == "W";
            shape.asynchronous |= action.part == "U" && action.microBatch >= 0;
            shape.gathersOnce |= action.part == "G";
          });
    int64_t devices = written ? written->devices.size() : 1;
    // A stage that is far off is reported where it stands.
    shape.chunks = std::min<int64_t>((stages + devices - 1) / devices, 64);
  } else if (options.schedule == "auto") {
    shape.splitBackward = true;
  } else if (const scheduling::Generator *found =
                 pipe::findGenerator(options.schedule, error)) {
    shape.splitBackward = found->split;
    shape.asynchronous = found->asynchronous;
    shape.chunks = found->chunks ? found->chunks : 2;
  }
  if (options.chunks > 0)
    shape.chunks = options.chunks;
  return shape;
}

std::optional<int64_t> cleave::pipelineSize(StringRef mesh) {
  auto axes = spmd::parseMesh(mesh);
  if (!axes) {
    llvm::consumeError(axes.takeError());
    return std::nullopt;
  }
  for (const spmd::MeshAxis &axis : *axes)
    if (axis.name == spmd::kPipelineAxis)
      return axis.size;
  return std::nullopt;
}

/// The positions of the pipeline.
static int64_t countPositions(const PhaseOptions &options) {
  return pipelineSize(options.mesh).value_or(1);
}

/// What is wrong with a schedule written by hand, as far as its own text and
/// the sizes of the pipeline show.
static std::string checkText(const PhaseOptions &options) {
  auto at = [&](const scheduling::TextPlace &place, const llvm::Twine &text) {
    return (llvm::Twine(options.scheduleFile) + ":" +
            llvm::Twine(std::max<int64_t>(place.line, 1)) + ":" +
            llvm::Twine(std::max<int64_t>(place.column, 1)) +
            ": error: schedule: " + text)
        .str();
  };
  std::string error;
  scheduling::SchedulePlaces places;
  auto written =
      scheduling::Schedule::parse(options.scheduleText, error, &places);
  if (!written)
    return at(places.error, error);
  int64_t last = -1;
  scheduling::TextPlace lastPlace;
  // Of each stage that is named, where it is first.
  std::map<int64_t, std::pair<std::string, scheduling::TextPlace>> stages;
  forEachAction(*written, places,
                [&](const scheduling::Action &action,
                    const scheduling::TextPlace &place) {
                  stages.try_emplace(action.stage, action.str(), place);
                  if (action.microBatch > last) {
                    last = action.microBatch;
                    lastPlace = place;
                  }
                });
  if (stages.empty())
    return at({}, "the schedule has no actions; write a line for each pipeline "
                  "position, such as "
                  "F0 B0 U");
  if (auto axes = spmd::parseMesh(options.mesh); !axes) {
    llvm::consumeError(axes.takeError());
    return {}; // Said of the mesh.
  }
  int64_t devices = written->devices.size(),
          positions = countPositions(options);
  if (devices != positions)
    return at(places.devices[std::min(positions, devices - 1)],
              "expected " + llvm::Twine(positions) +
                  " lists of actions, one for each position of the axis \"" +
                  spmd::kPipelineAxis + "\", got " + llvm::Twine(devices));
  int64_t wanted = 0;
  for (const auto &[stage, first] : stages) {
    if (stage != wanted)
      return at(first.second, llvm::Twine(first.first) + " is of stage " +
                                  llvm::Twine(stage) + ", and stage " +
                                  llvm::Twine(wanted) +
                                  " has no actions; write them too");
    ++wanted;
  }
  // Each position has as many stages.
  int64_t all = positions * pipelineShape(options).chunks;
  if (wanted < all) {
    const auto &[action, place] = stages.rbegin()->second;
    return at(place, llvm::Twine(action) + " is of the last of " +
                         llvm::Twine(wanted) + " stages, and " +
                         llvm::Twine(positions) + " positions have " +
                         llvm::Twine(all) + " between them; write actions of " +
                         "stage " + llvm::Twine(wanted) + " too");
  }
  uint64_t count = static_cast<uint64_t>(last) + 1;
  if (last >= 0 && count != static_cast<uint64_t>(options.microBatches))
    return at(lastPlace, "it is for " + llvm::Twine(count) +
                             " micro-batches, and the step has " +
                             llvm::Twine(options.microBatches) +
                             "; write as many, or cut the batch into " +
                             llvm::Twine(count));
  return {};
}

bool cleave::isPipeGather(StringRef name) {
  return llvm::is_contained({"each", "once", "auto"}, name);
}

/// What contradicts updates behind each micro-batch, or needs them.
static std::string checkUpdates(const PhaseOptions &options) {
  if (!pipelineShape(options).asynchronous)
    return options.maxStaleness < 0
               ? ""
               : "max-staleness: updates are behind all micro-batches, so that "
                 "none "
                 "is missing; leave the bound out, or choose the schedule "
                 "pipedream";
  if (countPositions(options) < 2)
    return "schedule: updates behind each micro-batch are those of a pipeline; "
           "give the mesh an axis \"pp\" of at least 2 positions";
  if (options.pipeGather == "once")
    return "pipe-gather: an asynchronous schedule updates parameters behind "
           "each micro-batch, so that what is gathered is another thing for "
           "each; leave it out, or choose a synchronous schedule";
  if (options.optimizerFusion == "forward")
    return "optimizer-fusion: an asynchronous schedule updates behind each "
           "micro-batch, and \"forward\" leaves updates to the next step; "
           "leave it out, or choose a synchronous schedule";
  if (options.grains > 0)
    return "schedule: a deterministic step is one update of its grains, and an "
           "asynchronous schedule has one for each micro-batch; leave one of "
           "them out";
  if (options.optimizer.maxGradNorm > 0)
    return "schedule: clipping to a norm waits for the gradients of all "
           "stages, "
           "and with an asynchronous schedule none waits for others; leave one "
           "of them out";
  if (options.scalesLoss())
    return "schedule: an asynchronous schedule updates behind each "
           "micro-batch, and fp16 skips a step of which any gradient overflows; "
           "choose a synchronous schedule, or bf16";
  if (options.checkFinite)
    return "schedule: an asynchronous schedule updates behind each "
           "micro-batch, before it is known whether all gradients are finite; "
           "turn that check off (--check-finite=off, check_finite=False), or "
           "choose a synchronous schedule";
  return {};
}

/// What adds up in another order than that of the tree over grains.
static std::string checkDeterministic(const PhaseOptions &options) {
  if (options.grains <= 0)
    return {};
  auto plan = spmd::parsePlan(options.recipes);
  if (!plan) {
    llvm::consumeError(plan.takeError());
    return {}; // Said of the plan.
  }
  auto mesh = spmd::parseMesh(options.mesh);
  if (!mesh) {
    llvm::consumeError(mesh.takeError());
    return {}; // Said of the mesh.
  }
  std::vector<std::string> samples;
  for (const spmd::MeshAxis &axis : *mesh)
    if (axis.name == "dp" ||
        llvm::any_of(plan->recipes, [&](const spmd::RecipeCall &call) {
          return spmd::splitBy(call, axis.name) == spmd::RecipeSplit::Samples;
        }))
      samples.push_back(axis.name);
  for (const spmd::RecipeCall &call : plan->recipes) {
    bool rests = llvm::all_of(call.axes, [&](const std::string &axis) {
      return llvm::is_contained(samples, axis) &&
             spmd::splitBy(call, axis) == spmd::RecipeSplit::Resting;
    });
    if (rests && samples.size() > 1)
      return "deterministic: recipe '" + call.name +
             "' reduces gradients over one of several axes of the samples "
             "before the others, in another order than that of the grains; "
             "shard the samples over one axis, or leave one of them out";
    if (spmd::sumsInParts(call))
      return "deterministic: recipe '" + call.name +
             "' adds gradients up on devices that hold a part of each, in "
             "another order than that of the grains; choose zero1, or leave "
             "one of them out";
  }
  return {};
}

std::string cleave::checkSchedule(const PhaseOptions &options) {
  std::string error;
  std::string updates = checkUpdates(options);
  // Where the schedule stands in a file, so does what is wrong with it.
  auto located = [&](std::string text) {
    if (text.empty() || options.scheduleFile.empty() ||
        !StringRef(text).starts_with("schedule:"))
      return text;
    return options.scheduleFile + ":1:1: error: " + text;
  };
  if (std::string why = checkDeterministic(options); !why.empty())
    return why;
  if (options.scalesLoss() && options.optimizerFusion == "backward")
    return "optimizer-fusion: \"backward\" updates behind each gradient, and "
           "fp16 skips a step of which any gradient overflows; leave the fusion "
           "out, or use bf16";
  if (options.scalesLoss() && !options.checkFinite)
    return "precision: fp16 skips a step of which gradients are not finite, "
           "which the check finds that is turned off (--check-finite=off, "
           "check_finite=False); leave it on, or use bf16";
  if (options.checkFinite && options.optimizerFusion == "backward")
    return "optimizer-fusion: \"backward\" updates behind each gradient, "
           "before it is known whether all of them are finite; turn that check "
           "off "
           "(--check-finite=off, check_finite=False), or leave the fusion out";
  if (!options.machine.empty() &&
      !machines::MachineModel::parse(options.machine, error))
    return "machine: " + error;
  if (!options.scheduleFile.empty() && options.scheduleText.empty())
    return options.scheduleFile +
           ":1:1: error: schedule: it is empty; write a line for each device, "
           "such as F0 B0 U";
  // Micro-batches are summed up in the order in which they come.
  if (!options.scheduleText.empty() && options.grains > 0)
    return located("schedule: the order of a deterministic step is fixed; "
                   "leave out the one written by hand");
  if (!options.scheduleText.empty()) {
    if (!options.schedule.empty())
      return "schedule: one is named and one written by hand; leave one of "
             "them out";
    std::string why = checkText(options);
    return why.empty() ? located(updates) : why;
  }
  if (options.schedule.empty() || options.schedule == "auto" ||
      pipe::findGenerator(options.schedule, error))
    return updates;
  return "schedule: " + error;
}

std::optional<ScheduleFormat> cleave::parseScheduleFormat(StringRef name) {
  return llvm::StringSwitch<std::optional<ScheduleFormat>>(name)
      .Case("text", ScheduleFormat::Text)
      .Case("svg", ScheduleFormat::Svg)
      .Case("perfetto", ScheduleFormat::Trace)
      .Default(std::nullopt);
}

ScheduleFormat cleave::scheduleFormatOf(StringRef path) {
  return path.ends_with_insensitive(".svg")    ? ScheduleFormat::Svg
         : path.ends_with_insensitive(".json") ? ScheduleFormat::Trace
                                               : ScheduleFormat::Text;
}
