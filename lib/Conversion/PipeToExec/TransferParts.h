//===- TransferParts.h - Values sent to another position --------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// An action of a schedule sends the values that parts at the other position
/// read: values of its micro-batch after each run, and sums and concatenated
/// values after the last one. Sends and receives are parts of one or more
/// commands, begun by one action and awaited by a later one.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_CONVERSION_PIPETOEXEC_TRANSFERPARTS_H
#define CLEAVE_LIB_CONVERSION_PIPETOEXEC_TRANSFERPARTS_H

#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include <map>
#include <tuple>

namespace cleave::exec {

/// The transfers of one entry.
class Transfers {
public:
  /// The program and its schedule must outlive this.
  Transfers(pipe::ProgramOp program, const scheduling::Schedule &schedule,
            const scheduling::StageMap &map, mlir::SymbolTable &symbols);

  /// Sets the number of micro-batches that the schedule of the following
  /// actions lacks.
  void setRemoved(int64_t count) { removed = count; }

  /// The results of the run of `action` that are sent to `device`.
  llvm::ArrayRef<mlir::OpResult> values(const scheduling::Action &action,
                                        int64_t device);

  /// Begins to send `values` of `results`, at the builder's insertion point.
  void send(mlir::OpBuilder &builder, const scheduling::Action &action,
            llvm::ArrayRef<mlir::OpResult> results, mlir::ValueRange values);
  /// Begins to receive them; returns the values that will be received.
  mlir::ValueRange receive(mlir::OpBuilder &builder,
                           const scheduling::Action &action,
                           llvm::ArrayRef<mlir::OpResult> results);
  /// Waits for either.
  void await(mlir::OpBuilder &builder, const scheduling::Action &action,
             llvm::ArrayRef<mlir::OpResult> results, mlir::ValueRange values);

private:
  pipe::InvokeOp invokeOf(const scheduling::Action &action) const;
  /// One token for each result and position that receives it.
  int64_t tokenOf(mlir::OpResult result, int64_t device);
  /// The part of one end of a transfer: made by `build`, once for each name.
  mlir::func::FuncOp
  partOf(const scheduling::Action &action, llvm::StringRef what,
         llvm::ArrayRef<mlir::OpResult> results, mlir::TypeRange inputs,
         llvm::function_ref<void(mlir::OpBuilder &, mlir::func::FuncOp)> build);
  RunOp run(mlir::OpBuilder &builder, const scheduling::Action &action,
            mlir::func::FuncOp part, mlir::ValueRange values);

  pipe::ProgramOp program;
  const scheduling::StageMap &map;
  mlir::SymbolTable &symbols;
  std::map<std::pair<std::string, int64_t>, pipe::InvokeOp> invokes;
  /// By part and stage, the last micro-batch.
  std::map<std::pair<std::string, int64_t>, int64_t> last;
  int64_t removed = 0;
  /// Messages, by the invocation that makes them, the position that receives
  /// them, and whether the values of all micro-batches are complete.
  std::map<std::tuple<mlir::Operation *, int64_t, bool>,
           llvm::SmallVector<mlir::OpResult>>
      sent;
  /// The parts made so far: by the invocation, the other position, what they
  /// do, and whether they are those of complete values.
  std::map<std::tuple<mlir::Operation *, int64_t, llvm::StringRef, bool>,
           mlir::func::FuncOp>
      made;
  llvm::DenseMap<std::pair<mlir::Value, int64_t>, int64_t> tokens;
};

} // namespace cleave::exec

#endif // CLEAVE_LIB_CONVERSION_PIPETOEXEC_TRANSFERPARTS_H
