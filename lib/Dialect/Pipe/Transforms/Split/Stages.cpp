//===- Stages.cpp - Which stage of a pipeline computes what ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Stages.h"
#include "cleave/Dialect/Graph/Analysis/Slices.h"
#include "cleave/Dialect/Graph/Analysis/Sources.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "llvm/ADT/StringExtras.h"

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

/// Returns the ops of forward that vary with the micro-batch and depend on
/// parameters or are heavy. Those after the first seed, which only backward
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
    // The result of an update is a parameter.
    if (flow.isEarlyUpdate(&op))
      fromParameters.insert(op.result_begin(), op.result_end());
    if (flow.part(&op) != PartId::Forward || flow.isAccumulation(&op))
      continue;
    bool depends = llvm::any_of(op.getOpOperands(), [&](OpOperand &operand) {
      return !flow.readsTypeOnly(operand) &&
             fromParameters.contains(operand.get());
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

/// The parameters with a name or alias that begins with `prefix`.
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

/// The index of the first of `ops` that reads one of the parameters `wanted`,
/// directly or through values that are the same for each micro-batch.
static std::optional<size_t>
firstReader(func::FuncOp entry, ArrayRef<Operation *> ops,
            llvm::DenseSet<Value> wanted,
            llvm::function_ref<bool(Value)> varies,
            llvm::function_ref<bool(Operation *)> isForward) {
  for (Operation &op : entry.getBody().front().without_terminator())
    if (llvm::none_of(op.getResults(), varies) && isForward(&op) &&
        llvm::any_of(op.getOperands(),
                     [&](Value value) { return wanted.contains(value); }))
      wanted.insert(op.result_begin(), op.result_end());
  for (auto [i, op] : llvm::enumerate(ops))
    if (llvm::any_of(op->getOperands(),
                     [&](Value value) { return wanted.contains(value); }))
      return i;
  return std::nullopt;
}

/// Whether `op` reads a tensor that is the same for each micro-batch, such as a
/// parameter.
static bool readsInvariant(Operation *op,
                           llvm::function_ref<bool(Value)> varies) {
  return llvm::any_of(op->getOperands(), [&](Value value) {
    return !varies(value) &&
           cast<RankedTensorType>(value.getType()).getNumElements() > 1;
  });
}

SmallVector<std::string> cleave::pipe::splitNames(StringRef names) {
  SmallVector<std::string> found;
  for (StringRef name : llvm::split(names, ','))
    if (!name.trim().empty())
      found.push_back(name.trim().str());
  return found;
}

FailureOr<SmallVector<size_t>>
cleave::pipe::namedCuts(func::FuncOp entry, ArrayRef<Operation *> ops,
                        ArrayRef<std::string> first, int64_t count,
                        llvm::function_ref<bool(Value)> varies,
                        llvm::function_ref<bool(Operation *)> isForward) {
  if (static_cast<int64_t>(first.size()) + 1 != count)
    return entry.emitOpError("is cut into ")
           << count << " stages: expected " << count - 1
           << " names, one for each stage but the first, got " << first.size();
  SmallVector<size_t> cuts;
  SmallVector<int64_t> crossing = crossingBytes(ops);
  for (StringRef name : first) {
    llvm::DenseSet<Value> wanted = parametersNamed(entry, name);
    std::optional<size_t> reader =
        firstReader(entry, ops, wanted, varies, isForward);
    if (!reader && !wanted.empty())
      return entry.emitOpError("cannot begin a stage at '")
             << name << "': its reader is computed with the loss, in the "
             << "last stage; begin the stage at an earlier parameter";
    if (!reader)
      return entry.emitOpError("has no parameter whose name begins with '")
             << name << "', at which a stage is to begin";
    // The stage may begin anywhere between the previous op that reads another
    // parameter and the reader: where least is sent.
    size_t best = *reader;
    for (size_t at = *reader; at-- > 0 && !readsInvariant(ops[at], varies);)
      if (crossing[at] < crossing[best])
        best = at;
    if (best == 0 || (!cuts.empty() && best <= cuts.back()))
      return entry.emitOpError("cannot begin a stage at '")
             << name << "': the previous stage would be empty";
    cuts.push_back(best);
  }
  return cuts;
}

/// The stage that begins with the first op that has this mark; 0 for none.
static int64_t beginsStage(Operation *op) {
  auto mark = op->getAttrOfType<IntegerAttr>(kBeginsStageAttr);
  return mark ? mark.getInt() : 0;
}

/// The cuts at marked ops; empty if no op has a mark.
FailureOr<SmallVector<size_t>> Stages::markedCuts(const Ops &ops) {
  SmallVector<size_t> cuts(count - 1, ops.size());
  bool marked = false;
  for (auto [i, op] : llvm::enumerate(ops)) {
    int64_t stage = beginsStage(op);
    if (stage == 0)
      continue;
    if (stage < 0 || stage >= count)
      return op->emitOpError("begins stage ")
             << stage << ", and there are " << count << " stages";
    cuts[stage - 1] = std::min(cuts[stage - 1], i);
    marked = true;
  }
  if (!marked)
    return SmallVector<size_t>();
  for (auto [i, at] : llvm::enumerate(cuts))
    if (at == ops.size() || at == 0 || (i > 0 && at <= cuts[i - 1]))
      return entry.emitOpError("has ops that begin stages, but none, or none "
                               "behind the stage before, that begins stage ")
             << i + 1;
  return cuts;
}

LogicalResult Stages::cut(ArrayRef<std::string> first,
                          const MachineModel &machine, bool whole) {
  Ops ops = stagedForward();
  if (count > 1 && static_cast<int64_t>(ops.size()) < count)
    return entry.emitOpError("cannot be cut into ")
           << count << " stages: it has only " << ops.size()
           << " ops that depend on samples and parameters";
  FailureOr<SmallVector<size_t>> marked = markedCuts(ops);
  if (failed(marked))
    return failure();
  SmallVector<size_t> cuts = *marked;
  if (!cuts.empty()) {
    assign(ops, cuts);
    finish();
    return success();
  }
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
    auto named = namedCuts(
        entry, ops, first, count,
        [&](Value value) { return flow.varies(value); },
        [&](Operation *op) { return flow.part(op) <= PartId::Forward; });
    if (failed(named))
      return failure();
    cuts = *named;
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

LogicalResult Stages::cutLike(Stages &other) {
  // The stages that hold the parameters of each value that does not vary.
  llvm::DenseMap<Value, StageSet> known;
  for (BlockArgument argument : body.getArguments()) {
    StringRef name =
        graph::getArgString(entry, argument.getArgNumber(), graph::kNameAttr);
    if (graph::hasRole(entry, argument.getArgNumber(), "parameter") ||
        other.writes(name))
      known[argument] = other.holders(name);
  }
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
    stage = std::max(stage, std::min(beginsStage(&op), count - 1));
    // The stage must hold the parameters that the op reads.
    for (Value operand : op.getOperands())
      if (auto it = known.find(operand);
          it != known.end() && !it->second.test(stage))
        if (int next = it->second.find_next(stage); next > 0)
          stage = next;
    stages[&op] = stage;
  }
  finish();
  // In an entry of updates alone, each is in the stages that hold its
  // parameter.
  for (auto [i, value] : llvm::enumerate(body.getTerminator()->getOperands()))
    if (auto name =
            entry.getResultAttrOfType<StringAttr>(i, graph::kUpdatesAttr);
        name && value.getDefiningOp() &&
        flow.isEarlyUpdate(value.getDefiningOp()))
      for (unsigned stage : other.holders(name.getValue()).set_bits())
        markRead(value, stage);
  // A stage that reads a value which is not updated there would read an old
  // one.
  for (BlockArgument argument : body.getArguments()) {
    auto held = known.find(argument);
    auto read = present.find(argument);
    if (held == known.end() || read == present.end())
      continue;
    StageSet outside = read->second;
    outside.resize(count);
    outside.reset(held->second);
    if (outside.none())
      continue;
    StringRef name =
        graph::getArgString(entry, argument.getArgNumber(), graph::kNameAttr);
    if (!other.writes(name)) {
      other.hold(name, outside);
      continue;
    }
    func::FuncOp training = other.entry;
    return entry.emitOpError("reads '")
           << name << "' in stage " << outside.find_first() << ", and '@"
           << training.getSymName() << "' updates it in stage "
           << held->second.find_first()
           << ": begin the stages elsewhere (--stages)";
  }
  return success();
}

void Stages::hold(StringRef name, const StageSet &held) {
  if (BlockArgument argument = argumentOf(name))
    for (unsigned stage : held.set_bits())
      insert(present, Value(argument), stage, count);
}

//===----------------------------------------------------------------------===//
// Readers of values
//===----------------------------------------------------------------------===//

void Stages::finish() {
  // Forward ops that only backward reads are in the last stage of their
  // operands.
  for (Operation *op : helpers) {
    int64_t stage = 0;
    for (Value operand : op->getOperands())
      if (Operation *from = operand.getDefiningOp())
        stage = std::max(stage, of(from).value_or(0));
    stages[op] = stage;
  }
  findReaders(PartId::Forward);
  releaseHelpers();
  placeWritten(/*backward=*/false);
  followForward();
  sinkBackward();
  settleHelpers();
  findReaders(PartId::Backward);
  placeWritten(/*backward=*/true);
  findSums();
}

/// A copy of a received value in another type, which only backward reads, is
/// made in each stage that reads it, if later stages than its own have the
/// value as well. In its own stage alone it would take its readers to the stage
/// before.
void Stages::releaseHelpers() {
  for (Operation *op : helpers) {
    if (!isa<graph::CastOp>(op))
      continue;
    StageSet common(count, true);
    for (const StageSet &set : places(op->getOperand(0)))
      common &= set;
    if (common.find_next(stages.lookup(op)) < 0)
      continue;
    stages.erase(op);
    released.insert(op);
    present[op->getResult(0)] = common;
  }
}

/// A released op that one stage reads is computed there.
void Stages::settleHelpers() {
  for (Operation *op : llvm::reverse(helpers)) {
    if (!released.contains(op))
      continue;
    std::optional<int64_t> reader;
    bool one = true;
    for (Operation *user : op->getUsers()) {
      std::optional<int64_t> stage = of(user);
      one &= stage && (!reader || reader == stage);
      reader = stage;
    }
    if (one && reader)
      stages[op] = *reader;
  }
}

/// Records that `stage` reads `value`, and the operands of ops that are
/// computed in the stage for it.
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
      if (!flow.readsTypeOnly(operand))
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
      if (!flow.readsTypeOnly(operand))
        markRead(operand.get(), *stage);
  }
}

BlockArgument Stages::argumentOf(StringRef name) const {
  if (named.empty())
    for (BlockArgument argument : body.getArguments())
      named.try_emplace(
          graph::getArgString(entry, argument.getArgNumber(), graph::kNameAttr),
          argument);
  return named.lookup(name);
}

/// Buffers that a step writes get their new value in each stage that reads the
/// old one, and in one if none does: the last of those that have what it is
/// computed from. These stages read what the new value is computed from, which
/// may be another buffer. What depends on a seed is placed once the stages of
/// backward are known.
void Stages::placeWritten(bool backward) {
  SmallVector<graph::WrittenOp> all;
  for (auto written : body.getOps<graph::WrittenOp>()) {
    Operation *from = written.getInput().getDefiningOp();
    if (argumentOf(written.getBuffer()) &&
        (from && flow.part(from) >= PartId::Backward) == backward)
      all.push_back(written);
  }
  llvm::DenseSet<std::pair<Operation *, unsigned>> placed;
  auto place = [&](graph::WrittenOp written, unsigned stage) {
    if (!placed.insert({written, stage}).second)
      return false;
    insert(present, Value(argumentOf(written.getBuffer())), stage, count);
    markRead(written.getInput(), stage);
    return true;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (graph::WrittenOp written : all) {
      StageSet held = present.lookup(argumentOf(written.getBuffer()));
      for (unsigned stage : held.set_bits())
        changed |= place(written, stage);
    }
    for (graph::WrittenOp written : all)
      if (!changed && present.lookup(argumentOf(written.getBuffer())).none())
        changed = place(written, lastSource(written.getInput()));
  }
}

/// The last stage that computes a value, or has an argument, that `value` is
/// computed from.
int64_t Stages::lastSource(Value value) const {
  int64_t last = 0;
  graph::walkSources(value, [&](Value next, SmallVectorImpl<Value> &work) {
    Operation *op = next.getDefiningOp();
    if (op && stages.contains(op)) {
      last = std::max(last, stages.lookup(op));
      return;
    }
    if (!op) {
      auto it = present.find(next);
      if (it != present.end() && it->second.any())
        last = std::max<int64_t>(last, it->second.find_first());
      return;
    }
    for (OpOperand &operand : op->getOpOperands())
      if (!flow.readsTypeOnly(operand))
        work.push_back(operand.get());
  });
  return last;
}

//===----------------------------------------------------------------------===//
// Values that are the same for each micro-batch
//===----------------------------------------------------------------------===//

static bool isScalar(Value value) {
  return cast<RankedTensorType>(value.getType()).getNumElements() == 1;
}

/// The stage that must compute `op`, because it reads an argument that the
/// entry updates, directly or by tensors that are computed with it: of the
/// stages that hold all of these arguments, the first. Nothing if it reads
/// none. A scalar can be read anywhere.
std::optional<int64_t> Stages::pin(Operation *op) {
  std::optional<StageSet> common;
  auto meet = [&](const StageSet &held) {
    if (!common)
      common = held;
    else if (common->anyCommon(held))
      *common &= held;
  };
  for (OpOperand &operand : op->getOpOperands()) {
    if (flow.readsTypeOnly(operand))
      continue;
    if (auto argument = dyn_cast<BlockArgument>(operand.get())) {
      StringRef name =
          graph::getArgString(entry, argument.getArgNumber(), graph::kNameAttr);
      // What no stage holds, such as a count of steps, each one keeps.
      if (isUpdated(name) && isHeld(argument))
        meet(holders(name));
    } else if (!isScalar(operand.get())) {
      if (auto it = pinned.find(operand.get().getDefiningOp());
          it != pinned.end())
        meet(it->second);
    }
  }
  if (!common)
    return std::nullopt;
  return (pinned[op] = std::move(*common)).find_first();
}

/// What one micro-batch computes is complete where it is computed.
bool Stages::isOfMicroBatch(Operation *op) const {
  return flow.microBatches() > 1
             ? flow.varies(op)
             : of(op) && !isAfterMicroBatches(flow.part(op));
}

/// For each op that is the same for each micro-batch, the stages that read it
/// after all of them, if the ops `early` are computed in their home stages.
llvm::DenseMap<Operation *, StageSet>
Stages::updatesThatRead(ArrayRef<Operation *> early) const {
  llvm::DenseSet<Operation *> apart(early.begin(), early.end());
  llvm::DenseMap<Operation *, StageSet> read;
  func::FuncOp function = entry;
  for (Operation &op : llvm::reverse(body.without_terminator())) {
    StageSet found(count);
    for (OpOperand &use : op.getUses()) {
      Operation *user = use.getOwner();
      if (user->hasTrait<OpTrait::IsTerminator>()) {
        auto name = function.getResultAttrOfType<StringAttr>(
            use.getOperandNumber(), graph::kUpdatesAttr);
        if (name)
          found |= holders(name.getValue());
        else
          found.set(homeOf(&op));
      } else if (isOfMicroBatch(user) || flow.readsTypeOnly(use)) {
        continue;
      } else if (apart.contains(user) && !pinned.contains(user)) {
        found.set(homeOf(user));
      } else if (user->getNumResults() == 0) {
        found.set();
      } else {
        found |= read[user];
      }
    }
    read[&op] = std::move(found);
  }
  return read;
}

/// The scalars that are computed from sums of several stages, each in the first
/// of them: what a norm over all stages is added up of travels from stage to
/// stage, and its total from the first stage to all. Otherwise each stage would
/// read all terms of all others. What depends on a scalar of an earlier stage
/// than its own is not among them.
SmallVector<Operation *> Stages::joinedScalars() const {
  SmallVector<Operation *> joined;
  if (count == 1)
    return joined;
  llvm::DenseSet<Operation *> found, late;
  llvm::DenseMap<Operation *, int64_t> firsts;
  for (Operation &op : body.without_terminator()) {
    auto own = sums.find(&op);
    if (own == sums.end() || flow.isAccumulation(&op))
      continue;
    SmallVector<Operation *> terms;
    int64_t first = count;
    bool behind = false;
    for (OpOperand &operand : op.getOpOperands()) {
      Operation *from = operand.get().getDefiningOp();
      auto it = sums.find(from);
      if (flow.readsTypeOnly(operand) || it == sums.end() || it->second.none())
        continue;
      if (auto reached = firsts.find(from); reached != firsts.end())
        first = std::min(first, reached->second);
      behind |= late.contains(from);
      if (isScalar(operand.get()) && !flow.isAccumulation(from))
        terms.push_back(from);
    }
    bool scalar = llvm::all_of(op.getResults(), isScalar);
    if (own->second.any()) {
      behind |= first < homeOf(&op);
      if (scalar)
        first = std::min(first, homeOf(&op));
    }
    firsts[&op] = first;
    if (behind)
      late.insert(&op);
    if (behind || !scalar || pinned.contains(&op) || own->second.count() < 2 ||
        flow.part(&op) != PartId::Update ||
        (terms.size() < 2 && !flow.isHeavy(&op)))
      continue;
    for (Operation *term : terms)
      if (homeOf(term) != homeOf(&op) && found.insert(term).second)
        joined.push_back(term);
    if (found.insert(&op).second)
      joined.push_back(&op);
  }
  return joined;
}

void Stages::findSums() {
  SmallVector<Operation *> candidates;
  for (Operation &op : body.without_terminator()) {
    if (isOfMicroBatch(&op))
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
      if (!from || flow.readsTypeOnly(operand))
        continue;
      StageSet sources(count);
      if (!isOfMicroBatch(from))
        sources = sums.lookup(from);
      else if (std::optional<int64_t> stage = of(from))
        sources.set(*stage);
      reduces |= sources.any() && !isScalar(operand.get());
      sums[&op] |= sources;
    }
    // Whatever its sums are, it is where the copies that it reads are updated.
    if (std::optional<int64_t> stage = pin(&op)) {
      sums[&op].reset();
      sums[&op].set(*stage);
    }
    // A gradient that state has kept is where its parameter is.
    if (auto gradient = dyn_cast<graph::GradientOp>(&op))
      if (BlockArgument kept = argumentOf(gradient.getParameter());
          kept && graph::hasRole(entry, kept.getArgNumber(), "state"))
        set.set(holders(gradient.getParameter()).find_first());
    if (count == 1 || !llvm::all_of(op.getResults(), isScalar))
      continue;
    if (pinned.contains(&op) || (flow.part(&op) == PartId::Update && reduces))
      candidates.push_back(&op);
  }
  llvm::append_range(candidates, joinedScalars());
  // A scalar that only stages read which can compute it stays with them.
  SmallVector<Operation *> roots;
  llvm::DenseMap<Operation *, StageSet> read = updatesThatRead(candidates);
  for (Operation *op : candidates)
    if (auto it = pinned.find(op);
        it == pinned.end() || read.lookup(op).test(it->second))
      roots.push_back(op);
  beforeUpdate.insert(roots.begin(), roots.end());
  auto reads = [&](OpOperand &operand) {
    Operation *from = operand.get().getDefiningOp();
    return !isOfMicroBatch(from) && !flow.isAccumulation(from) &&
           sums.lookup(from).any();
  };
  for (Operation *from : graph::backwardSlice(roots, {.reads = reads}))
    if (flow.isHeavy(from))
      beforeUpdate.insert(from);
}

int64_t Stages::homeOf(Operation *op) const {
  auto it = sums.find(op);
  int first = it == sums.end() ? -1 : it->second.find_first();
  return std::max(first, 0);
}

int64_t Stages::reducerOf(Operation *op, int64_t stage) const {
  auto it = sums.find(op);
  if (it == sums.end())
    return stage;
  const StageSet &from = it->second;
  if (from.count() == 1)
    return from.find_first();
  // A stage that several positions run has sums of its own at each.
  if (map.devicesOf(stage).size() == 1)
    for (unsigned source : from.set_bits())
      if (areTogether(source, stage))
        return source;
  return stage;
}

int64_t Stages::gathererOf(Operation *op, int64_t stage) const {
  Value source = op->getResult(0);
  while (Operation *from = source.getDefiningOp()) {
    // Of several values one stage may hold one and not the others.
    if (from->getNumOperands() != 1)
      return stage;
    source = from->getOperand(0);
  }
  auto name = func::FuncOp(entry).getArgAttrOfType<StringAttr>(
      cast<BlockArgument>(source).getArgNumber(), graph::kNameAttr);
  if (!name || map.devicesOf(stage).size() != 1)
    return stage;
  StageSet held = holders(name.getValue());
  for (unsigned other : held.set_bits())
    if (held.test(stage) && areTogether(other, stage))
      return other;
  return stage;
}

bool Stages::isComputedToo(Operation *op, int64_t stage) const {
  auto held = pinned.find(op);
  return held != pinned.end() && held->second.test(stage) &&
         !areTogether(stage, homeOf(op)) &&
         !llvm::all_of(op->getResults(), isScalar);
}

bool Stages::isUpdated(StringRef name) {
  if (updated.empty())
    for (unsigned i = 0, e = entry.getNumResults(); i < e; ++i)
      if (auto own =
              entry.getResultAttrOfType<StringAttr>(i, graph::kUpdatesAttr))
        updated.insert(own.getValue());
  return updated.contains(name);
}

bool Stages::writes(StringRef buffer) const {
  return llvm::any_of(
      body.getOps<graph::WrittenOp>(),
      [&](graph::WrittenOp written) { return written.getBuffer() == buffer; });
}

bool Stages::isHeld(BlockArgument argument) const {
  auto it = present.find(argument);
  return (it != present.end() && it->second.any()) ||
         !graph::getArgString(entry, argument.getArgNumber(), graph::kOfAttr)
              .empty();
}

StageSet Stages::holders(StringRef name) const {
  StageSet found(count);
  if (BlockArgument argument = argumentOf(name)) {
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
