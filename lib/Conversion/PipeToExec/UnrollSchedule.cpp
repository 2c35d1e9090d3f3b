//===- UnrollSchedule.cpp - Programs as lists of actions ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "IndexBounds.h"
#include "Unroller.h"
#include "cleave/Conversion/Passes.h"
#include "cleave/Dialect/Graph/IR/Attributes/Clones.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Pipe/IR/PartFunctions.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "cleave/Support/PassCounts.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/Debug.h"

#define DEBUG_TYPE "exec-unroll-schedule"

static cleave::PassCount writtenActions(DEBUG_TYPE,
                                        "Actions that are written out");
static cleave::PassCount partForms(DEBUG_TYPE, "Forms of parts that they run");

namespace cleave::exec {
#define GEN_PASS_DEF_UNROLLSCHEDULE
#include "cleave/Conversion/Passes.h.inc"
} // namespace cleave::exec

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

namespace {
/// Unrolls one program for all positions.
class Positions {
public:
  Positions(pipe::ProgramOp source, SymbolTable &symbols, bool writeOut)
      : source(source), symbols(symbols), writeOut(writeOut) {}

  LogicalResult run();

private:
  LogicalResult readSource();
  int64_t lastRun(pipe::InvokeOp invoke);
  LogicalResult dropCopies();
  LogicalResult deferChecks();
  scheduling::ReducedSchedule inFull() const;
  scheduling::ReducedSchedule shorter();

  pipe::ProgramOp source;
  SymbolTable &symbols;
  /// Writes out each action, without repetitions.
  bool writeOut;
  scheduling::Schedule schedule;
  scheduling::StageMap map;
  /// The number of times that each position must agree with the others before
  /// its first update, besides the agreements of its own checks.
  SmallVector<int64_t> stops;
};
} // namespace

LogicalResult Positions::readSource() {
  std::set<std::pair<StringRef, int64_t>> seen;
  for (auto invoke : source.getBody().getOps<pipe::InvokeOp>())
    if (!seen.insert({invoke.getPart(), invoke.getStage()}).second)
      return invoke.emitOpError("is a second part \"")
             << invoke.getPart() << "\" of stage " << invoke.getStage();
  FailureOr<scheduling::Schedule> read = pipe::readSchedule(source);
  if (failed(read) || failed(pipe::verifyPartFunctions(source)))
    return failure();
  schedule = std::move(*read);
  FailureOr<scheduling::StageMap> found =
      pipe::stageMapOf(source, schedule.devices.size());
  if (failed(found))
    return failure();
  map = *found;
  if (map.kind == scheduling::StageMap::Kind::Bidirectional)
    return source.emitOpError("has stages at two positions each, of which no "
                              "native code can be made: choose another "
                              "schedule");
  return success();
}

/// Readers of `copy` read `kept` instead, the same value of another part; the
/// results of its own part that depend on it are replaced too.
static void readInstead(OpResult copy, Value kept) {
  auto invoke = cast<pipe::InvokeOp>(copy.getOwner());
  copy.replaceAllUsesWith(kept);
  func::FuncOp part = invoke.getPartFunction();
  Operation *terminator = part.front().getTerminator();
  Value made = terminator->getOperand(copy.getResultNumber());
  if (!made.getDefiningOp() || made.hasOneUse())
    return;
  (void)part.insertArgument(part.getNumArguments(), made.getType(), {},
                            made.getLoc());
  made.replaceAllUsesExcept(part.getArguments().back(), terminator);
  invoke.getInputsMutable().append(kept);
  SmallVector<int64_t> split(invoke.getSplit());
  split.push_back(-1);
  invoke.setSplit(split);
}

/// The place of the last run of `invoke` at its position.
int64_t Positions::lastRun(pipe::InvokeOp invoke) {
  ArrayRef<scheduling::Action> actions =
      schedule.devices[map.device(invoke.getStage())];
  for (int64_t i = static_cast<int64_t>(actions.size()) - 1; i >= 0; --i)
    if (actions[i].kind == scheduling::Action::Kind::Run &&
        actions[i].part == invoke.getPart() &&
        actions[i].stage == static_cast<int64_t>(invoke.getStage()))
      return i;
  return -1;
}

/// If several stages at one position hold a parameter, one of them updates it:
/// the one that runs last, because the others read the value of before. If
/// updates come first, the first one, and the others read the updated value.
LogicalResult Positions::dropCopies() {
  Operation *terminator = source.getBody().front().getTerminator();
  bool early = source->hasAttr(pipe::kEarlyUpdateAttr);
  std::map<std::pair<StringRef, int64_t>, std::pair<OpResult, unsigned>>
      updated;
  llvm::BitVector dropped(terminator->getNumOperands());
  SmallVector<std::pair<OpResult, OpResult>> replaced;
  for (auto [i, value] : llvm::enumerate(terminator->getOperands())) {
    auto name = source.getResultAttrOfType<StringAttr>(i, graph::kUpdatesAttr);
    auto invoke = value.getDefiningOp<pipe::InvokeOp>();
    if (!name || !invoke)
      continue;
    auto [kept, fresh] =
        updated.insert({{name.getValue(), map.device(invoke.getStage())},
                        {cast<OpResult>(value), i}});
    if (fresh || !source.getResultAttr(i, pipe::kCopyAttr))
      continue;
    auto &[result, number] = kept->second;
    if (early) {
      dropped.set(i);
      replaced.push_back({cast<OpResult>(value), result});
    } else if (lastRun(invoke) >
               lastRun(cast<pipe::InvokeOp>(result.getOwner()))) {
      dropped.set(number);
      kept->second = {cast<OpResult>(value), i};
    } else {
      dropped.set(i);
    }
  }
  if (dropped.none())
    return success();
  terminator->eraseOperands(dropped);
  (void)source.eraseResults(dropped);
  for (auto [copy, kept] : replaced) {
    auto later = cast<pipe::InvokeOp>(copy.getOwner());
    auto first = cast<pipe::InvokeOp>(kept.getOwner());
    if (later == first)
      continue;
    auto runs = [](pipe::InvokeOp invoke, const scheduling::Action &action) {
      return action.part == invoke.getPart() &&
             action.stage == static_cast<int64_t>(invoke.getStage());
    };
    for (const scheduling::Action &action :
         schedule.devices[map.device(first.getStage())]) {
      if (runs(first, action))
        break;
      if (runs(later, action))
        return source.emitOpError("schedule: ")
               << action.str() << " reads a parameter that stage "
               << first.getStage() << " updates at the same position: let "
               << first.getPart() << " of that stage run first";
    }
    readInstead(copy, kept);
  }
  // Ops that only dropped values need are dropped too.
  SmallVector<pipe::InvokeOp> invokes(
      source.getBody().getOps<pipe::InvokeOp>());
  for (pipe::InvokeOp invoke : llvm::reverse(invokes))
    dropUnusedResults(invoke);
  return success();
}

/// Identifies a check of the entry: by its number, or, without one, by its
/// message and the number of earlier checks with that message.
using CheckKey = std::pair<StringRef, int64_t>;

/// Stages run different checks, so that they cannot agree at each one. Checks
/// before the update are deferred. Checks of the update, which each stage
/// computes from the same numbers, are kept once at each position; a position
/// that updates nothing takes part in the agreement too. If updates come first,
/// all checks take effect after them.
LogicalResult Positions::deferChecks() {
  stops.assign(map.devices, 0);
  bool deferred = false;
  if (source->hasAttr(pipe::kEarlyUpdateAttr)) {
    for (auto invoke : source.getBody().getOps<pipe::InvokeOp>())
      invoke.getPartFunction().walk([&](graph::CheckOp check) {
        check->setAttr(kDeferredAttr, UnitAttr::get(check.getContext()));
        deferred = true;
      });
    stops.assign(map.devices, deferred ? 1 : 0);
    return success();
  }
  if (map.devices == 1)
    return success();
  std::map<std::pair<StringRef, int64_t>, pipe::InvokeOp> updating;
  for (auto invoke : source.getBody().getOps<pipe::InvokeOp>()) {
    if (updates(invoke)) {
      updating[{invoke.getPart(), invoke.getStage()}] = invoke;
      continue;
    }
    invoke.getPartFunction().walk([&](graph::CheckOp check) {
      check->setAttr(kDeferredAttr, UnitAttr::get(check.getContext()));
      deferred = true;
    });
  }
  // The first update at a position runs the check.
  SmallVector<pipe::InvokeOp> inOrder;
  for (const std::vector<scheduling::Action> &actions : schedule.devices)
    for (const scheduling::Action &action : actions)
      if (action.kind == scheduling::Action::Kind::Run)
        if (auto it = updating.find({action.part, action.stage});
            it != updating.end()) {
          inOrder.push_back(it->second);
          updating.erase(it);
        }
  std::vector<std::set<CheckKey>> kept(map.devices);
  SmallVector<graph::CheckOp> again;
  Operation *last = nullptr;
  for (pipe::InvokeOp invoke : inOrder) {
    std::map<StringRef, int64_t> same;
    invoke.getPartFunction().walk([&](graph::CheckOp check) {
      auto number = check->getAttrOfType<IntegerAttr>(pipe::kCheckAttr);
      CheckKey key{number ? "" : check.getMessage(),
                   number ? number.getInt() : same[check.getMessage()]++};
      if (kept[map.device(invoke.getStage())].insert(key).second)
        last = check;
      else
        again.push_back(check);
    });
  }
  for (graph::CheckOp check : again)
    check.erase();
  size_t most = 0;
  for (const std::set<CheckKey> &own : kept)
    most = std::max(most, own.size());
  for (auto [count, own] : llvm::zip_equal(stops, kept)) {
    if (!own.empty() && own.size() != most)
      return last->emitOpError("is not made in all stages alike: devices of "
                               "the others would not know that the step stops");
    count = (deferred ? 1 : 0) + static_cast<int64_t>(most - own.size());
  }
  return success();
}

scheduling::ReducedSchedule Positions::inFull() const {
  scheduling::ReducedSchedule list{schedule, {}, 0};
  for (const std::vector<scheduling::Action> &actions : schedule.devices)
    list.places.emplace_back(actions.size());
  return list;
}

/// The schedule with repetitions left out. In a tree, no two sums are formed
/// alike, and versions of parameters use different memory, so nothing is left
/// out.
scheduling::ReducedSchedule Positions::shorter() {
  if (writeOut || source.getTreeSums() ||
      !pipe::versionedArguments(source).empty())
    return inFull();
  std::map<std::pair<StringRef, int64_t>, bool> saves;
  for (auto invoke : source.getBody().getOps<pipe::InvokeOp>()) {
    bool &own = saves[{invoke.getPart(), invoke.getStage()}];
    for (OpResult result : invoke->getResults())
      if (invoke.isSaved(result.getResultNumber()) && !result.use_empty()) {
        own = true;
        for (Operation *user : result.getUsers())
          if (auto reader = dyn_cast<pipe::InvokeOp>(user))
            saves[{reader.getPart(), reader.getStage()}] = true;
      }
  }
  return scheduling::reducePeriods(schedule, source.getMicroBatches(),
                                   [&](const scheduling::Action &action) {
                                     return saves[{action.part, action.stage}];
                                   });
}

LogicalResult Positions::run() {
  if (failed(readSource()))
    return failure();
  if (failed(dropCopies()) || failed(deferChecks()))
    return failure();
  Parts parts;
  for (auto invoke : source.getBody().getOps<pipe::InvokeOp>()) {
    FailureOr<PartForms> forms =
        PartForms::create(invoke, source.getMicroBatches());
    if (failed(forms))
      return failure();
    parts.forms.try_emplace(invoke, std::move(*forms));
  }
  findUses(source, map, parts);
  annotateIndexBounds(source);
  Transfers transfers(source, schedule, map, symbols);
  // With one position, the new symbols take the old name.
  symbols.remove(source);
  scheduling::ReducedSchedule whole = inFull(), list = shorter();
  for (int64_t position = 0; position < map.devices; ++position) {
    FailureOr<ProgramOp> made = ProgramOp();
    for (const scheduling::ReducedSchedule *form : {&list, &whole}) {
      Unroller unroller(source, position, map, parts, transfers, symbols);
      made = unroller.run(*form, stops[position]);
      if (failed(made) || *made)
        break;
    }
    if (failed(made))
      return failure();
  }
  source.erase();
  return success();
}

/// Native code divides by extents and computes strides over rows, so that it
/// needs tensors with at least one element.
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

/// Names of what an entry reads or updates.
using UsedNames = std::set<StringRef>;

static StringRef argumentText(pipe::ProgramOp program, unsigned i,
                              StringRef attribute) {
  auto text = program.getArgAttrOfType<StringAttr>(i, attribute);
  return text ? text.getValue() : StringRef();
}

static UsedNames usedNames(pipe::ProgramOp program) {
  UsedNames names;
  for (BlockArgument argument : program.getBody().getArguments())
    if (!argument.use_empty())
      names.insert(
          argumentText(program, argument.getArgNumber(), graph::kNameAttr));
  for (unsigned i = 0, e = program.getNumResults(); i < e; ++i)
    if (auto name =
            program.getResultAttrOfType<StringAttr>(i, graph::kUpdatesAttr))
      names.insert(name.getValue());
  return names;
}

/// What an entry does not use and another one does, is held only where that one
/// does: a copy at another position would not be updated.
static LogicalResult dropUnused(pipe::ProgramOp program,
                                const UsedNames &usedSomewhere) {
  UsedNames own = usedNames(program);
  llvm::BitVector dropped(program.getNumArguments());
  for (unsigned i = 0, e = program.getNumArguments(); i < e; ++i) {
    StringRef name = argumentText(program, i, graph::kNameAttr);
    StringRef role = argumentText(program, i, graph::kRoleAttr);
    if ((role == "parameter" || role == "buffer" || role == "state") &&
        !own.count(name) && usedSomewhere.count(name))
      dropped.set(i);
  }
  return program.eraseArguments(dropped);
}

namespace {

struct UnrollSchedule : exec::impl::UnrollScheduleBase<UnrollSchedule> {
  using UnrollScheduleBase::UnrollScheduleBase;

  void runOnOperation() override {
    if (failed(verifyElements(getOperation())))
      return signalPassFailure();
    graph::renameOldCloneAttrs(getOperation());
    SymbolTable symbols(getOperation());
    UsedNames used;
    for (auto program : getOperation().getOps<pipe::ProgramOp>())
      used.merge(usedNames(program));
    for (auto program : getOperation().getOps<pipe::ProgramOp>())
      if (failed(dropUnused(program, used)))
        return signalPassFailure();
    for (auto program :
         llvm::make_early_inc_range(getOperation().getOps<pipe::ProgramOp>()))
      if (failed(Positions(program, symbols, writeOut).run()))
        return signalPassFailure();
    count();
  }

  void count() {
    llvm::StringSet<> forms;
    for (auto program : getOperation().getOps<ProgramOp>()) {
      LLVM_DEBUG(llvm::dbgs() << "@" << program.getSymName() << " runs");
      for (auto run : program.getBody().getOps<RunOp>()) {
        ++writtenActions;
        forms.insert(run.getCallee());
        LLVM_DEBUG(llvm::dbgs() << " " << run.getCallee());
      }
      LLVM_DEBUG(llvm::dbgs() << "\n");
    }
    partForms += forms.size();
  }
};

} // namespace
