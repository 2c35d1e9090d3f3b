//===- Expert.cpp - Expert parallelism ------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The recipe "expert": Lepikhin et al., "GShard" (arXiv 2006.16668),
/// section 3. Samples and experts are sharded over one axis. Tokens are
/// exchanged between the shardings of samples and of experts by an all-to-all,
/// as are their gradients:
/// ```
/// [samples/n, experts, slots, features]      dispatched, sharded by samples
/// [samples, experts/n, slots, features]      computed, sharded by experts
/// ```
///
//===----------------------------------------------------------------------===//

#include "Annotator.h"
#include "ExpertDimensions.h"
#include "cleave/Dialect/Graph/IR/Entry.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

/// Annotates the values of `function` that are exchanged between the shardings
/// of samples and of experts.
static void annotateExchanges(Annotator &annotator, func::FuncOp function,
                              const ExpertDimensions &experts, StringRef axis) {
  // Collected before annotations are inserted.
  SmallVector<OpResult> entering = experts.entering(function);
  for (OpOperand *operand : experts.leaving(function)) {
    Value value = operand->get();
    unsigned dim = *experts.expertDim(value);
    Sharding sharding = Sharding::replicated(
        cast<RankedTensorType>(value.getType()).getRank(), /*open=*/true);
    sharding.open[dim] = false;
    OpBuilder builder(operand->getOwner());
    operand->set(annotator.constrain(builder, value, sharding));
  }
  for (OpResult result : entering)
    annotator.splitValue(result, *experts.expertDim(result), axis);
}

LogicalResult cleave::spmd::applyExpert(Annotator &annotator, StringRef axis) {
  if (failed(applyDp(annotator, axis)))
    return failure();
  int64_t parts = annotator.getMesh().size(AxisRef{axis});
  bool found = false;
  for (func::FuncOp function : annotator.entries()) {
    const DimensionClasses &classes = annotator.classesOf(function);
    for (unsigned number : ExpertDimensions::find(classes)) {
      const DimensionClass &known = classes.all()[number];
      // A number that is not divisible is padded later.
      if (known.divisor < parts)
        return known.stacked.front()->emitOpError("has ")
               << known.divisor << " experts, fewer than the " << parts
               << " positions of axis \"" << axis << "\"";
      found = true;
      for (auto [argument, dim] : known.arguments)
        annotator.split(argument, dim, axis);
      annotateExchanges(annotator, function, ExpertDimensions(classes, number),
                        axis);
    }
  }
  if (!found)
    return annotator.getModule().emitError()
           << "recipe 'expert': the model has no experts, that is, no batched "
              "product in which each batch index has its own weights";
  return success();
}
