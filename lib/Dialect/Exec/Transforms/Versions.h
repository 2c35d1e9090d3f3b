//===- Versions.h - Versions of what micro-batches update -------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Where each micro-batch has its own update, each update makes a value. It
/// lies
///
/// - in the memory of the version before it, where nothing reads that again;
/// - else in that of another one, where nothing reads that;
/// - else at a place that memory planning gives it.
///
/// The last one is in the memory of the argument: what it was before the call,
/// it is behind it. Nothing is copied, and there are as many places as versions
/// that are read at a time.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_VERSIONS_H
#define CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_VERSIONS_H

#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include <map>

namespace cleave::exec {

/// The versions at one position of a pipeline, along its list of actions.
class Versions {
public:
  explicit Versions(pipe::ProgramOp source)
      : makers(pipe::versionedArguments(source)) {}

  /// Whether there are any.
  bool any() const { return !makers.empty(); }

  /// Finds which version each of `runs` reads, in their order: the invocation
  /// and the micro-batch. `value` gives what an argument is.
  void plan(llvm::ArrayRef<std::pair<pipe::InvokeOp, int64_t>> runs,
            llvm::function_ref<mlir::Value(mlir::BlockArgument)> value);

  /// What the run that comes next reads of `input`; null where that has no
  /// versions.
  mlir::Value read(mlir::Value input) const;
  /// The form of `part`, which `invoke` calls, for the run that comes next, and
  /// the memory that it gets as further operands.
  mlir::func::FuncOp formOf(pipe::InvokeOp invoke, mlir::func::FuncOp part,
                            llvm::SmallVectorImpl<mlir::Value> &operands,
                            mlir::SymbolTable &symbols);
  /// The run that came next gave these.
  void finish(pipe::InvokeOp invoke, mlir::ValueRange results);

private:
  struct Tracked {
    /// The versions there are, and the run that reads each of them last.
    llvm::SmallVector<mlir::Value> known;
    llvm::SmallVector<unsigned> lastRead;
    /// Of each place, the version that was there last; the first place is the
    /// argument's own.
    llvm::SmallVector<unsigned> places = {0};
  };
  /// Where a result lies: in the memory of this version, or at a new place.
  std::optional<unsigned> placeOf(const Tracked &tracked) const;

  llvm::MapVector<mlir::BlockArgument, mlir::OpResult> makers;
  llvm::DenseMap<mlir::Value, Tracked> versions;
  std::map<std::pair<unsigned, void *>, unsigned> reads;
  unsigned next = 0;
  /// Of each part that updates: as it was, and its forms, by where its results
  /// lie.
  struct Forms {
    mlir::OwningOpRef<mlir::func::FuncOp> plain;
    std::map<std::string, mlir::func::FuncOp> made;
  };
  llvm::DenseMap<mlir::Operation *, Forms> forms;
};

} // namespace cleave::exec

#endif // CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_VERSIONS_H
