//===- Interlock.cpp - Auxiliary heads of modules, and a gradient horizon -===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Each head that trains a module gets its own chain: copies of that module and
/// of those after it, up to the head, in which `graph.stop_gradient` cuts off
/// the parameters of all other modules. Differentiation removes these ops, and
/// CSE merges the forward of all chains.
///
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/Analysis/Modules.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "cleave/Dialect/Graph/Transforms/Passes.h"
#include "mlir/IR/IRMapping.h"

namespace cleave::graph {
#define GEN_PASS_DEF_INTERLOCK
#include "cleave/Dialect/Graph/Transforms/Passes.h.inc"
} // namespace cleave::graph

using namespace mlir;
using namespace cleave::graph;

namespace {

class Interlocking {
public:
  Interlocking(func::FuncOp entry, const Modules &modules, int64_t horizon)
      : entry(entry), modules(modules), horizon(horizon),
        builder(entry.getContext()) {}

  LogicalResult run();

private:
  /// The values that replace parameters: themselves, constants, or parameters
  /// of a head.
  using Parameters = llvm::function_ref<Value(BlockArgument)>;

  void hoistInputs();
  Value stopped(Value value);
  Value copy(ArrayRef<Operation *> ops, IRMapping &chain, Parameters parameters,
             Value last);
  Value weight(Value value, IRMapping &own, Parameters parameters);
  LogicalResult addParameters(unsigned head);
  Value buildHead(unsigned head);
  void returnLosses(ArrayRef<Value> losses);

  func::FuncOp entry;
  const Modules &modules;
  int64_t horizon;
  OpBuilder builder;
  /// The parameters of the auxiliary head that is being built.
  llvm::DenseMap<Value, Value> auxiliary;
};

/// Values that heads read and that depend on no parameter move to the front,
/// because auxiliary heads come before the ops that the final head follows.
void Interlocking::hoistInputs() {
  llvm::DenseSet<Operation *> needed, seen;
  SmallVector<Value> work;
  for (Operation *op : modules.ops(modules.count()))
    llvm::append_range(work, op->getOperands());
  while (!work.empty()) {
    Value value = work.pop_back_val();
    Operation *op = value.getDefiningOp();
    bool depends = modules.dependsOnParameters(value);
    if (!op || (depends && !modules.isWeight(value)) || !seen.insert(op).second)
      continue;
    if (!depends)
      needed.insert(op);
    llvm::append_range(work, op->getOperands());
  }
  Block &body = entry.getBody().front();
  Operation *last = nullptr;
  for (Operation &op : llvm::make_early_inc_range(body.without_terminator())) {
    if (!needed.contains(&op))
      continue;
    if (last)
      op.moveAfter(last);
    else
      op.moveBefore(&body, body.begin());
    last = &op;
  }
}

Value Interlocking::stopped(Value value) {
  return StopGradientOp::create(builder, value.getLoc(), value);
}

/// Computes `value`, which depends on parameters alone, from `parameters`.
Value Interlocking::weight(Value value, IRMapping &own, Parameters parameters) {
  if (Value known = own.lookupOrNull(value))
    return known;
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    own.map(value, parameters(argument));
    return own.lookup(value);
  }
  for (Value operand : value.getDefiningOp()->getOperands())
    if (modules.isWeight(operand))
      weight(operand, own, parameters);
  builder.clone(*value.getDefiningOp(), own);
  return own.lookup(value);
}

/// Copies `ops` and adds the copies to `chain`. Their operands are the values
/// that `chain` has for those of the originals. Returns the copy of `last`.
Value Interlocking::copy(ArrayRef<Operation *> ops, IRMapping &chain,
                         Parameters parameters, Value last) {
  IRMapping weights;
  for (Operation *op : ops) {
    for (Value operand : op->getOperands())
      if (modules.isWeight(operand))
        chain.map(operand, weight(operand, weights, parameters));
    builder.clone(*op, chain);
  }
  return chain.lookup(last);
}

/// Adds a parameter for each trained one that the head reads.
LogicalResult Interlocking::addParameters(unsigned head) {
  SetVector<Value> read;
  SmallVector<Value> work;
  for (Operation *op : modules.ops(modules.count()))
    llvm::append_range(work, op->getOperands());
  llvm::DenseSet<Value> seen;
  while (!work.empty()) {
    Value value = work.pop_back_val();
    if (!modules.isWeight(value) || !seen.insert(value).second)
      continue;
    if (Operation *op = value.getDefiningOp())
      llvm::append_range(work, op->getOperands());
    else
      read.insert(value);
  }
  auxiliary.clear();
  for (unsigned i = 0, end = entry.getNumArguments(); i < end; ++i) {
    BlockArgument argument = entry.getArgument(i);
    if (!read.contains(argument) || !isTrained(entry, i))
      continue;
    std::string name =
        auxiliaryName(head + 1, getArgString(entry, i, kNameAttr));
    for (unsigned other = 0; other < end; ++other)
      if (getArgString(entry, other, kNameAttr) == name)
        return emitError(entry.getArgument(other).getLoc())
               << "the argument \"" << name
               << "\" has the name that a parameter of an auxiliary head would "
                  "have; rename it";
    NamedAttrList attributes(entry.getArgAttrDict(i));
    attributes.erase(kAliasesAttr);
    attributes.set(kNameAttr, builder.getStringAttr(name));
    attributes.set(kInitialAttr, entry.getArgAttr(i, kNameAttr));
    unsigned index = entry.getNumArguments();
    // Inserting an argument of tensor type cannot fail.
    (void)entry.insertArgument(index, argument.getType(),
                               attributes.getDictionary(builder.getContext()),
                               argument.getLoc());
    auxiliary[argument] = entry.getArgument(index);
  }
  return success();
}

/// The loss of the head after module `head`, with a chain of copies from the
/// module that it trains.
Value Interlocking::buildHead(unsigned head) {
  builder.setInsertionPoint(modules.ops(head + 1).front());
  IRMapping chain;
  int64_t trained = int64_t(head) + 1 - horizon;
  auto itself = [](BlockArgument argument) { return Value(argument); };
  auto constant = [&](BlockArgument argument) {
    return isTrained(entry, argument.getArgNumber()) ? stopped(argument)
                                                     : Value(argument);
  };
  Value hidden;
  if (trained < 0) {
    // A head further on trains this module.
    hidden = stopped(modules.hidden(head));
  } else {
    if (trained > 0) {
      Value before = modules.hidden(trained - 1);
      chain.map(before, stopped(before));
    }
    for (unsigned module = trained; module <= head; ++module)
      hidden = copy(modules.ops(module), chain,
                    module == trained ? Parameters(itself) : constant,
                    modules.hidden(module));
  }
  IRMapping own;
  own.map(modules.hidden(modules.count() - 1), hidden);
  return copy(
      modules.ops(modules.count()), own,
      [&](BlockArgument argument) {
        Value found = auxiliary.lookup(argument);
        return found ? found : Value(argument);
      },
      modules.loss());
}

/// Appends the losses to the results, and marks all that are differentiated.
void Interlocking::returnLosses(ArrayRef<Value> losses) {
  auto returnOp = entry.getBody().front().getTerminator();
  entry.setResultAttr(0, kLossAttr, builder.getUnitAttr());
  for (auto [i, loss] : llvm::enumerate(losses)) {
    // Inserting a result of tensor type cannot fail.
    (void)entry.insertResult(
        entry.getNumResults(), loss.getType(),
        builder.getDictionaryAttr(
            {builder.getNamedAttr(kLossAttr, builder.getUnitAttr()),
             builder.getNamedAttr(
                 kNameAttr,
                 builder.getStringAttr("auxiliary_loss." + Twine(i + 1)))}));
    returnOp->insertOperands(returnOp->getNumOperands(), loss);
  }
}

LogicalResult Interlocking::run() {
  hoistInputs();
  unsigned last = modules.count() - 1;
  SmallVector<Value> losses;
  for (unsigned head = 0; head < last; ++head) {
    if (failed(addParameters(head)))
      return failure();
    losses.push_back(buildHead(head));
  }
  // The final head trains the last modules; their chain is the model's own ops.
  if (int64_t first = int64_t(last) + 1 - horizon; first > 0) {
    Value hidden = modules.hidden(first - 1);
    Operation *reader = modules.ops(first).front();
    builder.setInsertionPoint(reader);
    Value constant = stopped(hidden);
    llvm::SmallPtrSet<Operation *, 32> behind;
    for (unsigned module = first; module <= modules.count(); ++module)
      behind.insert(modules.ops(module).begin(), modules.ops(module).end());
    hidden.replaceUsesWithIf(constant, [&](OpOperand &use) {
      return behind.contains(use.getOwner());
    });
  }
  returnLosses(losses);
  return success();
}

struct Interlock final : cleave::graph::impl::InterlockBase<Interlock> {
  using InterlockBase::InterlockBase;

  LogicalResult interlock() {
    FailureOr<func::FuncOp> source = findEntry(getOperation(), entry);
    if (failed(source))
      return failure();
    if (horizon < 1)
      return source->emitError()
             << "the gradient horizon is " << horizon.getValue()
             << "; it must be positive";
    for (unsigned i = 0; i < source->getNumResults(); ++i)
      if (source->getResultAttr(i, kUpdatesAttr))
        return source->emitError()
               << "a gradient horizon does not go with buffers that the model "
                  "writes to, and "
               << nameResult(*source, i)
               << " is a result: modules are copied, and each copy would write";
    Operation *terminator = source->front().getTerminator();
    if (terminator->getNumOperands() == 0 ||
        !terminator->getOperand(0).getDefiningOp())
      return source->emitError() << "computes no loss, which modules lead to";
    FailureOr<func::FuncOp> copy = cloneEntry(*source, target);
    if (failed(copy))
      return failure();
    Modules cut(*copy);
    return failure(failed(cut.cut(modules, head)) ||
                   failed(Interlocking(*copy, cut, horizon).run()));
  }

  void runOnOperation() override {
    if (failed(interlock()))
      signalPassFailure();
  }
};

} // namespace
