//===- ScheduleRules.cpp - Rules of the order of a step -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "OptionRules.h"
#include "cleave/Dialect/Spmd/Transforms/Recipes.h"
#include "cleave/Pipelines/ScheduleOptions.h"
#include <map>

using namespace cleave;
using llvm::StringRef;

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

bool cleave::updatesAfterEach(const CompileOptions &options) {
  return pipelineShape(options.phases).asynchronous;
}

std::string cleave::asynchronousProblem(const CompileOptions &all) {
  const PhaseOptions &options = all.phases;
  if (!updatesAfterEach(all))
    return "";
  if (countPositions(options) < 2)
    return ": updates after each micro-batch are those of a pipeline; give "
           "{mesh} an axis \"pp\" of at least 2 positions";
  if (options.grains > 0)
    return ": a deterministic step is one update of its grains, and an "
           "asynchronous schedule has one for each micro-batch; leave one of "
           "them out";
  if (options.optimizer.maxGradNorm > 0)
    return ": clipping to a norm waits for the gradients of all stages, and "
           "with an asynchronous schedule none waits for others; leave one of "
           "them out";
  if (options.scalesLoss())
    return ": an asynchronous schedule updates after each micro-batch, and "
           "fp16 skips a step of which any gradient overflows; choose a "
           "synchronous schedule, or bf16";
  if (options.checkFinite)
    return ": an asynchronous schedule updates after each micro-batch, before "
           "it is known whether all gradients are finite; turn {check-finite} "
           "off, or choose a synchronous "
           "schedule";
  return "";
}

std::string cleave::fusionProblem(const CompileOptions &all) {
  const PhaseOptions &options = all.phases;
  if (options.optimizerFusion == "forward")
    return updatesAfterEach(all)
               ? ": an asynchronous schedule updates after each micro-batch, "
                 "and \"forward\" leaves updates to the next step; leave it "
                 "out, or choose a synchronous schedule"
               : "";
  if (options.optimizerFusion != "backward")
    return "";
  if (options.scalesLoss())
    return ": \"backward\" updates after each gradient, and fp16 skips a step "
           "of which any gradient overflows; leave the fusion out, or use bf16";
  if (options.checkFinite)
    return ": \"backward\" updates after each gradient, before it is known "
           "whether all of them are finite; turn {check-finite} off, or leave "
           "the fusion out";
  return "";
}

std::string cleave::handWrittenProblem(const CompileOptions &all) {
  const PhaseOptions &options = all.phases;
  // Where the schedule stands in a file, so does what is wrong with it.
  auto located = [&](const std::string &why) {
    std::string sentence = "schedule" + why;
    return options.scheduleFile.empty()
               ? sentence
               : options.scheduleFile + ":1:1: error: " + sentence;
  };
  if (options.scheduleText.empty())
    return located(": it is empty; write a line for each position, such as F0 "
                   "B0 U");
  if (!options.schedule.empty())
    return " and {schedule} exclude each other: one is written by hand and one "
           "is named";
  // Micro-batches are summed up in the order in which they come.
  if (options.grains > 0)
    return located(": the order of a deterministic step is fixed; leave out "
                   "the one written by hand");
  if (std::string why = checkText(options); !why.empty())
    return why;
  std::string why = asynchronousProblem(all);
  return why.empty() ? why : located(why);
}

std::string cleave::sumOrderProblem(const CompileOptions &all) {
  const PhaseOptions &options = all.phases;
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
    if (spmd::splitBy(plan->recipes, axis.name) == spmd::RecipeSplit::Samples)
      samples.push_back(axis.name);
  for (const spmd::RecipeCall &call : plan->recipes) {
    bool rests = llvm::all_of(call.axes, [&](const std::string &axis) {
      return llvm::is_contained(samples, axis) &&
             spmd::splitBy(call, axis) == spmd::RecipeSplit::Resting;
    });
    if (rests && samples.size() > 1)
      return ": recipe '" + call.name +
             "' reduces gradients over one of several axes of the samples "
             "before the others, in another order than that of the grains; "
             "shard the samples over one axis, or leave one of them out";
    if (spmd::sumsInParts(call))
      return ": recipe '" + call.name +
             "' adds gradients up on devices that hold a part of each, in "
             "another order than that of the grains; choose zero1, or leave "
             "one of them out";
  }
  return {};
}
