//===- MaskedExperts.cpp - Experts behind matmuls with masks --------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Experts as the algorithm of Lepikhin et al., "GShard" (arXiv 2006.16668),
/// has them in einsums:
/// ```
/// gsec,gsm->egcm     slots are filled by a mask of tokens, experts and places
/// egcm,emh->egch     experts: each has its own weights
/// gsec,egcm->gsm     their outputs are weighted and summed
/// ```
/// The mask is made of a softmax over the experts, so that they are one class
/// with the router's. Only matmuls in which experts are a batch dimension are
/// sharded over them.
///
//===----------------------------------------------------------------------===//

#include "ExpertDimensions.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

/// Whether `known` are experts whose router is in the class. Matmuls sum over
/// heads with their own weights, too, but not with weights over experts.
static bool isMasked(const DimensionClass &known) {
  bool routed =
      known.wholeIn || llvm::any_of(known.producers, [&](Operation *producer) {
        return !llvm::is_contained(known.stacked, producer);
      });
  return routed && !known.samples && known.consumers.empty() &&
         llvm::any_of(known.stacked, llvm::IsaPred<graph::ContractOp>);
}

namespace {
/// The experts of one class.
class MaskedExperts {
public:
  MaskedExperts(const DimensionClasses &classes, unsigned number)
      : classes(classes), number(number) {
    for (Operation *op : classes.all()[number].stacked)
      for (Value operand : op->getOperands())
        if (BlockArgument weight = viewedArgument(operand))
          for (auto [argument, dim] : classes.all()[number].arguments)
            if (argument == weight &&
                !llvm::is_contained(weights, std::pair(argument, dim)))
              weights.push_back({argument, dim});
  }

  ArrayRef<std::pair<BlockArgument, unsigned>> getWeights() const {
    return weights;
  }

  /// Finds the dimensions of experts of all matmuls, before annotations are
  /// inserted.
  void find(func::FuncOp function) {
    for (Operation &op : function.getBody().front().without_terminator()) {
      if (!isa<graph::ContractOp>(op))
        continue;
      Product product{&op, dimOf(op.getOperand(0)), dimOf(op.getOperand(1)),
                      dimOf(op.getResult(0))};
      if (product.first || product.second)
        products.push_back(product);
    }
  }

  void split(Annotator &annotator, StringRef axis, bool folded) const {
    AxisList over{AxisRef{annotator.getMesh().find(axis)->name}};
    for (auto [op, first, second, result] : products) {
      bool batch = first && second && result;
      // Folded experts add up partial sums instead.
      if (!batch && folded)
        continue;
      const std::optional<unsigned> dims[] = {first, second};
      for (auto [i, dim] : llvm::enumerate(dims)) {
        OpOperand &operand = op->getOpOperand(i);
        // Later recipes look for matmuls with weights.
        if (!dim || viewedArgument(operand.get()))
          continue;
        OpBuilder builder(op);
        operand.set(constrain(annotator, builder, operand.get(), *dim,
                              batch ? over : AxisList()));
      }
      if (!batch)
        continue;
      OpBuilder builder(op->getContext());
      builder.setInsertionPointAfter(op);
      Value value = op->getResult(0);
      ConstrainOp made = constrain(annotator, builder, value, *result, over);
      value.replaceAllUsesExcept(made, made);
    }
  }

private:
  struct Product {
    Operation *op;
    std::optional<unsigned> first, second, result;
  };

  std::optional<unsigned> dimOf(Value value) const {
    int64_t rank = cast<RankedTensorType>(value.getType()).getRank();
    for (int64_t dim = 0; dim < rank; ++dim)
      if (classes.number(value, dim) == number)
        return dim;
    return std::nullopt;
  }

  static ConstrainOp constrain(Annotator &annotator, OpBuilder &builder,
                               Value value, unsigned dim, AxisList axes) {
    Sharding sharding = Sharding::replicated(
        cast<RankedTensorType>(value.getType()).getRank(), /*open=*/true);
    sharding.dims[dim] = std::move(axes);
    sharding.open[dim] = false;
    return annotator.constrain(builder, value, sharding);
  }

  const DimensionClasses &classes;
  unsigned number;
  SmallVector<std::pair<BlockArgument, unsigned>> weights;
  SmallVector<Product> products;
};
} // namespace

FailureOr<bool> cleave::spmd::splitMaskedExperts(Annotator &annotator,
                                                 func::FuncOp function,
                                                 StringRef axis, bool folded) {
  const DimensionClasses &classes = annotator.classesOf(function);
  int64_t parts = annotator.getMesh().size(AxisRef{axis});
  SmallVector<MaskedExperts> all;
  for (auto [number, known] : llvm::enumerate(classes.all())) {
    if (!isMasked(known))
      continue;
    if (known.divisor % parts != 0)
      return known.stacked.front()->emitOpError("has ")
             << known.divisor << " experts, not divisible by the " << parts
             << " positions of axis \"" << axis << "\"";
    all.emplace_back(classes, number).find(function);
  }
  for (const MaskedExperts &experts : all) {
    for (auto [argument, dim] : experts.getWeights())
      if (!annotator.isSplit(argument, axis))
        annotator.split(argument, dim, axis);
    experts.split(annotator, axis, folded);
  }
  return !all.empty();
}
