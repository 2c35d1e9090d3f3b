//===- PlanPhases.h - Phases, with decisions --------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PLANNING_PLANPHASES_H
#define CLEAVE_PLANNING_PLANPHASES_H

#include "cleave/ClosedForms/Form.h"
#include "cleave/Planning/PlanProgram.h"
#include "cleave/Reports/Reports.h"
#include <functional>

namespace cleave {

/// What planning decided that options left to it.
struct Decisions {
  /// Where the policy of recomputation was chosen, also if no plan fits.
  std::optional<RecomputeDecision> recompute;
  /// Where rows are sent to experts.
  std::optional<ExpertBufferDecision> expertBuffer;
  /// The closed form of the step, and what it read of the options; none of a
  /// module that does not train.
  std::optional<closedforms::Form> form;
  closedforms::StepOptions step;
  /// What a rank of each position computes by the plan (`findOperations`).
  double operations = 0;
  /// The axes whose ranks repeat some of it (`findReplicated`).
  std::vector<CostFacts::Replicated> replicated;
};

/// Takes `module` from the model phase to `last`, one phase after another, and
/// makes the choices that options leave to planning; calls `after` (which may
/// be null) when each is reached, and says in `decisions` (which may be null)
/// what was chosen.
llvm::LogicalResult
runPhases(mlir::ModuleOp module, Phase last, const CompileOptions &options,
          const std::function<void(Phase, mlir::ModuleOp)> &after,
          Decisions *decisions = nullptr);

/// The facts of `planned`, a program of `module`, with the prediction that
/// `options` ask for.
ProgramFacts describeProgram(mlir::ModuleOp module,
                             const CompileOptions &options,
                             const Decisions &decisions,
                             const PlannedProgram &planned);

} // namespace cleave

#endif // CLEAVE_PLANNING_PLANPHASES_H
