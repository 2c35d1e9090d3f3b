//===- NumericsOptions.cpp - Options of sums and their checks -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "DeclareOptions.h"
#include "OptionRules.h"
#include "llvm/Support/MathExtras.h"

using namespace cleave;

void cleave::declareNumerics(OptionTable &table) {
  table.flag("check-finite", &PhaseOptions::checkFinite)
      .says("on, the default: a step whose loss or gradients are not finite "
            "stops and changes nothing, so that no update runs before all "
            "gradients are known; off: it updates nevertheless");
  table.integer("deterministic", &PhaseOptions::grains)
      .fact()
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
  table.number("max-grad-norm", &graph::OptimizerOptions::maxGradNorm)
      .formerly("clip")
      .inPython("optimizer")
      .least(0)
      .drawn({"1", "0", "-1"})
      .says(
          "Clip the gradients' global 2-norm to this; 0: do not. In Python an "
          "argument of the optimizer");
}
