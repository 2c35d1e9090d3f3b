//===- PrecisionPolicy.cpp - Precision of the operands of ops -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The policy of mixed precision (Micikevicius et al., "Mixed Precision
/// Training", arXiv 1710.03740, section 3): factors of contractions and
/// attention are narrow; reductions, softmax, losses, angles and what is
/// exponentiated are f32; a scatter does not round what it adds; norms read and
/// write either type, with statistics in f32. All other ops follow their
/// operands.
///
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/GraphOps.h"

using namespace mlir;
using namespace cleave::graph;

namespace {

using enum OperandPrecision;

/// All operands have the precision `kind`.
template <OperandPrecision kind> struct All {
  static OperandPrecision of(Operation *, unsigned) { return kind; }
};

/// The first `count` operands are narrow, the others f32.
template <unsigned count> struct FirstNarrow {
  static OperandPrecision of(Operation *, unsigned index) {
    return index < count ? Narrow : F32;
  }
};

/// The first `count` operands agree with each other; the others are f32.
template <unsigned count> struct FirstSame {
  static OperandPrecision of(Operation *, unsigned index) {
    return index < count ? Same : F32;
  }
};

/// The results of the same queries on other keys have the queries' type. The
/// output is complete: it is rounded once, whatever the layout.
struct OfAttention {
  static constexpr bool isComplete = true;
  static OperandPrecision of(Operation *op, unsigned index) {
    bool onto = op->getOperand(index) == cast<AttentionOp>(op).getOnto();
    return index < 3 || onto ? Narrow : F32;
  }
};

/// A bias is added to the sums, in their type.
struct OfLinear {
  static OperandPrecision of(Operation *op, unsigned index) {
    return index < 2 || !cast<LinearOp>(op).getResultElement() ? Narrow : F32;
  }
};

/// A maximum or minimum is one of the values; a sum is none.
struct OfReduction {
  static OperandPrecision of(Operation *op, unsigned) {
    ReductionKind kind = cast<ReduceOp>(op).getKind();
    return kind == ReductionKind::Max || kind == ReductionKind::Min ? Same
                                                                    : F32;
  }
};

template <typename OpTy, typename Policy>
struct PrecisionModel
    : PrecisionOpInterface::ExternalModel<PrecisionModel<OpTy, Policy>, OpTy> {
  OperandPrecision getOperandPrecision(Operation *op, unsigned index) const {
    return Policy::of(op, index);
  }
  bool setSumElement(Operation *op, Type element) const {
    if constexpr (
        requires(OpTy o) { o.getResultElementAttr(); } &&
        !requires { Policy::isComplete; }) {
      cast<OpTy>(op).setResultElementAttr(TypeAttr::get(element));
      return true;
    }
    return false;
  }
  void roundInnerSums([[maybe_unused]] Operation *op) const {
    if constexpr (requires(OpTy o) { o.setNarrowLogits(true); })
      cast<OpTy>(op).setNarrowLogits(true);
  }
};

template <typename Policy, typename... OpTys>
void attach(MLIRContext *context) {
  (OpTys::template attachInterface<PrecisionModel<OpTys, Policy>>(*context),
   ...);
}

} // namespace

void cleave::graph::registerPrecisionModels(DialectRegistry &registry) {
  registry.addExtension(+[](MLIRContext *context, GraphDialect *) {
    attach<FirstNarrow<2>, ContractOp, GroupedLinearOp,
           GroupedLinearWeightGradOp, HeadLossOp>(context);
    attach<OfLinear, LinearOp>(context);
    attach<FirstSame<1>, ScatterAddOp>(context);
    attach<OfAttention, AttentionOp>(context);
    attach<FirstNarrow<5>, AttentionGradOp, AttentionBiasGradOp>(context);
    attach<FirstSame<1>, LayerNormOp, RmsNormOp>(context);
    attach<FirstSame<2>, LayerNormGradOp, LayerNormWeightGradOp, RmsNormGradOp,
           RmsNormWeightGradOp>(context);
    attach<OfReduction, ReduceOp>(context);
    attach<All<F32>, SoftmaxOp, SoftmaxGradOp, CrossEntropyOp,
           CrossEntropyGradOp, CumulativeSumOp, LinearScanOp, TopKOp, ExpOp,
           Expm1Op, LogOp, Log1pOp, PowOp, RsqrtOp, SinOp, CosOp, GlobalNormOp,
           SeedOp, GradientOp, WrittenOp, AdamWOp, SgdOp, OrthonormalizeOp>(
        context);
  });
}
