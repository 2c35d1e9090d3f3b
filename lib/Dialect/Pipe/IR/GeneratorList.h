//===- GeneratorList.h - One function for each schedule ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_IR_GENERATORLIST_H
#define CLEAVE_LIB_DIALECT_PIPE_IR_GENERATORLIST_H

#include "cleave/Dialect/Pipe/IR/Generators.h"

namespace cleave::pipe {

using Generated = std::optional<Schedule>;

// OneWay.cpp
Generated makeGPipe(const PipelineSize &size, std::string &error);
Generated makeOneForwardOneBackward(const PipelineSize &size,
                                    std::string &error);
Generated makePipeDream(const PipelineSize &size, std::string &error);
Generated makeInterleaved(const PipelineSize &size, std::string &error);

// ZeroBubble.cpp
Generated makeZeroBubbleH1(const PipelineSize &size, std::string &error);
Generated makeZeroBubbleH2(const PipelineSize &size, std::string &error);

// VShaped.cpp
Generated makeZeroBubbleV(const PipelineSize &size, std::string &error);
Generated makeVHalf(const PipelineSize &size, std::string &error);
Generated makeVMin(const PipelineSize &size, std::string &error);

// DualPipe.cpp
Generated makeDualPipeV(const PipelineSize &size, std::string &error);

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_IR_GENERATORLIST_H
