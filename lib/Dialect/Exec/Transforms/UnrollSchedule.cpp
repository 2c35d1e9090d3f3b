//===- UnrollSchedule.cpp - Programs as lists of actions ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "IndexBounds.h"
#include "cleave/Dialect/Exec/Transforms/Memory.h"
#include "cleave/Dialect/Exec/Transforms/Passes.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "cleave/Dialect/Spmd/IR/Axes.h"

namespace cleave::exec {
#define GEN_PASS_DEF_UNROLLSCHEDULE
#include "cleave/Dialect/Exec/Transforms/Passes.h.inc"
} // namespace cleave::exec

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

/// The slice of a whole tensor of type `whole` that micro-batch `index` of
/// `count` has along `dim`, as it lies in it.
static RankedTensorType sliceAt(RankedTensorType whole, int64_t dim,
                                int64_t index, int64_t count) {
  Strided layout = getLayout(whole);
  SmallVector<int64_t> shape(whole.getShape());
  shape[dim] /= count;
  layout.offset += index * shape[dim] * layout.strides[dim];
  return withLayout(RankedTensorType::get(shape, whole.getElementType()),
                    layout);
}

namespace {

/// A part, in the forms that its actions need.
struct PartForms {
  func::FuncOp first;
  /// Those that add onto so many sums there are, one after another.
  SmallVector<func::FuncOp> next;
  /// Results that accumulate, in the order of the further arguments of `next`.
  SmallVector<unsigned> sums;
  /// Operands beyond those of the invocation: the values, by micro-batch.
  SmallVector<SmallVector<Attribute>> constants;
  SmallVector<Type> constantTypes;
};

/// Unrolls one program.
class Unroller {
public:
  Unroller(pipe::ProgramOp source, SymbolTable &symbols)
      : source(source), symbols(symbols), count(source.getMicroBatches()),
        builder(source) {}

  LogicalResult run();

private:
  LogicalResult prepare(pipe::InvokeOp invoke);
  LogicalResult giveConstants(func::FuncOp part, PartForms &forms);
  func::FuncOp makeNext(PartForms &forms, unsigned sums);
  LogicalResult linkUpdates(ProgramOp program);
  void runAction(pipe::InvokeOp invoke, int64_t microBatch);
  Value valueOf(Value value, int64_t dim, int64_t microBatch);
  Value constantOf(Attribute value, Type type, Location loc);

  pipe::ProgramOp source;
  SymbolTable &symbols;
  int64_t count;
  OpBuilder builder;
  DenseMap<Operation *, PartForms> parts;
  /// What each value of the source is: one value, or one for each micro-batch.
  DenseMap<Value, SmallVector<Value>> values;
  /// Of parts whose results accumulate: how often each has run, and the sums
  /// there are, each of one result for each of `PartForms::sums`.
  DenseMap<Operation *, int64_t> done;
  DenseMap<Operation *, SmallVector<SmallVector<Value>>> open;
  DenseMap<Attribute, Value> constants;
};

} // namespace

/// Results are what the invocation reads of them; slices of a whole lie in it.
LogicalResult Unroller::prepare(pipe::InvokeOp invoke) {
  func::FuncOp part = invoke.getPartFunction();
  if (!part || part.isExternal())
    return invoke.emitOpError("'") << invoke.getCallee() << "' has no body";
  PartForms &forms = parts[invoke];
  forms.first = part;
  for (auto [i, dim] : llvm::enumerate(invoke.getSplit()))
    if (dim >= 0)
      part.getArgument(i).setType(
          sliceAt(tensorType(invoke.getInputs()[i]), dim, 0, count));
  Operation *terminator = part.front().getTerminator();
  for (unsigned i = 0; i < invoke.getNumResults(); ++i) {
    std::optional<int64_t> dim = invoke.getConcatDim(i);
    if (!dim)
      continue;
    RankedTensorType type =
        sliceAt(tensorType(invoke.getResult(i)), *dim, 0, count);
    Value value = terminator->getOperand(i);
    if (value.getType() == type)
      continue;
    OpBuilder builder(terminator);
    terminator->setOperand(
        i, CopyOp::create(builder, value.getLoc(), type, value, Value()));
  }
  if (failed(giveConstants(part, forms)))
    return failure();
  part.setFunctionType(FunctionType::get(part.getContext(),
                                         part.front().getArgumentTypes(),
                                         terminator->getOperandTypes()));
  for (unsigned i = 0; i < invoke.getNumResults(); ++i)
    if (invoke.isAccumulated(i))
      forms.sums.push_back(i);
  return success();
}

/// What is known when the micro-batch is becomes a constant, or, where it
/// differs between micro-batches, an argument.
LogicalResult Unroller::giveConstants(func::FuncOp part, PartForms &forms) {
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
      forms.constants.push_back(attrs);
      forms.constantTypes.push_back(result.getType());
    }
    op->erase();
  }
  return success();
}

/// The form that adds what it makes onto `sums` sums, the last one first, which
/// then are one.
func::FuncOp Unroller::makeNext(PartForms &forms, unsigned sums) {
  forms.next.resize(std::max<size_t>(forms.next.size(), sums + 1));
  func::FuncOp &next = forms.next[sums];
  if (next)
    return next;
  next = forms.first.clone();
  next.setName((forms.first.getName() + ".next" +
                (sums > 1 ? std::to_string(sums) : std::string()))
                   .str());
  symbols.insert(next);
  Operation *terminator = next.front().getTerminator();
  OpBuilder inside(terminator);
  unsigned before = next.getNumArguments();
  for (unsigned i : forms.sums)
    for (unsigned k = 0; k < sums; ++k) {
      Value value = terminator->getOperand(i);
      BlockArgument sum =
          next.front().addArgument(value.getType(), value.getLoc());
      terminator->setOperand(
          i, graph::AddOp::create(inside, value.getLoc(), sum, value));
    }
  next.setFunctionType(FunctionType::get(next.getContext(),
                                         next.front().getArgumentTypes(),
                                         terminator->getOperandTypes()));
  SmallVector<DictionaryAttr> attrs;
  next.getAllArgAttrs(attrs);
  attrs.resize(next.getNumArguments(),
               DictionaryAttr::get(builder.getContext()));
  next.setAllArgAttrs(attrs);
  graph::EntryAttributes attributes(next);
  for (auto [k, i] : llvm::enumerate(forms.sums)) {
    for (unsigned j = 0; j < sums; ++j)
      attributes.setArg(before + k * sums + j, kDiesAttr,
                        builder.getUnitAttr());
    // Of the oldest sum.
    attributes.setResult(
        i, kAliasAttr, builder.getI64IntegerAttr(before + k * sums + sums - 1));
  }
  attributes.write();
  return next;
}

Value Unroller::constantOf(Attribute value, Type type, Location loc) {
  Value &constant = constants[value];
  if (!constant)
    constant = ConstantOp::create(builder, loc, type, value);
  return constant;
}

Value Unroller::valueOf(Value value, int64_t dim, int64_t microBatch) {
  SmallVector<Value> &known = values[value];
  Value result = known.size() == 1 ? known.front() : known[microBatch];
  if (dim < 0)
    return result;
  return viewAs(builder, result.getLoc(), result,
                sliceAt(tensorType(result), dim, microBatch, count));
}

void Unroller::runAction(pipe::InvokeOp invoke, int64_t microBatch) {
  PartForms &forms = parts[invoke];
  // How many of the sums there are what is made now completes.
  SmallVector<SmallVector<Value>> &sums = open[invoke];
  unsigned merged = 0;
  if (!forms.sums.empty() && !invoke.getOnce()) {
    int64_t runs = ++done[invoke];
    if (!source.getTreeSums())
      merged = sums.size();
    else if (runs == count)
      merged = sums.size();
    else // Sums are of powers of 2, the larger ones older.
      merged = llvm::countr_zero(static_cast<uint64_t>(runs));
  }
  func::FuncOp part = merged ? makeNext(forms, merged) : forms.first;
  SmallVector<Value> operands;
  for (auto [value, dim] :
       llvm::zip_equal(invoke.getInputs(), invoke.getSplit()))
    operands.push_back(valueOf(value, dim, microBatch));
  for (auto [attrs, type] :
       llvm::zip_equal(forms.constants, forms.constantTypes))
    operands.push_back(constantOf(attrs[microBatch], type, invoke.getLoc()));
  for (size_t k = 0; k < forms.sums.size() && merged; ++k)
    for (unsigned j = 0; j < merged; ++j)
      operands.push_back(sums[sums.size() - 1 - j][k]);
  SmallVector<Type> types(part.getResultTypes());
  for (unsigned i = 0; i < invoke.getNumResults(); ++i)
    if (std::optional<int64_t> dim = invoke.getConcatDim(i))
      types[i] =
          sliceAt(tensorType(invoke.getResult(i)), *dim, microBatch, count);
  auto run =
      RunOp::create(builder, invoke.getLoc(), types,
                    FlatSymbolRefAttr::get(part.getSymNameAttr()), operands,
                    builder.getI64IntegerAttr(microBatch), DenseI64ArrayAttr());
  for (auto [i, result] : llvm::enumerate(run.getResults())) {
    SmallVector<Value> &known = values[invoke.getResult(i)];
    if (invoke.isSaved(i) || invoke.getConcatDim(i)) {
      known.resize(invoke.getOnce() ? 1 : count);
      known[microBatch] = result;
    } else if (invoke.isAccumulated(i) || known.empty()) {
      known.assign(1, result);
    }
    if (invoke.getConcatDim(i) &&
        llvm::all_of(known, [](Value v) { return bool(v); }) &&
        known.size() > 1)
      known.assign(1, JoinOp::create(builder, invoke.getLoc(),
                                     tensorType(invoke.getResult(i)),
                                     SmallVector<Value>(known)));
  }
  sums.truncate(sums.size() - merged);
  SmallVector<Value> &made = sums.emplace_back();
  for (unsigned i : forms.sums)
    made.push_back(run.getResult(i));
}

/// A result with `graph.updates` is the memory of the argument of that name.
LogicalResult Unroller::linkUpdates(ProgramOp program) {
  Block &body = program.getBody().front();
  llvm::StringMap<BlockArgument> arguments;
  for (BlockArgument argument : body.getArguments())
    if (auto name = program.getArgAttrOfType<StringAttr>(
            argument.getArgNumber(), graph::kNameAttr))
      arguments[name] = argument;
  llvm::StringMap<unsigned> updated;
  /// The memory that results of a part take.
  struct Link {
    unsigned result, position;
  };
  llvm::MapVector<func::FuncOp, SmallVector<Link>> links;
  /// Where an action first reads each of its inputs.
  DenseMap<RunOp, DenseMap<Value, unsigned>> positions;
  Operation *terminator = body.getTerminator();
  for (auto [i, value] : llvm::enumerate(terminator->getOperands())) {
    auto name = program.getResultAttrOfType<StringAttr>(i, graph::kUpdatesAttr);
    if (!name)
      continue;
    BlockArgument argument = arguments.lookup(name);
    if (!argument)
      return program.emitOpError("result ")
             << i << " updates '" << name.getValue()
             << "', which is no argument's name";
    if (auto [it, first] = updated.try_emplace(name, i); !first)
      return program.emitOpError("results ")
             << it->second << " and " << i << " both update '"
             << name.getValue() << "'";
    if (value == argument)
      continue;
    auto run = value.getDefiningOp<RunOp>();
    if (!run || value.getType() != argument.getType())
      return program.emitOpError("result ")
             << i << " cannot take the memory of argument '" << name.getValue()
             << "': it is not the whole result of one action";
    unsigned index = cast<OpResult>(value).getResultNumber();
    auto part = symbols.lookup<func::FuncOp>(run.getCallee());
    auto [known, fresh] = positions.try_emplace(run);
    if (fresh)
      for (auto [position, input] : llvm::enumerate(run.getInputs()))
        known->second.try_emplace(input, position);
    auto [at, unread] =
        known->second.try_emplace(argument, run.getInputs().size());
    unsigned position = at->second;
    if (unread) {
      // The part does not read it: it is told where to write.
      if (llvm::count_if(body.getOps<RunOp>(), [&](RunOp other) {
            return other.getCallee() == run.getCallee();
          }) != 1)
        return program.emitOpError("result ")
               << i << " cannot take the memory of argument '"
               << name.getValue() << "': its part runs several times";
      if (failed(part.insertArgument(position, argument.getType(),
                                     DictionaryAttr::get(part.getContext()),
                                     run.getLoc())))
        return failure();
      run.getInputsMutable().append(argument);
    }
    links[part].push_back({index, position});
  }
  for (const auto &[part, ofPart] : links) {
    graph::EntryAttributes attributes(part);
    for (auto [result, position] : ofPart) {
      attributes.setArg(position, kDiesAttr, builder.getUnitAttr());
      attributes.setResult(result, kAliasAttr,
                           builder.getI64IntegerAttr(position));
      attributes.setResult(result, kUpdateAttr, builder.getUnitAttr());
    }
    attributes.write();
  }
  return success();
}

LogicalResult Unroller::run() {
  for (auto invoke : source.getBody().getOps<pipe::InvokeOp>())
    if (invoke.getStage() != 0)
      return source.emitOpError("has several stages, of which no native code can "
                                "be made yet: use the interpreter, or a mesh "
                                "without \"")
             << spmd::kPipelineAxis << "\"";
  llvm::StringMap<pipe::InvokeOp> invokes;
  for (auto invoke : source.getBody().getOps<pipe::InvokeOp>())
    if (!invokes.try_emplace(invoke.getPart(), invoke).second)
      return invoke.emitOpError("is a second part \"")
             << invoke.getPart() << "\"";
  FailureOr<pipe::Schedule> schedule = pipe::readSchedule(source);
  if (failed(schedule))
    return failure();
  for (auto invoke : source.getBody().getOps<pipe::InvokeOp>())
    if (failed(prepare(invoke)))
      return failure();
  annotateIndexBounds(source);
  SmallVector<NamedAttribute> attrs;
  for (NamedAttribute attr : source->getAttrs())
    if (attr.getName() != source.getMicroBatchesAttrName() &&
        attr.getName() != source.getScheduleAttrName())
      attrs.push_back(attr);
  OperationState state(source.getLoc(), ProgramOp::getOperationName());
  state.addAttributes(attrs);
  state.addRegion();
  auto program = cast<ProgramOp>(builder.create(state));
  Block &body = program.getBody().emplaceBlock();
  for (BlockArgument argument : source.getBody().getArguments())
    values[argument] = {
        body.addArgument(argument.getType(), argument.getLoc())};
  builder.setInsertionPointToEnd(&body);
  for (const pipe::Action &action : schedule->actions()) {
    pipe::InvokeOp invoke = invokes.lookup(action.part);
    for (Value operand : invoke.getInputs())
      if (invoke.getOnce() && values[operand].size() > 1)
        return invoke.emitOpError("runs once, and reads what is saved for "
                                  "each micro-batch");
    runAction(invoke, std::max<int64_t>(action.microBatch, 0));
  }
  auto returned = cast<pipe::ReturnOp>(source.getBody().front().back());
  SmallVector<Value> results;
  for (Value value : returned.getValues()) {
    SmallVector<Value> &known = values[value];
    if (known.size() != 1)
      return returned.emitOpError("returns a value that has no single value");
    results.push_back(known.front());
  }
  ReturnOp::create(builder, returned.getLoc(), results);
  if (failed(linkUpdates(program)))
    return failure();
  symbols.erase(source);
  return success();
}

/// Native code divides by extents and strides over rows: it is for tensors that
/// have elements.
static LogicalResult verifyElements(ModuleOp module) {
  auto verify = [](Value value) -> LogicalResult {
    auto type = dyn_cast<RankedTensorType>(value.getType());
    if (!type || !llvm::is_contained(type.getShape(), 0))
      return success();
    return emitError(value.getLoc())
           << type << " has no elements; native code needs at least one in "
           << "every tensor";
  };
  WalkResult result = module.walk([&](Operation *op) {
    for (Region &region : op->getRegions())
      for (Block &block : region)
        for (Value argument : block.getArguments())
          if (failed(verify(argument)))
            return WalkResult::interrupt();
    for (Value value : op->getResults())
      if (failed(verify(value)))
        return WalkResult::interrupt();
    return WalkResult::advance();
  });
  return failure(result.wasInterrupted());
}

namespace {

struct UnrollSchedule : exec::impl::UnrollScheduleBase<UnrollSchedule> {
  void runOnOperation() override {
    if (failed(verifyElements(getOperation())))
      return signalPassFailure();
    SymbolTable symbols(getOperation());
    for (auto program :
         llvm::make_early_inc_range(getOperation().getOps<pipe::ProgramOp>()))
      if (failed(Unroller(program, symbols).run()))
        return signalPassFailure();
  }
};

} // namespace
