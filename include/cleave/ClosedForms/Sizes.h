//===- Sizes.h - What a closed form is a function of ------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The sizes of a model, as written for one device, and the options of its
/// step: all that the closed forms read. Nothing here is of a plan.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_CLOSEDFORMS_SIZES_H
#define CLEAVE_CLOSEDFORMS_SIZES_H

#include <cstdint>
#include <string>
#include <vector>

namespace cleave::closedforms {

/// A trained parameter.
struct Parameter {
  std::string name;
  double elements = 0;
  /// A factor of contractions; rows of it are looked up; both, if it is tied.
  bool multiplied = false, lookedUp = false;
  /// It multiplies the input of a loss over a vocabulary.
  bool head = false;
  /// It has one dimension.
  bool oneDimension = false;
  /// Added to the residual stream as it is, a row for each position.
  bool positions = false;
  /// Backward reads it: a factor of a matmul, or the scale of a norm.
  bool readByBackward = false;
  /// Recipes of features shard it: matrices, tables of a vocabulary, and
  /// biases of matmuls whose outputs are sharded.
  bool hasFeatures = false;
  /// It scales the rows of a norm of each head alike: ranks of other heads have
  /// other addends of its gradient.
  bool ofHeads = false;
  /// The number of experts of which it has a part each; 0: it is of none.
  double experts = 0;
  /// The model reads it in f32, also in mixed precision.
  bool staysWide = false;
  /// Its gradient is complete only after a sum over tokens, also where each
  /// rank has other tokens of the same features (norms, biases added to the
  /// stream, routers and what projects to a latent width).
  bool isVector() const {
    return !lookedUp && !positions && (!multiplied || !hasFeatures);
  }
};

/// One attention, in forward: `[batch, heads, queries, headSize]` by
/// `[batch, keyHeads, keys, headSize]`.
struct Attention {
  double batch = 0, heads = 0, keyHeads = 0, queries = 0, keys = 0,
         headSize = 0;
  /// Scores that are not masked, of all heads and samples.
  double scores = 0;
  /// A gradient of an addend of its scores is computed.
  bool learnedBias = false;
  /// The model runs it in a checkpoint region.
  bool inRegion = false;
};

/// One contraction of forward, attention apart.
struct Contraction {
  double operations = 0;
  /// Its factors that a gradient is computed of: each costs as much again.
  int gradients = 0;
  /// It is part of a block, not of the head; of a checkpoint region.
  bool inBlock = false, inRegion = false;
  /// It multiplies by a parameter, and recipes of features shard none of it: a
  /// router, or what a norm reads whole.
  bool hasWeight = false, isWhole = false;
  /// Elements that it reads, and that one before it read too; of the weight;
  /// that it computes.
  double input = 0, weight = 0, output = 0;
  bool sharesInput = false;
  /// An activation reads its output, or what one gives is multiplied by it.
  bool activated = false;
};

/// One mixture of experts: elements of the places of all experts, `[samples,
/// experts, capacity, h]`, weights of tokens, `[b, s, choices]`, and elements
/// of the stream that its output is added to.
struct Mixture {
  double places = 0, weights = 0, branch = 0;
  /// Where places are rows, one for each choice of a token: the experts.
  double expertsOfRows = 0;
  /// Elements that the experts are given as the model spells it, also where
  /// each has places for all tokens; scores of tokens for experts; choices of a
  /// token.
  double given = 0, scores = 0, choices = 0;
};

/// A model: one step over its whole batch.
struct ModelSizes {
  std::vector<Parameter> parameters;
  std::vector<Attention> attentions;
  std::vector<Contraction> contractions;
  /// For each addition to the residual stream, of the output of an attention
  /// or of a feed-forward part: elements of the stream, b s h.
  std::vector<double> branches;
  std::vector<Mixture> mixtures;
  /// Products of an activation and of another output of a matmul.
  int gates = 0;
  /// Numbers of rows that norms sum: of each row one in forward and one in
  /// backward, and where the mean is taken off two.
  double normSums = 0;
  /// Elements that are looked up in tables of a vocabulary.
  double lookedUp = 0;
  /// Rows of losses over a vocabulary, b s, their logits, b s V, and elements
  /// of the inputs of their heads, b s h.
  double lossRows = 0, logits = 0, headInput = 0;
  /// Elements of the stream at its first addition: what stages send.
  double stream() const {
    return !branches.empty()   ? branches.front()
           : !mixtures.empty() ? mixtures.front().branch
                               : 0;
  }
  /// Elements of all parameters.
  double total() const {
    double sum = 0;
    for (const Parameter &p : parameters)
      sum += p.elements;
    return sum;
  }
  /// Why forms do not speak of the model; empty if they do.
  std::string unknown;
};

/// What an axis of the mesh shards.
enum class Split : uint8_t { Nothing, Samples, Features, Sequence, Stages };

struct Axis {
  std::string name;
  int64_t size = 1;
  Split split = Split::Nothing;
  /// The recipe that shards it: "megatron"; empty for samples without one.
  std::string recipe;
  /// The stage of ZeRO over it; 0: none.
  int zero = 0;
  /// Experts are sharded over it, beside what else is.
  bool experts = false;
  /// SUMMA: rows of blocks of weights are sharded over it, beside samples.
  bool rows = false;

  /// Where rows go to experts over several axes, the one over which tokens go
  /// first, once to each of its ranks.
  bool relays = false;

  bool isSumma() const { return recipe == "summa2d" || recipe == "summa25d"; }
  /// Attention has whole sequences of some heads on each rank.
  bool tradesHeads() const { return recipe == "ulysses"; }
  /// Ranks along it have other tokens where a token chooses experts, and other
  /// experts: rows go to the ranks of their experts.
  bool sendsRows() const {
    return experts && (split == Split::Samples || split == Split::Sequence ||
                       recipe == "megatron-sp");
  }
};

/// The options of a step that its cost depends on.
struct StepOptions {
  std::vector<Axis> axes;
  double microBatches = 1;
  /// Bytes on the wire of an element: of a parameter that contractions read (a
  /// 16-bit copy in mixed precision), of its gradient, of activations, of the
  /// residual stream, and of sums of activations over ranks.
  double copyBytes = 4, gradientBytes = 4, activationBytes = 4, streamBytes = 4,
         sumBytes = 4;
  /// Whether parameters are read through copies, of which the masters are
  /// state that ZeRO shards.
  bool hasCopies = false;
  /// State of the optimizer for each element of a parameter; negative: no form.
  double moments = 2;
  /// Whether attention is one op, which computes no masked scores.
  bool fusedAttention = true;
  /// The shares of blocks that are computed again, and of which the core of
  /// attention is.
  double fullShare = 0, selectiveShare = 0;
  /// What is in checkpoint regions is computed again.
  bool repeatsRegions = false;
  /// ZeRO-3 gathers parameters once for a step, not for each micro-batch.
  bool gathersOnce = false;
  /// Ranks that have in common what stages send, send slices of it.
  bool slicesSends = true;
  /// Boundaries of a pipeline that lie between different positions, and whether
  /// the first and the last stage are at one position.
  double boundaries = 0;
  bool endsMeet = true;
  /// Bytes in a micro-batch of numbers that scale values of 8 bits.
  double scaleBytes = 0;
  /// What options say that no form knows; empty if there is nothing.
  std::string unknown;

  /// The product of the sizes of axes that shard `split`.
  double ranks(Split split) const {
    double n = 1;
    for (const Axis &axis : axes)
      if (axis.split == split)
        n *= static_cast<double>(axis.size);
    return n;
  }
};

} // namespace cleave::closedforms

#endif // CLEAVE_CLOSEDFORMS_SIZES_H
