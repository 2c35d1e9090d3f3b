//===- ChooseRecompute.h - What to recompute within a limit -----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PLANNING_CHOOSERECOMPUTE_H
#define CLEAVE_PLANNING_CHOOSERECOMPUTE_H

#include "cleave/Pipelines/Compile.h"
#include "cleave/Reports/PlanFacts.h"

namespace cleave {

/// What a policy saves of a block, and the time that it adds.
struct RecomputeOption {
  double bytes = 0, seconds = 0;
};

/// Chooses an option for each block, of the least time of all whose bytes are
/// together at most `budget`. Returns nothing if there are none. Where fronts
/// of partial choices become long, bytes are rounded up to 1/16384 of the
/// budget.
std::optional<std::vector<unsigned>>
chooseOptions(llvm::ArrayRef<std::vector<RecomputeOption>> blocks,
              double budget);

/// Runs a phase on a module that is in the one before.
using RunPhase = llvm::function_ref<llvm::LogicalResult(
    mlir::ModuleOp, Phase, const CompileOptions &)>;

/// What `chooseRecompute` found: a policy, and the module as it is with it in
/// the scheduled and in the executable phase. These are null where the policy
/// was not planned.
struct RecomputePlan {
  std::string policy;
  mlir::OwningOpRef<mlir::ModuleOp> scheduled, executable;
};

/// Chooses the policy of recomputation that adds the least time and with which
/// `local`, a module in the local phase, needs at most `options.memoryLimit`
/// bytes on each device (any number if that is 0). Tries every fixed policy and
/// mixtures of them by blocks, plans the memory of each that it considers, and
/// says in `decision` why. If none fits, emits an error with the smallest limit
/// found, and says there the policy, bytes and limit of that plan.
llvm::FailureOr<RecomputePlan>
chooseRecompute(mlir::ModuleOp local, const CompileOptions &options,
                RunPhase run, std::optional<RecomputeDecision> &decision);

} // namespace cleave

#endif // CLEAVE_PLANNING_CHOOSERECOMPUTE_H
