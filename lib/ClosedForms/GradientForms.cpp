//===- GradientForms.cpp - Data parallelism and ZeRO ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "FormBuilder.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave;
using namespace cleave::closedforms;

/// Gradients are summed once in a step: 2 (N-1)/N P, a ring all-reduce over all
/// ranks with other tokens (Patarasuk and Yuan, "Bandwidth optimal all-reduce
/// algorithms for clusters of workstations", section 3).
///
/// ZeRO (arXiv 1910.02054, section 7): they are scattered instead, (N-1)/N P,
/// and updated shards gathered, (N-1)/N P, as 16-bit copies where contractions
/// read these: 2 P in all, for stages 1 and 2. Stage 2 scatters those of each
/// micro-batch, and stage 3 also gathers parameters for forward and for
/// backward of each: 3 P. What backward does not read (biases, tables that
/// tokens look up) is gathered for forward alone, and so is a head, whose
/// gradients are computed with its logits.
///
/// Where sequences are sharded between blocks, ranks of features have other
/// tokens, too, for norms and for biases after a scatter (arXiv 2205.05198,
/// section 4.2.2). Ranks of other heads have other addends for a norm that all
/// heads share (Qwen3, arXiv 2505.09388, section 2; Megatron-Core sums "qk
/// layernorm grads" over ranks of features). Sums are linear, so shards are
/// summed over all ranks that ZeRO leaves at once.
void closedforms::addGradients(FormBuilder &builder) {
  const StepOptions &options = builder.options;
  double gathers = options.gathersOnce ? 1 : options.microBatches;
  bool sharded = llvm::any_of(options.axes,
                              [](const Axis &axis) { return axis.zero != 0; });
  bool zigZag = builder.inZigZag();
  for (const Parameter &parameter : builder.sizes.parameters) {
    // Ranks that hold other parts of it reduce nothing.
    std::vector<Axis> zero = builder.restingAxes(parameter), rest;
    bool between = builder.hasSequenceBetween() &&
                   ((parameter.isVector() && !parameter.hasFeatures) ||
                    (parameter.positions && zigZag));
    int stage = 0;
    double shards = 1, rows = 1;
    for (const Axis &axis : options.axes) {
      if (FormBuilder::shards(axis, parameter))
        continue;
      // Ranks that share a sequence have the gradients of other positions,
      // and hold no range of them in zig-zag order; ZeRO shards the whole
      // table.
      if (parameter.positions && !sharded && !zigZag &&
          (axis.split == Split::Sequence || axis.recipe == "megatron-sp")) {
        rows *= static_cast<double>(axis.size);
        continue;
      }
      if (llvm::any_of(zero, [&](const Axis &resting) {
            return resting.name == axis.name;
          })) {
        stage = std::max(stage, axis.zero);
        shards *= static_cast<double>(axis.size);
      } else if (axis.split == Split::Samples ||
                 axis.split == Split::Sequence ||
                 (between && axis.recipe == "megatron-sp") ||
                 (parameter.ofHeads && axis.split == Split::Features)) {
        rest.push_back(axis);
      }
    }
    double times = stage >= 2 ? options.microBatches : 1;
    double own = parameter.elements / builder.shardsOf(parameter) / rows;
    // Each holder of a tied table reduces its own sum.
    if (parameter.lookedUp && parameter.head && !options.endsMeet)
      own *= 2;
    double width = builder.gradientWidthOf(parameter);
    if (zero.empty()) {
      builder.send(CollectiveKind::AllReduce, rest, own, width, "gradients");
      continue;
    }
    builder.send(CollectiveKind::ReduceScatter, zero, own * times, width,
                 "gradients, to shards");
    builder.send(CollectiveKind::AllReduce, rest, own / shards, width,
                 "shards of gradients");
    double copies = builder.widthOf(parameter);
    if (stage < 3) {
      builder.send(CollectiveKind::AllGather, zero, own, copies,
                   "updated parameters");
      continue;
    }
    bool again =
        parameter.readByBackward && !(parameter.head && !parameter.lookedUp);
    builder.send(CollectiveKind::AllGather, zero,
                 own * gathers * (again ? 2 : 1), copies,
                 "parameters, for forward and backward");
  }
}
