//===- ContractionSteps.cpp - The steps of one product --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ContractionSteps.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/IR/AxesText.h"
#include "cleave/Dialect/Spmd/IR/Cause.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

ContractionSteps::ContractionSteps(Operation *op, MeshOp mesh,
                                   const SeedOrder &seedOrder)
    : op(op), mesh(mesh.getMesh()), meshName(FlatSymbolRefAttr::get(mesh)),
      seedIndex(seedOrder.of(op)) {
  for (unsigned i = 0; i < 2; ++i)
    early[i] = seedOrder.of(op->getOperand(i)) < seedIndex &&
               seedOrder.of(op->getOperand(1 - i)) == seedIndex;
}

LogicalResult ContractionSteps::read() {
  for (Attribute mark : cast<ArrayAttr>(op->getAttr(kStepsAttr)))
    shardings.push_back(cast<ShardingAttr>(mark));
  op->removeAttr(kStepsAttr);
  if (auto kept = op->getAttrOfType<DenseI64ArrayAttr>(kHeldAttr))
    for (int64_t index : kept.asArrayRef())
      held[index] = true;
  op->removeAttr(kHeldAttr);
  return findFactor();
}

/// Finds the one factor of two of the three tensors that is sharded over
/// different axes in them.
LogicalResult ContractionSteps::findFactor() {
  if (auto lookup = dyn_cast<graph::GatherOp>(op))
    return findTable(shardings[0], 0, lookup.getDim());
  if (auto scatter = dyn_cast<graph::ScatterAddOp>(op))
    return findTable(shardings[2], 2, scatter.getDim());
  auto rule = cast<graph::ShardingRuleOpInterface>(op).getShardingRule();
  const graph::FactorMapping *mappings[] = {
      &rule.operands[0], &rule.operands[1], &rule.results[0]};
  bool found = false;
  for (auto [factor, info] : llvm::enumerate(rule.factors)) {
    std::optional<SplitDimension> own[3];
    SmallVector<SplitDimension, 3> known;
    for (unsigned i = 0; i < 3; ++i)
      for (auto [dim, factors] : llvm::enumerate(*mappings[i]))
        if (llvm::is_contained(factors, static_cast<int64_t>(factor))) {
          AxisList axes =
              mesh.significant(shardings[i].getSharding().dims[dim]);
          own[i] = SplitDimension{static_cast<unsigned>(dim), axes};
          known.push_back(*own[i]);
        }
    if (known.size() != 2 || known[0].axes == known[1].axes)
      continue;
    int64_t sizes[] = {mesh.size(known[0].axes), mesh.size(known[1].axes)};
    if (sizes[0] != sizes[1])
      return op->emitOpError("shards a dimension of size ")
             << info.size << " over " << listAxes(known[0].axes) << " and over "
             << listAxes(known[1].axes) << ", which have " << sizes[0]
             << " and " << sizes[1]
             << " positions: steps need equal numbers of positions";
    if (info.size % sizes[0] != 0)
      return op->emitOpError("has a dimension of size ")
             << info.size << ", not divisible by the " << sizes[0]
             << " positions of " << listAxes(known[0].axes);
    if (found)
      return op->emitOpError("has two dimensions that are sharded in two ways: "
                             "steps need exactly one");
    found = true;
    parts = sizes[0];
    std::copy(std::begin(own), std::end(own), std::begin(at));
  }
  return success();
}

/// Finds the steps of a lookup in a sharded table, or of an addition to one.
LogicalResult ContractionSteps::findTable(ShardingAttr sharding,
                                          unsigned tensor, int64_t dim) {
  AxisList axes = mesh.significant(sharding.getSharding().dims[dim]);
  Value table = tensor == 2 ? op->getResult(0) : op->getOperand(tensor);
  int64_t size = cast<RankedTensorType>(table.getType()).getDimSize(dim);
  parts = mesh.size(axes);
  if (size % parts != 0)
    return op->emitOpError("has a dimension of size ")
           << size << ", not divisible by the " << parts << " positions of "
           << listAxes(axes);
  at[tensor] = SplitDimension{static_cast<unsigned>(dim), axes};
  return success();
}

std::optional<SentParts> ContractionSteps::sent(unsigned index) const {
  if (parts == 1 || !at[index])
    return std::nullopt;
  return SentParts{op->getOperand(index), shardings[index], at[index]->dim,
                   at[index]->axes, seedIndex};
}

Location ContractionSteps::location(ArrayRef<AxisRef> axes) const {
  return withCause(op->getLoc(), "the steps of SUMMA over " + listAxes(axes));
}

Value ContractionSteps::constrain(OpBuilder &builder, Value value,
                                  ShardingAttr sharding) const {
  return ConstrainOp::create(builder, op->getLoc(), value.getType(), value,
                             sharding, /*reduced=*/false);
}

/// Backward broadcasts again, so that the parts that forward received are not
/// kept.
Value ContractionSteps::operand(OpBuilder &builder, unsigned index) const {
  Value value = op->getOperand(index);
  if (early[index])
    value = BarrierOp::create(builder, op->getLoc(), value.getType(), value,
                              op->getOperand(1 - index));
  return constrain(builder, value, shardings[index]);
}

Value ContractionSteps::broadcast(OpBuilder &builder, unsigned index,
                                  Value value, int64_t part) const {
  const SplitDimension &along = *at[index];
  auto type = cast<RankedTensorType>(value.getType());
  SmallVector<int64_t> shape(type.getShape());
  shape[along.dim] /= parts;
  IntegerAttr number;
  if (apart[index])
    number = builder.getI64IntegerAttr(*apart[index]);
  return BroadcastOp::create(builder, location(along.axes), type.clone(shape),
                             value, meshName.getValue(),
                             AxesAttr::get(builder.getContext(), along.axes),
                             along.dim, part, number);
}

/// If both operands have the factor, the steps are summed. If the result has
/// it, each step computes the partial sum of one part of the result. A lookup
/// of an index outside of the part gives 0, and an addition to one is dropped.
void ContractionSteps::step(OpBuilder &builder, ArrayRef<Value> operands,
                            int64_t part) {
  Location loc = op->getLoc();
  // The offset of this part of the table.
  auto origin = [&](int64_t size) -> Value {
    auto type = RankedTensorType::get(1, builder.getI64Type());
    return graph::ConstantOp::create(
        builder, loc, DenseElementsAttr::get(type, ArrayRef(part * size)));
  };
  if (parts == 1) {
    Operation *same = builder.clone(*op);
    same->setOperands(operands);
    sum = same->getResult(0);
    return;
  }
  Value begin;
  int64_t size = 0;
  if (auto lookup = dyn_cast<graph::GatherOp>(op)) {
    size = lookup.getInput().getType().getDimSize(lookup.getDim());
    begin = origin(size / parts);
  } else if (isa<graph::ScatterAddOp>(op)) {
    size = cast<RankedTensorType>(op->getResult(0).getType())
               .getDimSize(at[2]->dim);
    begin = origin(size / parts);
  }
  Operation *product = builder.clone(*op);
  product->setOperands(0, 2, operands);
  Value made = product->getResult(0);
  auto whole = cast<RankedTensorType>(made.getType());
  if (at[2]) {
    SmallVector<int64_t> shape(whole.getShape());
    shape[at[2]->dim] /= parts;
    made.setType(whole.clone(shape));
  }
  if (auto lookup = dyn_cast<graph::GatherOp>(product)) {
    lookup.getOriginMutable().assign(begin);
    lookup.setGlobalSize(lookup.getGlobalSize().value_or(size));
  } else if (auto scatter = dyn_cast<graph::ScatterAddOp>(product)) {
    scatter.getOriginMutable().assign(begin);
    scatter.setGlobalSize(scatter.getGlobalSize().value_or(size));
    scatter.setSize(size / parts);
  }
  if (at[2])
    sum = ReduceOp::create(
        builder, location(at[2]->axes), whole, made, sum, meshName.getValue(),
        AxesAttr::get(builder.getContext(), at[2]->axes), at[2]->dim, part);
  else
    sum =
        sum ? graph::AddOp::create(builder, loc, sum, made).getResult() : made;
}

void ContractionSteps::finish(OpBuilder &builder) {
  // Padding may come behind the first, which keeps the parts' sharding.
  Value result = constrain(builder, sum, shardings[2]);
  op->getResult(0).replaceAllUsesWith(constrain(builder, result, shardings[2]));
  op->erase();
}
