//===- StageForms.cpp - Pipelines -----------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "FormBuilder.h"

using namespace cleave;
using namespace cleave::closedforms;

/// At a boundary b s h elements go forward and as many back (GPipe, arXiv
/// 1811.06965, section 2.3). Ranks that share features send a slice each, and
/// gather (arXiv 2104.04473, section 4.1); a sum that is sent is scattered for
/// that. Of a tied table, the two holders
/// exchange the sums of their gradients (section 2.1 of arXiv 1909.08053's
/// code, the embedding group of Megatron-LM).
void closedforms::addStages(FormBuilder &builder) {
  const StepOptions &options = builder.options;
  std::vector<Axis> stages = builder.axesOf(Split::Stages);
  if (stages.empty() || stages.front().size == 1)
    return;
  Axis pair = stages.front();
  double tokens = builder.tokenRanks(),
         features = options.ranks(Split::Features);
  double boundary = 2 * options.boundaries * builder.sizes.stream() / tokens;
  bool sliced = options.slicesSends || builder.shardsStream();
  builder.send(CollectiveKind::Send, pair, boundary / (sliced ? features : 1),
               options.streamBytes, "the residual stream at boundaries");
  if (options.slicesSends && !builder.shardsStream())
    for (const Axis &axis : builder.axesOf(Split::Features)) {
      builder.send(CollectiveKind::AllGather, axis, boundary,
                   options.streamBytes, "slices of what stages send");
      builder.send(CollectiveKind::ReduceScatter, axis, boundary,
                   options.sumBytes, "slices of what stages send");
    }
  for (const Parameter &parameter : builder.sizes.parameters)
    if (parameter.lookedUp && parameter.head && !options.endsMeet)
      builder.send(CollectiveKind::Send, pair,
                   2 * parameter.elements / builder.shardsOf(parameter), 4,
                   "sums of the gradients of a tied table");
}
