//===- OptionRules.h - Rules that several options share ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Each returns why an option is refused: the rest of a sentence that begins
/// with its name, or, where it begins with neither a space nor a colon, a
/// sentence by itself; empty if it is not. Names in braces are options.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_PIPELINES_OPTIONS_OPTIONRULES_H
#define CLEAVE_LIB_PIPELINES_OPTIONS_OPTIONRULES_H

#include "cleave/Pipelines/Options.h"

namespace cleave {

/// Whether the schedule updates after each micro-batch.
bool updatesAfterEach(const CompileOptions &options);
/// Of a schedule: such updates contradict what needs all gradients.
std::string asynchronousProblem(const CompileOptions &options);
/// Of a schedule written by hand, with the place in its file.
std::string handWrittenProblem(const CompileOptions &options);
/// Of updates that are fused into backward or forward.
std::string fusionProblem(const CompileOptions &options);
/// Of deterministic sums: recipes that add up in another order than that of the
/// tree over grains.
std::string sumOrderProblem(const CompileOptions &options);
/// Of compressed gradients.
std::string compressionProblem(const CompileOptions &options);
/// Of compressed boundaries of stages.
std::string stageCompressionProblem(const CompileOptions &options);
/// Of delayed updates.
std::string updateDelayProblem(const CompileOptions &options);

} // namespace cleave

#endif // CLEAVE_LIB_PIPELINES_OPTIONS_OPTIONRULES_H
