//===- CheckMemory.cpp - Checks a memory plan by running it ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Testing/CheckMemory.h"
#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Graph/IR/TensorType.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include <functional>
#include <map>
#include <memory>

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;
using graph::tensorTypeOf;

namespace {

/// A mark identifies the value, of all that a run makes, and the element of it.
using Mark = uint64_t;
/// The expected marks of a buffer, by element; 0 is nothing.
using Content = std::shared_ptr<std::vector<Mark>>;

/// Calls `visit` with the offset, in elements, of each element of `type`.
void forEachElement(RankedTensorType type,
                    llvm::function_ref<void(int64_t)> visit) {
  Strided layout = getLayout(type);
  std::function<void(unsigned, int64_t)> walk = [&](unsigned dim, int64_t at) {
    if (dim == static_cast<unsigned>(type.getRank()))
      return visit(at);
    for (int64_t i = 0; i < type.getDimSize(dim); ++i)
      walk(dim + 1, at + i * layout.strides[dim]);
  };
  walk(0, layout.offset);
}

class Checker {
public:
  Checker(ModuleOp module, int64_t bytes)
      : module(module), symbols(module), arena(bytes, 0) {}

  /// The programs of one pipeline position.
  LogicalResult run(ArrayRef<ProgramOp> programs) {
    for (ProgramOp program : programs)
      if (failed(runProgram(program)))
        return failure();
    return success();
  }

private:
  using Values = DenseMap<Value, Content>;

  Content fresh(RankedTensorType type) {
    auto content = std::make_shared<std::vector<Mark>>(
        extentBytes(type) / elementBytes(type.getElementType()), 0);
    ++next;
    forEachElement(type,
                   [&](int64_t at) { (*content)[at] = (next << 32) + at; });
    return content;
  }

  /// Writes the marks of `content` to the elements of `type`, in a buffer that
  /// begins at byte `base`.
  LogicalResult store(Operation *op, const Content &content,
                      RankedTensorType type, int64_t base) {
    bool inside = true;
    int64_t size = elementBytes(type.getElementType());
    forEachElement(type, [&](int64_t at) {
      int64_t byte = base + at * size;
      if (byte < 0 || byte + size > static_cast<int64_t>(arena.size())) {
        inside = false;
        return;
      }
      for (int64_t i = 0; i < size; ++i)
        arena[byte + i] = (*content)[at];
    });
    if (!inside)
      return op->emitError("memory check: writes outside of the arena");
    return success();
  }

  LogicalResult load(Operation *op, const Twine &what, const Content &content,
                     RankedTensorType type, int64_t base) {
    bool same = true;
    int64_t size = elementBytes(type.getElementType());
    forEachElement(type, [&](int64_t at) {
      int64_t byte = base + at * size;
      if (byte < 0 || byte + size > static_cast<int64_t>(arena.size()) ||
          at >= static_cast<int64_t>(content->size())) {
        same = false;
        return;
      }
      for (int64_t i = 0; i < size; ++i)
        same &= arena[byte + i] == (*content)[at];
    });
    if (!same)
      return op->emitError("memory check: ")
             << what << " is not at the offset from which it is read, byte "
             << base;
    return success();
  }

  /// The marks of views and joins: those of their buffer.
  Content through(Operation *op, Values &values) {
    if (isa<ViewOp>(op))
      return values[op->getOperand(0)];
    auto type = tensorTypeOf(op->getResult(0));
    auto content = std::make_shared<std::vector<Mark>>(
        extentBytes(type) / elementBytes(type.getElementType()), 0);
    for (Value input : op->getOperands())
      forEachElement(tensorTypeOf(input), [&](int64_t at) {
        (*content)[at] = (*values[input])[at];
      });
    return content;
  }

  //===--- Parts ----------------------------------------------------------===//

  static unsigned bufferOf(func::FuncOp part, Value value) {
    if (auto argument = dyn_cast<BlockArgument>(value))
      return part
          .getArgAttrOfType<IntegerAttr>(argument.getArgNumber(), kBufferAttr)
          .getInt();
    auto result = cast<OpResult>(value);
    return result.getOwner()->getAttrOfType<DenseI64ArrayAttr>(
        kBuffersAttr)[result.getResultNumber()];
  }

  /// True if the plan may place the result in the operand's memory.
  static bool mayShare(Operation *op, unsigned result, unsigned operand) {
    return llvm::any_of(
        cast<CommandOpInterface>(op).getShares(), [&](Share share) {
          return share.result == result && share.operand == operand;
        });
  }

  LogicalResult runCommand(func::FuncOp part, Operation *op,
                           ArrayRef<int64_t> row, Values &values) {
    for (OpOperand &operand : op->getOpOperands())
      if (failed(load(op, "operand " + Twine(operand.getOperandNumber()),
                      values[operand.get()], tensorTypeOf(operand.get()),
                      row[bufferOf(part, operand.get())])))
        return failure();
    // A command must not write memory that it reads.
    for (OpResult result : op->getResults())
      for (OpOperand &operand : op->getOpOperands())
        if (!mayShare(op, result.getResultNumber(),
                      operand.getOperandNumber()) &&
            touchSame(part, result, operand.get(), row))
          return op->emitError("memory check: result ")
                 << result.getResultNumber() << " overwrites operand "
                 << operand.getOperandNumber() << " while it is read";
    if (auto scratch = op->getAttrOfType<IntegerAttr>(kScratchAttr)) {
      auto memory = cast<DictionaryAttr>(
          part->getAttrOfType<ArrayAttr>(kMemoryAttr)[scratch.getInt()]);
      int64_t bytes = cast<IntegerAttr>(memory.get("bytes")).getInt(),
              at = row[scratch.getInt()];
      for (int64_t i = 0; i < bytes; ++i)
        arena[at + i] = 0;
    }
    for (Value result : op->getResults()) {
      values[result] = fresh(tensorTypeOf(result));
      if (failed(store(op, values[result], tensorTypeOf(result),
                       row[bufferOf(part, result)])))
        return failure();
    }
    // A result must not have been overwritten by another.
    for (Value result : op->getResults())
      if (failed(load(op, "a result", values[result], tensorTypeOf(result),
                      row[bufferOf(part, result)])))
        return failure();
    return success();
  }

  static bool touchSame(func::FuncOp part, Value a, Value b,
                        ArrayRef<int64_t> row) {
    DenseSet<int64_t> bytes;
    auto collect = [&](Value value, llvm::function_ref<void(int64_t)> visit) {
      int64_t base = row[bufferOf(part, value)],
              size = elementBytes(tensorTypeOf(value).getElementType());
      forEachElement(tensorTypeOf(value),
                     [&](int64_t at) { visit(base + at * size); });
    };
    int64_t aLow = INT64_MAX, aHigh = -1;
    collect(a, [&](int64_t byte) {
      aLow = std::min(aLow, byte);
      aHigh = std::max(aHigh, byte);
    });
    bool may = false;
    collect(b,
            [&](int64_t byte) { may |= byte + 8 > aLow && byte < aHigh + 8; });
    if (!may)
      return false;
    collect(a, [&](int64_t byte) { bytes.insert(byte); });
    bool same = false;
    collect(b, [&](int64_t byte) { same |= bytes.contains(byte); });
    return same;
  }

  LogicalResult runAction(RunOp run, Values &values) {
    auto part = symbols.lookup<func::FuncOp>(run.getCallee());
    ArrayRef<int64_t> row = *run.getOffsets();
    Values inner;
    for (auto [argument, value] :
         llvm::zip_equal(part.getArguments(), run.getInputs())) {
      // A slice of a whole tensor begins at the slice's offset.
      int64_t skip = getLayout(tensorTypeOf(value)).offset;
      const Content &content = values[value];
      inner[argument] = std::make_shared<std::vector<Mark>>(
          content->begin() + std::min<int64_t>(skip, content->size()),
          content->end());
    }
    for (auto [i, value] : llvm::enumerate(run.getInputs()))
      if (part.getArgAttr(i, kUnlessAttr) &&
          failed(load(run, "the flag of '" + run.getCallee() + "'",
                      values[value], tensorTypeOf(value),
                      row[bufferOf(part, part.getArgument(i))])))
        return failure();
    for (Operation &op : part.front()) {
      if (auto check = dyn_cast<CheckOp>(op);
          check && !check.getDeferred() && failed(checkUnchanged(check)))
        return failure();
      if (isa<ViewOp, JoinOp>(op)) {
        inner[op.getResult(0)] = through(&op, inner);
      } else if (auto constant = dyn_cast<ConstantOp>(op)) {
        inner[constant.getOutput()] = constants[constant->getAttr(kOffsetAttr)];
      } else if (isa<CommandOpInterface>(op)) {
        if (failed(runCommand(part, &op, row, inner)))
          return failure();
      }
    }
    for (auto [result, value] : llvm::zip_equal(
             run.getResults(), part.front().getTerminator()->getOperands())) {
      // It may be a slice of a whole tensor, after the slices of other
      // micro-batches.
      int64_t skip = getLayout(tensorTypeOf(result)).offset;
      auto content = std::make_shared<std::vector<Mark>>(skip, 0);
      llvm::append_range(*content, *inner[value]);
      values[result] = content;
    }
    return success();
  }

  //===--- Entries --------------------------------------------------------===//

  /// Records the values that a stopped step must not change: those that the
  /// entry updates, unless they are restored or belong to the previous step.
  void noteKept(ProgramOp program, const Values &values) {
    kept.clear();
    auto fusion =
        program->getAttrOfType<StringAttr>(pipe::kOptimizerFusionAttr);
    bool takesBack =
        llvm::any_of(program.getBody().getOps<RunOp>(), [&](RunOp run) {
          return symbols.lookup(run.getCallee())->hasAttr(kWhenStoppedAttr);
        });
    if (takesBack || (fusion && fusion.getValue() == "forward"))
      return;
    for (BlockArgument argument : program.getBody().getArguments()) {
      auto role = program.getArgAttrOfType<StringAttr>(argument.getArgNumber(),
                                                       graph::kRoleAttr);
      if (role && (role == "parameter" || role == "buffer" || role == "state"))
        kept.push_back({argument, values.lookup(argument),
                        program.getArgAttrOfType<IntegerAttr>(
                            argument.getArgNumber(), kOffsetAttr)});
    }
  }

  /// If `check` stops the step, these values are unchanged.
  LogicalResult checkUnchanged(CheckOp check) {
    for (const Kept &own : kept)
      if (failed(load(check, "a value that a stopped step must not change",
                      own.content, tensorTypeOf(own.argument),
                      own.offset.getInt())))
        return failure();
    return success();
  }

  LogicalResult runProgram(ProgramOp program) {
    std::fill(arena.begin(), arena.end(), 0);
    constants.clear();
    Values values;
    auto place = [&](Value value, Attribute offset) {
      values[value] = fresh(tensorTypeOf(value));
      return store(program, values[value], tensorTypeOf(value),
                   cast<IntegerAttr>(offset).getInt());
    };
    for (BlockArgument argument : program.getBody().getArguments())
      if (failed(place(argument, program.getArgAttr(argument.getArgNumber(),
                                                    kOffsetAttr))))
        return failure();
    noteKept(program, values);
    auto placeConstant = [&](ConstantOp constant) {
      Attribute offset = constant->getAttr(kOffsetAttr);
      Content &content = constants[offset];
      if (!content) {
        content = fresh(constant.getType());
        if (failed(store(constant, content, constant.getType(),
                         cast<IntegerAttr>(offset).getInt())))
          return WalkResult::interrupt();
      }
      return WalkResult::advance();
    };
    SmallVector<Operation *> holders = {program};
    for (auto run : program.getBody().getOps<RunOp>())
      holders.push_back(symbols.lookup(run.getCallee()));
    for (Operation *holder : holders)
      if (holder->walk(placeConstant).wasInterrupted())
        return failure();
    for (Operation &op : program.getBody().front()) {
      if (auto run = dyn_cast<RunOp>(op)) {
        if (failed(runAction(run, values)))
          return failure();
      } else if (isa<ViewOp, JoinOp>(op)) {
        values[op.getResult(0)] = through(&op, values);
      } else if (auto constant = dyn_cast<ConstantOp>(op)) {
        values[constant.getOutput()] =
            constants[constant->getAttr(kOffsetAttr)];
      }
    }
    return checkEnd(program, values);
  }

  LogicalResult checkEnd(ProgramOp program, Values &values) {
    llvm::StringMap<Value> updates;
    Operation *terminator = program.getBody().front().getTerminator();
    for (auto [i, value] : llvm::enumerate(terminator->getOperands())) {
      int64_t skip = getLayout(tensorTypeOf(value)).offset *
                     elementBytes(tensorTypeOf(value).getElementType());
      int64_t at =
          cast<IntegerAttr>(program.getResultAttr(i, kOffsetAttr)).getInt();
      if (failed(load(program, "result " + Twine(i), values[value],
                      tensorTypeOf(value), at - skip)))
        return failure();
      if (auto name =
              program.getResultAttrOfType<StringAttr>(i, graph::kUpdatesAttr))
        updates[name] = value;
    }
    for (BlockArgument argument : program.getBody().getArguments()) {
      unsigned i = argument.getArgNumber();
      auto name = program.getArgAttrOfType<StringAttr>(i, graph::kNameAttr);
      Value now = argument;
      if (auto it = updates.find(name.getValue()); it != updates.end())
        now = it->second;
      if (failed(load(
              program, "argument '" + name.getValue() + "' at the end",
              values[now], tensorTypeOf(argument),
              cast<IntegerAttr>(program.getArgAttr(i, kOffsetAttr)).getInt())))
        return failure();
    }
    return success();
  }

  /// An argument of the entry, its initial marks, and its offset.
  struct Kept {
    BlockArgument argument;
    Content content;
    IntegerAttr offset;
  };

  ModuleOp module;
  SymbolTable symbols;
  std::vector<Mark> arena;
  std::vector<Kept> kept;
  DenseMap<Attribute, Content> constants;
  Mark next = 0;
};

} // namespace

LogicalResult cleave::checkMemory(ModuleOp module) {
  if (!module->getAttrOfType<IntegerAttr>(kArenaBytesAttr))
    return module.emitError("has no planned memory; run --exec-plan-memory");
  std::map<int64_t, SmallVector<ProgramOp>> positions;
  for (auto program : module.getOps<ProgramOp>())
    positions[program.getPipelinePosition()].push_back(program);
  for (auto &[position, programs] : positions) {
    auto bytes = programs.front()->getAttrOfType<IntegerAttr>(kArenaBytesAttr);
    if (!bytes)
      bytes = module->getAttrOfType<IntegerAttr>(kArenaBytesAttr);
    if (failed(Checker(module, bytes.getInt()).run(programs)))
      return failure();
  }
  return success();
}
