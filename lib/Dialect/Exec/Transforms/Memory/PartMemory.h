//===- PartMemory.h - The buffers of one part -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_MEMORY_PARTMEMORY_H
#define CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_MEMORY_PARTMEMORY_H

#include "cleave/Dialect/Exec/IR/Views.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/BitVector.h"
#include "llvm/ADT/StringMap.h"

namespace cleave::exec {

/// Memory of a part that values share.
struct PartBuffer {
  int64_t bytes = 0;
  /// The first and the last command that use it; a part's result is live until
  /// the part's end.
  int64_t first = -1, last = -1;
  /// The argument or the constant that it holds, and the results it holds.
  int64_t argument = -1;
  llvm::SmallVector<unsigned, 1> results;
  ConstantOp constant;
  /// Whether it holds a gradient; see `markGradients`.
  bool gradient = false;
  /// Whether it is in the second tier.
  bool tier = false;
  /// The op that it is scratch memory of.
  mlir::Operation *scratchOf = nullptr;
  /// The value under which it is reported.
  mlir::Value value;

  /// Whether it is live within one action only and is placed by the planner.
  bool isInternal() const {
    return argument < 0 && results.empty() && !constant;
  }
};

/// The commands of a part in an order, and the buffers that this order needs.
struct PartMemory {
  std::vector<mlir::Operation *> commands;
  std::vector<PartBuffer> buffers;
  /// The buffer of each value that lies in memory.
  llvm::DenseMap<mlir::Value, unsigned> bufferOf;
  llvm::DenseMap<mlir::Operation *, unsigned> scratchOf;
  /// The peak bytes in use: internal buffers, results, and arguments that die.
  int64_t peak = 0;
};

/// The scratch memory of commands on a number of threads. It knows the kernels
/// of a module, of which there may be many.
class ScratchMemory {
public:
  ScratchMemory(mlir::ModuleOp module, int64_t threads);

  int64_t bytesOf(mlir::Operation *command) const;

private:
  llvm::DenseMap<mlir::StringAttr, KernelOp> kernels;
  int64_t threads;
};

/// Gives the part's results the memory that its signature demands: their own,
/// or that of the argument they alias. Reports ops that have no native form.
mlir::LogicalResult settleResults(mlir::func::FuncOp part);

/// Computes the buffers for `commands` in their order. `dying` are the
/// arguments that are not read after the part.
PartMemory assignBuffers(mlir::func::FuncOp part,
                         llvm::ArrayRef<mlir::Operation *> commands,
                         const llvm::BitVector &dying,
                         const ScratchMemory &scratch);

/// Marks the buffers of `memory` that hold gradients: operands of an update
/// that have its size and that it does not replace, and values that are kept
/// for one.
void markGradients(mlir::func::FuncOp part, const llvm::BitVector &dying,
                   PartMemory &memory);

/// Puts the commands of a part into an order with a lower peak, or leaves their
/// order.
mlir::LogicalResult orderCommands(mlir::func::FuncOp part,
                                  const llvm::BitVector &dying,
                                  const ScratchMemory &scratch);

/// Moves the commands of a part into the order; views and joins come before
/// their readers.
void arrange(mlir::func::FuncOp part, llvm::ArrayRef<mlir::Operation *> order);

/// By part that an entry runs, the arguments that are not read after the part
/// in any of its runs.
mlir::FailureOr<llvm::StringMap<llvm::BitVector>>
dyingArguments(mlir::ModuleOp module);

/// Reports a command that refers to a value of the second tier and is not a
/// fetch or an eviction.
mlir::LogicalResult checkTier(mlir::func::FuncOp part);

/// Lets fetches begin before the commands before their first readers, with at
/// most `maxBytes` bytes fetched and not read yet.
void prefetch(mlir::func::FuncOp part, int64_t maxBytes);

/// The commands of a part, in order.
std::vector<mlir::Operation *> commandsOf(mlir::func::FuncOp part);

/// Commands that read the content of `value`, through views and joins.
llvm::SmallVector<mlir::Operation *> readersOf(mlir::Value value);

/// The index of the operand whose memory result `index` of `op` always takes.
std::optional<unsigned> mustShare(mlir::Operation *op, unsigned index);

/// The argument whose memory result `index` of the part takes.
std::optional<unsigned> aliasOf(mlir::func::FuncOp part, unsigned index);

} // namespace cleave::exec

#endif // CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_MEMORY_PARTMEMORY_H
