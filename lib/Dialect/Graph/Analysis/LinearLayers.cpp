//===- LinearLayers.cpp - Linear layers and their gradients ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/Analysis/LinearLayers.h"
#include "cleave/Dialect/Graph/Analysis/Slices.h"
#include "cleave/Dialect/Graph/Analysis/Sources.h"
#include "cleave/Dialect/Graph/Analysis/Work.h"
#include "cleave/Dialect/Graph/IR/Attributes/ChosenPrecision.h"
#include "mlir/IR/TypeUtilities.h"

using namespace mlir;
using namespace cleave::graph;

static bool isNarrow(Value value) {
  auto type = dyn_cast<FloatType>(
      cast<RankedTensorType>(value.getType()).getElementType());
  return type && type.getWidth() == 16;
}

/// Whether the op multiplies two tensors of 16 bits, and nobody has chosen this
/// precision for it.
static bool isContraction(Operation *op) {
  return isa<ContractOp, LinearOp>(op) && !op->hasAttr(kPrecisionAttr) &&
         isNarrow(op->getOperand(0)) && isNarrow(op->getOperand(1));
}

Value LinearLayers::rootOf(Value value) {
  while (Operation *op = value.getDefiningOp()) {
    auto rounding = dyn_cast<CastOp>(op);
    if (!isa<ReshapeOp, TransposeOp>(op) &&
        !(rounding && isNarrow(value) &&
          isa<FloatType>(cast<RankedTensorType>(rounding.getInput().getType())
                             .getElementType())))
      break;
    value = op->getOperand(0);
  }
  return value;
}

LinearLayers::LinearLayers(func::FuncOp entry)
    : entry(entry), roles(entry.getBody().front()) {
  Block &block = entry.getBody().front();
  for (BlockArgument argument : block.getArguments())
    if (hasRole(entry, argument.getArgNumber(), "parameter"))
      fromParameters.insert(argument);
  llvm::DenseSet<Value> constants;
  for (Operation &op : block.without_terminator()) {
    bool constant = llvm::all_of(
        op.getOperands(), [&](Value v) { return constants.contains(v); });
    if (constant)
      constants.insert(op.result_begin(), op.result_end());
    else if (llvm::all_of(op.getOperands(), [&](Value v) {
               return constants.contains(v) || isFromParameters(v);
             }))
      fromParameters.insert(op.result_begin(), op.result_end());
    if (roles.dependsOnSeed(&op) || !isContraction(&op) ||
        isFromParameters(op.getOperand(0)) ==
            isFromParameters(op.getOperand(1)))
      continue;
    bool first = isFromParameters(op.getOperand(0));
    Value weight = op.getOperand(first ? 0 : 1);
    layers.push_back(
        {&op, op.getOperand(first ? 1 : 0), weight, parametersOf(weight)});
  }
  for (Operation &op : llvm::reverse(block.without_terminator()))
    if (llvm::any_of(op.getUsers(), [&](Operation *user) {
          if (isa<HeadLossOp>(user))
            return true;
          return !roles.dependsOnSeed(user) &&
                 (isa<ContractOp, LinearOp, AttentionOp>(user) ||
                  feeding.contains(user));
        }))
      feeding.insert(&op);
}

/// The names of the parameters that `value` is computed from.
SmallVector<StringRef> LinearLayers::parametersOf(Value value) const {
  func::FuncOp function = entry;
  SmallVector<StringRef> names;
  walkSources(value, [&](Value next, SmallVectorImpl<Value> &work) {
    if (Operation *op = next.getDefiningOp())
      llvm::append_range(work, op->getOperands());
    else if (unsigned index = cast<BlockArgument>(next).getArgNumber();
             hasRole(function, index, "parameter"))
      names.push_back(getArgString(function, index, kNameAttr));
  });
  llvm::sort(names);
  return names;
}

/// The names of the parameters whose gradients depend on `value`.
SmallVector<StringRef> LinearLayers::gradientsFrom(Value value) const {
  SmallVector<StringRef> names;
  auto isNoGradient = [](Operation *op) { return !isa<GradientOp>(op); };
  for (Operation *op : forwardSlice(value, {.passes = isNoGradient}))
    if (auto gradient = dyn_cast<GradientOp>(op))
      names.push_back(gradient.getParameter());
  return names;
}

void LinearLayers::findHeads(llvm::StringSet<> &heads) const {
  auto add = [&](Value weight) {
    for (StringRef name : parametersOf(weight))
      heads.insert(name);
  };
  func::FuncOp function = entry;
  for (auto head : function.getBody().front().getOps<HeadLossOp>())
    add(head->getOperand(1));
  for (const Layer &layer : layers)
    if (!feeding.contains(layer.op))
      add(layer.weight);
}

/// The layer, of those that are chosen, whose gradient the op computes.
const LinearLayers::Layer *
LinearLayers::layerOf(Operation *op, ArrayRef<const Layer *> chosen) const {
  bool first = isOfBackward(op->getOperand(0));
  if (first == isOfBackward(op->getOperand(1)))
    return nullptr;
  Value root = rootOf(op->getOperand(first ? 1 : 0));
  for (const Layer *layer : chosen)
    if (rootOf(layer->weight) == root)
      return layer;
  SmallVector<StringRef> names = gradientsFrom(op->getResult(0));
  for (const Layer *layer : chosen)
    if (!names.empty() && rootOf(layer->input) == root &&
        llvm::all_of(names, [&](StringRef name) {
          return llvm::is_contained(layer->parameters, name);
        }))
      return layer;
  return nullptr;
}

std::vector<LinearContraction>
LinearLayers::find(const llvm::StringSet<> &heads) const {
  SmallVector<const Layer *> chosen;
  for (const Layer &layer : layers)
    if (llvm::none_of(layer.parameters,
                      [&](StringRef name) { return heads.contains(name); }))
      chosen.push_back(&layer);
  std::vector<LinearContraction> found;
  for (const Layer *layer : chosen)
    found.push_back({layer->op, layer->parameters.front().str()});
  func::FuncOp function = entry;
  for (Operation &op : function.getBody().front().without_terminator())
    if (roles.dependsOnSeed(&op) && !roles.servesUpdate(&op) &&
        isContraction(&op))
      if (const Layer *layer = layerOf(&op, chosen))
        found.push_back({&op, layer->parameters.front().str()});
  return found;
}

static FloatType floatTypeOf(Value value) {
  return dyn_cast<FloatType>(
      cast<RankedTensorType>(value.getType()).getElementType());
}

FloatType cleave::graph::roundedType(Value value) {
  // An annotation, or a sum over ranks, has one operand of the same type.
  auto isSame = [](Operation *op) {
    return isa<AddOp, ReshapeOp>(op) ||
           (!isa<GraphDialect>(op->getDialect()) && op->getNumOperands() == 1 &&
            op->getNumResults() == 1 &&
            op->getOperand(0).getType() == op->getResult(0).getType());
  };
  Operation *op = value.getDefiningOp();
  while (op && isSame(op))
    op = op->getOperand(0).getDefiningOp();
  FloatType own = floatTypeOf(value);
  if (!own || !own.isF32() || !op || !isHeavyWork(op))
    return FloatType();
  FloatType read = floatTypeOf(op->getOperand(0));
  return read && read.getWidth() == 16 ? read : FloatType();
}

void cleave::graph::readRounded(ArrayRef<OpOperand *> readers, Value narrow,
                                Value wide) {
  for (OpOperand *read : readers) {
    Operation *reader = read->getOwner();
    if (isa<CastOp>(reader) &&
        reader->getResult(0).getType() == narrow.getType()) {
      reader->getResult(0).replaceAllUsesWith(narrow);
      reader->erase();
    } else {
      read->set(wide);
    }
  }
  if (wide.use_empty())
    wide.getDefiningOp()->erase();
}

bool cleave::graph::usesFloat8(func::FuncOp entry) {
  return entry
      .walk([](Operation *op) {
        for (Type type : op->getResultTypes())
          if (auto element = dyn_cast<FloatType>(getElementTypeOrSelf(type));
              element && element.getWidth() == 8)
            return WalkResult::interrupt();
        return WalkResult::advance();
      })
      .wasInterrupted();
}

OperandKind LinearLayers::kindOf(Value operand) const {
  return isOfBackward(operand)       ? OperandKind::Gradient
         : isFromParameters(operand) ? OperandKind::Weight
                                     : OperandKind::Input;
}
