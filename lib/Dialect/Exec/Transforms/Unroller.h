//===- Unroller.h - The list of one position's actions ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_UNROLLER_H
#define CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_UNROLLER_H

#include "PartForms.h"
#include "Transfers.h"

namespace cleave::exec {

/// Whether a part changes what its program is given.
bool updates(pipe::InvokeOp invoke);

/// Parts of a program, by invocation.
using Parts = llvm::DenseMap<mlir::Operation *, PartForms>;

/// Unrolls what one position of the pipeline runs.
class Unroller {
public:
  Unroller(pipe::ProgramOp source, int64_t position, const pipe::StageMap &map,
           Parts &parts, Transfers &transfers, mlir::SymbolTable &symbols)
      : source(source), position(position), map(map), parts(parts),
        transfers(transfers), symbols(symbols), count(source.getMicroBatches()),
        builder(source) {}

  /// Unrolls `actions`; before what updates anything, or in the end where
  /// updates come first, the position agrees with the others `stops` times
  /// whether a step goes on.
  mlir::LogicalResult run(llvm::ArrayRef<pipe::Action> actions, int64_t stops);

private:
  bool holds(mlir::BlockArgument argument);
  ProgramOp createProgram();
  mlir::LogicalResult createReturn();
  void transfer(const pipe::Action &action);
  void finishSends();
  void stop();
  mlir::func::FuncOp createStop(llvm::StringRef name);
  void runPart(pipe::InvokeOp invoke, int64_t microBatch);
  mlir::Value valueOf(mlir::Value value, int64_t dim, int64_t microBatch);
  mlir::Value constantOf(mlir::Attribute value, mlir::Type type,
                         mlir::Location loc);

  mlir::DictionaryAttr attributesOr(mlir::DictionaryAttr known) {
    return known ? known : builder.getDictionaryAttr({});
  }
  /// Whether `invoke` is of this position.
  bool isHere(pipe::InvokeOp invoke) const {
    return map.device(invoke.getStage()) == position;
  }

  pipe::ProgramOp source;
  int64_t position;
  const pipe::StageMap &map;
  Parts &parts;
  Transfers &transfers;
  mlir::SymbolTable &symbols;
  int64_t count;
  mlir::OpBuilder builder;
  ProgramOp program;
  /// What each value of the source is: one value, or one for each micro-batch.
  llvm::DenseMap<mlir::Value, llvm::SmallVector<mlir::Value>> values;
  /// Of parts whose results accumulate: how often each has run, and the sums
  /// there are, each of one result for each of `PartForms::sums`.
  llvm::DenseMap<mlir::Operation *, int64_t> done;
  llvm::DenseMap<mlir::Operation *,
                 llvm::SmallVector<llvm::SmallVector<mlir::Value>>>
      open;
  llvm::DenseMap<mlir::Attribute, mlir::Value> constants;
  /// A send that nothing has waited for yet.
  struct Sent {
    pipe::Action action;
    llvm::SmallVector<mlir::OpResult> results;
    llvm::SmallVector<mlir::Value> values;
  };
  std::optional<Sent> sent;
  /// The latest run of a part.
  mlir::Operation *latest = nullptr;
};

} // namespace cleave::exec

#endif // CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_UNROLLER_H
