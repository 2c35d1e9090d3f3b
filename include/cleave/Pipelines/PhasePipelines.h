//===- PhasePipelines.h - Phases as pipelines of cleave-opt -----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Each phase is a pipeline, `--phase-step`, with the options of
/// `cleave-compile` (without the hyphens), those of the update rules among
/// them: `--phase-placed="mesh=dp=2 recipe=zero1"`. Each phase reads what it
/// needs, so that all of them take the same text.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PIPELINES_PHASEPIPELINES_H
#define CLEAVE_PIPELINES_PHASEPIPELINES_H

#include "cleave/Pipelines/Compile.h"

namespace cleave {

/// Registers `--phase-model` to `--phase-executable`.
void registerPhasePipelines();

/// The options of these pipelines, as `cleave-opt` reads them, that differ from
/// the defaults.
std::string pipelineOptions(const CompileOptions &options);

} // namespace cleave

#endif // CLEAVE_PIPELINES_PHASEPIPELINES_H
