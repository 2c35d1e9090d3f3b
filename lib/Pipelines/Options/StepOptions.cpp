//===- StepOptions.cpp - Options of the update and of a batch -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "DeclareOptions.h"
#include "OptionRules.h"
#include "llvm/Support/MathExtras.h"

using namespace cleave;

void cleave::declareStep(OptionTable &table) {
  table
      .choice("optimizer-fusion", &PhaseOptions::optimizerFusion,
              {"auto", "none", "backward", "forward"})
      .says("Where updates run (arXiv 2104.00237). none: after all gradients; "
            "backward: each after its gradient, which is then released, an "
            "error where that is not possible; forward: in the next step, each "
            "before the first reader of its parameter; auto, the default: "
            "backward if possible, else none. The bits are the same")
      .refused(fusionProblem);
  table.flag("check-finite", &PhaseOptions::checkFinite)
      .says("on, the default: a step whose loss or gradients are not finite "
            "stops and changes nothing, so that no update runs before all "
            "gradients are known; off: it updates nevertheless");
  table.integer("micro-batches", &PhaseOptions::microBatches)
      .least(1)
      .drawn({"2", "4", "0", "-3"})
      .says("Equal parts in which the batch is computed, one after another")
      .refused([](const CompileOptions &options) -> std::string {
        return options.phases.grains
                   ? " is replaced by the grains of {deterministic}: leave it "
                     "out"
                   : "";
      });
  table.integer("deterministic", &PhaseOptions::grains)
      .form("grains")
      .least(1)
      .drawn({"1", "4", "3", "8", "-1"})
      .says("Compute the batch in this many equal grains, each by one thread, "
            "and sum them in one tree: losses and weights then have the same "
            "bits for every \"dp\" that divides the grains, a power of 2")
      .refused([](const CompileOptions &options) -> std::string {
        return llvm::isPowerOf2_64(options.phases.grains)
                   ? ""
                   : " must be a power of 2";
      })
      .refused(sumOrderProblem);
}
