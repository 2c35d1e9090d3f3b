//===- FillSchedule.cpp - Chooses the order of the actions ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Pipe/IR/Generators.h"
#include "cleave/Dialect/Pipe/IR/Search.h"
#include "cleave/Dialect/Pipe/IR/Transfers.h"
#include "cleave/Dialect/Pipe/Transforms/Passes.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"

namespace cleave::pipe {
#define GEN_PASS_DEF_FILLSCHEDULE
#include "cleave/Dialect/Pipe/Transforms/Passes.h.inc"
} // namespace cleave::pipe

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

namespace {
struct FillSchedulePass
    : cleave::pipe::impl::FillScheduleBase<FillSchedulePass> {
  using FillScheduleBase::FillScheduleBase;

  /// The positions of the pipeline.
  int64_t countDevices() {
    spmd::MeshOp mesh = spmd::findMesh(getOperation());
    if (!mesh)
      return 1;
    spmd::Mesh known = mesh.getMesh();
    const spmd::MeshAxis *axis = known.find(spmd::kPipelineAxis);
    return axis ? axis->size : 1;
  }

  /// What `kind` makes for the parts that there are.
  LogicalResult generate(ProgramOp program, int64_t devices) {
    std::vector<PartInfo> parts = describeParts(program);
    int64_t count = program.getMicroBatches(), stages = devices;
    if (auto known = program->getAttrOfType<IntegerAttr>(kStagesAttr))
      stages = known.getInt();
    std::string error;
    const Generator *generator = findGenerator(kind, error);
    if (!generator)
      return program.emitOpError("schedule: ") << error;
    if (generator->asynchronous)
      return program.emitOpError("schedule: '")
             << kind
             << "' updates behind each micro-batch, which needs several "
             << "versions of parameters: it can be drawn, but not run yet";
    int64_t chunks = (stages + devices - 1) / devices;
    auto made = generateSchedule(kind, {devices, chunks, count}, error);
    if (!made)
      return program.emitOpError("schedule: ") << error;
    // Only what there is, a whole backward as its two parts; what runs once
    // comes in the order of the program.
    auto has = [&](StringRef name, int64_t stage) {
      return llvm::any_of(parts, [&](const PartInfo &part) {
        return part.name == name && part.stage == stage && !part.once;
      });
    };
    for (std::vector<Action> &actions : made->devices) {
      std::vector<Action> own;
      for (const Action &action : actions)
        for (StringRef name : {StringRef(action.part),
                               StringRef(action.part == "B" ? "I" : ""),
                               StringRef(action.part == "B" ? "W" : "")})
          if (has(name, action.stage))
            own.push_back({name.str(), action.microBatch, action.stage});
      actions = std::move(own);
    }
    StageMap map{generator->map, devices};
    auto sent = insertTransfers(addOtherParts(*made, parts, count, map), parts,
                                count, map, error);
    if (!sent)
      return program.emitOpError("schedule: ") << error;
    program.setSchedule(sent->compact());
    program.setStageMap(map.name());
    return success();
  }

  LogicalResult fill(ProgramOp program) {
    if (int64_t devices = countDevices(); schedule.empty() && devices > 1)
      return generate(program, devices);
    std::string text = schedule;
    if (text.empty())
      text = Schedule::singleStage(describeParts(program),
                                   program.getMicroBatches(),
                                   program.getTreeSums())
                 .str();
    std::string error;
    std::optional<Schedule> parsed = Schedule::parse(text, error);
    if (!parsed)
      return program.emitOpError("schedule: ") << error;
    program.setSchedule(parsed->str());
    if (!map.empty())
      program.setStageMap(StringRef(map));
    return success();
  }

  void runOnOperation() override {
    for (auto program : getOperation().getOps<ProgramOp>())
      if (failed(fill(program)))
        return signalPassFailure();
  }
};
} // namespace
