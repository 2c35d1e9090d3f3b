//===- TwoRings.cpp - Ring attention with two rings -----------------------===//
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
/// the gradients of both rotate with them, back to their own positions.
///
/// Letters of dimensions: b samples, g heads of keys, m heads of queries for
/// each, n blocks, c queries and k keys of a block, d and e features.
///
//===----------------------------------------------------------------------===//

#include "TwoRings.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
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
  void backward(Value probabilities);

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
      step(t, keyBlocks(value));
      value = next;
    }
  }

  //===--- Blocks ---------------------------------------------------------===//

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
  Value whole(Value blocks, Value like) {
    return f.reshape(blocks, tensorTypeOf(like).getShape());
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

template <>
void TwoRings<graph::AttentionOp>::forward(Probabilities &probabilities) {
  Value query = queryBlocks(op.getQuery()), segments = op.getSegments();
  SmallVector<Value> scores;
  travel(op.getKey(), "keys", [&](int64_t t, Value key) {
    Value block = product("bgmncd,bgnkd->bgmnck", query, key, t);
    block = f.mul(block, f.scalar(block, op.getScale().convertToDouble()));
    if (Value seen = visible(t, segments))
      block =
          f.select(seen, block,
                   f.scalar(block, -std::numeric_limits<double>::infinity()));
    scores.push_back(block);
    if (t + 1 < parts)
      segments = rotate(segments, 1, "documents");
  });
  Value rows = graph::SoftmaxOp::create(builder, op.getLoc(), join(scores),
                                        /*log=*/false);
  Value output;
  travel(op.getValue(), "values", [&](int64_t t, Value value) {
    output = plus(output, product("bgmnck,bgnke->bgmnce",
                                  dropout(columns(rows, t), t), value, t));
  });
  op.getOutput().replaceAllUsesWith(whole(output, op.getOutput()));
  probabilities[op.getLse()] = rows;
}

template <> void TwoRings<graph::AttentionGradOp>::backward(Value rows) {
  Value gradient = queryBlocks(op.getGradient());
  Value query = queryBlocks(op.getQuery());
  Value scale = f.scalar(gradient, op.getScale().convertToDouble());
  SmallVector<Value> steps;
  travel(again(op.getValue(), op.getGradient()), "values",
         [&](int64_t t, Value value) {
           Value block = product("bgmnce,bgnke->bgmnck", gradient, value, t);
           steps.push_back(dropout(block, t));
         });
  Value ofScores =
      graph::SoftmaxGradOp::create(builder, op.getLoc(), join(steps), rows,
                                   /*log=*/false);
  ofScores = f.mul(ofScores, scale);
  Value dQuery, dKey, dValue;
  // The block of step `t` belongs to the position `t` before; its own comes
  // last.
  auto passOn = [&](Value &sum, Value block, Value like) {
    sum = plus(rotate(sum, 2, "gradients"), whole(block, like));
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
           op.getKey());
    passOn(dValue,
           product("bgmnck,bgmnce->bgnke", dropout(columns(rows, t), t),
                   gradient, t, true),
           op.getValue());
  }
  op->replaceAllUsesWith(
      ValueRange{whole(dQuery, op.getQuery()), dKey, dValue});
}

/// Reports attention that two rings do not support.
template <typename Op> static LogicalResult check(Op op, int64_t parts) {
  if (op.getBias() || op.getMask() || op.getOrigin() || op.getBlocks() != 1 ||
      op.getQueryStarts() || op.getKeyStarts())
    return op.emitOpError("has a bias, a mask, an origin, blocks or its own "
                          "order, which ring attention does not support");
  int64_t queries = tensorTypeOf(op.getQuery()).getDimSize(2);
  int64_t keys = tensorTypeOf(op.getKey()).getDimSize(2);
  for (int64_t places : {queries, keys})
    if (places % parts != 0)
      return op.emitOpError("has a sequence of length ")
             << places << ", not divisible by the " << parts
             << " positions of the ring";
  // A softmax over no keys is NaN.
  if (op.getKeySegments() || (op.getSegments() && queries != keys) ||
      ((op.getCausal() || op.getWindow()) && keys < queries))
    return op.emitOpError("may have a query that attends to no key, which two "
                          "rings do not support: use the recipe 'context' or "
                          "'ring'");
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

LogicalResult
cleave::spmd::decomposeIntoTwoRings(graph::AttentionGradOp op, MeshOp mesh,
                                    StringRef axis,
                                    Probabilities &probabilities) {
  if (failed(check(op, mesh.getMesh().size(AxisRef{axis}))))
    return failure();
  // Other recipes may have annotated it.
  Value lse = op.getLse();
  while (auto constrain = lse.getDefiningOp<ConstrainOp>())
    lse = constrain.getInput();
  Value rows = probabilities.lookup(lse);
  if (!rows)
    return op.emitOpError("must read the log-sum-exp of an attention that is "
                          "decomposed into two rings");
  TwoRings<graph::AttentionGradOp>(op, mesh, axis).backward(rows);
  return success();
}
