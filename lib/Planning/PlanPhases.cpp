//===- PlanPhases.cpp - Phases, with decisions ----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Planning/PlanPhases.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Pipelines/DumpPhases.h"
#include "cleave/Pipelines/Options.h"
#include "cleave/Planning/ChooseExpertBuffer.h"
#include "cleave/Planning/CostForms.h"
#include "cleave/Planning/PredictStep.h"
#include "mlir/IR/Verifier.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace cleave;

/// Sizes of tensors are products in 64 bits: of larger ones they are wrong.
static LogicalResult checkSizes(ModuleOp module) {
  constexpr int64_t most = int64_t(1) << 56;
  auto fits = [&](Type type) {
    auto tensor = dyn_cast<RankedTensorType>(type);
    if (!tensor || !tensor.hasStaticShape())
      return true;
    int64_t count = 1;
    for (int64_t size : tensor.getShape())
      if (llvm::MulOverflow(count, size, count) || count > most)
        return false;
    return true;
  };
  auto refuse = [&](Location loc, Type type) {
    return emitError(loc) << type << " has more than 2^56 elements, which no "
                          << "machine holds";
  };
  WalkResult walked = module.walk([&](Operation *op) -> WalkResult {
    for (Region &region : op->getRegions())
      for (Block &block : region)
        for (BlockArgument argument : block.getArguments())
          if (!fits(argument.getType()))
            return refuse(argument.getLoc(), argument.getType());
    for (OpResult result : op->getResults())
      if (!fits(result.getType()))
        return refuse(op->getLoc(), result.getType());
    return WalkResult::advance();
  });
  return failure(walked.wasInterrupted());
}

/// Operations of attention are counted without its segments, which are data.
static void remarkSegments(ModuleOp module) {
  module.walk([](graph::AttentionOp op) {
    if (!op.getSegments())
      return WalkResult::advance();
    op.emitRemark("attention has segments: its operations are counted as those "
                  "of whole rows, and a step computes scores within segments "
                  "only");
    return WalkResult::interrupt();
  });
}

LogicalResult
cleave::runPhases(ModuleOp module, Phase last, const CompileOptions &options,
                  const std::function<void(Phase, ModuleOp)> &after,
                  Decisions *decisions) {
  if (auto mistake = checkOptions(options))
    return emitError(module.getLoc()) << mistake->str(Entrance::CommandLine);
  if (failed(checkSizes(module)))
    return failure();
  CompileOptions own = options;
  settleTarget(own);
  RecomputePlan plan;
  ExpertBufferPlan room;
  PhaseDump dump(own);
  if (failed(runOnePhase(module, Phase::Model, own)) ||
      failed(dump.write(module, Phase::Model, own)))
    return failure();
  if (after)
    after(Phase::Model, module);
  closedforms::ModelSizes sizes;
  if (decisions)
    sizes = findSizes(module);
  for (int i = 1; i <= static_cast<int>(last); ++i) {
    Phase phase = static_cast<Phase>(i);
    if (phase == Phase::Local && own.phases.expertBuffer.empty() &&
        !rowAxes(own.phases).empty()) {
      std::optional<ExpertBufferDecision> decision;
      room = chooseExpertBuffer(module, own, runOnePhase, decision);
      if (decisions)
        decisions->expertBuffer = decision;
      own.phases.expertBuffer = room.buffer;
    } else if (phase == Phase::Local && decisions &&
               !rowAxes(own.phases).empty()) {
      decisions->expertBuffer = ExpertBufferDecision{own.phases.expertShares(),
                                                     /*given=*/true};
    }
    if (phase == Phase::Scheduled && own.phases.recompute == "auto") {
      std::optional<RecomputeDecision> decision;
      FailureOr<RecomputePlan> chosen =
          chooseRecompute(module, own, runOnePhase, decision);
      if (decisions)
        decisions->recompute = std::move(decision);
      if (failed(chosen))
        return failure();
      plan = std::move(*chosen);
      own.phases.recompute = plan.policy;
    }
    auto first = [](ModuleOp one, ModuleOp other) { return one ? one : other; };
    if (ModuleOp ready =
            phase == Phase::Local ? room.local.get()
            : phase == Phase::Scheduled
                ? first(plan.scheduled.get(), room.scheduled.get())
            : phase == Phase::Executable
                ? first(plan.executable.get(), room.executable.get())
                : ModuleOp()) {
      takeContents(module, ready);
      if (failed(verify(module)))
        return failure();
    } else if (failed(runOnePhase(module, phase, own))) {
      return failure();
    }
    if (failed(dump.write(module, phase, own)))
      return failure();
    if (after)
      after(phase, module);
    if (decisions && phase == Phase::Local) {
      decisions->replicated = findReplicated(module);
      remarkReplicated(decisions->replicated);
      remarkSegments(module);
    }
    if (decisions && phase == Phase::Scheduled) {
      decisions->operations = findOperations(module);
      decisions->step = findStepOptions(own, own.phases.recompute, sizes);
      if (decisions->operations > 0)
        decisions->form = closedforms::findForm(sizes, decisions->step);
    }
  }
  return success();
}

ProgramFacts cleave::describeProgram(ModuleOp module,
                                     const CompileOptions &options,
                                     const Decisions &decisions,
                                     const PlannedProgram &planned) {
  ProgramFacts facts;
  facts.memory = planned.memory;
  facts.recompute = decisions.recompute;
  facts.expertBuffer = decisions.expertBuffer;
  if (!options.predict.empty() && !planned.positions.empty())
    facts.prediction =
        predictStep(module, planned.positions.front(), options.predict);
  if (decisions.form)
    facts.cost = findCost(module, *decisions.form, decisions.step,
                          decisions.operations, planned.memory);
  if (facts.cost)
    facts.cost->replicated = decisions.replicated;
  facts.target = options.target;
  facts.checkFinite = options.phases.checkFinite;
  facts.microBatches = options.phases.microBatches;
  return facts;
}
