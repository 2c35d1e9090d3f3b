//===- VerifySchedule.cpp - Checks the schedule of each program -----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Pipe/Transforms/Passes.h"

namespace cleave::pipe {
#define GEN_PASS_DEF_VERIFYSCHEDULE
#include "cleave/Dialect/Pipe/Transforms/Passes.h.inc"
} // namespace cleave::pipe

using namespace mlir;
using namespace cleave::pipe;

namespace {
struct VerifySchedulePass
    : cleave::pipe::impl::VerifyScheduleBase<VerifySchedulePass> {
  void runOnOperation() override {
    bool valid = true;
    for (auto program : getOperation().getOps<ProgramOp>())
      valid &= succeeded(verify(program));
    if (!valid)
      signalPassFailure();
  }

private:
  static LogicalResult verify(ProgramOp program) {
    if (!program.getSchedule())
      return program.emitOpError("has no schedule; run --pipe-schedule first");
    std::string error;
    std::optional<Schedule> schedule =
        Schedule::parse(*program.getSchedule(), error);
    if (!schedule)
      return program.emitOpError("schedule: ") << error;
    if (std::optional<std::string> why =
            schedule->verify(describeParts(program), program.getMicroBatches()))
      return program.emitOpError("schedule: ") << *why;
    return success();
  }
};
} // namespace
