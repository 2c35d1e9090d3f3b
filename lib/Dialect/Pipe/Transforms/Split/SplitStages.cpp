//===- SplitStages.cpp - Outlines the parts of each entry -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// 1. Flow.cpp finds the role of each op and whether it varies with the
///    micro-batch; Stages.cpp finds its stage.
/// 2. NarrowTransfers.cpp sends gradients in the type of the activations, and
///    SliceTransfers.cpp replicated values in slices.
/// 3. StepCollectives.cpp finds the collectives that run once in a step.
/// 4. CollectParts.cpp walks the parts backwards, from update to prologue: each
///    part takes the ops whose results it needs, or imports results of an
///    earlier part. Ops that no part needs are dropped.
/// 5. OutlineParts.cpp outlines each part as a function, and replaces the entry
///    by a program.
///
//===----------------------------------------------------------------------===//

#include "NarrowTransfers.h"
#include "Parts.h"
#include "SliceTransfers.h"
#include "StepCollectives.h"
#include "cleave/Dialect/Graph/Analysis/LinearLayers.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Pipe/Transforms/Passes.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "cleave/Dialect/Spmd/Transforms/Recipes.h"
#include "cleave/Support/PassCounts.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Debug.h"
#include "llvm/Support/MathExtras.h"

#define DEBUG_TYPE "pipe-split-stages"

static cleave::PassCount outlinedParts(DEBUG_TYPE, "Parts, each outlined once");
static cleave::PassCount savedValues(DEBUG_TYPE,
                                     "Values that forward saves for backward");

namespace cleave::pipe {
#define GEN_PASS_DEF_SPLITSTAGES
#include "cleave/Dialect/Pipe/Transforms/Passes.h.inc"
} // namespace cleave::pipe

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

namespace {
/// Splits a sum over both micro-batches and devices in two. The sum over
/// micro-batches, which becomes an accumulation, comes first.
static void separateReductions(func::FuncOp function, const spmd::Mesh &mesh) {
  for (auto op : llvm::make_early_inc_range(
           function.getBody().front().getOps<spmd::AllReduceOp>())) {
    ArrayRef<spmd::AxisRef> axes = op.getAxes().getAxes();
    spmd::AxisList devices = mesh.deviceAxes(axes), batches;
    for (const spmd::AxisRef &axis : axes)
      if (mesh.isSequential(axis))
        batches.push_back(axis);
    if (devices.empty() || batches.empty())
      continue;
    OpBuilder builder(op);
    auto first = cast<spmd::AllReduceOp>(builder.clone(*op));
    first.setAxesAttr(spmd::AxesAttr::get(op.getContext(), batches));
    if (std::optional<spmd::Sharding> own = spmd::writtenSharding(op)) {
      for (const spmd::AxisRef &axis : devices)
        own->partial.push_back({axis, op.getKind()});
      spmd::annotate(first, spmd::ShardingAttr::get(op.getMeshAttr(), *own),
                     spmd::writtenGlobalType(op));
    }
    op.setAxesAttr(spmd::AxesAttr::get(op.getContext(), devices));
    op.getInputMutable().assign(first);
  }
}

/// Checks that no tensor is sharded over the pipeline axis.
static LogicalResult verifyUnsharded(func::FuncOp function,
                                     const spmd::Mesh &mesh) {
  spmd::AxisRef stages{spmd::kPipelineAxis};
  auto verify = [&](Value value) -> LogicalResult {
    std::optional<spmd::Sharding> own = spmd::writtenSharding(value);
    if (!own || mesh.size(stages) == 1)
      return success();
    bool split = llvm::any_of(own->dims, [&](const spmd::AxisList &axes) {
      return mesh.overlap(stages, axes);
    });
    for (const spmd::PartialAxis &partial : own->partial)
      split |= mesh.overlap(stages, partial.axis);
    if (!split)
      return success();
    return emitError(value.getLoc())
           << "is sharded over axis \"" << spmd::kPipelineAxis
           << "\", whose positions are stages of a pipeline: shard over "
              "another axis";
  };
  for (BlockArgument argument : function.getArguments())
    if (failed(verify(argument)))
      return failure();
  for (Operation &op : function.getBody().front())
    for (Value result : op.getResults())
      if (failed(verify(result)))
        return failure();
  return success();
}

/// Whether `op` is jointly linear in all its operands, as an addition is.
static bool isAddition(Operation *op) {
  auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(op);
  if (!ruled || op->getNumResults() != 1 || op->getNumOperands() < 2 ||
      llvm::any_of(op->getOperandTypes(), [&](Type type) {
        return type != op->getResult(0).getType();
      }))
    return false;
  return llvm::any_of(ruled.getShardingRule().linear, [&](const auto &joint) {
    return joint.size() == op->getNumOperands();
  });
}

/// Whether `op` is a sum over devices.
static bool isReduction(Operation *op) {
  if (auto scatter = dyn_cast_or_null<spmd::ReduceScatterOp>(op))
    return scatter.getKind() == spmd::ReductionKind::Sum;
  auto reduce = dyn_cast_or_null<spmd::AllReduceOp>(op);
  return reduce && reduce.getKind() == spmd::ReductionKind::Sum;
}

/// Whether one stage computes all `terms`, or, if each has its `own` reduction,
/// stages of one pipeline position, which reduces their sum.
static bool areTogether(const Stages &stages, ValueRange terms, bool own) {
  std::optional<int64_t> first = stages.of(terms.front().getDefiningOp());
  return llvm::all_of(terms.drop_front(), [&](Value term) {
    std::optional<int64_t> other = stages.of(term.getDefiningOp());
    return first == other ||
           (own && first && other && stages.areTogether(*first, *other));
  });
}

/// Accumulates the gradients of a parameter that several stages use in each of
/// these stages, and adds up the accumulated gradients: a sum over
/// micro-batches of an addition of values of different stages becomes an
/// addition of sums, which are sent once, after the last micro-batch. Sums over
/// devices of each micro-batch become sums of each term. Returns whether it
/// changed anything.
static bool separateUses(func::FuncOp function, const Flow &flow,
                         const Stages &stages) {
  SmallVector<spmd::AllReduceOp> work;
  for (auto op : function.getBody().front().getOps<spmd::AllReduceOp>())
    if (flow.isAccumulation(op) && !flow.inPrologue(op))
      work.push_back(op);
  bool found = false;
  while (!work.empty()) {
    spmd::AllReduceOp op = work.pop_back_val();
    Operation *sum = op.getInput().getDefiningOp();
    SmallVector<Operation *> reductions;
    for (; isReduction(sum) && sum->hasOneUse();
         sum = sum->getOperand(0).getDefiningOp())
      reductions.push_back(sum);
    if (op.getKind() != spmd::ReductionKind::Sum || !sum || !isAddition(sum) ||
        !sum->hasOneUse() ||
        llvm::any_of(sum->getOperands(),
                     [](Value term) { return !term.getDefiningOp(); }) ||
        areTogether(stages, sum->getOperands(), !reductions.empty()))
      continue;
    found = true;
    OpBuilder builder(op);
    SmallVector<Value> terms;
    for (Value term : sum->getOperands()) {
      for (Operation *reduction : llvm::reverse(reductions)) {
        Operation *each = builder.clone(*reduction);
        each->setOperand(0, term);
        term = each->getResult(0);
      }
      auto own = cast<spmd::AllReduceOp>(builder.clone(*op));
      own.getInputMutable().assign(term);
      terms.push_back(own);
      work.push_back(own);
    }
    Operation *total = builder.clone(*sum);
    total->setOperands(terms);
    total->setAttr(spmd::kShardingsAttr, op->getAttr(spmd::kShardingsAttr));
    for (Value result : total->getResults())
      result.setType(op.getType());
    total->setAttr(spmd::kGlobalTypesAttr, op->getAttr(spmd::kGlobalTypesAttr));
    op.replaceAllUsesWith(total->getResult(0));
    op.erase();
    for (Operation *reduction : reductions)
      reduction->erase();
    sum->erase();
  }
  return found;
}

struct SplitStagesPass : cleave::pipe::impl::SplitStagesBase<SplitStagesPass> {
  using SplitStagesBase::SplitStagesBase;

  /// The number of pipeline positions, each with `chunks` stages.
  static int64_t countPositions(const spmd::Mesh &mesh) {
    return mesh.size(spmd::AxisRef{spmd::kPipelineAxis});
  }

  /// Returns the value of option `name` whose text is `text`.
  template <typename T>
  FailureOr<T> choose(StringRef name, StringRef text,
                      ArrayRef<std::pair<StringRef, T>> choices) {
    for (const auto &[known, value] : choices)
      if (known == text)
        return value;
    InFlightDiagnostic error = getOperation().emitError(name) << " must be ";
    for (const auto &choice : choices.drop_back())
      error << choice.first << (&choice + 2 == choices.end() ? " " : ", ");
    return error << "or " << choices.back().first << ", got '" << text << "'";
  }

  FailureOr<int64_t> countStages(spmd::MeshOp mesh) {
    if (chunks < 1)
      return getOperation().emitError("chunks must be positive, got ")
             << chunks.getValue();
    // A bound above any real pipeline.
    constexpr int64_t most = 1 << 12;
    int64_t count;
    if (llvm::MulOverflow(countPositions(mesh.getMesh()), chunks.getValue(),
                          count) ||
        count > most)
      return getOperation().emitError("there are ")
             << chunks.getValue() << " chunks for each of "
             << countPositions(mesh.getMesh())
             << " pipeline positions, more than " << most
             << " stages: choose fewer chunks";
    if (!at.empty() && static_cast<int64_t>(at.size()) + 1 != count)
      return getOperation().emitError("there are ")
             << count << " stages: `at` needs a number for each but the first";
    return count;
  }

  LogicalResult split() {
    spmd::MeshOp mesh = spmd::findMesh(getOperation());
    if (!mesh)
      return getOperation().emitError("has no spmd.mesh");
    FailureOr<int64_t> stageCount = countStages(mesh);
    if (failed(stageCount))
      return failure();
    int64_t count = *stageCount;
    std::string error;
    std::optional<MachineModel> known = MachineModel::parse(machine, error);
    if (!known)
      return getOperation().emitError("machine: ") << error;
    std::optional<scheduling::StageMap> map = scheduling::StageMap::parse(
        stageMap, countPositions(mesh.getMesh()), error);
    if (!map)
      return getOperation().emitError("stage-map: ") << error;
    FailureOr<Fusion> wanted = choose<Fusion>("fusion", fusion,
                                              {{"auto", Fusion::Auto},
                                               {"none", Fusion::None},
                                               {"backward", Fusion::Backward}});
    FailureOr<Slices> sliced = choose<Slices>(
        "slices", slices,
        {{"auto", Slices::Auto}, {"on", Slices::On}, {"off", Slices::Off}});
    FailureOr<GatherMode> mode =
        choose<GatherMode>("gather", gather,
                           {{"each", GatherMode::Each},
                            {"once", GatherMode::Once},
                            {"auto", GatherMode::Auto}});
    if (failed(wanted) || failed(sliced) || failed(mode))
      return failure();
    SmallVector<std::string> begins = splitNames(stages);
    SmallVector<std::string> over(gatherOver.begin(), gatherOver.end());
    SmallVector<func::FuncOp> entries;
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (function.isPublic() && !function.isExternal())
        entries.push_back(function);
    // The training entry decides the stages of parameters; the others follow.
    llvm::stable_sort(entries, [](func::FuncOp a, func::FuncOp b) {
      return hasSeed(a) && !hasSeed(b);
    });
    std::vector<std::unique_ptr<Flow>> flows;
    std::vector<std::unique_ptr<Stages>> cuts;
    GatherChoice choice;
    for (func::FuncOp function : entries) {
      if (!function.getBody().hasOneBlock())
        return function.emitOpError("must have one block");
      if (failed(verifyUnsharded(function, mesh.getMesh())))
        return failure();
      numberChecks(function);
      separateReductions(function, mesh.getMesh());
      // All entries gather as the first one, which is the training entry if
      // there is one.
      Flow before(function, mesh, *wanted, count);
      if (failed(before.analyze()))
        return failure();
      if (flows.empty()) {
        choice = chooseGathers(function, before, mesh.getMesh(), *mode);
        if (*mode == GatherMode::Once && choice.text.empty())
          function.emitWarning(
              "gathers nothing once: no micro-batch reads a sharded parameter, "
              "as with " +
              spmd::recipesThat([](const spmd::RecipeInfo &info) {
                return info.shardsParameters;
              }) +
              " (--pipe-gather)");
      }
      if (choice.once)
        joinGathers(function, before, mesh.getMesh(), over);
      flows.emplace_back();
      cuts.emplace_back();
      // Analyze again if separating uses has changed the ops.
      for (bool again = true; again;) {
        flows.back() = std::make_unique<Flow>(function, mesh, *wanted, count);
        if (failed(flows.back()->analyze()))
          return failure();
        cuts.back() =
            std::make_unique<Stages>(function, *flows.back(), count, *map);
        LogicalResult done = success();
        if (cuts.size() > 1)
          done = cuts.back()->cutLike(*cuts.front());
        else if (!at.empty())
          cuts.back()->cutAt(ArrayRef<int64_t>(&*at.begin(), at.size()));
        else
          done = cuts.back()->cut(begins, *known, keepWhole);
        if (failed(done))
          return failure();
        // In a tree, the addition of a micro-batch's terms comes first, even if
        // they are in several stages.
        again =
            !treeSums && separateUses(function, *flows.back(), *cuts.back());
      }
    }
    int64_t slicedValues = 0;
    for (auto [function, flow, cut] : llvm::zip_equal(entries, flows, cuts)) {
      for (Operation &op : function.getBody().front())
        op.removeAttr(kBeginsStageAttr);
      FailureOr<int64_t> own =
          shapeTransfers(function, mesh, *flow, *cut, *sliced);
      if (failed(own))
        return failure();
      slicedValues += *own;
    }
    if (slicedValues && failed(verifyLocal()))
      return failure();
    for (auto [function, flow, cut] : llvm::zip_equal(entries, flows, cuts)) {
      StepCollectives exchanges(function, *flow, mesh.getMesh(), choice.once,
                                over, /*copy=*/!keepWhole);
      FailureOr<ProgramOp> program =
          splitEntry(function, *flow, *cut, exchanges, splitBackward, treeSums);
      if (failed(program))
        return failure();
      if (!choice.text.empty())
        (*program)->setAttr(kGatherAttr,
                            StringAttr::get(&getContext(), choice.text));
      countParts(*program);
    }
    return success();
  }

  /// Verifies shards of ops and collectives, which slices have changed.
  LogicalResult verifyLocal() {
    OpPassManager verifier(ModuleOp::getOperationName());
    verifier.addPass(spmd::createVerifyLocal());
    return runPipeline(verifier, getOperation());
  }

  /// Gives the values that stages of an entry send their types, and then their
  /// slices; returns the number of values that are sliced. With grains, bits do
  /// not depend on where stages begin; nor do scales of 8 bits.
  FailureOr<int64_t> shapeTransfers(func::FuncOp function, spmd::MeshOp mesh,
                                    Flow &flow, Stages &cut, Slices sliced) {
    if (!treeSums && !graph::usesFloat8(function) &&
        failed(narrowTransfers(function, flow, cut)))
      return failure();
    return sliceTransfers(function, mesh, flow, cut, sliced);
  }

  void countParts(ProgramOp program) {
    for (auto invoke : program.getBody().getOps<InvokeOp>()) {
      int64_t saved = 0;
      for (unsigned i = 0; i < invoke.getNumResults(); ++i)
        saved += invoke.isSaved(i);
      ++outlinedParts;
      savedValues += saved;
      LLVM_DEBUG(llvm::dbgs()
                 << "part @" << invoke.getCallee() << " of stage "
                 << invoke.getStage() << ": reads " << invoke.getNumOperands()
                 << ", returns " << invoke.getNumResults() << ", of which it "
                 << "saves " << saved << "\n");
    }
  }

  static void numberChecks(func::FuncOp function) {
    Builder builder(function.getContext());
    for (auto [i, check] :
         llvm::enumerate(function.getBody().front().getOps<graph::CheckOp>()))
      check->setAttr(kCheckAttr, builder.getI64IntegerAttr(i));
  }

  static bool hasSeed(func::FuncOp function) {
    return !function.getBody().front().getOps<graph::SeedOp>().empty();
  }

  void runOnOperation() override {
    if (failed(split()))
      signalPassFailure();
  }
};
} // namespace
