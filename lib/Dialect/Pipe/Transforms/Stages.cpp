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

/// The index in `ops` of the first that reads, itself or by what is the same
/// for each micro-batch, a parameter whose name begins with `prefix`.
static std::optional<size_t> firstReader(func::FuncOp entry, const Flow &flow,
                                         ArrayRef<Operation *> ops,
                                         StringRef prefix) {
  llvm::DenseSet<Value> wanted;
  for (BlockArgument argument : entry.getArguments())
    if (graph::hasRole(entry, argument.getArgNumber(), "parameter") &&
        graph::getArgString(entry, argument.getArgNumber(), graph::kNameAttr)
            .starts_with(prefix))
      wanted.insert(argument);
  for (Operation &op : entry.getBody().front().without_terminator())
    if (!flow.varies(&op) && flow.part(&op) == PartId::Forward &&
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

LogicalResult Stages::cut(ArrayRef<std::string> first) {
  Ops ops = stagedForward();
  if (static_cast<int64_t>(ops.size()) < count)
    return entry.emitOpError("is to be cut into ")
           << count << " stages, and has only " << ops.size()
           << " ops that depend on samples and parameters";
  SmallVector<size_t> cuts;
  if (first.empty()) {
    cuts = balancedCuts(ops, count);
  } else {
    if (static_cast<int64_t>(first.size()) + 1 != count)
      return entry.emitOpError("is to be cut into ")
             << count << " stages: name where the " << count - 1
             << " behind the first begin, not " << first.size();
    SmallVector<int64_t> crossing = crossingBytes(ops);
    for (StringRef name : first) {
      std::optional<size_t> reader = firstReader(entry, flow, ops, name);
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
}

//===----------------------------------------------------------------------===//
// Backward
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

/// Where `value`, of forward or an argument, is: the stages of what it is made
/// of that are not in all.
SmallVector<StageSet> Stages::places(Value value) const {
  SmallVector<StageSet> found;
  Operation *op = value.getDefiningOp();
  if (op && flow.varies(op) && !stages.contains(op))
    return found;
  // What does not vary is where its parameters are.
  SmallVector<Value> work{value};
  llvm::DenseSet<Value> seen;
  while (!work.empty()) {
    Value next = work.pop_back_val();
    if (!seen.insert(next).second)
      continue;
    Operation *from = next.getDefiningOp();
    if (from && !flow.varies(from)) {
      llvm::append_range(work, from->getOperands());
      continue;
    }
    if (auto argument = dyn_cast<BlockArgument>(next);
        argument &&
        !graph::hasRole(entry, argument.getArgNumber(), "parameter"))
      continue;
    if (auto it = present.find(next); it != present.end())
      found.push_back(it->second);
  }
  return found;
}

/// The last stage up to `stage` where `value` is; nothing where it is in this
/// one, or in none of them.
std::optional<int64_t> Stages::lowered(Value value, int64_t stage) const {
  std::optional<int64_t> found;
  for (const StageSet &set : places(value))
    if (!set.test(stage))
      if (int below = set.find_last_in(0, stage); below >= 0)
        found = std::min<int64_t>(found.value_or(stage), below);
  return found;
}

/// Whether the op reads `operand`: a barrier only waits for its second.
static bool isRead(const Flow &flow, OpOperand &operand) {
  auto barrier = dyn_cast<spmd::BarrierOp>(operand.getOwner());
  return !flow.isUnread(operand) &&
         !(barrier && operand == barrier.getAfterMutable());
}

/// The stage of an op of backward that reads forward and seeds alone, such as a
/// head joined with its loss: where forward ends. What does so without a seed is
/// forward still, as it is read here.
std::optional<int64_t> Stages::turningPoint(Operation &op) const {
  std::optional<int64_t> stage;
  if (isa<graph::SeedOp>(op))
    return stage;
  for (OpOperand &operand : op.getOpOperands()) {
    Operation *from = operand.get().getDefiningOp();
    if (!from || !isRead(flow, operand))
      continue;
    if (seeds.contains(from))
      continue;
    std::optional<int64_t> own = of(from);
    if (own && flow.part(from) == PartId::Backward && !resumed.contains(from))
      return std::nullopt;
    if (own)
      stage = std::max(stage.value_or(0), *own);
  }
  return stage;
}

/// Whether an op of backward makes of a seed what the loss is weighted with: of
/// forward it reads scalars alone.
bool Stages::isSeed(Operation &op) const {
  if (isa<graph::SeedOp>(op))
    return true;
  bool seeded = false;
  for (OpOperand &operand : op.getOpOperands()) {
    Operation *from = operand.get().getDefiningOp();
    if (!isRead(flow, operand))
      continue;
    if (from && seeds.contains(from))
      seeded = true;
    else if (fromParameters.contains(operand.get()) || (from && of(from))) {
      if (cast<RankedTensorType>(operand.get().getType()).getNumElements() > 1)
        return false;
    }
  }
  return seeded;
}

/// Whether an op of backward depends on nothing that stages have of their own:
/// what a seed is divided by, say. Each stage that reads it computes it.
bool Stages::isEverywhere(Operation &op) const {
  return !isa<graph::SeedOp>(op) && !flow.isHeavy(&op) &&
         llvm::none_of(op.getOpOperands(), [&](OpOperand &operand) {
           Value value = operand.get();
           Operation *from = value.getDefiningOp();
           return !flow.isUnread(operand) &&
                  (fromParameters.contains(value) || (from && of(from)));
         });
}

/// An op of backward stands where the gradient comes from, or before, where
/// what it reads of forward is.
void Stages::followForward() {
  for (Operation &op : body.without_terminator()) {
    if (flow.part(&op) != PartId::Backward)
      continue;
    bool seed = isSeed(op);
    if (seed)
      seeds.insert(&op);
    if (!flow.varies(&op) || isEverywhere(op))
      continue;
    if (seed) {
      // Where its scalars are.
    } else if (std::optional<int64_t> turning = turningPoint(op)) {
      stages[&op] = *turning;
      bool seeded = false;
      for (OpOperand &operand : op.getOpOperands()) {
        Operation *from = operand.get().getDefiningOp();
        if (!isRead(flow, operand))
          continue;
        markRead(operand.get(), *turning);
        seeded |= from && flow.part(from) == PartId::Backward &&
                  (!of(from) || seeds.contains(from));
      }
      if (!seeded)
        resumed.insert(&op);
      continue;
    }
    int64_t stage = count - 1;
    for (OpOperand &operand : op.getOpOperands()) {
      // Of a seed, too: the loss itself is not read.
      Operation *from = operand.get().getDefiningOp();
      if (from &&
          (flow.part(from) == PartId::Backward || isa<graph::SeedOp>(op)))
        stage = std::min(stage, of(from).value_or(stage));
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (OpOperand &operand : op.getOpOperands()) {
        Operation *from = operand.get().getDefiningOp();
        if (flow.isUnread(operand) ||
            (from && of(from) && flow.part(from) == PartId::Backward))
          continue;
        if (std::optional<int64_t> below = lowered(operand.get(), stage)) {
          stage = *below;
          moved = true;
        }
      }
    }
    stages[&op] = stage;
  }
}

/// The last stage up to `stage` that reads `value`, of backward; a sum that
/// becomes a gradient is read where the parameter is. -1 where none does.
int64_t Stages::lastReader(Value value, int64_t stage) const {
  int64_t last = -1;
  SmallVector<Operation *> users(value.getUsers());
  llvm::DenseSet<Operation *> seen;
  while (!users.empty()) {
    Operation *user = users.pop_back_val();
    if (!seen.insert(user).second)
      continue;
    if (std::optional<int64_t> own = of(user)) {
      last = std::max(last, *own);
    } else if (auto gradient = dyn_cast<graph::GradientOp>(user)) {
      StageSet held = holders(gradient.getParameter());
      int below = held.test(stage) ? stage : held.find_last_in(0, stage);
      last = std::max<int64_t>(last, below < 0 ? stage : below);
    } else if (user->getNumResults() == 0) {
      last = std::max(last, stage);
    } else {
      for (Value result : user->getResults())
        llvm::append_range(users, result.getUsers());
    }
  }
  return last;
}

/// An op of backward whose results only an earlier stage reads moves there
/// where less is sent then: what a dropout at the end of a stage leaves of a
/// gradient, say.
void Stages::sinkBackward() {
  for (Operation &op : llvm::reverse(body.without_terminator())) {
    auto found = stages.find(&op);
    if (found == stages.end() || flow.part(&op) != PartId::Backward ||
        isa<graph::SeedOp>(op) ||
        (flow.isHeavy(&op) && !isa<spmd::CommunicationOpInterface>(op)))
      continue;
    int64_t stage = found->second, target = -1;
    for (Value result : op.getResults())
      target = std::max(target, lastReader(result, stage));
    if (target < 0 || target >= stage)
      continue;
    int64_t saved = 0, added = 0;
    for (Value result : op.getResults())
      saved += lastReader(result, stage) >= 0 ? bytesOf(result) : 0;
    bool can = true;
    for (OpOperand &operand : op.getOpOperands()) {
      Value value = operand.get();
      Operation *from = value.getDefiningOp();
      if (flow.isUnread(operand))
        continue;
      if (!from || !of(from) || flow.part(from) != PartId::Backward) {
        can &= llvm::all_of(places(value), [&](const StageSet &set) {
          return set.test(target);
        });
        continue;
      }
      bool there = llvm::any_of(value.getUsers(), [&](Operation *user) {
        return user != &op && of(user) == target;
      });
      if (std::optional<int64_t> own = of(from); own && *own > target && !there)
        added += bytesOf(value);
    }
    if (can && added <= saved)
      found->second = target;
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
