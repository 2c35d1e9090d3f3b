//===- SplitStages.cpp - Outlines the parts of each entry -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// 1. Flow.cpp says of each op its role and whether it varies with the
///    micro-batch.
/// 2. Walking the parts backwards, from update to prologue, each takes the ops
///    whose results it needs, or imports a result of an earlier part: what
///    nothing needs is left behind.
/// 3. Each part becomes a function, and the entry a program.
///
//===----------------------------------------------------------------------===//

#include "Flow.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Pipe/Transforms/Passes.h"
#include "mlir/IR/IRMapping.h"

namespace cleave::pipe {
#define GEN_PASS_DEF_SPLITSTAGES
#include "cleave/Dialect/Pipe/Transforms/Passes.h.inc"
} // namespace cleave::pipe

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

namespace {
/// A value that a part gives to later ones or to the program.
struct Export {
  Value value;
  std::string kind;
  bool operator==(const Export &other) const = default;
};

/// A value that a part takes from an earlier one.
struct Import {
  PartId from;
  Export source;
  /// The value it stands for inside the importing part.
  Value value;
};

struct Part {
  llvm::DenseSet<Operation *> ops;
  /// Values that the part must compute or import.
  llvm::DenseSet<Value> needed;
  SmallVector<Import> imports;
  SmallVector<Export> exports;
  InvokeOp invoke;
};

/// Cuts one entry.
class Splitter {
public:
  Splitter(func::FuncOp entry, spmd::MeshOp mesh, bool treeSums)
      : entry(entry), body(entry.getBody().front()), flow(entry, mesh),
        treeSums(treeSums) {}

  LogicalResult run() {
    if (failed(flow.analyze()) || failed(findResults()))
      return failure();
    for (PartId part :
         {PartId::Update, PartId::Backward, PartId::Forward, PartId::Prologue})
      if (failed(collect(part)))
        return failure();
    build();
    return success();
  }

private:
  Part &get(PartId id) { return parts[static_cast<unsigned>(id)]; }

  //===--- What each part needs
  //---------------------------------------------===//

  /// Gives `source` of part `from` to a later part or to the program.
  void require(PartId from, const Export &source) {
    Part &part = get(from);
    if (!llvm::is_contained(part.exports, source))
      part.exports.push_back(source);
    part.needed.insert(source.value);
  }

  /// Where the program finds `value`, once all micro-batches have run.
  FailureOr<std::pair<PartId, Export>> whole(Value value) {
    Operation *op = value.getDefiningOp();
    if (flow.isAccumulation(op)) {
      Value summand = op->getOperand(0);
      PartId from = flow.inPrologue(op) ? PartId::Prologue
                                        : flow.part(summand.getDefiningOp());
      return std::pair(from, Export{summand, kAccumulate.str()});
    }
    PartId from = flow.part(op);
    if (!flow.varies(value) && from != PartId::Update) {
      // The same for each micro-batch: computed once, at the end; or, laid out
      // by micro-batch, with the first part.
      if (flow.layout(value).kind == Layout::Whole)
        return std::pair(flow.mergedUpdate() ? from : PartId::Update,
                         Export{value, kValue.str()});
    }
    return std::pair(from, Export{value, kindOf(value, from)});
  }

  /// How the micro-batches' values of `value` become the program's.
  std::string kindOf(Value value, PartId from) {
    if (from == PartId::Update)
      return kValue.str();
    Layout layout = flow.layout(value);
    switch (layout.kind) {
    case Layout::Partial:
      return kAccumulate.str();
    case Layout::Split:
      return (kConcatPrefix + std::to_string(layout.dim)).str();
    case Layout::Whole:
      break;
    }
    return kValue.str();
  }

  LogicalResult findResults() {
    for (Value value : body.getTerminator()->getOperands()) {
      if (isa<BlockArgument>(value)) {
        results.push_back({});
        continue;
      }
      auto found = whole(value);
      if (failed(found))
        return failure();
      require(found->first, found->second);
      results.push_back(*found);
    }
    return success();
  }

  /// Fills one part: later parts are done, so that all it must give is known.
  LogicalResult collect(PartId id) {
    Part &part = get(id);
    for (Operation &op : llvm::reverse(body.without_terminator())) {
      bool wanted = llvm::any_of(op.getResults(), [&](Value result) {
        return part.needed.contains(result);
      });
      // What has effects stays, in its own part.
      wanted |= op.getNumResults() == 0 && flow.part(&op) == id;
      if (!wanted)
        continue;
      if (flow.isAccumulation(&op) || importsFrom(&op, id)) {
        if (failed(import(&op, id)))
          return failure();
        continue;
      }
      part.ops.insert(&op);
      for (OpOperand &operand : op.getOpOperands())
        if (!flow.isUnread(operand) && !isAfter(operand))
          part.needed.insert(operand.get());
    }
    return success();
  }

  /// True for what only says to which part a barrier belongs.
  static bool isAfter(OpOperand &operand) {
    auto barrier = dyn_cast<spmd::BarrierOp>(operand.getOwner());
    return barrier && operand == barrier.getAfterMutable();
  }

  /// True when part `id` takes the results of `op` from an earlier part.
  bool importsFrom(Operation *op, PartId id) {
    PartId home = flow.part(op);
    if (home == id || id == PartId::Prologue)
      return false;
    // Where a slice lies is known in every part of its micro-batch, and so is
    // the slice of what is the same for each.
    if (id != PartId::Update &&
        llvm::none_of(op->getOperands(),
                      [&](Value operand) { return flow.varies(operand); }))
      return false;
    // What is the same for each micro-batch is computed where it is used,
    // unless it is heavy.
    return flow.varies(op) || (home == PartId::Forward &&
                               id == PartId::Backward && flow.isHeavy(op));
  }

  LogicalResult import(Operation *op, PartId id) {
    for (Value result : op->getResults()) {
      if (!get(id).needed.contains(result))
        continue;
      Import import;
      import.value = result;
      if (flow.isAccumulation(op) || id == PartId::Update) {
        auto found = whole(result);
        if (failed(found))
          return failure();
        if (found->first == PartId::Update || found->first == id)
          return op->emitOpError("is needed whole within one micro-batch");
        import.from = found->first;
        import.source = found->second;
      } else {
        import.from = flow.part(op);
        import.source = {result, kSaved.str()};
      }
      require(import.from, import.source);
      get(id).imports.push_back(std::move(import));
    }
    return success();
  }

  //===--- Functions and program
  //----------------------------------------------===//

  void build() {
    OpBuilder builder(entry);
    std::string name = entry.getSymName().str();
    auto argumentTypes = flow.wholeArgumentTypes();
    auto resultTypes = flow.wholeResultTypes();
    auto program =
        ProgramOp::create(builder, entry.getLoc(), name,
                          builder.getFunctionType(argumentTypes, resultTypes),
                          flow.microBatches());
    program.setTreeSums(treeSums);
    SmallVector<DictionaryAttr> attributes;
    for (unsigned i = 0; i < entry.getNumArguments(); ++i)
      attributes.push_back(flow.entryAttributes(entry.getArgAttrDict(i)));
    program.setAllArgAttrs(attributes);
    attributes.clear();
    for (unsigned i = 0; i < entry.getNumResults(); ++i)
      attributes.push_back(flow.entryAttributes(entry.getResultAttrDict(i)));
    program.setAllResultAttrs(attributes);

    OpBuilder inside = OpBuilder::atBlockEnd(&program.getBody().front());
    for (PartId id :
         {PartId::Prologue, PartId::Forward, PartId::Backward, PartId::Update})
      if (Part &part = get(id); !part.ops.empty() || !part.exports.empty())
        buildPart(id, part, name, builder, inside, program);

    SmallVector<Value> values;
    for (auto [operand, result] :
         llvm::zip(body.getTerminator()->getOperands(), results)) {
      if (auto argument = dyn_cast<BlockArgument>(operand))
        values.push_back(
            program.getBody().getArgument(argument.getArgNumber()));
      else
        values.push_back(exported(result.first, result.second));
    }
    ReturnOp::create(inside, body.getTerminator()->getLoc(), values);
    entry.erase();
  }

  /// The program's value of an export of part `from`.
  Value exported(PartId from, const Export &source) {
    Part &part = get(from);
    auto it = llvm::find(part.exports, source);
    return part.invoke.getResult(it - part.exports.begin());
  }

  void buildPart(PartId id, Part &part, StringRef name, OpBuilder &builder,
                 OpBuilder &inside, ProgramOp program) {
    bool once = id == PartId::Update;
    // Imports in the order of the program, so that the text is stable.
    llvm::sort(part.imports, [&](const Import &a, const Import &b) {
      return flow.order(a.value) < flow.order(b.value);
    });
    llvm::sort(part.exports, [&](const Export &a, const Export &b) {
      return std::pair(flow.order(a.value), a.kind) <
             std::pair(flow.order(b.value), b.kind);
    });

    // 1. Operands: arguments of the entry, then imports.
    SmallVector<Value> operands, sources;
    SmallVector<int64_t> split;
    for (BlockArgument argument : body.getArguments()) {
      if (!part.needed.contains(argument))
        continue;
      sources.push_back(argument);
      operands.push_back(
          program.getBody().getArgument(argument.getArgNumber()));
      Layout layout = flow.layout(argument);
      split.push_back(layout.kind == Layout::Split && !once ? layout.dim : -1);
    }
    for (const Import &import : part.imports) {
      sources.push_back(import.value);
      operands.push_back(exported(import.from, import.source));
      split.push_back(-1);
    }

    // 2. The function.
    SmallVector<Type> inputTypes, outputTypes;
    for (Value source : sources)
      inputTypes.push_back(source.getType());
    for (const Export &source : part.exports)
      outputTypes.push_back(source.value.getType());
    StringRef letter = partName(id);
    auto function = func::FuncOp::create(
        builder, entry.getLoc(), (name + "." + letter).str(),
        builder.getFunctionType(inputTypes, outputTypes));
    function.setPrivate();
    Block *block = function.addEntryBlock();
    OpBuilder partBuilder = OpBuilder::atBlockEnd(block);
    IRMapping mapping;
    for (auto [source, argument] : llvm::zip(sources, block->getArguments())) {
      mapping.map(source, argument);
      argument.setLoc(source.getLoc());
    }
    for (Operation &op : body.without_terminator())
      if (part.ops.contains(&op))
        cloneOp(&op, partBuilder, mapping);
    SmallVector<Value> returned;
    for (const Export &source : part.exports)
      returned.push_back(mapping.lookup(source.value));
    func::ReturnOp::create(partBuilder, body.getTerminator()->getLoc(),
                           returned);

    // 3. Its invocation.
    SmallVector<Type> types;
    SmallVector<Attribute> kinds;
    for (const Export &source : part.exports) {
      kinds.push_back(builder.getStringAttr(source.kind));
      types.push_back(StringRef(source.kind).starts_with(kConcatPrefix)
                          ? flow.wholeType(source.value)
                          : source.value.getType());
    }
    part.invoke = InvokeOp::create(inside, entry.getLoc(), types,
                                   function.getSymName(), operands, letter,
                                   once, split, builder.getArrayAttr(kinds));
  }

  void cloneOp(Operation *op, OpBuilder &builder, IRMapping &mapping) {
    // An operand of which only the type matters is no reason to save a value.
    for (OpOperand &operand : op->getOpOperands()) {
      if (!flow.isUnread(operand) || mapping.contains(operand.get()))
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
      // It is in its part, which is all that it asked for.
      mapping.map(barrier.getOutput(), mapping.lookup(barrier.getInput()));
    else
      flow.stripAttributes(builder.clone(*op, mapping));
  }

  /// A slice at a place that the micro-batch says, by ops of the graph: a
  /// gather along each dimension that is split.
  static Value expand(spmd::SliceOp op, OpBuilder &builder,
                      IRMapping &mapping) {
    Location loc = op.getLoc();
    Value value = mapping.lookup(op.getInput());
    auto from = cast<RankedTensorType>(op.getInput().getType());
    auto to = cast<RankedTensorType>(op.getOutput().getType());
    auto offset = spmd::ShardOffsetOp::create(
        builder, loc,
        RankedTensorType::get(from.getRank(), builder.getI64Type()),
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

  func::FuncOp entry;
  Block &body;
  Flow flow;
  bool treeSums;
  Part parts[4];
  /// Where each result of the entry comes from (unset for an argument).
  SmallVector<std::pair<PartId, Export>> results;
};

/// A sum over micro-batches and devices at once is two: that over the
/// micro-batches, which is none that anything computes, comes first.
static void separateReductions(func::FuncOp function, const spmd::Mesh &mesh) {
  for (auto op : llvm::make_early_inc_range(
           function.getBody().front().getOps<spmd::AllReduceOp>())) {
    ArrayRef<spmd::AxisRef> axes = op.getAxes().getAxes();
    spmd::AxisList devices = mesh.deviceAxes(axes), batches;
    for (const spmd::AxisRef &axis : axes)
      if (mesh.isSequential(axis))
        batches.push_back(axis);
    if (devices.empty() || batches.empty())
      continue;
    OpBuilder builder(op);
    auto first = cast<spmd::AllReduceOp>(builder.clone(*op));
    first.setAxesAttr(spmd::AxesAttr::get(op.getContext(), batches));
    op.setAxesAttr(spmd::AxesAttr::get(op.getContext(), devices));
    op.getInputMutable().assign(first);
  }
}

struct SplitStagesPass : cleave::pipe::impl::SplitStagesBase<SplitStagesPass> {
  using SplitStagesBase::SplitStagesBase;

  void runOnOperation() override {
    spmd::MeshOp mesh = spmd::findMesh(getOperation());
    if (!mesh) {
      getOperation().emitError("there is no spmd.mesh");
      return signalPassFailure();
    }
    for (auto function :
         llvm::make_early_inc_range(getOperation().getOps<func::FuncOp>())) {
      if (!function.isPublic() || function.isExternal())
        continue;
      if (!function.getBody().hasOneBlock()) {
        function.emitOpError("must have one block to be split");
        return signalPassFailure();
      }
      separateReductions(function, mesh.getMesh());
      if (failed(Splitter(function, mesh, treeSums).run()))
        return signalPassFailure();
    }
  }
};
} // namespace
