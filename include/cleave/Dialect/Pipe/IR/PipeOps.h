//===- PipeOps.h - The pipe dialect -----------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_PIPE_IR_PIPEOPS_H
#define CLEAVE_DIALECT_PIPE_IR_PIPEOPS_H

#include "cleave/Dialect/Pipe/IR/Schedule.h"
#include "cleave/Dialect/Pipe/IR/Verify.h"
#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/ControlFlowInterfaces.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "llvm/ADT/MapVector.h"

#include "cleave/Dialect/Pipe/IR/PipeDialect.h.inc"

namespace cleave::pipe {

/// The kinds of results of a part.
inline constexpr llvm::StringLiteral kSaved = "saved";
inline constexpr llvm::StringLiteral kAccumulate = "accumulate";
inline constexpr llvm::StringLiteral kValue = "value";
inline constexpr llvm::StringLiteral kVersionPrefix = "version:";
inline constexpr llvm::StringLiteral kConcatPrefix = "concat:";

/// On a result of a program: it is what another result is, an update, computed
/// in this stage, which holds what is updated too.
inline constexpr llvm::StringLiteral kCopyAttr = "pipe.copy";
/// On a program: how many stages it is cut into, where that is not one. Some
/// may have nothing to do.
inline constexpr llvm::StringLiteral kStagesAttr = "pipe.stages";

/// On a check of a part: its number among those of the entry. Every stage has
/// the checks of the update; other checks may have the same message.
inline constexpr llvm::StringLiteral kCheckAttr = "pipe.check";

/// On a gather of a part: another stage sends in slices what it could send
/// whole.
inline constexpr llvm::StringLiteral kSlicedAttr = "pipe.sliced";

/// On a program of several devices: what its schedule was made by, or read
/// from.
inline constexpr llvm::StringLiteral kScheduleNameAttr = "pipe.schedule_name";

/// On a program: what backward computes again, and the bytes of each
/// micro-batch that are not saved for that; see `--pipe-recompute`.
inline constexpr llvm::StringLiteral kRecomputedAttr = "pipe.recomputed";
inline constexpr llvm::StringLiteral kUnsavedBytesAttr = "pipe.unsaved_bytes";

/// On a program: "each" where what devices hold of parameters in parts is
/// gathered for each micro-batch, "once" where it is for a step; behind a
/// colon, why, where that was left open.
inline constexpr llvm::StringLiteral kGatherAttr = "pipe.gather";

/// On a program that updates: "forward" or "backward" where each update stands
/// in that part, or "none: " and why it does not.
inline constexpr llvm::StringLiteral kOptimizerFusionAttr =
    "pipe.optimizer_fusion";
/// On a program: its updates are made before anything has shown that they are
/// right; see `--pipe-post-validate`.
inline constexpr llvm::StringLiteral kPostValidatedAttr = "pipe.post_validated";
/// On a program: it updates before all of its checks are made.
inline constexpr llvm::StringLiteral kEarlyUpdateAttr = "pipe.early_update";

} // namespace cleave::pipe

#define GET_OP_CLASSES
#include "cleave/Dialect/Pipe/IR/PipeOps.h.inc"

namespace cleave::pipe {

/// The arguments of `program` of which there are versions: the result that
/// makes the next one.
llvm::MapVector<mlir::BlockArgument, mlir::OpResult>
versionedArguments(ProgramOp program);

/// The name of the argument whose new value `result` of a part is, as the
/// program returns it; empty where it is no update.
llvm::StringRef updatedArgument(mlir::OpResult result);

/// The floating-point operations of a run of forward or backward; 0 of other
/// parts, and where the part has no body.
double countedFlops(InvokeOp invoke);

/// What a schedule must know of the parts of `program`, in their order.
std::vector<PartInfo> describeParts(ProgramOp program);

/// Where the stages of `program` lie on so many positions of the pipeline.
mlir::FailureOr<StageMap> stageMapOf(ProgramOp program, int64_t devices);

/// The schedule of `program`; reports that there is none, or what is wrong with
/// it.
mlir::FailureOr<Schedule> readSchedule(ProgramOp program);

} // namespace cleave::pipe

#endif // CLEAVE_DIALECT_PIPE_IR_PIPEOPS_H
