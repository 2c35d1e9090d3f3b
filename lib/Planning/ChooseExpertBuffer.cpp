//===- ChooseExpertBuffer.cpp - Room for rows of experts ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Planning/ChooseExpertBuffer.h"
#include "cleave/Dialect/Graph/IR/Attributes/EvenRows.h"
#include "cleave/Dialect/Graph/IR/TensorType.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Planning/PlanProgram.h"
#include "mlir/IR/Diagnostics.h"

using namespace mlir;
using namespace cleave;

/// The even shares that are taken where the rows of all ranks need too much.
static constexpr int64_t kShares = 2;
/// The share of the arena that buffers of the rows of all ranks may take.
static constexpr int64_t kMostPercent = 10;

/// The even shares that a rank receives at most: the ranks of an axis along
/// which rows are sent; 0 if none are.
static int64_t mostShares(ModuleOp local) {
  int64_t most = 0;
  local.walk([&](spmd::AllToAllRowsOp op) {
    int64_t from = graph::evenRows(
                op, graph::tensorTypeOf(op.getInput()).getDimSize(0)),
            to = graph::tensorTypeOf(op.getOutput()).getDimSize(0);
    if (from > 0)
      most = std::max(most, to / from);
  });
  return most;
}

namespace {
/// One of the plans, and what was said of it.
struct Trial {
  ExpertBufferPlan plan;
  int64_t arenaBytes = 0;
  std::vector<Diagnostic> said;
};

class Chooser {
public:
  Chooser(ModuleOp placed, const CompileOptions &options, RunPhase run)
      : placed(placed), options(options), run(run) {}

  /// Takes a module to the local phase.
  bool begin(Trial &trial, const std::string &buffer) const {
    trial.plan.buffer = buffer;
    trial.plan.local = placed.clone();
    return quietly(trial, [&] {
      return succeeded(run(*trial.plan.local, Phase::Local, optionsOf(trial)));
    });
  }

  /// Plans its memory.
  bool plan(Trial &trial) const {
    return quietly(trial, [&] {
      CompileOptions own = optionsOf(trial);
      OwningOpRef<ModuleOp> module = trial.plan.local->clone();
      if (failed(run(*module, Phase::Scheduled, own)))
        return false;
      OwningOpRef<ModuleOp> scheduled = module->clone();
      if (failed(run(*module, Phase::Executable, own)))
        return false;
      FailureOr<PlannedProgram> planned = planProgram(*module, own);
      if (failed(planned) || planned->memory.positions.empty())
        return false;
      trial.arenaBytes =
          planned->memory.positions[planned->memory.largest].arenaBytes;
      // A policy of recomputation is still to be chosen.
      if (options.phases.recompute != "auto") {
        trial.plan.scheduled = std::move(scheduled);
        trial.plan.executable = std::move(module);
      }
      return true;
    });
  }

private:
  CompileOptions optionsOf(const Trial &trial) const {
    CompileOptions own = options;
    own.phases.expertBuffer = trial.plan.buffer;
    if (own.phases.recompute == "auto")
      own.phases.recompute = "default";
    // One of the plans is dropped; the other one is verified once.
    own.verify = Verify::Never;
    return own;
  }

  /// Mistakes are made again, and then said, where the plan is made.
  bool quietly(Trial &trial, llvm::function_ref<bool()> action) const {
    ScopedDiagnosticHandler handler(
        placed.getContext(), [&](Diagnostic &diagnostic) {
          if (diagnostic.getSeverity() != DiagnosticSeverity::Error)
            trial.said.push_back(std::move(diagnostic));
          return success();
        });
    return action();
  }

  mutable ModuleOp placed;
  const CompileOptions &options;
  RunPhase run;
};
} // namespace

/// The plan, of which everything is said now that would have been without a
/// choice.
static ExpertBufferPlan take(Trial &&trial) {
  for (Diagnostic &diagnostic : trial.said)
    trial.plan.local->getContext()->getDiagEngine().emit(std::move(diagnostic));
  return std::move(trial.plan);
}

ExpertBufferPlan
cleave::chooseExpertBuffer(ModuleOp placed, const CompileOptions &options,
                           RunPhase run,
                           std::optional<ExpertBufferDecision> &decision) {
  Chooser chooser(placed, options, run);
  Trial worst, other;
  if (!chooser.begin(worst, "worst"))
    return {"worst", {}, {}, {}};
  int64_t shares = mostShares(*worst.plan.local);
  if (shares > 0)
    decision.emplace();
  // Twice an even share are all rows.
  if (shares <= kShares)
    return take(std::move(worst));
  if (!chooser.plan(worst)) {
    decision.reset();
    return {"worst", {}, {}, {}};
  }
  decision->arenaBytes = worst.arenaBytes;
  decision->otherShares = kShares;
  // An asynchronous schedule may refuse the checks that it needs.
  if (!chooser.begin(other, std::to_string(kShares)) || !chooser.plan(other))
    return take(std::move(worst));
  decision->otherArenaBytes = other.arenaBytes;
  // All of the arena that is proportional to the room.
  int64_t each = std::max<int64_t>(0, worst.arenaBytes - other.arenaBytes) /
                 (shares - kShares);
  decision->worstBytes = each * shares;
  decision->otherBytes = each * kShares;
  decision->mostBytes = worst.arenaBytes / 100 * kMostPercent;
  bool fits = decision->worstBytes <= decision->mostBytes;
  decision->shares = fits ? 0 : kShares;
  return take(std::move(fits ? worst : other));
}
