//===- ScheduleDrawing.cpp - The schedule as text, picture and trace ------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "PredictedSchedule.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

FailureOr<PredictedSchedule> PredictedSchedule::of(ModuleOp module,
                                                   const CostSource &source) {
  PredictedSchedule result;
  for (auto program : module.getOps<ProgramOp>()) {
    bool trains =
        llvm::any_of(program.getBody().getOps<InvokeOp>(), [](InvokeOp invoke) {
          return invoke.getPart() == "B" || invoke.getPart() == "I";
        });
    if (!result.program || trains)
      result.program = program;
    if (trains)
      break;
  }
  if (!result.program)
    return result;
  std::string error;
  std::optional<MachineModel> machine =
      MachineModel::parse(source.machine, error);
  if (!machine)
    return result.program.emitOpError("machine: ") << error;
  result.machine = *machine;
  if (spmd::MeshOp mesh = spmd::findMesh(module))
    result.mesh = mesh.getMesh();
  FailureOr<Schedule> schedule = readSchedule(result.program);
  if (failed(schedule))
    return failure();
  result.schedule = std::move(*schedule);
  FailureOr<StageMap> map =
      stageMapOf(result.program, result.schedule.devices.size());
  if (failed(map))
    return failure();
  result.map = *map;
  result.parts = describeParts(result.program);
  llvm::append_range(result.invokes,
                     result.program.getBody().getOps<InvokeOp>());
  result.costs = costsOf(result.program, result.mesh, *machine);
  if (!source.measuredCosts.empty()) {
    FailureOr<Costs> measured = measuredCostsOf(
        result.program, source.measuredCosts, source.measuredFrom);
    if (failed(measured))
      return failure();
    result.costs = std::move(*measured);
    result.measuredFrom = source.measuredFrom;
  }
  std::optional<Simulation> simulation =
      simulate(result.schedule, result.parts, result.program.getMicroBatches(),
               *map, result.costs, error);
  if (!simulation)
    return result.program.emitOpError("schedule: ") << error;
  result.simulation = std::move(*simulation);
  return result;
}

std::string PredictedSchedule::name() const {
  auto known = program->getAttrOfType<StringAttr>(kScheduleNameAttr);
  return known ? known.str() : "one device";
}

int64_t PredictedSchedule::stages() const {
  int64_t count = 1;
  for (const PartInfo &part : parts)
    count = std::max(count, part.stage + 1);
  return count;
}

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
      scheduleReport(module, source, measured);
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
