//===- Context.cpp - Context parallelism ----------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The recipe "context": inputs, and by propagation all intermediate values,
/// are sharded over one axis along the sequence. Attention keeps its queries
/// sharded and gathers keys and values; a recurrence along the sequence gathers
/// the state that each rank ends with, and the share that is left of the one
/// before. Without both, the sequence is that of the tokens.
///
//===----------------------------------------------------------------------===//

#include "../Decompose/BlockScans.h"
#include "Sequence.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/TensorType.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

/// Adds the dimensions of the recurrences of `function` to `sequences`.
static void addScans(const DimensionClasses &classes, func::FuncOp function,
                     SequenceClasses &sequences) {
  for (auto scan : function.getBody().front().getOps<graph::LinearScanOp>())
    if (!classes.of(scan.getInput(), scan.getDim()).samples)
      sequences.insert(classes.number(scan.getInput(), scan.getDim()));
}

/// Adds the dimensions of tokens that are looked up in a table of parameters.
/// A layer that mixes positions in a way of its own is computed of what it
/// reads of other ranks. (A softmax of scores is an attention that is not
/// recognised: its keys would be gathered for each of its ops.)
static void addTokens(const DimensionClasses &classes, func::FuncOp function,
                      SequenceClasses &sequences) {
  for (auto lookup : function.getBody().front().getOps<graph::GatherOp>()) {
    Value table = lookup.getInput(), tokens = lookup.getIndices();
    // In mixed precision a copy is read.
    if (auto copy = table.getDefiningOp<graph::CastOp>())
      table = copy.getInput();
    auto argument = dyn_cast<BlockArgument>(table);
    if (!argument || !isGiven(tokens) ||
        !graph::hasRole(function, argument.getArgNumber(), "parameter"))
      continue;
    for (int64_t dim : llvm::seq(graph::tensorTypeOf(tokens).getRank()))
      if (!classes.of(tokens, dim).samples)
        sequences.insert(classes.number(tokens, dim));
  }
}

/// Computes the recurrences of `function` along `sequences`, shifts by one
/// place, and windows of causal convolutions in as many blocks as `axis` has
/// positions.
static void blockScans(Annotator &annotator, func::FuncOp function,
                       const SequenceClasses &sequences, StringRef axis) {
  const DimensionClasses &classes = annotator.classesOf(function);
  int64_t parts = annotator.getMesh().size(AxisRef{axis});
  SmallVector<graph::LinearScanOp> scans;
  SmallVector<std::pair<graph::PadOp, int64_t>> shifts;
  SmallVector<graph::PatchesOp> windows;
  SmallVector<graph::PatchesGradOp> gradients;
  /// Whether windows over `image [n, c, 1, t]` are of sequences.
  auto areLong = [&](Value image, int64_t reach) {
    int64_t size = graph::tensorTypeOf(image).getDimSize(3);
    return sequences.contains(classes.number(image, 3)) && size % parts == 0 &&
           size / parts >= reach;
  };
  auto isLong = [&](Value value, int64_t dim) {
    int64_t size = graph::tensorTypeOf(value).getDimSize(dim);
    return size % parts == 0 && size > parts;
  };
  for (Operation &op : function.getBody().front()) {
    if (auto scan = dyn_cast<graph::LinearScanOp>(op);
        scan &&
        sequences.contains(classes.number(scan.getInput(), scan.getDim())))
      scans.push_back(scan);
    else if (auto patches = dyn_cast<graph::PatchesOp>(op)) {
      if (std::optional<int64_t> reach = causalReach(patches);
          reach &&
          areLong(patches.getInput().getDefiningOp()->getOperand(0), *reach))
        windows.push_back(patches);
    } else if (auto gradient = dyn_cast<graph::PatchesGradOp>(op)) {
      if (std::optional<int64_t> reach = causalReach(gradient);
          reach && areLong(gradient->user_begin()->getResult(0), *reach))
        gradients.push_back(gradient);
    } else if (auto pad = dyn_cast<graph::PadOp>(op))
      if (std::optional<int64_t> dim = shiftedDim(pad))
        if (Value shifted = pad.getInput().getDefiningOp()->getOperand(0);
            isLong(shifted, *dim) &&
            sequences.contains(classes.number(shifted, *dim)))
          shifts.push_back({pad, *dim});
  }
  for (auto [pad, dim] : shifts)
    blockShift(pad, dim, parts);
  for (graph::PatchesOp patches : windows)
    blockWindows(patches, parts);
  for (graph::PatchesGradOp gradient : gradients)
    blockWindowsGrad(gradient, parts);
  for (graph::LinearScanOp scan : scans) {
    int64_t size =
        graph::tensorTypeOf(scan.getInput()).getDimSize(scan.getDim());
    if (isLong(scan.getInput(), scan.getDim()))
      blockScan(scan, parts);
    else if (size % parts != 0)
      scan.emitRemark("recurrence of ")
          << size << " places, which are not divisible by the " << parts
          << " positions of axis \"" << axis
          << "\": its operands are gathered over it";
  }
}

LogicalResult cleave::spmd::applyContext(Annotator &annotator, StringRef axis) {
  bool found = false;
  for (func::FuncOp function : annotator.entries()) {
    // Computed before annotations are inserted.
    const DimensionClasses &classes = annotator.classesOf(function);
    ComposedAttention composed(classes, function);
    SequenceClasses sequences = sequenceClasses(classes, function, composed);
    addScans(classes, function, sequences);
    if (sequences.empty() && !findSoftmaxOfScores(function))
      addTokens(classes, function, sequences);
    FailureOr<bool> split = splitInputs(annotator, function, sequences, axis);
    if (succeeded(split) && !*split)
      split = splitMadeSequences(annotator, function, sequences, axis);
    if (failed(split))
      return failure();
    composed.splitQueries(annotator, axis);
    blockScans(annotator, function, sequences, axis);
    found |= *split || !composed.empty();
  }
  if (!found)
    return refuseWithoutAttention(
        annotator, "context",
        "no input has the sequence dimension of an attention or a recurrence, "
        "and none has tokens that are looked up");
  return success();
}
