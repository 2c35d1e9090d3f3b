//===- MemoryReport.cpp - What memory planning decided --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ReportParts.h"
#include "ReportText.h"
#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Exec/IR/MemoryKind.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Graph/IR/Messages/SourceLine.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "cleave/Scheduling/Timeline/Timeline.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include <map>

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;
namespace json = llvm::json;

static int64_t integer(Operation *op, StringRef name) {
  auto attr = op->getAttrOfType<IntegerAttr>(name);
  return attr ? attr.getInt() : 0;
}

/// The part of an action; null if it has no body.
static func::FuncOp partOf(RunOp run, const SymbolTable &symbols) {
  auto part = symbols.lookup<func::FuncOp>(run.getCalleeAttr().getAttr());
  return part && !part.isExternal() ? part : nullptr;
}

/// The kind of an action; nothing if its part does not have one.
static std::optional<scheduling::EventKind> kindOf(RunOp run,
                                                   const SymbolTable &symbols) {
  func::FuncOp part = partOf(run, symbols);
  auto action =
      part ? part->getAttrOfType<DictionaryAttr>(kActionAttr) : nullptr;
  auto kind = action ? action.getAs<StringAttr>("kind") : nullptr;
  return kind ? scheduling::parseEventKind(kind.getValue()) : std::nullopt;
}

/// The values that forward of a micro-batch saves for its backward: its
/// results, and values that it receives.
static json::Array savedValues(ProgramOp program, const SymbolTable &symbols) {
  auto isRead = [&](Value value, ArrayRef<scheduling::EventKind> kinds) {
    return llvm::any_of(value.getUsers(), [&](Operation *user) {
      auto reader = dyn_cast<RunOp>(user);
      std::optional<scheduling::EventKind> kind =
          reader ? kindOf(reader, symbols) : std::nullopt;
      return kind && llvm::is_contained(kinds, *kind);
    });
  };
  json::Array saved;
  for (auto run : program.getBody().getOps<RunOp>()) {
    std::optional<scheduling::EventKind> kind = kindOf(run, symbols);
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
      Value value = partOf(run, symbols)
                        .front()
                        .getTerminator()
                        ->getOperand(result.getResultNumber());
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

/// The buffers in use at the peak; what differs in the numbers of layers alone
/// is one item.
static json::Array liveAtPeak(ProgramOp program) {
  struct Held {
    int64_t bytes = 0, count = 0;
  };
  llvm::MapVector<std::pair<StringAttr, StringAttr>, Held> groups;
  Builder builder(program.getContext());
  if (auto items = program->getAttrOfType<ArrayAttr>(kLiveAttr))
    for (auto item : items.getAsRange<DictionaryAttr>()) {
      Held &held =
          groups[{cast<StringAttr>(item.get("kind")),
                  builder.getStringAttr(foldLayers(
                      cast<StringAttr>(item.get("name")).getValue()))}];
      held.bytes += cast<IntegerAttr>(item.get("bytes")).getInt();
      ++held.count;
    }
  auto sorted = groups.takeVector();
  llvm::stable_sort(sorted, [](const auto &a, const auto &b) {
    return a.second.bytes > b.second.bytes;
  });
  json::Array live;
  for (const auto &[key, held] : sorted)
    live.push_back(json::Object{{"bytes", held.bytes},
                                {"count", held.count},
                                {"kind", key.first.str()},
                                {"name", key.second.str()}});
  return live;
}

/// The time of the peak.
static json::Value peakTime(ProgramOp program) {
  auto when = program->getAttrOfType<DictionaryAttr>(kPeakTimeAttr);
  if (!when)
    return nullptr;
  auto number = [&](StringRef name) {
    return cast<IntegerAttr>(when.get(name)).getInt();
  };
  return json::Object{{"action", cast<StringAttr>(when.get("action")).str()},
                      {"command", number("command")},
                      {"commands", number("commands")},
                      {"at", cast<StringAttr>(when.get("at")).str()}};
}

/// The bytes in use over the actions of an entry, by kind; `fixed` are in use
/// all the time.
static json::Value profileOf(ProgramOp program,
                             const std::map<StringRef, int64_t> &fixed) {
  auto profile = program->getAttrOfType<DictionaryAttr>(kMemoryProfileAttr);
  if (!profile)
    return nullptr;
  auto numbers = [&](StringRef name) {
    return cast<DenseI64ArrayAttr>(profile.get(name)).asArrayRef();
  };
  ArrayRef<int64_t> bytes = numbers("bytes");
  json::Object kinds;
  for (unsigned kind = 0; kind < kMemoryKinds; ++kind) {
    StringRef name = memoryKindName(static_cast<MemoryKind>(kind));
    auto known = fixed.find(name);
    int64_t always = known == fixed.end() ? 0 : known->second, most = always;
    json::Array values;
    for (size_t i = kind; i < bytes.size(); i += kMemoryKinds) {
      values.push_back(always + bytes[i]);
      most = std::max(most, always + bytes[i]);
    }
    if (most > 0)
      kinds[name] = std::move(values);
  }
  json::Array actions;
  for (auto [name, begin] : llvm::zip_equal(
           cast<ArrayAttr>(profile.get("actions")).getAsRange<StringAttr>(),
           numbers("begins")))
    actions.push_back(json::Object{{"name", name.str()}, {"begin", begin}});
  return json::Object{{"actions", std::move(actions)},
                      {"times", json::Array(numbers("times"))},
                      {"kinds", std::move(kinds)}};
}

/// Describes what the commands of an entry are, and what they move between the
/// arena and offload memory.
static void describeCommands(ProgramOp program, const SymbolTable &symbols,
                             json::Object &entry) {
  std::map<std::string, int64_t> counts;
  int64_t actions = 0, fetched = 0, evicted = 0;
  llvm::MapVector<Operation *, int64_t> timesOf;
  for (auto [run, times] : llvm::zip_equal(program.getBody().getOps<RunOp>(),
                                           program.countActions())) {
    actions += times;
    if (func::FuncOp part = partOf(run, symbols))
      timesOf[part] += times;
  }
  for (auto [part, times] : timesOf) {
    for (Operation &op : cast<func::FuncOp>(part).front())
      if (isa<CommandOpInterface>(op)) {
        counts[op.getName().stripDialect().str()] += times;
        if (auto fetch = dyn_cast<FetchOp>(op))
          fetched += times * extentBytes(fetch.getType());
        if (auto evict = dyn_cast<EvictOp>(op))
          evicted += times * extentBytes(evict.getType());
      }
  }
  if (fetched + evicted > 0)
    entry["offload"] =
        json::Object{{"fetched_bytes", fetched}, {"evicted_bytes", evicted}};
  entry["actions"] = actions;
  json::Object commands;
  for (auto &[name, count] : counts)
    commands[name] = count;
  entry["commands"] = std::move(commands);
}

static json::Object describe(ProgramOp program, const SymbolTable &symbols,
                             const runtime::MemoryPlan::Entry &plan,
                             const std::map<StringRef, int64_t> &fixed) {
  json::Object entry{{"peak_bytes", plan.peakBytes},
                     {"lower_bound_bytes", plan.lowerBoundBytes},
                     {"message_bytes", plan.messageBytes}};
  if (plan.gradientPeakBytes)
    entry["gradient_peak_bytes"] = plan.gradientPeakBytes;
  if (plan.keptBytes)
    entry["kept_bytes"] = plan.keptBytes;
  if (auto fusion =
          program->getAttrOfType<StringAttr>(pipe::kOptimizerFusionAttr))
    entry["optimizer_fusion"] = fusion.str();
  describeCommands(program, symbols, entry);
  json::Object kinds;
  for (const auto &[kind, bytes] : plan.kindsAtPeak)
    kinds[kind] = bytes;
  entry["kinds_at_peak"] = std::move(kinds);
  entry["peak_time"] = peakTime(program);
  entry["profile"] = profileOf(program, fixed);
  entry["live_at_peak"] = liveAtPeak(program);
  entry["saved"] = savedValues(program, symbols);
  entry["saved_by_block"] = savedByBlock(program);
  entry["recomputed"] = recomputed(program);
  entry["unsaved_bytes"] = integer(program, pipe::kUnsavedBytesAttr);
  return entry;
}

/// The tensors that have memory at all times; what differs in the numbers of
/// layers alone is one item.
static json::Array describeFixed(ArrayRef<runtime::MemoryPlan::Fixed> tensors) {
  std::map<std::pair<std::string, std::string>, std::pair<int64_t, int64_t>>
      named;
  for (const runtime::MemoryPlan::Fixed &tensor : tensors) {
    auto &[bytes, count] =
        named[{memoryKindName(memoryKindOfRole(tensor.role)).str(),
               tensor.name.empty() ? tensor.role : foldLayers(tensor.name)}];
    bytes += tensor.bytes;
    ++count;
  }
  std::vector<std::pair<std::pair<std::string, std::string>,
                        std::pair<int64_t, int64_t>>>
      sorted(named.begin(), named.end());
  llvm::stable_sort(sorted, [](const auto &a, const auto &b) {
    return a.second.first > b.second.first;
  });
  json::Array items;
  for (const auto &[key, held] : sorted)
    items.push_back(json::Object{{"bytes", held.first},
                                 {"count", held.second},
                                 {"kind", key.first},
                                 {"name", key.second}});
  return items;
}

/// Describes the memory of a pipeline position; `programs` are its entries.
static json::Object describe(const runtime::MemoryPlan::Position &plan,
                             const SymbolTable &symbols,
                             ArrayRef<ProgramOp> programs) {
  json::Object report{
      {"arena_bytes", plan.arenaBytes},
      {"threads", plan.threads},
      {"outside", json::Object{{"library", plan.libraryBytes},
                               {"messages", plan.messageBytes}}},
      {"fixed", describeFixed(plan.fixed)}};
  if (plan.tierBytes)
    report["tier_bytes"] = plan.tierBytes;
  json::Object bytes{{"shared", plan.sharedBytes}};
  std::map<StringRef, int64_t> fixed;
  for (const auto &[role, count] : plan.bytesOfRoles) {
    bytes[role] = count;
    fixed[memoryKindName(memoryKindOfRole(role))] += count;
  }
  report["bytes"] = std::move(bytes);
  json::Object entries;
  for (ProgramOp program : programs) {
    StringRef name = program.getEntryName();
    entries[name] =
        describe(program, symbols, plan.entries.at(name.str()), fixed);
  }
  report["entries"] = std::move(entries);
  return report;
}

json::Object cleave::describeMemory(ModuleOp module,
                                    const runtime::MemoryPlan &plan) {
  std::map<int64_t, SmallVector<ProgramOp>> programs;
  for (auto program : module.getOps<ProgramOp>())
    programs[program.getPipelinePosition()].push_back(program);
  SymbolTable symbols(module);
  json::Array all;
  // An array that grows copies its values.
  all.reserve(plan.positions.size());
  for (const runtime::MemoryPlan::Position &position : plan.positions)
    all.push_back(describe(position, symbols, programs[position.number]));
  if (all.empty())
    return {};
  json::Object report(*all[plan.largest].getAsObject());
  if (all.size() > 1) {
    report["largest"] = plan.positions[plan.largest].number;
    report["positions"] = std::move(all);
  }
  return report;
}

json::Object
cleave::summarizeMemory(const runtime::MemoryPlan::Position &position) {
  json::Object memory{{"arena", position.arenaBytes},
                      {"shared", position.sharedBytes}};
  if (position.tierBytes)
    memory["tier"] = position.tierBytes;
  for (const auto &[role, bytes] : position.bytesOfRoles)
    memory[role] = bytes;
  for (const auto &[name, entry] : position.entries) {
    memory[name + " peak"] = entry.peakBytes;
    if (entry.gradientPeakBytes)
      memory[name + " gradients"] = entry.gradientPeakBytes;
    if (entry.keptBytes)
      memory[name + " kept"] = entry.keptBytes;
  }
  return memory;
}
