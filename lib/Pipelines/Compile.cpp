//===- Compile.cpp - From a model to a program that runs ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Pipelines/Compile.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "cleave/Pipelines/PhaseTimes.h"
#include "cleave/Target/CUDA/CompileCuda.h"
#include "cleave/Target/Program/ProgramTable.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Pass/PassManager.h"
#include <cstdlib>

using namespace mlir;
using namespace cleave;

/// Whether a schedule is long enough to be one that repeats itself.
static bool mayRepeat(ModuleOp module) {
  return llvm::any_of(
      module.getOps<pipe::ProgramOp>(),
      [](pipe::ProgramOp program) { return program.getMicroBatches() > 16; });
}

/// Whether the module is verified after each pass: as tests ask for by
/// CLEAVE_VERIFY=passes.
static bool verifiesPasses(const CompileOptions &options) {
  const char *wanted = std::getenv("CLEAVE_VERIFY");
  return options.verify == Verify::Passes ||
         (options.verify == Verify::Phases && wanted &&
          StringRef(wanted) == "passes");
}

void cleave::takeContents(ModuleOp module, ModuleOp other) {
  module.getBodyRegion().takeBody(other.getBodyRegion());
  module->setAttrs(other->getAttrDictionary());
}

LogicalResult cleave::runOnePhase(ModuleOp module, Phase phase,
                                  const CompileOptions &options) {
  TimingScope time = timePhase(options, phaseName(phase));
  bool timesPasses = options.times && options.times->timesPasses();
  // The time of the process is that of the pass which runs.
  if (timesPasses)
    module.getContext()->disableMultithreading();
  OwningOpRef<ModuleOp> before;
  if (phase == Phase::Executable && !options.phases.writeOutActions &&
      mayRepeat(module))
    before = module.clone();
  auto run = [&](const PhaseOptions &own) {
    PassManager passes(module.getContext());
    bool each = verifiesPasses(options);
    passes.enableVerifier(each);
    if (timesPasses)
      passes.enableTiming(time);
    addPhase(passes, phase, own);
    return success(
        succeeded(passes.run(module)) &&
        (each || options.verify == Verify::Never || succeeded(verify(module))));
  };
  if (failed(run(options.phases)))
    return failure();
  // Where memory is not used in turn, each action has a place of its own.
  if (before && !rowsRepeat(module)) {
    takeContents(module, *before);
    PhaseOptions own = options.phases;
    own.writeOutActions = true;
    return run(own);
  }
  return success();
}

void cleave::settleTarget(CompileOptions &own) {
  if (own.traits().isGpu()) {
    own.phases.target =
        TargetTraits::withMultiprocessors(multiprocessorsOf(own.architecture));
    own.phases.products8 = multipliesFloat8(own.architecture);
  }
  own.phases.wideAttention = !own.traits().isGpu();
  own.phases.recompute = own.phases.recomputePolicy().str();
  // Buckets would join the chunks again.
  if (own.phases.collectiveChunks > 1)
    own.phases.collectiveChunkBytes =
        std::max(own.phases.collectiveChunkBytes, *own.fixedBucketBytes() + 1);
}
