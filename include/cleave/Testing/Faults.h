//===- Faults.h - Faults in a partitioned program ---------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Mutation testing of the guards of parallel programs: each collective of a
/// `local` program is made wrong in each way, and both guards are tested, the
/// verifier of the phase and equality with the original program.
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

/// The collectives of `entry` that communicate, in order.
unsigned countCollectives(mlir::ModuleOp module, llvm::StringRef entry);

/// A copy of `module` in which collective `index` of `entry` is wrong, with the
/// types of all later ops derived again. Null if the collective cannot have
/// this fault; `what` describes the fault.
mlir::OwningOpRef<mlir::ModuleOp>
injectFault(mlir::ModuleOp module, llvm::StringRef entry, unsigned index,
            FaultClass fault, Random &random, std::string &what);

/// The findings of the guards on a faulty program.
struct FaultVerdict {
  /// Refused by the verifiers of its ops, or by that of the phase.
  bool rejected = false;
  /// It has different results, or cannot be run.
  bool unequal = false;
  /// It has the same bits on every input: not a fault.
  bool equivalent = false;
};

/// Verifies `faulty`, and runs it on each of `inputs`; `expected` are the
/// results of the original program.
FaultVerdict judgeFault(mlir::ModuleOp faulty, llvm::StringRef entry,
                        llvm::ArrayRef<NamedTensors> inputs,
                        llvm::ArrayRef<ReferenceResult> expected,
                        double tolerance);

} // namespace cleave

#endif // CLEAVE_TESTING_FAULTS_H
