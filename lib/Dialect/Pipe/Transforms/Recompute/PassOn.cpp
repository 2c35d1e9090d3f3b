//===- PassOn.cpp - Saved values of a backward in two parts ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Zero-bubble schedules delay the gradients of weights (W) after those of
/// inputs (I; arXiv 2401.10241, section 2). Both read what forward (F) saves:
///
///     F -> a, b      I(a) -> d      W(b, d)
///     F -> a, b      I(a, b) -> d, b      W(b, d)      passed on
///
/// F and I are then cut once for both: if b is computed again, then in I. The
/// cut of I and W says what of it W keeps, and what is cheap it computes from
/// that. Values that are not computed again W reads from F as before.
///
//===----------------------------------------------------------------------===//

#include "PassOn.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/OperationSupport.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

bool cleave::pipe::savesFor(InvokeOp producer, InvokeOp consumer) {
  return llvm::any_of(consumer.getInputs(), [&](Value input) {
    auto result = dyn_cast<OpResult>(input);
    return result && result.getOwner() == producer &&
           producer.isSaved(result.getResultNumber());
  });
}

static Block &bodyOf(InvokeOp invoke) {
  return invoke.getPartFunction().front();
}

/// An invocation that takes the place of another with more operands or results.
namespace {
struct Signature {
  explicit Signature(InvokeOp invoke)
      : invoke(invoke), operands(invoke.getInputs()), split(invoke.getSplit()),
        types(invoke.getResultTypes()),
        kinds(invoke.getResultKinds().getValue()),
        returned(bodyOf(invoke).getTerminator()->getOperands()) {}

  /// The argument for `input`.
  Value addOperand(Value input) {
    size_t index = llvm::find(operands, input) - operands.begin();
    if (index == operands.size()) {
      operands.push_back(input);
      split.push_back(-1);
      bodyOf(invoke).addArgument(input.getType(), input.getLoc());
    }
    return bodyOf(invoke).getArgument(index);
  }
  /// The number of the result that saves `value`.
  unsigned addSaved(Value value) {
    returned.push_back(value);
    types.push_back(value.getType());
    kinds.push_back(StringAttr::get(value.getContext(), kSaved));
    return returned.size() - 1;
  }
  InvokeOp rebuild() {
    Block &body = bodyOf(invoke);
    body.getTerminator()->setOperands(returned);
    for (unsigned i = body.getNumArguments(); i-- > 0;)
      if (body.getArgument(i).use_empty()) {
        body.eraseArgument(i);
        operands.erase(operands.begin() + i);
        split.erase(split.begin() + i);
      }
    OpBuilder builder(invoke);
    invoke.getPartFunction().setFunctionType(
        builder.getFunctionType(body.getArgumentTypes(), types));
    auto fresh =
        InvokeOp::create(builder, invoke.getLoc(), types, invoke.getCallee(),
                         operands, invoke.getPart(), invoke.getOnce(), split,
                         builder.getArrayAttr(kinds), invoke.getStage());
    invoke->replaceAllUsesWith(
        fresh->getResults().take_front(invoke->getNumResults()));
    invoke.erase();
    return fresh;
  }

  InvokeOp invoke;
  SmallVector<Value> operands;
  SmallVector<int64_t> split;
  SmallVector<Type> types;
  SmallVector<Attribute> kinds;
  SmallVector<Value> returned;
};
} // namespace

/// Whether a result of `producer` is saved.
static bool isSavedBy(InvokeOp producer, Value input) {
  auto result = dyn_cast<OpResult>(input);
  return result && result.getOwner() == producer &&
         producer.isSaved(result.getResultNumber());
}

/// The op of forward that does with `value` what `op` does with its operand;
/// null if there is none.
static Operation *findTwin(Operation &op, Value value) {
  for (Operation *user : value.getUsers())
    if (user->getNumOperands() == 1 &&
        OperationEquivalence::isEquivalentTo(
            &op, user, [](Value, Value) { return success(); }, nullptr,
            OperationEquivalence::IgnoreLocations))
      return user;
  return nullptr;
}

/// Lets `later` read the results of collectives of `producer` that it would
/// repeat, where these are computed again.
static void readRepeated(InvokeOp &producer, InvokeOp &later,
                         llvm::function_ref<bool(OpResult)> repeats) {
  SmallVector<std::pair<Operation *, Value>> found;
  for (Operation &op : bodyOf(later)) {
    auto argument = op.getNumOperands() == 1
                        ? dyn_cast<BlockArgument>(op.getOperand(0))
                        : BlockArgument();
    if (!isa<spmd::CommunicationOpInterface>(op) || !isPure(&op) || !argument ||
        op.getNumResults() != 1)
      continue;
    Value input = later.getInputs()[argument.getArgNumber()];
    if (!isSavedBy(producer, input))
      continue;
    Value made = bodyOf(producer).getTerminator()->getOperand(
        cast<OpResult>(input).getResultNumber());
    Operation *twin = findTwin(op, made);
    if (twin && repeats(twin->getResult(0)))
      found.push_back({&op, twin->getResult(0)});
  }
  if (found.empty())
    return;
  Signature wider(producer);
  SmallVector<unsigned> results;
  for (auto [op, value] : found)
    results.push_back(wider.addSaved(value));
  producer = wider.rebuild();
  Signature reader(later);
  for (auto [item, result] : llvm::zip_equal(found, results)) {
    Value argument = reader.addOperand(producer.getResult(result));
    item.first->getResult(0).replaceAllUsesWith(argument);
    item.first->erase();
  }
  later = reader.rebuild();
}

/// Lets `later` read what `producer` saves for it from `between`.
static void passOn(InvokeOp producer, InvokeOp &between, InvokeOp later) {
  Signature wider(between);
  llvm::DenseMap<Value, unsigned> passed;
  for (Value input : later.getInputs())
    if (isSavedBy(producer, input) && !passed.contains(input))
      passed[input] = wider.addSaved(wider.addOperand(input));
  between = wider.rebuild();
  for (OpOperand &operand : later->getOpOperands())
    if (auto it = passed.find(operand.get()); it != passed.end())
      operand.set(between.getResult(it->second));
}

void cleave::pipe::passOnSaved(MutableArrayRef<InvokeOp> invokes,
                               llvm::function_ref<bool(OpResult)> repeats) {
  for (InvokeOp &later : invokes)
    for (InvokeOp &between :
         invokes.take_until([&](InvokeOp &invoke) { return invoke == later; }))
      for (InvokeOp &producer : invokes.take_until(
               [&](InvokeOp &invoke) { return invoke == between; })) {
        bool alike = !later.getOnce() && !between.getOnce() &&
                     later.getStage() == producer.getStage() &&
                     between.getStage() == producer.getStage();
        if (!alike || !savesFor(producer, between) ||
            !savesFor(producer, later))
          continue;
        readRepeated(producer, later, repeats);
        passOn(producer, between, later);
      }
}
