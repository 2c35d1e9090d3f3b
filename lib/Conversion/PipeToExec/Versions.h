//===- Versions.h - Versions of updated values ------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// If each micro-batch has its own update, each update makes a new version. Its
/// memory is
///
/// - that of the previous version, if that is not read again;
/// - else that of another version that is not read again;
/// - else new memory, assigned by memory planning.
///
/// The last version takes the memory of the argument, as without versions.
/// Nothing is copied, and there are as many buffers as versions that are live
/// at a time.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_CONVERSION_PIPETOEXEC_VERSIONS_H
#define CLEAVE_LIB_CONVERSION_PIPETOEXEC_VERSIONS_H

#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include <map>

namespace cleave::exec {

/// The versions at one pipeline position, along its list of actions.
class Versions {
public:
  explicit Versions(pipe::ProgramOp source)
      : makers(pipe::versionedArguments(source)) {}

  /// Whether there are any versions.
  bool any() const { return !makers.empty(); }

  /// Finds the version that each of `runs` (invocation and micro-batch) reads,
  /// in their order. `value` gives the value of an argument.
  void plan(llvm::ArrayRef<std::pair<pipe::InvokeOp, int64_t>> runs,
            llvm::function_ref<mlir::Value(mlir::BlockArgument)> value);

  /// The value that the next run reads for `input`; null if that has no
  /// versions.
  mlir::Value read(mlir::Value input) const;
  /// The form of `part`, which `invoke` calls, for the next run, and the memory
  /// that it gets as further operands.
  mlir::func::FuncOp formOf(pipe::InvokeOp invoke, mlir::func::FuncOp part,
                            llvm::SmallVectorImpl<mlir::Value> &operands,
                            mlir::SymbolTable &symbols);
  /// Records the results of the next run.
  void finish(pipe::InvokeOp invoke, mlir::ValueRange results);

private:
  struct Tracked {
    /// The versions, and the last run that reads each.
    llvm::SmallVector<mlir::Value> known;
    llvm::SmallVector<unsigned> lastRead;
    /// For each buffer, the version that it held last; the first buffer is the
    /// argument's own.
    llvm::SmallVector<unsigned> places = {0};
  };
  /// Where a result is stored: in the memory of this version, or in new memory.
  std::optional<unsigned> placeOf(const Tracked &tracked) const;

  llvm::MapVector<mlir::BlockArgument, mlir::OpResult> makers;
  llvm::DenseMap<mlir::Value, Tracked> versions;
  std::map<std::pair<unsigned, void *>, unsigned> reads;
  unsigned next = 0;
  /// For each part that updates: its original, and its forms, by the memory of
  /// its results.
  struct Forms {
    mlir::OwningOpRef<mlir::func::FuncOp> plain;
    std::map<std::string, mlir::func::FuncOp> made;
  };
  llvm::DenseMap<mlir::Operation *, Forms> forms;
};

} // namespace cleave::exec

#endif // CLEAVE_LIB_CONVERSION_PIPETOEXEC_VERSIONS_H
