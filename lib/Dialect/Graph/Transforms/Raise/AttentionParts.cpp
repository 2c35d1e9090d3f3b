//===- AttentionParts.cpp - Of which attention is built
//-----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "AttentionParts.h"
#include "Matching.h"
#include "cleave/Dialect/Graph/IR/TensorType.h"
#include "mlir/IR/TypeUtilities.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

Shape cleave::graph::joined(ArrayRef<int64_t> a, ArrayRef<int64_t> b) {
  Shape shape(a);
  llvm::append_range(shape, b);
  return shape;
}

std::optional<Scaled> cleave::graph::scaledOnce(Value value) {
  if (auto div = value.getDefiningOp<DivOp>()) {
    std::optional<double> number = scalarOf(div.getRhs());
    if (number && *number != 0 && shapeOf(div.getLhs()) == shapeOf(value))
      return Scaled{div.getLhs(), 1 / *number};
    return std::nullopt;
  }
  for (auto [x, factor] : bothOrders<MulOp>(value)) {
    std::optional<double> number = scalarOf(factor);
    if (number && shapeOf(x) == shapeOf(value))
      return Scaled{x, *number};
  }
  return std::nullopt;
}

/// `x` by a number, also if it is a reshape or transpose of a tensor that is
/// scaled by one.
static Scaled unscaled(Folding &b, Value x) {
  Operation *producer = x.getDefiningOp();
  if (isa_and_nonnull<TransposeOp, ReshapeOp>(producer) &&
      isa<FloatType>(getElementTypeOrSelf(x))) {
    Scaled inner = unscaled(b, producer->getOperand(0));
    if (inner.factor == 1)
      return {x, 1};
    if (auto transpose = dyn_cast<TransposeOp>(producer))
      return {b.transpose(inner.value, transpose.getPermutation()),
              inner.factor};
    return {b.reshape(inner.value, shapeOf(x)), inner.factor};
  }
  Scaled found{x, 1};
  while (std::optional<Scaled> step = scaledOnce(found.value)) {
    found.value = step->value;
    found.factor *= step->factor;
  }
  return found;
}

/// The tensor [b, g, k, d] whose heads `x` [b, a, k, d] repeats; null if it
/// repeats none.
static Value unrepeated(Folding &b, Value x) {
  if (auto broadcast = x.getDefiningOp<BroadcastOp>()) {
    ArrayRef<int64_t> inner = shapeOf(broadcast.getInput()), own = shapeOf(x);
    if (inner.size() == 4 && inner[1] == 1 && inner[0] == own[0] &&
        inner.take_back(2) == own.take_back(2))
      return broadcast.getInput();
  }
  auto reshape = x.getDefiningOp<ReshapeOp>();
  auto repeat =
      reshape ? reshape.getInput().getDefiningOp<BroadcastOp>() : BroadcastOp();
  if (!repeat)
    return {};
  ArrayRef<int64_t> wide = shapeOf(repeat.getOutput()),
                    inner = shapeOf(repeat.getInput());
  if (wide.size() != 5 || inner.size() != 5)
    return {};
  ArrayRef<int64_t> rest = wide.take_back(2);
  if (inner != ArrayRef(joined({wide[0], wide[1], 1}, rest)) ||
      shapeOf(x) != ArrayRef(joined({wide[0], wide[1] * wide[2]}, rest)))
    return {};
  return b.reshape(repeat.getInput(), joined({wide[0], wide[1]}, rest));
}

/// Removes the repetition of key and value heads that groups of query heads
/// share (grouped-query attention).
static void shareHeads(Folding &b, AttentionParts &parts) {
  Value key = unrepeated(b, parts.key), value = unrepeated(b, parts.value);
  if (key && value && shapeOf(key)[1] == shapeOf(value)[1] &&
      shapeOf(parts.query)[1] % shapeOf(key)[1] == 0) {
    parts.key = key;
    parts.value = value;
    return;
  }
  int64_t heads = std::max(shapeOf(parts.key)[1], shapeOf(parts.value)[1]);
  for (Value *x : {&parts.key, &parts.value}) {
    Shape shape(shapeOf(*x));
    shape[1] = heads;
    *x = b.broadcast(*x, shape);
  }
}

/// Joins tensors to one of rank 4; null if there are none.
template <typename Join>
static Value joinOfRank4(Folding &b, ArrayRef<Value> values, Join join) {
  Value result;
  for (Value value : values) {
    while (auto broadcast = value.getDefiningOp<BroadcastOp>())
      value = broadcast.getInput();
    ArrayRef<int64_t> own = shapeOf(value);
    value = b.reshape(value, joined(Shape(4 - own.size(), 1), own));
    result = result ? join(result, value) : value;
  }
  return result;
}

Value cleave::graph::buildAttention(Folding &b, KnownValues &known,
                                    AttentionParts parts) {
  OpBuilder &builder = b.getBuilder();
  Scaled query = unscaled(b, parts.query);
  parts.query = query.value;
  parts.scale *= query.factor;
  shareHeads(b, parts);
  int64_t keys = shapeOf(parts.key)[2];
  Shape shape(shapeOf(parts.query).take_front(3));
  shape.push_back(keys);
  MaskAnalysis analysis(b, known, shape);
  if (parts.causal)
    analysis.causal();
  if (parts.window)
    analysis.window(*parts.window);
  if (parts.segments)
    analysis.segments(parts.segments);
  if (parts.mask)
    analysis.mask(parts.mask);
  for (const Replacement &each : parts.replaced)
    if (!analysis.replaced(each.condition, each.negated, each.number))
      return {};
  for (Scaled term : parts.biases)
    analysis.bias(term.value, term.factor);
  const Visibility *seen = analysis.finish();
  if (!seen)
    return {};
  IntegerAttr window;
  if (seen->window && !(seen->causal && *seen->window >= keys))
    window = builder.getI64IntegerAttr(*seen->window);
  Value bias = joinOfRank4(b, seen->biases,
                           [&](Value x, Value y) { return b.add(x, y); });
  Value mask = joinOfRank4(b, seen->masks,
                           [&](Value x, Value y) { return b.both(x, y); });
  bool drops = parts.dropout > 0;
  return AttentionOp::create(
             builder, b.getLoc(), parts.query, parts.key, parts.value, bias,
             mask, seen->segments, drops ? parts.rng : Value(), Value(),
             Value(), Value(), Value(), Value(), Value(),
             builder.getF64FloatAttr(parts.scale),
             seen->causal ? builder.getUnitAttr() : UnitAttr(), window,
             builder.getF64FloatAttr(parts.dropout),
             builder.getI64IntegerAttr(drops ? parts.dropoutId : 0),
             DenseI64ArrayAttr(), builder.getI64IntegerAttr(1),
             builder.getI64IntegerAttr(0), TypeAttr())
      .getOutput();
}
