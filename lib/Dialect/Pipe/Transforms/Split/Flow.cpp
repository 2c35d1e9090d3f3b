//===- Flow.cpp - Roles and micro-batches by dataflow ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Flow.h"
#include "../Recompute/ValueViews.h"
#include "cleave/Dialect/Graph/Analysis/Slices.h"
#include "cleave/Dialect/Graph/Analysis/StepRoles.h"
#include "cleave/Dialect/Graph/Analysis/Work.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/Messages/ErrorTopic.h"
#include "cleave/Dialect/Spmd/IR/OfDevice.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

StringRef cleave::pipe::partName(PartId id, bool split) {
  switch (id) {
  case PartId::Deferred:
    return "D";
  case PartId::Prologue:
    return "P";
  case PartId::Gather:
    return "G";
  case PartId::Forward:
    return "F";
  case PartId::Backward:
    return split ? "I" : "B";
  case PartId::Weights:
    return "W";
  case PartId::Reduce:
    return "R";
  case PartId::BeforeUpdate:
    return "N";
  case PartId::Update:
    return "U";
  }
  return "";
}

Flow::Flow(func::FuncOp entry, spmd::MeshOp meshOp, Fusion fusion,
           int64_t stages)
    : entry(entry), body(entry.getBody().front()), mesh(meshOp.getMesh()),
      fusion(fusion), stages(stages) {
  for (const spmd::MeshAxis &axis : mesh.axes)
    if (axis.sequential)
      count *= axis.size;
}

void Flow::listOps() {
  merged = false;
  fused.clear();
  early.clear();
  varying.clear();
  roles.clear();
  prologue.clear();
  positions.clear();
  typeOperands.clear();
  for (auto [i, op] : llvm::enumerate(body)) {
    positions[&op] = i;
    typeOperands.add(&op);
  }
}

void Flow::add(Operation *op) {
  typeOperands.add(op);
  findVarying(op);
  PartId role = PartId::Forward;
  for (OpOperand &operand : op->getOpOperands())
    if (Operation *from = operand.get().getDefiningOp();
        from && !readsTypeOnly(operand))
      role = std::max(role, part(from));
  roles[op] = role;
}

void Flow::forget(Operation *op) {
  for (Value result : op->getResults())
    varying.erase(result);
  roles.erase(op);
  typeOperands.forget(op);
  positions.erase(op);
  prologue.erase(op);
  early.erase(op);
}

LogicalResult Flow::analyze() {
  listOps();
  for (Operation &op : body.without_terminator())
    for (Value result : op.getResults())
      if (!spmd::writtenSharding(result))
        return op.emitOpError("has no sharding; run --spmd-partition first");
  findVarying();
  findRoles();
  findEarlyUpdates();
  for (Operation &op : body.without_terminator())
    if (count > 1 && part(&op) == PartId::Update && varies(&op)) {
      if (auto written = dyn_cast<graph::WrittenOp>(&op))
        return emitError(op.getLoc())
               << "buffer \"" << written.getBuffer()
               << "\" is given a value of each sample, which differs from one "
                  "micro-batch to another; compile the step with one "
                  "micro-batch";
      return op.emitOpError("depends on a finished gradient and on one "
                            "micro-batch");
    }
  if (failed(findPrologue()))
    return failure();
  if (failed(mergeUpdate()))
    return failure();
  if (count == 1 && !merged)
    takePartsInUpdate();
  return success();
}

//===----------------------------------------------------------------------===//
// Shardings
//===----------------------------------------------------------------------===//

bool Flow::onSequentialAxis(ArrayRef<spmd::AxisRef> axes) const {
  return llvm::any_of(axes, [&](const spmd::AxisRef &axis) {
    const spmd::MeshAxis *found = mesh.find(axis.name);
    return found && found->sequential;
  });
}

Layout Flow::layout(Value value) const {
  std::optional<spmd::Sharding> known = spmd::writtenSharding(value);
  if (!known)
    return {};
  for (auto [dim, axes] : llvm::enumerate(known->dims))
    if (onSequentialAxis(axes))
      return {Layout::Split, static_cast<int64_t>(dim)};
  for (const spmd::PartialAxis &partial : known->partial)
    if (onSequentialAxis(partial.axis))
      return {Layout::Partial, 0, partial.kind};
  return {};
}

bool Flow::isAccumulation(Operation *op) const {
  auto reduction = dyn_cast_or_null<spmd::AllReduceOp>(op);
  return reduction && onSequentialAxis(reduction.getAxes().getAxes());
}

bool Flow::isHeavy(Operation *op) const {
  // Communication is not repeated.
  return isa<spmd::CommunicationOpInterface>(op) || graph::isHeavyWork(op);
}

//===----------------------------------------------------------------------===//
// Analysis
//===----------------------------------------------------------------------===//

bool Flow::isOfMicroBatch(Operation *op) const {
  spmd::ShardingAttr place;
  if (auto offset = dyn_cast<spmd::ShardOffsetOp>(op))
    place = offset.getSharding();
  if (auto slice = dyn_cast<spmd::SliceOp>(op))
    place = slice.getSharding();
  return place && llvm::any_of(place.getDims(), [&](const auto &dim) {
           return onSequentialAxis(dim.axes);
         });
}

/// Finds the values that depend on a slice of an argument, or on its offset.
void Flow::findVarying() {
  for (BlockArgument argument : body.getArguments())
    if (layout(argument).kind == Layout::Split)
      varying.insert(argument);
  for (Operation &op : body.without_terminator())
    findVarying(&op);
}

void Flow::findVarying(Operation *op) {
  bool varies = isOfMicroBatch(op);
  for (OpOperand &operand : op->getOpOperands())
    varies |= varying.contains(operand.get()) && !readsTypeOnly(operand);
  if (varies && !isAccumulation(op))
    varying.insert(op->result_begin(), op->result_end());
}

/// Ops have the parts of their roles. Buffers are written once, after the last
/// micro-batch: what is written to them is of the update, too.
void Flow::findRoles() {
  auto reads = [&](OpOperand &operand) { return !readsTypeOnly(operand); };
  graph::StepRoles steps(body, reads);
  for (Operation &op : body.without_terminator())
    roles[&op] = steps.isUpdate(&op)    ? PartId::Update
                 : steps.isForward(&op) ? PartId::Forward
                                        : PartId::Backward;
  for (Operation *op : graph::forwardSlice(
           body, llvm::IsaPred<graph::WrittenOp>, {.reads = reads}))
    roles[op] = PartId::Update;
}

/// A gradient that is a part of a larger value is taken from it where it is
/// read: backward gives the whole.
void Flow::takePartsInUpdate() {
  for (Operation &op : llvm::reverse(body.without_terminator()))
    if (part(&op) == PartId::Backward && op.getNumResults() == 1 &&
        isPart(op.getResult(0)) && !op.use_empty() &&
        llvm::all_of(op.getUsers(), [&](Operation *user) {
          return part(user) == PartId::Update;
        }))
      roles[&op] = PartId::Update;
}

/// Finds the deferred updates: ops that depend on a gradient kept from the step
/// before. They run before forward, or in it if it runs once.
void Flow::findEarlyUpdates() {
  auto is = [&](Value value, StringRef role) {
    auto argument = dyn_cast<BlockArgument>(value);
    return argument && graph::hasRole(entry, argument.getArgNumber(), role);
  };
  llvm::DenseSet<Value> kept = graph::dependentValues(
      body, [&](Value value) { return is(value, "gradient"); });
  if (kept.empty())
    return;
  llvm::DenseSet<Value> held = graph::dependentValues(body, [&](Value value) {
    return is(value, "parameter") || is(value, "state") ||
           is(value, "gradient");
  });
  SmallVector<Operation *> stack;
  auto add = [&](Value value) {
    if (Operation *op = value.getDefiningOp();
        op && held.contains(value) && early.insert(op).second)
      stack.push_back(op);
  };
  for (auto [i, value] : llvm::enumerate(body.getTerminator()->getOperands()))
    if (Operation *op = value.getDefiningOp();
        op && entry.getResultAttr(i, graph::kUpdatesAttr) &&
        kept.contains(value) && part(op) == PartId::Forward && !varies(op))
      add(value);
  while (!stack.empty())
    for (Value operand : stack.pop_back_val()->getOperands())
      add(operand);
  if (count != 1 || stages != 1)
    for (Operation *op : early)
      roles[op] = PartId::Deferred;
}

/// Finds the prologue: sums over micro-batches that forward or backward reads.
/// Emits an error if one depends on more than inputs.
LogicalResult Flow::findPrologue() {
  // Values that depend on no parameter and on no state.
  llvm::DenseSet<Value> fromInputs;
  for (BlockArgument argument : body.getArguments()) {
    auto role = entry.getArgAttrOfType<StringAttr>(argument.getArgNumber(),
                                                   graph::kRoleAttr);
    if (!role || (role != "parameter" && role != "state"))
      fromInputs.insert(argument);
  }
  for (Operation &op : body.without_terminator())
    if (part(&op) == PartId::Forward && !isAccumulation(&op) &&
        llvm::all_of(op.getOperands(),
                     [&](Value v) { return fromInputs.contains(v); }))
      fromInputs.insert(op.result_begin(), op.result_end());

  // Values that the parts of a micro-batch read.
  llvm::DenseMap<Value, Operation *> readInLoop;
  for (Operation &op : llvm::reverse(body.without_terminator())) {
    if (isAccumulation(&op)) {
      auto reader = readInLoop.find(op.getResult(0));
      if (reader == readInLoop.end())
        continue;
      // The location of the collective is that of its reader.
      if (!fromInputs.contains(op.getOperand(0))) {
        InFlightDiagnostic error = emitError(op.getOperand(0).getLoc());
        error << "this is a "
              << stringifyReductionKind(cast<spmd::AllReduceOp>(op).getKind())
              << " over micro-batches of values that depend on parameters, and "
                 "each micro-batch reads it";
        graph::setTopic(error, graph::ErrorTopic::CoupledSamples);
        error.attachNote(reader->second->getLoc()) << "it is read here";
        return error;
      }
      prologue.insert(&op);
      continue;
    }
    bool inLoop = varies(&op) && part(&op) != PartId::Update;
    for (Value result : op.getResults())
      inLoop |= readInLoop.contains(result);
    if (inLoop)
      for (OpOperand &operand : op.getOpOperands())
        if (!readsTypeOnly(operand))
          readInLoop.try_emplace(operand.get(), &op);
  }

  // A check of a sum of inputs can be made before anything else.
  for (Operation &op : body.without_terminator()) {
    if (op.getNumResults() != 0 || part(&op) == PartId::Update)
      continue;
    SmallVector<Operation *> sums;
    for (Operation *from :
         graph::backwardSlice(&op, {.passes = [&](Operation *next) {
           return !isAccumulation(next);
         }}))
      if (isAccumulation(from))
        sums.push_back(from);
    if (llvm::all_of(sums, [&](Operation *sum) {
          return fromInputs.contains(sum->getOperand(0));
        }))
      prologue.insert(sums.begin(), sums.end());
    else
      roles[&op] = PartId::Update; // The sum is complete only at the end.
  }
  return success();
}

/// With one micro-batch, updates join backward.
LogicalResult Flow::mergeUpdate() {
  // The gradient that each value depends on; null for several.
  llvm::DenseMap<Value, Operation *> gradient;
  // What keeps updates apart, and why.
  Operation *barrier = nullptr;
  std::string why;
  SmallVector<Operation *> updates;
  for (Operation &op : body.without_terminator()) {
    if (part(&op) != PartId::Update)
      continue;
    updates.push_back(&op);
    Operation *one = isa<graph::GradientOp>(op) ? &op : nullptr;
    for (Value operand : op.getOperands()) {
      auto it = gradient.find(operand);
      if (it == gradient.end())
        continue;
      if (!barrier && one && one != it->second) {
        barrier = &op;
        why = "reads the gradients of several parameters, so that all of them "
              "must be there before any update, as with a clip of their norm, "
              "or the check that they are finite (--check-finite)";
      }
      one = it->second;
    }
    if (!barrier && op.getNumResults() == 0) {
      barrier = &op;
      why = "checks what is known only when all gradients are, and nothing may "
            "be updated before";
    }
    for (Value result : op.getResults())
      gradient[result] = one;
  }
  bool alone = count == 1 && stages == 1;
  bool trains = llvm::any_of(updates, llvm::IsaPred<graph::GradientOp>);
  if (alone && !barrier && !(trains && fusion == Fusion::None)) {
    merged = true;
    for (Operation *op : updates)
      roles[op] = PartId::Backward;
  }
  if (trains && (merged || !early.empty()))
    fused = early.empty() ? "backward" : "forward";
  if (!trains || merged)
    return success();
  Location loc = alone && barrier ? barrier->getLoc() : entry.getLoc();
  if (count != 1)
    why = "each gradient is complete only with the last of " +
          std::to_string(count) +
          " micro-batches, so that all of them are there at once whatever "
          "follows";
  else if (stages != 1)
    why = "nothing may be updated before all stages have agreed that no check "
          "of theirs has failed";
  else if (barrier)
    why = barrier->getName().getStringRef().str() + " " + why;
  else
    why = "it was asked to be apart";
  if (fusion == Fusion::Backward)
    return emitError(loc) << "optimizer fusion into backward is not possible: "
                          << why;
  if (early.empty())
    fused = "none: " + why;
  return success();
}

//===----------------------------------------------------------------------===//
// Types, order, attributes
//===----------------------------------------------------------------------===//

Type Flow::wholeType(Value value) const {
  auto type = cast<RankedTensorType>(value.getType());
  std::optional<spmd::Sharding> known = spmd::writtenSharding(value);
  if (!known)
    return type;
  SmallVector<int64_t> shape(type.getShape());
  for (auto [size, axes] : llvm::zip_equal(shape, known->dims))
    for (const spmd::AxisRef &axis : axes)
      if (mesh.isSequential(axis))
        size *= mesh.size(axis);
  return RankedTensorType::get(shape, type.getElementType());
}

SmallVector<Type> Flow::wholeArgumentTypes() const {
  SmallVector<Type> types;
  for (BlockArgument argument : body.getArguments())
    types.push_back(wholeType(argument));
  return types;
}

SmallVector<Type> Flow::wholeResultTypes() const {
  SmallVector<Type> types;
  for (Value value : body.getTerminator()->getOperands())
    types.push_back(wholeType(value));
  return types;
}

std::pair<int64_t, int64_t> Flow::order(Value value) const {
  if (auto argument = dyn_cast<BlockArgument>(value))
    return {-1, argument.getArgNumber()};
  auto result = cast<OpResult>(value);
  return {positions.lookup(result.getOwner()), result.getResultNumber()};
}

DictionaryAttr Flow::entryAttributes(DictionaryAttr attributes) const {
  // Where it lies among devices is still a question when it runs.
  auto sharding =
      attributes ? attributes.getAs<spmd::ShardingAttr>(spmd::kShardingAttr)
                 : spmd::ShardingAttr();
  bool devices =
      sharding && llvm::any_of(sharding.getDims(), [&](const auto &dim) {
        return !mesh.deviceAxes(dim.axes).empty();
      });
  SmallVector<NamedAttribute> kept;
  if (attributes)
    for (NamedAttribute attribute : attributes)
      if (devices || (attribute.getName() != spmd::kShardingAttr &&
                      attribute.getName() != spmd::kGlobalTypeAttr))
        kept.push_back(attribute);
  return DictionaryAttr::get(func::FuncOp(entry).getContext(), kept);
}

void Flow::stripAttributes(Operation *op) const {
  // Gradients are shown to who asks, as whole tensors.
  if (isa<graph::GradientOp>(op))
    return;
  op->removeAttr(spmd::kShardingsAttr);
  op->removeAttr(spmd::kGlobalTypesAttr);
  op->removeAttr(spmd::kOfDeviceAttr);
}
