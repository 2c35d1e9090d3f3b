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
#include "llvm/Support/MathExtras.h"

using namespace cleave;
using llvm::StringRef;

/// Larger numbers of stages and micro-batches are as wrong as this one.
static constexpr int64_t kMostNumber = int64_t(1) << 40;

PipelineShape cleave::pipelineShape(const PhaseOptions &options) {
  PipelineShape shape;
  std::string error;
  if (!options.scheduleText.empty()) {
    auto written = scheduling::Schedule::parse(options.scheduleText, error);
    int64_t stages = 1;
    if (written)
      for (const auto &actions : written->devices)
        for (const scheduling::Action &action : actions) {
          stages = std::max(stages, std::min(action.stage, kMostNumber) + 1);
          shape.splitBackward |= action.part == "I" || action.part == "W";
          shape.asynchronous |= action.part == "U" && action.microBatch >= 0;
          shape.gathersOnce |= action.part == "G";
        }
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
    shape.map = scheduling::StageMap{found->map}.name();
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

int64_t cleave::countStages(const PhaseOptions &options) {
  std::optional<int64_t> positions = pipelineSize(options.mesh);
  // What is too much is said where stages are made.
  return positions ? std::min<uint64_t>(
                         llvm::SaturatingMultiply<uint64_t>(
                             *positions, pipelineShape(options).chunks),
                         1 << 20)
                   : 1;
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
