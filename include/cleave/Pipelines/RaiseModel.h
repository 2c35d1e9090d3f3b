//===- RaiseModel.h - Ops that a model composes of smaller ones -*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A front end may write what ops compute by smaller ops. The phase `model`
/// begins with the passes that recognise them, for all front ends alike. What
/// speaks of a model's ops by their names raises them before.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PIPELINES_RAISEMODEL_H
#define CLEAVE_PIPELINES_RAISEMODEL_H

#include "mlir/IR/BuiltinOps.h"
#include <string>
#include <utility>
#include <vector>

namespace mlir {
class OpPassManager;
} // namespace mlir

namespace cleave {

/// Adds the passes that raise ops.
void addRaise(mlir::OpPassManager &passes);

/// Runs these passes.
llvm::LogicalResult raiseModel(mlir::ModuleOp module);

/// The ops of the functions of `module` after these passes, in their order: the
/// line of each one's location, and its name without its dialect. `module` is
/// raised; fails where a pass does.
llvm::FailureOr<std::vector<std::pair<unsigned, std::string>>>
raisedOps(mlir::ModuleOp module);

} // namespace cleave

#endif // CLEAVE_PIPELINES_RAISEMODEL_H
