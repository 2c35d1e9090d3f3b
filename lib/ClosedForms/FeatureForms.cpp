//===- FeatureForms.cpp - Megatron, with and without sequences ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "FormBuilder.h"
#include "llvm/ADT/STLExtras.h"
#include <cmath>

using namespace cleave;
using namespace cleave::closedforms;

/// The loss over a vocabulary that is sharded: the maximum of each row, the sum
/// of its exponentials and the logit of its label (arXiv 1909.08053, section
/// 3), in f32.
static void addLoss(FormBuilder &builder, llvm::ArrayRef<Axis> axes) {
  builder.send(CollectiveKind::AllReduce, axes,
               3 * builder.sizes.lossRows / builder.tokenRanks(), 4,
               "three numbers of each row of the loss");
}

/// The sums of a mixture in forward and in backward (Megatron-Core, arXiv
/// 2504.14960, section 3.3): places of experts are scattered before they go to
/// the ranks of their tokens, where choices are added up in f32 in slices of
/// features. Tokens, of which there are fewer, are gathered then, or traded for
/// shards of the sequence; so are their gradients, of which the gradients
/// of the weights of several choices read slices, too. Places that are filled
/// in slices are gathered for the experts in forward and in backward, and once
/// more as slices are saved.
static void addScatteredPlaces(FormBuilder &builder, llvm::ArrayRef<Axis> axes,
                               const Mixture &mixture) {
  const StepOptions &options = builder.options;
  double both = 2 + options.fullShare, places = both * mixture.places,
         tokens = mixture.branch / builder.tokenRanks();
  builder.send(CollectiveKind::ReduceScatter, axes,
               places / builder.tokenRanks(), options.sumBytes,
               "sums of places of experts");
  bool fills = builder.fillsSlices(mixture);
  if (fills)
    builder.send(CollectiveKind::AllGather, axes,
                 (places + mixture.places) / builder.tokenRanks(),
                 options.activationBytes, "slices of places of experts");
  if (!builder.hasSequenceBetween()) {
    builder.send(CollectiveKind::AllGather, axes, both * tokens, 4,
                 "slices of tokens");
    return;
  }
  tokens /= options.ranks(Split::Features);
  builder.send(CollectiveKind::AllToAll, axes, both * tokens, 4,
               "slices of tokens");
  double read = fills ? both : mixture.choices > 1 ? 1 : 0;
  builder.send(CollectiveKind::AllToAll, axes, read * tokens,
               options.activationBytes, "slices of tokens, and gradients");
}

/// Megatron (arXiv 1909.08053, section 3): two all-reduces of b s h in forward
/// and two in backward of a layer, one of each for every addition to the
/// residual stream; the rows that are looked up, and the input gradient of the
/// head. Full recomputation repeats the sums of forward.
static void addMegatron(FormBuilder &builder, llvm::ArrayRef<Axis> axes) {
  const ModelSizes &sizes = builder.sizes;
  const StepOptions &options = builder.options;
  double tokens = builder.tokenRanks(), sums = 2 + options.fullShare;
  for (double branch : sizes.branches)
    builder.send(CollectiveKind::AllReduce, axes, sums * branch / tokens,
                 options.sumBytes, "sums of b s h of each branch");
  // Experts are a branch, too; weights of tokens multiply partial sums.
  for (const Mixture &mixture : sizes.mixtures) {
    if (builder.scattersPlaces(mixture)) {
      addScatteredPlaces(builder, axes, mixture);
    } else {
      builder.send(CollectiveKind::AllReduce, axes,
                   sums * mixture.branch / tokens, options.sumBytes,
                   "sums of b s h of each branch");
    }
    builder.send(CollectiveKind::AllReduce, axes, mixture.weights / tokens, 4,
                 "gradients of the weights of tokens");
  }
  builder.send(CollectiveKind::AllReduce, axes, sizes.headInput / tokens,
               options.sumBytes, "the input gradient of the head");
  // All but one rank have zero: no sum is rounded.
  builder.send(CollectiveKind::AllReduce, axes, sizes.lookedUp / tokens,
               options.streamBytes, "rows looked up");
}

/// Positions of a sequence with those that are added where `ranks` do not
/// divide it, for each of its own.
static double padding(const ModelSizes &sizes, int64_t ranks) {
  if (sizes.attentions.empty() || sizes.attentions.front().queries == 0)
    return 1;
  double positions = sizes.attentions.front().queries;
  auto parts = static_cast<double>(ranks);
  return std::ceil(positions / parts) * parts / positions;
}

/// Megatron with sequences between blocks (arXiv 2205.05198, section 4.2.2):
/// the input of a branch is gathered and its output scattered; in backward the
/// gradient of the output is gathered and that of the input scattered; and
/// since only the shard of an input is saved, it is gathered again: 3 gathers
/// and 2 scatters. Full recomputation repeats a scatter, and its gather is the
/// third. The rows looked up are scattered, and their gradient
/// gathered; the head's input is gathered, and its gradient scattered. Where a
/// head reads one position of each sample, that of its input is summed. A
/// sequence that the ranks do not divide is padded.
static void addSequenceBetween(FormBuilder &builder,
                               llvm::ArrayRef<Axis> axes) {
  const ModelSizes &sizes = builder.sizes;
  const StepOptions &options = builder.options;
  double sums = 2 + options.fullShare;
  double tokens = builder.tokenRanks() / padding(sizes, axes.front().size);
  for (double branch : sizes.branches) {
    builder.send(CollectiveKind::AllGather, axes, 3 * branch / tokens,
                 options.activationBytes, "three gathers of each branch");
    builder.send(CollectiveKind::ReduceScatter, axes, sums * branch / tokens,
                 options.sumBytes, "sums of each branch");
  }
  // Of a mixture backward reads the places of experts, not its input.
  for (const Mixture &mixture : sizes.mixtures) {
    if (mixture.expertsOfRows && axes.front().sendsRows())
      continue;
    if (!builder.fillsSlices(mixture))
      builder.send(CollectiveKind::AllGather, axes,
                   sums * mixture.branch / tokens, options.activationBytes,
                   "gathers of each mixture");
    if (builder.scattersPlaces(mixture))
      addScatteredPlaces(builder, axes, mixture);
    else
      builder.send(CollectiveKind::ReduceScatter, axes,
                   sums * mixture.branch / tokens, options.sumBytes,
                   "sums of each branch");
  }
  builder.send(CollectiveKind::AllGather, axes,
               (sizes.lookedUp + sizes.headInput) / tokens,
               options.activationBytes,
               "the input of the head, and the gradient of rows looked up");
  builder.send(sizes.headInput > sizes.stream() / 2
                   ? CollectiveKind::ReduceScatter
                   : CollectiveKind::AllReduce,
               axes, sizes.headInput / tokens, options.sumBytes,
               "the input gradient of the head");
  builder.send(CollectiveKind::ReduceScatter, axes, sizes.lookedUp / tokens,
               options.streamBytes, "rows looked up");
}

void closedforms::addFeatures(FormBuilder &builder) {
  for (const Axis &axis : builder.axesOf(Split::Features)) {
    addLoss(builder, axis);
    if (axis.isSumma())
      addBlocks(builder, axis);
    else if (axis.recipe == "megatron-sp")
      addSequenceBetween(builder, axis);
    else
      addMegatron(builder, axis);
  }
}
