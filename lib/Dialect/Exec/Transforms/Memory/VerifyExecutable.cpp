//===- VerifyExecutable.cpp - Checks that no decision is left -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Exec/Transforms/Passes.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace cleave::exec {
#define GEN_PASS_DEF_VERIFYEXECUTABLE
#include "cleave/Dialect/Exec/Transforms/Passes.h.inc"
} // namespace cleave::exec

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

namespace {

/// The bytes of the arena, and of offload memory.
struct Memories {
  int64_t arena = 0, tier = 0;
};

/// A buffer of a part.
struct Buffer {
  int64_t bytes;
  bool tier;
};

struct VerifyExecutable : exec::impl::VerifyExecutableBase<VerifyExecutable> {
  llvm::StringMap<SmallVector<Buffer>> parts;

  void runOnOperation() override {
    parts.clear();
    if (failed(verifyModule()))
      signalPassFailure();
  }

  static int64_t number(Operation *op, StringRef name, int64_t otherwise) {
    auto value = op->getAttrOfType<IntegerAttr>(name);
    return value ? value.getInt() : otherwise;
  }

  LogicalResult verifyModule() {
    ModuleOp module = getOperation();
    int64_t arena = number(module, kArenaBytesAttr, -1);
    if (arena < 0 || number(module, kThreadsAttr, 0) < 1)
      return module.emitError("has no planned memory: '")
             << kArenaBytesAttr << "' or '" << kThreadsAttr << "' is missing";
    for (auto part : module.getOps<func::FuncOp>())
      if (!part.isExternal() && failed(verifyPart(part)))
        return failure();
    int64_t largest = 0;
    SmallVector<ProgramOp> programs(module.getOps<ProgramOp>());
    if (programs.empty())
      return module.emitError("has no exec.program");
    for (ProgramOp program : programs) {
      Memories own{number(program, kArenaBytesAttr, arena),
                   number(program, kTierBytesAttr, 0)};
      largest = std::max(largest, own.arena);
      if (failed(verifyProgram(program, own)))
        return failure();
    }
    if (largest != arena)
      return module.emitError("has an arena of ")
             << arena << " bytes, and its largest program one of " << largest;
    return success();
  }

  //===--- Parts ----------------------------------------------------------===//

  LogicalResult verifyPart(func::FuncOp part) {
    auto memory = part->getAttrOfType<ArrayAttr>(kMemoryAttr);
    if (!memory)
      return part.emitOpError("has no buffers ('") << kMemoryAttr << "')";
    SmallVector<Buffer> &buffers = parts[part.getSymName()];
    for (Attribute own : memory) {
      auto buffer = cast<DictionaryAttr>(own);
      buffers.push_back({buffer.getAs<IntegerAttr>("bytes").getInt(),
                         buffer.getAs<StringAttr>("kind") == kOffloadedKind});
    }
    auto exists = [&](int64_t buffer) {
      return buffer >= 0 && buffer < static_cast<int64_t>(buffers.size());
    };
    for (unsigned i = 0; i < part.getNumArguments(); ++i) {
      auto buffer = part.getArgAttrOfType<IntegerAttr>(i, kBufferAttr);
      if (!buffer || !exists(buffer.getInt()))
        return graph::emitArgumentError(part, i) << " has no buffer";
    }
    for (Operation &op : part.front().without_terminator()) {
      if (!isa<CommandOpInterface, ViewOp, JoinOp, ConstantOp>(op))
        return op.emitOpError("is not a command");
      auto own = op.getAttrOfType<DenseI64ArrayAttr>(kBuffersAttr);
      if (op.getNumResults() > 0 && (!own || own.size() != op.getNumResults() ||
                                     !llvm::all_of(own.asArrayRef(), exists)))
        return op.emitOpError("has no buffer for each of its results");
      if (auto scratch = op.getAttrOfType<IntegerAttr>(kScratchAttr))
        if (!exists(scratch.getInt()))
          return op.emitOpError("has no buffer for its scratch memory");
    }
    return success();
  }

  //===--- Programs -------------------------------------------------------===//

  /// Checks that `bytes` from `offset` on are in `memories`.
  static LogicalResult verifyInside(Memories memories, bool tier,
                                    int64_t offset, int64_t bytes,
                                    function_ref<InFlightDiagnostic()> error) {
    int64_t end = tier ? memories.tier : memories.arena;
    if (offset >= 0 && bytes <= end && offset <= end - bytes)
      return success();
    return error() << " is at byte " << offset << " and has " << bytes
                   << " bytes, outside of "
                   << (tier ? "the second tier" : "the arena") << " of " << end;
  }

  LogicalResult verifyProgram(ProgramOp program, Memories own) {
    Block &body = program.getBody().front();
    for (BlockArgument argument : body.getArguments()) {
      unsigned i = argument.getArgNumber();
      if (failed(verifyPlace(
              own, argument.getType(),
              program.getArgAttrOfType<IntegerAttr>(i, kOffsetAttr),
              program.getArgAttr(i, kTierAttr) != nullptr,
              [&] { return graph::emitArgumentError(program, i); })))
        return failure();
    }
    for (auto [i, value] : llvm::enumerate(body.getTerminator()->getOperands()))
      if (failed(verifyPlace(
              own, value.getType(),
              program.getResultAttrOfType<IntegerAttr>(i, kOffsetAttr),
              program.getResultAttr(i, kTierAttr) != nullptr,
              [&, i = i] { return graph::emitResultError(program, i); })))
        return failure();
    for (Operation &op : body.without_terminator()) {
      if (auto run = dyn_cast<RunOp>(op)) {
        if (failed(verifyRun(run, own)))
          return failure();
      } else if (auto constant = dyn_cast<ConstantOp>(op)) {
        if (failed(verifyPlace(
                own, constant.getType(),
                constant->getAttrOfType<IntegerAttr>(kOffsetAttr),
                /*tier=*/false, [&] { return constant.emitOpError(); })))
          return failure();
      } else if (!isa<ViewOp, JoinOp>(op)) {
        return op.emitOpError("is not an action");
      }
    }
    return success();
  }

  /// The offset of a tensor that is a slice of another has the slice's in it.
  static LogicalResult verifyPlace(Memories own, Type type, IntegerAttr offset,
                                   bool tier,
                                   function_ref<InFlightDiagnostic()> error) {
    if (!offset)
      return error() << " has no offset";
    auto tensor = cast<RankedTensorType>(type);
    int64_t skip =
        getLayout(tensor).offset * elementBytes(tensor.getElementType());
    return verifyInside(own, tier, offset.getInt(), extentBytes(tensor) - skip,
                        error);
  }

  LogicalResult verifyRun(RunOp run, Memories own) {
    auto part = parts.find(run.getCallee());
    std::optional<ArrayRef<int64_t>> offsets = run.getOffsets();
    if (part == parts.end() || !offsets ||
        offsets->size() != part->second.size())
      return run.emitOpError("needs an offset for each buffer of '@")
             << run.getCallee() << "'";
    for (auto [i, offset] : llvm::enumerate(*offsets)) {
      const Buffer &buffer = part->second[i];
      if (failed(
              verifyInside(own, buffer.tier, offset, buffer.bytes, [&, i = i] {
                return run.emitOpError("buffer ") << i;
              })))
        return failure();
    }
    return success();
  }
};
} // namespace
