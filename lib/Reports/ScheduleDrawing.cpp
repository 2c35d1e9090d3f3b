//===- ScheduleDrawing.cpp - The schedule as text, picture and trace ------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ReportParts.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

/// The stages at a pipeline position, separated by commas.
static std::string stagesOf(const PredictedSchedule &known, int64_t device) {
  std::string text;
  for (int64_t stage = 0; stage < known.stages(); ++stage)
    if (llvm::is_contained(known.map.devicesOf(stage), device))
      text += (text.empty() ? "" : ", ") + std::to_string(stage);
  return text;
}

LogicalResult cleave::writeSchedule(raw_ostream &os, ModuleOp module,
                                    const CostSource &source,
                                    ScheduleFormat format,
                                    const Timeline *measured) {
  FailureOr<PredictedSchedule> known = PredictedSchedule::of(module, source);
  if (failed(known))
    return failure();
  if (!known->program)
    return emitError(module.getLoc()) << "has no entry to schedule";
  std::vector<Timeline> timelines = {
      makeTimeline("predicted", known->schedule, known->simulation)};
  bool pipeline = known->map.devices > 1;
  for (auto [device, row] : llvm::enumerate(timelines.front().rows))
    if (pipeline && format != ScheduleFormat::Text)
      row.name += ": stage " + stagesOf(*known, device);
  if (measured)
    timelines.push_back(*measured);
  if (format == ScheduleFormat::Trace) {
    writeTimelineTrace(os, timelines);
    return success();
  }
  std::string title = known->program.getName().str() + ", " + known->name() +
                      ", " + std::to_string(known->program.getMicroBatches()) +
                      " micro-batches";
  if (format == ScheduleFormat::Svg) {
    writeTimelineSvg(os, timelines,
                     title +
                         (known->measuredFrom.empty()
                              ? " (predicted by estimates of flops and bytes)"
                              : " (predicted by measured costs)"));
    return success();
  }
  FailureOr<llvm::json::Value> report =
      describeSchedule(module, source, measured);
  if (failed(report))
    return failure();
  os << "# " << title << "\n" << known->schedule.compact("\n") << "\n#\n";
  std::string drawn;
  llvm::raw_string_ostream text(drawn);
  writeTimelineText(text, timelines);
  SmallVector<StringRef> lines;
  StringRef(drawn).rtrim().split(lines, '\n');
  for (StringRef line : lines)
    os << "# " << line << "\n";
  os << "#\n";
  for (const std::string &line : explainSchedule(*report))
    os << "# " << line << "\n";
  return success();
}
