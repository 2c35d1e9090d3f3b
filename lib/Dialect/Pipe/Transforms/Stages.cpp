//===- Stages.cpp - Which stage of a pipeline computes what ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Stages.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

/// Sets `stage` in the set of `key`.
template <typename Map, typename Key>
static void insert(Map &map, const Key &key, int64_t stage, int64_t count) {
  StageSet &set = map[key];
  set.resize(count);
  set.set(stage);
}

//===----------------------------------------------------------------------===//
// Forward
//===----------------------------------------------------------------------===//

/// The ops of forward that differ between micro-batches and depend on
/// parameters, or are heavy. Those behind the first seed, which backward alone
/// reads, become `helpers`.
Stages::Ops Stages::stagedForward() {
  for (BlockArgument argument : body.getArguments())
    if (graph::hasRole(entry, argument.getArgNumber(), "parameter") ||
        graph::hasRole(entry, argument.getArgNumber(), "state"))
      fromParameters.insert(argument);
  Ops ops;
  bool behind = false;
  for (Operation &op : body.without_terminator()) {
    behind |= isa<graph::SeedOp>(op);
    // What an update makes is a parameter.
    if (flow.isEarlyUpdate(&op))
      fromParameters.insert(op.result_begin(), op.result_end());
    if (flow.part(&op) != PartId::Forward || flow.isAccumulation(&op))
      continue;
    bool depends = llvm::any_of(op.getOpOperands(), [&](OpOperand &operand) {
      return !flow.isUnread(operand) && fromParameters.contains(operand.get());
    });
    bool staged = flow.varies(&op) && (depends || flow.isHeavy(&op));
    if (depends || staged)
      fromParameters.insert(op.result_begin(), op.result_end());
    if (staged)
      (behind ? helpers : ops).push_back(&op);
  }
  return ops;
}

void Stages::assign(const Ops &ops, ArrayRef<size_t> cuts) {
  size_t stage = 0;
  for (auto [i, op] : llvm::enumerate(ops)) {
    while (stage < cuts.size() && cuts[stage] <= i)
      ++stage;
    stages[op] = stage;
  }
}

/// The parameters whose names, or other names of tied ones, begin with
/// `prefix`.
static llvm::DenseSet<Value> parametersNamed(func::FuncOp entry,
                                             StringRef prefix) {
  llvm::DenseSet<Value> wanted;
  auto isNamed = [&](unsigned index) {
    if (graph::getArgString(entry, index, graph::kNameAttr).starts_with(prefix))
      return true;
    auto aliases =
        entry.getArgAttrOfType<ArrayAttr>(index, graph::kAliasesAttr);
    return aliases && llvm::any_of(aliases.getAsValueRange<StringAttr>(),
                                   [&](StringRef alias) {
                                     return alias.starts_with(prefix);
                                   });
  };
  for (BlockArgument argument : entry.getArguments())
    if (graph::hasRole(entry, argument.getArgNumber(), "parameter") &&
        isNamed(argument.getArgNumber()))
      wanted.insert(argument);
  return wanted;
}

/// The index in `ops` of the first that reads, itself or by what is the same
/// for each micro-batch, one of the parameters `wanted`.
static std::optional<size_t> firstReader(func::FuncOp entry, const Flow &flow,
                                         ArrayRef<Operation *> ops,
                                         llvm::DenseSet<Value> wanted) {
  for (Operation &op : entry.getBody().front().without_terminator())
    if (!flow.varies(&op) && flow.part(&op) <= PartId::Forward &&
        llvm::any_of(op.getOperands(),
                     [&](Value value) { return wanted.contains(value); }))
      wanted.insert(op.result_begin(), op.result_end());
  for (auto [i, op] : llvm::enumerate(ops))
    if (llvm::any_of(op->getOperands(),
                     [&](Value value) { return wanted.contains(value); }))
      return i;
  return std::nullopt;
}

/// Whether `op` reads a parameter, itself or by what is the same for each
/// micro-batch.
static bool readsInvariant(const Flow &flow, Operation *op) {
  return llvm::any_of(op->getOperands(), [&](Value value) {
    return !flow.varies(value) &&
           cast<RankedTensorType>(value.getType()).getNumElements() > 1;
  });
}

LogicalResult Stages::cut(ArrayRef<std::string> first,
                          const MachineModel &machine, bool whole) {
  Ops ops = stagedForward();
  if (count > 1 && static_cast<int64_t>(ops.size()) < count)
    return entry.emitOpError("is to be cut into ")
           << count << " stages, and has only " << ops.size()
           << " ops that depend on samples and parameters";
  SmallVector<size_t> cuts;
  if (first.empty()) {
    if (count > 1) {
      Stages single = apart(ops);
      std::vector<double> seconds = secondsOf(ops, single, machine);
      if (whole)
        cuts = balancedCuts(ops, seconds, count, machine,
                            wholeBegins(ops, single));
      if (cuts.empty())
        cuts = balancedCuts(ops, seconds, count, machine,
                            llvm::BitVector(ops.size(), true));
    }
  } else {
    if (static_cast<int64_t>(first.size()) + 1 != count)
      return entry.emitOpError("is to be cut into ")
             << count << " stages: name where the " << count - 1
             << " behind the first begin, not " << first.size();
    SmallVector<int64_t> crossing = crossingBytes(ops);
    for (StringRef name : first) {
      llvm::DenseSet<Value> wanted = parametersNamed(entry, name);
      std::optional<size_t> reader = firstReader(entry, flow, ops, wanted);
      if (!reader && !wanted.empty())
        return entry.emitOpError("cannot begin a stage at '")
               << name << "': what reads it is computed with the loss, in the "
               << "last stage; begin it at a parameter before";
      if (!reader)
        return entry.emitOpError("has no parameter whose name begins with '")
               << name << "', where a stage is to begin";
      // Before it, behind what reads another parameter: where least is sent.
      size_t best = *reader;
      for (size_t at = *reader; at-- > 0 && !readsInvariant(flow, ops[at]);)
        if (crossing[at] < crossing[best])
          best = at;
      if (best == 0 || (!cuts.empty() && best <= cuts.back()))
        return entry.emitOpError("cannot begin a stage at '")
               << name << "': " << (cuts.empty() ? "nothing" : "no op")
               << " stands before it in the stage before";
      cuts.push_back(best);
    }
  }
  assign(ops, cuts);
  finish();
  return success();
}

void Stages::cutAt(ArrayRef<int64_t> thousandths) {
  Ops ops = stagedForward();
  SmallVector<size_t> cuts;
  for (int64_t at : thousandths)
    cuts.push_back(ops.size() * std::clamp<int64_t>(at, 0, 1000) / 1000);
  llvm::sort(cuts);
  assign(ops, cuts);
  finish();
}

void Stages::cutLike(const Stages &other) {
  // Parameters that each value is made of, by what does not vary.
  llvm::DenseMap<Value, StageSet> known;
  for (BlockArgument argument : body.getArguments())
    if (graph::hasRole(entry, argument.getArgNumber(), "parameter"))
      known[argument] = other.holders(graph::getArgString(
          entry, argument.getArgNumber(), graph::kNameAttr));
  llvm::DenseSet<Operation *> staged;
  for (Operation *op : stagedForward())
    staged.insert(op);
  for (Operation &op : body.without_terminator()) {
    if (!staged.contains(&op)) {
      if (!flow.varies(&op))
        for (Value operand : op.getOperands())
          if (known.contains(operand)) {
            StageSet held = known[operand];
            for (Value result : op.getResults())
              known[result] = held;
          }
      continue;
    }
    int64_t stage = 0;
    for (Value operand : op.getOperands())
      if (Operation *from = operand.getDefiningOp())
        stage = std::max(stage, of(from).value_or(0));
    // Not before what it reads is there.
    for (Value operand : op.getOperands())
      if (auto it = known.find(operand);
          it != known.end() && !it->second.test(stage))
        if (int next = it->second.find_next(stage); next > 0)
          stage = next;
    stages[&op] = stage;
  }
  finish();
  // Updates alone stand where what they update is.
  for (auto [i, value] : llvm::enumerate(body.getTerminator()->getOperands()))
    if (auto name =
            entry.getResultAttrOfType<StringAttr>(i, graph::kUpdatesAttr);
        name && value.getDefiningOp() &&
        flow.isEarlyUpdate(value.getDefiningOp()))
      for (unsigned stage : other.holders(name.getValue()).set_bits())
        markRead(value, stage);
}

//===----------------------------------------------------------------------===//
// What stages read
//===----------------------------------------------------------------------===//

void Stages::finish() {
  // What backward alone reads of forward is where that is.
  for (Operation *op : helpers) {
    int64_t stage = 0;
    for (Value operand : op->getOperands())
      if (Operation *from = operand.getDefiningOp())
        stage = std::max(stage, of(from).value_or(0));
    stages[op] = stage;
  }
  findReaders(PartId::Forward);
  followForward();
  sinkBackward();
  findReaders(PartId::Backward);
  findSums();
}

/// `value` is read in `stage`; and so is what is computed there for it.
void Stages::markRead(Value value, int64_t stage) {
  SmallVector<Value> work{value};
  while (!work.empty()) {
    Value next = work.pop_back_val();
    Operation *op = next.getDefiningOp();
    bool staged = !op || stages.contains(op);
    if (auto it = present.find(next);
        it != present.end() && it->second.test(stage))
      continue;
    insert(present, next, stage, count);
    if (staged || flow.isAccumulation(op))
      continue;
    for (OpOperand &operand : op->getOpOperands())
      if (!flow.isUnread(operand))
        work.push_back(operand.get());
  }
}

void Stages::findReaders(PartId last) {
  for (Operation &op : body.without_terminator()) {
    std::optional<int64_t> stage = of(&op);
    if (!stage || flow.part(&op) > last)
      continue;
    for (Value result : op.getResults())
      insert(present, result, *stage, count);
    for (OpOperand &operand : op.getOpOperands())
      if (!flow.isUnread(operand))
        markRead(operand.get(), *stage);
  }
}

//===----------------------------------------------------------------------===//
// What is the same for each micro-batch
//===----------------------------------------------------------------------===//

static bool isScalar(Value value) {
  return cast<RankedTensorType>(value.getType()).getNumElements() == 1;
}

void Stages::findSums() {
  SmallVector<Operation *> roots;
  for (Operation &op : body.without_terminator()) {
    if (flow.varies(&op))
      continue;
    StageSet &set = sums[&op];
    set.resize(count);
    if (flow.isAccumulation(&op)) {
      Operation *summand = op.getOperand(0).getDefiningOp();
      if (!flow.inPrologue(&op))
        set.set(summand ? of(summand).value_or(0) : 0);
      continue;
    }
    bool reduces = false;
    for (OpOperand &operand : op.getOpOperands()) {
      Operation *from = operand.get().getDefiningOp();
      if (!from || flow.isUnread(operand))
        continue;
      StageSet own(count);
      if (!flow.varies(from))
        own = sums.lookup(from);
      else if (std::optional<int64_t> stage = of(from))
        own.set(*stage);
      reduces |= own.any() && !isScalar(operand.get());
      sums[&op] |= own;
    }
    if (count > 1 && flow.part(&op) == PartId::Update && reduces &&
        llvm::all_of(op.getResults(), isScalar))
      roots.push_back(&op);
  }
  llvm::DenseSet<Operation *> seen;
  beforeUpdate.insert(roots.begin(), roots.end());
  while (!roots.empty())
    for (Value operand : roots.pop_back_val()->getOperands()) {
      Operation *from = operand.getDefiningOp();
      if (!from || flow.varies(from) || flow.isAccumulation(from) ||
          sums.lookup(from).none() || !seen.insert(from).second)
        continue;
      if (flow.isHeavy(from))
        beforeUpdate.insert(from);
      roots.push_back(from);
    }
}

int64_t Stages::homeOf(Operation *op) const {
  auto it = sums.find(op);
  int first = it == sums.end() ? -1 : it->second.find_first();
  return std::max(first, 0);
}

std::optional<int64_t> Stages::sourceOf(Operation *op) const {
  auto it = sums.find(op);
  return it != sums.end() && it->second.count() == 1
             ? std::optional<int64_t>(it->second.find_first())
             : std::nullopt;
}

StageSet Stages::holders(StringRef name) const {
  StageSet found(count);
  for (BlockArgument argument : body.getArguments()) {
    StringRef own =
        graph::getArgString(entry, argument.getArgNumber(), graph::kNameAttr);
    if (own != name)
      continue;
    if (StringRef of =
            graph::getArgString(entry, argument.getArgNumber(), graph::kOfAttr);
        !of.empty())
      return holders(of);
    if (auto it = present.find(argument); it != present.end())
      found |= it->second;
  }
  if (found.none())
    found.set(0);
  return found;
}
