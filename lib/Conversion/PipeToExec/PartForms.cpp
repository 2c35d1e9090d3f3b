//===- PartForms.cpp - Forms of a part for its actions --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "PartForms.h"
#include "cleave/Dialect/Exec/IR/Views.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Scheduling/Timeline/Timeline.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

RankedTensorType cleave::exec::sliceAt(RankedTensorType whole, int64_t dim,
                                       int64_t index, int64_t count) {
  Strided layout = getLayout(whole);
  SmallVector<int64_t> shape(whole.getShape());
  shape[dim] /= count;
  layout.offset += index * shape[dim] * layout.strides[dim];
  return withLayout(RankedTensorType::get(shape, whole.getElementType()),
                    layout);
}

void cleave::exec::setAction(func::FuncOp part,
                             const scheduling::Action &action, double flops) {
  Builder builder(part.getContext());
  NamedAttrList facts;
  facts.set("name", builder.getStringAttr(action.pattern()));
  facts.set("kind", builder.getStringAttr(scheduling::eventKindName(
                        scheduling::eventKindOf(action))));
  facts.set("stage", builder.getI64IntegerAttr(action.stage));
  // Larger values than those of a run would not fit.
  if (flops >= 1)
    facts.set("flops", builder.getI64IntegerAttr(
                           static_cast<int64_t>(std::min(flops, 0x1p62))));
  part->setAttr(kActionAttr, facts.getDictionary(part.getContext()));
}

/// Each result has the offset of the operand that it may pass on.
static void passOn(pipe::InvokeOp invoke, func::FuncOp part) {
  Builder builder(part.getContext());
  graph::EntryAttributes attributes(part);
  attributes.setArg(invoke.getFlagOperand(), kUnlessAttr,
                    builder.getUnitAttr());
  for (unsigned i = 0; i < invoke.getNumResults(); ++i) {
    unsigned operand = invoke.getPassedOperand(i);
    attributes.setArg(operand, kDiesAttr, builder.getUnitAttr());
    attributes.setResult(i, kAliasAttr, builder.getI64IntegerAttr(operand));
    attributes.setResult(i, kUpdateAttr, builder.getUnitAttr());
  }
  attributes.write();
}

FailureOr<PartForms> PartForms::create(pipe::InvokeOp invoke, int64_t count) {
  func::FuncOp part = invoke.getPartFunction();
  if (!part || part.isExternal())
    return invoke.emitOpError("'") << invoke.getCallee() << "' has no body";
  PartForms forms;
  forms.first = part;
  forms.treeSums = invoke->getParentOfType<pipe::ProgramOp>().getTreeSums();
  setAction(part,
            {invoke.getPart().str(), invoke.getOnce() ? -1 : 0,
             static_cast<int64_t>(invoke.getStage())},
            pipe::countedFlops(invoke));
  for (auto [i, dim] : llvm::enumerate(invoke.getSplit()))
    if (dim >= 0)
      part.getArgument(i).setType(
          sliceAt(tensorTypeOf(invoke.getInputs()[i]), dim, 0, count));
  Operation *terminator = part.front().getTerminator();
  for (unsigned i = 0; i < invoke.getNumResults(); ++i) {
    std::optional<int64_t> dim = invoke.getConcatDim(i);
    if (!dim)
      continue;
    RankedTensorType type =
        sliceAt(tensorTypeOf(invoke.getResult(i)), *dim, 0, count);
    Value value = terminator->getOperand(i);
    if (value.getType() == type)
      continue;
    OpBuilder builder(terminator);
    terminator->setOperand(
        i, CopyOp::create(builder, value.getLoc(), type, value, Value()));
  }
  if (failed(forms.giveConstants(count)))
    return failure();
  part.setFunctionType(FunctionType::get(part.getContext(),
                                         part.front().getArgumentTypes(),
                                         terminator->getOperandTypes()));
  for (unsigned i = 0; i < invoke.getNumResults(); ++i)
    if (std::optional<graph::ReductionKind> kind = invoke.getAccumulation(i)) {
      forms.sums.push_back(i);
      forms.kinds.push_back(*kind);
    }
  if (invoke.isConditional())
    passOn(invoke, part);
  return forms;
}

/// Combines `rows`, each a value of `type`, into one value of type `whole` with
/// a row for each. Null if they are of different kinds.
static Attribute stackRows(ArrayRef<Attribute> rows, RankedTensorType type,
                           RankedTensorType whole) {
  if (auto first = dyn_cast<DeviceValuesAttr>(rows.front())) {
    SmallVector<int64_t> base;
    for (Attribute attr : rows) {
      auto row = dyn_cast<DeviceValuesAttr>(attr);
      if (!row || row.getAxes() != first.getAxes() ||
          row.getFactors() != first.getFactors())
        return nullptr;
      llvm::append_range(base, row.getBase());
    }
    return DeviceValuesAttr::get(first.getContext(), base, first.getAxes(),
                                 first.getFactors());
  }
  SmallVector<Attribute> elements;
  for (Attribute attr : rows) {
    auto row = dyn_cast<DenseElementsAttr>(attr);
    if (!row || row.getType() != type)
      return nullptr;
    llvm::append_range(elements, row.getValues<Attribute>());
  }
  return DenseElementsAttr::get(whole, elements);
}

/// A value that depends only on the micro-batch becomes a constant, or an
/// argument if it differs between micro-batches.
LogicalResult PartForms::giveConstants(int64_t count) {
  func::FuncOp part = first;
  SmallVector<MicroBatchValueOpInterface> ops;
  part.walk([&](MicroBatchValueOpInterface op) { ops.push_back(op); });
  for (MicroBatchValueOpInterface op : ops) {
    SmallVector<Attribute> attrs;
    for (int64_t i = 0; i < count; ++i) {
      attrs.push_back(op.getValueAt(i, count));
      if (!attrs.back())
        return op->emitOpError("depends on more than the micro-batch and the "
                               "device");
    }
    Value result = op->getResult(0);
    if (llvm::all_equal(attrs)) {
      OpBuilder inside(op);
      Value constant;
      if (auto elements = dyn_cast<DenseElementsAttr>(attrs.front()))
        constant = graph::ConstantOp::create(inside, op->getLoc(),
                                             result.getType(), elements);
      else
        constant = ConstantOp::create(inside, op->getLoc(), result.getType(),
                                      attrs.front());
      result.replaceAllUsesWith(constant);
    } else {
      BlockArgument argument =
          part.front().addArgument(result.getType(), op->getLoc());
      if (ArrayAttr old = part.getArgAttrsAttr()) {
        SmallVector<Attribute> all(old.begin(), old.end());
        all.push_back(DictionaryAttr::get(part.getContext()));
        part.setArgAttrsAttr(ArrayAttr::get(part.getContext(), all));
      }
      result.replaceAllUsesWith(argument);
      auto type = cast<RankedTensorType>(result.getType());
      SmallVector<int64_t> shape(type.getShape());
      shape.insert(shape.begin(), count);
      auto whole = RankedTensorType::get(shape, type.getElementType());
      Attribute rows = stackRows(attrs, type, whole);
      if (!rows)
        return op->emitOpError("has values of different kinds for different "
                               "micro-batches");
      constants.push_back({rows, whole});
      rowTypes.push_back(type);
    }
    op->erase();
  }
  return success();
}

/// Combines a sum, or a maximum or minimum, with the value of one micro-batch.
static Operation *combine(graph::ReductionKind kind, OpBuilder &builder,
                          Value sum, Value value) {
  Location loc = value.getLoc();
  switch (kind) {
  case graph::ReductionKind::Sum:
    break;
  case graph::ReductionKind::Max:
    return graph::MaximumOp::create(builder, loc, sum, value);
  case graph::ReductionKind::Min:
    return graph::MinimumOp::create(builder, loc, sum, value);
  }
  return graph::AddOp::create(builder, loc, sum, value);
}

func::FuncOp PartForms::onto(unsigned count, SymbolTable &symbols) {
  next.resize(std::max<size_t>(next.size(), count + 1));
  func::FuncOp &part = next[count];
  if (part)
    return part;
  part = first.clone();
  part.setName((first.getName() + ".next" +
                (count > 1 ? std::to_string(count) : std::string()))
                   .str());
  symbols.insert(part);
  Operation *terminator = part.front().getTerminator();
  OpBuilder inside(terminator);
  unsigned before = part.getNumArguments();
  for (auto [i, kind] : llvm::zip_equal(sums, kinds))
    for (unsigned k = 0; k < count; ++k) {
      Value value = terminator->getOperand(i);
      BlockArgument sum =
          part.front().addArgument(value.getType(), value.getLoc());
      Operation *total = combine(kind, inside, sum, value);
      if (treeSums)
        total->setAttr(kApartAttr, inside.getUnitAttr());
      terminator->setOperand(i, total->getResult(0));
    }
  part.setFunctionType(FunctionType::get(part.getContext(),
                                         part.front().getArgumentTypes(),
                                         terminator->getOperandTypes()));
  SmallVector<DictionaryAttr> attrs;
  part.getAllArgAttrs(attrs);
  attrs.resize(part.getNumArguments(),
               DictionaryAttr::get(inside.getContext()));
  part.setAllArgAttrs(attrs);
  graph::EntryAttributes attributes(part);
  for (auto [k, i] : llvm::enumerate(sums)) {
    for (unsigned j = 0; j < count; ++j)
      attributes.setArg(before + k * count + j, kDiesAttr,
                        inside.getUnitAttr());
    // The memory of the oldest sum.
    attributes.setResult(
        i, kAliasAttr,
        inside.getI64IntegerAttr(before + k * count + count - 1));
  }
  attributes.write();
  return part;
}
