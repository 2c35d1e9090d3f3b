//===- StaleReaders.cpp - Readers of copies that nothing updates ----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Testing/StaleReaders.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "cleave/Dialect/Pipe/Transforms/Passes.h"
#include "cleave/Testing/RunPhases.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Pass/PassManager.h"
#include "llvm/ADT/MapVector.h"
#include <set>

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

StringRef cleave::staleReaderName(StaleReader kind) {
  static constexpr StringLiteral names[] = {"added", "moved", "dropped"};
  return names[static_cast<size_t>(kind)];
}

namespace {
/// Which positions read, and which update, what: a second form of what
/// `verifyCopies` finds, by sets of names.
class Copies {
public:
  explicit Copies(ModuleOp module) {
    for (auto program : module.getOps<ProgramOp>())
      programs.push_back(program);
    FailureOr<Schedule> schedule = readSchedule(programs.front());
    if (failed(schedule))
      return;
    positions = static_cast<int64_t>(schedule->devices.size());
    map = *stageMapOf(programs.front(), positions);
    for (ProgramOp program : programs) {
      std::map<std::string, std::set<int64_t>> own;
      program.walk([&](InvokeOp invoke) {
        for (OpResult result : invoke->getResults())
          for (OpOperand &use : result.getUses())
            if (isa<ReturnOp>(use.getOwner()))
              if (auto name = program.getResultAttrOfType<StringAttr>(
                      use.getOperandNumber(), graph::kUpdatesAttr))
                for (int64_t position : map.devicesOf(invoke.getStage()))
                  own[name.str()].insert(position);
      });
      updates.push_back(std::move(own));
    }
  }

  bool isStale(StringRef name, int64_t position) const {
    return llvm::any_of(updates, [&](const auto &own) {
      auto it = own.find(name.str());
      return it != own.end() && !it->second.count(position);
    });
  }
  bool isStale(InvokeOp invoke) const {
    auto program = invoke->getParentOfType<ProgramOp>();
    for (Value input : invoke.getInputs())
      if (auto argument = dyn_cast<BlockArgument>(input))
        if (auto name = program.getArgAttrOfType<StringAttr>(
                argument.getArgNumber(), graph::kNameAttr))
          for (int64_t position : map.devicesOf(invoke.getStage()))
            if (isStale(name, position))
              return true;
    return false;
  }
  bool isStale() const {
    for (ProgramOp program : programs)
      for (auto invoke : program.getBody().getOps<InvokeOp>())
        if (isStale(invoke))
          return true;
    return false;
  }
  bool isUpdated(StringRef name) const {
    return llvm::any_of(
        updates, [&](const auto &own) { return own.count(name.str()) != 0; });
  }

  SmallVector<ProgramOp> programs;
  int64_t positions = 1;
  StageMap map;

private:
  std::vector<std::map<std::string, std::set<int64_t>>> updates;
};
} // namespace

static std::string nameOf(InvokeOp invoke) {
  return "part " + invoke.getPart().str() + " of stage " +
         std::to_string(invoke.getStage());
}

/// Adds `argument` times 0 to a result of the part that is read, which becomes
/// NaN where the argument is NaN. Returns null if no result takes it.
static InvokeOp readMore(InvokeOp invoke, BlockArgument argument) {
  auto module = invoke->getParentOfType<ModuleOp>();
  func::FuncOp part = invoke.getPartFunction();
  auto type = cast<RankedTensorType>(argument.getType());
  Block &body = part.getBody().front();
  Operation *returned = body.getTerminator();
  auto result = llvm::find_if(returned->getOpOperands(), [&](OpOperand &own) {
    return isa<FloatType>(getElementTypeOrSelf(own.get())) &&
           !invoke->getResult(own.getOperandNumber()).use_empty();
  });
  if (result == returned->getOpOperands().end())
    return nullptr;
  func::FuncOp copy = part.clone();
  SymbolTable(module).insert(copy, part->getIterator());
  Block &own = copy.getBody().front();
  returned = own.getTerminator();
  Value more = own.addArgument(type, argument.getLoc());
  copy.setFunctionType(FunctionType::get(
      copy.getContext(), own.getArgumentTypes(), returned->getOperandTypes()));
  if (ArrayAttr attrs = copy.getArgAttrsAttr()) {
    SmallVector<Attribute> all(attrs.begin(), attrs.end());
    all.push_back(DictionaryAttr::get(copy.getContext()));
    copy.setArgAttrsAttr(ArrayAttr::get(copy.getContext(), all));
  }
  OpBuilder builder(returned);
  graph::Formula f{builder, argument.getLoc()};
  OpOperand &changed = returned->getOpOperand(result->getOperandNumber());
  Value term = f.mul(more, f.scalar(more, 0));
  term = f.sum(term, llvm::to_vector(llvm::seq<int64_t>(0, type.getRank())));
  term = f.cast(term, getElementTypeOrSelf(changed.get()));
  changed.set(f.add(changed.get(), term));
  invoke.getInputsMutable().append(ValueRange{argument});
  SmallVector<int64_t> split(invoke.getSplit());
  split.push_back(-1);
  invoke.setSplit(split);
  invoke.setCallee(copy.getName());
  return invoke;
}

static void addReader(Copies &copies, Random &random, SeededReader &seeded) {
  ProgramOp program = random.pick(copies.programs);
  SmallVector<InvokeOp> invokes(program.getBody().getOps<InvokeOp>());
  SmallVector<BlockArgument> arguments;
  for (BlockArgument argument : program.getArguments())
    if (auto name = program.getArgAttrOfType<StringAttr>(
            argument.getArgNumber(), graph::kNameAttr);
        name && copies.isUpdated(name) &&
        // The first step does not read gradients of a step before.
        program.getArgAttrOfType<StringAttr>(argument.getArgNumber(),
                                             graph::kRoleAttr) !=
            StringAttr::get(program.getContext(), "gradient") &&
        isa<FloatType>(getElementTypeOrSelf(argument)))
      arguments.push_back(argument);
  if (invokes.empty() || arguments.empty())
    return;
  InvokeOp invoke = random.pick(invokes);
  BlockArgument argument = random.pick(arguments);
  if (!readMore(invoke, argument))
    return;
  seeded.what = nameOf(invoke) + " of '@" + program.getSymName().str() +
                "' reads '" +
                program
                    .getArgAttrOfType<StringAttr>(argument.getArgNumber(),
                                                  graph::kNameAttr)
                    .str() +
                "'";
}

static void movePart(ModuleOp module, Copies &copies, StringRef schedule,
                     Random &random, SeededReader &seeded) {
  SmallVector<std::pair<InvokeOp, int64_t>> moves;
  for (ProgramOp program : copies.programs) {
    auto stages = program->getAttrOfType<IntegerAttr>(kStagesAttr);
    std::set<std::pair<std::string, int64_t>> taken;
    for (auto invoke : program.getBody().getOps<InvokeOp>())
      taken.insert({invoke.getPart().str(), invoke.getStage()});
    for (auto invoke : program.getBody().getOps<InvokeOp>())
      for (int64_t to = 0, e = stages ? stages.getInt() : copies.positions;
           invoke.getOnce() && to < e; ++to)
        if (!taken.count({invoke.getPart().str(), to}))
          moves.push_back({invoke, to});
  }
  if (moves.empty())
    return;
  auto [invoke, to] = random.pick(moves);
  seeded.what = nameOf(invoke) + " moves to stage " + std::to_string(to);
  invoke.setStage(to);
  for (ProgramOp program : copies.programs) {
    program.removeScheduleAttr();
    program.removeStageMapAttr();
  }
  PassManager manager(module->getName());
  FillScheduleOptions fill;
  if (!schedule.empty())
    fill.kind = schedule.str();
  manager.addPass(createFillSchedule(fill));
  if (failed(manager.run(module)))
    seeded.what.clear();
}

static void dropUpdate(Copies &copies, Random &random, SeededReader &seeded) {
  SmallVector<std::pair<ProgramOp, unsigned>> several;
  for (ProgramOp program : copies.programs) {
    llvm::MapVector<StringAttr, SmallVector<unsigned>> results;
    Operation *returned = program.getBody().front().getTerminator();
    for (unsigned i = 0, e = returned->getNumOperands(); i < e; ++i)
      if (auto name =
              program.getResultAttrOfType<StringAttr>(i, graph::kUpdatesAttr))
        results[name].push_back(i);
    for (auto &[name, own] : results)
      if (own.size() > 1)
        for (unsigned i : own)
          several.push_back({program, i});
  }
  if (several.empty())
    return;
  auto [program, i] = random.pick(several);
  Operation *returned = program.getBody().front().getTerminator();
  auto invoke = returned->getOperand(i).getDefiningOp<InvokeOp>();
  if (!invoke)
    return;
  seeded.what =
      nameOf(invoke) + " does not keep '" +
      program.getResultAttrOfType<StringAttr>(i, graph::kUpdatesAttr).str() +
      "'";
  // The first of several results has the name of them all.
  if (Attribute name = program.getResultAttr(i, graph::kNameAttr))
    for (unsigned j = i + 1, e = program.getNumResults(); j < e; ++j)
      if (program.getResultAttr(j, graph::kUpdatesAttr) ==
          program.getResultAttr(i, graph::kUpdatesAttr)) {
        program.setResultAttr(j, graph::kNameAttr, name);
        break;
      }
  llvm::BitVector dropped(program.getNumResults());
  dropped.set(i);
  returned->eraseOperand(i);
  if (failed(program.eraseResults(dropped)))
    seeded.what.clear();
}

SeededReader cleave::seedReader(ModuleOp module, StaleReader kind,
                                StringRef schedule, Random &random) {
  ScopedDiagnosticHandler silent(module.getContext(),
                                 [](Diagnostic &) { return success(); });
  SeededReader seeded;
  seeded.module = module.clone();
  {
    Copies copies(*seeded.module);
    if (kind == StaleReader::Added)
      addReader(copies, random, seeded);
    else if (kind == StaleReader::Moved)
      movePart(*seeded.module, copies, schedule, random, seeded);
    else
      dropUpdate(copies, random, seeded);
  }
  if (seeded.what.empty())
    seeded.module = nullptr;
  else
    seeded.stale = Copies(*seeded.module).isStale();
  return seeded;
}

ReaderVerdict
cleave::judgeReader(ModuleOp changed, const NamedTensors &inputs,
                    const std::map<std::string, ReferenceResult> &expected) {
  ReaderVerdict verdict;
  ScopedDiagnosticHandler handler(
      changed.getContext(), [&](Diagnostic &diagnostic) {
        verdict.rejected |= StringRef(diagnostic.str())
                                .contains("would keep its initial value");
        return success();
      });
  PassManager manager(changed->getName());
  manager.addPass(createVerifySchedule());
  verdict.malformed = failed(verify(changed)) ||
                      (failed(manager.run(changed)) && !verdict.rejected);
  for (const auto &[entry, wanted] : expected) {
    auto result = Interpreter(changed, Precision::Exact).run(entry, inputs);
    verdict.unequal |=
        failed(result) || !(compareResults(wanted, *result).error <= 1e-9);
  }
  return verdict;
}
