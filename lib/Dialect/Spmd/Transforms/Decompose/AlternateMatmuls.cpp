//===- AlternateMatmuls.cpp - Products whose steps alternate -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "AlternateMatmuls.h"
#include "cleave/Dialect/Graph/Analysis/Work.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {

/// An operand of a product that is broadcast in parts.
struct Reading {
  ContractionSteps *product;
  unsigned index;
};

class Finder {
public:
  explicit Finder(MutableArrayRef<ContractionSteps> products)
      : products(products) {
    for (ContractionSteps &product : products)
      ops.insert(product.getOp());
  }

  std::vector<AlternatingProducts> run();

private:
  bool isWork(Operation *op) const;
  std::optional<SmallVector<Operation *>>
  readersBetween(ArrayRef<Operation *> members) const;
  std::optional<SmallVector<Operation *>>
  neededFirst(ArrayRef<Operation *> members) const;
  void join(ArrayRef<Reading> readings);
  void bring(const AlternatingProducts &together) const;
  void keepApart(ArrayRef<Reading> readings) const;

  MutableArrayRef<ContractionSteps> products;
  llvm::DenseSet<Operation *> ops;
  /// The first product of the group of each product that is in one.
  llvm::DenseMap<ContractionSteps *, ContractionSteps *> first;
};
} // namespace

/// Whether `op` is heavy work: a product, a collective or a kernel.
/// Products are not moved past work that depends on them, or during which their
/// values would be kept.
bool Finder::isWork(Operation *op) const {
  return ops.contains(op) || isa<CommunicationOpInterface>(op) ||
         graph::isHeavyWork(op);
}

/// Returns the ops between the first and the last of `members` that depend on
/// one of them, in order. Returns nothing if a member or other work depends on
/// one, or if unrelated work is between them, during which their values would
/// be kept.
std::optional<SmallVector<Operation *>>
Finder::readersBetween(ArrayRef<Operation *> members) const {
  llvm::DenseSet<Value> made, read;
  for (Operation *member : members)
    read.insert_range(member->getOperands());
  SmallVector<Operation *> readers;
  for (Operation *op = members.front();; op = op->getNextNode()) {
    bool member = llvm::is_contained(members, op);
    bool depends = llvm::any_of(op->getOperands(), [&](Value operand) {
      return made.contains(operand);
    });
    if (depends && (member || isWork(op) || !isMemoryEffectFree(op) ||
                    op->getNumRegions() > 0))
      return std::nullopt;
    if (!member && isWork(op) &&
        llvm::none_of(op->getOperands(),
                      [&](Value operand) { return read.contains(operand); }))
      return std::nullopt;
    if (depends)
      readers.push_back(op);
    if (depends || member)
      made.insert_range(op->getResults());
    if (op == members.back())
      return readers;
  }
}

/// Returns the ops after the first member that the other members depend on, in
/// order; nothing if these are more than views of arguments.
std::optional<SmallVector<Operation *>>
Finder::neededFirst(ArrayRef<Operation *> members) const {
  SmallVector<Operation *> work(members.drop_front());
  llvm::DenseSet<Operation *> needed, seen;
  while (!work.empty()) {
    Operation *op = work.pop_back_val();
    for (Value operand : op->getOperands()) {
      Operation *source = operand.getDefiningOp();
      if (!source)
        continue;
      bool behind = members.front()->isBeforeInBlock(source);
      // Ops before the first member are available to all.
      if ((!behind && ops.contains(op)) || !seen.insert(source).second)
        continue;
      if (isWork(source) || !isMemoryEffectFree(source) ||
          source->getNumRegions() > 0)
        return std::nullopt;
      if (behind)
        needed.insert(source);
      work.push_back(source);
    }
  }
  SmallVector<Operation *> result(needed.begin(), needed.end());
  llvm::sort(result,
             [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); });
  return result;
}

static SmallVector<Operation *> opsOf(ArrayRef<ContractionSteps *> products) {
  return llvm::map_to_vector(
      products, [](ContractionSteps *product) { return product->getOp(); });
}

/// Moves the members to the first one if the operands of the others can be
/// moved there, else to the last one.
void Finder::bring(const AlternatingProducts &together) const {
  SmallVector<Operation *> members = opsOf(together);
  if (auto needed = neededFirst(members)) {
    for (Operation *op : *needed)
      op->moveBefore(members.front());
    for (auto [before, op] : llvm::zip(members, llvm::drop_begin(members)))
      op->moveAfter(before);
    return;
  }
  SmallVector<Operation *> readers = *readersBetween(members);
  Operation *last = members.back(), *behind = last;
  for (Operation *op : readers) {
    op->moveAfter(behind);
    behind = op;
  }
  for (Operation *op : ArrayRef(members).drop_back())
    op->moveBefore(last);
}

/// Finds groups of products that receive the same parts.
void Finder::join(ArrayRef<Reading> readings) {
  AlternatingProducts together;
  auto close = [&] {
    if (together.size() > 1) {
      bring(together);
      for (ContractionSteps *product : together)
        first[product] = together.front();
    }
    together.clear();
  };
  for (const Reading &reading : readings) {
    if (reading.product->isHeld(reading.index) ||
        first.contains(reading.product) ||
        llvm::is_contained(together, reading.product))
      continue;
    together.push_back(reading.product);
    if (readersBetween(opsOf(together)))
      continue;
    together.pop_back();
    close();
    together.push_back(reading.product);
  }
  close();
}

/// Numbers the broadcasts of parts that are sent several times (`apart`).
void Finder::keepApart(ArrayRef<Reading> readings) const {
  // Parts of held operands are sent once for all products.
  llvm::SmallMapVector<ContractionSteps *, int64_t, 4> numbers;
  for (const Reading &reading : readings) {
    ContractionSteps *owner = nullptr;
    if (!reading.product->isHeld(reading.index)) {
      auto known = first.find(reading.product);
      owner = known == first.end() ? reading.product : known->second;
    }
    int64_t number = numbers.insert({owner, numbers.size()}).first->second;
    if (number > 0)
      reading.product->setApart(reading.index, number);
  }
}

std::vector<AlternatingProducts> Finder::run() {
  // Products by the value that they receive, in order.
  std::vector<SmallVector<Reading, 2>> same;
  llvm::DenseMap<Value, SmallVector<size_t, 2>> places;
  for (ContractionSteps &product : products)
    for (unsigned i = 0; i < 2; ++i) {
      std::optional<SentParts> sent = product.sent(i);
      if (!sent)
        continue;
      SmallVector<size_t, 2> &known = places[sent->value];
      auto at = llvm::find_if(known, [&](size_t place) {
        const Reading &other = same[place].front();
        return other.product->sent(other.index) == sent;
      });
      if (at == known.end()) {
        known.push_back(same.size());
        same.push_back({{&product, i}});
      } else {
        same[*at].push_back({&product, i});
      }
    }
  for (ArrayRef<Reading> readings : same)
    join(readings);
  for (ArrayRef<Reading> readings : same)
    keepApart(readings);

  std::vector<AlternatingProducts> result;
  llvm::DenseMap<ContractionSteps *, size_t> known;
  for (ContractionSteps &product : products) {
    auto in = first.find(&product);
    ContractionSteps *owner = in == first.end() ? &product : in->second;
    auto [place, isNew] = known.insert({owner, result.size()});
    if (isNew)
      result.emplace_back();
    result[place->second].push_back(&product);
  }
  return result;
}

std::vector<AlternatingProducts> cleave::spmd::findAlternatingProducts(
    MutableArrayRef<ContractionSteps> products) {
  return Finder(products).run();
}
