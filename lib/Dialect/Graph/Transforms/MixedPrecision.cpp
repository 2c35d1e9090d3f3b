//===- MixedPrecision.cpp - 16-bit operands with f32 sums -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Mixed precision (Micikevicius et al., arXiv 1710.03740) as a rewrite of
/// whole tensors. Each op says in which precision it reads its operands
/// (PrecisionPolicy.h); the pass follows the order of ops, gives each operand
/// that type by casts, and infers the types of the results again.
///
/// A value is *rounded* where ops that have no precision of their own shall
/// read it in 16 bits: the result of a contraction stays the sum in f32, and
/// its rounded copy is what other ops read and what is saved for backward.
///
/// What is computed from parameters alone is f32, but for products and
/// embeddings. Ops that only move elements of a parameter (slices, reshapes)
/// give its type to no reader: where 16 bits are read, its copy is moved.
///
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/Analysis/StepRoles.h"
#include "cleave/Dialect/Graph/IR/Attributes/ChosenPrecision.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/Transforms/Passes.h"
#include "mlir/IR/IRMapping.h"

namespace cleave::graph {
#define GEN_PASS_DEF_MIXEDPRECISION
#include "cleave/Dialect/Graph/Transforms/Passes.h.inc"
} // namespace cleave::graph

using namespace mlir;
using namespace cleave::graph;

namespace {

/// Rewrites one entry.
class Rounding {
public:
  Rounding(func::FuncOp entry, FloatType narrow, bool roundSums,
           bool roundGradients, bool wideResidual, bool keepChosen)
      : entry(entry), block(entry.getBody().front()), narrow(narrow),
        f32(Float32Type::get(entry.getContext())), roundSums(roundSums),
        roundGradients(roundGradients), wideResidual(wideResidual),
        keepChosen(keepChosen), builder(entry.getContext()), roles(block) {}

  LogicalResult run() {
    findGradients();
    findDecisions();
    for (Operation &op : llvm::make_early_inc_range(block.without_terminator()))
      if (failed(convert(&op)))
        return failure();
    // Results keep their types.
    Operation *terminator = block.getTerminator();
    for (auto [operand, type] :
         llvm::zip(terminator->getOpOperands(), entry.getResultTypes()))
      if (operand.get().getType() != type)
        operand.set(inF32(operand.get(), terminator));
    // Moves of which only copies are read.
    while (!moved.empty()) {
      Operation *op = moved.pop_back_val().getDefiningOp();
      if (op->use_empty())
        op->erase();
    }
    return success();
  }

private:
  static Type elementOf(Value value) {
    auto type = dyn_cast<RankedTensorType>(value.getType());
    return type ? type.getElementType() : Type();
  }
  /// Whether the pass chooses the type of `value`.
  bool isChosen(Value value) const {
    Type element = elementOf(value);
    return element == f32 || element == narrow;
  }

  static bool isNarrowed(Operation &op) {
    auto chosen = op.getAttrOfType<StringAttr>(kPrecisionAttr);
    return chosen && chosen.getValue() == "16bit";
  }

  void findGradients();
  void findDecisions();
  LogicalResult convert(Operation *op);
  LogicalResult inferResults(Operation *op, Type followed);
  bool isEmbedding(Operation *op) const;
  bool isMove(Operation *op) const;
  bool isOwnedByParameter(Value value) const;
  bool isRounded(Value value) const;
  bool isExact(Value value) const;
  Value inF32(Value value, Operation *reader);
  Value inNarrow(Value value);

  func::FuncOp entry;
  Block &block;
  FloatType narrow;
  Type f32;
  bool roundSums, roundGradients, wideResidual, keepChosen;
  OpBuilder builder;
  /// Updates, and ops that serve them, are computed in f32.
  StepRoles roles;
  /// Ops whose results are sums towards gradients of parameters alone, and ops
  /// whose results decide something: both are in f32.
  llvm::DenseSet<Operation *> sums, decisions;
  /// Values of type f32 of which other ops read a rounded copy.
  llvm::DenseSet<Value> rounded;
  /// What only moves elements of weights, in f32.
  llvm::SetVector<Value> moved;
  /// Integers that depend on nothing that a step is given.
  llvm::DenseSet<Value> fixed;
  llvm::DenseMap<Value, Value> copies;
};

} // namespace

/// The gradient of a parameter is a sum, in f32 unless gradients are rounded,
/// up to the last of its uses. Where sums are rounded, what another product or
/// a norm reads is the gradient of an activation.
void Rounding::findGradients() {
  auto isRead = [&](OpOperand &use) {
    auto policy = dyn_cast<PrecisionOpInterface>(use.getOwner());
    return roundSums && policy && !isa<GradientOp>(use.getOwner()) &&
           policy.getOperandPrecision(use.getOperandNumber()) !=
               OperandPrecision::F32;
  };
  for (Operation &op : llvm::reverse(block.without_terminator()))
    if (roles.dependsOnSeed(&op) && !roles.servesUpdate(&op) &&
        !op.use_empty() && llvm::all_of(op.getUses(), [&](OpOperand &use) {
          return isa<GradientOp>(use.getOwner()) ||
                 (sums.contains(use.getOwner()) && !isRead(use));
        }))
      sums.insert(&op);
}

/// What yields indices from floats (a router's choice of experts) decides; its
/// operand is computed in f32, down to the contraction that it comes from. One
/// that is to be computed in 16 bits chooses among rounded values. An update
/// that keeps its state as codes decides nothing of forward and backward.
void Rounding::findDecisions() {
  SmallVector<Operation *> work;
  for (Operation &op : block.without_terminator())
    if (llvm::any_of(op.getOperands(),
                     [&](Value v) { return elementOf(v) == f32; }) &&
        !isa<CastOp>(op) && !isNarrowed(op) && !roles.servesUpdate(&op) &&
        llvm::any_of(op.getResults(), [&](Value v) {
          auto integer = dyn_cast<IntegerType>(elementOf(v));
          return integer && integer.getWidth() > 1;
        }))
      work.push_back(&op);
  while (!work.empty()) {
    Operation *op = work.pop_back_val();
    if (!decisions.insert(op).second)
      continue;
    auto policy = dyn_cast<PrecisionOpInterface>(op);
    if (policy && op->getNumOperands() > 0 &&
        policy.getOperandPrecision(0) == OperandPrecision::Narrow)
      continue;
    for (Value operand : op->getOperands())
      if (Operation *from = operand.getDefiningOp();
          from && elementOf(operand) == f32)
        work.push_back(from);
  }
}

/// Whether an op looks up rows of a table by numbers that a step is given:
/// there activations begin. Single elements of a weight, as those of an image
/// that is sampled at computed places, are no rows.
bool Rounding::isEmbedding(Operation *op) const {
  auto gather = dyn_cast<GatherOp>(op);
  return gather && gather.getDim() == 0 && gather.getBatch() == 0 &&
         tensorTypeOf(gather.getInput()).getRank() > 1 &&
         !fixed.contains(gather.getIndices());
}

/// Whether an op only moves elements of weights.
bool Rounding::isMove(Operation *op) const {
  return isa<ReshapeOp, TransposeOp, BroadcastOp, SliceOp, ConcatOp, GatherOp>(
             op) &&
         !isEmbedding(op) && op->getNumOperands() > 0 &&
         llvm::all_of(op->getOperands(), [&](Value value) {
           return !isa<FloatType>(elementOf(value)) ||
                  (elementOf(value) == f32 && isOwnedByParameter(value) &&
                   isRounded(value));
         });
}

bool Rounding::isOwnedByParameter(Value value) const {
  return (isa<BlockArgument>(value) && elementOf(value) == f32) ||
         moved.contains(value);
}

/// Whether ops without a precision of their own read `value` in 16 bits. A
/// parameter of several dimensions is a weight, and unless the residual stream
/// is wide, read as one; a vector is added or multiplied with what is computed
/// in f32.
bool Rounding::isRounded(Value value) const {
  if (elementOf(value) == narrow || rounded.contains(value) ||
      moved.contains(value))
    return true;
  auto argument = dyn_cast<BlockArgument>(value);
  if (wideResidual || !argument || elementOf(value) != f32 ||
      !hasRole(entry, argument.getArgNumber(), "parameter"))
    return false;
  // A factored vector is still one.
  func::FuncOp function = entry;
  auto shape = function.getArgAttrOfType<DenseI64ArrayAttr>(
      argument.getArgNumber(), kFrameworkShapeAttr);
  return (shape ? shape.size() : tensorTypeOf(value).getRank()) > 1;
}

/// Whether `value` is a constant that rounding does not change.
bool Rounding::isExact(Value value) const {
  std::optional<double> splat = getSplatValue(value);
  if (!splat)
    return false;
  llvm::APFloat number(*splat);
  bool changed = false;
  number.convert(narrow.getFloatSemantics(), llvm::APFloat::rmNearestTiesToEven,
                 &changed);
  return !changed;
}

/// `value` in f32 for `reader`. What forward rounds is not also saved in f32.
Value Rounding::inF32(Value value, Operation *reader) {
  if (elementOf(value) == f32) {
    Operation *from = value.getDefiningOp();
    if (!rounded.contains(value) || !roles.dependsOnSeed(reader) || !from ||
        roles.dependsOnSeed(from))
      return value;
    value = inNarrow(value);
  }
  builder.setInsertionPoint(reader);
  return Formula{builder, value.getLoc()}.cast(value, f32);
}

/// The one copy of `value` in 16 bits; of a weight that is moved, the move of
/// its copy.
Value Rounding::inNarrow(Value value) {
  if (elementOf(value) == narrow)
    return value;
  if (Value copy = copies.lookup(value))
    return copy;
  Value copy;
  if (moved.contains(value)) {
    Operation *op = value.getDefiningOp();
    IRMapping map;
    for (Value operand : op->getOperands())
      map.map(operand, isChosen(operand) ? inNarrow(operand) : operand);
    builder.setInsertionPointAfter(op);
    copy = builder.clone(*op, map)->getResult(0);
    copy.setType(tensorTypeOf(value).clone(narrow));
  } else {
    builder.setInsertionPointAfterValue(value);
    copy = Formula{builder, value.getLoc()}.cast(value, narrow);
  }
  copies[value] = copy;
  return copy;
}

/// Sets the types of results, given operands; of an op whose types are not
/// inferred, the elements are `followed`.
LogicalResult Rounding::inferResults(Operation *op, Type followed) {
  SmallVector<Type> types;
  if (auto inferred = dyn_cast<InferTypeOpInterface>(op)) {
    if (failed(inferred.inferReturnTypes(
            op->getContext(), op->getLoc(), op->getOperands(),
            op->getDiscardableAttrDictionary(), op->getPropertiesStorage(),
            op->getRegions(), types)))
      return failure();
  } else {
    for (Value result : op->getResults()) {
      auto type = cast<RankedTensorType>(result.getType());
      types.push_back(isChosen(result) && followed ? type.clone(followed)
                                                   : Type(type));
    }
  }
  for (auto [result, type] : llvm::zip_equal(op->getResults(), types))
    result.setType(type);
  return success();
}

LogicalResult Rounding::convert(Operation *op) {
  auto policy = dyn_cast<PrecisionOpInterface>(op);
  auto chosen = op->getAttrOfType<StringAttr>(kPrecisionAttr);
  if (op->hasAttr(kPrecisionAttr) &&
      (!chosen || !llvm::is_contained({"f32", "16bit"}, chosen.getValue())))
    return op->emitError() << "graph.precision is "
                           << op->getAttr(kPrecisionAttr)
                           << "; it must be \"f32\" or \"16bit\"";
  if (!keepChosen || !chosen || chosen.getValue() != "16bit")
    op->removeAttr(kPrecisionAttr);
  // A gradient is exchanged in the type that it is summed in.
  bool isGradient = isa<GradientOp>(op);
  bool keep = (roles.servesUpdate(op) && !(isGradient && roundGradients)) ||
              decisions.contains(op) || isa<CastOp>(op) ||
              (!policy && sums.contains(op) && !roundGradients) ||
              (chosen && chosen.getValue() == "f32");
  // Of all operands, or of all that the op does not read in f32 beside others.
  bool narrows = chosen && !keep, mixes = false;
  for (OpOperand &operand : op->getOpOperands())
    mixes |= policy && isChosen(operand.get()) &&
             policy.getOperandPrecision(operand.getOperandNumber()) !=
                 OperandPrecision::F32;
  auto kindOf = [&](unsigned index) {
    if (keep)
      return OperandPrecision::F32;
    if (narrows &&
        !(mixes && policy.getOperandPrecision(index) == OperandPrecision::F32))
      return OperandPrecision::Narrow;
    return policy && !isGradient ? policy.getOperandPrecision(index)
                                 : OperandPrecision::Same;
  };
  // What follows its operands is 16-bit where one of them is, and is computed
  // in f32 where another is not: then the result is rounded. What is computed
  // from parameters alone is f32 (a weight is rounded where it is a factor),
  // but for an embedding.
  if (isMemoryEffectFree(op) && op->getNumResults() == 1 &&
      isa_and_present<IntegerType>(elementOf(op->getResult(0))) &&
      llvm::all_of(op->getOperands(),
                   [&](Value value) { return fixed.contains(value); }))
    fixed.insert(op->getResult(0));
  if (!chosen && !keep && isMove(op)) {
    moved.insert(op->getResult(0));
    return success();
  }
  bool anyRounded = false, allRounded = true;
  for (OpOperand &operand : op->getOpOperands()) {
    if (!isChosen(operand.get()))
      continue;
    OperandPrecision kind = kindOf(operand.getOperandNumber());
    if (kind != OperandPrecision::Same || isExact(operand.get()))
      continue;
    anyRounded |= isRounded(operand.get()) &&
                  (isEmbedding(op) || !isOwnedByParameter(operand.get()));
    allRounded &= isRounded(operand.get());
  }
  Type followed = narrows || (anyRounded && allRounded) ? Type(narrow) : f32;
  bool sum = false;
  if (policy && !keep &&
      llvm::any_of(op->getOpOperands(), [&](OpOperand &operand) {
        unsigned index = operand.getOperandNumber();
        OperandPrecision own = policy.getOperandPrecision(index);
        return isChosen(operand.get()) &&
               (own == OperandPrecision::Narrow ||
                (own == OperandPrecision::Same && followed == narrow));
      })) {
    if (!(sums.contains(op) ? roundGradients : roundSums))
      sum = policy.setSumElement(f32) && !sums.contains(op);
    if (roundSums)
      policy.roundInnerSums();
  }
  bool typed = false;
  for (OpOperand &operand : op->getOpOperands()) {
    Value value = operand.get();
    if (!isChosen(value))
      continue;
    OperandPrecision kind = kindOf(operand.getOperandNumber());
    Type wanted = kind == OperandPrecision::Same     ? followed
                  : kind == OperandPrecision::Narrow ? Type(narrow)
                                                     : f32;
    Value given = wanted == f32 ? inF32(value, op) : inNarrow(value);
    typed = true;
    operand.set(given);
  }
  if (isa<CastOp>(op))
    return success();
  if (typed && failed(inferResults(op, followed)))
    return failure();
  // Statistics and losses, which an op has beside its sums, are not rounded.
  bool mixed = !wideResidual && anyRounded && followed == f32;
  if (!keep && (sum || mixed))
    for (Value result : op->getResults())
      if (elementOf(result) == f32 && tensorTypeOf(result).getRank() > 0)
        rounded.insert(result);
  return success();
}

namespace {
struct MixedPrecision final
    : cleave::graph::impl::MixedPrecisionBase<MixedPrecision> {
  using MixedPrecisionBase::MixedPrecisionBase;

  void runOnOperation() override {
    MLIRContext *context = &getContext();
    FloatType narrow;
    if (precision == "bf16")
      narrow = BFloat16Type::get(context);
    else if (precision == "fp16")
      narrow = Float16Type::get(context);
    if (!narrow) {
      getOperation().emitError()
          << "unknown precision '" << precision << "'; there are bf16 and fp16";
      return signalPassFailure();
    }
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (!function.isExternal() &&
          failed(Rounding(function, narrow, roundSums, roundGradients,
                          wideResidual, keepChosen)
                     .run()))
        return signalPassFailure();
  }
};
} // namespace
