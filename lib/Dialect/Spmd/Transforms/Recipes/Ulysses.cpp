//===- Ulysses.cpp - Sequence parallelism by exchanging heads -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Jacobs et al., "DeepSpeed Ulysses" (arXiv 2309.14509): values are split
/// along the sequence, and along the heads inside of attention: an all-to-all
/// lies between.
///
//===----------------------------------------------------------------------===//

#include "Sequence.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

/// The dimension of `value` that products with weights make and attention does
/// side by side: its heads.
static std::optional<unsigned> headDim(const DimensionClasses &classes,
                                       Value value) {
  auto type = cast<RankedTensorType>(value.getType());
  for (int64_t dim = 0; dim < type.getRank(); ++dim) {
    const DimensionClass &known = classes.of(value, dim);
    if (known.attended && !known.samples && !known.producers.empty())
      return dim;
  }
  return std::nullopt;
}

LogicalResult cleave::spmd::applyUlysses(Annotator &annotator, StringRef axis) {
  AxisRef split{annotator.getMesh().find(axis)->name};
  int64_t parts = annotator.getMesh().size(split);
  bool found = false;
  for (func::FuncOp function : annotator.entries()) {
    const DimensionClasses &classes = annotator.classesOf(function);
    // Where the classes stand, before annotations come between.
    SmallVector<std::pair<OpOperand *, unsigned>> heads;
    SequenceClasses sequences;
    for (Operation &op : function.getBody().front().without_terminator()) {
      if (!isAttention(&op))
        continue;
      for (OpOperand &operand : op.getOpOperands()) {
        auto dim = headDim(classes, operand.get());
        if (!dim)
          continue;
        int64_t divisor = classes.of(operand.get(), *dim).divisor;
        if (divisor % parts != 0)
          return op.emitOpError("has ")
                 << divisor << " heads (or groups of heads), which the "
                 << parts << " positions of axis \"" << axis
                 << "\" do not divide: use " << partsThatFit(divisor);
        heads.push_back({&operand, *dim});
        auto type = cast<RankedTensorType>(operand.get().getType());
        for (int64_t other = 0; other < type.getRank(); ++other)
          sequences.insert(classes.number(operand.get(), other));
      }
    }
    for (auto [operand, dim] : heads) {
      Sharding sharding = Sharding::replicated(
          cast<RankedTensorType>(operand->get().getType()).getRank(),
          /*open=*/true);
      sharding.dims[dim].push_back(split);
      sharding.open[dim] = false;
      OpBuilder builder(operand->getOwner());
      operand->set(annotator.constrain(builder, operand->get(), sharding));
    }
    FailureOr<bool> split =
        splitInputs(annotator, function, sequences, axis);
    if (failed(split))
      return failure();
    found |= *split;
  }
  if (!found)
    return annotator.getModule().emitError()
           << "ulysses: no input runs along the sequence of an attention";
  return success();
}
