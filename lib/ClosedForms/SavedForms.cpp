//===- SavedForms.cpp - What forward keeps, and backward works on ---------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "FormBuilder.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave;
using namespace cleave::closedforms;

/// The number of shards of experts, beside those of tokens and features.
static double expertRanks(const FormBuilder &builder) {
  double ranks = 1;
  for (const Axis &axis : builder.options.axes)
    if (axis.experts)
      ranks *= static_cast<double>(axis.size);
  return ranks;
}

/// The largest matmul whose output an activation reads; null if there is none.
static const Contraction *largestActivated(const ModelSizes &sizes) {
  const Contraction *largest = nullptr;
  for (const Contraction &c : sizes.contractions)
    if (c.activated && c.inBlock && (!largest || c.output > largest->output))
      largest = &c;
  return largest;
}

/// Elements that forward keeps for backward (as Korthikanti et al., arXiv
/// 2205.05198, section 4.1, count the 34 bytes of 16-bit sbh of a layer with
/// dropout; what norms, activations and sums of the stream give is computed
/// again, which that paper's section 5 leaves in memory):
///
///     stream      the input of each norm, and what it divides a row by, with
///                 its mean where it takes that off
///     attention   q, k, v, the output, and the log-sum of each row of scores;
///                 in the place of these sums two rings keep the probabilities
///                 (arXiv 2105.13120, section 3.2)
///     mlp         what its activation reads, and what that is multiplied by
///     experts     what they are given, what each token got back, and how it
///                 was routed
///
/// Ranks that share features have a part of what is inside of attention and
/// MLPs each, and of the stream where it is sharded (section 4.2.2).
static void addKept(FormBuilder &builder) {
  const ModelSizes &sizes = builder.sizes;
  double tokens = builder.tokenRanks(),
         features = builder.options.ranks(Split::Features);
  double stream = sizes.stream() + sizes.normSums / 2, attention = 0, mlp = 0,
         experts = 0;
  for (double branch : sizes.branches)
    stream += branch;
  bool rows = llvm::any_of(builder.options.axes, [](const Axis &axis) {
    return axis.recipe == "two-ring" && axis.size > 1;
  });
  for (const Attention &a : sizes.attentions)
    attention +=
        2 * a.batch * a.headSize * (a.heads * a.queries + a.keyHeads * a.keys) +
        a.batch * a.heads * a.queries * (rows ? a.keys : 1);
  for (const Contraction &c : sizes.contractions)
    mlp += c.activated && c.inBlock ? c.output : 0;
  for (const Mixture &mixture : sizes.mixtures) {
    stream += mixture.branch;
    experts +=
        mixture.given + mixture.choices * mixture.branch + mixture.scores;
  }
  auto add = [&](const char *term, double elements, double ranks) {
    if (elements > 0)
      builder.form.kept.push_back({term, elements, ranks});
  };
  add("stream", stream, tokens * (builder.shardsStream() ? features : 1));
  add("attention", attention, tokens * features);
  add("mlp", mlp, tokens * features);
  add("experts", experts, tokens);
}

/// Elements that backward of one MLP works on, beside what is kept: what its
/// activation gives, its gradient and that of its input (two of them where they
/// take the place of what was kept), or of an attention in two rings the
/// probabilities with the gradients of these and of scores; three values of the
/// stream; of experts the gradient of what they got and gave; keys and values
/// that `context` gathers, with their gradients; and the gradient of a weight,
/// beside which ZeRO-3 holds two that it gathers (arXiv 1910.02054,
/// section 5.3). Where matmuls go in steps, two blocks that were received of
/// both operands, and a sum, of both halves of a gated layer (arXiv 2104.05343,
/// section 3.1).
static void addWorking(FormBuilder &builder) {
  const ModelSizes &sizes = builder.sizes;
  const StepOptions &options = builder.options;
  const Contraction *largest = largestActivated(sizes);
  if (!largest)
    return;
  double tokens = builder.tokenRanks(),
         features = options.ranks(Split::Features);
  double parts = features, stages = 0;
  bool steps = false, rings = false;
  for (const Axis &axis : options.axes) {
    if (axis.rows)
      parts *= static_cast<double>(axis.size);
    stages = std::max<double>(stages, axis.size > 1 ? axis.zero : 0);
    steps |= axis.isSumma() && axis.size > 1;
    rings |= axis.recipe == "two-ring" && axis.size > 1;
  }
  if (!sizes.mixtures.empty())
    parts *= expertRanks(builder);
  // Rows of tokens lie in the order of tokens, of experts and of ranks: as many
  // as all experts would be given.
  double orders = 1, places = 0;
  for (const Mixture &mixture : sizes.mixtures) {
    if (mixture.expertsOfRows && mixture.choices)
      orders = mixture.expertsOfRows / mixture.choices;
    places = std::max(places, orders * mixture.given);
  }
  double output = orders * largest->output / (tokens * features),
         weight = largest->weight / parts;
  double inner = (sizes.gates ? 2 : 3) * output;
  if (rings)
    for (const Attention &a : sizes.attentions)
      inner = std::max(inner, 3 * a.batch * a.heads * a.queries * a.keys /
                                  (tokens * features));
  if (steps)
    inner += (sizes.gates ? 2 : 1) * (2 * output + 3 * weight);
  // Keys and values of other positions, and their gradients.
  double gathered = 0;
  for (const Axis &axis : options.axes)
    if (axis.recipe == "context" && axis.size > 1 &&
        !sizes.attentions.empty()) {
      const Attention &a = sizes.attentions.front();
      gathered = 4 * a.batch * a.keyHeads * a.keys * a.headSize /
                 (options.ranks(Split::Samples) * features);
    }
  builder.form.working =
      inner + gathered +
      (3 * sizes.stream() + 2 * places) / (tokens * (steps ? features : 1)) +
      weight * (stages == 3 ? 3 : 1);
}

/// Of a plan whose attention is one op and that repeats what is free.
void closedforms::addSaved(FormBuilder &builder) {
  const StepOptions &options = builder.options;
  bool regions =
      options.repeatsRegions &&
      (llvm::any_of(builder.sizes.contractions,
                    [](const Contraction &c) { return c.inRegion; }) ||
       llvm::any_of(builder.sizes.attentions,
                    [](const Attention &a) { return a.inRegion; }));
  if (!options.fusedAttention || options.fullShare > 0 ||
      options.selectiveShare > 0 || regions || options.ranks(Split::Stages) > 1)
    return;
  addKept(builder);
  addWorking(builder);
}
