//===- OperationForms.cpp - Operations, and bytes at rest -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "FormBuilder.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave;
using namespace cleave::closedforms;

/// Of each score in forward two matmuls over the size of a head, and the
/// softmax; in backward five, as the scores are computed again
/// (FlashAttention-2, arXiv 2307.08691, section 3.1). The numbers beside them
/// are those of `graph.attention`, and for each logit that of a fused loss.
static constexpr double kForwardMatmuls = 2, kForwardRow = 15,
                        kBackwardMatmuls = 5, kBackwardRow = 20,
                        kBiasMatmuls = 2, kBiasRow = 20, kLogit = 26;

static double scored(const Attention &a, double matmuls, double row) {
  return a.scores * (2 * matmuls * a.headSize + row);
}

/// A matmul costs as much again for each gradient: 6 operations for each
/// parameter and token (Kaplan et al., arXiv 2001.08361, section 2.1), and what
/// attention adds to it. Full recomputation repeats the forward of blocks, and
/// selective one the core of an attention that is not one op (arXiv 2205.05198,
/// sections 5 and 6). Ranks divide all of it, but for what those that share
/// features compute alike: routers, and what projects to a latent width that a
/// norm reads (Megatron-Core keeps both whole). The operations of the model
/// alone are those that a model's utilisation counts (PaLM, arXiv 2204.02311,
/// appendix B): each matmul of forward, and its gradients.
void closedforms::addOperations(FormBuilder &builder) {
  const StepOptions &options = builder.options;
  auto repeated = [&](bool inBlock, bool inRegion) {
    return inRegion && options.repeatsRegions ? 1.0
           : inBlock                          ? options.fullShare
                                              : 0.0;
  };
  double sum = kLogit * builder.sizes.logits, alike = 0;
  for (const Contraction &c : builder.sizes.contractions) {
    (c.isWhole && !builder.shardsStream() ? alike : sum) +=
        c.operations * (1 + c.gradients + repeated(c.inBlock, c.inRegion));
    builder.form.modelOperations += c.operations * (1 + c.gradients);
  }
  // Two rings hold rows of scores, also masked ones.
  bool rows = llvm::any_of(
      options.axes, [](const Axis &axis) { return axis.recipe == "two-ring"; });
  for (const Attention &a : builder.sizes.attentions) {
    double again = repeated(true, a.inRegion);
    builder.form.modelOperations += 3 * scored(a, kForwardMatmuls, 0);
    if (a.learnedBias)
      sum += scored(a, kBiasMatmuls, kBiasRow);
    if (options.fusedAttention && !rows) {
      sum += scored(a, kForwardMatmuls, kForwardRow) * (1 + again) +
             scored(a, kBackwardMatmuls, kBackwardRow);
      continue;
    }
    double core = 4 * a.batch * a.heads * a.queries * a.keys * a.headSize;
    sum += core * (3 + std::max(again, options.selectiveShare));
  }
  double features = options.ranks(Split::Features);
  builder.form.operations = (sum / features + alike) / builder.tokenRanks();
  builder.form.wholeOperations = sum + alike;
}

/// ZeRO (arXiv 1910.02054, section 5): state is sharded from stage 1 on, and
/// with it the masters that copies are made of; parameters by stage 3. In f32,
/// what is read is the parameter itself.
void closedforms::addAtRest(FormBuilder &builder) {
  const StepOptions &options = builder.options;
  Form &form = builder.form;
  form.stateBytes = options.moments < 0 ? -1 : 0;
  for (const Parameter &parameter : builder.sizes.parameters) {
    double shards = 1;
    int stage = 0;
    for (const Axis &axis : builder.restingAxes(parameter)) {
      shards *= static_cast<double>(axis.size);
      stage = std::max(stage, axis.zero);
    }
    double own = parameter.elements / builder.shardsOf(parameter);
    if (parameter.lookedUp && parameter.head && !options.endsMeet)
      own *= 2;
    bool copied =
        options.hasCopies && parameter.multiplied && !parameter.staysWide;
    bool sharded = stage == 3 || (stage > 0 && copied);
    form.parameterBytes += 4 * own / (sharded ? shards : 1);
    if (options.moments >= 0)
      form.stateBytes += 4 * options.moments * own / shards;
  }
}
