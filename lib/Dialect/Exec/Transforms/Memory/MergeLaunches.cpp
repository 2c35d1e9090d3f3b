//===- MergeLaunches.cpp - One launch of many uses of a kernel ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Works on the order of commands that memory planning would choose, with the
/// buffers that values then have: what uses no buffer that another command
/// writes may change places with it, and uses of a kernel of which that holds
/// may run at the same time. Since a use that takes over the memory of an
/// operand has it in one buffer, no use of a launch reads what another one may
/// then overwrite.
///
//===----------------------------------------------------------------------===//

#include "PartMemory.h"
#include "cleave/Dialect/Exec/Transforms/Passes.h"
#include "cleave/Support/LaunchLimits.h"
#include "llvm/ADT/MapVector.h"
#include <set>

namespace cleave::exec {
#define GEN_PASS_DEF_MERGELAUNCHES
#include "cleave/Dialect/Exec/Transforms/Passes.h.inc"
} // namespace cleave::exec

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

/// The most elements of all uses of a launch: its blocks must have numbers of
/// 31 bits, and larger launches gain nothing.
static constexpr int64_t kMaxElements = int64_t(1) << 31;

namespace {

class Merger {
public:
  Merger(func::FuncOp part, const llvm::BitVector &dying,
         const ScratchMemory &scratch, int64_t movedBytes)
      : part(part), dying(dying), movedBytes(movedBytes),
        memory(assignBuffers(part, commandsOf(part), dying, scratch)) {}

  void run(SymbolTable &symbols);

private:
  /// A place in the order: a command, or launches that become one; nothing
  /// where they have left.
  struct Place {
    SmallVector<Operation *, 1> ops;
    llvm::DenseSet<unsigned> reads, writes;
  };

  void addPlaces();
  static bool conflict(const Place &a, const Place &b);
  bool canMove(unsigned from, unsigned to) const;
  bool move(unsigned from, unsigned to);
  bool join(unsigned group, unsigned next);
  void mergeUses(ArrayRef<unsigned> places, int64_t limit);
  void rewrite();

  /// Whether the bytes of a buffer are taken and released.
  bool counts(const PartBuffer &buffer) const {
    if (buffer.tier || buffer.constant)
      return false;
    return buffer.argument < 0 ||
           (dying.test(buffer.argument) && buffer.results.empty());
  }
  /// From the first to the last place that uses a buffer.
  std::pair<int64_t, int64_t> lifeOf(unsigned buffer) const;
  void addTo(std::vector<int64_t> &bytes, unsigned buffer, int64_t sign) const;

  func::FuncOp part;
  const llvm::BitVector &dying;
  int64_t movedBytes;
  PartMemory memory;
  std::vector<Place> places;
  /// By buffer, the places that use it.
  std::vector<std::multiset<unsigned>> uses;
  /// The buffers of what the part computes and does not return.
  llvm::BitVector computed;
  /// By place, the bytes in use; at most `limit`.
  std::vector<int64_t> live;
  int64_t limit = 0;
};

} // namespace

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

void Merger::addPlaces() {
  uses.resize(memory.buffers.size());
  for (auto [i, op] : llvm::enumerate(memory.commands)) {
    Place &place = places.emplace_back();
    place.ops.push_back(op);
    for (Value operand : op->getOperands())
      place.reads.insert(memory.bufferOf.lookup(operand));
    for (Value result : op->getResults())
      place.writes.insert(memory.bufferOf.lookup(result));
    if (auto scratch = memory.scratchOf.find(op);
        scratch != memory.scratchOf.end())
      place.writes.insert(scratch->second);
    for (unsigned buffer : place.reads)
      uses[buffer].insert(i);
    for (unsigned buffer : place.writes)
      if (!place.reads.contains(buffer))
        uses[buffer].insert(i);
  }
  computed.resize(memory.buffers.size());
  for (const Place &place : places)
    for (unsigned buffer : place.writes)
      if (const PartBuffer &own = memory.buffers[buffer];
          own.results.empty() && !own.scratchOf)
        computed.set(buffer);
  live.assign(places.size() + 1, 0);
  for (unsigned buffer = 0; buffer < memory.buffers.size(); ++buffer)
    addTo(live, buffer, 1);
  // Less than a thousandth is lost in what packing loses.
  int64_t peak = *llvm::max_element(live);
  limit = peak + std::max(peak / 1000, movedBytes / 64);
}

std::pair<int64_t, int64_t> Merger::lifeOf(unsigned buffer) const {
  const PartBuffer &own = memory.buffers[buffer];
  auto end = static_cast<int64_t>(places.size());
  if (uses[buffer].empty())
    return {0, own.results.empty() ? -1 : end};
  return {own.argument >= 0 ? 0 : *uses[buffer].begin(),
          own.results.empty() ? *uses[buffer].rbegin() : end};
}

void Merger::addTo(std::vector<int64_t> &bytes, unsigned buffer,
                   int64_t sign) const {
  if (!counts(memory.buffers[buffer]))
    return;
  auto [first, last] = lifeOf(buffer);
  for (int64_t at = first; at <= last; ++at)
    bytes[at] += sign * memory.buffers[buffer].bytes;
}

//===----------------------------------------------------------------------===//
// Moves
//===----------------------------------------------------------------------===//

bool Merger::conflict(const Place &a, const Place &b) {
  using Set = llvm::DenseSet<unsigned>;
  auto meet = [](const Set &some, const Set &others) {
    const Set &few = some.size() < others.size() ? some : others;
    const Set &many = &few == &some ? others : some;
    return llvm::any_of(few, [&](unsigned i) { return many.contains(i); });
  };
  return meet(a.writes, b.writes) || meet(a.writes, b.reads) ||
         meet(a.reads, b.writes);
}

/// Whether what is at `from` may run at `to`, beside what is there.
bool Merger::canMove(unsigned from, unsigned to) const {
  for (unsigned i = std::min(from, to); i <= std::max(from, to); ++i) {
    if (i == from)
      continue;
    // No update comes before a check that can stop the step.
    bool early =
        to < from && llvm::any_of(places[i].ops, llvm::IsaPred<CheckOp>);
    if (early || conflict(places[i], places[from]))
      return false;
  }
  return true;
}

/// Moves what is at `from` to `to`, unless that takes more memory.
bool Merger::move(unsigned from, unsigned to) {
  std::vector<unsigned> moved(places[from].reads.begin(),
                              places[from].reads.end());
  for (unsigned buffer : places[from].writes)
    if (!places[from].reads.contains(buffer))
      moved.push_back(buffer);
  std::vector<int64_t> next = live;
  int64_t longer = 0;
  for (unsigned buffer : moved) {
    const PartBuffer &own = memory.buffers[buffer];
    addTo(next, buffer, -1);
    auto [first, last] = lifeOf(buffer);
    uses[buffer].erase(uses[buffer].find(from));
    uses[buffer].insert(to);
    addTo(next, buffer, 1);
    auto [newFirst, newLast] = lifeOf(buffer);
    if (computed.test(buffer) && counts(own) &&
        (newFirst < first || newLast > last))
      longer += own.bytes;
  }
  bool larger = longer > movedBytes;
  for (unsigned i = std::min(from, to); i <= std::max(from, to); ++i)
    larger |= next[i] > limit && next[i] > live[i];
  if (larger) {
    for (unsigned buffer : moved) {
      uses[buffer].erase(uses[buffer].find(to));
      uses[buffer].insert(from);
    }
    return false;
  }
  live = std::move(next);
  Place &own = places[from], &other = places[to];
  other.ops.insert(from < to ? other.ops.begin() : other.ops.end(),
                   own.ops.begin(), own.ops.end());
  other.reads.insert(own.reads.begin(), own.reads.end());
  other.writes.insert(own.writes.begin(), own.writes.end());
  own = {};
  return true;
}

/// Adds the launch at `next` to those at `group`, at the place of either.
bool Merger::join(unsigned group, unsigned next) {
  return (canMove(next, group) && move(next, group)) ||
         (canMove(group, next) && move(group, next));
}

/// Merges uses of one kernel, at most `limit` in a launch.
void Merger::mergeUses(ArrayRef<unsigned> candidates, int64_t limit) {
  std::optional<unsigned> group;
  for (unsigned next : candidates) {
    bool joined = group &&
                  static_cast<int64_t>(places[*group].ops.size()) < limit &&
                  join(*group, next);
    // At whose place they are now.
    if (!joined || places[*group].ops.empty())
      group = next;
  }
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

/// The most uses of a kernel that a launch can have.
static int64_t maxUses(KernelOp kernel) {
  auto arguments =
      static_cast<int64_t>(kernel.getBody().front().getNumArguments());
  int64_t elements = std::max<int64_t>(1, int64_t(kernel.getRows()) *
                                              int64_t(kernel.getCols()));
  // Of two stages, the scratch memory is a parameter too.
  return std::min((kLaunchAddresses - 1) / std::max<int64_t>(1, arguments),
                  kMaxElements / elements);
}

void Merger::run(SymbolTable &symbols) {
  addPlaces();
  // Launches of one kernel with equal types, which layouts are part of. Where
  // an operand begins in its buffer is a part of its address.
  auto atStart = [](Type type) -> Type {
    auto tensor = cast<RankedTensorType>(type);
    return withLayout(tensor, {getLayout(tensor).strides, 0});
  };
  using Form = std::tuple<Attribute, Attribute, Attribute>;
  llvm::MapVector<Form, SmallVector<unsigned>> candidates;
  Builder builder(part.getContext());
  for (auto [i, op] : llvm::enumerate(memory.commands))
    if (auto launch = dyn_cast<LaunchOp>(op); launch && launch.getUses() == 1)
      candidates[{launch.getKernelAttr(), launch.getInplaceAttr(),
                  TypeAttr::get(builder.getFunctionType(
                      llvm::map_to_vector(launch->getOperandTypes(), atStart),
                      launch->getResultTypes()))}]
          .push_back(i);
  for (auto &[form, list] : candidates)
    if (auto kernel = symbols.lookup<KernelOp>(
            cast<FlatSymbolRefAttr>(std::get<0>(form)).getValue()))
      mergeUses(list, maxUses(kernel));
  rewrite();
}

void Merger::rewrite() {
  std::vector<Operation *> order;
  bool merged = false;
  for (Place &place : places) {
    if (place.ops.size() < 2) {
      llvm::append_range(order, place.ops);
      continue;
    }
    merged = true;
    // Where their order was.
    auto first = cast<LaunchOp>(place.ops.front());
    SmallVector<Value> operands;
    SmallVector<Type> types;
    for (Operation *op : place.ops) {
      llvm::append_range(operands, op->getOperands());
      llvm::append_range(types, op->getResultTypes());
    }
    OpBuilder builder(part.front().getTerminator());
    auto launch = LaunchOp::create(
        builder, first.getLoc(), types, first.getKernelAttr(), operands,
        first.getInplaceAttr(),
        builder.getI64IntegerAttr(static_cast<int64_t>(place.ops.size())));
    ResultRange results = launch.getResults();
    for (Operation *op : place.ops) {
      op->replaceAllUsesWith(results.take_front(op->getNumResults()));
      results = results.drop_front(op->getNumResults());
      op->erase();
    }
    order.push_back(launch);
  }
  if (merged)
    arrange(part, order);
}

namespace {
struct MergeLaunches : exec::impl::MergeLaunchesBase<MergeLaunches> {
  using MergeLaunchesBase::MergeLaunchesBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    SymbolTable symbols(module);
    ScratchMemory scratch(module, threads);
    FailureOr<llvm::StringMap<llvm::BitVector>> dying = dyingArguments(module);
    if (failed(dying))
      return signalPassFailure();
    for (auto part : module.getOps<func::FuncOp>()) {
      auto known = dying->find(part.getName());
      if (known == dying->end())
        continue;
      const llvm::BitVector &own = known->second;
      if (failed(settleResults(part)) ||
          failed(orderCommands(part, own, scratch)))
        return signalPassFailure();
      Merger(part, own, scratch, movedBytes).run(symbols);
    }
  }
};
} // namespace
