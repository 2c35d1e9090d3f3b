//===- Recompute.cpp - Values again instead of saved ones -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "PassOn.h"
#include "RecordSaved.h"
#include "SavedCut.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/Messages/SourceLine.h"
#include "cleave/Dialect/Graph/IR/TensorBytes.h"
#include "cleave/Dialect/Pipe/IR/PartFunctions.h"
#include "cleave/Dialect/Pipe/Transforms/Costs.h"
#include "cleave/Dialect/Pipe/Transforms/Passes.h"
#include "cleave/Dialect/Pipe/Transforms/RecomputePolicy.h"
#include "cleave/Support/PassCounts.h"
#include "llvm/Support/Debug.h"

#define DEBUG_TYPE "pipe-recompute"

static cleave::PassCount recomputedOps(DEBUG_TYPE,
                                       "Ops that backward computes again");
static cleave::PassCount
    unsavedBytes(DEBUG_TYPE,
                 "Bytes of a micro-batch that are therefore not saved");

namespace cleave::pipe {
#define GEN_PASS_DEF_RECOMPUTE
#include "cleave/Dialect/Pipe/Transforms/Passes.h.inc"
} // namespace cleave::pipe

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

/// Whether making `result` again takes little time for its bytes.
static bool isCheap(OpResult result, const graph::OpCost &cost) {
  switch (cost.work) {
  case graph::WorkClass::View:
  case graph::WorkClass::ElementWise:
    return true;
  case graph::WorkClass::RowWise:
    // Statistics of rows are much smaller than the rows.
    return bytesOf(result) * 8 >= cost.bytesRead;
  case graph::WorkClass::Gather:
    // A gather copies slices; a scatter that adds them up is not recomputed.
    return cost.flops == 0 && bytesOf(result) * 2 >= cost.bytesRead;
  default:
    return false;
  }
}

/// Whether all of some block may be recomputed.
static bool repeatsBlocks(const RecomputePolicy &policy, bool regions) {
  return llvm::any_of(policy.blocks, [&](const RecomputeChoice &choice) {
    return choice.full || choice.price > 0 || (regions && choice.regions);
  });
}

/// Whether backward may recompute `result`; with `regions`, blocks are those of
/// the model's checkpoints. Of a backward in two parts the second repeats of
/// the first only what is cheap, and that also where blocks are repeated.
static bool mayRecompute(OpResult result, const RecomputePolicy &policy,
                         const Blocks &blocks, bool regions) {
  Operation *op = result.getOwner();
  if (!isPure(op))
    return false;
  bool forward = blocks.knows(op);
  int64_t block = forward ? blocks.blockOf(op) : -1;
  const RecomputeChoice &choice = policy.of(block);
  bool region = regions && choice.regions && block >= 0;
  // Else a cheap result at the end of a region would need all of the region.
  if (region && blocks.isBoundary(result))
    return false;
  bool all = region || ((choice.full || choice.price > 0) && block >= 0 &&
                        !blocks.isBoundary(result));
  // Communication is repeated only where all of a block may be.
  auto costed = dyn_cast<graph::CostOpInterface>(op);
  if (isa<spmd::CommunicationOpInterface>(op) || !costed)
    return all;
  graph::OpCost cost = costed.getCost();
  if (all || cost.work == graph::WorkClass::View)
    return true;
  // It is computed once, but in backward: an f32 copy of a 16-bit activation.
  if (forward && blocks.isForBackward(op) && isCheap(result, cost))
    return true;
  // Masks, positions and the like.
  if (forward && !blocks.dependsOnSamples(op))
    return isCheap(result, cost);
  bool free = choice.free || (!forward && repeatsBlocks(policy, regions));
  return (free && isCheap(result, cost)) ||
         (choice.selective && forward && blocks.isCore(op));
}

namespace {
struct RecomputePass : cleave::pipe::impl::RecomputeBase<RecomputePass> {
  using RecomputeBase::RecomputeBase;

  void runOnOperation() override {
    std::string error;
    auto chosen = RecomputePolicy::parse(policy, error);
    std::optional<MachineModel> rates;
    if (chosen)
      rates = MachineModel::parse(machine, error);
    if (!chosen || !rates) {
      getOperation().emitError("recompute: ") << error;
      return signalPassFailure();
    }
    int64_t twins = 0;
    spmd::MeshOp meshOp = spmd::findMesh(getOperation());
    spmd::Mesh mesh = meshOp ? meshOp.getMesh() : spmd::Mesh();
    for (auto program : getOperation().getOps<ProgramOp>()) {
      if (failed(verifyPartFunctions(program)))
        return signalPassFailure();
      SmallVector<InvokeOp> invokes(program.getBody().getOps<InvokeOp>());
      SmallVector<InvokeOp> forward;
      for (InvokeOp invoke : invokes)
        if (invoke.getPart() == "F")
          forward.push_back(invoke);
      bool regions = chosen->hasRegions() && Blocks::hasRegions(forward);
      Blocks blocks(forward, regions);
      RecomputeTally tally;
      tally.twins = twins;
      auto may = [&](OpResult result) {
        return mayRecompute(result, *chosen, blocks, regions);
      };
      auto blockOf = [&](Operation *op) {
        return blocks.knows(op) ? blocks.blockOf(op) : -1;
      };
      auto price = [&](Operation *op) -> int64_t {
        double worth = chosen->of(blockOf(op)).price;
        return worth > 0 ? std::min(rates->secondsOf(workOf(op, mesh)) * worth,
                                    0x1p55)
                         : 0;
      };
      RecomputeRules rules{may, price, blockOf, mesh};
      passOnSaved(invokes, [&](OpResult result) {
        const RecomputeChoice &choice = chosen->of(blockOf(result.getOwner()));
        return (choice.full || (regions && choice.regions)) && may(result);
      });
      for (size_t c = 0; c < invokes.size(); ++c)
        for (size_t p = 0; p < c; ++p)
          if (!invokes[c].getOnce() &&
              invokes[c].getStage() == invokes[p].getStage() &&
              savesFor(invokes[p], invokes[c]))
            std::tie(invokes[p], invokes[c]) =
                saveLess(invokes[p], invokes[c], rules, tally);
      tally.write(program);
      count(program, tally);
      twins = tally.twins;
      recordSaved(program, blocks);
    }
  }

private:
  void count(ProgramOp program, const RecomputeTally &tally) {
    unsavedBytes += std::max<int64_t>(tally.unsaved, 0);
    for (const auto &[key, group] : tally.groups) {
      recomputedOps += group.ops;
      LLVM_DEBUG(llvm::dbgs()
                 << "@" << program.getSymName() << " recomputes " << group.ops
                 << " x " << key.first << " at " << key.second << ", saving "
                 << group.bytes << " bytes less\n");
    }
  }
};
} // namespace
