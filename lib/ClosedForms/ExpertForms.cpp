//===- ExpertForms.cpp - Mixtures of experts over ranks ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "FormBuilder.h"

using namespace cleave;
using namespace cleave::closedforms;
using llvm::ArrayRef;

/// Over nodes a token is sent once to each that holds one of its k experts, of
/// E (DeepSeek-V3, arXiv 2412.19437, section 3.2.2). Of n nodes, a token that
/// chooses evenly has none on one with the probability C(E - E/n, k) / C(E, k);
/// it has at most min(k, n) nodes. With it go its choices and their weights,
/// and gradients of these return. A node returns one row, a sum of outputs: in
/// all four rows for each pair of a token and a node, and of full recomputation
/// one more. Inside nodes rows are those of choices, as over one axis.
static void addRelayedTokens(FormBuilder &builder, const Mixture &mixture,
                             const Axis &nodes, double over) {
  const StepOptions &options = builder.options;
  auto number = static_cast<double>(nodes.size);
  double experts = mixture.expertsOfRows, none = 1;
  for (int choice = 0; choice < mixture.choices; ++choice)
    none *=
        std::max(0.0, experts - experts / number - choice) / (experts - choice);
  double pairs = number * (1 - none), forward = 1 + options.fullShare;
  double rows = pairs * mixture.places / mixture.choices / over,
         choices = pairs * mixture.weights / over;
  llvm::StringRef term = "tokens and their sums, for each node of theirs";
  builder.send(CollectiveKind::AllToAllRows, nodes, forward * rows,
               options.activationBytes, term);
  // Sums of outputs, their gradients and sums of gradients.
  builder.send(CollectiveKind::AllToAllRows, nodes, 3 * rows, options.sumBytes,
               term);
  builder.send(CollectiveKind::AllToAllRows, nodes, (forward + 1) * choices,
               options.sumBytes, "weights of choices, and gradients");
  builder.send(CollectiveKind::AllToAllRows, nodes, forward * choices, 8,
               "choices");
  builder.send(CollectiveKind::AllGather, nodes,
               forward * number * number * options.microBatches, 8,
               "rows of each rank and node");
}

/// The places of all experts for the tokens of a rank, E C h, go to the ranks
/// of the experts and back, and so do their gradients: four all-to-alls
/// (GShard, arXiv 2006.16668, section 3.2; Switch, arXiv 2101.03961, section
/// 5.4). Of experts that drop no token these are rows, one for each choice, of
/// which a rank receives as many as choose its experts (MegaBlocks, arXiv
/// 2211.15841, section 5). Ranks that share features send whole places, whose
/// sums are those of tokens (FeatureForms.cpp), and where experts are over
/// these ranks, only the places of their own. Sums that are rounded before they
/// are sent are scattered first, and each of these ranks returns its slice
/// (arXiv 2504.14960, section 3.3).
///
/// Rows of ranks that share features are returned as partial sums, which are
/// not rounded, and added up by tokens before they are scattered. Of k rows for
/// each of T tokens, a rank of t sends k T h of 4 bytes to experts' ranks and
/// T h (t - 1) / t of 4 to its own. Scattered first they are k T h (t - 1) / t
/// of 4 bytes for as many rows as there is room for, and k T h of 2 in slices
/// that are sent and gathered: more where there is room for twice as many rows,
/// or from three choices on.
///
/// Ranks that share a sequence fill places together: what each adds is
/// scattered to those that compute them, and what these compute gathered, in
/// forward and in backward. Where t ranks share features, the c ranks of a
/// sequence gather slices: sums of P places are 4 P (t - 1) / (c t) bytes for
/// each feature, and slices 2 P (c - 1) / (c t) and 4 T (t - 1) / (c t) for T
/// tokens, in place of 4 P (c - 1) / c and 8 T (t - 1) / (c t) of partial sums
/// that are added up by tokens. Places are filled in slices, too, where c > 2:
/// sums of 2 P (c - 1) / c become one of t of them, and slices of P / c are
/// gathered three times. For c = 2, sums in f32 and slices in 16 bits that
/// would be 3.5 P for 4 P bytes with t = 2, of which plans make no use: the
/// type of sums is not known where they are made.
///
/// Where experts are over those very ranks (folded, arXiv 2504.14960, section
/// 3.2) tokens are gathered and outputs scattered instead, and so are
/// gradients; rows are sent as over ranks of other samples, also where
/// sequences are sharded between blocks alone.
void closedforms::addExperts(FormBuilder &builder) {
  const StepOptions &options = builder.options;
  double samples = options.ranks(Split::Samples), over = builder.tokenRanks();
  // Full recomputation repeats those of forward.
  double both = 2 + options.fullShare;
  bool folded = false, sharesFeatures = false;
  for (const Axis &axis : options.axes) {
    sharesFeatures |= axis.split == Split::Features && !axis.experts;
    if (axis.experts && axis.split == Split::Features)
      over *= static_cast<double>(axis.size);
    folded |= axis.experts && axis.split == Split::Sequence;
  }
  std::vector<Axis> ofRows;
  for (const Axis &axis : options.axes)
    if (axis.sendsRows())
      ofRows.push_back(axis);
  for (const Mixture &mixture : builder.sizes.mixtures) {
    bool scatters = builder.scattersPlaces(mixture);
    bool sums = mixture.expertsOfRows && !scatters && sharesFeatures;
    auto exchange = [&](CollectiveKind kind, ArrayRef<Axis> axes) {
      double each = both * mixture.places / over;
      builder.send(kind, axes, each, options.activationBytes,
                   "places of experts, and gradients");
      builder.send(kind, axes,
                   scatters ? each / options.ranks(Split::Features) : each,
                   sums ? options.sumBytes : options.activationBytes,
                   "places of experts, and gradients");
    };
    if (mixture.expertsOfRows) {
      if (ofRows.empty())
        continue;
      double ranks = 1;
      for (const Axis &axis : ofRows)
        ranks *= static_cast<double>(axis.size);
      std::vector<Axis> inner = ofRows;
      double experts = mixture.expertsOfRows;
      auto node = llvm::find_if(ofRows, [](const Axis &a) { return a.relays; });
      if (node != ofRows.end() && mixture.choices > 1) {
        addRelayedTokens(builder, mixture, *node, over);
        inner.erase(inner.begin() + (node - ofRows.begin()));
        ranks /= static_cast<double>(node->size);
        experts /= static_cast<double>(node->size);
      }
      exchange(CollectiveKind::AllToAllRows, inner);
      builder.send(CollectiveKind::AllGather, inner,
                   (1 + options.fullShare) * experts * ranks *
                       options.microBatches,
                   8, "rows of each rank and expert");
      continue;
    }
    for (const Axis &axis : builder.axesOf(Split::Samples))
      if (axis.experts)
        exchange(CollectiveKind::AllToAll, axis);
    for (const Axis &axis : builder.axesOf(Split::Sequence)) {
      double each = both * (folded ? mixture.branch : mixture.places) / samples,
             features = scatters ? options.ranks(Split::Features) : 1;
      bool partial = !folded && !scatters && sharesFeatures;
      builder.send(CollectiveKind::AllGather, axis, each / features,
                   partial ? options.sumBytes : options.activationBytes,
                   folded ? "tokens of mixtures" : "places of experts");
      builder.send(CollectiveKind::ReduceScatter, axis,
                   builder.fillsSlices(mixture) ? each / features : each,
                   options.sumBytes,
                   folded ? "tokens of mixtures" : "places of experts");
    }
  }
}
