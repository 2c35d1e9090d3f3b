//===- SequenceForms.cpp - Context parallelism ----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "FormBuilder.h"
#include "llvm/Support/FormatVariadic.h"
#include <cmath>
#include <numeric>

using namespace cleave;
using namespace cleave::closedforms;

/// Positions are sharded with the sequence: a rank updates its rows of the
/// table, and the table and the state of these rows are gathered. In zig-zag
/// order a rank has no shard of rows: their gradients are summed as others are.
static void addPositions(FormBuilder &builder, llvm::ArrayRef<Axis> axes) {
  const StepOptions &options = builder.options;
  if (builder.inZigZag())
    return;
  double shards = 1;
  for (const Axis &other : options.axes)
    if (other.zero)
      shards *= static_cast<double>(other.size);
  for (const Parameter &parameter : builder.sizes.parameters)
    if (parameter.positions)
      builder.send(CollectiveKind::AllGather, axes,
                   parameter.elements / builder.shardsOf(parameter) *
                       (1 + std::max(options.moments, 0.0)) / shards,
                   4, "the table of positions, and its state");
}

/// Queries, keys, values and the output of an attention go from positions to
/// heads or back, and so do their gradients (DeepSpeed-Ulysses, arXiv
/// 2309.14509, section 3.2): 4 b s (heads + key heads) d / N elements of a rank
/// in all-to-alls. Keys and values of fewer heads than there are ranks are
/// gathered, as by `context`.
static double exchanged(const Attention &a, bool withKeys) {
  return 4 * a.batch * a.headSize *
         (a.heads * a.queries + (withKeys ? a.keyHeads * a.keys : 0));
}

/// Whether each of `ranks` that trade heads needs heads of keys that another
/// one needs, too, of those that `features` ranks have.
static bool sharesKeys(const Attention &a, double ranks, double features) {
  auto own = static_cast<int64_t>(a.keyHeads / features),
       others = static_cast<int64_t>(ranks);
  return own > 0 && std::gcd(own, others) == 1;
}

/// Sends keys and values of `keys` elements on a rank, of fewer heads than the
/// ranks of `axis`, which `heads` does divide. Neighbours that share a head
/// gather its positions, and trade heads with the others then. Or they trade
/// positions for slices, of samples or of the features of heads, trade heads,
/// and gather the slices, where that sends less: backward then gathers kept
/// slices again. Gradients, of which each has a partial sum, go back the same
/// way.
static void addSharedKeys(FormBuilder &builder, const Axis &axis, int64_t heads,
                          const Attention &a, double samples, double keys) {
  const StepOptions &options = builder.options;
  auto part = [&](int64_t stride, int64_t size) {
    Axis own = axis;
    own.name = llvm::formatv("\"{0}\":({1}){2}", axis.name, stride, size);
    own.size = size;
    return own;
  };
  int64_t sharing = axis.size / heads;
  Axis neighbours = part(heads, sharing), others = part(1, heads);
  auto times = static_cast<double>(sharing);
  auto sentBy = [](double ranks) { return 1 - 1 / ranks; };
  double traded = sentBy(static_cast<double>(heads));
  bool slices =
      std::fmod(a.headSize, times) == 0 ||
      std::fmod(a.batch / (samples * options.microBatches), times) == 0;
  bool bySlices = slices && sentBy(times) + traded < times * traded;
  llvm::StringRef term = "keys and values of shared heads, and gradients";
  double exchanged = times * keys, forward = 4;
  if (bySlices) {
    exchanged = keys;
    forward = 2 + 2 * options.fullShare;
    builder.send(CollectiveKind::AllToAll, neighbours, forward * keys,
                 options.activationBytes, term);
    builder.send(CollectiveKind::AllToAll, neighbours, 2 * keys,
                 options.sumBytes, term);
  }
  builder.send(CollectiveKind::AllToAll, others, forward * exchanged,
               options.activationBytes, term);
  builder.send(CollectiveKind::AllToAll, others, 2 * exchanged,
               options.sumBytes, term);
  builder.send(CollectiveKind::AllGather, neighbours, 4 * times * keys,
               options.activationBytes, term);
  builder.send(CollectiveKind::ReduceScatter, neighbours, 2 * times * keys,
               options.sumBytes, term);
}

/// Keys and values of other positions, b g d s / N elements each: N - 1 of them
/// arrive in forward and again in backward, and N - 1 of gradients leave: 6 (N
/// - 1) chunks (arXiv 2105.13120, section 3.2, with a reduce-scatter in the
/// place of its all-reduce; Ring attention, arXiv 2310.01889).
static double chunk(const Attention &a, double ranks) {
  return a.batch * a.keyHeads * a.headSize * a.keys / ranks;
}

/// Full recomputation sends what forward sends again, but for keys that are
/// gathered, which serve backward. Over two axes (Fang and Zhao, arXiv
/// 2405.07719, section 3) all-to-alls are among the ranks of one, and the keys
/// of their heads go around the other.
void closedforms::addSequence(FormBuilder &builder) {
  const StepOptions &options = builder.options;
  double samples = options.ranks(Split::Samples),
         features = options.ranks(Split::Features),
         whole = options.ranks(Split::Sequence);
  std::vector<Axis> axes = builder.axesOf(Split::Sequence), between = axes;
  for (const Axis &axis : builder.axesOf(Split::Features))
    if (axis.recipe == "megatron-sp")
      between.push_back(axis);
  addPositions(builder, between);
  double exchanging = 1;
  for (const Axis &axis : axes)
    if (axis.tradesHeads())
      exchanging *= static_cast<double>(axis.size);
  for (const Axis &axis : axes) {
    auto ranks = static_cast<double>(axis.size);
    for (const Attention &a : builder.sizes.attentions) {
      double share = samples * features;
      bool gathers =
          axis.recipe == "context" || (axis.tradesHeads() && whole == ranks &&
                                       sharesKeys(a, ranks, features));
      if (axis.tradesHeads()) {
        auto heads = static_cast<int64_t>(a.keyHeads / features);
        bool shares = !gathers && whole == ranks && heads > 1 &&
                      axis.size > heads && axis.size % heads == 0;
        if (shares)
          addSharedKeys(builder, axis, heads, a, samples,
                        chunk(a, ranks) / share);
        builder.send(CollectiveKind::AllToAll, axis,
                     exchanged(a, !gathers && !shares) *
                         (1 + options.fullShare / 2) / (share * whole),
                     options.activationBytes,
                     "queries, keys, values and outputs, and gradients");
        if (!gathers)
          continue;
      } else {
        share *= exchanging;
      }
      double keys = ranks * chunk(a, ranks) / share;
      if (gathers) {
        builder.send(CollectiveKind::AllGather, axis, 4 * keys,
                     options.activationBytes,
                     "keys and values, for forward and backward");
        builder.send(CollectiveKind::ReduceScatter, axis, 2 * keys,
                     options.sumBytes, "gradients of keys and values");
        continue;
      }
      double steps = (ranks - 1) * chunk(a, ranks) / share;
      builder.send(CollectiveKind::Permute, axis,
                   (4 + 2 * options.fullShare) * steps, options.activationBytes,
                   "keys and values around a ring");
      builder.send(CollectiveKind::Permute, axis, 2 * steps, options.sumBytes,
                   "gradients of keys and values around a ring");
    }
  }
}
