//===- EachProgram.h - Programs with an update per micro-batch --*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_UPDATES_EACHPROGRAM_H
#define CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_UPDATES_EACHPROGRAM_H

#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"

namespace cleave::pipe {

/// The sequential mesh axis whose positions are the updates of one call.
inline constexpr llvm::StringLiteral kUpdatesAxis = "updates";

/// Rewrites a program of one micro-batch into a program of `count`
/// micro-batches, each with its own update.
class EachProgram {
public:
  EachProgram(ProgramOp program, spmd::MeshOp mesh, int64_t count)
      : program(program), mesh(mlir::FlatSymbolRefAttr::get(mesh)),
        count(count), builder(program.getContext()) {}

  llvm::LogicalResult run();

private:
  llvm::StringRef argumentText(mlir::Value value,
                               llvm::StringRef attribute) const;
  llvm::StringRef resultText(unsigned index, llvm::StringRef attribute);
  mlir::BlockArgument findArgument(llvm::StringRef name);
  ReturnOp terminator() {
    return llvm::cast<ReturnOp>(program.getBody().front().getTerminator());
  }
  llvm::LogicalResult checkShared();
  llvm::LogicalResult checkWaits(InvokeOp invoke);
  llvm::LogicalResult moveChecks(InvokeOp invoke);
  llvm::LogicalResult widenArguments();
  mlir::RankedTensorType widen(mlir::Type type, int64_t dim) const;
  llvm::LogicalResult widenPlacement(mlir::DictionaryAttr attributes,
                                     int64_t dim, mlir::Type local,
                                     mlir::NamedAttrList &result);
  void numberUpdates(InvokeOp invoke);
  llvm::LogicalResult giveKinds(InvokeOp invoke);
  InvokeOp rebuild(InvokeOp invoke, llvm::ArrayRef<mlir::Type> more);
  bool isUpdate(InvokeOp invoke);
  std::optional<unsigned> findWeight();
  void joinMeans(unsigned weight);

  ProgramOp program;
  mlir::FlatSymbolRefAttr mesh;
  int64_t count;
  /// The result that is the number of elements that the loss is the mean of.
  std::optional<unsigned> weight;
  mlir::OpBuilder builder;
};

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_UPDATES_EACHPROGRAM_H
