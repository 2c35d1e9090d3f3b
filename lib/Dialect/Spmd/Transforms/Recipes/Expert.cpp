//===- Expert.cpp - Expert parallelism ------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Lepikhin et al., "GShard" (arXiv 2006.16668), section 3: samples are split,
/// and so are the experts. What samples send to experts, and get back, crosses
/// over by an all-to-all, as do its gradients:
/// ```
/// [samples/n, experts, places, features]      dispatched where samples are
/// [samples, experts/n, places, features]      computed where experts are
/// ```
///
//===----------------------------------------------------------------------===//

#include "Annotator.h"
#include "Experts.h"
#include "cleave/Dialect/Graph/IR/Entry.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

/// Lets values of `function` go from samples to experts and back.
static void cross(Annotator &annotator, func::FuncOp function,
                  const Experts &experts, StringRef axis) {
  // What enters and leaves, before annotations come between.
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
  if (failed(applyData(annotator, axis)))
    return failure();
  int64_t parts = annotator.getMesh().size(AxisRef{axis});
  bool found = false;
  for (func::FuncOp function : annotator.entries()) {
    const DimensionClasses &classes = annotator.classesOf(function);
    for (unsigned number : Experts::find(classes)) {
      const DimensionClass &known = classes.all()[number];
      if (known.divisor % parts != 0)
        return known.stacked.front()->emitOpError("has ")
               << known.divisor << " experts, which the " << parts
               << " positions of axis \"" << axis << "\" do not divide: use "
               << partsThatFit(known.divisor);
      found = true;
      for (auto [argument, dim] : known.arguments)
        annotator.split(argument, dim, axis);
      cross(annotator, function, Experts(classes, number), axis);
    }
  }
  if (!found)
    return annotator.getModule().emitError()
           << "expert: no products with weights go side by side, each with "
              "weights of its own, as those of experts do";
  return success();
}
