//===- Dp.cpp - Data parallelism ------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The recipe "dp": samples are sharded over the axis, and gradients are then
/// sums over it. A number of samples that is not divisible by the size of the
/// axis is padded later. Each position needs at least one sample.
///
//===----------------------------------------------------------------------===//

#include "Annotator.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

LogicalResult cleave::spmd::applyDp(Annotator &annotator, StringRef axis) {
  int64_t parts = annotator.getMesh().size(AxisRef{axis});
  for (func::FuncOp function : annotator.entries())
    for (BlockArgument argument : function.getArguments()) {
      unsigned index = argument.getArgNumber();
      auto dim =
          function.getArgAttrOfType<IntegerAttr>(index, graph::kBatchDimAttr);
      if (!dim || annotator.isSplit(argument, axis) ||
          annotator.isPlaced(argument))
        continue;
      int64_t size =
          cast<RankedTensorType>(argument.getType()).getDimSize(dim.getInt()) /
          annotator.getMesh().size(
              annotator.given(argument).dims[dim.getInt()]);
      if (size < parts)
        return graph::emitArgumentError(function, index)
               << " has " << size << " samples, fewer than the " << parts
               << " positions of axis \"" << axis << "\": use at most " << size;
      annotator.split(argument, dim.getInt(), axis);
    }
  return success();
}
