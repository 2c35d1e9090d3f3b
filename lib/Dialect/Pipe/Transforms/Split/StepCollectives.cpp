//===- StepCollectives.cpp - Collectives that a step needs once -----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "StepCollectives.h"
#include "cleave/Dialect/Graph/Analysis/Slices.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Pipe/Transforms/Costs.h"
#include "llvm/Support/FormatVariadic.h"
#include <map>
#include <set>

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

/// Whether the op is a collective over devices, along one of `axes` if any are
/// given.
static bool isCollective(Operation *op, const spmd::Mesh &mesh,
                         ArrayRef<std::string> axes = {}) {
  auto sender = dyn_cast<spmd::CommunicationOpInterface>(op);
  return sender && llvm::any_of(mesh.deviceAxes(sender.getCommunicationAxes()),
                                [&](const spmd::AxisRef &axis) {
                                  return axes.empty() ||
                                         llvm::is_contained(axes, axis.name);
                                });
}

/// Whether the op stores its operand in fewer bytes.
static bool isNarrowing(Operation *op) {
  return op->getNumOperands() == 1 && op->getNumResults() == 1 &&
         cast<RankedTensorType>(op->getOperand(0).getType()).getShape() ==
             cast<RankedTensorType>(op->getResult(0).getType()).getShape() &&
         bytesOf(op->getResult(0)) < bytesOf(op->getOperand(0));
}

/// Whether the op reads `operand`. A barrier does not read its second operand.
static bool needs(const Flow &flow, OpOperand &operand) {
  auto barrier = dyn_cast<spmd::BarrierOp>(operand.getOwner());
  return !flow.readsTypeOnly(operand) &&
         !(barrier && operand == barrier.getAfterMutable());
}

namespace {
/// The ops of an entry that depend on parameters alone, and the collectives
/// over `axes` among them (over any if empty), with those they depend on.
class ParameterOps {
public:
  ParameterOps(func::FuncOp entry, const Flow &flow, const spmd::Mesh &mesh,
               ArrayRef<std::string> axes);

  /// Whether part G could run the op.
  bool contains(Operation *op) const { return ops.contains(op); }
  /// Whether the op is a collective, or one depends on it.
  bool leads(Operation *op) const { return leading.contains(op); }
  /// The collectives that a micro-batch depends on, in order.
  ArrayRef<Operation *> collectives() const { return exchanges; }
  /// The casts to fewer bits that a micro-batch depends on.
  ArrayRef<Operation *> copies() const { return narrowed; }
  /// Concatenations of results of collectives, or of casts to fewer bits, that
  /// a micro-batch depends on; whether they are of collectives.
  ArrayRef<std::pair<Operation *, bool>> joins() const { return joined; }
  /// The arguments that the collective depends on.
  SmallVector<unsigned> sources(Operation *op) const;

private:
  const Flow &flow;
  llvm::DenseSet<Operation *> ops, leading;
  SmallVector<Operation *> exchanges, narrowed;
  SmallVector<std::pair<Operation *, bool>> joined;
};
} // namespace

ParameterOps::ParameterOps(func::FuncOp entry, const Flow &flow,
                           const spmd::Mesh &mesh, ArrayRef<std::string> axes)
    : flow(flow) {
  Block &body = entry.getBody().front();
  llvm::DenseSet<Value> values;
  for (BlockArgument argument : body.getArguments())
    if (graph::hasRole(entry, argument.getArgNumber(), "parameter") ||
        graph::hasRole(entry, argument.getArgNumber(), "state"))
      values.insert(argument);
  for (Operation &op : body.without_terminator()) {
    // The result of a deferred update is a parameter.
    if (flow.isEarlyUpdate(&op)) {
      if (flow.part(&op) == PartId::Deferred)
        values.insert(op.result_begin(), op.result_end());
      continue;
    }
    if (op.getNumResults() == 0 || !isPure(&op) ||
        flow.part(&op) == PartId::Update || flow.isAccumulation(&op) ||
        flow.isOfMicroBatch(&op) ||
        !llvm::all_of(op.getOpOperands(), [&](OpOperand &operand) {
          return !needs(flow, operand) || values.contains(operand.get());
        }))
      continue;
    ops.insert(&op);
    values.insert(op.result_begin(), op.result_end());
  }
  // The values that the parts of a micro-batch read.
  llvm::DenseSet<Operation *> inLoop;
  for (Operation &op : llvm::reverse(body.without_terminator())) {
    bool looped =
        !contains(&op) && flow.varies(&op) && flow.part(&op) != PartId::Update;
    bool lead = contains(&op) && isCollective(&op, mesh, axes);
    for (OpOperand &use : op.getUses()) {
      if (!needs(flow, use))
        continue;
      looped |= inLoop.contains(use.getOwner());
      lead |= contains(&op) && leads(use.getOwner());
    }
    if (looped)
      inLoop.insert(&op);
    if (lead && looped)
      leading.insert(&op);
    if (lead && looped && isCollective(&op, mesh))
      exchanges.push_back(&op);
    if (looped && contains(&op) && isNarrowing(&op))
      narrowed.push_back(&op);
  }
  std::reverse(exchanges.begin(), exchanges.end());
  // What is joined is made in its place.
  auto addJoined = [&](SmallVector<Operation *> &list) {
    llvm::DenseSet<Operation *> made(list.begin(), list.end());
    for (Operation &op : body.without_terminator())
      if (isa<graph::ConcatOp>(op) && inLoop.contains(&op) && contains(&op) &&
          llvm::all_of(op.getOperands(), [&](Value operand) {
            return made.contains(operand.getDefiningOp());
          }))
        joined.push_back({&op, &list == &exchanges});
  };
  addJoined(exchanges);
  addJoined(narrowed);
}

SmallVector<unsigned> ParameterOps::sources(Operation *op) const {
  std::set<unsigned> found;
  graph::OpSlice slice = graph::backwardSlice(
      op, {.reads = [&](OpOperand &use) {
        return needs(flow, use) && contains(use.get().getDefiningOp());
      }});
  slice.insert(op);
  for (Operation *from : slice)
    for (OpOperand &operand : from->getOpOperands())
      if (auto argument = dyn_cast<BlockArgument>(operand.get());
          argument && needs(flow, operand))
        found.insert(argument.getArgNumber());
  return SmallVector<unsigned>(found.begin(), found.end());
}

GatherChoice cleave::pipe::chooseGathers(func::FuncOp entry, const Flow &flow,
                                         const spmd::Mesh &mesh,
                                         GatherMode mode) {
  ParameterOps ops(entry, flow, mesh, {});
  if (ops.collectives().empty())
    return {};
  if (mode == GatherMode::Each)
    return {false, "each"};
  if (mode == GatherMode::Once)
    return {true, "once"};
  // A value that forward and backward both gather counts once.
  using Key = std::tuple<SmallVector<unsigned>, const void *, const void *,
                         const void *>;
  std::set<Key> seen;
  int64_t gathered = 0, held = 0;
  for (Operation *op : ops.collectives()) {
    // A value that only another collective reads is not kept.
    if (llvm::all_of(op->getUsers(),
                     [&](Operation *user) { return ops.leads(user); }))
      continue;
    Value result = op->getResult(0);
    if (seen.insert({ops.sources(op), op->getName().getAsOpaquePointer(),
                     op->getAttrDictionary().getAsOpaquePointer(),
                     result.getType().getAsOpaquePointer()})
            .second)
      gathered += bytesOf(result);
  }
  for (BlockArgument argument : entry.getArguments())
    if (graph::hasRole(entry, argument.getArgNumber(), "parameter") ||
        graph::hasRole(entry, argument.getArgNumber(), "state"))
      held += bytesOf(argument);
  bool once = gathered <= held;
  return {once, llvm::formatv("{0}: gathered parameters of {1} bytes are {2} "
                              "than the {3} bytes of parameters and state that "
                              "a device holds",
                              once ? "once" : "each", gathered,
                              once ? "no more" : "more", held)
                    .str()};
}

void cleave::pipe::joinGathers(func::FuncOp entry, const Flow &flow,
                               const spmd::Mesh &mesh,
                               ArrayRef<std::string> axes) {
  ParameterOps ops(entry, flow, mesh, axes);
  Block &body = entry.getBody().front();
  std::map<size_t, SmallVector<Operation *, 1>> known;
  SmallVector<Operation *> replaced;
  for (Operation &op : body.without_terminator()) {
    bool joins = llvm::is_contained(llvm::make_first_range(ops.joins()), &op);
    if ((!ops.leads(&op) && !joins) || isa<spmd::BarrierOp>(op))
      continue;
    for (OpOperand &operand : op.getOpOperands())
      while (auto barrier = operand.get().getDefiningOp<spmd::BarrierOp>()) {
        if (!ops.contains(barrier))
          break;
        operand.set(barrier.getInput());
      }
    size_t hash = OperationEquivalence::computeHash(
        &op, OperationEquivalence::directHashValue,
        OperationEquivalence::ignoreHashValue,
        OperationEquivalence::IgnoreLocations);
    SmallVector<Operation *, 1> &alike = known[hash];
    auto same = llvm::find_if(alike, [&](Operation *other) {
      return OperationEquivalence::isEquivalentTo(
          other, &op, OperationEquivalence::IgnoreLocations);
    });
    if (same == alike.end()) {
      alike.push_back(&op);
      continue;
    }
    op.replaceAllUsesWith(*same);
    replaced.push_back(&op);
  }
  for (Operation *op : llvm::reverse(replaced))
    op->erase();
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(body)))
    if (isa<spmd::BarrierOp>(op) && op.use_empty())
      op.erase();
}

StepCollectives::StepCollectives(func::FuncOp entry, const Flow &flow,
                                 const spmd::Mesh &mesh, bool gather,
                                 ArrayRef<std::string> axes, bool copy) {
  ParameterOps ops(entry, flow, mesh, axes);
  if (gather)
    gathered.insert(ops.collectives().begin(), ops.collectives().end());
  if (copy)
    gathered.insert(ops.copies().begin(), ops.copies().end());
  for (auto [op, ofCollectives] : ops.joins())
    if (ofCollectives ? gather : copy)
      gathered.insert(op);
  if (flow.mergedUpdate())
    return;
  // The values that gradients depend on.
  Block &body = entry.getBody().front();
  SmallVector<Operation *> gradients;
  for (auto gradient : body.getOps<graph::GradientOp>())
    gradients.push_back(gradient);
  graph::OpSlice wanted = graph::backwardSlice(
      gradients, {.reads = [&](OpOperand &use) { return needs(flow, use); }});
  // Collectives of state alone.
  llvm::DenseSet<Value> kept;
  for (BlockArgument argument : body.getArguments())
    if (graph::hasRole(entry, argument.getArgNumber(), "state"))
      kept.insert(argument);
  for (Operation &op : body.without_terminator()) {
    if (!wanted.contains(&op) || isa<graph::GradientOp>(op) || !isPure(&op) ||
        op.getNumOperands() == 0 || flow.isEarlyUpdate(&op) ||
        flow.isAccumulation(&op) || flow.isOfMicroBatch(&op) ||
        !llvm::all_of(op.getOpOperands(), [&](OpOperand &operand) {
          return !needs(flow, operand) || kept.contains(operand.get());
        }))
      continue;
    kept.insert(op.result_begin(), op.result_end());
    if (isCollective(&op, mesh))
      gathered.insert(&op);
  }
  // The values that depend on complete sums.
  llvm::DenseSet<Operation *> sums;
  for (Operation &op : body.without_terminator()) {
    if (flow.isAccumulation(&op)) {
      if (!flow.inPrologue(&op))
        sums.insert(&op);
      continue;
    }
    if (flow.varies(&op) || flow.part(&op) != PartId::Backward)
      continue;
    if (llvm::none_of(op.getOpOperands(), [&](OpOperand &operand) {
          Operation *from = operand.get().getDefiningOp();
          return from && needs(flow, operand) && sums.contains(from);
        }))
      continue;
    sums.insert(&op);
    if (wanted.contains(&op) && isCollective(&op, mesh))
      reduced.insert(&op);
  }
}
