//===- PlanMemory.cpp - Offsets in one arena ------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ProgramMemory.h"
#include "cleave/Dialect/Exec/Transforms/AlikeParts.h"
#include "cleave/Dialect/Exec/Transforms/Passes.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "cleave/Support/PassCounts.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/Debug.h"
#include <map>

#define DEBUG_TYPE "exec-plan-memory"

static cleave::PassCount largestArena(DEBUG_TYPE, "Bytes of the largest arena");
static cleave::PassCount
    fixedArena(DEBUG_TYPE, "Of these, bytes of tensors with fixed offsets");
static cleave::PassCount
    packedBuffers(DEBUG_TYPE, "Buffers that share the memory after them");

namespace cleave::exec {
#define GEN_PASS_DEF_PLANMEMORY
#include "cleave/Dialect/Exec/Transforms/Passes.h.inc"
} // namespace cleave::exec

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

/// A result up to this size has a fixed offset, as has one that several entries
/// compute, which is one tensor. A larger one of a single entry shares memory
/// with the other entries, and is valid until another one runs.
static constexpr int64_t kSmallOutput = 1 << 16;
/// Results up to this size are neighbours, of which a host reads all at once.
static constexpr int64_t kTinyOutput = 64;

namespace {

struct PlanMemory : exec::impl::PlanMemoryBase<PlanMemory> {
  using PlanMemoryBase::PlanMemoryBase;

  PartTable parts;
  Packings packings;
  /// The end of the tensors with fixed offsets so far.
  int64_t fixedEnd = 0;
  /// The same in the second tier.
  int64_t tierEnd = 0;
  /// A tensor with a fixed offset that entries share by name.
  struct Fixed {
    RankedTensorType type;
    int64_t offset;
  };
  llvm::StringMap<Fixed> fixed;
  /// By name, the entries that have a result.
  llvm::DenseMap<StringAttr, unsigned> resultCount;
  DenseMap<Attribute, int64_t> constants;

  void runOnOperation() override {
    parts = {};
    packings = {};
    if (failed(plan()))
      signalPassFailure();
  }

  LogicalResult plan() {
    ModuleOp module = getOperation();
    if (threads < 1)
      return module.emitError("threads must be positive, not ")
             << threads.getValue();
    for (auto function : module.getOps<func::FuncOp>())
      parts.functions[function.getName()] = function;
    SmallVector<ProgramOp> programs(module.getOps<ProgramOp>());
    if (programs.empty())
      return module.emitError(
          "has no exec.program; run --exec-unroll-schedule first");
    if (failed(planParts()))
      return failure();
    std::map<int64_t, SmallVector<ProgramOp>> positions;
    for (ProgramOp program : programs)
      positions[program.getPipelinePosition()].push_back(program);
    Builder builder(&getContext());
    int64_t largest = 0, largestTier = 0;
    for (auto &[position, own] : positions) {
      int64_t tier = 0;
      FailureOr<int64_t> arena = planPosition(own, tier);
      if (failed(arena))
        return failure();
      largest = std::max(largest, *arena);
      largestTier = std::max(largestTier, tier);
      for (ProgramOp program : own) {
        if (positions.size() > 1)
          program->setAttr(kArenaBytesAttr, builder.getI64IntegerAttr(*arena));
        if (tier > 0)
          program->setAttr(kTierBytesAttr, builder.getI64IntegerAttr(tier));
      }
    }
    if (largestTier > 0)
      module->setAttr(kTierBytesAttr, builder.getI64IntegerAttr(largestTier));
    largestArena.updateMax(largest);
    writeParts();
    module->setAttr(kArenaBytesAttr, builder.getI64IntegerAttr(largest));
    module->setAttr(kThreadsAttr, builder.getI64IntegerAttr(threads));
    return success();
  }

  /// Plans the arena of the ranks that run `programs`; returns its bytes, and
  /// those of the second tier as `tier`.
  FailureOr<int64_t> planPosition(ArrayRef<ProgramOp> programs, int64_t &tier) {
    fixed.clear();
    constants.clear();
    fixedEnd = tierEnd = 0;
    placeConstants(programs);
    countResults(programs);
    std::vector<std::unique_ptr<ProgramMemory>> plans;
    for (ProgramOp program : programs) {
      plans.push_back(std::make_unique<ProgramMemory>(program, parts));
      if (failed(plans.back()->analyse()) ||
          failed(placeArguments(program, *plans.back())))
        return failure();
    }
    for (int64_t most : {kTinyOutput, kSmallOutput})
      for (auto [program, plan] : llvm::zip_equal(programs, plans))
        if (failed(placeResults(program, *plan, most)))
          return failure();
    int64_t peak = 0, tierPeak = 0;
    for (auto &plan : plans) {
      plan->packBuffers(packings);
      packedBuffers += plan->getPacking().offsets.size();
      peak = std::max(peak, plan->getPacking().peak);
      tierPeak = std::max(tierPeak, plan->getTierPacking().peak);
    }
    for (auto &plan : plans)
      plan->write(fixedEnd, tierEnd, profile);
    fixedArena.updateMax(fixedEnd);
    LLVM_DEBUG(describe(programs, plans));
    tier = tierEnd + tierPeak;
    return fixedEnd + peak;
  }

  /// What fills the memory of each entry, for a person.
  void describe(ArrayRef<ProgramOp> programs,
                ArrayRef<std::unique_ptr<ProgramMemory>> plans) {
    for (auto [own, plan] : llvm::zip_equal(programs, plans)) {
      ProgramOp program = own;
      const Packing &packing = plan->getPacking();
      llvm::dbgs() << "@" << program.getSymName() << ": " << fixedEnd
                   << " bytes at fixed offsets, then " << packing.peak
                   << " bytes for " << packing.offsets.size()
                   << " buffers, of which " << packing.lowerBound
                   << " are in use at one time\n";
      for (Attribute item : program->getAttrOfType<ArrayAttr>(kLiveAttr))
        llvm::dbgs() << "  " << item << "\n";
    }
  }

  //===--- Parts ----------------------------------------------------------===//

  LogicalResult planParts() {
    FailureOr<llvm::StringMap<llvm::BitVector>> dying =
        dyingArguments(getOperation());
    if (failed(dying))
      return failure();
    ScratchMemory scratch(getOperation(), threads);
    SmallVector<func::FuncOp> run;
    for (auto &entry : *dying)
      run.push_back(parts.functions.lookup(entry.getKey()));
    AlikeParts alike(run);
    for (auto &entry : *dying) {
      func::FuncOp part = parts.functions.lookup(entry.getKey());
      func::FuncOp like = alike.firstLike(part);
      if (like != part && dying->lookup(like.getName()) == entry.second) {
        alike.copyBodyTo(part);
      } else {
        if (failed(checkTier(part)) || failed(settleResults(part)) ||
            failed(orderCommands(part, entry.second, scratch)))
          return failure();
        prefetch(part, prefetchBytes);
      }
      parts.memories[entry.getKey()] =
          assignBuffers(part, commandsOf(part), entry.second, scratch);
    }
    return success();
  }

  void writeParts() {
    Builder builder(&getContext());
    for (auto &entry : parts.memories) {
      func::FuncOp part = parts.functions.lookup(entry.getKey());
      PartMemory &memory = entry.second;
      SmallVector<Attribute> buffers;
      for (const PartBuffer &buffer : memory.buffers)
        buffers.push_back(builder.getDictionaryAttr(
            {builder.getNamedAttr("bytes",
                                  builder.getI64IntegerAttr(buffer.bytes)),
             builder.getNamedAttr("kind",
                                  builder.getStringAttr(kindOf(buffer)))}));
      part->setAttr(kMemoryAttr, builder.getArrayAttr(buffers));
      graph::EntryAttributes attributes(part);
      for (BlockArgument argument : part.getArguments())
        attributes.setArg(
            argument.getArgNumber(), kBufferAttr,
            builder.getI64IntegerAttr(memory.bufferOf.lookup(argument)));
      attributes.write();
      for (Operation &op : part.front()) {
        SmallVector<int64_t> indices;
        for (Value result : op.getResults())
          indices.push_back(memory.bufferOf.lookup(result));
        if (!indices.empty())
          op.setAttr(kBuffersAttr, builder.getDenseI64ArrayAttr(indices));
        auto scratch = memory.scratchOf.find(&op);
        if (scratch != memory.scratchOf.end())
          op.setAttr(kScratchAttr, builder.getI64IntegerAttr(scratch->second));
      }
    }
  }

  static StringRef kindOf(const PartBuffer &buffer) {
    if (buffer.tier)
      return kOffloadedKind;
    if (buffer.constant)
      return "constant";
    if (buffer.scratchOf)
      return "scratch";
    if (buffer.argument >= 0)
      return buffer.results.empty() ? "argument" : "updated";
    return buffer.results.empty() ? "activation" : "result";
  }

  //===--- Fixed offsets --------------------------------------------------===//

  int64_t take(int64_t bytes, bool tier = false) {
    int64_t &end = tier ? tierEnd : fixedEnd, offset = end;
    end += llvm::alignTo(std::max<int64_t>(bytes, 1), kAlignment);
    return offset;
  }

  /// A part belongs to one position, as its stage does.
  void placeConstants(ArrayRef<ProgramOp> programs) {
    Builder builder(&getContext());
    auto place = [&](ConstantOp constant) {
      auto [it, fresh] = constants.try_emplace(constant.getValue(), 0);
      if (fresh)
        it->second = take(extentBytes(constant.getType()));
      constant->setAttr(kOffsetAttr, builder.getI64IntegerAttr(it->second));
    };
    llvm::StringSet<> seen;
    for (ProgramOp program : programs) {
      program.walk(place);
      for (auto run : program.getBody().getOps<RunOp>())
        if (seen.insert(run.getCallee()).second)
          parts.functions.lookup(run.getCallee()).walk(place);
    }
  }

  void countResults(ArrayRef<ProgramOp> programs) {
    resultCount.clear();
    for (ProgramOp program : programs)
      for (unsigned i = 0; i < program.getResultTypes().size(); ++i)
        if (auto name =
                program.getResultAttrOfType<StringAttr>(i, graph::kNameAttr))
          ++resultCount[name];
  }

  LogicalResult placeArguments(ProgramOp program, ProgramMemory &plan) {
    Block &body = program.getBody().front();
    for (auto constant : body.getOps<ConstantOp>())
      plan.bufferOf(constant.getOutput()).fixed =
          constant->getAttrOfType<IntegerAttr>(kOffsetAttr).getInt();
    for (BlockArgument argument : body.getArguments()) {
      unsigned i = argument.getArgNumber();
      auto name = program.getArgAttrOfType<StringAttr>(i, graph::kNameAttr);
      if (!name)
        return graph::emitArgumentError(program, i) << " has no graph.name";
      if (failed(placeOne(program, plan, argument,
                          ("argument:" + name.getValue()).str(), name)))
        return failure();
    }
    return success();
  }

  /// Those of up to `most` bytes, besides those that several entries have if
  /// that is the most.
  LogicalResult placeResults(ProgramOp program, ProgramMemory &plan,
                             int64_t most) {
    Block &body = program.getBody().front();
    for (auto [i, value] :
         llvm::enumerate(body.getTerminator()->getOperands())) {
      if (program.getResultAttr(i, graph::kUpdatesAttr) ||
          plan.bufferOf(value).fixed >= 0)
        continue;
      auto name = program.getResultAttrOfType<StringAttr>(i, graph::kNameAttr);
      if (!name)
        return graph::emitResultError(program, i) << " has no graph.name";
      bool shared = most == kSmallOutput && resultCount[name] > 1;
      if ((plan.bufferOf(value).bytes <= most || shared) &&
          failed(placeOne(program, plan, value,
                          ("result:" + name.getValue()).str(), name)))
        return failure();
    }
    return success();
  }

  LogicalResult placeOne(ProgramOp program, ProgramMemory &plan, Value value,
                         StringRef key, StringAttr name) {
    RankedTensorType type = tensorTypeOf(value);
    auto [it, fresh] = fixed.try_emplace(key, Fixed{type, 0});
    if (fresh)
      it->second.offset =
          take(plan.bufferOf(value).bytes, plan.bufferOf(value).tier);
    else if (it->second.type != type)
      return program.emitOpError("'")
             << name.getValue() << "' of type " << type << " has type "
             << it->second.type << " in another entry";
    plan.bufferOf(value).fixed = it->second.offset;
    return success();
  }
};

} // namespace
