//===- PredictedSchedule.cpp - A schedule and its simulation --------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Pipe/Transforms/PredictedSchedule.h"

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
