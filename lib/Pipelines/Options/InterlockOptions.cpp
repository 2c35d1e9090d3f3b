//===- InterlockOptions.cpp - Options of interlocking backpropagation -----===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "DeclareOptions.h"

using namespace cleave;

static bool hasHorizon(const CompileOptions &options) {
  return options.phases.gradHorizon != 0;
}

void cleave::declareInterlock(OptionTable &table) {
  table.integer("grad-horizon", &PhaseOptions::gradHorizon)
      .fact()
      .plain()
      .form("modules")
      .least(1)
      .drawn({"1", "2", "0"})
      .says("Interlocking backpropagation (arXiv 2010.04116): each module of "
            "{modules} but the last gets a head and a loss of its own, and the "
            "gradient of a head passes this many modules, of which it trains "
            "the first; 1: modules learn locally");
  table.text("modules", &PhaseOptions::modules)
      .form("number or names")
      .drawn({"2", "3"})
      .says("With {grad-horizon}: the number of modules, of even cost, or "
            "where they begin, as in {stages}. The stages of the pipeline by "
            "default")
      .needs(hasHorizon, " needs {grad-horizon}");
  table.text("head", &PhaseOptions::head)
      .form("name")
      .drawn({"head"})
      .says("With {grad-horizon}: where the head begins of which auxiliary "
            "heads are copies: at the first reader of a parameter whose name "
            "has this prefix. After the last layer by default")
      .needs(hasHorizon, " needs {grad-horizon}");
}
