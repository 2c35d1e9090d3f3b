//===- CostDefects.h - Plans that are too dear ------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Mutation testing of `--check-cost`: a plan is made dearer in one way, and is
/// held to the closed form of its options. Whether its results are right does
/// not matter, as it is never run.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TESTING_COSTDEFECTS_H
#define CLEAVE_TESTING_COSTDEFECTS_H

#include "cleave/Pipelines/Compile.h"
#include "cleave/Reports/CostFacts.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace cleave {

/// A way in which the local phase of a step is made dearer.
struct CostDefect {
  llvm::StringLiteral name;
  /// Changes at most `most` ops of `entry`, the largest first; returns the
  /// number of those that it changed.
  int64_t (*seed)(mlir::func::FuncOp entry, int64_t most);
};
llvm::ArrayRef<CostDefect> costDefects();

/// Plans a copy of `model` by `planned`, with `defect` (if it is not null) in
/// at most `most` ops, and holds it to the form of `options`. `seeded` is the
/// number of ops that were changed. Fails where the plan is refused.
llvm::FailureOr<CostFacts> judgeCost(mlir::ModuleOp model,
                                     const CompileOptions &options,
                                     const CompileOptions &planned,
                                     const CostDefect *defect, int64_t most,
                                     int64_t &seeded);

} // namespace cleave

#endif // CLEAVE_TESTING_COSTDEFECTS_H
