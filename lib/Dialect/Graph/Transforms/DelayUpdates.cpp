//===- DelayUpdates.cpp - Updates by gradients of earlier steps -----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The update of a parameter with delay `d` is made of the gradient of `d`
/// steps before, which state of the step has kept:
///
///   w[t+1] = w[t] - u(g[t-d])
///
/// What computes the update, from gradients and from the number of the update,
/// is cloned with the pending gradients and with the number that they had.
/// Checks read the gradients of this step.
///
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/Analysis/Slices.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/Transforms/Passes.h"
#include "cleave/Dialect/Graph/Transforms/UpdateDelay.h"
#include "mlir/IR/IRMapping.h"

namespace cleave::graph {
#define GEN_PASS_DEF_DELAYUPDATES
#include "cleave/Dialect/Graph/Transforms/Passes.h.inc"
} // namespace cleave::graph

using namespace mlir;
using namespace cleave::graph;

namespace {

/// A parameter that is updated late.
struct DelayedParameter {
  GradientOp gradient;
  BlockArgument parameter;
  int64_t steps = 0;
  /// The gradients of the steps before, the last one first.
  SmallVector<BlockArgument> pending;
};

/// What is computed for all parameters with one delay.
struct DelayGroup {
  /// Whether this step has a gradient to update by, once it was made.
  Value due;
  /// From values of the step to those of the update.
  IRMapping mapping;
};

class Delays {
public:
  Delays(func::FuncOp step, UpdateDelay delay)
      : step(step), block(step.getBody().front()), delay(std::move(delay)),
        builder(step.getContext()) {}

  LogicalResult run();

private:
  LogicalResult findParameters();
  void addPending(DelayedParameter &delayed);
  Value scaled(Value gradient, bool back);
  void findMoving();
  DelayGroup &groupOf(int64_t steps);
  Value moved(Value value, DelayGroup &group);
  void delayResult(unsigned index, DelayedParameter *delayed,
                   BlockArgument old);
  void keepGradients();
  void eraseDead();

  func::FuncOp step;
  Block &block;
  UpdateDelay delay;
  OpBuilder builder;
  /// The scalar "step", the number of the update; and the scale of the loss, or
  /// null.
  Value number, lossScale;
  /// In the order of the parameters.
  std::vector<DelayedParameter> delayed;
  std::map<int64_t, DelayGroup> groups;
  /// From the gradients of this step to those that updates read.
  llvm::DenseMap<Value, Value> late;
  /// The ops that depend on gradients or on the number of the update, in order.
  llvm::SetVector<Operation *> moving;
};

} // namespace

LogicalResult Delays::findParameters() {
  llvm::StringMap<GradientOp> gradients;
  for (auto gradient : block.getOps<GradientOp>())
    gradients.try_emplace(gradient.getParameter(), gradient);
  for (BlockArgument argument : step.getArguments()) {
    unsigned index = argument.getArgNumber();
    StringRef name = getArgString(step, index, kNameAttr);
    if (hasRole(step, index, "scalar") && name == "step")
      number = argument;
    if (hasRole(step, index, "scalar") && name == "loss_scale")
      lossScale = argument;
    if (getArgString(step, index, kSlotAttr).starts_with(kPendingSlot))
      return step.emitError() << "the updates of '@" << step.getSymName()
                              << "' are delayed already";
    GradientOp gradient = gradients.lookup(name);
    if (!isTrained(step, index) || !gradient)
      continue;
    int64_t steps =
        delay.of(name, step.getArgAttrOfType<ArrayAttr>(index, kAliasesAttr));
    if (steps > 0)
      delayed.push_back({gradient, argument, steps, {}});
  }
  if (std::string pattern = delay.unusedPattern(); !pattern.empty())
    return step.emitError()
           << "update delay: '" << pattern << "' matches no parameter that '@"
           << step.getSymName() << "' trains";
  if (!number && !delayed.empty())
    return step.emitError()
           << "'@" << step.getSymName()
           << "' has no updates; run --graph-apply-optimizer before";
  return success();
}

/// A gradient that was kept, with the scale of this step's loss, and `back`.
/// What is kept has none, because scales change; they are powers of two.
Value Delays::scaled(Value gradient, bool back) {
  if (!lossScale)
    return gradient;
  Formula f{builder, gradient.getLoc()};
  Value scale = f.cast(lossScale, tensorTypeOf(gradient).getElementType());
  return f.mul(gradient, back ? f.div(f.scalar(scale, 1.0), scale) : scale);
}

/// Adds the state that keeps the gradients of a parameter. It is stored as the
/// parameter is.
void Delays::addPending(DelayedParameter &delayed) {
  unsigned parameter = delayed.parameter.getArgNumber();
  StringRef name = getArgString(step, parameter, kNameAttr);
  RankedTensorType type = tensorTypeOf(delayed.gradient.getOutput());
  for (int64_t i = 1; i <= delayed.steps; ++i) {
    std::string slot = (kPendingSlot + Twine(i)).str();
    auto text = [&](const Twine &value) {
      return builder.getStringAttr(value);
    };
    SmallVector<NamedAttribute> attributes{
        builder.getNamedAttr(kNameAttr, text(name + "." + slot)),
        builder.getNamedAttr(kRoleAttr, text("state")),
        builder.getNamedAttr(kOfAttr, text(name)),
        builder.getNamedAttr(kSlotAttr, text(slot))};
    auto shape = step.getArgAttrOfType<DenseI64ArrayAttr>(parameter,
                                                          kFrameworkShapeAttr);
    if (shape && shape.size() != type.getRank())
      attributes.push_back(builder.getNamedAttr(kFrameworkShapeAttr, shape));
    unsigned index = step.getNumArguments();
    // Inserting an argument of tensor type cannot fail.
    (void)step.insertArgument(index, type,
                              builder.getDictionaryAttr(attributes),
                              delayed.parameter.getLoc());
    delayed.pending.push_back(step.getArgument(index));
  }
  builder.setInsertionPointToStart(&block);
  BlockArgument oldest = delayed.pending.back();
  late[delayed.gradient.getOutput()] = GradientOp::create(
      builder, delayed.gradient.getLoc(), scaled(oldest, /*back=*/false),
      step.getArgAttrOfType<StringAttr>(oldest.getArgNumber(), kNameAttr));
}

void Delays::findMoving() {
  moving = forwardSlice(block, [&](Operation *op) {
    return llvm::any_of(op->getOperands(), [&](Value operand) {
      return operand == number || late.contains(operand);
    });
  });
}

DelayGroup &Delays::groupOf(int64_t steps) {
  auto [it, isNew] = groups.try_emplace(steps);
  DelayGroup &group = it->second;
  if (!isNew)
    return group;
  for (auto [gradient, old] : late)
    group.mapping.map(gradient, old);
  if (steps == 0)
    return group;
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPointToStart(&block);
  Formula f{builder, step.getLoc()};
  Value lag = f.scalar(number, static_cast<double>(steps));
  group.due = f.compare(Predicate::gt, number, lag);
  // Updates that are not due have the number of the first one.
  group.mapping.map(
      number, f.select(group.due, f.sub(number, lag), f.scalar(number, 1.0)));
  return group;
}

/// `value` of the update that has the group's delay.
Value Delays::moved(Value value, DelayGroup &group) {
  SmallVector<Value> stack{value};
  while (!stack.empty()) {
    Operation *op = stack.back().getDefiningOp();
    if (group.mapping.contains(stack.back()) || !moving.contains(op)) {
      stack.pop_back();
      continue;
    }
    size_t before = stack.size();
    for (Value operand : op->getOperands())
      if (!group.mapping.contains(operand) &&
          moving.contains(operand.getDefiningOp()))
        stack.push_back(operand);
    if (stack.size() != before)
      continue;
    // Where it was: its operands are there too.
    builder.setInsertionPoint(op);
    builder.clone(*op, group.mapping);
  }
  return group.mapping.lookupOrDefault(value);
}

/// Makes result `index` that of a late update. `old` is the argument that it
/// updates, or null.
void Delays::delayResult(unsigned index, DelayedParameter *delayed,
                         BlockArgument old) {
  OpOperand &operand = block.getTerminator()->getOpOperand(index);
  if (!moving.contains(operand.get().getDefiningOp()))
    return;
  DelayGroup &group = groupOf(delayed && old ? delayed->steps : 0);
  Value fresh = moved(operand.get(), group);
  if (group.due) {
    builder.setInsertionPointAfterValue(fresh);
    Formula f{builder, fresh.getLoc()};
    fresh = f.select(group.due, fresh, old);
  }
  operand.set(fresh);
}

/// Each pending gradient takes the place of an older one.
void Delays::keepGradients() {
  auto *terminator = block.getTerminator();
  builder.setInsertionPoint(terminator);
  for (DelayedParameter &own : delayed)
    for (size_t i = own.pending.size(); i-- > 0;) {
      Value next = i ? Value(own.pending[i - 1])
                     : scaled(own.gradient.getOutput(), /*back=*/true);
      auto name = step.getArgAttrOfType<StringAttr>(
          own.pending[i].getArgNumber(), kNameAttr);
      Value written =
          WrittenOp::create(builder, own.gradient.getLoc(), next, name);
      terminator->insertOperands(terminator->getNumOperands(), written);
      (void)step.insertResult(
          step.getNumResults(), written.getType(),
          builder.getDictionaryAttr(builder.getNamedAttr(kUpdatesAttr, name)));
    }
}

/// Erases the updates by gradients of this step.
void Delays::eraseDead() {
  for (Operation *op : llvm::reverse(moving))
    if (op->use_empty() && op->getNumResults() != 0)
      op->erase();
}

LogicalResult Delays::run() {
  if (failed(findParameters()))
    return failure();
  if (delayed.empty())
    return success();
  SmallVector<BlockArgument> updated = updatedArguments(step);
  for (DelayedParameter &own : delayed)
    addPending(own);
  findMoving();
  llvm::StringMap<DelayedParameter *> byName;
  for (DelayedParameter &own : delayed)
    byName[own.gradient.getParameter()] = &own;
  for (auto [index, argument] : llvm::enumerate(updated)) {
    StringRef name;
    if (argument) {
      name = getArgString(step, argument.getArgNumber(), kOfAttr);
      if (name.empty())
        name = getArgString(step, argument.getArgNumber(), kNameAttr);
    }
    delayResult(index, byName.lookup(name), argument);
  }
  keepGradients();
  eraseDead();
  return success();
}

namespace {

struct DelayUpdates final
    : cleave::graph::impl::DelayUpdatesBase<DelayUpdates> {
  using DelayUpdatesBase::DelayUpdatesBase;

  void runOnOperation() override {
    FailureOr<func::FuncOp> step = findEntry(getOperation(), entry);
    if (failed(step))
      return signalPassFailure();
    llvm::Expected<UpdateDelay> parsed = UpdateDelay::parse(delay);
    if (!parsed) {
      step->emitError() << "update delay: "
                        << llvm::toString(parsed.takeError());
      return signalPassFailure();
    }
    if (failed(Delays(*step, std::move(*parsed)).run()))
      signalPassFailure();
  }
};

} // namespace
