//===- ReportKeys.h - Plans do not follow from reports ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TESTING_REPORTKEYS_H
#define CLEAVE_TESTING_REPORTKEYS_H

#include "cleave/Pipelines/Compile.h"

namespace cleave {

/// What is asked of planning.
struct PlanQuestion {
  /// "plan", "limit" (recomputation is chosen within a limit), "refused" (of a
  /// limit that nothing fits), "micro-batch", "devices", "predict" or
  /// "measure".
  std::string name;
  CompileOptions options;
};

/// The questions of a model. The memory that it needs with `options` decides
/// limits; if it is refused, there are none.
std::vector<PlanQuestion> planQuestions(mlir::ModuleOp model,
                                        const CompileOptions &options);

/// Plans `model`, a module in the model phase, and compiles it, twice: with the
/// keys of reports as they are, and with all of them renamed. Returns what
/// differs: IR, programs, kernels, decisions, or what a report says besides its
/// keys; empty if nothing does. `keys` is increased by the number of keys that
/// were renamed.
std::string compareRenamed(mlir::ModuleOp model, const PlanQuestion &question,
                           int64_t &keys);

} // namespace cleave

#endif // CLEAVE_TESTING_REPORTKEYS_H
