//===- SplitStages.cpp - Outlines the parts of each entry -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// 1. Flow.cpp says of each op its role and whether it varies with the
///    micro-batch; Stages.cpp, which stage of the pipeline computes it.
/// 2. SliceTransfers.cpp lets devices that have a value in common each send a
///    slice of it.
/// 3. Exchanges.cpp finds what devices need to exchange once for a step.
/// 4. CollectParts.cpp walks the parts backwards, from update to prologue: each
///    takes the ops whose results it needs, or imports a result of an earlier
///    part, and what nothing needs is left behind.
/// 5. OutlineParts.cpp makes of each part a function, and of the entry a
///    program.
///
//===----------------------------------------------------------------------===//

#include "Exchanges.h"
#include "Parts.h"
#include "SliceTransfers.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Pipe/Transforms/Passes.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/MathExtras.h"

namespace cleave::pipe {
#define GEN_PASS_DEF_SPLITSTAGES
#include "cleave/Dialect/Pipe/Transforms/Passes.h.inc"
} // namespace cleave::pipe

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

namespace {
/// A sum over micro-batches and devices at once is two: that over the
/// micro-batches, which is none that anything computes, comes first.
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
        own->partial.push_back(
            {axis, static_cast<spmd::PartialKind>(op.getKind())});
      spmd::annotate(first, spmd::ShardingAttr::get(op.getMeshAttr(), *own),
                     spmd::writtenGlobalType(op));
    }
    op.setAxesAttr(spmd::AxesAttr::get(op.getContext(), devices));
    op.getInputMutable().assign(first);
  }
}

/// No tensor is split over the positions of a pipeline: they run other parts.
static LogicalResult verifyWhole(func::FuncOp function,
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
           << "is split over axis \"" << spmd::kPipelineAxis
           << "\", whose positions are stages of a pipeline: split over "
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

/// Whether `op` of sums is the sum of what it makes of their terms: an
/// addition.
static bool addsUp(Operation *op) {
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

/// A sum over micro-batches of what two stages add up is the sum of theirs:
/// what uses of a parameter in several stages give is added up once, behind the
/// last micro-batch, and sent then. Returns whether there is any.
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
    if (op.getKind() != spmd::ReductionKind::sum || !sum || !addsUp(sum) ||
        !sum->hasOneUse() ||
        llvm::any_of(sum->getOperands(),
                     [](Value term) { return !term.getDefiningOp(); }) ||
        llvm::all_equal(llvm::map_range(sum->getOperands(), [&](Value term) {
          return stages.of(term.getDefiningOp());
        })))
      continue;
    found = true;
    OpBuilder builder(op);
    SmallVector<Value> terms;
    for (Value term : sum->getOperands()) {
      auto own = cast<spmd::AllReduceOp>(builder.clone(*op));
      own.getInputMutable().assign(term);
      terms.push_back(own);
      work.push_back(own);
    }
    Operation *total = builder.clone(*sum);
    total->setOperands(terms);
    total->setAttr(spmd::kShardingsAttr, op->getAttr(spmd::kShardingsAttr));
    op.replaceAllUsesWith(total->getResult(0));
    op.erase();
    sum->erase();
  }
  return found;
}

struct SplitStagesPass : cleave::pipe::impl::SplitStagesBase<SplitStagesPass> {
  using SplitStagesBase::SplitStagesBase;

  /// The positions of the pipeline, each with `chunks` stages.
  static int64_t countPositions(const spmd::Mesh &mesh) {
    const spmd::MeshAxis *axis = mesh.find(spmd::kPipelineAxis);
    return axis ? axis->size : 1;
  }

  /// What the option `name` says in its text.
  template <typename T>
  FailureOr<T> choose(StringRef name, StringRef text,
                      ArrayRef<std::pair<StringRef, T>> choices) {
    for (const auto &[own, value] : choices)
      if (own == text)
        return value;
    InFlightDiagnostic error = getOperation().emitError(name) << " is ";
    for (const auto &choice : choices.drop_back())
      error << choice.first << (&choice + 2 == choices.end() ? " " : ", ");
    return error << "or " << choices.back().first << ", not '" << text << "'";
  }

  LogicalResult split() {
    spmd::MeshOp mesh = spmd::findMesh(getOperation());
    if (!mesh)
      return getOperation().emitError("there is no spmd.mesh");
    if (chunks < 1)
      return getOperation().emitError("chunks must be positive, not ")
             << chunks.getValue();
    // More are a mistake, and too many to count with.
    constexpr int64_t most = 1 << 12;
    int64_t count;
    if (llvm::MulOverflow(countPositions(mesh.getMesh()), chunks.getValue(),
                          count) ||
        count > most)
      return getOperation().emitError("there are ")
             << chunks.getValue() << " chunks for each of "
             << countPositions(mesh.getMesh())
             << " positions, which are more than " << most
             << " stages: choose fewer chunks";
    if (!at.empty() && static_cast<int64_t>(at.size()) + 1 != count)
      return getOperation().emitError("there are ")
             << count << " stages: `at` needs a number for each but the first";
    std::string error;
    std::optional<MachineModel> known = MachineModel::parse(machine, error);
    if (!known)
      return getOperation().emitError("machine: ") << error;
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
    SmallVector<std::string> begins;
    for (StringRef name : llvm::split(StringRef(stages), ','))
      if (!name.trim().empty())
        begins.push_back(name.trim().str());
    SmallVector<func::FuncOp> entries;
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (function.isPublic() && !function.isExternal())
        entries.push_back(function);
    // What trains says where parameters are; all other entries follow.
    llvm::stable_sort(entries, [](func::FuncOp a, func::FuncOp b) {
      return hasSeed(a) && !hasSeed(b);
    });
    std::vector<std::unique_ptr<Flow>> flows;
    std::vector<std::unique_ptr<Stages>> cuts;
    GatherChoice choice;
    for (func::FuncOp function : entries) {
      if (!function.getBody().hasOneBlock())
        return function.emitOpError("must have one block to be split");
      if (failed(verifyWhole(function, mesh.getMesh())))
        return failure();
      numberChecks(function);
      separateReductions(function, mesh.getMesh());
      // All entries do as the first one, which trains where there is one.
      Flow before(function, mesh, *wanted, count);
      if (failed(before.analyze()))
        return failure();
      if (flows.empty()) {
        choice = chooseGathers(function, before, mesh.getMesh(), *mode);
        if (*mode == GatherMode::Once && choice.text.empty())
          function.emitWarning(
              "gathers nothing once: no micro-batch reads what "
              "devices hold in parts, as with zero3 "
              "(--pipe-gather)");
      }
      if (choice.once)
        joinGathers(function, before, mesh.getMesh());
      flows.emplace_back();
      cuts.emplace_back();
      // Once more where what is the same for each micro-batch is another then.
      for (bool again = true; again;) {
        flows.back() = std::make_unique<Flow>(function, mesh, *wanted, count);
        if (failed(flows.back()->analyze()))
          return failure();
        cuts.back() = std::make_unique<Stages>(function, *flows.back(), count);
        if (cuts.size() > 1)
          cuts.back()->cutLike(*cuts.front());
        else if (!at.empty())
          cuts.back()->cutAt(ArrayRef<int64_t>(&*at.begin(), at.size()));
        else if (failed(cuts.back()->cut(begins, *known, keepWhole)))
          return failure();
        // In a tree, each micro-batch is a term of its own, however many
        // stages add to it.
        again =
            !treeSums && separateUses(function, *flows.back(), *cuts.back());
      }
    }
    int64_t slicedValues = 0;
    for (auto [function, flow, cut] : llvm::zip_equal(entries, flows, cuts)) {
      FailureOr<int64_t> own =
          sliceTransfers(function, mesh, *flow, *cut, *sliced);
      if (failed(own))
        return failure();
      slicedValues += *own;
    }
    // Ops on other shards, and new collectives.
    OpPassManager verifier(ModuleOp::getOperationName());
    verifier.addPass(spmd::createVerifyLocal());
    if (slicedValues && failed(runPipeline(verifier, getOperation())))
      return failure();
    for (auto [function, flow, cut] : llvm::zip_equal(entries, flows, cuts)) {
      Exchanges exchanges(function, *flow, mesh.getMesh(), choice.once);
      FailureOr<ProgramOp> program =
          splitEntry(function, *flow, *cut, exchanges, splitBackward, treeSums);
      if (failed(program))
        return failure();
      if (!choice.text.empty())
        (*program)->setAttr(kGatherAttr,
                            StringAttr::get(&getContext(), choice.text));
    }
    return success();
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
