//===- Pipeline.cpp - The parts of a pipeline of equal stages -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Scheduling/Pipeline.h"

using namespace cleave::scheduling;

std::vector<PartInfo>
cleave::scheduling::describePipeline(int64_t stages,
                                     const PipelineOptions &options) {
  // Stage s has F, then I, W and B, or B alone, and U, in this order.
  unsigned count = options.split ? 5 : 3;
  auto forward = [&](int64_t stage) -> unsigned { return stage * count; };
  auto backward = [&](int64_t stage) { return forward(stage) + 1; };
  auto weights = [&](int64_t stage) {
    return backward(stage) + (options.split ? 1 : 0);
  };
  std::vector<PartInfo> parts;
  for (int64_t s = 0; s < stages; ++s) {
    PartInfo f{"F", false, s, {}};
    f.saved = 1;
    PartInfo b{options.split ? "I" : "B", false, s, {{forward(s), true}}};
    if (s > 0)
      f.uses.push_back({forward(s - 1), true});
    if (s + 1 < stages)
      b.uses.push_back({backward(s + 1), true});
    for (auto [from, to] : options.skips) {
      if (to == s)
        f.uses.push_back({forward(from), true});
      if (from == s)
        b.uses.push_back({backward(to), true});
    }
    parts.push_back(std::move(f));
    parts.push_back(std::move(b));
    if (options.split) {
      parts.push_back(
          {"W", false, s, {{forward(s), true}, {backward(s), true}}});
      PartInfo whole{"B", false, s, {}};
      whole.fuses = {backward(s), weights(s)};
      parts.push_back(std::move(whole));
    }
    PartInfo u{"U", !options.asynchronous, s, {}};
    u.uses.push_back({weights(s), options.asynchronous});
    u.updates = true;
    parts.push_back(std::move(u));
  }
  return parts;
}
