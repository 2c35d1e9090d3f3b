//===- PartForms.h - Forms of a part for its actions ------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_CONVERSION_PIPETOEXEC_PARTFORMS_H
#define CLEAVE_LIB_CONVERSION_PIPETOEXEC_PARTFORMS_H

#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"

namespace cleave::exec {

/// The slice along `dim` that micro-batch `index` of `count` has of a tensor of
/// type `whole`, with its layout in that tensor.
mlir::RankedTensorType sliceAt(mlir::RankedTensorType whole, int64_t dim,
                               int64_t index, int64_t count);

/// Records that `part` is run as `action`, of any micro-batch, and computes
/// `flops` floating-point operations (0: unknown).
void setAction(mlir::func::FuncOp part, const scheduling::Action &action,
               double flops = 0);

/// A part, in the forms that its actions need.
struct PartForms {
  mlir::func::FuncOp first;
  /// The forms that add to the given number of sums, in order. A maximum or a
  /// minimum is a sum here.
  llvm::SmallVector<mlir::func::FuncOp> next;
  /// Results that accumulate, in the order of the further arguments of `next`.
  llvm::SmallVector<unsigned> sums;
  /// How each is combined.
  llvm::SmallVector<graph::ReductionKind> kinds;
  /// Operands in addition to those of the invocation: values that have a row
  /// for each micro-batch, and the types of the rows.
  llvm::SmallVector<std::pair<mlir::Attribute, mlir::RankedTensorType>>
      constants;
  llvm::SmallVector<mlir::RankedTensorType> rowTypes;
  /// Whether the addend is a term of its own, which is complete before it is
  /// added to a sum.
  bool treeSums = false;

  /// Rewrites the part that `invoke` calls to the first form, for one of
  /// `microBatches`: its results are those that the invocation reads, and
  /// slices of a whole value have the layout they have in it. Reports located
  /// errors.
  static mlir::FailureOr<PartForms> create(pipe::InvokeOp invoke,
                                           int64_t microBatches);

  /// The form that adds its results to `count` sums, the last one first, which
  /// are then one sum; a new form is inserted as a symbol.
  mlir::func::FuncOp onto(unsigned count, mlir::SymbolTable &symbols);

private:
  mlir::LogicalResult giveConstants(int64_t microBatches);
};

/// Lets each result of `program` with `graph.updates` take the memory of the
/// argument of that name; parts that run once may get that memory as an
/// operand.
mlir::LogicalResult linkUpdates(ProgramOp program, mlir::SymbolTable &symbols);

/// Drops results of the part that are not read, the ops that only they need,
/// and operands that are then not read. Returns the new invocation.
pipe::InvokeOp dropUnusedResults(pipe::InvokeOp invoke);

} // namespace cleave::exec

#endif // CLEAVE_LIB_CONVERSION_PIPETOEXEC_PARTFORMS_H
