//===- FuseGroups.cpp - Groups of ops that share a kernel -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "FuseGroups.h"
#include "llvm/ADT/BitVector.h"
#include <queue>

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

namespace {

/// The largest number of tensors that one kernel reads from memory or writes,
/// and of those that its ops read or define.
constexpr size_t kMaxArguments = 32, kMaxTensors = 64;
/// Sharing the read of a tensor smaller than this does not justify a merge.
constexpr int64_t kMinShared = 512;
/// Bytes from which on it matters to a GPU what a kernel moves.
constexpr int64_t kLarge = 1 << 20;
/// Columns of which a block of a GPU has partial sums in registers.
constexpr int64_t kInRegisters = 16384;
/// The position of no group.
constexpr unsigned kNone = ~0u;

int64_t elementsOf(Value v) {
  return cast<RankedTensorType>(v.getType()).getNumElements();
}

class Grouping {
public:
  Grouping(ArrayRef<FusionNode> nodes, TargetTraits target)
      : nodes(nodes), target(target) {}
  SmallVector<FusionGroup> run();

private:
  void buildEdges();
  llvm::BitVector preparations() const;
  void overwriteAfterChecks();
  void sortNodes();
  void growFrom(unsigned node);
  size_t argumentsOf(ArrayRef<unsigned> members) const;
  bool isFull(unsigned group) const;
  bool tooMany(unsigned a, unsigned b) const;
  bool tryMerge(unsigned a, unsigned b);
  std::optional<KernelSpace> fit(ArrayRef<unsigned> members,
                                 const KernelSpace &a,
                                 const KernelSpace &b) const;
  bool isValid(ArrayRef<unsigned> members, const KernelSpace &space) const;
  bool bringTogether(unsigned first, unsigned last);
  void repeatWidened(unsigned node);
  SmallVector<FusionGroup> inOrder() const;

  bool readsApart(unsigned a, unsigned b, Value tensor) const;
  bool sumsApart(ArrayRef<unsigned> members, const KernelSpace &space) const;

  ArrayRef<FusionNode> nodes;
  TargetTraits target;
  SmallVector<FusionGroup> groups;
  /// The group of each node.
  SmallVector<unsigned> groupOf;
  /// Nodes whose results each node needs.
  SmallVector<SmallVector<unsigned>> needs;
  /// The groups in an order in which they can run, with kNone for one that was
  /// merged into another, and the position of each in it.
  SmallVector<unsigned> order, rank;
  /// For each group, the search that last visited it.
  SmallVector<unsigned> seenBy;
  unsigned searches = 0;
  DenseMap<Value, unsigned> producer;
  DenseMap<Operation *, unsigned> numberOf;
  /// Nodes that read each tensor, in order.
  DenseMap<Value, SmallVector<unsigned>> readers;
  /// The tensors that the nodes of each group read or define.
  SmallVector<DenseSet<Value>> tensors;
  /// Of the readers that have grown, those whose groups may still grow.
  DenseMap<Value, SmallVector<unsigned>> openReaders;
};

} // namespace

std::optional<Level> cleave::exec::placementIn(const FusionNode &node,
                                               const KernelSpace &space) {
  const KernelSpace &own = node.space;
  if (!own.flexible) {
    if (!space.flexible && own.rows == space.rows && own.cols == space.cols)
      return Level::Element;
    return std::nullopt;
  }
  if (own.numElements() == space.numElements())
    return Level::Element;
  if (!space.flexible && own.numElements() == space.rows)
    return Level::Row;
  return std::nullopt;
}

void Grouping::buildEdges() {
  unsigned lastEffect = ~0u;
  needs.resize(nodes.size());
  for (auto [i, node] : llvm::enumerate(nodes)) {
    numberOf[node.op] = i;
    for (Value result : node.op->getResults())
      producer[result] = i;
    SmallVector<unsigned> &list = needs[i];
    node.op->walk([&, i = (unsigned)i](Operation *inner) {
      for (Value operand : inner->getOperands()) {
        // A kernel reads through views and does not depend on them.
        if (nodes[i].fusable)
          operand = throughViews(operand);
        auto it = producer.find(operand);
        if (it != producer.end() && it->second != i)
          list.push_back(it->second);
      }
    });
    // Ops with effects stay in order.
    if (!isMemoryEffectFree(node.op)) {
      if (lastEffect != ~0u)
        list.push_back(lastEffect);
      lastEffect = i;
    }
    llvm::sort(list);
    list.erase(llvm::unique(list), list.end());
    if (node.fusable)
      for (const KernelBuilder::Read &read : node.reads)
        if (auto &all = readers[read.tensor]; all.empty() || all.back() != i)
          all.push_back(i);
  }
  overwriteAfterChecks();
  tensors.resize(nodes.size());
  for (unsigned i = 0; i < nodes.size(); ++i) {
    groups.push_back({{i}, nodes[i].fusable, nodes[i].space});
    groupOf.push_back(i);
    for (const auto &definition : nodes[i].definitions)
      tensors[i].insert(definition.result);
    for (const KernelBuilder::Read &read : nodes[i].reads)
      tensors[i].insert(read.tensor);
  }
  sortNodes();
  seenBy.assign(nodes.size(), 0);
}

/// The nodes whose results only nodes read that overwrite arguments, or that
/// are themselves among these, unless a result is smaller than what it is
/// computed from.
llvm::BitVector Grouping::preparations() const {
  llvm::BitVector found(nodes.size());
  auto serves = [&](Operation *user, auto &&serves) -> bool {
    if (auto view = dyn_cast<ViewOp>(user))
      return !view->use_empty() &&
             llvm::all_of(view->getUsers(),
                          [&](Operation *u) { return serves(u, serves); });
    auto reader = numberOf.find(user);
    return reader != numberOf.end() &&
           (nodes[reader->second].overwrites || found.test(reader->second));
  };
  for (unsigned i = nodes.size(); i-- > 0;) {
    const FusionNode &node = nodes[i];
    if (!node.fusable || node.reads.empty() || node.op->use_empty())
      continue;
    int64_t read = 0, defined = INT64_MAX;
    for (const KernelBuilder::Read &r : node.reads)
      read = std::max(read, elementsOf(r.tensor));
    for (const auto &definition : node.definitions)
      defined = std::min(defined, elementsOf(definition.result));
    if (defined >= read &&
        llvm::all_of(node.op->getUsers(),
                     [&](Operation *user) { return serves(user, serves); }))
      found.set(i);
  }
  return found;
}

/// A step that a check stops changes nothing: an op that overwrites an argument
/// comes after every check that does not read its result. So it is never in one
/// kernel with what computes the flag of a check, however small both are. What
/// it alone reads comes with it: before the check, it would have to be stored.
void Grouping::overwriteAfterChecks() {
  llvm::BitVector prepares = preparations(), neededByAny(nodes.size());
  SmallVector<unsigned> checks;
  for (unsigned check = 0; check < nodes.size(); ++check) {
    if (!nodes[check].stops)
      continue;
    llvm::BitVector needed(nodes.size());
    SmallVector<unsigned> open{check};
    while (!open.empty())
      for (unsigned need : needs[open.pop_back_val()])
        if (!needed.test(need)) {
          needed.set(need);
          open.push_back(need);
        }
    for (unsigned i = 0; i < nodes.size(); ++i)
      if (nodes[i].overwrites && i != check && !needed.test(i))
        needs[i].push_back(check);
    neededByAny |= needed;
    checks.push_back(check);
  }
  prepares.reset(neededByAny);
  for (unsigned i : prepares.set_bits())
    llvm::append_range(needs[i], checks);
}

/// The first order: that of the nodes, as far as needs allow.
void Grouping::sortNodes() {
  SmallVector<SmallVector<unsigned>> after(nodes.size());
  SmallVector<unsigned> waits(nodes.size(), 0);
  for (unsigned i = 0; i < nodes.size(); ++i)
    for (unsigned need : needs[i]) {
      after[need].push_back(i);
      ++waits[i];
    }
  std::priority_queue<unsigned, std::vector<unsigned>, std::greater<>> ready;
  for (unsigned i = 0; i < nodes.size(); ++i)
    if (waits[i] == 0)
      ready.push(i);
  rank.resize(nodes.size());
  while (!ready.empty()) {
    unsigned i = ready.top();
    ready.pop();
    rank[i] = order.size();
    order.push_back(i);
    for (unsigned next : after[i])
      if (--waits[next] == 0)
        ready.push(next);
  }
}

/// Every value that is passed between members without memory must be read in
/// the order in which it is defined.
bool Grouping::isValid(ArrayRef<unsigned> members,
                       const KernelSpace &space) const {
  using Loops = SmallVector<Stride, 4>;
  auto loopsOf = [](std::initializer_list<Stride> loops) {
    Loops kept;
    for (Stride loop : loops)
      if (loop.size != 1)
        kept.push_back(loop);
    return kept;
  };
  DenseSet<Value> passed;
  bool forward = false, backward = false;
  for (unsigned m : members) {
    const FusionNode &node = nodes[m];
    forward |= node.scansForward;
    backward |= node.scansBackward;
    auto placement = placementIn(node, space);
    if (!placement)
      return false;
    for (const auto &definition : node.definitions)
      passed.insert(definition.result);
    for (const KernelBuilder::Read &read : node.reads) {
      passed.insert(read.tensor);
      auto it = producer.find(read.tensor);
      if (it == producer.end() || !llvm::is_contained(members, it->second))
        continue;
      const FusionNode &from = nodes[it->second];
      auto fromPlacement = placementIn(from, space);
      if (!fromPlacement || read.indexed || read.access.logicalOffset != 0)
        return false;
      const KernelBuilder::Definition *definition =
          llvm::find_if(from.definitions,
                        [&](const auto &d) { return d.result == read.tensor; });
      if (definition == from.definitions.end() || !definition->plain)
        return false;
      Level defined =
          *fromPlacement == Level::Row ? Level::Row : definition->level;
      Level used = *placement == Level::Row ? Level::Row : read.level;
      Loops loops = read.access.joinedLogical();
      if (defined == Level::Element) {
        if (used != Level::Element ||
            loops != loopsOf({{space.numElements(), 1}}))
          return false;
      } else if (used == Level::Row) {
        if (loops != loopsOf({{space.rows, 1}}))
          return false;
      } else if (loops != loopsOf({{space.rows, 1}, {space.cols, 0}})) {
        return false;
      }
    }
  }
  // A pass goes through its columns in one direction.
  if (forward && backward)
    return false;
  return members.size() == 1 || ((passed.size() <= kMaxArguments ||
                                  argumentsOf(members) <= kMaxArguments) &&
                                 !sumsApart(members, space));
}

/// The number of tensors that members read which others define, or define which
/// others read.
size_t Grouping::argumentsOf(ArrayRef<unsigned> members) const {
  DenseSet<Value> inputs;
  size_t outputs = 0;
  auto outside = [&](Operation *user, auto &&outside) -> bool {
    if (isa<ViewOp>(user) && !user->use_empty())
      return llvm::any_of(user->getUsers(),
                          [&](Operation *u) { return outside(u, outside); });
    auto number = numberOf.find(user);
    return number == numberOf.end() ||
           !std::binary_search(members.begin(), members.end(), number->second);
  };
  for (unsigned m : members) {
    for (const KernelBuilder::Read &read : nodes[m].reads) {
      auto it = producer.find(read.tensor);
      if (it == producer.end() ||
          !std::binary_search(members.begin(), members.end(), it->second))
        inputs.insert(read.tensor);
    }
    for (Value result : nodes[m].op->getResults())
      outputs += llvm::any_of(result.getUsers(), [&](Operation *user) {
        return outside(user, outside);
      });
  }
  return inputs.size() + outputs;
}

/// Whether a GPU sums columns better in a kernel of their own than in one that
/// also has row reductions, in which each of its blocks has partial sums of
/// whole rows: these would be more than what that kernel reads, or be read and
/// written for each row.
bool Grouping::sumsApart(ArrayRef<unsigned> members,
                         const KernelSpace &space) const {
  auto reduces = [&](unsigned m) { return nodes[m].reducesRows; };
  if (!target.isGpu() || space.flexible || llvm::none_of(members, reduces))
    return false;
  int64_t times = space.cols > kInRegisters
                      ? space.rows
                      : std::min(space.rows, target.getMultiprocessors());
  int64_t partial = 2 * sizeof(float) * times * space.cols;
  return llvm::any_of(members, [&](unsigned m) {
    if (!nodes[m].sumsColumns || nodes[m].reducesRows)
      return false;
    int64_t read = 0;
    for (const KernelBuilder::Read &r : nodes[m].reads)
      if (elementsOf(r.tensor) >= space.numElements())
        read += bytesOf(r.tensor);
    return read > kLarge && partial > read;
  });
}

/// Whether a kernel of both nodes, with one element of the tensor for each of
/// its space, would read some elements of it twice, in two orders.
bool Grouping::readsApart(unsigned a, unsigned b, Value tensor) const {
  const FusionNode &first = nodes[a], &second = nodes[b];
  if (first.space.numElements() != second.space.numElements())
    return false;
  auto count = [](ArrayRef<Stride> loops) {
    int64_t elements = 1;
    for (Stride loop : loops)
      elements *= loop.step == 0 ? 1 : loop.size;
    return elements;
  };
  bool apart = false;
  for (const KernelBuilder::Read &r : first.reads)
    for (const KernelBuilder::Read &s : second.reads) {
      if (r.tensor != tensor || s.tensor != tensor)
        continue;
      auto loops = r.access.joinedMemory(), others = s.access.joinedMemory();
      if (r.indexed || s.indexed || r.level != s.level ||
          (loops == others && r.access.memoryOffset == s.access.memoryOffset))
        return false;
      apart |= count(loops) + count(others) > elementsOf(tensor);
    }
  return apart;
}

/// A space in which both groups can run, or nothing.
std::optional<KernelSpace> Grouping::fit(ArrayRef<unsigned> members,
                                         const KernelSpace &a,
                                         const KernelSpace &b) const {
  SmallVector<KernelSpace, 3> candidates;
  if (!a.flexible)
    candidates.push_back(a);
  else if (!b.flexible)
    candidates.push_back(b);
  else {
    int64_t n = std::max(a.numElements(), b.numElements());
    int64_t m = std::min(a.numElements(), b.numElements());
    if (n == m)
      candidates.push_back(KernelSpace::flat(n));
    else if (m > 1 && n % m == 0)
      candidates.push_back(KernelSpace::fixed(m, n / m));
  }
  for (const KernelSpace &space : candidates)
    if (isValid(members, space))
      return space;
  return std::nullopt;
}

/// Moves what `last` needs before `first`; false when some of it needs `first`,
/// so that the two merged would depend on themselves.
bool Grouping::bringTogether(unsigned first, unsigned last) {
  SmallVector<unsigned> needed, open{last};
  seenBy[last] = ++searches;
  while (!open.empty()) {
    unsigned group = open.pop_back_val();
    for (unsigned m : groups[group].nodes)
      for (unsigned need : needs[m]) {
        unsigned g = groupOf[need];
        if (g == first && group != last)
          return false;
        if (rank[g] <= rank[first] || seenBy[g] == searches)
          continue;
        seenBy[g] = searches;
        needed.push_back(g);
        open.push_back(g);
      }
  }
  if (needed.empty())
    return true;
  llvm::sort(needed, [&](unsigned g, unsigned h) { return rank[g] < rank[h]; });
  unsigned begin = rank[first], end = rank[needed.back()];
  SmallVector<unsigned> window(needed);
  for (unsigned r = begin; r <= end; ++r)
    if (order[r] != kNone && seenBy[order[r]] != searches)
      window.push_back(order[r]);
  window.resize(end - begin + 1, kNone);
  for (auto [i, g] : llvm::enumerate(window)) {
    order[begin + i] = g;
    if (g != kNone)
      rank[g] = begin + i;
  }
  return true;
}

/// Whether both groups together have more tensors than those of a kernel may.
bool Grouping::tooMany(unsigned a, unsigned b) const {
  if (tensors[a].size() < tensors[b].size())
    std::swap(a, b);
  size_t count = tensors[a].size();
  for (Value tensor : tensors[b])
    count += !tensors[a].contains(tensor);
  return count > kMaxTensors;
}

/// Whether a group has as many tensors as it may have: it takes no later node,
/// which has a result of its own.
bool Grouping::isFull(unsigned group) const {
  size_t count = tensors[group].size();
  return count >= kMaxTensors ||
         (count >= kMaxArguments &&
          argumentsOf(groups[group].nodes) >= kMaxArguments);
}

bool Grouping::tryMerge(unsigned a, unsigned b) {
  if (a == b || !groups[a].fusable || !groups[b].fusable || tooMany(a, b))
    return false;
  SmallVector<unsigned> members(groups[a].nodes);
  members.append(groups[b].nodes);
  llvm::sort(members);
  auto space = fit(members, groups[a].space, groups[b].space);
  if (!space)
    return false;
  unsigned first = rank[a] < rank[b] ? a : b, last = first == a ? b : a;
  if (!bringTogether(first, last))
    return false;

  order[rank[last]] = kNone;
  rank[a] = rank[first];
  order[rank[a]] = a;
  for (unsigned m : groups[b].nodes)
    groupOf[m] = a;
  groups[a].nodes = std::move(members);
  groups[a].space = *space;
  groups[b].nodes.clear();
  tensors[a].insert(tensors[b].begin(), tensors[b].end());
  tensors[b].clear();
  return true;
}

void Grouping::growFrom(unsigned node) {
  // The merge that saves the most bytes first: a producer's value need not be
  // written or read.
  struct Candidate {
    int64_t bytes;
    unsigned node;
  };
  SmallVector<Candidate> candidates;
  for (const KernelBuilder::Read &read : nodes[node].reads) {
    int64_t bytes = bytesOf(read.tensor);
    auto it = producer.find(read.tensor);
    if (it != producer.end() && nodes[it->second].fusable)
      candidates.push_back({2 * bytes, it->second});
    if (elementsOf(read.tensor) < kMinShared)
      continue;
    SmallVector<unsigned> &open = openReaders[read.tensor];
    llvm::erase_if(open,
                   [&](unsigned reader) { return isFull(groupOf[reader]); });
    for (unsigned reader : open) {
      // Operands much smaller than the work do not justify a merge.
      if (elementsOf(read.tensor) * 2 >= nodes[reader].space.numElements() &&
          !readsApart(node, reader, read.tensor))
        candidates.push_back({bytes, reader});
    }
  }
  llvm::stable_sort(candidates, [](const Candidate &a, const Candidate &b) {
    return a.bytes > b.bytes;
  });
  for (const Candidate &candidate : candidates)
    tryMerge(groupOf[node], groupOf[candidate.node]);
  for (const KernelBuilder::Read &read : nodes[node].reads)
    if (auto &open = openReaders[read.tensor];
        open.empty() || open.back() != node)
      open.push_back(node);
}

/// Where other groups read what `node` widens, has each of them widen it as it
/// loads the operand, so that no wide copy is in memory; not if an op that has
/// no kernel needs one.
void Grouping::repeatWidened(unsigned node) {
  unsigned home = groupOf[node];
  Value wide = nodes[node].definitions[0].result;
  DenseMap<unsigned, SmallVector<unsigned>> others;
  for (Operation *user : wide.getUsers()) {
    auto list = readers.find(wide);
    if (list == readers.end() ||
        llvm::none_of(list->second, [&](unsigned reader) {
          return nodes[reader].op == user;
        }))
      return;
  }
  for (unsigned reader : readers[wide]) {
    unsigned group = groupOf[reader];
    if (group == home || others.contains(group))
      continue;
    SmallVector<unsigned> members(groups[group].nodes);
    members.push_back(node);
    llvm::sort(members);
    if (!isValid(members, groups[group].space))
      return;
    others[group] = std::move(members);
  }
  for (auto &[group, members] : others)
    groups[group].nodes = std::move(members);
}

/// The groups in an order that respects dependences and stays close to the
/// given one.
SmallVector<FusionGroup> Grouping::inOrder() const {
  SmallVector<SmallVector<unsigned>> after(groups.size());
  SmallVector<unsigned> waits(groups.size(), 0);
  for (unsigned g = 0; g < groups.size(); ++g) {
    DenseSet<unsigned> seen;
    for (unsigned m : groups[g].nodes)
      for (unsigned need : needs[m])
        if (unsigned h = groupOf[need]; h != g && seen.insert(h).second) {
          after[h].push_back(g);
          ++waits[g];
        }
  }
  using Entry = std::pair<unsigned, unsigned>; // last node, group
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  auto push = [&](unsigned g) { ready.push({groups[g].nodes.back(), g}); };
  for (unsigned g = 0; g < groups.size(); ++g)
    if (!groups[g].nodes.empty() && waits[g] == 0)
      push(g);
  SmallVector<FusionGroup> ordered;
  while (!ready.empty()) {
    unsigned g = ready.top().second;
    ready.pop();
    ordered.push_back(groups[g]);
    for (unsigned next : after[g])
      if (--waits[next] == 0)
        push(next);
  }
  return ordered;
}

SmallVector<FusionGroup> Grouping::run() {
  buildEdges();
  for (unsigned i = 0; i < nodes.size(); ++i)
    if (nodes[i].fusable)
      growFrom(i);
  for (unsigned i = 0; i < nodes.size(); ++i)
    if (nodes[i].widens)
      repeatWidened(i);
  return inOrder();
}

SmallVector<FusionGroup> cleave::exec::groupOps(ArrayRef<FusionNode> nodes,
                                                TargetTraits target) {
  return Grouping(nodes, target).run();
}
