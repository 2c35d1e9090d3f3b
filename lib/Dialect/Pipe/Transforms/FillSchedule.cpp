//===- FillSchedule.cpp - Chooses the order of the actions ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Pipe/Transforms/Passes.h"

namespace cleave::pipe {
#define GEN_PASS_DEF_FILLSCHEDULE
#include "cleave/Dialect/Pipe/Transforms/Passes.h.inc"
} // namespace cleave::pipe

using namespace mlir;
using namespace cleave::pipe;

std::vector<PartInfo> cleave::pipe::describeParts(ProgramOp program) {
  std::vector<PartInfo> parts;
  llvm::DenseMap<Operation *, unsigned> index;
  for (auto invoke : program.getBody().getOps<InvokeOp>()) {
    PartInfo info;
    info.name = invoke.getPart().str();
    info.once = invoke.getOnce();
    for (Value input : invoke.getInputs()) {
      auto result = dyn_cast<OpResult>(input);
      if (!result)
        continue;
      auto from = cast<InvokeOp>(result.getOwner());
      PartInfo::Use use{index.lookup(from),
                        from.isSaved(result.getResultNumber())};
      bool known = llvm::any_of(info.uses, [&](const PartInfo::Use &other) {
        return other.part == use.part &&
               other.sameMicroBatch == use.sameMicroBatch;
      });
      if (!known)
        info.uses.push_back(use);
    }
    index[invoke] = parts.size();
    parts.push_back(std::move(info));
  }
  return parts;
}

namespace {
struct FillSchedulePass
    : cleave::pipe::impl::FillScheduleBase<FillSchedulePass> {
  using FillScheduleBase::FillScheduleBase;

  void runOnOperation() override {
    for (auto program : getOperation().getOps<ProgramOp>()) {
      std::string text = schedule;
      if (text.empty())
        text = Schedule::singleStage(describeParts(program),
                                     program.getMicroBatches())
                   .str();
      std::string error;
      std::optional<Schedule> parsed = Schedule::parse(text, error);
      if (!parsed) {
        program.emitOpError("schedule: ") << error;
        return signalPassFailure();
      }
      program.setSchedule(parsed->str());
    }
  }
};
} // namespace
