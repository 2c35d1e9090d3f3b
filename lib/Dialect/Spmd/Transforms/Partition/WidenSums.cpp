//===- WidenSums.cpp - Sums over devices in f32 ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "llvm/ADT/SetVector.h"

namespace cleave::spmd {
#define GEN_PASS_DEF_WIDENSUMS
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"
} // namespace cleave::spmd

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

/// Gives `op`, whose result is `value` in another type, the place of `value`.
static Value placeAs(Operation *op, Value value) {
  Type element = graph::tensorTypeOf(op->getResult(0)).getElementType();
  if (ShardingAttr sharding = writtenShardingAttr(value))
    annotate(op, sharding, writtenGlobalType(value).clone(element));
  return op->getResult(0);
}

/// Whether `value` is read by one op, so that it can be had in another type
/// instead, and is a product, a term of which is one, or a rounded f32.
static bool hasWideForm(Value value) {
  Operation *op = value.getDefiningOp();
  if (!op || !value.hasOneUse())
    return false;
  if (auto cast = dyn_cast<graph::CastOp>(op))
    return graph::tensorTypeOf(cast.getInput()).getElementType().isF32();
  if (auto sum = dyn_cast<graph::AddOp>(op))
    return sum.getLhs().getType() == sum.getType() &&
           sum.getRhs().getType() == sum.getType() &&
           (hasWideForm(sum.getLhs()) || hasWideForm(sum.getRhs()));
  // What is asked changes a copy.
  Operation *copy =
      isa<graph::PrecisionOpInterface>(op) && isa<InferTypeOpInterface>(op)
          ? op->clone()
          : nullptr;
  bool isProduct =
      copy && cast<graph::PrecisionOpInterface>(copy).setSumElement(
                  Float32Type::get(op->getContext()));
  if (copy)
    copy->destroy();
  return isProduct;
}

/// Whether `value` is a term of a gradient, which has the type that is asked
/// for in each of its sums: over micro-batches, devices, and readers of a
/// parameter.
static bool isGradient(Value value) {
  llvm::SmallSetVector<Value, 8> forms;
  forms.insert(value);
  for (size_t at = 0; at < forms.size(); ++at)
    for (Operation *user : forms[at].getUsers()) {
      if (isa<graph::GradientOp>(user))
        return true;
      if (user->getNumResults() != 1)
        continue;
      RankedTensorType from = graph::tensorTypeOf(forms[at]),
                       to = graph::tensorTypeOf(user->getResult(0));
      bool isForm = isa<CommunicationOpInterface>(user) ||
                    (isa<graph::AddOp>(user) && from == to) ||
                    (user->getNumOperands() == 1 &&
                     from.getNumElements() == to.getNumElements());
      if (isForm && from.getElementType() == to.getElementType())
        forms.insert(user->getResult(0));
    }
  return false;
}

/// Replaces a product by one with results in f32, which are rounded behind it
/// for their readers.
static Operation *replaceByWide(OpBuilder &builder, Operation *op) {
  Operation *product = builder.clone(*op);
  (void)cast<graph::PrecisionOpInterface>(product).setSumElement(
      builder.getF32Type());
  SmallVector<Type> types;
  // The op has inferred its results before.
  (void)cast<InferTypeOpInterface>(product).inferReturnTypes(
      op->getContext(), op->getLoc(), product->getOperands(),
      product->getAttrDictionary(), product->getPropertiesStorage(),
      product->getRegions(), types);
  SmallVector<Attribute> globals;
  for (auto [type, result, narrow] :
       llvm::zip_equal(types, product->getResults(), op->getResults())) {
    result.setType(type);
    if (RankedTensorType global = writtenGlobalType(narrow))
      globals.push_back(TypeAttr::get(
          global.clone(graph::tensorTypeOf(result).getElementType())));
    if (type == narrow.getType()) {
      narrow.replaceAllUsesWith(result);
      continue;
    }
    narrow.replaceAllUsesWith(placeAs(
        graph::CastOp::create(builder, op->getLoc(), narrow.getType(), result),
        narrow));
  }
  if (globals.size() == types.size())
    product->setAttr(kGlobalTypesAttr, builder.getArrayAttr(globals));
  op->erase();
  return product;
}

/// `value` in f32, not rounded before where it has that form.
static Value widen(OpBuilder &builder, Value value) {
  Type f32 = builder.getF32Type();
  Operation *op = value.getDefiningOp();
  if (!hasWideForm(value))
    return placeAs(graph::CastOp::create(builder, value.getLoc(),
                                         graph::tensorTypeOf(value).clone(f32),
                                         value),
                   value);
  if (auto cast = dyn_cast<graph::CastOp>(op))
    return cast.getInput();
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPoint(op);
  if (auto sum = dyn_cast<graph::AddOp>(op)) {
    Value lhs = widen(builder, sum.getLhs()),
          rhs = widen(builder, sum.getRhs());
    return placeAs(graph::AddOp::create(builder, op->getLoc(), lhs, rhs),
                   value);
  }
  unsigned number = cast<OpResult>(value).getResultNumber();
  return replaceByWide(builder, op)->getResult(number);
}

namespace {

struct WidenSumsPass : cleave::spmd::impl::WidenSumsBase<WidenSumsPass> {
  using WidenSumsBase::WidenSumsBase;

  void runOnOperation() override {
    SmallVector<Operation *> sums;
    getOperation().walk([&](Operation *op) {
      auto kind = [&](auto typed) { return typed.getKind(); };
      bool isSum = false;
      if (auto reduce = dyn_cast<AllReduceOp>(op))
        isSum = kind(reduce) == ReductionKind::Sum;
      else if (auto scatter = dyn_cast<ReduceScatterOp>(op))
        isSum = kind(scatter) == ReductionKind::Sum;
      if (!isSum || !hasWideForm(op->getOperand(0)) ||
          isGradient(op->getResult(0)))
        return;
      auto element = dyn_cast<FloatType>(
          graph::tensorTypeOf(op->getOperand(0)).getElementType());
      if (element && element.getWidth() == 16)
        sums.push_back(op);
    });
    OpBuilder builder(&getContext());
    for (Operation *op : sums) {
      Value narrow = op->getResult(0);
      builder.setInsertionPoint(op);
      Value terms = widen(builder, op->getOperand(0));
      Operation *sum = builder.clone(*op);
      sum->setOperand(0, terms);
      sum->getResult(0).setType(
          graph::tensorTypeOf(narrow).clone(builder.getF32Type()));
      Value rounded =
          placeAs(graph::CastOp::create(builder, op->getLoc(), narrow.getType(),
                                        placeAs(sum, narrow)),
                  narrow);
      narrow.replaceAllUsesWith(rounded);
      eraseUnread(op);
    }
  }

  /// Erases `op`, and what only it has read.
  void eraseUnread(Operation *op) {
    llvm::SmallSetVector<Operation *, 4> read;
    for (Value operand : op->getOperands())
      if (Operation *from = operand.getDefiningOp())
        read.insert(from);
    op->erase();
    for (Operation *from : read)
      if (isOpTriviallyDead(from))
        eraseUnread(from);
  }
};

} // namespace
