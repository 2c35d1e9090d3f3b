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
    SmallVector<ProgramOp> programs(getOperation().getOps<ProgramOp>());
    for (ProgramOp program : programs)
      valid &= succeeded(readSchedule(program));
    if (!valid || failed(verifyCopies(programs)))
      signalPassFailure();
  }
};
} // namespace
