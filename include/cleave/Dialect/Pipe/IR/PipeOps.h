//===- PipeOps.h - The pipe dialect -----------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_PIPE_IR_PIPEOPS_H
#define CLEAVE_DIALECT_PIPE_IR_PIPEOPS_H

#include "cleave/Dialect/Graph/IR/Attributes/AttributeTable.h"
#include "cleave/Dialect/Graph/IR/ShardingRule.h"
#include "cleave/Scheduling/Check/Verify.h"
#include "cleave/Scheduling/Schedule.h"
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
#include "llvm/ADT/BitVector.h"
#include "llvm/ADT/MapVector.h"

#include "cleave/Dialect/Pipe/IR/PipeDialect.h.inc"

namespace cleave::pipe {
// Programs hold schedules and describe parts to them.
using namespace scheduling;

/// The kinds of results of a part.
inline constexpr llvm::StringLiteral kSaved = "saved";
inline constexpr llvm::StringLiteral kAccumulate = "accumulate";
inline constexpr llvm::StringLiteral kAccumulateMax = "accumulate:max";
inline constexpr llvm::StringLiteral kAccumulateMin = "accumulate:min";
inline constexpr llvm::StringLiteral kValue = "value";
inline constexpr llvm::StringLiteral kVersionPrefix = "version:";
inline constexpr llvm::StringLiteral kConcatPrefix = "concat:";

/// The kind of a result of which micro-batches give parts that are combined by
/// `kind`.
llvm::StringRef accumulationOf(graph::ReductionKind kind);

/// Attribute of a program's result: the stage of a further holder of the
/// updated value, whose update this result is.
inline constexpr llvm::StringLiteral kCopyAttr = "pipe.copy";
/// Attribute of a program: the number of stages, if it is not 1. A stage may
/// have no parts.
inline constexpr llvm::StringLiteral kStagesAttr = "pipe.stages";

/// Attribute of a check: its number among the checks of the entry. It
/// identifies the check, because every stage has the checks of the update, and
/// messages may be equal.
inline constexpr llvm::StringLiteral kCheckAttr = "pipe.check";

/// Attribute of an op of forward, until stages are split: the number of the
/// stage that begins with the first op that has it.
inline constexpr llvm::StringLiteral kBeginsStageAttr = "pipe.begins_stage";

/// Attribute of a gather: its operand is a slice that another stage sends.
inline constexpr llvm::StringLiteral kSlicedAttr = "pipe.sliced";

/// Attribute of a program with a pipeline: the generator of its schedule, or
/// the file.
inline constexpr llvm::StringLiteral kScheduleNameAttr = "pipe.schedule_name";

/// Attributes of a program: the ops that backward recomputes, and the bytes of
/// each micro-batch that are therefore not saved; see `--pipe-recompute`.
inline constexpr llvm::StringLiteral kRecomputedAttr = "pipe.recomputed";
inline constexpr llvm::StringLiteral kUnsavedBytesAttr = "pipe.unsaved_bytes";
/// Attributes of a program: the work of recomputation for one micro-batch, by
/// stage, and what forward saves for the backward of its stage, with the number
/// of the block that computes it.
inline constexpr llvm::StringLiteral kRecomputeWorkAttr = "pipe.recompute_work";
inline constexpr llvm::StringLiteral kSavedAttr = "pipe.saved";
/// On ops that bring a value, their first operand, to the form in which it is
/// saved.
inline constexpr llvm::StringLiteral kNarrowedAttr = "pipe.narrowed";
/// The op of a dropout mask there, which is never stored.
inline constexpr llvm::StringLiteral kMaskOp = "mask";

/// Attribute of a program: "each" if sharded parameters are gathered for each
/// micro-batch, "once" if once in a step; followed by a colon and the reason if
/// the choice was automatic.
inline constexpr llvm::StringLiteral kGatherAttr = "pipe.gather";

/// Attribute of a program that updates: "forward" or "backward" if updates are
/// in that part, otherwise "none: " and the reason.
inline constexpr llvm::StringLiteral kOptimizerFusionAttr =
    "pipe.optimizer_fusion";
/// Attribute of a program: its updates run before they are validated; see
/// `--pipe-post-validate`.
inline constexpr llvm::StringLiteral kPostValidatedAttr = "pipe.post_validated";
/// Attribute of a program: some updates run before all checks have passed.
inline constexpr llvm::StringLiteral kEarlyUpdateAttr = "pipe.early_update";

/// The attributes of this dialect.
llvm::ArrayRef<graph::AttributeRow> attributeTable();

} // namespace cleave::pipe

#define GET_OP_CLASSES
#include "cleave/Dialect/Pipe/IR/PipeOps.h.inc"

namespace cleave::pipe {

/// Returns the arguments of `program` that have versions, each with the result
/// that is its next version.
llvm::MapVector<mlir::BlockArgument, mlir::OpResult>
versionedArguments(ProgramOp program);

/// Returns the name of the argument that `result` of a part updates; empty if
/// it is not an update.
llvm::StringRef updatedArgument(mlir::OpResult result);

/// Returns the floating-point operations of a run of forward or backward; 0 for
/// other parts, and if the part has no body.
double countedFlops(InvokeOp invoke);

/// Describes the parts of `program` for scheduling, in their order.
std::vector<PartInfo> describeParts(ProgramOp program);

/// Returns the assignment of the stages of `program` to `devices` pipeline
/// positions.
mlir::FailureOr<StageMap> stageMapOf(ProgramOp program, int64_t devices);

/// Returns the verified schedule of `program`; emits an error if it is missing
/// or invalid.
mlir::FailureOr<Schedule> readSchedule(ProgramOp program);

/// Returns, for each argument that `program` updates, the pipeline positions
/// that update their copy of it.
llvm::MapVector<mlir::StringAttr, llvm::BitVector>
updatedCopies(ProgramOp program, const StageMap &map);

/// Verifies that each position that reads an argument in one of `programs`
/// updates it in each program that does; emits an error otherwise. The programs
/// have valid schedules for the same positions.
llvm::LogicalResult verifyCopies(llvm::ArrayRef<ProgramOp> programs);

} // namespace cleave::pipe

#endif // CLEAVE_DIALECT_PIPE_IR_PIPEOPS_H
