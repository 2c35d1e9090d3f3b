//===- FuseGroups.h - Groups of ops that share a kernel ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_FUSION_FUSEGROUPS_H
#define CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_FUSION_FUSEGROUPS_H

#include "cleave/Dialect/Exec/Kernels/KernelBuilder.h"
#include "cleave/Support/TargetTraits.h"

namespace cleave::exec {

/// How the code of one op reads and writes tensors.
struct FusionNode {
  mlir::Operation *op = nullptr;
  /// Whether the op has kernel code.
  bool fusable = false;
  KernelSpace space;
  llvm::SmallVector<KernelBuilder::Read> reads;
  llvm::SmallVector<KernelBuilder::Definition> definitions;
  /// Whether the op combines the elements of a row, or those of columns.
  bool reducesRows = false, sumsColumns = false;
  /// Whether the op has a recurrence along rows, from the first column or from
  /// the last.
  bool scansForward = false, scansBackward = false;
  /// Whether a result replaces an argument in its memory.
  bool overwrites = false;
  /// Whether the op may stop the step, which must then change nothing.
  bool stops = false;
  /// Whether the result is the operand as a wider float, which kernels make as
  /// they load the operand.
  bool widens = false;
};

/// Ops that run in one kernel, or one op that does not run in a kernel. An op
/// that widens may be in several groups.
struct FusionGroup {
  /// Indices of nodes, increasing.
  llvm::SmallVector<unsigned> nodes;
  bool fusable = false;
  KernelSpace space;
};

/// Emits `op`'s code alone, to find what it reads and defines, and erases it.
mlir::FailureOr<FusionNode> probe(mlir::Operation *op);

/// The level at which node `node` runs in a kernel over `space`, or nothing if
/// it cannot.
std::optional<Level> placementIn(const FusionNode &node,
                                 const KernelSpace &space);

/// Divides the ops of `block` (without its terminator) into groups, in an order
/// in which they can run on `target`.
llvm::SmallVector<FusionGroup> groupOps(llvm::ArrayRef<FusionNode> nodes,
                                        TargetTraits target);

/// The groups that each op is in.
using GroupsOfOps = llvm::DenseMap<mlir::Operation *,
                                   llvm::SmallVector<const FusionGroup *, 1>>;

/// The kernels of a module.
struct KnownKernels {
  /// A kernel, and the pairs of a result and an operand that may share memory.
  struct Built {
    KernelOp kernel;
    llvm::SmallVector<std::pair<unsigned, unsigned>> inplace;
  };
  /// By their content.
  llvm::StringMap<KernelOp> finished;
  /// By the flat code that they were made of; several may be one kernel.
  llvm::StringMap<Built> byCode;
};

/// Builds the kernel of `group` and its launch at `builder`'s insertion point,
/// and replaces the results that other groups or ops outside of `groupsOf`
/// read; the ops of the group are then dead. The kernel is inserted into
/// `symbols`, unless an equal one is there.
llvm::LogicalResult buildKernel(llvm::ArrayRef<FusionNode> nodes,
                                const FusionGroup &group,
                                const GroupsOfOps &groupsOf,
                                TargetTraits target, mlir::OpBuilder &builder,
                                mlir::SymbolTable &symbols,
                                KnownKernels &known);

/// Splits flat code into passes at the end of `kernel`'s body; `mapping` maps
/// the arguments of `flat` to those of the kernel. Returns, for each pair
/// (input, output) of arguments, whether the output may overwrite the input.
void scheduleKernel(mlir::Block &flat, KernelOp kernel,
                    mlir::IRMapping &mapping);

} // namespace cleave::exec

#endif // CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_FUSION_FUSEGROUPS_H
