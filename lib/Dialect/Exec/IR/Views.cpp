//===- Views.cpp - Values as views of buffers -----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/IR/Views.h"

using namespace mlir;
using namespace cleave::exec;

Value cleave::exec::rootOf(Value value) {
  while (auto view = value.getDefiningOp<ViewOp>())
    value = view.getInput();
  return value;
}

Value cleave::exec::viewAs(OpBuilder &builder, Location loc, Value value,
                           RankedTensorType type) {
  if (value.getType() == type)
    return value;
  Value root = rootOf(value);
  if (root.getType() == type)
    return root;
  return ViewOp::create(builder, loc, type, root);
}

Value cleave::exec::viewOf(OpBuilder &builder, Location loc, Value value,
                           RankedTensorType type, const Strided &layout) {
  RankedTensorType from = tensorTypeOf(value);
  std::optional<Strided> moved =
      rebase(denseType(from), withLayout(type, layout), getLayout(from));
  if (!moved)
    return nullptr;
  return viewAs(builder, loc, value, withLayout(type, *moved));
}

Value cleave::exec::denseOf(OpBuilder &builder, Location loc, Value value) {
  if (isDense(tensorTypeOf(value)))
    return value;
  return CopyOp::create(builder, loc, denseType(tensorTypeOf(value)), value,
                        Value());
}

Value cleave::exec::reshapeOf(OpBuilder &builder, Location loc, Value value,
                              ArrayRef<int64_t> shape) {
  auto type =
      RankedTensorType::get(shape, tensorTypeOf(value).getElementType());
  if (Value view = viewOf(builder, loc, value, type, getLayout(type)))
    return view;
  return viewOf(builder, loc, denseOf(builder, loc, value), type,
                getLayout(type));
}

Value cleave::exec::transposeOf(OpBuilder &builder, Location loc, Value value,
                                ArrayRef<int64_t> permutation) {
  RankedTensorType from = tensorTypeOf(value);
  Strided old = getLayout(from), layout;
  layout.offset = old.offset;
  SmallVector<int64_t> shape;
  for (int64_t dim : permutation) {
    shape.push_back(from.getDimSize(dim));
    layout.strides.push_back(old.strides[dim]);
  }
  return viewAs(
      builder, loc, value,
      withLayout(RankedTensorType::get(shape, from.getElementType()), layout));
}

Value cleave::exec::rowsOf(OpBuilder &builder, Location loc, Value value,
                           int64_t start, int64_t count) {
  RankedTensorType from = tensorTypeOf(value);
  Strided layout = getLayout(from);
  layout.offset += start * layout.strides[0];
  SmallVector<int64_t> shape(from.getShape());
  shape[0] = count;
  return viewAs(
      builder, loc, value,
      withLayout(RankedTensorType::get(shape, from.getElementType()), layout));
}

/// True if `view`, of a dense value of type `old`, and all views of it can
/// change to `layout`; changes them with `apply`.
static bool follow(ViewOp view, RankedTensorType old, const Strided &layout,
                   bool apply) {
  std::optional<Strided> moved = rebase(old, view.getType(), layout);
  if (!moved)
    return false;
  RankedTensorType type = withLayout(view.getType(), *moved);
  for (OpOperand &use : view.getOutput().getUses()) {
    Operation *user = use.getOwner();
    if (auto next = dyn_cast<ViewOp>(user)) {
      if (!follow(next, old, layout, apply))
        return false;
    } else if (auto command = dyn_cast<CommandOpInterface>(user)) {
      if (!command.canReadOperand(use.getOperandNumber(), type))
        return false;
    } else if (isa<JoinOp>(user) || user->hasTrait<OpTrait::IsTerminator>()) {
      return false;
    }
  }
  if (apply)
    view.getOutput().setType(type);
  return true;
}

void cleave::exec::replaceDense(OpBuilder &builder, Value old, Value value) {
  if (value.getType() == old.getType()) {
    old.replaceAllUsesWith(value);
    return;
  }
  RankedTensorType type = tensorTypeOf(old);
  Strided layout = getLayout(tensorTypeOf(value));
  Value dense;
  for (OpOperand &use : llvm::make_early_inc_range(old.getUses())) {
    Operation *user = use.getOwner();
    bool follows = true;
    if (auto view = dyn_cast<ViewOp>(user)) {
      follows = follow(view, type, layout, /*apply=*/false);
      if (follows)
        follow(view, type, layout, /*apply=*/true);
    } else if (auto command = dyn_cast<CommandOpInterface>(user)) {
      follows =
          command.canReadOperand(use.getOperandNumber(), tensorTypeOf(value));
    } else if (isa<JoinOp>(user) || user->hasTrait<OpTrait::IsTerminator>()) {
      follows = false;
    }
    if (!follows && !dense)
      dense = CopyOp::create(builder, value.getLoc(), type, value, Value());
    use.set(follows ? value : dense);
  }
}
