//===- SelectKernels.cpp - Selection of library calls ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "SelectKernels.h"
#include "cleave/Conversion/Passes.h"
#include "cleave/Support/PassCounts.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"
#include "llvm/Support/Debug.h"

#define DEBUG_TYPE "exec-select-kernels"

static cleave::PassCount matmulCalls(DEBUG_TYPE,
                                     "Contractions that a library computes");
static cleave::PassCount otherCalls(DEBUG_TYPE, "Other library calls");

namespace cleave::exec {
#define GEN_PASS_DEF_SELECTKERNELS
#include "cleave/Conversion/Passes.h.inc"
} // namespace cleave::exec

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

namespace {

struct SelectCheck : OpRewritePattern<graph::CheckOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(graph::CheckOp op,
                                PatternRewriter &rewriter) const override {
    rewriter.replaceOpWithNewOp<CheckOp>(
        op, op.getFlag(), op.getMessageAttr(),
        op->hasAttr(kDeferredAttr) ? rewriter.getUnitAttr() : UnitAttr(),
        op.getSkipsAttr(), op.getRoomAttr(), op.getValues());
    return success();
  }
};
} // namespace

void cleave::exec::populateSelectCheck(RewritePatternSet &patterns) {
  patterns.add<SelectCheck>(patterns.getContext());
}

namespace {
struct SelectKernels : exec::impl::SelectKernelsBase<SelectKernels> {
  using SelectKernelsBase::SelectKernelsBase;

  void runOnOperation() override {
    func::FuncOp function = getOperation();
    if (function.isExternal())
      return;
    RewritePatternSet select(&getContext()), accumulate(&getContext()),
        epilogues(&getContext());
    ProductForms forms{products16, products8};
    populateSelectContract(select, forms);
    populateSelectAttention(select);
    populateSelectHeadLoss(select, chunkBytes, forms);
    populateSelectCheck(select);
    populateSelectOrthonormalize(select);
    populateSelectTopK(select);
    populateSelectGrouped(select);
    populateAccumulate(accumulate);
    if (products16)
      populateSelectEpilogues(epilogues);
    // Folding would move constants before commands without benefit.
    // Each pattern replaces an op by others that it does not match, or removes
    // an addition: rewriting ends, but not after a fixed number of rounds,
    // since a sum of many scatters is accumulated one by one.
    GreedyRewriteConfig config;
    config.setMaxIterations(GreedyRewriteConfig::kNoLimit);
    if (failed(applyPatternsGreedily(function, std::move(select), config)) ||
        failed(
            applyPatternsGreedily(function, std::move(accumulate), config)) ||
        failed(applyPatternsGreedily(function, std::move(epilogues), config)))
      return signalPassFailure();
    materialiseConstants(function);
    count();
  }

  void count() {
    getOperation().walk([&](CommandOpInterface command) {
      ++(isa<ContractOp>(command) ? matmulCalls : otherCalls);
      LLVM_DEBUG({
        llvm::dbgs() << "@" << getOperation().getSymName() << " calls "
                     << command->getName() << " for ";
        llvm::interleaveComma(command->getResultTypes(), llvm::dbgs());
        llvm::dbgs() << "\n";
      });
    });
  }

  /// Kernels hold splat constants as immediates; every other reader needs
  /// memory.
  void materialiseConstants(func::FuncOp function) {
    for (auto constant :
         llvm::make_early_inc_range(function.getOps<graph::ConstantOp>())) {
      OpBuilder builder(constant);
      builder.setInsertionPointAfter(constant);
      auto splat = dyn_cast<SplatElementsAttr>(constant.getValue());
      Value value;
      for (OpOperand &use :
           llvm::make_early_inc_range(constant.getOutput().getUses())) {
        if (splat && isFusible(use.getOwner()))
          continue;
        if (value) {
          // A result needs its own memory.
          if (!use.getOwner()->hasTrait<OpTrait::IsTerminator>()) {
            use.set(value);
            continue;
          }
        }
        Location loc = constant.getLoc();
        RankedTensorType type = tensorTypeOf(constant.getOutput());
        if (splat)
          value =
              FillOp::create(builder, loc, type,
                             cast<TypedAttr>(splat.getSplatValue<Attribute>()));
        else if (!value)
          value = ConstantOp::create(builder, loc, type, constant.getValue());
        use.set(value);
      }
      if (constant->use_empty())
        constant.erase();
    }
    // A constant of the program is never memory of a part.
    Operation *terminator = function.front().getTerminator();
    for (OpOperand &use : terminator->getOpOperands())
      if (isa_and_present<ConstantOp>(rootOf(use.get()).getDefiningOp())) {
        OpBuilder builder(terminator);
        use.set(CopyOp::create(builder, terminator->getLoc(),
                               denseType(tensorTypeOf(use.get())), use.get(),
                               Value()));
      }
  }
};

} // namespace
