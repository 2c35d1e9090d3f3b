//===- PlanPhases.cpp - Phases, with decisions ----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Planning/PlanPhases.h"
#include "cleave/Planning/ChooseRecompute.h"
#include "cleave/Planning/PredictStep.h"
#include "mlir/IR/Verifier.h"

using namespace mlir;
using namespace cleave;

LogicalResult
cleave::runPhases(ModuleOp module, Phase last, const CompileOptions &options,
                  const std::function<void(Phase, ModuleOp)> &after) {
  if (auto mistake = checkOptions(options))
    return emitError(module.getLoc()) << mistake->str(Entrance::CommandLine);
  CompileOptions own = options;
  settleTarget(own);
  RecomputePlan plan;
  if (after)
    after(Phase::Model, module);
  for (int i = 1; i <= static_cast<int>(last); ++i) {
    Phase phase = static_cast<Phase>(i);
    if (phase == Phase::Scheduled && own.phases.recompute == "auto") {
      FailureOr<RecomputePlan> chosen = chooseRecompute(module, own, runOnePhase);
      if (failed(chosen))
        return failure();
      plan = std::move(*chosen);
      own.phases.recompute = plan.policy;
    }
    if (ModuleOp ready = phase == Phase::Scheduled    ? plan.scheduled.get()
                         : phase == Phase::Executable ? plan.executable.get()
                                                      : ModuleOp()) {
      takeContents(module, ready);
      if (failed(verify(module)))
        return failure();
    } else if (failed(runOnePhase(module, phase, own))) {
      return failure();
    }
    if (after)
      after(phase, module);
  }
  return success();
}

void cleave::addPrediction(ModuleOp module, const CompileOptions &options,
                           CompiledProgram &compiled) {
  if (!options.predict.empty() && !compiled.positions.empty())
    compiled.report["prediction"] =
        predictStep(module, compiled.positions.front(), options.predict);
}
