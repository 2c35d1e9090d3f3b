//===- GeneratorList.h - One function for each schedule ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_SCHEDULING_GENERATORS_GENERATORLIST_H
#define CLEAVE_LIB_SCHEDULING_GENERATORS_GENERATORLIST_H

#include "cleave/Scheduling/Generators/Generators.h"

namespace cleave::scheduling {

using Generated = std::optional<Schedule>;

/// Appends the update of a stage.
inline void appendUpdate(std::vector<Action> &actions, int64_t stage) {
  actions.push_back({"U", -1, stage});
}

// GPipe.cpp
Generated makeGPipe(const PipelineSize &size, std::string &error);

// OneForwardOneBackward.cpp
Generated makeOneForwardOneBackward(const PipelineSize &size,
                                    std::string &error);
Generated makePipeDream(const PipelineSize &size, std::string &error);

// Interleaved.cpp
Generated makeInterleaved(const PipelineSize &size, std::string &error);

// ZeroBubbleH.cpp
Generated makeZeroBubbleH1(const PipelineSize &size, std::string &error);
Generated makeZeroBubbleH2(const PipelineSize &size, std::string &error);

// ZeroBubbleV.cpp
Generated makeZeroBubbleV(const PipelineSize &size, std::string &error);
Generated makeVHalf(const PipelineSize &size, std::string &error);
Generated makeVMin(const PipelineSize &size, std::string &error);

// DualPipeV.cpp
Generated makeDualPipeV(const PipelineSize &size, std::string &error);

} // namespace cleave::scheduling

#endif // CLEAVE_LIB_SCHEDULING_GENERATORS_GENERATORLIST_H
