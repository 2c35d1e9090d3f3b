//===- MemoryReport.cpp - What memory planning decided --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Graph/IR/SourceLine.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "cleave/Reports/Reports.h"
#include "cleave/Scheduling/Timeline/Timeline.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include <map>
#include <set>

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;
namespace json = llvm::json;

static int64_t integer(Operation *op, StringRef name) {
  auto attr = op->getAttrOfType<IntegerAttr>(name);
  return attr ? attr.getInt() : 0;
}

/// The part of an action; null if it has no body.
static func::FuncOp partOf(RunOp run) {
  auto part = SymbolTable::lookupNearestSymbolFrom<func::FuncOp>(
      run, run.getCalleeAttr());
  return part && !part.isExternal() ? part : nullptr;
}

/// The kind of an action; nothing if its part does not have one.
static std::optional<scheduling::EventKind> kindOf(RunOp run) {
  func::FuncOp part = partOf(run);
  auto action =
      part ? part->getAttrOfType<DictionaryAttr>(kActionAttr) : nullptr;
  auto kind = action ? action.getAs<StringAttr>("kind") : nullptr;
  return kind ? scheduling::parseEventKind(kind.getValue()) : std::nullopt;
}

/// The values that forward of a micro-batch saves for its backward: its
/// results, and values that it receives.
static json::Array savedValues(ProgramOp program) {
  auto isRead = [](Value value, ArrayRef<scheduling::EventKind> kinds) {
    return llvm::any_of(value.getUsers(), [&](Operation *user) {
      auto reader = dyn_cast<RunOp>(user);
      std::optional<scheduling::EventKind> kind =
          reader ? kindOf(reader) : std::nullopt;
      return kind && llvm::is_contained(kinds, *kind);
    });
  };
  json::Array saved;
  for (auto run : program.getBody().getOps<RunOp>()) {
    std::optional<scheduling::EventKind> kind = kindOf(run);
    bool own = kind == scheduling::EventKind::Forward,
         received = kind == scheduling::EventKind::Communication;
    if (run.getMicroBatch() != 0 || (!own && !received))
      continue;
    for (OpResult result : run.getResults()) {
      if (!isRead(result, {scheduling::EventKind::Backward,
                           scheduling::EventKind::InputGradient,
                           scheduling::EventKind::WeightGradient}) ||
          (received && !isRead(result, {scheduling::EventKind::Forward})))
        continue;
      Value value = partOf(run).front().getTerminator()->getOperand(
          result.getResultNumber());
      auto type = cast<RankedTensorType>(result.getType());
      std::string text;
      llvm::raw_string_ostream(text) << type;
      saved.push_back(json::Object{{"bytes", extentBytes(type)},
                                   {"type", text},
                                   {"part", run.getCallee()},
                                   {"name", sourceLine(value.getLoc())}});
    }
  }
  return saved;
}

/// The ops that backward recomputes, as recorded by `--pipe-recompute`.
static json::Array recomputed(ProgramOp program) {
  json::Array groups;
  if (auto items = program->getAttrOfType<ArrayAttr>(pipe::kRecomputedAttr))
    for (Attribute attr : items) {
      auto item = cast<DictionaryAttr>(attr);
      auto number = [&](StringRef name) {
        return cast<IntegerAttr>(item.get(name)).getInt();
      };
      auto text = [&](StringRef name) {
        return cast<StringAttr>(item.get(name)).str();
      };
      groups.push_back(json::Object{{"op", text("op")},
                                    {"name", text("line")},
                                    {"ops", number("ops")},
                                    {"bytes", number("bytes")}});
    }
  return groups;
}

static json::Object describe(ProgramOp program) {
  json::Object entry;
  entry["peak_bytes"] = integer(program, kPeakAttr);
  entry["lower_bound_bytes"] = integer(program, kLowerBoundAttr);
  if (int64_t bytes = integer(program, kGradientPeakAttr))
    entry["gradient_peak_bytes"] = bytes;
  if (int64_t bytes = integer(program, kKeptBytesAttr))
    entry["kept_bytes"] = bytes;
  if (auto fusion =
          program->getAttrOfType<StringAttr>(pipe::kOptimizerFusionAttr))
    entry["optimizer_fusion"] = fusion.str();
  std::map<std::string, int64_t> counts;
  int64_t actions = 0;
  for (auto [run, times] : llvm::zip_equal(program.getBody().getOps<RunOp>(),
                                           program.countActions())) {
    actions += times;
    auto part = SymbolTable::lookupNearestSymbolFrom<func::FuncOp>(
        run, run.getCalleeAttr());
    if (!part || part.isExternal())
      continue;
    for (Operation &op : part.front())
      if (isa<CommandOpInterface>(op))
        counts[op.getName().stripDialect().str()] += times;
  }
  entry["actions"] = actions;
  json::Object commands;
  for (auto &[name, count] : counts)
    commands[name] = count;
  entry["commands"] = std::move(commands);
  json::Array live;
  if (auto items = program->getAttrOfType<ArrayAttr>(kLiveAttr))
    for (Attribute attr : items) {
      auto item = cast<DictionaryAttr>(attr);
      live.push_back(
          json::Object{{"bytes", cast<IntegerAttr>(item.get("bytes")).getInt()},
                       {"kind", cast<StringAttr>(item.get("kind")).str()},
                       {"name", cast<StringAttr>(item.get("name")).str()}});
    }
  entry["live_at_peak"] = std::move(live);
  entry["saved"] = savedValues(program);
  entry["recomputed"] = recomputed(program);
  entry["unsaved_bytes"] = integer(program, pipe::kUnsavedBytesAttr);
  return entry;
}

/// Describes the memory of a pipeline position; `programs` are its entries.
static json::Object describePosition(ModuleOp module,
                                     ArrayRef<ProgramOp> programs) {
  json::Object report;
  int64_t arena = integer(module, kArenaBytesAttr);
  for (ProgramOp program : programs)
    if (int64_t own = integer(program, kArenaBytesAttr))
      arena = own;
  report["arena_bytes"] = arena;
  report["threads"] = integer(module, kThreadsAttr);
  // Each fixed offset counts once, however many entries name it.
  std::map<std::string, int64_t> fixed;
  std::set<int64_t> seen;
  json::Object entries;
  for (ProgramOp program : programs) {
    for (BlockArgument argument : program.getBody().getArguments()) {
      auto offset = program.getArgAttrOfType<IntegerAttr>(
          argument.getArgNumber(), kOffsetAttr);
      auto role = program.getArgAttrOfType<StringAttr>(argument.getArgNumber(),
                                                       graph::kRoleAttr);
      if (offset && seen.insert(offset.getInt()).second)
        fixed[role ? role.str() : "other"] +=
            extentBytes(cast<RankedTensorType>(argument.getType()));
    }
    entries[program.getEntryName()] = describe(program);
  }
  auto addConstant = [&](ConstantOp constant) {
    if (auto offset = constant->getAttrOfType<IntegerAttr>(kOffsetAttr);
        offset && seen.insert(offset.getInt()).second)
      fixed["constant"] += extentBytes(constant.getType());
  };
  for (ProgramOp program : programs) {
    program.walk(addConstant);
    for (auto run : program.getBody().getOps<RunOp>())
      if (auto part = SymbolTable::lookupNearestSymbolFrom<func::FuncOp>(
              run, run.getCalleeAttr()))
        part.walk(addConstant);
  }
  int64_t largest = 0;
  for (ProgramOp program : programs)
    largest = std::max(largest, integer(program, kPeakAttr));
  // Small outputs have fixed offsets; others are in the shared region.
  for (ProgramOp program : programs)
    for (auto [i, value] : llvm::enumerate(
             program.getBody().front().getTerminator()->getOperands()))
      if (auto offset =
              program.getResultAttrOfType<IntegerAttr>(i, kOffsetAttr);
          offset && offset.getInt() < arena - largest &&
          seen.insert(offset.getInt()).second)
        fixed["output"] += extentBytes(cast<RankedTensorType>(value.getType()));
  json::Object bytes;
  for (auto &[kind, count] : fixed)
    bytes[kind] = count;
  bytes["shared"] = largest;
  report["bytes"] = std::move(bytes);
  report["entries"] = std::move(entries);
  return report;
}

json::Value cleave::memoryReport(ModuleOp module) {
  std::map<int64_t, SmallVector<ProgramOp>> positions;
  for (auto program : module.getOps<ProgramOp>())
    positions[program.getPipelinePosition()].push_back(program);
  json::Object report;
  json::Array all;
  int64_t largest = -1, at = 0;
  for (auto &[position, programs] : positions) {
    json::Object own = describePosition(module, programs);
    int64_t bytes = own.getInteger("arena_bytes").value_or(0);
    if (bytes > largest) {
      report = json::Object(own);
      largest = bytes;
      at = position;
    }
    all.push_back(std::move(own));
  }
  if (positions.size() > 1) {
    report["largest"] = at;
    report["positions"] = std::move(all);
  }
  return report;
}
