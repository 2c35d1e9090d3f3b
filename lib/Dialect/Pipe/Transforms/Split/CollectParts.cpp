//===- CollectParts.cpp - What each part computes, takes and gives --------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Parts.h"
#include "Stages.h"
#include "StepCollectives.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include <queue>
#include <set>

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

namespace {
/// Distributes the ops and values of one entry to parts.
class Splitter {
public:
  Splitter(func::FuncOp entry, const Flow &flow, const Stages &stages,
           const StepCollectives &exchanges, bool split)
      : entry(entry), body(entry.getBody().front()), flow(flow), stages(stages),
        exchanges(exchanges), split(split) {
    auto add = [&](PartId id, int64_t stage) {
      parts.emplace_back().slot = {id, stage};
    };
    int64_t count = stages.size();
    for (PartId id :
         {PartId::Deferred, PartId::Prologue, PartId::Gather, PartId::Forward})
      for (int64_t i = 0; i < count; ++i)
        add(id, i);
    for (int64_t i = count; i-- > 0;) {
      add(PartId::Backward, i);
      if (split)
        add(PartId::Weights, i);
    }
    for (int64_t i = 0; i < count; ++i)
      add(PartId::Reduce, i);
    // The terms of a norm over stages are added up towards the first stage.
    for (int64_t i = count; i-- > 0;)
      add(PartId::BeforeUpdate, i);
    for (int64_t i = 0; i < count; ++i)
      add(PartId::Update, i);
    if (split)
      findWeights();
    for (Operation &op : body.without_terminator()) {
      if (op.getNumResults() == 0)
        effects.push_back(&op);
      numbers[&op] = ops.size();
      ops.push_back(&op);
    }
  }

  FailureOr<ProgramOp> run(bool treeSums) {
    findResults(treeSums);
    for (Part &part : llvm::reverse(parts))
      if (failed(collect(part)))
        return failure();
    return outlineParts(entry, flow, parts, results, copies, treeSums, split);
  }

private:
  Part &get(const Slot &slot) {
    return *llvm::find_if(parts,
                          [&](const Part &part) { return part.slot == slot; });
  }

  /// Adds `source` to the exports of a part.
  void require(const Slot &from, const Export &source) {
    Part &part = get(from);
    if (!llvm::is_contained(part.exports, source))
      part.exports.push_back(source);
    part.needed.insert(source.value);
  }

  void findWeights();
  /// Whether a sum over micro-batches, or a value that depends on one, is
  /// returned, possibly after a reduction over devices, and not by an update.
  bool isReported(Operation *op) const;
  /// The part that computes `op`, by its dataflow.
  PartId homeOf(Operation *op) const {
    return weights.contains(op) ? PartId::Weights : flow.part(op);
  }
  /// The part that runs a collective that runs once, for `stage`.
  std::optional<Slot> sentFor(Operation *op, int64_t stage) const {
    if (exchanges.isGathered(op))
      return Slot{PartId::Gather, stages.gathererOf(op, stage)};
    if (exchanges.isReduced(op))
      return Slot{PartId::Reduce, stages.reducerOf(op, stage)};
    return std::nullopt;
  }
  std::pair<Slot, Export> whole(Value value, int64_t stage) const;
  std::string kindOf(Value value, PartId from) const;
  void findResults(bool treeSums);
  LogicalResult collect(Part &part);
  bool isWanted(Operation *op, const Part &part) const;
  std::optional<Slot> sourceOf(Operation *op, const Slot &slot) const;
  LogicalResult import(Operation *op, Part &part);

  /// Whether the operand only orders a barrier.
  static bool isAfter(OpOperand &operand) {
    auto barrier = dyn_cast<spmd::BarrierOp>(operand.getOwner());
    return barrier && operand == barrier.getAfterMutable();
  }

  func::FuncOp entry;
  Block &body;
  const Flow &flow;
  const Stages &stages;
  const StepCollectives &exchanges;
  bool split;
  llvm::DenseSet<Operation *> weights;
  /// All ops in their order, their numbers in it, and those without results.
  std::vector<Operation *> ops, effects;
  llvm::DenseMap<Operation *, unsigned> numbers;
  /// The parts, in the order in which they run.
  std::vector<Part> parts;
  SmallVector<EntryResult> results;
  /// The updates of arguments that several stages hold, in all of these but the
  /// first, by result.
  SmallVector<std::pair<unsigned, std::pair<Slot, Export>>> copies;
};
} // namespace

bool Splitter::isReported(Operation *op) const {
  return llvm::any_of(op->getUsers(), [&](Operation *user) {
    return user->hasTrait<OpTrait::IsTerminator>() ||
           (!flow.varies(user) && flow.part(user) != PartId::Update &&
            isReported(user));
  });
}

/// Finds the ops of W: those of backward that no other stage waits for.
void Splitter::findWeights() {
  for (Operation &op : llvm::reverse(body.without_terminator())) {
    if (flow.part(&op) != PartId::Backward || !stages.of(&op))
      continue;
    // Values that are only returned, such as the loss, stay in their part.
    auto isOfUpdate = [&](Operation *user) {
      if (user->hasTrait<OpTrait::IsTerminator>())
        return false;
      if (flow.part(user) == PartId::Update)
        return true;
      // A check has no results and is in backward itself.
      return user->getNumResults() != 0 &&
             (flow.isAccumulation(user) || !flow.varies(user)) &&
             !isReported(user);
    };
    if (llvm::all_of(op.getUsers(), [&](Operation *user) {
          return isOfUpdate(user) ||
                 (weights.contains(user) && stages.of(user) == stages.of(&op));
        }))
      weights.insert(&op);
  }
}

/// The result kind of `value`, returned by part `from`.
std::string Splitter::kindOf(Value value, PartId from) const {
  if (isAfterMicroBatches(from))
    return kValue.str();
  Layout layout = flow.layout(value);
  switch (layout.kind) {
  case Layout::Partial:
    return accumulationOf(layout.partial).str();
  case Layout::Split:
    return (kConcatPrefix + std::to_string(layout.dim)).str();
  case Layout::Whole:
    break;
  }
  return kValue.str();
}

/// The export from which an update in `stage`, or the program, reads `value`
/// after all micro-batches.
std::pair<Slot, Export> Splitter::whole(Value value, int64_t stage) const {
  Operation *op = value.getDefiningOp();
  if (flow.isEarlyUpdate(op))
    return {Slot{homeOf(op), stage}, Export{value, kValue.str()}};
  if (std::optional<Slot> slot = sentFor(op, stage))
    return {*slot, Export{value, kValue.str()}};
  if (flow.isAccumulation(op)) {
    Value summand = op->getOperand(0);
    Operation *from = summand.getDefiningOp();
    Slot slot{PartId::Prologue, stage};
    if (!flow.inPrologue(op))
      slot = {homeOf(from), stages.of(from).value_or(0)};
    ReductionKind kind = cast<spmd::AllReduceOp>(op).getKind();
    return {slot, Export{summand, accumulationOf(kind).str()}};
  }
  if (stages.isBeforeUpdate(op))
    return {Slot{PartId::BeforeUpdate, stages.homeOf(op)},
            Export{value, kValue.str()}};
  PartId home = homeOf(op);
  if (home == PartId::Update)
    return {Slot{PartId::Update, stage}, Export{value, kValue.str()}};
  Slot slot{home, stages.of(op).value_or(stage)};
  // A value that is the same for each micro-batch is computed once, at the end.
  if (!flow.varies(value) && flow.layout(value).kind == Layout::Whole)
    return {flow.mergedUpdate() ? slot : Slot{PartId::Update, stage},
            Export{value, kValue.str()}};
  return {slot, Export{value, kindOf(value, home)}};
}

void Splitter::findResults(bool treeSums) {
  /// The gradients that have taken a place as they are made.
  llvm::SmallDenseSet<Value> placed;
  /// Results that update something.
  std::set<std::tuple<PartId, int64_t, void *, unsigned>> updating;
  for (auto [i, value] : llvm::enumerate(body.getTerminator()->getOperands())) {
    if (isa<BlockArgument>(value)) {
      results.push_back({});
      continue;
    }
    Operation *op = value.getDefiningOp();
    auto name = entry.getResultAttrOfType<StringAttr>(i, graph::kUpdatesAttr);
    StageSet holders(stages.size());
    holders.set(stages.homeOf(op));
    if (name)
      holders = stages.holders(name.getValue());
    // A gradient of one stage is returned directly by the part that accumulates
    // it, except in a tree, whose terms have buffers of their own. The gradient
    // of several parameters is accumulated in the buffer of one and copied to
    // the others.
    if (auto gradient = dyn_cast<graph::GradientOp>(op);
        gradient && !treeSums && holders.count() == 1 &&
        gradient.getInput().getDefiningOp())
      if (std::pair<Slot, Export> source =
              whole(gradient.getInput(), holders.find_first());
          name && source.first.stage == holders.find_first() &&
          placed.insert(gradient.getInput()).second) {
        value = gradient.getInput();
        op = value.getDefiningOp();
      }
    for (unsigned stage : holders.set_bits()) {
      std::pair<Slot, Export> source = whole(value, stage);
      // What others read before the updates is not written before that: all
      // positions agree first whether the step continues.
      if (name && source.first.id == PartId::BeforeUpdate)
        source.first = {PartId::Update, static_cast<int64_t>(stage)};
      while (name && !updating
                          .insert({source.first.id, source.first.stage,
                                   source.second.value.getAsOpaquePointer(),
                                   source.second.copy})
                          .second)
        ++source.second.copy;
      require(source.first, source.second);
      if (results.size() == i)
        results.push_back({std::move(source)});
      else if (flow.part(op) == PartId::Update || flow.isEarlyUpdate(op))
        copies.push_back({i, std::move(source)});
    }
  }
}

/// Whether `part` needs a result of `op`. An op with effects is in its own
/// part, in each stage that has its operands.
bool Splitter::isWanted(Operation *op, const Part &part) const {
  if (op->getNumResults() != 0)
    return llvm::any_of(op->getResults(), [&](Value result) {
      return part.needed.contains(result);
    });
  if (homeOf(op) != part.slot.id)
    return false;
  return llvm::all_of(op->getOperands(), [&](Value operand) {
    Operation *from = operand.getDefiningOp();
    return !from || !flow.varies(from) ||
           stages.of(from).value_or(part.slot.stage) == part.slot.stage;
  });
}

/// Fills one part. Later parts are already filled, so that its exports are
/// known.
LogicalResult Splitter::collect(Part &part) {
  // Of those that may be wanted, from the last op to the first.
  std::priority_queue<unsigned> wanted;
  auto want = [&](Value value) {
    if (auto it = numbers.find(value.getDefiningOp()); it != numbers.end())
      wanted.push(it->second);
  };
  for (Value value : part.needed)
    want(value);
  for (Operation *op : effects)
    wanted.push(numbers[op]);
  while (!wanted.empty()) {
    unsigned number = wanted.top();
    while (!wanted.empty() && wanted.top() == number)
      wanted.pop();
    Operation &op = *ops[number];
    if (!isWanted(&op, part))
      continue;
    if (flow.isAccumulation(&op) || sourceOf(&op, part.slot)) {
      if (failed(import(&op, part)))
        return failure();
      continue;
    }
    part.ops.insert(&op);
    for (OpOperand &operand : op.getOpOperands())
      if (!flow.readsTypeOnly(operand) && !isAfter(operand) &&
          part.needed.insert(operand.get()).second)
        want(operand.get());
  }
  return success();
}

/// The part from which the part in `slot` reads the results of `op`; nothing if
/// it computes them itself.
std::optional<Slot> Splitter::sourceOf(Operation *op, const Slot &slot) const {
  PartId home = homeOf(op);
  if (flow.isEarlyUpdate(op)) {
    Slot from{home, slot.stage};
    return from == slot ? std::nullopt : std::optional(from);
  }
  // Only later parts can read the results.
  if (std::optional<Slot> from = sentFor(op, slot.stage))
    return slot.id > from->id ? from : std::nullopt;
  if (stages.isBeforeUpdate(op) && slot.id >= PartId::BeforeUpdate &&
      !(slot.id == PartId::Update && stages.isComputedToo(op, slot.stage))) {
    Slot early{PartId::BeforeUpdate, stages.homeOf(op)};
    return slot != early ? std::optional(early) : std::nullopt;
  }
  if (home == PartId::Update)
    return std::nullopt;
  Slot from{home, stages.of(op).value_or(slot.stage)};
  if (from == slot || slot.id == PartId::Prologue)
    return std::nullopt;
  // A slice of values that do not vary can be computed in every part of the
  // micro-batch, whose offset is known.
  bool late = isAfterMicroBatches(slot.id);
  if (!late && llvm::none_of(op->getOperands(), [&](Value operand) {
        return flow.varies(operand);
      }))
    return std::nullopt;
  // Values that are the same for each micro-batch are computed in each part
  // that reads them, unless they are heavy.
  bool backward = slot.id == PartId::Backward || slot.id == PartId::Weights;
  if (flow.varies(op) ||
      (home == PartId::Forward && backward && flow.isHeavy(op)))
    return from;
  return std::nullopt;
}

LogicalResult Splitter::import(Operation *op, Part &part) {
  for (Value result : op->getResults()) {
    if (!part.needed.contains(result))
      continue;
    Import import;
    import.value = result;
    if (flow.isAccumulation(op) || isAfterMicroBatches(part.slot.id)) {
      std::tie(import.from, import.source) = whole(result, part.slot.stage);
      if (import.from.id == PartId::Update || import.from == part.slot)
        return op->emitOpError(
            "is a sum over all micro-batches that one micro-batch reads");
      // Its exports are known before those of stages behind it.
      if (import.from.id == part.slot.id && import.from.stage < part.slot.stage)
        return op->emitOpError("is computed before the updates in stage ")
               << import.from.stage << " for stage " << part.slot.stage
               << ", which computes for earlier stages only: begin the stages "
                  "elsewhere (--stages)";
    } else {
      import.from = *sourceOf(op, part.slot);
      bool whole = flow.isEarlyUpdate(op) || runsOnce(import.from.id);
      import.source = {result, whole ? kValue.str() : kSaved.str()};
    }
    require(import.from, import.source);
    part.imports.push_back(std::move(import));
  }
  return success();
}

FailureOr<ProgramOp> cleave::pipe::splitEntry(func::FuncOp entry,
                                              const Flow &flow,
                                              const Stages &stages,
                                              const StepCollectives &exchanges,
                                              bool split, bool treeSums) {
  return Splitter(entry, flow, stages, exchanges, split).run(treeSums);
}
