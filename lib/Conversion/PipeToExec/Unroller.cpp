//===- Unroller.cpp - The list of actions of one position -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Unroller.h"
#include "cleave/Dialect/Exec/IR/Views.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

Value Unroller::constantRow(Attribute value, RankedTensorType type,
                            RankedTensorType row, int64_t index, Location loc) {
  Value &constant = constants[value];
  if (!constant) {
    OpBuilder::InsertionGuard guard(builder);
    builder.setInsertionPointToStart(&program.getBody().front());
    constant = ConstantOp::create(builder, loc, type, value);
  }
  Strided layout = getLayout(type);
  layout.offset += index * layout.strides.front();
  layout.strides.erase(layout.strides.begin());
  return viewAs(builder, loc, constant, withLayout(row, layout));
}

Value Unroller::valueOf(Value value, int64_t dim, int64_t microBatch) {
  SmallVector<Value> &known = values[value];
  Value result = known.size() == 1 ? known.front() : known[microBatch];
  if (dim < 0)
    return result;
  return viewAs(builder, result.getLoc(), result,
                sliceAt(tensorTypeOf(result), dim, microBatch, whole));
}

void Unroller::runPart(pipe::InvokeOp invoke, int64_t microBatch) {
  PartForms &forms = parts.forms.find(invoke)->second;
  // The number of the pending sums that the new one completes.
  SmallVector<SmallVector<Value>> &sums = open[invoke];
  unsigned merged = 0;
  if (!forms.sums.empty() && !invoke.getOnce()) {
    int64_t runs = ++done[invoke];
    if (!source.getTreeSums())
      merged = sums.size();
    else if (runs == count)
      merged = sums.size();
    else // sums are of powers of 2, the larger ones are older
      merged = llvm::countr_zero(static_cast<uint64_t>(runs));
  }
  func::FuncOp part = merged ? forms.onto(merged, symbols) : forms.first;
  SmallVector<Value> operands;
  for (auto [value, dim] :
       llvm::zip_equal(invoke.getInputs(), invoke.getSplit())) {
    Value version = versions.read(value);
    operands.push_back(version ? version : valueOf(value, dim, microBatch));
  }
  for (auto [constant, type] : llvm::zip_equal(forms.constants, forms.rowTypes))
    operands.push_back(constantRow(constant.first, constant.second, type,
                                   microBatch, invoke.getLoc()));
  for (size_t k = 0; k < forms.sums.size() && merged; ++k)
    for (unsigned j = 0; j < merged; ++j)
      operands.push_back(sums[sums.size() - 1 - j][k]);
  // Its readers run once.
  for (auto [i, operand] : llvm::enumerate(operands))
    if (llvm::any_of(kept, [&](const Kept &own) { return own.old == operand; }))
      part.setArgAttr(i, kKeptAttr, builder.getUnitAttr());
  if (!merged)
    part = versions.formOf(invoke, part, operands, symbols);
  SmallVector<Type> types(part.getResultTypes());
  for (unsigned i = 0; i < invoke.getNumResults(); ++i)
    if (std::optional<int64_t> dim = invoke.getConcatDim(i))
      types[i] =
          sliceAt(tensorTypeOf(invoke.getResult(i)), *dim, microBatch, whole);
  auto run = RunOp::create(builder, invoke.getLoc(), types,
                           FlatSymbolRefAttr::get(part.getSymNameAttr()),
                           operands, builder.getI64IntegerAttr(microBatch),
                           IntegerAttr(), DenseI64ArrayAttr());
  latest = run;
  versions.finish(invoke, run.getResults());
  for (auto [i, result] : llvm::enumerate(run.getResults())) {
    SmallVector<Value> &known = values[invoke.getResult(i)];
    if (invoke.isSaved(i) || invoke.getConcatDim(i)) {
      known.resize(invoke.getOnce() ? 1 : count);
      known[microBatch] = result;
    } else if (invoke.isAccumulated(i) || invoke.getVersioned(i) ||
               known.empty()) {
      known.assign(1, result);
    }
    if (invoke.getConcatDim(i) &&
        llvm::all_of(known, [](Value v) { return bool(v); }) &&
        known.size() > 1)
      known.assign(1, JoinOp::create(builder, invoke.getLoc(),
                                     tensorTypeOf(invoke.getResult(i)),
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

void cleave::exec::findUses(pipe::ProgramOp source,
                            const scheduling::StageMap &map, Parts &parts) {
  llvm::StringMap<BlockArgument> named;
  for (BlockArgument argument : source.getBody().getArguments())
    if (auto name = source.getArgAttrOfType<StringAttr>(argument.getArgNumber(),
                                                        graph::kNameAttr))
      named.try_emplace(name.getValue(), argument);
  parts.usedAt.resize(map.devices);
  auto use = [&](BlockArgument argument, pipe::InvokeOp invoke) {
    parts.used.insert(argument);
    parts.usedAt[map.device(invoke.getStage())].insert(argument);
  };
  for (BlockArgument argument : source.getBody().getArguments())
    for (Operation *user : argument.getUsers())
      if (auto invoke = dyn_cast<pipe::InvokeOp>(user))
        use(argument, invoke);
  auto returned = cast<pipe::ReturnOp>(source.getBody().front().back());
  for (auto [i, value] : llvm::enumerate(returned.getValues())) {
    auto updated =
        source.getResultAttrOfType<StringAttr>(i, graph::kUpdatesAttr);
    auto invoke = value.getDefiningOp<pipe::InvokeOp>();
    if (updated && invoke)
      if (auto it = named.find(updated.getValue()); it != named.end())
        use(it->second, invoke);
  }
  for (BlockArgument argument : source.getBody().getArguments()) {
    auto attr = source.getArgAttrOfType<StringAttr>(argument.getArgNumber(),
                                                    graph::kNameAttr);
    StringRef name = attr ? attr.getValue() : StringRef();
    while (name.consume_front(graph::kPreviousPrefix))
      if (auto it = named.find(name); it != named.end())
        parts.previous.push_back({argument, it->second});
  }
  for (auto invoke : source.getBody().getOps<pipe::InvokeOp>())
    if (updates(invoke))
      parts.updating.insert(invoke);
}

/// An argument is held where parts read or update it; one that no part uses, at
/// position 0; a scalar also where its value of the previous step is read.
void Unroller::findHeld() {
  held = parts.usedAt[position];
  if (position == 0)
    for (BlockArgument argument : source.getBody().getArguments())
      if (!parts.used.contains(argument))
        held.insert(argument);
  for (auto [argument, current] : parts.previous)
    if (held.contains(argument))
      held.insert(current);
}

/// The program without its body; its results are known at the end.
ProgramOp Unroller::createProgram() {
  SmallVector<Type> inputs;
  SmallVector<Attribute> attrs;
  Region body;
  Block &block = body.emplaceBlock();
  findHeld();
  for (BlockArgument argument : source.getBody().getArguments()) {
    if (!held.contains(argument))
      continue;
    inputs.push_back(argument.getType());
    attrs.push_back(
        attributesOr(source.getArgAttrDict(argument.getArgNumber())));
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
      several ? source.getSymNameAttr() : StringAttr(), ArrayAttr());
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
        invoke ? !isHere(invoke) : !held.contains(value))
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

//===----------------------------------------------------------------------===//
// Repetition
//===----------------------------------------------------------------------===//

/// Runs unrolled since the last call belong to `place`.
void Unroller::noteRuns(const Place &place) {
  for (RunOp run : noted.fresh)
    noted.places[run] = place;
  noted.fresh.clear();
}

/// A prologue, if each micro-batch has its own update.
static bool isCheck(const scheduling::Action &action) {
  return action.kind == scheduling::Action::Kind::Run && action.part == "P";
}

/// If each micro-batch has its own update, all positions agree after checking
/// their inputs, which depends on nothing else. A later agreement could
/// deadlock: one position would wait for another that waits for it. So these
/// checks come first.
static SmallVector<scheduling::Action>
checksFirst(ArrayRef<scheduling::Action> list) {
  SmallVector<scheduling::Action> actions;
  for (bool checks : {true, false})
    llvm::copy_if(list, std::back_inserter(actions),
                  [&](const scheduling::Action &action) {
                    return checks == isCheck(action);
                  });
  return actions;
}

/// Whether the positions must have agreed earlier that the step continues. If
/// updates come first, a stopped step has made all of them, or undoes those it
/// has made.
bool Unroller::needsAgreement(pipe::InvokeOp invoke) const {
  if (source->hasAttr(pipe::kPostValidatedAttr))
    return invoke.isConditional();
  return !source->hasAttr(pipe::kEarlyUpdateAttr) &&
         parts.updating.contains(invoke);
}

/// Positions agree before the first update of each whether the step continues.
/// A position with a pending receive would wait for a sender that waits for the
/// agreement: updates, and the parts that depend on them, come last.
void Unroller::updatesLast(SmallVector<scheduling::Action> &actions,
                           SmallVector<Place> &places) {
  std::set<std::pair<StringRef, int64_t>> late;
  llvm::DenseSet<Operation *> invokes;
  for (auto invoke : source.getBody().getOps<pipe::InvokeOp>())
    if ((invoke.getOnce() && needsAgreement(invoke)) ||
        llvm::any_of(invoke.getInputs(), [&](Value input) {
          return invokes.contains(input.getDefiningOp());
        })) {
      invokes.insert(invoke);
      late.insert({invoke.getPart(), invoke.getStage()});
    }
  SmallVector<scheduling::Action> ordered;
  SmallVector<Place> own;
  for (bool behind : {false, true})
    for (auto [action, place] : llvm::zip_equal(actions, places))
      if (late.count({action.part, action.stage}) == behind) {
        ordered.push_back(action);
        own.push_back(place);
      }
  actions = std::move(ordered);
  places = std::move(own);
}

/// Whether a step may stop before or in a part that runs once.
bool Unroller::mayStop(pipe::InvokeOp invoke) const {
  auto part = symbols.lookup<func::FuncOp>(invoke.getCallee());
  return parts.updating.contains(invoke) ||
         part.walk([](graph::CheckOp) { return WalkResult::interrupt(); })
             .wasInterrupted();
}

LogicalResult Unroller::runActions(ArrayRef<scheduling::Action> actions,
                                   ArrayRef<Place> places, int64_t stops) {
  std::map<std::pair<std::string, int64_t>, pipe::InvokeOp> invokes;
  for (auto invoke : source.getBody().getOps<pipe::InvokeOp>())
    invokes[{invoke.getPart().str(), invoke.getStage()}] = invoke;
  for (auto [action, place] : llvm::zip_equal(actions, places)) {
    noteRuns(here);
    here = place;
    for (bool first = versions.any() && !isCheck(action); first && stops > 0;
         --stops) {
      stop();
      // No transfer begins before that.
      latest = nullptr;
    }
    if (action.kind != scheduling::Action::Kind::Run) {
      transfer(action);
      continue;
    }
    pipe::InvokeOp invoke = invokes[{action.part, action.stage}];
    for (Value operand : invoke.getInputs())
      if (invoke.getOnce() && values[operand].size() > 1)
        return invoke.emitOpError("runs once, and reads what is saved for "
                                  "each micro-batch");
    bool optimistic =
        source->hasAttr(pipe::kPostValidatedAttr) && updatesFirst(invoke);
    // A stopped step leaves no transfer in flight; other parts that run once,
    // such as a reduction, overlap with transfers.
    if (invoke.getOnce() && !optimistic && mayStop(invoke)) {
      finishReceives(receiving.size());
      finishSends();
    }
    if (needsAgreement(invoke)) {
      stopAll(stops);
      stops = 0;
    }
    // If updates of the step before come first, a step stops behind its own
    // writes, such as those of buffers.
    bool undone = source->hasAttr(pipe::kEarlyUpdateAttr) && stops > 0 &&
                  invoke.getPart() == "U" && parts.updating.contains(invoke);
    SmallVector<std::pair<Value, Value>> copied;
    if (optimistic || undone)
      copied = keepOld(invoke);
    int64_t microBatch = std::max<int64_t>(action.microBatch, 0);
    finishReceivesOf(invoke, microBatch);
    runPart(invoke, microBatch);
    // Later readers read the saved value.
    for (auto [argument, old] : copied)
      values[argument].assign(1, old);
  }
  finishReceives(receiving.size());
  finishSends();
  stopAll(stops);
  noteRuns(here);
  return success();
}

FailureOr<ProgramOp> Unroller::run(const scheduling::ReducedSchedule &list,
                                   int64_t stops) {
  count = whole - list.removed;
  transfers.setRemoved(list.removed);
  builder.setListener(&noted);
  program = createProgram();
  builder.setInsertionPointToEnd(&program.getBody().front());
  SmallVector<scheduling::Action> actions =
      llvm::to_vector(list.schedule.devices[position]);
  SmallVector<Place> places = llvm::to_vector(list.places[position]);
  if (versions.any()) {
    actions = checksFirst(actions);
    if (failed(planVersions(actions)))
      return failure();
  } else if (!source->hasAttr(pipe::kEarlyUpdateAttr)) {
    updatesLast(actions, places);
  }
  if (failed(runActions(actions, places, stops)))
    return failure();
  builder.setListener(nullptr);
  if (list.removed > 0) {
    std::optional<SmallVector<Attribute>> repeats =
        RunList(program, list.removed).repeat(noted.places);
    if (!repeats) {
      program.erase();
      return ProgramOp();
    }
    program.setRepeatsAttr(builder.getArrayAttr(*repeats));
  }
  if (failed(createReturn()) || failed(linkUpdates(program, symbols)))
    return failure();
  return program;
}

LogicalResult Unroller::planVersions(ArrayRef<scheduling::Action> actions) {
  for (auto [argument, maker] : pipe::versionedArguments(source))
    if (isHere(cast<pipe::InvokeOp>(maker.getOwner())) &&
        values[argument].empty())
      return maker.getOwner()->emitOpError("gives a version of ")
             << graph::nameArgument(argument)
             << ", which no part at its position reads: let it update what is "
                "there";
  std::map<std::pair<StringRef, int64_t>, pipe::InvokeOp> invokes;
  for (auto invoke : source.getBody().getOps<pipe::InvokeOp>())
    invokes[{invoke.getPart(), invoke.getStage()}] = invoke;
  SmallVector<std::pair<pipe::InvokeOp, int64_t>> runs;
  for (const scheduling::Action &action : actions)
    if (action.kind == scheduling::Action::Kind::Run)
      runs.push_back({invokes[{action.part, action.stage}], action.microBatch});
  versions.plan(
      runs, [&](BlockArgument argument) { return values[argument].front(); });
  return success();
}
