//===- FinalizeProgram.cpp - The rewrites of command tables ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Transforms/FinalizeProgram.h"
#include "cleave/Executable/Format/CollectiveOrder.h"
#include "cleave/Executable/Format/ShardLayout.h"
#include "cleave/Executable/Transforms/BucketCollectives.h"
#include "cleave/Executable/Transforms/DeferChecks.h"
#include "cleave/Executable/Transforms/DelayWaits.h"

using namespace cleave;

/// What the library of a GPU may use for attention.
static void planAttention(runtime::Program &program,
                          const FinalizeOptions &options) {
  // What ranks compute alike stays alike.
  bool fixedOrder =
      options.fixedOrder || runtime::deviceCount(program.mesh) > 1;
  for (runtime::Part &part : program.parts)
    for (runtime::Command &command : part.commands)
      if (command.kind == runtime::CommandKind::AttentionForward ||
          command.kind == runtime::CommandKind::AttentionBackward) {
        command.attention.fixedOrder = fixedOrder;
        command.attention.libraryBytes = options.libraryBytes(command);
      }
}

/// `alone`: there is no other position.
static void finalizeProgram(runtime::Program &program,
                            const FinalizeOptions &options, bool alone) {
  bool gpu = !options.target.empty();
  // First: what is one exchange has one wait.
  bucketCollectives(program, options.bucketBytes);
  // Then waits, which end up where the memory of their exchange is used next:
  // commands between run meanwhile.
  delayWaits(program);
  // Then checks, whose results are exchanged as collectives are. Positions of a
  // pipeline reach different checks. A CPU that waits for no other rank, nor
  // for the host, stops at once.
  if (alone && (gpu || runtime::deviceCount(program.mesh) > 1))
    deferChecks(program);
  // Waits leave their part where a host runs parts one by one; a GPU has the
  // events of its streams.
  if (!gpu)
    delayWaitsOverParts(program);
  // The memory of a library depends on the command alone.
  if (gpu)
    planAttention(program, options);
  // What the artifact says.
  program.target = options.target;
  program.architecture = options.architecture;
  program.cpu = options.cpu;
  program.vectorBits = options.vectorBits;
  program.lossScaling = options.lossScaling;
  program.metadata = options.metadata;
}

std::string cleave::finalizePrograms(std::vector<runtime::Program> &programs,
                                     const FinalizeOptions &options) {
  for (runtime::Program &program : programs)
    finalizeProgram(program, options, programs.size() == 1);
  // The order of exchanges is settled.
  return runtime::findCollectiveDeadlock(
      programs, options.target.empty() ? runtime::CollectiveStreams::OfGroups
                                       : runtime::CollectiveStreams::One);
}
