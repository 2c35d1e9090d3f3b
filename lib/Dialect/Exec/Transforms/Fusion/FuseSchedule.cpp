//===- FuseSchedule.cpp - Splitting flat code into passes over a row ------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Flat code computes values of a row or of its elements. A reduction computes
/// a value of the row from one of the elements, and so ends a pass:
///
///     %x = load x[r, c]                    %m = pass { %x = load; reduce max }
///     %m = reduce max %x              =>   pass { %x = load; exp(%x - %m) }
///     %y = exp(%x - %m)
///
/// A value of the elements that a later pass needs is loaded again if it is in
/// memory, recomputed if that is cheap, and else kept.
///
//===----------------------------------------------------------------------===//

#include "FuseGroups.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/Dominance.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/Transforms/CSE.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

namespace {

/// A row longer than this is not kept: it would not fit shared memory.
constexpr int64_t kMaxKeptBytes = 16384;
/// The number of additions that recomputing a value may cost before it is kept.
constexpr int kCheap = 10;

class Scheduler {
public:
  Scheduler(Block &flat, KernelOp kernel, IRMapping &mapping)
      : flat(flat), kernel(kernel), mapping(mapping),
        builder(OpBuilder::atBlockEnd(&kernel.getBody().front())) {}

  void run();

private:
  bool isElement(Value v) const { return elements.contains(v); }
  void classify(Operation *op);
  int costOf(Operation *op) const;
  int costOfCone(Value v, DenseSet<Operation *> &seen) const;
  void demand(Value v, int pass, DenseSet<Operation *> &needed);
  void emitRowCode(int time);
  void emitPass(int pass);

  Block &flat;
  KernelOp kernel;
  IRMapping &mapping;
  OpBuilder builder;
  /// Values of the elements; all others are of the row.
  DenseSet<Value> elements;
  /// Ops of the elements: the first pass that can compute them. Ops of the
  /// row: the pass before which they run.
  DenseMap<Operation *, int> time;
  /// The pass in which a value was first computed.
  DenseMap<Value, int> computed;
  /// Where a value of the elements is in memory after its pass.
  DenseMap<Value, StoreOp> stored;
  DenseMap<Value, Value> kept;
  /// Values to store into kept rows, by pass.
  SmallVector<SmallVector<Value>> keepIn;
  SmallVector<DenseSet<Operation *>> neededIn;
  /// Values that a pass reads back from memory.
  SmallVector<SmallVector<Value>> reloadIn;
  int numPasses = 0;
};

/// True if the op belongs to a pass.
bool isElementSink(Operation *op, const DenseSet<Value> &elements) {
  if (isa<ReduceOp>(op))
    return true;
  if (auto store = dyn_cast<StoreOp>(op))
    return store.getMap().isFunctionOfDim(1) ||
           elements.contains(store.getValue());
  if (auto accumulate = dyn_cast<AccumulateOp>(op))
    return accumulate.getMap().isFunctionOfDim(1) ||
           elements.contains(accumulate.getValue());
  return false;
}

} // namespace

void Scheduler::classify(Operation *op) {
  int at = 0;
  // A recurrence differs from place to place even if what it reads does not.
  bool element =
      isa<ScanOp>(op) ||
      llvm::any_of(op->getOperands(), [&](Value v) { return isElement(v); });
  auto mapOf = [](Operation *op) -> AffineMap {
    if (auto load = dyn_cast<LoadOp>(op))
      return load.getMap();
    if (auto index = dyn_cast<IndexOp>(op))
      return index.getMap();
    if (auto philox = dyn_cast<PhiloxOp>(op))
      return philox.getMap();
    return {};
  };
  if (AffineMap map = mapOf(op); map && map.isFunctionOfDim(1))
    element = true;
  for (Value operand : op->getOperands())
    if (Operation *def = operand.getDefiningOp())
      at = std::max(at, time.lookup(def) + (isa<ReduceOp>(def) ? 1 : 0));
  time[op] = at;
  if (isElementSink(op, elements)) {
    numPasses = std::max(numPasses, at + 1);
    if (auto store = dyn_cast<StoreOp>(op))
      if (isElement(store.getValue()))
        stored[store.getValue()] = store;
  } else if (element) {
    elements.insert(op->result_begin(), op->result_end());
  }
}

int Scheduler::costOf(Operation *op) const {
  if (isa<arith::ConstantOp>(op))
    return 0;
  if (isa<PhiloxOp, ScanOp>(op))
    return 40;
  if (auto load = dyn_cast<LoadOp>(op))
    return load.getIndices().empty() ? 1 : 4;
  if (isa<arith::DivFOp, math::SqrtOp>(op))
    return 6;
  return op->getName().getDialectNamespace() == "math" ? 12 : 1;
}

int Scheduler::costOfCone(Value v, DenseSet<Operation *> &seen) const {
  Operation *op = v.getDefiningOp();
  if (!op || !isElement(v) || !seen.insert(op).second)
    return 0;
  if (stored.contains(v))
    return 1;
  int cost = costOf(op);
  for (Value operand : op->getOperands())
    cost += costOfCone(operand, seen);
  return cost;
}

/// Marks the ops that pass `pass` computes to provide `v`.
void Scheduler::demand(Value v, int pass, DenseSet<Operation *> &needed) {
  Operation *op = v.getDefiningOp();
  if (!op || !isElement(v) || needed.contains(op) || mapping.contains(v))
    return;
  auto again = [&] {
    if (!llvm::is_contained(reloadIn[pass], v))
      reloadIn[pass].push_back(v);
  };
  auto first = computed.find(v);
  if (first != computed.end() && first->second < pass && !isa<LoadOp>(op)) {
    if (StoreOp store = stored.lookup(v); store && time.lookup(store) < pass)
      return again();
    DenseSet<Operation *> seen;
    int64_t bytes = kernel.getCols() * elementBytes(v.getType());
    if (costOfCone(v, seen) > kCheap && bytes <= kMaxKeptBytes) {
      if (!llvm::is_contained(keepIn[first->second], v))
        keepIn[first->second].push_back(v);
      return again();
    }
  }
  needed.insert(op);
  computed.try_emplace(v, pass);
  for (Value operand : op->getOperands())
    demand(operand, pass, needed);
}

void Scheduler::emitRowCode(int at) {
  for (Operation &op : flat) {
    bool sink = isElementSink(&op, elements);
    if (sink || time[&op] != at ||
        (op.getNumResults() && isElement(op.getResult(0))))
      continue;
    builder.clone(op, mapping);
  }
}

void Scheduler::emitPass(int pass) {
  Location loc = kernel.getLoc();
  AffineMap columns = AffineMap::get(2, 0, builder.getAffineDimExpr(1));
  // The values of a pass are not available after it.
  IRMapping inner = mapping;
  SmallVector<Value> reductions;
  SmallVector<Type> types;
  for (Operation &op : flat)
    if (isa<ReduceOp>(op) && time[&op] == pass) {
      reductions.push_back(op.getResult(0));
      types.push_back(op.getResult(0).getType());
    }
  for (Value v : keepIn[pass])
    kept[v] = KeepOp::create(
        builder, loc,
        RankedTensorType::get({(int64_t)kernel.getCols()}, v.getType()));

  auto passOp = PassOp::create(builder, loc, types);
  OpBuilder b = OpBuilder::atBlockEnd(&passOp.getBody().emplaceBlock());
  for (Value v : reloadIn[pass]) {
    if (Value row = kept.lookup(v)) {
      inner.map(v, LoadOp::create(b, loc, v.getType(), row, ValueRange(),
                                  Value(), columns)
                       .getValue());
      continue;
    }
    StoreOp store = stored.lookup(v);
    inner.map(v, LoadOp::create(b, loc, v.getType(),
                                mapping.lookup(store.getMemory()), ValueRange(),
                                Value(), store.getMap())
                     .getValue());
  }
  for (Operation &op : flat) {
    bool sink = isElementSink(&op, elements) && time[&op] == pass;
    if (!sink && !neededIn[pass].contains(&op))
      continue;
    b.clone(op, inner);
    if (op.getNumResults() && llvm::is_contained(keepIn[pass], op.getResult(0)))
      StoreOp::create(b, loc, inner.lookup(op.getResult(0)),
                      kept.lookup(op.getResult(0)), columns);
  }
  SmallVector<Value> yielded;
  for (auto [i, v] : llvm::enumerate(reductions)) {
    yielded.push_back(inner.lookup(v));
    mapping.map(v, passOp.getResult(i));
  }
  YieldOp::create(b, loc, yielded);
}

void Scheduler::run() {
  for (Operation &op : flat)
    classify(&op);
  keepIn.resize(numPasses);
  neededIn.resize(numPasses);
  reloadIn.resize(numPasses);
  for (int pass = 0; pass < numPasses; ++pass)
    for (Operation &op : flat)
      if (isElementSink(&op, elements) && time[&op] == pass)
        for (Value operand : op.getOperands())
          demand(operand, pass, neededIn[pass]);

  int last = numPasses;
  for (Operation &op : flat)
    last = std::max(last, time[&op]);
  for (int t = 0; t <= last; ++t) {
    emitRowCode(t);
    if (t < numPasses)
      emitPass(t);
  }
}

void cleave::exec::scheduleKernel(Block &flat, KernelOp kernel,
                                  IRMapping &mapping) {
  Scheduler(flat, kernel, mapping).run();
  IRRewriter rewriter(kernel.getContext());
  DominanceInfo dominance(kernel);
  eliminateCommonSubExpressions(rewriter, dominance, kernel);
}
