//===- PartMemory.h - The buffers of one part -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_PARTMEMORY_H
#define CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_PARTMEMORY_H

#include "cleave/Dialect/Exec/Transforms/Memory.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/BitVector.h"

namespace cleave::exec {

/// Memory of a part that values share.
struct PartBuffer {
  int64_t bytes = 0;
  /// The first command that touches it, and the last; a part's result lives on
  /// until the part's end.
  int64_t first = -1, last = -1;
  /// The argument it is, the results it holds, the constant it is.
  int64_t argument = -1;
  llvm::SmallVector<unsigned, 1> results;
  ConstantOp constant;
  /// A gradient lies in it; see `markGradients`.
  bool gradient = false;
  /// The op that it is scratch memory of.
  mlir::Operation *scratchOf = nullptr;
  /// The value it is reported as.
  mlir::Value value;

  /// It lives within one action and is the planner's to place.
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
  /// Most bytes in use: internal buffers, results, and arguments that die.
  int64_t peak = 0;
};

/// Makes the part's results lie where its signature says: in memory of their
/// own, or in that of the argument they alias. Reports what has no native form.
mlir::LogicalResult settleResults(mlir::func::FuncOp part);

/// Buffers for `commands` in their order. `dying` are the arguments that
/// nothing reads after the part.
PartMemory assignBuffers(mlir::func::FuncOp part,
                         llvm::ArrayRef<mlir::Operation *> commands,
                         const llvm::BitVector &dying, int64_t threads);

/// Marks the buffers of `memory` that hold gradients: of what an update reads
/// of its own size, that which it does not replace, and what is kept for one.
void markGradients(mlir::func::FuncOp part, const llvm::BitVector &dying,
                   PartMemory &memory);

/// Puts the commands of a part into an order with a lower peak, or leaves them.
mlir::LogicalResult orderCommands(mlir::func::FuncOp part,
                                  const llvm::BitVector &dying,
                                  int64_t threads);

/// The commands of a part, in order.
std::vector<mlir::Operation *> commandsOf(mlir::func::FuncOp part);

/// Commands that read (through views and joins) what `value` holds.
llvm::SmallVector<mlir::Operation *> readersOf(mlir::Value value);

/// The index of the operand whose memory result `index` of `op` always takes.
std::optional<unsigned> mustShare(mlir::Operation *op, unsigned index);

/// The argument that result `index` of the part takes the memory of.
std::optional<unsigned> aliasOf(mlir::func::FuncOp part, unsigned index);

} // namespace cleave::exec

#endif // CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_PARTMEMORY_H
