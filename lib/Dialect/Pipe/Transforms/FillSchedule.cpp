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

namespace {
struct FillSchedulePass
    : cleave::pipe::impl::FillScheduleBase<FillSchedulePass> {
  using FillScheduleBase::FillScheduleBase;

  void runOnOperation() override {
    for (auto program : getOperation().getOps<ProgramOp>()) {
      std::string text = schedule;
      if (text.empty())
        text = Schedule::singleStage(describeParts(program),
                                     program.getMicroBatches(),
                                     program.getTreeSums())
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
