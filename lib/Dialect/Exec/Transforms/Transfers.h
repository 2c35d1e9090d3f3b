//===- Transfers.h - Values that go to another position ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// What an action of a schedule sends is what parts at the other position read
/// of it: values of its micro-batch behind each run, sums and what
/// micro-batches have side by side behind the last one. Sending and receiving
/// are parts of one or more commands, begun by one action and ended by a later
/// one.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_TRANSFERS_H
#define CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_TRANSFERS_H

#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include <map>

namespace cleave::exec {

/// The transfers of one entry.
class Transfers {
public:
  /// The program and its schedule must outlive this.
  Transfers(pipe::ProgramOp program, const pipe::Schedule &schedule,
            const pipe::StageMap &map, mlir::SymbolTable &symbols);

  /// From now on, actions are of a schedule that lacks so many micro-batches.
  void setRemoved(int64_t count) { removed = count; }

  /// The results that the run of `action` gives to `device`.
  llvm::SmallVector<mlir::OpResult> values(const pipe::Action &action,
                                           int64_t device) const;

  /// Begins to send `values` of `results`, from the builder's place on.
  void send(mlir::OpBuilder &builder, const pipe::Action &action,
            llvm::ArrayRef<mlir::OpResult> results, mlir::ValueRange values);
  /// Begins to receive them; what will be there.
  mlir::ValueRange receive(mlir::OpBuilder &builder, const pipe::Action &action,
                           llvm::ArrayRef<mlir::OpResult> results);
  /// Ends either.
  void await(mlir::OpBuilder &builder, const pipe::Action &action,
             llvm::ArrayRef<mlir::OpResult> results, mlir::ValueRange values);

private:
  pipe::InvokeOp invokeOf(const pipe::Action &action) const;
  /// One for each result and position that receives it.
  int64_t tokenOf(mlir::OpResult result, int64_t device);
  /// The part of an end of a transfer: made by `build`, once for each name.
  mlir::func::FuncOp
  partOf(const pipe::Action &action, llvm::StringRef what,
         llvm::ArrayRef<mlir::OpResult> results, mlir::TypeRange inputs,
         llvm::function_ref<void(mlir::OpBuilder &, mlir::func::FuncOp)> build);
  RunOp run(mlir::OpBuilder &builder, const pipe::Action &action,
            mlir::func::FuncOp part, mlir::ValueRange values);

  pipe::ProgramOp program;
  const pipe::StageMap &map;
  mlir::SymbolTable &symbols;
  std::map<std::pair<std::string, int64_t>, pipe::InvokeOp> invokes;
  /// By part and stage, the micro-batch that comes last.
  std::map<std::pair<std::string, int64_t>, int64_t> last;
  int64_t removed = 0;
  llvm::DenseMap<std::pair<mlir::Value, int64_t>, int64_t> tokens;
};

} // namespace cleave::exec

#endif // CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_TRANSFERS_H
