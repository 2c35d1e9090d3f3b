//===- Interpreter.h - The reference interpreter ----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_INTERPRETER_INTERPRETER_H
#define CLEAVE_INTERPRETER_INTERPRETER_H

#include "cleave/Interpreter/ReferenceInterface.h"
#include "mlir/IR/BuiltinOps.h"
#include "llvm/ADT/StringMap.h"
#include <map>
#include <string>

namespace mlir {
class DialectRegistry;
} // namespace mlir

namespace cleave {

/// Attaches reference semantics to the ops of the `graph` and `spmd` dialects.
void registerReferenceModels(mlir::DialectRegistry &registry);

/// Tensors by name.
using NamedTensors = std::map<std::string, RefTensor>;

/// The result of a run.
struct ReferenceResult {
  /// Results of the entry, by `graph.name`, or else by the argument in
  /// `graph.updates`, or else `result<i>`.
  NamedTensors outputs;
  /// Values that the program publishes in addition to its results: the finished
  /// gradients, by parameter.
  NamedTensors published;
};

/// Executes an entry of a module, without code generation, in any phase up to
/// `scheduled`: a function on global tensors; a function on shards, by one
/// virtual rank for each mesh position, in lockstep, op by op; or a
/// `pipe.program`, action by action. A replicated value on which ranks disagree
/// is an error.
class Interpreter {
public:
  Interpreter(mlir::ModuleOp module, Precision precision)
      : module(module), precision(precision) {}

  /// Runs `entry` on `inputs`, by the names of its arguments (`graph.name`, or
  /// `arg<i>`). Inputs for which it has no argument are ignored.
  llvm::FailureOr<ReferenceResult> run(llvm::StringRef entry,
                                       const NamedTensors &inputs);

  /// Sets `observer`, which is called after each op on each rank.
  void observe(ReferenceObserver callback) { observer = std::move(callback); }

  /// Sets `callback`, which may change results of ops before they are rounded,
  /// for example to those of another order of operations (Monte Carlo
  /// arithmetic; Parker, UCLA CSD-970002, 1997).
  void disturb(ReferenceDisturbance callback) {
    disturbance = std::move(callback);
  }

private:
  mlir::ModuleOp module;
  Precision precision;
  ReferenceObserver observer;
  ReferenceDisturbance disturbance;
};

} // namespace cleave

#endif // CLEAVE_INTERPRETER_INTERPRETER_H
