//===- MemoryFacts.cpp - The memory that a program needs
//--------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Exec/IR/MemoryKind.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Executable/Cuda/CommandLaunches.h"
#include "cleave/Executable/Transforms/MessageMemory.h"
#include "cleave/Planning/PlanProgram.h"
#include "cleave/Runtime/CPU/Workspace.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include <set>

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;
using runtime::MemoryPlan;

static int64_t integer(Operation *op, StringRef name) {
  auto attr = op->getAttrOfType<IntegerAttr>(name);
  return attr ? attr.getInt() : 0;
}

namespace {
/// Finds the memory of the entries at one pipeline position.
class PositionMemory {
public:
  PositionMemory(ModuleOp module, const SymbolTable &symbols,
                 ArrayRef<ProgramOp> programs)
      : module(module), symbols(symbols), programs(programs) {}

  MemoryPlan::Position find();

private:
  void addArguments(ProgramOp program);
  void addConstants();
  void addOutputs(ProgramOp program);
  MemoryPlan::Entry describe(ProgramOp program) const;

  ModuleOp module;
  const SymbolTable &symbols;
  ArrayRef<ProgramOp> programs;
  MemoryPlan::Position plan;
  /// Each fixed offset counts once, however many entries name it.
  std::set<int64_t> seen;
};
} // namespace

void PositionMemory::addArguments(ProgramOp program) {
  for (BlockArgument argument : program.getBody().getArguments()) {
    unsigned number = argument.getArgNumber();
    auto offset = program.getArgAttrOfType<IntegerAttr>(number, kOffsetAttr);
    auto role = program.getArgAttrOfType<StringAttr>(number, graph::kRoleAttr);
    auto name = program.getArgAttrOfType<StringAttr>(number, graph::kNameAttr);
    if (!offset || program.getArgAttr(number, kTierAttr) ||
        !seen.insert(offset.getInt()).second)
      continue;
    int64_t bytes = extentBytes(cast<RankedTensorType>(argument.getType()));
    plan.fixed.push_back(
        {role ? role.str() : "other", name ? name.str() : "", bytes});
    plan.bytesOfRoles[plan.fixed.back().role] += bytes;
  }
}

void PositionMemory::addConstants() {
  auto add = [&](ConstantOp constant) {
    if (auto offset = constant->getAttrOfType<IntegerAttr>(kOffsetAttr);
        offset && seen.insert(offset.getInt()).second)
      plan.bytesOfRoles["constant"] += extentBytes(constant.getType());
  };
  llvm::DenseSet<StringRef> visited;
  for (ProgramOp program : programs) {
    program.walk(add);
    for (auto run : program.getBody().getOps<RunOp>())
      if (visited.insert(run.getCallee()).second)
        if (auto part = symbols.lookup<func::FuncOp>(run.getCallee());
            part && !part.isExternal())
          part.walk(add);
  }
}

/// Small outputs have fixed offsets; others are in the shared region.
void PositionMemory::addOutputs(ProgramOp program) {
  for (auto [i, value] : llvm::enumerate(
           program.getBody().front().getTerminator()->getOperands()))
    if (auto offset = program.getResultAttrOfType<IntegerAttr>(i, kOffsetAttr);
        offset && !program.getResultAttr(i, kTierAttr) &&
        offset.getInt() < plan.arenaBytes - plan.sharedBytes &&
        seen.insert(offset.getInt()).second)
      plan.bytesOfRoles["output"] +=
          extentBytes(cast<RankedTensorType>(value.getType()));
}

MemoryPlan::Entry PositionMemory::describe(ProgramOp program) const {
  MemoryPlan::Entry entry;
  entry.peakBytes = integer(program, kPeakAttr);
  entry.lowerBoundBytes = integer(program, kLowerBoundAttr);
  entry.gradientPeakBytes = integer(program, kGradientPeakAttr);
  entry.keptBytes = integer(program, kKeptBytesAttr);
  for (const auto &[role, bytes] : plan.bytesOfRoles)
    entry.kindsAtPeak[memoryKindName(memoryKindOfRole(role)).str()] += bytes;
  if (auto items = program->getAttrOfType<ArrayAttr>(kLiveAttr))
    for (auto item : items.getAsRange<DictionaryAttr>())
      entry.kindsAtPeak[cast<StringAttr>(item.get("kind")).str()] +=
          cast<IntegerAttr>(item.get("bytes")).getInt();
  // Alignment, gaps between buffers, and what other entries need.
  int64_t unused = plan.arenaBytes;
  for (const auto &[kind, bytes] : entry.kindsAtPeak)
    unused -= bytes;
  entry.kindsAtPeak["unused"] = unused;
  return entry;
}

MemoryPlan::Position PositionMemory::find() {
  plan.arenaBytes = integer(module, kArenaBytesAttr);
  for (ProgramOp program : programs)
    if (int64_t own = integer(program, kArenaBytesAttr))
      plan.arenaBytes = own;
  plan.threads = integer(module, kThreadsAttr);
  plan.tierBytes = integer(ProgramOp(programs.front()), kTierBytesAttr);
  for (ProgramOp program : programs) {
    addArguments(program);
    plan.sharedBytes = std::max(plan.sharedBytes, integer(program, kPeakAttr));
  }
  addConstants();
  for (ProgramOp program : programs)
    addOutputs(program);
  for (ProgramOp program : programs)
    plan.entries[program.getEntryName().str()] = describe(program);
  return std::move(plan);
}

/// Adds what a device needs outside of its arena. Entries that are not run in
/// training may need more for messages.
static void addOutside(const runtime::Program &program,
                       MemoryPlan::Position &plan) {
  plan.libraryBytes = !program.isForGpu()
                          ? runtime::workspaceBytes(program)
                          : runtime::cuda::outsideBytes(program);
  plan.messageBytes = messageBytes(program);
  for (const auto &[name, bytes] : messageBytesOfEntries(program))
    if (auto entry = plan.entries.find(name); entry != plan.entries.end())
      entry->second.messageBytes = bytes;
}

MemoryPlan cleave::findMemory(ModuleOp module,
                              ArrayRef<runtime::Program> programs) {
  std::map<int64_t, SmallVector<ProgramOp>> positions;
  for (auto program : module.getOps<ProgramOp>())
    positions[program.getPipelinePosition()].push_back(program);
  SymbolTable symbols(module);
  MemoryPlan memory;
  for (auto &[number, entries] : positions) {
    MemoryPlan::Position plan = PositionMemory(module, symbols, entries).find();
    plan.number = number;
    if (memory.positions.size() < programs.size())
      addOutside(programs[memory.positions.size()], plan);
    memory.positions.push_back(std::move(plan));
    if (memory.positions.back().arenaBytes >
        memory.positions[memory.largest].arenaBytes)
      memory.largest = memory.positions.size() - 1;
  }
  return memory;
}
