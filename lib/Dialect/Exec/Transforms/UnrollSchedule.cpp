//===- UnrollSchedule.cpp - Programs as lists of actions ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "IndexBounds.h"
#include "PartForms.h"
#include "Transfers.h"
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

namespace {

/// Parts of a program, by invocation.
using Parts = DenseMap<Operation *, PartForms>;

/// Unrolls what one position of the pipeline runs.
class Unroller {
public:
  Unroller(pipe::ProgramOp source, int64_t position, const pipe::StageMap &map,
           Parts &parts, Transfers &transfers, SymbolTable &symbols)
      : source(source), position(position), map(map), parts(parts),
        transfers(transfers), symbols(symbols),
        count(source.getMicroBatches()), builder(source) {}

  LogicalResult run(ArrayRef<pipe::Action> actions, bool stops);

private:
  bool holds(BlockArgument argument) const;
  ProgramOp createProgram();
  LogicalResult createReturn();
  LogicalResult runAction(const pipe::Action &action);
  void transfer(const pipe::Action &action);
  void finishSends();
  void stop();
  void runPart(pipe::InvokeOp invoke, int64_t microBatch);
  Value valueOf(Value value, int64_t dim, int64_t microBatch);
  Value constantOf(Attribute value, Type type, Location loc);

  DictionaryAttr attributesOr(DictionaryAttr known) {
    return known ? known : builder.getDictionaryAttr({});
  }
  /// Whether `invoke` is of this position.
  bool isHere(pipe::InvokeOp invoke) const {
    return map.device(invoke.getStage()) == position;
  }

  pipe::ProgramOp source;
  int64_t position;
  const pipe::StageMap &map;
  Parts &parts;
  Transfers &transfers;
  SymbolTable &symbols;
  int64_t count;
  OpBuilder builder;
  ProgramOp program;
  /// What each value of the source is: one value, or one for each micro-batch.
  DenseMap<Value, SmallVector<Value>> values;
  /// Of parts whose results accumulate: how often each has run, and the sums
  /// there are, each of one result for each of `PartForms::sums`.
  DenseMap<Operation *, int64_t> done;
  DenseMap<Operation *, SmallVector<SmallVector<Value>>> open;
  DenseMap<Attribute, Value> constants;
  /// A send that nothing has waited for yet.
  struct Sent {
    pipe::Action action;
    SmallVector<OpResult> results;
    SmallVector<Value> values;
  };
  std::optional<Sent> sent;
  /// The latest run of a part.
  Operation *latest = nullptr;
};

} // namespace

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

void Unroller::runPart(pipe::InvokeOp invoke, int64_t microBatch) {
  PartForms &forms = parts.find(invoke)->second;
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
  func::FuncOp part = merged ? forms.onto(merged, symbols) : forms.first;
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
  latest = run;
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


//===----------------------------------------------------------------------===//
// Positions
//===----------------------------------------------------------------------===//

/// An argument is where parts read it; one that none reads, at position 0.
bool Unroller::holds(BlockArgument argument) const {
  bool read = false, here = false;
  for (Operation *user : argument.getUsers())
    if (auto invoke = dyn_cast<pipe::InvokeOp>(user)) {
      read = true;
      here |= isHere(invoke);
    }
  return read ? here : position == 0;
}

/// The program, without its body; its results are known in the end.
ProgramOp Unroller::createProgram() {
  SmallVector<Type> inputs;
  SmallVector<Attribute> attrs;
  Region body;
  Block &block = body.emplaceBlock();
  for (BlockArgument argument : source.getBody().getArguments()) {
    if (!holds(argument))
      continue;
    inputs.push_back(argument.getType());
    attrs.push_back(attributesOr(source.getArgAttrDict(argument.getArgNumber())));
    values[argument] = {
        block.addArgument(argument.getType(), argument.getLoc())};
  }
  bool several = map.devices > 1;
  std::string name = source.getName().str();
  if (several)
    name += "." + std::to_string(position);
  auto created = ProgramOp::create(
      builder, source.getLoc(), name, builder.getFunctionType(inputs, {}),
      source.getSymVisibilityAttr(), builder.getArrayAttr(attrs), ArrayAttr(),
      several ? builder.getI64IntegerAttr(position) : IntegerAttr(),
      several ? source.getSymNameAttr() : StringAttr());
  for (NamedAttribute attr : source->getDiscardableAttrs())
    created->setAttr(attr.getName(), attr.getValue());
  created.getBody().takeBody(body);
  return created;
}

LogicalResult Unroller::createReturn() {
  auto returned = cast<pipe::ReturnOp>(source.getBody().front().back());
  SmallVector<Value> results;
  SmallVector<Attribute> attrs;
  for (auto [i, value] : llvm::enumerate(returned.getValues())) {
    if (auto invoke = value.getDefiningOp<pipe::InvokeOp>();
        invoke ? !isHere(invoke) : !holds(cast<BlockArgument>(value)))
      continue;
    SmallVector<Value> &known = values[value];
    if (known.size() != 1)
      return returned.emitOpError("returns a value that has no single value");
    results.push_back(known.front());
    attrs.push_back(attributesOr(source.getResultAttrDict(i)));
  }
  ReturnOp::create(builder, returned.getLoc(), results);
  program.setFunctionType(builder.getFunctionType(
      program.getBody().getArgumentTypes(), ValueRange(results).getTypes()));
  program.setResAttrsAttr(builder.getArrayAttr(attrs));
  return success();
}

/// Begins a transfer. What is sent is waited for before anything else is; what
/// is received, here, but it is begun before the part that runs last: no
/// device waits longer for it than with both ends at one place, where a
/// schedule is free of deadlocks.
void Unroller::transfer(const pipe::Action &action) {
  int64_t to = map.device(action.to);
  SmallVector<OpResult> results = transfers.values(action, to);
  if (results.empty())
    return;
  int64_t microBatch = std::max<int64_t>(action.microBatch, 0);
  if (action.kind == pipe::Action::Kind::Send) {
    finishSends();
    sent = {action, results, {}};
    for (OpResult result : results)
      sent->values.push_back(valueOf(result, /*dim=*/-1, microBatch));
    transfers.send(builder, action, results, sent->values);
    return;
  }
  ValueRange received;
  {
    OpBuilder::InsertionGuard guard(builder);
    if (latest)
      builder.setInsertionPoint(latest);
    received = transfers.receive(builder, action, results);
  }
  transfers.await(builder, action, results, received);
  for (auto [result, value] : llvm::zip_equal(results, received)) {
    auto invoke = cast<pipe::InvokeOp>(result.getOwner());
    SmallVector<Value> &known = values[result];
    bool saved =
        invoke.isSaved(result.getResultNumber()) && !invoke.getOnce();
    known.resize(saved ? count : 1);
    known[saved ? microBatch : 0] = value;
  }
}

void Unroller::finishSends() {
  if (sent)
    transfers.await(builder, sent->action, sent->results, sent->values);
  sent.reset();
}

/// What checks that were deferred have found takes effect.
void Unroller::stop() {
  OpBuilder inside(source);
  auto part = func::FuncOp::create(
      inside, source.getLoc(),
      (source.getName() + ".stop." + Twine(position)).str(),
      inside.getFunctionType({}, {}));
  part.setPrivate();
  inside.setInsertionPointToStart(part.addEntryBlock());
  auto type = RankedTensorType::get({}, inside.getI1Type());
  Value passed = graph::ConstantOp::create(
      inside, part.getLoc(), DenseElementsAttr::get(type, true));
  graph::CheckOp::create(inside, part.getLoc(), passed,
                         "a check in another stage stopped the step");
  func::ReturnOp::create(inside, part.getLoc());
  symbols.insert(part);
  RunOp::create(builder, part.getLoc(), TypeRange(),
                FlatSymbolRefAttr::get(part.getSymNameAttr()), ValueRange(),
                builder.getI64IntegerAttr(0), DenseI64ArrayAttr());
}

/// Whether a part changes what the program is given.
static bool updates(pipe::InvokeOp invoke) {
  auto program = cast<pipe::ProgramOp>(invoke->getParentOp());
  Operation *terminator = program.getBody().front().getTerminator();
  return llvm::any_of(terminator->getOpOperands(), [&](OpOperand &operand) {
    return operand.get().getDefiningOp() == invoke &&
           program.getResultAttr(operand.getOperandNumber(),
                                 graph::kUpdatesAttr);
  });
}

LogicalResult Unroller::run(ArrayRef<pipe::Action> actions, bool stops) {
  std::map<std::pair<std::string, int64_t>, pipe::InvokeOp> invokes;
  for (auto invoke : source.getBody().getOps<pipe::InvokeOp>())
    invokes[{invoke.getPart().str(), invoke.getStage()}] = invoke;
  program = createProgram();
  builder.setInsertionPointToEnd(&program.getBody().front());
  for (const pipe::Action &action : actions) {
    if (action.kind != pipe::Action::Kind::Run) {
      transfer(action);
      continue;
    }
    pipe::InvokeOp invoke = invokes[{action.part, action.stage}];
    for (Value operand : invoke.getInputs())
      if (invoke.getOnce() && values[operand].size() > 1)
        return invoke.emitOpError("runs once, and reads what is saved for "
                                  "each micro-batch");
    // A step that is stopped leaves nothing under way.
    if (invoke.getOnce())
      finishSends();
    if (stops && updates(invoke)) {
      stop();
      stops = false;
    }
    runPart(invoke, std::max<int64_t>(action.microBatch, 0));
  }
  finishSends();
  if (stops)
    stop();
  if (failed(createReturn()))
    return failure();
  return linkUpdates(program, symbols);
}

namespace {
/// Unrolls one program for all positions.
class Positions {
public:
  Positions(pipe::ProgramOp source, SymbolTable &symbols)
      : source(source), symbols(symbols) {}

  LogicalResult run();

private:
  LogicalResult readSource();
  void dropCopies();
  FailureOr<bool> deferChecks();

  pipe::ProgramOp source;
  SymbolTable &symbols;
  pipe::Schedule schedule;
  pipe::StageMap map;
};
} // namespace

LogicalResult Positions::readSource() {
  std::set<std::pair<StringRef, int64_t>> seen;
  for (auto invoke : source.getBody().getOps<pipe::InvokeOp>())
    if (!seen.insert({invoke.getPart(), invoke.getStage()}).second)
      return invoke.emitOpError("is a second part \"")
             << invoke.getPart() << "\" of stage " << invoke.getStage();
  FailureOr<pipe::Schedule> read = pipe::readSchedule(source);
  if (failed(read))
    return failure();
  schedule = std::move(*read);
  FailureOr<pipe::StageMap> found =
      pipe::stageMapOf(source, schedule.devices.size());
  if (failed(found))
    return failure();
  map = *found;
  if (map.kind == pipe::StageMap::Kind::Bidirectional)
    return source.emitOpError("has stages at two positions each, of which no "
                              "native code can be made");
  return success();
}

/// Of several stages at one position that all hold a parameter, one updates it.
void Positions::dropCopies() {
  Operation *terminator = source.getBody().front().getTerminator();
  std::set<std::pair<StringRef, int64_t>> updated;
  llvm::BitVector dropped(terminator->getNumOperands());
  for (auto [i, value] : llvm::enumerate(terminator->getOperands())) {
    auto name = source.getResultAttrOfType<StringAttr>(i, graph::kUpdatesAttr);
    auto invoke = value.getDefiningOp<pipe::InvokeOp>();
    if (!name || !invoke)
      continue;
    bool fresh =
        updated.insert({name.getValue(), map.device(invoke.getStage())}).second;
    if (!fresh && source.getResultAttr(i, pipe::kCopyAttr))
      dropped.set(i);
  }
  if (dropped.none())
    return;
  terminator->eraseOperands(dropped);
  (void)source.eraseResults(dropped);
  for (auto invoke : llvm::make_early_inc_range(
           source.getBody().getOps<pipe::InvokeOp>()))
    dropUnread(invoke);
}

/// Stages do not all run the same, so that they cannot agree at each check;
/// those before the update are deferred. Whether there are any.
FailureOr<bool> Positions::deferChecks() {
  if (map.devices == 1)
    return false;
  bool deferred = false;
  std::vector<int64_t> agreed(map.devices, 0);
  Operation *last = nullptr;
  for (auto invoke : source.getBody().getOps<pipe::InvokeOp>())
    invoke.getPartFunction().walk([&](graph::CheckOp check) {
      if (updates(invoke)) {
        last = check;
        ++agreed[map.device(invoke.getStage())];
        return;
      }
      check->setAttr(kDeferredAttr, UnitAttr::get(check.getContext()));
      deferred = true;
    });
  if (last && !llvm::all_equal(agreed))
    return last->emitOpError("is not made in all stages alike: devices of the "
                             "others would not know that the step stops");
  return deferred;
}

LogicalResult Positions::run() {
  if (failed(readSource()))
    return failure();
  dropCopies();
  FailureOr<bool> stops = deferChecks();
  if (failed(stops))
    return failure();
  Parts parts;
  for (auto invoke : source.getBody().getOps<pipe::InvokeOp>()) {
    FailureOr<PartForms> forms =
        PartForms::create(invoke, source.getMicroBatches());
    if (failed(forms))
      return failure();
    parts.try_emplace(invoke, std::move(*forms));
  }
  annotateIndexBounds(source);
  Transfers transfers(source, schedule, map, symbols);
  // The new symbols take the old one's name, where there is one position.
  symbols.remove(source);
  for (auto [position, actions] : llvm::enumerate(schedule.devices)) {
    Unroller unroller(source, position, map, parts, transfers, symbols);
    if (failed(unroller.run(actions, *stops)))
      return failure();
  }
  source.erase();
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
      if (failed(Positions(program, symbols).run()))
        return signalPassFailure();
  }
};

} // namespace
