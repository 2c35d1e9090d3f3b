//===- CommandTable.h - The commands of one part ----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_TARGET_PROGRAM_COMMANDTABLE_H
#define CLEAVE_LIB_TARGET_PROGRAM_COMMANDTABLE_H

#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Executable/Format/Program.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace cleave {

/// Axes of a mesh in the form of the command table.
std::vector<runtime::Digit> digitsOf(const spmd::Mesh &mesh,
                                     llvm::ArrayRef<spmd::AxisRef> axes);

/// The element type of the command table, or a located error.
llvm::FailureOr<runtime::DType> dtypeOf(mlir::Location loc, mlir::Type type);

/// Translates the commands of one part.
class CommandTable {
public:
  /// `symbols` are those of the part's module.
  CommandTable(mlir::func::FuncOp part, const mlir::SymbolTable &symbols,
               int64_t threads);

  llvm::LogicalResult translate(std::vector<runtime::Command> &commands);
  /// The place of a value among the buffers of the part.
  runtime::Ref refOf(mlir::Value value);

private:
  runtime::Ref scratchOf(mlir::Operation *op);
  runtime::HeadView headView(mlir::Value value);
  void broadcastView(mlir::Value value, runtime::Ref &ref,
                     int64_t (&strides)[4]);

  llvm::LogicalResult convert(exec::LaunchOp op, runtime::Command &command);
  llvm::LogicalResult convert(exec::ContractOp op, runtime::Command &command);
  llvm::LogicalResult convert(exec::AttentionOp op, runtime::Command &command);
  llvm::LogicalResult convert(exec::AttentionGradOp op,
                              runtime::Command &command);
  llvm::LogicalResult convert(exec::ScatterAddOp op, runtime::Command &command);
  llvm::LogicalResult convert(exec::TopKOp op, runtime::Command &command);
  llvm::LogicalResult convert(exec::OrthonormalizeOp op,
                              runtime::Command &command);
  llvm::LogicalResult convert(exec::SortRowsOp op, runtime::Command &command);
  llvm::LogicalResult convert(exec::GroupedContractOp op,
                              runtime::Command &command);
  llvm::LogicalResult convert(exec::GroupedContractWeightGradOp op,
                              runtime::Command &command);
  llvm::LogicalResult convert(exec::CopyOp op, runtime::Command &command);
  llvm::LogicalResult convert(exec::FillOp op, runtime::Command &command);
  llvm::LogicalResult convert(exec::CheckOp op, runtime::Command &command);
  llvm::LogicalResult convert(exec::CollectiveOp op, runtime::Command &command);
  llvm::LogicalResult convert(exec::AllToAllRowsOp op,
                              runtime::Command &command);
  llvm::LogicalResult convert(exec::SendOp op, runtime::Command &command);
  llvm::LogicalResult convert(exec::ReceiveOp op, runtime::Command &command);
  llvm::LogicalResult convert(exec::FetchOp op, runtime::Command &command);
  llvm::LogicalResult convert(exec::EvictOp op, runtime::Command &command);
  void move(mlir::Value memory, mlir::Value tier, runtime::Command &command);
  llvm::LogicalResult transfer(mlir::Value value, bool sends,
                               runtime::Command &command);
  template <typename OpTy>
  llvm::LogicalResult attention(OpTy op, runtime::AttentionCommand &command);

  mlir::func::FuncOp part;
  const mlir::SymbolTable &symbols;
  int64_t threads;
  /// The number of collectives, fetches and evictions of the part so far.
  int32_t tokens = 0;
  /// Commands that write to an argument of the entry itself.
  llvm::SmallPtrSet<mlir::Operation *, 32> updates;
};

} // namespace cleave

#endif // CLEAVE_LIB_TARGET_PROGRAM_COMMANDTABLE_H
