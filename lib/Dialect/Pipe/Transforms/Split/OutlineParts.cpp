//===- OutlineParts.cpp - Parts as functions, and their program -----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Parts.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "mlir/IR/IRMapping.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

namespace {
/// Outlines the parts of one entry.
class Outliner {
public:
  Outliner(func::FuncOp entry, const Flow &flow, MutableArrayRef<Part> parts,
           bool split)
      : entry(entry), body(entry.getBody().front()), flow(flow), parts(parts),
        builder(entry), inside(entry.getContext()), split(split) {}

  ProgramOp
  makeProgram(ArrayRef<std::pair<unsigned, std::pair<Slot, Export>>> copies);
  void outline(Part &part);
  void finish(ArrayRef<EntryResult> results,
              ArrayRef<std::pair<unsigned, std::pair<Slot, Export>>> copies);

private:
  Value exported(const Slot &slot, const Export &source);
  void cloneOp(Operation *op, OpBuilder &builder, IRMapping &mapping);

  func::FuncOp entry;
  Block &body;
  const Flow &flow;
  MutableArrayRef<Part> parts;
  OpBuilder builder, inside;
  bool split;
  ProgramOp program;
};
} // namespace

ProgramOp Outliner::makeProgram(
    ArrayRef<std::pair<unsigned, std::pair<Slot, Export>>> copies) {
  SmallVector<Type> argumentTypes = flow.wholeArgumentTypes();
  SmallVector<Type> resultTypes = flow.wholeResultTypes();
  SmallVector<DictionaryAttr> arguments, results;
  for (unsigned i = 0; i < entry.getNumArguments(); ++i)
    arguments.push_back(flow.entryAttributes(entry.getArgAttrDict(i)));
  for (unsigned i = 0; i < entry.getNumResults(); ++i)
    results.push_back(flow.entryAttributes(entry.getResultAttrDict(i)));
  for (const auto &[i, source] : copies) {
    resultTypes.push_back(resultTypes[i]);
    NamedAttrList attributes(results[i]);
    attributes.set(kCopyAttr, builder.getI64IntegerAttr(source.first.stage));
    results.push_back(attributes.getDictionary(builder.getContext()));
  }
  program = ProgramOp::create(
      builder, entry.getLoc(), entry.getSymName(),
      builder.getFunctionType(argumentTypes, resultTypes), flow.microBatches());
  int64_t stages = 0;
  for (const Part &part : parts)
    stages = std::max(stages, part.slot.stage + 1);
  if (stages > 1)
    program->setAttr(kStagesAttr, builder.getI64IntegerAttr(stages));
  if (StringRef fusion = flow.optimizerFusion(); !fusion.empty())
    program->setAttr(kOptimizerFusionAttr, builder.getStringAttr(fusion));
  if (flow.hasEarlyUpdates())
    program->setAttr(kEarlyUpdateAttr, builder.getUnitAttr());
  program.setAllArgAttrs(arguments);
  program.setAllResultAttrs(results);
  inside.setInsertionPointToEnd(&program.getBody().front());
  return program;
}

/// The value in the program of an export of the part in `slot`.
Value Outliner::exported(const Slot &slot, const Export &source) {
  Part *part =
      llvm::find_if(parts, [&](const Part &own) { return own.slot == slot; });
  auto it = llvm::find(part->exports, source);
  return part->invoke.getResult(it - part->exports.begin());
}

void Outliner::outline(Part &part) {
  bool once = runsOnce(part.slot.id);
  // Imports are in the order of the entry, so that the text is stable.
  llvm::sort(part.imports, [&](const Import &a, const Import &b) {
    return flow.order(a.value) < flow.order(b.value);
  });
  llvm::sort(part.exports, [&](const Export &a, const Export &b) {
    return std::tuple(flow.order(a.value), a.kind, a.copy) <
           std::tuple(flow.order(b.value), b.kind, b.copy);
  });

  // 1. Operands: arguments of the entry, then imports.
  SmallVector<Value> operands, sources;
  SmallVector<int64_t> dims;
  SmallVector<BlockArgument> arguments;
  for (Value value : part.needed)
    if (auto argument = dyn_cast<BlockArgument>(value))
      arguments.push_back(argument);
  llvm::sort(arguments, [](BlockArgument a, BlockArgument b) {
    return a.getArgNumber() < b.getArgNumber();
  });
  for (BlockArgument argument : arguments) {
    sources.push_back(argument);
    operands.push_back(program.getBody().getArgument(argument.getArgNumber()));
    Layout layout = flow.layout(argument);
    dims.push_back(layout.kind == Layout::Split && !once ? layout.dim : -1);
  }
  for (const Import &import : part.imports) {
    sources.push_back(import.value);
    operands.push_back(exported(import.from, import.source));
    dims.push_back(-1);
  }

  // 2. The function.
  SmallVector<Type> inputTypes, outputTypes;
  for (Value source : sources)
    inputTypes.push_back(source.getType());
  for (const Export &source : part.exports)
    outputTypes.push_back(source.value.getType());
  StringRef letter = partName(part.slot.id, split);
  std::string stage =
      part.slot.stage ? std::to_string(part.slot.stage) : std::string();
  auto function =
      func::FuncOp::create(builder, entry.getLoc(),
                           (entry.getSymName() + "." + stage + letter).str(),
                           builder.getFunctionType(inputTypes, outputTypes));
  function.setPrivate();
  Block *block = function.addEntryBlock();
  OpBuilder partBuilder = OpBuilder::atBlockEnd(block);
  IRMapping mapping;
  for (auto [source, argument] : llvm::zip(sources, block->getArguments())) {
    mapping.map(source, argument);
    argument.setLoc(source.getLoc());
  }
  SmallVector<Operation *> ops(part.ops.begin(), part.ops.end());
  llvm::sort(ops,
             [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); });
  for (Operation *op : ops)
    cloneOp(op, partBuilder, mapping);
  SmallVector<Value> returned;
  for (const Export &source : part.exports)
    returned.push_back(mapping.lookup(source.value));
  func::ReturnOp::create(partBuilder, body.getTerminator()->getLoc(), returned);

  // 3. Its invocation.
  SmallVector<Type> types;
  SmallVector<Attribute> kinds;
  for (const Export &source : part.exports) {
    kinds.push_back(builder.getStringAttr(source.kind));
    types.push_back(StringRef(source.kind).starts_with(kConcatPrefix)
                        ? flow.wholeType(source.value)
                        : source.value.getType());
  }
  part.invoke = InvokeOp::create(
      inside, entry.getLoc(), types, function.getSymName(), operands, letter,
      once, dims, builder.getArrayAttr(kinds), part.slot.stage);
}

void Outliner::finish(
    ArrayRef<EntryResult> results,
    ArrayRef<std::pair<unsigned, std::pair<Slot, Export>>> copies) {
  SmallVector<Value> values;
  for (auto [operand, result] :
       llvm::zip(body.getTerminator()->getOperands(), results)) {
    if (auto argument = dyn_cast<BlockArgument>(operand))
      values.push_back(program.getBody().getArgument(argument.getArgNumber()));
    else
      values.push_back(exported(result.source->first, result.source->second));
  }
  for (const auto &[i, source] : copies)
    values.push_back(exported(source.first, source.second));
  ReturnOp::create(inside, body.getTerminator()->getLoc(), values);
  entry.erase();
}

/// Expands a slice whose offset depends on the micro-batch into ops of the
/// graph dialect: a gather along each dimension that is split.
static Value expand(spmd::SliceOp op, OpBuilder &builder, IRMapping &mapping) {
  Location loc = op.getLoc();
  Value value = mapping.lookup(op.getInput());
  auto from = cast<RankedTensorType>(op.getInput().getType());
  auto to = cast<RankedTensorType>(op.getOutput().getType());
  auto offset = spmd::ShardOffsetOp::create(
      builder, loc, RankedTensorType::get(from.getRank(), builder.getI64Type()),
      op.getSharding(), from);
  for (int64_t dim = 0; dim < from.getRank(); ++dim) {
    int64_t size = to.getDimSize(dim);
    if (size == from.getDimSize(dim))
      continue;
    Value first =
        graph::SliceOp::create(builder, loc, offset, ArrayRef(dim),
                               ArrayRef<int64_t>(1), ArrayRef<int64_t>(1));
    auto indexType = RankedTensorType::get(size, builder.getI64Type());
    Value index = graph::IotaOp::create(builder, loc, indexType,
                                        /*dim=*/0, /*start=*/0);
    index = graph::AddOp::create(builder, loc, index, first);
    value = graph::GatherOp::create(
        builder, loc, value, index, /*origin=*/Value(),
        builder.getI64IntegerAttr(dim), /*padding_index=*/nullptr,
        /*global_size=*/nullptr, builder.getI64IntegerAttr(0));
  }
  return value;
}

void Outliner::cloneOp(Operation *op, OpBuilder &builder, IRMapping &mapping) {
  // An operand of which only the type is read becomes a constant, so that no
  // value is saved for it.
  for (OpOperand &operand : op->getOpOperands()) {
    if (!flow.readsTypeOnly(operand) || mapping.contains(operand.get()))
      continue;
    auto type = cast<RankedTensorType>(operand.get().getType());
    auto zero = DenseElementsAttr::get(
        type, builder.getZeroAttr(type.getElementType()));
    mapping.map(
        operand.get(),
        graph::ConstantOp::create(builder, op->getLoc(), zero).getResult());
  }
  if (auto slice = dyn_cast<spmd::SliceOp>(op))
    mapping.map(slice.getOutput(), expand(slice, builder, mapping));
  else if (auto barrier = dyn_cast<spmd::BarrierOp>(op))
    // The barrier has done its work: its op is in the right part.
    mapping.map(barrier.getOutput(), mapping.lookup(barrier.getInput()));
  else
    flow.stripAttributes(builder.clone(*op, mapping));
}

ProgramOp cleave::pipe::outlineParts(
    func::FuncOp entry, const Flow &flow, MutableArrayRef<Part> parts,
    ArrayRef<EntryResult> results,
    ArrayRef<std::pair<unsigned, std::pair<Slot, Export>>> copies,
    bool treeSums, bool split) {
  Outliner outliner(entry, flow, parts, split);
  ProgramOp program = outliner.makeProgram(copies);
  program.setTreeSums(treeSums);
  for (Part &part : parts)
    if (!part.ops.empty() || !part.exports.empty())
      outliner.outline(part);
  outliner.finish(results, copies);
  return program;
}
