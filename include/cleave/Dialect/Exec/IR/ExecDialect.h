//===- ExecDialect.h - The exec dialect -------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_EXEC_IR_EXECDIALECT_H
#define CLEAVE_DIALECT_EXEC_IR_EXECDIALECT_H

#include "cleave/Dialect/Graph/IR/Attributes/AttributeTable.h"
#include "cleave/Dialect/Graph/IR/TensorBytes.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include <optional>
#include <string>

#include "cleave/Dialect/Exec/IR/ExecDialect.h.inc"
#include "cleave/Dialect/Exec/IR/ExecEnums.h.inc"

#define GET_ATTRDEF_CLASSES
#include "cleave/Dialect/Exec/IR/ExecAttrs.h.inc"

namespace cleave::exec {

using cleave::CollectiveKind;
using cleave::ReductionKind;

/// On a part's argument: its content is not read after the part and may be
/// overwritten.
inline constexpr llvm::StringLiteral kDiesAttr = "exec.dies";
/// On a part's result: the index of the argument whose memory it takes.
inline constexpr llvm::StringLiteral kAliasAttr = "exec.alias";

/// On a part's result: it replaces an argument of the entry.
inline constexpr llvm::StringLiteral kUpdateAttr = "exec.update";
/// On a part's result: it is kept for the update in the next step.
inline constexpr llvm::StringLiteral kGradientAttr = "exec.gradient";
/// On an entry's input of indices: the bound of its values, and the one other
/// value that is allowed.
inline constexpr llvm::StringLiteral kUpperBoundAttr = "exec.upper_bound";
inline constexpr llvm::StringLiteral kIgnoreIndexAttr = "exec.ignore_index";

/// On a part's argument: a flag; if it is set, runs of the part are skipped,
/// and its results keep the previous content of their memory.
inline constexpr llvm::StringLiteral kUnlessAttr = "exec.unless";
/// On a part's argument or result: a value that an update overwrites, saved
/// until the update has been validated.
inline constexpr llvm::StringLiteral kKeptAttr = "exec.kept";
/// On a program: the bytes of all these.
inline constexpr llvm::StringLiteral kKeptBytesAttr = "exec.kept_bytes";
/// On a part: it runs only if an earlier check has stopped the step; then no
/// other later part runs.
inline constexpr llvm::StringLiteral kWhenStoppedAttr = "exec.when_stopped";

/// On an addition: its addends are first summed separately, in an order that
/// does not depend on where the sum is added.
inline constexpr llvm::StringLiteral kApartAttr = "exec.apart";

/// On a check that is deferred.
inline constexpr llvm::StringLiteral kDeferredAttr = "exec.deferred";

/// On a part: the action of the schedule that runs it, as a dictionary of
/// `name` (as in the schedule's text, with `*` for the micro-batch), `kind`
/// (such as "forward"), `stage` and, for forward and backward, `flops`. A part
/// without it is not an action.
inline constexpr llvm::StringLiteral kActionAttr = "exec.action";

/// On an argument or result of an entry or of a part: it is in the second tier.
inline constexpr llvm::StringLiteral kTierAttr = "exec.tier";
/// On a module and on programs: the bytes of the second tier.
inline constexpr llvm::StringLiteral kTierBytesAttr = "exec.tier_bytes";
/// In `exec.memory`, the kind of a buffer of the second tier.
inline constexpr llvm::StringLiteral kOffloadedKind = "offloaded";

/// Results of memory planning; see the pass. On a module, the maximum over its
/// positions; on each program, its own.
inline constexpr llvm::StringLiteral kArenaBytesAttr = "exec.arena_bytes";
inline constexpr llvm::StringLiteral kThreadsAttr = "exec.threads";
inline constexpr llvm::StringLiteral kOffsetAttr = "exec.offset";
inline constexpr llvm::StringLiteral kMemoryAttr = "exec.memory";
inline constexpr llvm::StringLiteral kBufferAttr = "exec.buffer";
inline constexpr llvm::StringLiteral kBuffersAttr = "exec.buffers";
inline constexpr llvm::StringLiteral kScratchAttr = "exec.scratch";
inline constexpr llvm::StringLiteral kPeakAttr = "exec.peak";
inline constexpr llvm::StringLiteral kLowerBoundAttr = "exec.lower_bound";
inline constexpr llvm::StringLiteral kLiveAttr = "exec.live";
/// On a program: the peak bytes of gradients, including those kept for the next
/// step.
inline constexpr llvm::StringLiteral kGradientPeakAttr = "exec.gradient_peak";

/// The attributes of this dialect.
llvm::ArrayRef<graph::AttributeRow> attributeTable();

/// Strides and offset, in elements, of a tensor in its buffer.
struct Strided {
  llvm::SmallVector<int64_t> strides;
  int64_t offset = 0;
};

/// The layout of `type`: its encoding, or dense row-major order.
Strided getLayout(mlir::RankedTensorType type);

/// `type` with the given layout; without an encoding if the layout is dense.
mlir::RankedTensorType withLayout(mlir::RankedTensorType type,
                                  const Strided &layout);

/// True if `type` is dense in row-major order at offset 0.
bool isDense(mlir::RankedTensorType type);

/// True for `[batch, head, position, channel]` of f32, bf16 or f16 with
/// contiguous channels and rows that do not overlap: attention reads and writes
/// this layout in place.
bool isHeadView(mlir::RankedTensorType type);

/// `type` with a dense layout.
mlir::RankedTensorType denseType(mlir::RankedTensorType type);

/// The bytes from the buffer's first element to the last one of `type`.
int64_t extentBytes(mlir::RankedTensorType type);

/// True for a matrix, or a batch of them, with contiguous rows or columns,
/// which a product can read; with `rowsOnly`, with contiguous rows, which a
/// product can write.
bool isMatrix(mlir::RankedTensorType type, bool rowsOnly = false);
/// True for a matrix with contiguous rows, or columns, that begin at multiples
/// of 16 elements, which a product of 8 bits can read.
bool isLines8(mlir::RankedTensorType type, bool columns);

/// `to` addresses elements of `from`, both in one buffer. Returns the layout
/// with which `to` addresses the same elements after `from` moves to the layout
/// `moved`; nothing if strides cannot express it, or if `to` addresses anything
/// outside `from`.
std::optional<Strided> rebase(mlir::RankedTensorType from,
                              mlir::RankedTensorType to, const Strided &moved);

/// A range of indices in each dimension.
struct Box {
  llvm::SmallVector<int64_t> start, size;
  bool overlaps(const Box &other) const;
};

/// The box of `whole` that `part` addresses, if it addresses a box, each
/// element once; both are in one buffer.
std::optional<Box> boxWithin(mlir::RankedTensorType whole,
                             mlir::RankedTensorType part);

} // namespace cleave::exec

#endif // CLEAVE_DIALECT_EXEC_IR_EXECDIALECT_H
