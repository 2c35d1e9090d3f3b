//===- ChooseExpertBuffer.h - Room for rows of experts ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PLANNING_CHOOSEEXPERTBUFFER_H
#define CLEAVE_PLANNING_CHOOSEEXPERTBUFFER_H

#include "cleave/Planning/ChooseRecompute.h"

namespace cleave {

/// The choice of `chooseExpertBuffer`: a value of `PhaseOptions::expertBuffer`,
/// and the module in the phases that it was planned in with it, else null.
struct ExpertBufferPlan {
  std::string buffer;
  mlir::OwningOpRef<mlir::ModuleOp> local, scheduled, executable;
};

/// Chooses for how many rows of experts a rank has room, where options leave it
/// open: for those of all ranks, if the buffers of rows then take at most a
/// tenth of the arena, else for twice an even share. `placed` is a module in
/// the placed phase. Plans the memory of both, and says in `decision` why,
/// where any rows are sent.
///
/// The bytes of buffers follow from the two arenas: what depends on the room
/// is proportional to it.
ExpertBufferPlan
chooseExpertBuffer(mlir::ModuleOp placed, const CompileOptions &options,
                   RunPhase run, std::optional<ExpertBufferDecision> &decision);

} // namespace cleave

#endif // CLEAVE_PLANNING_CHOOSEEXPERTBUFFER_H
