//===- MemoryReport.cpp - What memory planning decided --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "LayerNames.h"
#include "SavedReport.h"
#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Exec/IR/MemoryKind.h"
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
static func::FuncOp partOf(RunOp run, const SymbolTable &symbols) {
  auto part = symbols.lookup<func::FuncOp>(run.getCallee());
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
static json::Value profileOf(ProgramOp program, const json::Object &fixed) {
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
    int64_t always = fixed.getInteger(name).value_or(0), most = always;
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

/// The bytes of a device at the peak of an entry, by kind: `fixed` ones and
/// those in use then. What is left of the arena is `unused`: alignment, gaps
/// between buffers, and what other entries need.
static json::Object kindsAtPeak(ProgramOp program, const json::Object &fixed,
                                int64_t arena) {
  std::map<std::string, int64_t> bytes;
  for (const auto &[kind, count] : fixed)
    bytes[kind.str()] += count.getAsInteger().value_or(0);
  if (auto items = program->getAttrOfType<ArrayAttr>(kLiveAttr))
    for (auto item : items.getAsRange<DictionaryAttr>())
      bytes[cast<StringAttr>(item.get("kind")).str()] +=
          cast<IntegerAttr>(item.get("bytes")).getInt();
  json::Object kinds;
  for (const auto &[kind, count] : bytes) {
    kinds[kind] = count;
    arena -= count;
  }
  kinds["unused"] = arena;
  return kinds;
}

static json::Object describe(ProgramOp program, const SymbolTable &symbols) {
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
  int64_t actions = 0, fetched = 0, evicted = 0;
  for (auto [run, times] : llvm::zip_equal(program.getBody().getOps<RunOp>(),
                                           program.countActions())) {
    actions += times;
    func::FuncOp part = partOf(run, symbols);
    if (!part)
      continue;
    for (Operation &op : part.front())
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
  entry["live_at_peak"] = liveAtPeak(program);
  entry["saved"] = savedValues(program, symbols);
  entry["saved_by_block"] = savedByBlock(program);
  entry["recomputed"] = recomputed(program);
  entry["unsaved_bytes"] = integer(program, pipe::kUnsavedBytesAttr);
  return entry;
}

/// Describes the memory of a pipeline position; `programs` are its entries.
static json::Object describePosition(ModuleOp module,
                                     const SymbolTable &symbols,
                                     ArrayRef<ProgramOp> programs) {
  json::Object report;
  int64_t arena = integer(module, kArenaBytesAttr);
  for (ProgramOp program : programs)
    if (int64_t own = integer(program, kArenaBytesAttr))
      arena = own;
  report["arena_bytes"] = arena;
  report["threads"] = integer(module, kThreadsAttr);
  if (int64_t bytes = integer(programs.front(), kTierBytesAttr))
    report["tier_bytes"] = bytes;
  // Each fixed offset counts once, however many entries name it.
  std::map<std::string, int64_t> fixed;
  std::map<std::pair<std::string, std::string>, std::pair<int64_t, int64_t>>
      named;
  std::set<int64_t> seen;
  json::Object entries;
  for (ProgramOp program : programs) {
    for (BlockArgument argument : program.getBody().getArguments()) {
      auto offset = program.getArgAttrOfType<IntegerAttr>(
          argument.getArgNumber(), kOffsetAttr);
      auto role = program.getArgAttrOfType<StringAttr>(argument.getArgNumber(),
                                                       graph::kRoleAttr);
      auto name = program.getArgAttrOfType<StringAttr>(argument.getArgNumber(),
                                                       graph::kNameAttr);
      if (!offset || program.getArgAttr(argument.getArgNumber(), kTierAttr) ||
          !seen.insert(offset.getInt()).second)
        continue;
      std::string kind = role ? role.str() : "other";
      int64_t bytes = extentBytes(cast<RankedTensorType>(argument.getType()));
      fixed[kind] += bytes;
      auto &[all, count] = named[{memoryKindName(memoryKindOfRole(kind)).str(),
                                  name ? foldLayers(name) : kind}];
      all += bytes;
      ++count;
    }
    entries[program.getEntryName()] = describe(program, symbols);
  }
  auto addConstant = [&](ConstantOp constant) {
    if (auto offset = constant->getAttrOfType<IntegerAttr>(kOffsetAttr);
        offset && seen.insert(offset.getInt()).second)
      fixed["constant"] += extentBytes(constant.getType());
  };
  llvm::DenseSet<StringRef> visited;
  for (ProgramOp program : programs) {
    program.walk(addConstant);
    for (auto run : program.getBody().getOps<RunOp>())
      if (visited.insert(run.getCallee()).second)
        if (func::FuncOp part = partOf(run, symbols))
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
          offset && !program.getResultAttr(i, kTierAttr) &&
          offset.getInt() < arena - largest &&
          seen.insert(offset.getInt()).second)
        fixed["output"] += extentBytes(cast<RankedTensorType>(value.getType()));
  json::Object bytes;
  for (auto &[kind, count] : fixed)
    bytes[kind] = count;
  bytes["shared"] = largest;
  report["bytes"] = std::move(bytes);
  json::Array tensors;
  for (const auto &[key, held] : named)
    tensors.push_back(json::Object{{"bytes", held.first},
                                   {"count", held.second},
                                   {"kind", key.first},
                                   {"name", key.second}});
  llvm::stable_sort(tensors, [](const json::Value &a, const json::Value &b) {
    return *a.getAsObject()->getInteger("bytes") >
           *b.getAsObject()->getInteger("bytes");
  });
  json::Object always;
  for (auto &[kind, count] : fixed) {
    StringRef name = memoryKindName(memoryKindOfRole(kind));
    always[name] = always.getInteger(name).value_or(0) + count;
  }
  report["fixed"] = std::move(tensors);
  for (ProgramOp program : programs) {
    json::Object &entry = *entries.getObject(program.getEntryName());
    entry["kinds_at_peak"] = kindsAtPeak(program, always, arena);
    entry["peak_time"] = peakTime(program);
    entry["profile"] = profileOf(program, always);
  }
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
  SymbolTable symbols(module);
  for (auto &[position, programs] : positions) {
    json::Object own = describePosition(module, symbols, programs);
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
