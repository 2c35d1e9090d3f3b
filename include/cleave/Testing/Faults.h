//===- Faults.h - Mistakes in a partitioned program -------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Mutation testing of what guards parallel programs: each movement of a
/// `local` program is made wrong in each way, and both guards are asked, the
/// verifier of the phase and equality with the program as it was.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TESTING_FAULTS_H
#define CLEAVE_TESTING_FAULTS_H

#include "cleave/Interpreter/Interpreter.h"
#include "cleave/Testing/Random.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace cleave {

enum class FaultClass : uint8_t {
  Drop,
  WrongAxis,
  WrongGroup,
  WrongReduction,
  DuplicatedSum,
  Scale,
  ShardOrder
};
inline constexpr unsigned kFaultClasses = 7;
llvm::StringRef faultName(FaultClass fault);

/// The movements of `entry` that send something, in order.
unsigned countMovements(mlir::ModuleOp module, llvm::StringRef entry);

/// A copy of `module` in which movement `index` of `entry` is wrong, with all
/// that follows from it derived again. Null where the movement cannot be wrong
/// in this way; `what` says what was done.
mlir::OwningOpRef<mlir::ModuleOp>
injectFault(mlir::ModuleOp module, llvm::StringRef entry, unsigned index,
            FaultClass fault, Random &random, std::string &what);

/// What the guards say of a faulty program.
struct FaultVerdict {
  /// By the verifiers of its ops, or by that of the phase.
  bool rejected = false;
  /// It gives other results, or cannot be run.
  bool unequal = false;
  /// It has the same bits on every input: no fault.
  bool equivalent = false;
};

/// Verifies `faulty`, and runs it on each of `inputs`; `expected` are the
/// results of the program as it was.
FaultVerdict judgeFault(mlir::ModuleOp faulty, llvm::StringRef entry,
                        llvm::ArrayRef<NamedTensors> inputs,
                        llvm::ArrayRef<ReferenceResult> expected,
                        double tolerance);

} // namespace cleave

#endif // CLEAVE_TESTING_FAULTS_H
