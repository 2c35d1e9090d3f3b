//===- PartForms.h - A part as its actions need it --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_PARTFORMS_H
#define CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_PARTFORMS_H

#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"

namespace cleave::exec {

/// The slice of a whole tensor of type `whole` that micro-batch `index` of
/// `count` has along `dim`, as it lies in it.
mlir::RankedTensorType sliceAt(mlir::RankedTensorType whole, int64_t dim,
                               int64_t index, int64_t count);

/// Says of `part` that it is run as `action`, of any micro-batch, and computes
/// so many floating-point operations (0: not said).
void setAction(mlir::func::FuncOp part, const pipe::Action &action,
               double flops = 0);

/// A part, in the forms that its actions need.
struct PartForms {
  mlir::func::FuncOp first;
  /// Those that add onto so many sums there are, one after another.
  llvm::SmallVector<mlir::func::FuncOp> next;
  /// Results that accumulate, in the order of the further arguments of `next`.
  llvm::SmallVector<unsigned> sums;
  /// Operands beyond those of the invocation: values that have a row for each
  /// micro-batch, and the types of the rows.
  llvm::SmallVector<std::pair<mlir::Attribute, mlir::RankedTensorType>>
      constants;
  llvm::SmallVector<mlir::RankedTensorType> rowTypes;
  /// What is added is a term of its own: nothing of it is added to a sum before
  /// all of it is there.
  bool treeSums = false;

  /// Makes of what `invoke` calls the first form, for one of `microBatches`:
  /// results are what the invocation reads of them, and slices of a whole lie
  /// in it. Located errors.
  static mlir::FailureOr<PartForms> create(pipe::InvokeOp invoke,
                                           int64_t microBatches);

  /// The form that adds what it makes onto `count` sums, the last one first,
  /// which then are one; a new one becomes a symbol.
  mlir::func::FuncOp onto(unsigned count, mlir::SymbolTable &symbols);

private:
  mlir::LogicalResult giveConstants(int64_t microBatches);
};

/// Makes each result of `program` with `graph.updates` the memory of the
/// argument of that name; parts that run once may get it as an operand.
mlir::LogicalResult linkUpdates(ProgramOp program, mlir::SymbolTable &symbols);

/// Leaves out results of the part that nothing reads, what only they needed,
/// and operands that nothing reads then. The new invocation.
pipe::InvokeOp dropUnread(pipe::InvokeOp invoke);

} // namespace cleave::exec

#endif // CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_PARTFORMS_H
