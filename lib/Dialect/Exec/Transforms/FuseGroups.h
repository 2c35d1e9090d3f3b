//===- FuseGroups.h - Which ops share a kernel ------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_FUSEGROUPS_H
#define CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_FUSEGROUPS_H

#include "cleave/Conversion/GraphToExec/KernelBuilder.h"

namespace cleave::exec {

/// What the fuser knows of one op: how its code reads and writes tensors.
struct FusionNode {
  mlir::Operation *op = nullptr;
  /// The op has kernel code.
  bool fusable = false;
  KernelSpace space;
  llvm::SmallVector<KernelBuilder::Read> reads;
  llvm::SmallVector<KernelBuilder::Definition> definitions;
};

/// Ops that run in one kernel, or one op that runs otherwise.
struct FusionGroup {
  /// Indices of nodes, increasing.
  llvm::SmallVector<unsigned> nodes;
  bool fusable = false;
  KernelSpace space;
};

/// Emits `op`'s code alone, to see what it reads and defines; nothing remains.
mlir::FailureOr<FusionNode> probe(mlir::Operation *op);

/// Where node `node` runs in a kernel over `space`, or nothing when it cannot.
std::optional<Level> placementIn(const FusionNode &node,
                                 const KernelSpace &space);

/// Cuts the ops of `block` (without its terminator) into groups, in an order
/// in which they can run one after the other.
llvm::SmallVector<FusionGroup>
groupOps(llvm::ArrayRef<FusionNode> nodes);

/// Builds the kernel of `group` and its launch at `builder`'s insertion point,
/// and replaces the results of its ops, which are left dead. The kernel goes
/// into `symbols`, unless an equal one is there.
llvm::LogicalResult buildKernel(llvm::ArrayRef<FusionNode> nodes,
                                const FusionGroup &group,
                                mlir::OpBuilder &builder,
                                mlir::SymbolTable &symbols,
                                llvm::StringMap<KernelOp> &known);

/// Cuts flat code into passes at the end of `kernel`'s body; `mapping` maps the
/// arguments of `flat` to those of the kernel. Gives, for each pair (input,
/// output) of arguments, whether the output may overwrite the input.
void scheduleKernel(mlir::Block &flat, KernelOp kernel,
                    mlir::IRMapping &mapping);

} // namespace cleave::exec

#endif // CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_FUSEGROUPS_H
