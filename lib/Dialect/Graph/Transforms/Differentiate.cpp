//===- Differentiate.cpp - Reverse-mode differentiation -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Two sweeps over one block. The forward sweep finds the values that vary with
/// an unfrozen parameter. The backward sweep visits each op that varies and
/// whose results have gradients, and builds the gradients of the operands that
/// vary. Ops that depend only on frozen parameters are never visited, for
/// example layers below low-rank adapters.
///
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/AdditiveParameters.h"
#include "cleave/Dialect/Graph/IR/Attributes/ChosenPrecision.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "cleave/Dialect/Graph/Transforms/Passes.h"

namespace cleave::graph {
#define GEN_PASS_DEF_DIFFERENTIATE
#include "cleave/Dialect/Graph/Transforms/Passes.h.inc"
} // namespace cleave::graph

using namespace mlir;
using namespace cleave::graph;

namespace {

bool isFloat(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  return tensor && isa<FloatType>(tensor.getElementType());
}

/// The differentiation of one function, in place.
class Differentiation {
public:
  Differentiation(func::FuncOp entry, StringRef source)
      : entry(entry), source(source), block(entry.getBody().front()),
        builder(&block, block.end()) {}

  LogicalResult run();

private:
  LogicalResult findLosses();
  LogicalResult findParameters();
  LogicalResult checkResults();
  void markVarying();
  LogicalResult checkLosses();
  LogicalResult buildAdjoint(Operation &op, AdditiveParameters &additive);
  void accumulate(Value value, Value contribution, Location loc);
  void finishParameters(Operation &op);
  void returnGradients();
  void foldStops();
  void markAdditive(const AdditiveParameters &additive);

  func::FuncOp entry;
  StringRef source; ///< the entry that `entry` is a copy of, for messages.
  Block &block;
  OpBuilder builder;
  /// The losses; their sum is differentiated.
  SetVector<Value> losses;
  /// The trained parameters, in the order of arguments.
  SmallVector<BlockArgument> parameters;
  llvm::DenseSet<Value> varying;
  /// The gradient of each value: the sum over the uses visited so far.
  llvm::DenseMap<Value, Value> gradients;
  /// The first reader of each parameter: when it has been visited, the
  /// parameter's gradient is complete.
  llvm::DenseMap<Operation *, SmallVector<BlockArgument>> firstUsers;
  /// The `graph.gradient` of each parameter.
  llvm::DenseMap<Value, Value> finished;
};

LogicalResult Differentiation::findLosses() {
  auto returnOp = dyn_cast<func::ReturnOp>(block.getTerminator());
  if (!returnOp || returnOp.getNumOperands() == 0)
    return entry.emitError()
           << "'@" << source << "' returns no loss to differentiate";
  SmallVector<unsigned> marked;
  for (unsigned i = 0; i < returnOp.getNumOperands(); ++i)
    if (entry.getResultAttr(i, kLossAttr))
      marked.push_back(i);
  if (marked.empty())
    marked.push_back(0);
  for (unsigned i : marked) {
    Value loss = returnOp.getOperand(i);
    if (!isFloat(loss.getType()) || tensorTypeOf(loss).getRank() != 0)
      return entry.emitError()
             << nameResult(entry, i) << " of '@" << source << "' has type "
             << loss.getType() << "; the loss must be a float tensor of rank 0";
    losses.insert(loss);
    if (loss.getType() != losses.front().getType())
      return entry.emitError() << "'@" << source << "' has losses of types "
                               << losses.front().getType() << " and "
                               << loss.getType() << ", which have no sum";
  }
  builder.setInsertionPoint(returnOp);
  return success();
}

LogicalResult Differentiation::findParameters() {
  llvm::StringMap<unsigned> names;
  for (BlockArgument argument : entry.getArguments()) {
    unsigned index = argument.getArgNumber();
    if (!isTrained(entry, index))
      continue;
    StringRef name = getArgString(entry, index, kNameAttr);
    if (name.empty())
      return emitError(argument.getLoc())
             << "a parameter, argument " << index << " of '@" << source
             << "', has no 'graph.name'";
    if (!names.try_emplace(name, index).second)
      return emitError(argument.getLoc())
             << "two parameters of '@" << source << "' are named \"" << name
             << "\"; a tied tensor is one argument with 'graph.aliases'";
    if (!isFloat(argument.getType()))
      return emitError(argument.getLoc())
             << "parameter \"" << name << "\" has type " << argument.getType()
             << " and cannot be trained; mark it 'graph.frozen'";
    parameters.push_back(argument);
  }
  if (parameters.empty())
    return entry.emitError() << "'@" << source
                             << "' has no parameter to train: every one is "
                                "marked 'graph.frozen' (as tracing marks those "
                                "that the loss has no gradient for, too), or "
                                "none has 'graph.role' = \"parameter\"";
  return success();
}

/// The step updates parameters in place, so that a parameter's old value cannot
/// be a result.
LogicalResult Differentiation::checkResults() {
  Operation *returnOp = block.getTerminator();
  for (Value loss : losses)
    if (auto argument = dyn_cast<BlockArgument>(loss))
      return returnOp->emitError()
             << "the loss of '@" << source << "' is its "
             << nameArgument(argument)
             << " itself: there is nothing to differentiate; return what ops "
                "compute from the parameters";
  for (auto [i, value] : llvm::enumerate(returnOp->getOperands()))
    if (llvm::is_contained(parameters, value))
      return returnOp->emitError()
             << "'@" << source << "' returns "
             << nameArgument(cast<BlockArgument>(value))
             << " itself, which the training step overwrites; leave it out: a "
                "parameter is read by its name";
  return success();
}

void Differentiation::markVarying() {
  varying.insert(parameters.begin(), parameters.end());
  for (Operation &op : block)
    if (!isa<StopGradientOp>(op) &&
        llvm::any_of(op.getOperands(),
                     [&](Value value) { return varying.contains(value); }))
      for (Value result : op.getResults())
        if (isFloat(result.getType()))
          varying.insert(result);
}

/// An error, because such a loss would train nothing without notice.
LogicalResult Differentiation::checkLosses() {
  for (Value loss : losses)
    if (!varying.contains(loss))
      return emitError(loss.getLoc())
             << "the loss of '@" << source
             << "' depends on no parameter that is trained: every gradient "
                "would be zero; compute it from a parameter, or take "
                "'graph.frozen' from those that it reads";
  return success();
}

void Differentiation::accumulate(Value value, Value contribution,
                                 Location loc) {
  // The gradient of what is computed in a chosen precision has it too.
  std::optional<InheritPrecision> inherit;
  if (Operation *from = value.getDefiningOp())
    inherit.emplace(builder, from);
  Value &sum = gradients[value];
  sum = sum ? AddOp::create(builder, loc, sum, contribution).getOutput()
            : contribution;
}

/// Builds the gradients of the varying operands of `op`.
LogicalResult Differentiation::buildAdjoint(Operation &op,
                                            AdditiveParameters &additive) {
  SmallVector<Value> resultGradients;
  for (Value result : op.getResults())
    resultGradients.push_back(gradients.lookup(result));
  llvm::BitVector needed(op.getNumOperands());
  for (OpOperand &operand : op.getOpOperands())
    needed[operand.getOperandNumber()] = varying.contains(operand.get());
  if (needed.none() || llvm::none_of(resultGradients, [](Value value) {
        return static_cast<bool>(value);
      }))
    return success();
  auto differentiable = dyn_cast<DifferentiableOpInterface>(op);
  if (!differentiable)
    return op.emitOpError("lies between a parameter and the loss, and has no "
                          "gradient");
  SmallVector<Value> operandGradients(op.getNumOperands());
  {
    InheritPrecision inherit(builder, &op);
    if (failed(differentiable.buildGradients(builder, resultGradients, needed,
                                             operandGradients)))
      return failure();
  }
  additive.visit(op, resultGradients, operandGradients);
  for (auto [operand, gradient] :
       llvm::zip(op.getOperands(), operandGradients)) {
    if (!gradient)
      continue;
    if (gradient.getType() != operand.getType())
      return op.emitOpError("built a gradient of type ")
             << gradient.getType() << " for an operand of type "
             << operand.getType();
    accumulate(operand, gradient, op.getLoc());
  }
  return success();
}

/// Finishes the gradients of the parameters that no op before `op` reads.
void Differentiation::finishParameters(Operation &op) {
  for (BlockArgument parameter : firstUsers.lookup(&op)) {
    Formula f{builder, op.getLoc()};
    Value gradient = gradients.lookup(parameter);
    if (!gradient)
      gradient = f.splat(tensorTypeOf(parameter), 0.0);
    finished[parameter] = GradientOp::create(
        builder, op.getLoc(), gradient,
        getArgString(entry, parameter.getArgNumber(), kNameAttr));
  }
}

/// Appends the gradients to the results.
void Differentiation::returnGradients() {
  auto returnOp = cast<func::ReturnOp>(block.getTerminator());
  SmallVector<Value> operands(returnOp.getOperands());
  SmallVector<Type> types(entry.getResultTypes());
  SmallVector<DictionaryAttr> attributes;
  entry.getAllResultAttrs(attributes);
  attributes.resize(types.size(), builder.getDictionaryAttr({}));
  for (BlockArgument parameter : parameters) {
    operands.push_back(finished.lookup(parameter));
    types.push_back(parameter.getType());
    StringRef name = getArgString(entry, parameter.getArgNumber(), kNameAttr);
    attributes.push_back(builder.getDictionaryAttr(
        {builder.getNamedAttr(kNameAttr, builder.getStringAttr(name + ".grad")),
         builder.getNamedAttr(kOfAttr, builder.getStringAttr(name))}));
  }
  returnOp.getOperandsMutable().assign(operands);
  entry.setType(builder.getFunctionType(entry.getArgumentTypes(), types));
  entry.setAllResultAttrs(attributes);
}

/// Gradients have been stopped, so these ops are the identity.
void Differentiation::foldStops() {
  for (auto op : llvm::make_early_inc_range(block.getOps<StopGradientOp>())) {
    op.getOutput().replaceAllUsesWith(op.getInput());
    op.erase();
  }
}

void Differentiation::markAdditive(const AdditiveParameters &additive) {
  for (BlockArgument parameter : parameters)
    if (additive.contains(parameter))
      entry.setArgAttr(parameter.getArgNumber(), kAdditiveAttr,
                       builder.getUnitAttr());
}

LogicalResult Differentiation::run() {
  if (failed(findLosses()) || failed(findParameters()) ||
      failed(checkResults()))
    return failure();
  markVarying();
  if (failed(checkLosses()))
    return failure();
  SmallVector<Operation *> forward;
  for (Operation &op : block.without_terminator())
    forward.push_back(&op);
  // The gradient of a parameter that no op reads is finished after the seed,
  // below.
  llvm::DenseMap<Value, Operation *> first;
  for (Operation *op : llvm::reverse(forward))
    for (Value operand : op->getOperands())
      first[operand] = op;

  // The gradient of each loss in their sum is 1.
  auto seed = SeedOp::create(builder, losses.front().getLoc(), losses.front(),
                             /*scale=*/Value());
  for (BlockArgument parameter : parameters) {
    Operation *user = first.lookup(parameter);
    firstUsers[user ? user : seed.getOperation()].push_back(parameter);
  }
  for (Value loss : losses)
    gradients[loss] = seed.getOutput();
  finishParameters(*seed);
  AdditiveParameters additive(llvm::to_vector_of<Value>(parameters), forward);
  for (Operation *op : llvm::reverse(forward)) {
    if (failed(buildAdjoint(*op, additive)))
      return failure();
    finishParameters(*op);
  }
  markAdditive(additive);
  returnGradients();
  foldStops();
  return success();
}

struct Differentiate final
    : cleave::graph::impl::DifferentiateBase<Differentiate> {
  using DifferentiateBase::DifferentiateBase;

  void runOnOperation() override {
    FailureOr<func::FuncOp> source = findEntry(getOperation(), entry);
    if (failed(source))
      return signalPassFailure();
    FailureOr<func::FuncOp> step = cloneEntry(*source, target);
    if (failed(step) || failed(Differentiation(*step, entry).run()))
      return signalPassFailure();
    if (dropEntry && SymbolTable::symbolKnownUseEmpty(*source, getOperation()))
      source->erase();
  }
};

} // namespace
