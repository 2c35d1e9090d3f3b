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
#include "cleave/Dialect/Graph/Analysis/LinearLayers.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include <limits>

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

/// The class of the heads of attention `op`: the dimension of its queries that
/// products with weights make and attention does side by side.
static std::optional<unsigned> headClass(const DimensionClasses &classes,
                                         Operation *op) {
  Value queries = op->getOperand(0);
  int64_t rank = cast<RankedTensorType>(queries.getType()).getRank();
  for (int64_t dim = 0; dim < rank; ++dim) {
    const DimensionClass &known = classes.of(queries, dim);
    if (known.attended && !known.samples && !known.producers.empty())
      return classes.number(queries, dim);
  }
  return std::nullopt;
}

/// The dimension of the heads of `value`, an operand of attention `op`; none
/// where all queries share one head of keys and values.
static std::optional<unsigned> headDim(const DimensionClasses &classes,
                                       Operation *op, Value value) {
  std::optional<unsigned> heads = headClass(classes, op);
  int64_t rank = cast<RankedTensorType>(value.getType()).getRank();
  for (int64_t dim = 0; heads && dim < rank; ++dim)
    if (classes.number(value, dim) == *heads)
      return dim;
  return std::nullopt;
}

/// The axis over which `heads` heads of an operand are sharded, of an attention
/// with `queryHeads`; nothing if they cannot be. Fewer heads than positions are
/// replicated in groups of neighbouring positions; other numbers are padded.
static std::optional<AxisRef> headAxis(int64_t heads, int64_t queryHeads,
                                       const AxisRef &axis, int64_t parts) {
  if (heads >= parts)
    return axis;
  if (parts % heads == 0 && queryHeads % parts == 0)
    return AxisRef{axis.name, 1, heads};
  return std::nullopt;
}

/// The axes over which weights that make the query heads of attention `op` are
/// sharded so far, major to minor: a recipe before has given each of their
/// positions heads of its own.
static AxisList weightAxes(Annotator &annotator,
                           const DimensionClasses &classes, Operation *op) {
  std::optional<unsigned> heads = headClass(classes, op);
  if (!heads)
    return {};
  const DimensionClass &known = classes.all()[*heads];
  for (auto [argument, dim] : known.arguments)
    if (!llvm::is_contained(known.shared, std::pair(argument, dim)))
      if (AxisList axes = annotator.given(argument).dims[dim]; !axes.empty())
        return axes;
  return {};
}

/// The axes over which `heads` heads of an operand are sharded, over `outer`
/// and within each of its shards over `axis`, of an attention with
/// `queryHeads`; nothing where this needs padding. Fewer heads than positions
/// are replicated in groups of neighbouring positions.
static std::optional<AxisList> headAxes(int64_t heads, int64_t queryHeads,
                                        const AxisList &outer,
                                        const AxisRef &axis, const Mesh &mesh) {
  AxisList wanted = outer, axes;
  wanted.push_back(axis);
  if (mesh.overlap(axis, outer) || queryHeads % mesh.size(wanted) != 0)
    return std::nullopt;
  for (const AxisRef &next : wanted) {
    int64_t positions = mesh.size(next);
    if (heads % positions == 0) {
      axes.push_back(next);
      heads /= positions;
      continue;
    }
    if (positions % heads != 0)
      return std::nullopt;
    if (heads > 1)
      axes.push_back({next.name, next.pre, heads});
    return axes;
  }
  return axes;
}

/// An operand of an attention, the dimension of its heads, and the axes over
/// which they are sharded inside of the attention.
struct HeadSplit {
  OpOperand *operand;
  unsigned dim;
  AxisList axes;

  int64_t heads() const {
    return cast<RankedTensorType>(operand->get().getType()).getDimSize(dim);
  }
};

/// Shards the operands `splits` of attention `op`, with `queryHeads`, over the
/// axes of its weights and within their shards over `axis`. Returns false and
/// changes nothing where no weight is sharded by heads, or this needs padding:
/// attention then has all heads of these axes.
static bool splitWithinShards(Annotator &annotator,
                              const DimensionClasses &classes, Operation *op,
                              MutableArrayRef<HeadSplit> splits,
                              int64_t queryHeads, const AxisRef &axis) {
  AxisList outer = weightAxes(annotator, classes, op);
  SmallVector<AxisList> found;
  for (const HeadSplit &split : splits)
    if (auto axes = headAxes(split.heads(), queryHeads, outer, axis,
                             annotator.getMesh()))
      found.push_back(*axes);
  if (outer.empty() || found.size() != splits.size())
    return false;
  for (auto [split, axes] : llvm::zip(splits, found))
    split.axes = axes;
  return true;
}

/// Says which heads of attention `op` cannot be sharded over the `parts`
/// positions of `axis`, and what to do; `fewest` is the smallest number of
/// heads of an operand, `most` the largest.
static LogicalResult refuseHeads(Operation *op, int64_t fewest, int64_t most,
                                 int64_t parts, StringRef axis) {
  InFlightDiagnostic error = op->emitOpError("has ");
  if (fewest < most)
    error << most << " query heads and " << fewest << " key-value "
          << (fewest == 1 ? "head" : "heads");
  else
    error << most << (most == 1 ? " head" : " heads");
  error << ", too few for the " << parts << " positions of axis \"" << axis
        << "\", over which ulysses shards heads: use ";
  SmallVector<int64_t> fits;
  for (int64_t n = 2; n <= most; ++n)
    if (most % n == 0 && headAxis(fewest, most, AxisRef{axis}, n))
      fits.push_back(n);
  if (!fits.empty())
    error << partsThatFit(fits) << ", or ";
  return error << "the recipe 'ring' or 'context', which shard the sequence "
                  "alone";
}

/// Shards the results of attention `op` for their readers along the sequence,
/// over `axes`. Attention shards its positions over some of these axes and
/// heads over another; without the annotation, products with weights would be
/// sharded by heads as well. Without `all`, only those that are sent in 16
/// bits, which needs `rounds`. Sums over the axes of recipes before are taken
/// in f32, and rounded then; so are sums over positions of the last axis that
/// share heads of `splits`. Without `padded`, a size that `axes` do not divide
/// is not sharded: it would be padded for this alone.
static void splitResults(Annotator &annotator, const DimensionClasses &classes,
                         const SequenceClasses &sequences, Operation *op,
                         ArrayRef<HeadSplit> splits, const AxisList &axes,
                         bool all, bool rounds, bool padded) {
  const Mesh &mesh = annotator.getMesh();
  auto sharesHeads = [&](int64_t heads) {
    return llvm::any_of(splits, [&](const HeadSplit &split) {
      return split.operand->getOwner() == op && split.heads() == heads &&
             split.axes.back().name == axes.back().name &&
             mesh.size(split.axes.back()) < mesh.size(axes.back());
    });
  };
  for (OpResult result : op->getResults()) {
    auto type = cast<RankedTensorType>(result.getType());
    FloatType narrow = rounds ? graph::roundedType(result) : FloatType();
    auto heads = headDim(classes, op, result);
    if (!heads || (!all && !narrow))
      continue;
    Value value = result;
    while (value.hasOneUse() && isa<ConstrainOp>(*value.user_begin()))
      value = value.user_begin()->getResult(0);
    // Backward reads what forward computed along heads.
    SmallVector<OpOperand *> uses;
    for (OpOperand &use : value.getUses())
      if (!isAttention(use.getOwner()))
        uses.push_back(&use);
    if (uses.empty())
      continue;
    for (int64_t dim = 0; dim < type.getRank(); ++dim) {
      int64_t parts = mesh.size(axes);
      if (!sequences.contains(classes.number(result, dim)) ||
          classes.of(result, dim).samples || type.getDimSize(dim) < parts ||
          (!padded && type.getDimSize(dim) % parts != 0))
        continue;
      Sharding sharding = Sharding::replicated(type.getRank(), /*open=*/true);
      sharding.dims[dim] = axes;
      sharding.open[dim] = false;
      OpBuilder builder(op->getContext());
      builder.setInsertionPointAfterValue(value);
      bool shared = sharesHeads(type.getDimSize(*heads));
      if (narrow && (axes.size() > 1 || shared)) {
        Sharding summed = sharding;
        if (!shared)
          summed.dims[dim].pop_back();
        value = annotator.constrain(builder, value, summed);
      }
      annotator.send(builder, value, narrow, sharding, uses);
      break;
    }
  }
}

LogicalResult cleave::spmd::applyUlysses(Annotator &annotator, StringRef axis) {
  AxisRef split{annotator.getMesh().find(axis)->name};
  int64_t parts = annotator.getMesh().size(split);
  bool found = false;
  const AxisList outer = annotator.getSequenceAxes();
  for (func::FuncOp function : annotator.entries()) {
    const DimensionClasses &classes = annotator.classesOf(function);
    // Where the classes stand, before annotations come between.
    SmallVector<HeadSplit> heads;
    ComposedAttention composed(classes, function);
    SequenceClasses sequences = composed.sequences();
    SmallVector<Operation *> attentions, within;
    for (Operation &op : function.getBody().front().without_terminator()) {
      if (!isAttention(&op))
        continue;
      attentions.push_back(&op);
      SmallVector<HeadSplit> own;
      int64_t most = 0, fewest = std::numeric_limits<int64_t>::max();
      for (OpOperand &operand : op.getOpOperands()) {
        auto dim = headDim(classes, &op, operand.get());
        if (!dim)
          continue;
        own.push_back({&operand, *dim, {}});
        most = std::max(most, own.back().heads());
        fewest = std::min(fewest, own.back().heads());
        // A dimension of size 1 is repeated, as that of a mask for all samples.
        auto type = cast<RankedTensorType>(operand.get().getType());
        for (int64_t other = 0; other < type.getRank(); ++other)
          if (type.getDimSize(other) != 1)
            sequences.insert(classes.number(operand.get(), other));
      }
      if (splitWithinShards(annotator, classes, &op, own, most, split)) {
        within.push_back(&op);
      } else {
        for (HeadSplit &one : own) {
          auto over = headAxis(one.heads(), most, split, parts);
          if (!over)
            return refuseHeads(&op, fewest, most, parts, axis);
          one.axes.push_back(*over);
        }
      }
      llvm::append_range(heads, own);
    }
    // A recipe before shards the sequence inside of attention, too, or products
    // with weights by heads.
    AxisList axes = outer;
    axes.push_back(split);
    SequenceClasses positions = sequenceClasses(classes, function, composed);
    FailureOr<bool> inputs = splitInputs(annotator, function, sequences, axis);
    if (failed(inputs))
      return failure();
    // Where no input has the sequence, the results of attention begin it.
    bool made = !*inputs && outer.empty();
    for (Operation *op : attentions)
      splitResults(
          annotator, classes, positions, op, heads, axes,
          /*all=*/made || !outer.empty() || llvm::is_contained(within, op),
          /*rounds=*/annotator.getGrains() == 0 && !graph::usesFloat8(function),
          /*padded=*/made);
    for (const auto &[operand, dim, over] : heads) {
      Sharding sharding = Sharding::replicated(
          cast<RankedTensorType>(operand->get().getType()).getRank(),
          /*open=*/true);
      sharding.dims[dim] = over;
      sharding.open[dim] = false;
      OpBuilder builder(operand->getOwner());
      operand->set(annotator.constrain(builder, operand->get(), sharding));
    }
    if (failed(composed.splitHeads(annotator, axis)))
      return failure();
    found |= made ? !attentions.empty() || !composed.empty() : *inputs;
  }
  if (!found)
    return refuseWithoutAttention(
        annotator, "ulysses",
        "no input has the sequence dimension of an attention");
  return success();
}
