//===- BlockForms.cpp - SUMMA, in blocks of two and 2.5 dimensions -------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "FormBuilder.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave;
using namespace cleave::closedforms;

/// Blocks over q x q ranks (Optimus, arXiv 2104.05343, section 3.1; with d
/// squares of other samples, Tesseract, arXiv 2105.14500, section 3.1). Each
/// matmul has q steps, of which a rank sends the blocks that it holds to q - 1
/// others, along rows (over columns) or along columns (over rows):
///
///     Y  = X W     X over columns, W over rows
///     dX = dY W'   W over rows, sums of dX over columns
///     dW = X' dY   X over columns, sums of dW over rows
///
/// A value that several matmuls read is sent once, and the sum of what their
/// inputs get is reduced once (Q, K and V are one matmul in Optimus,
/// section 3.2.1). The head multiplies by the table as it lies for a lookup, Y
/// = X W': W over rows and sums of Y over columns, and dY over columns, and dW
/// over rows in backward (section 3.2.2).
static void addMatmul(FormBuilder &builder, const Contraction &matmul,
                      const Axis &columns, const Axis &rows) {
  const StepOptions &options = builder.options;
  double weights = options.gathersOnce ? 1 : options.microBatches;
  auto count = static_cast<double>(columns.size);
  double over = builder.tokenRanks();
  // Of q blocks of a row or column, which are sent q - 1 times each.
  double x = matmul.input / over, y = matmul.output / over,
         w = matmul.weight / count;
  if (!matmul.inBlock) {
    builder.send(CollectiveKind::Broadcast, rows, w * weights,
                 options.copyBytes, "blocks of weights");
    builder.send(CollectiveKind::Reduce, columns, y, options.sumBytes,
                 "logits");
    builder.send(CollectiveKind::Broadcast, columns, y, options.activationBytes,
                 "gradients of logits");
    builder.send(CollectiveKind::Reduce, rows, w * options.microBatches,
                 options.gradientBytes, "gradients of weights");
    return;
  }
  double both = 2 + options.fullShare;
  builder.send(CollectiveKind::Broadcast, rows, both * w * weights,
               options.copyBytes, "blocks of weights");
  builder.send(CollectiveKind::Reduce, rows, w * options.microBatches,
               options.gradientBytes, "gradients of weights");
  if (matmul.sharesInput)
    return;
  builder.send(CollectiveKind::Broadcast, columns, both * x,
               options.activationBytes, "inputs of matmuls");
  builder.send(CollectiveKind::Reduce, columns, x, options.sumBytes,
               "gradients of inputs");
}

/// Beside matmuls a lookup sends the table along columns, and its gradient is
/// summed so (section 3.2.2); a norm sums numbers of each row over columns, in
/// forward and in backward (section 3.2.2).
void closedforms::addBlocks(FormBuilder &builder,
                            llvm::ArrayRef<Axis> columns) {
  const StepOptions &options = builder.options;
  auto rows =
      llvm::find_if(options.axes, [](const Axis &axis) { return axis.rows; });
  if (rows == options.axes.end())
    return;
  for (const Contraction &matmul : builder.sizes.contractions)
    if (matmul.hasWeight)
      addMatmul(builder, matmul, columns.front(), *rows);
  auto count = static_cast<double>(rows->size);
  double weights = options.gathersOnce ? 1 : options.microBatches;
  for (const Parameter &parameter : builder.sizes.parameters) {
    if (!parameter.lookedUp)
      continue;
    double block = parameter.elements / count;
    builder.send(CollectiveKind::Broadcast, *rows, block * weights,
                 options.streamBytes, "the table of a lookup");
    builder.send(CollectiveKind::Reduce, *rows, block * options.microBatches, 4,
                 "the gradient of a table");
  }
  builder.send(CollectiveKind::AllReduce, columns,
               builder.sizes.normSums * (1 + options.fullShare / 2) /
                   builder.tokenRanks(),
               4, "numbers of rows of norms");
}
