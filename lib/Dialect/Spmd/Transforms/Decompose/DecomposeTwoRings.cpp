//===- DecomposeTwoRings.cpp - Ring attention with two rings --------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Li et al., "Sequence Parallelism" (arXiv 2105.13120), section 3.2. A first
/// ring, of keys, computes complete rows of scores; a second one, of values,
/// sums the output. Backward has a ring of values and one of keys. The sums of
/// the gradients of both rotate with them, back to their own positions. 16-bit
/// keys and values travel as they are; scores, probabilities and sums are f32,
/// as in attention that is one op.
///
/// Letters of dimensions: b samples, g heads of keys, m heads of queries for
/// each, n blocks, c queries and k keys of a block, d and e features.
///
//===----------------------------------------------------------------------===//

#include "DecomposeTwoRings.h"
#include "ScoreExtras.h"
#include "cleave/Dialect/Spmd/IR/Cause.h"
#include "cleave/Dialect/Spmd/IR/OpFactors.h"
#include <limits>

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;
using graph::tensorTypeOf;

namespace {

template <typename Op> class TwoRings {
public:
  TwoRings(Op op, MeshOp mesh, StringRef axis)
      : op(op), builder(op), f{builder, op.getLoc()}, mesh(mesh), axis(axis),
        parts(mesh.getMesh().size(AxisRef{axis})) {
    ArrayRef<int64_t> query = tensorTypeOf(op.getQuery()).getShape();
    ArrayRef<int64_t> key = tensorTypeOf(op.getKey()).getShape();
    samples = query[0];
    heads = query[1];
    groups = key[1];
    queries = query[2];
    keys = key[2];
    blockKeys = keys / parts;
  }

  void forward(Probabilities &probabilities);
  /// `ofScores` is the result of `scoreGradient`.
  void backward(Value rows, Value ofScores);
  void biasGradient(Value ofScores);
  /// Returns the gradient of the scores, whose probabilities are `rows`.
  Value scoreGradient(Value rows);

private:
  //===--- What travels ---------------------------------------------------===//

  /// Returns `value` rotated along dimension `dim`; null for null.
  Value rotate(Value value, int64_t dim, StringRef what) {
    if (!value)
      return value;
    auto axes = AxesAttr::get(builder.getContext(), {AxisRef{axis}});
    Location loc = withCause(
        op.getLoc(), ("the ring of " + what + " over \"" + axis + "\"").str());
    return RotateOp::create(builder, loc, value.getType(), value,
                            mesh.getSymName(), axes, dim);
  }
  /// Returns `value` after a barrier: backward rotates again, so that the
  /// values that forward received are not kept.
  Value again(Value value, Value after) {
    return BarrierOp::create(builder, op.getLoc(), value.getType(), value,
                             after);
  }
  /// Calls `step(t, value)` for each step of a ring. The rotation for the next
  /// step comes first.
  void travel(Value value, StringRef what,
              function_ref<void(int64_t, Value)> step) {
    for (int64_t t = 0; t < parts; ++t) {
      Value next = t + 1 < parts ? rotate(value, 2, what) : Value();
      step(t, keyBlocks(wide(value)));
      value = next;
    }
  }

  //===--- Blocks ---------------------------------------------------------===//

  /// Returns `value` in the type that is computed in.
  Value wide(Value value) {
    Type element = tensorTypeOf(value).getElementType();
    return element.getIntOrFloatBitWidth() < 32
               ? f.cast(value, builder.getF32Type())
               : value;
  }
  /// Returns a value of shape [b, g, k, d] as [b, g, n, k, d].
  Value keyBlocks(Value value) {
    int64_t size = tensorTypeOf(value).getDimSize(3);
    return f.reshape(value, {samples, groups, parts, blockKeys, size});
  }
  /// Returns a value of shape [b, a, q, d] as [b, g, m, n, c, d].
  Value queryBlocks(Value value) {
    int64_t size = tensorTypeOf(value).getDimSize(3);
    return f.reshape(
        value, {samples, groups, heads / groups, parts, queries / parts, size});
  }
  /// Returns blocks in the shape and type of `like`.
  Value whole(Value blocks, Value like) {
    RankedTensorType type = tensorTypeOf(like);
    return f.cast(f.reshape(blocks, type.getShape()), type.getElementType());
  }
  /// Builds a product whose operand 1, or whose result where `result` is set,
  /// belongs to the block `t` positions before.
  Value product(StringRef equation, Value a, Value b, int64_t t,
                bool result = false) {
    return meets(f.contract(equation, a, b), result ? "result" : "operand",
                 result ? 0 : 1, /*dim=*/2, t);
  }
  Value meets(Value made, StringRef what, int64_t index, int64_t dim,
              int64_t t) {
    auto number = [&](int64_t n) { return builder.getI64IntegerAttr(n); };
    if (t > 0)
      made.getDefiningOp()->setAttr(
          kRingShiftAttr, builder.getDictionaryAttr(
                              {builder.getNamedAttr("dim", number(dim)),
                               builder.getNamedAttr(what, number(index)),
                               builder.getNamedAttr("steps", number(t))}));
    return made;
  }
  Value plus(Value sum, Value more) { return sum ? f.add(sum, more) : more; }

  /// Returns the block of step `t` of complete rows.
  Value columns(Value rows, int64_t t) {
    SmallVector<int64_t> sizes(tensorTypeOf(rows).getShape());
    SmallVector<int64_t> offsets(sizes.size(), 0), strides(sizes.size(), 1);
    offsets.back() = t * blockKeys;
    sizes.back() = blockKeys;
    return graph::SliceOp::create(builder, op.getLoc(), rows, offsets, sizes,
                                  strides);
  }
  Value join(ArrayRef<Value> steps) {
    return graph::ConcatOp::create(builder, op.getLoc(), ValueRange(steps),
                                   tensorTypeOf(steps.front()).getRank() - 1);
  }

  //===--- Masks and biases -----------------------------------------------===//

  /// Returns the shape of a mask or bias, of rank 4.
  static SmallVector<int64_t> shapeOfExtra(Value value) {
    ArrayRef<int64_t> own = tensorTypeOf(value).getShape();
    SmallVector<int64_t> shape(4 - own.size(), 1);
    llvm::append_range(shape, own);
    return shape;
  }
  /// Returns what a mask or bias says of the block of step `t`, which it was
  /// passed to if it travels, of shape [b, g, m, n, c, k], or 1 in place of
  /// each.
  Value extraBlocks(Value value, int64_t t) {
    if (scoreExtra(value) == ScoreExtra::Pairs)
      value = columnsOfStep(f, value, parts, t);
    SmallVector<int64_t> own = shapeOfExtra(value);
    bool keysOnly = scoreExtra(value) == ScoreExtra::Keys;
    bool heads = own[1] != 1, queries = own[2] != 1;
    return f.reshape(
        value, {own[0], heads ? groups : 1, heads ? own[1] / groups : 1,
                queries || keysOnly ? parts : 1, queries ? own[2] / parts : 1,
                keysOnly ? own[3] / parts : own[3]});
  }
  /// Returns a mask or bias for the next step.
  Value nextExtra(Value value, StringRef what) {
    return travels(value)
               ? rotate(value, tensorTypeOf(value).getRank() - 1, what)
               : value;
  }
  /// Marks `made`, whose operand `operand` is an extra like `value` of step
  /// `t`.
  Value meetsExtra(Value made, Value value, int64_t operand, int64_t t) {
    return travels(value) ? meets(made, "operand", operand, /*dim=*/3, t)
                          : made;
  }
  /// Whether a query may see no key: its softmax is NaN.
  bool mayBeEmpty() {
    return op.getMask() || op.getKeySegments() ||
           (op.getSegments() && queries != keys) ||
           (op.getCausal() && keys < queries);
  }

  //===--- Places ---------------------------------------------------------===//

  Value table(ArrayRef<int64_t> values, ArrayRef<int64_t> shape) {
    auto type = RankedTensorType::get(shape, builder.getI64Type());
    return graph::ConstantOp::create(builder, op.getLoc(),
                                     DenseElementsAttr::get(type, values));
  }
  /// Returns the offsets of the keys that block `n` attends to in step `t`.
  int64_t firstKey(int64_t n, int64_t t) const {
    return (n + parts - t) % parts * blockKeys;
  }
  Value visible(int64_t t, Value keySegments);
  Value dropout(Value block, int64_t t);

  Op op;
  OpBuilder builder;
  graph::Formula f;
  MeshOp mesh;
  StringRef axis;
  int64_t parts, samples, heads, groups, queries, keys, blockKeys;
};

} // namespace

/// Returns the mask of the scores of step `t`; null where none is masked.
template <typename Op>
Value TwoRings<Op>::visible(int64_t t, Value keySegments) {
  Value result;
  auto both = [&](Value more) {
    result =
        result ? Value(graph::AndOp::create(builder, op.getLoc(), result, more))
               : more;
  };
  if (op.getCausal() || op.getWindow()) {
    // The last key that a query attends to under a causal mask.
    SmallVector<int64_t> last, places;
    for (int64_t i = 0; i < queries; ++i)
      last.push_back(i + keys - queries);
    for (int64_t n = 0; n < parts; ++n)
      for (int64_t j = 0; j < blockKeys; ++j)
        places.push_back(firstKey(n, t) + j);
    Value rows = table(last, {parts, queries / parts, 1});
    Value key = table(places, {parts, 1, blockKeys});
    if (op.getCausal())
      both(f.compare(graph::Predicate::le, key, rows));
    if (auto window = op.getWindow())
      both(
          f.compare(graph::Predicate::gt, key,
                    f.sub(rows, f.scalar(rows, static_cast<double>(*window)))));
  }
  if (keySegments)
    both(meets(
        f.compare(graph::Predicate::eq,
                  f.reshape(op.getSegments(),
                            {samples, 1, 1, parts, queries / parts, 1}),
                  f.reshape(keySegments, {samples, 1, 1, parts, 1, blockKeys})),
        "operand", 1, /*dim=*/3, t));
  return result;
}

/// Applies dropout to the block of step `t`. It draws by the index of a score
/// in its complete row.
template <typename Op> Value TwoRings<Op>::dropout(Value block, int64_t t) {
  if (op.getDropout().isZero())
    return block;
  int64_t row = llvm::alignTo(keys, 64);
  SmallVector<int64_t> starts;
  for (int64_t i = 0; i < queries; ++i)
    starts.push_back(i * row + firstKey(i / (queries / parts), t));
  SmallVector<int64_t> shape(tensorTypeOf(block).getShape());
  Value flat = f.reshape(block, {samples, heads, queries * blockKeys});
  Value dropped = graph::DropoutOp::create(
      builder, op.getLoc(), flat, op.getRng(), Value(),
      table(starts, {queries}), op.getDropoutAttr(), op.getDropoutIdAttr(),
      builder.getDenseI64ArrayAttr({samples, heads, queries * row}),
      builder.getI64IntegerAttr(2));
  return f.reshape(dropped, shape);
}

/// `value` times `factor`, of which a constant of the element type may hold a
/// part only: attention as one op has all of it.
static Value scaled(graph::Formula f, Value value, double factor) {
  Value constant = f.scalar(value, factor);
  Value result = f.mul(value, constant);
  double rest = factor - graph::getSplatValue(constant).value_or(factor);
  return rest == 0 ? result
                   : f.add(result, f.mul(value, f.scalar(value, rest)));
}

template <>
void TwoRings<graph::AttentionOp>::forward(Probabilities &probabilities) {
  Value query = queryBlocks(wide(op.getQuery())), bias = op.getBias(),
        mask = op.getMask(), segments = op.getKeySegments();
  if (!segments)
    segments = op.getSegments();
  Value hidden = f.scalar(query, -std::numeric_limits<double>::infinity());
  SmallVector<Value> scores;
  travel(op.getKey(), "keys", [&](int64_t t, Value key) {
    Value block = product("bgmncd,bgnkd->bgmnck", query, key, t);
    block = scaled(f, block, op.getScale().convertToDouble());
    if (bias)
      block =
          meetsExtra(f.add(block, f.cast(extraBlocks(bias, t),
                                         tensorTypeOf(block).getElementType())),
                     bias, 1, t);
    if (Value seen = visible(t, segments))
      block = f.select(seen, block, hidden);
    if (mask)
      block =
          meetsExtra(f.select(extraBlocks(mask, t), block, hidden), mask, 0, t);
    scores.push_back(block);
    if (t + 1 == parts)
      return;
    segments = rotate(segments, 1, "documents");
    bias = nextExtra(bias, "biases");
    mask = nextExtra(mask, "masks");
  });
  Value joined = join(scores);
  Value rows = graph::SoftmaxOp::create(builder, op.getLoc(), joined,
                                        /*log=*/false);
  if (mayBeEmpty())
    rows = f.select(f.compare(graph::Predicate::ne, joined, hidden), rows,
                    f.scalar(rows, 0.0));
  Value output;
  travel(op.getValue(), "values", [&](int64_t t, Value value) {
    output = plus(output, product("bgmnck,bgnke->bgmnce",
                                  dropout(columns(rows, t), t), value, t));
  });
  op.getOutput().replaceAllUsesWith(whole(output, op.getOutput()));
  probabilities.rows[op.getLse()] = rows;
}

template <typename Op> Value TwoRings<Op>::scoreGradient(Value rows) {
  Value gradient = queryBlocks(wide(op.getGradient()));
  SmallVector<Value> steps;
  travel(again(op.getValue(), op.getGradient()), "values",
         [&](int64_t t, Value value) {
           Value block = product("bgmnce,bgnke->bgmnck", gradient, value, t);
           steps.push_back(dropout(block, t));
         });
  Value joined = join(steps);
  Value output = wide(op.getOutput());
  if (output == op.getOutput())
    return graph::SoftmaxGradOp::create(builder, op.getLoc(), joined, rows,
                                        /*log=*/false);
  // As attention that is one op: the mean of a row is that of its output, which
  // was rounded.
  Value mean = f.sum(f.mul(gradient, queryBlocks(output)), {5});
  SmallVector<int64_t> shape(tensorTypeOf(mean).getShape());
  shape.push_back(1);
  return f.mul(rows, f.sub(joined, f.reshape(mean, shape)));
}

template <>
void TwoRings<graph::AttentionGradOp>::backward(Value rows, Value ofScores) {
  Value gradient = queryBlocks(wide(op.getGradient()));
  Value query = queryBlocks(wide(op.getQuery()));
  ofScores = scaled(f, ofScores, op.getScale().convertToDouble());
  Value dQuery, dKey, dValue;
  // The block of step `t` belongs to the position `t` before; its own comes
  // last.
  auto passOn = [&](Value &sum, Value block, Value like) {
    block = f.reshape(block, tensorTypeOf(like).getShape());
    if (Value passed = rotate(sum, 2, "gradients"))
      block = f.add(wide(passed), block);
    sum = whole(block, like);
  };
  SmallVector<Value> blocks;
  travel(again(op.getKey(), op.getGradient()), "keys",
         [&](int64_t t, Value key) {
           blocks.push_back(columns(ofScores, t));
           dQuery = plus(
               dQuery, product("bgmnck,bgnkd->bgmncd", blocks.back(), key, t));
         });
  for (int64_t step = 1; step <= parts; ++step) {
    int64_t t = step % parts;
    passOn(dKey, product("bgmnck,bgmncd->bgnkd", blocks[t], query, t, true),
           op.getKeyGradient());
    passOn(dValue,
           product("bgmnck,bgmnce->bgnke", dropout(columns(rows, t), t),
                   gradient, t, true),
           op.getValueGradient());
  }
  op->replaceAllUsesWith(
      ValueRange{whole(dQuery, op.getQueryGradient()), dKey, dValue});
}

template <>
void TwoRings<graph::AttentionBiasGradOp>::biasGradient(Value ofScores) {
  Value bias = op.getBias(), sum;
  RankedTensorType type = tensorTypeOf(bias);
  SmallVector<int64_t> own = shapeOfExtra(bias);
  SmallVector<Value> steps;
  // Reduces scores of `width` keys to the dimensions of the bias.
  auto reduced = [&](Value scores, int64_t width) {
    SmallVector<int64_t> shape(type.getShape());
    shape.back() = std::min(own[3], width);
    return f.reduceTo(f.reshape(scores, {samples, heads, queries, width}),
                      shape);
  };
  for (int64_t step = 1; step <= parts; ++step) {
    int64_t t = step % parts;
    if (scoreExtra(bias) == ScoreExtra::Pairs) {
      steps.push_back(reduced(columns(ofScores, step - 1), blockKeys));
    } else if (travels(bias)) {
      SmallVector<int64_t> dims{4};
      if (own[1] == 1)
        dims.insert(dims.begin(), {1, 2});
      if (own[0] == 1)
        dims.insert(dims.begin(), 0);
      Value block = meets(f.sum(columns(ofScores, t), dims), "result", 0,
                          /*dim=*/4 - static_cast<int64_t>(dims.size()), t);
      sum = plus(rotate(sum, type.getRank() - 1, "gradients"),
                 f.reshape(block, type.getShape()));
    }
  }
  if (!steps.empty())
    sum = rowsOfSteps(f, steps);
  else if (!sum)
    sum = reduced(ofScores, keys);
  op.replaceAllUsesWith(f.cast(sum, type.getElementType()));
}

/// Reports attention that two rings do not support.
template <typename Op> static LogicalResult check(Op op, int64_t parts) {
  if (op.getOrigin() || op.getBlocks() != 1 || op.getQueryStarts() ||
      op.getKeyStarts())
    return op.emitOpError("has an origin, blocks or its own order, which ring "
                          "attention does not support");
  for (Value value : {op.getQuery(), op.getKey()})
    if (int64_t places = tensorTypeOf(value).getDimSize(2); places % parts != 0)
      return op.emitOpError("has a sequence of length ")
             << places << ", not divisible by the " << parts
             << " positions of the ring";
  return success();
}

LogicalResult
cleave::spmd::decomposeIntoTwoRings(graph::AttentionOp op, MeshOp mesh,
                                    StringRef axis,
                                    Probabilities &probabilities) {
  if (failed(check(op, mesh.getMesh().size(AxisRef{axis}))))
    return failure();
  TwoRings<graph::AttentionOp>(op, mesh, axis).forward(probabilities);
  return success();
}

/// Calls `build(rings, rows, gradient of the scores)` for a gradient `op`.
template <typename Op, typename Build>
static LogicalResult backward(Op op, MeshOp mesh, StringRef axis,
                              Probabilities &probabilities, Build build) {
  if (failed(check(op, mesh.getMesh().size(AxisRef{axis}))))
    return failure();
  // Other recipes may have annotated it.
  auto annotated = [](Value value) {
    while (auto constrain = value.getDefiningOp<ConstrainOp>())
      value = constrain.getInput();
    return value;
  };
  Value rows = probabilities.rows.lookup(annotated(op.getLse()));
  if (!rows)
    return op.emitOpError("must read the log-sum-exp of an attention that is "
                          "decomposed into two rings");
  TwoRings<Op> rings(op, mesh, axis);
  Value &ofScores =
      probabilities.gradients[{rows, annotated(op.getGradient())}];
  if (!ofScores)
    ofScores = rings.scoreGradient(rows);
  build(rings, rows, ofScores);
  return success();
}

LogicalResult
cleave::spmd::decomposeIntoTwoRings(graph::AttentionGradOp op, MeshOp mesh,
                                    StringRef axis,
                                    Probabilities &probabilities) {
  return backward(op, mesh, axis, probabilities,
                  [](auto &rings, Value rows, Value ofScores) {
                    rings.backward(rows, ofScores);
                  });
}

LogicalResult
cleave::spmd::decomposeIntoTwoRings(graph::AttentionBiasGradOp op, MeshOp mesh,
                                    StringRef axis,
                                    Probabilities &probabilities) {
  return backward(
      op, mesh, axis, probabilities,
      [](auto &rings, Value, Value ofScores) { rings.biasGradient(ofScores); });
}
