//===- UnfuseAttention.cpp - Attention as products and a softmax ----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/Attributes/ChosenPrecision.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/Transforms/Passes.h"
#include <limits>

namespace cleave::graph {
#define GEN_PASS_DEF_UNFUSEATTENTION
#include "cleave/Dialect/Graph/Transforms/Passes.h.inc"
} // namespace cleave::graph

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

namespace {

/// One attention; shapes are named as in the op's description.
class Unfused {
public:
  explicit Unfused(AttentionOp op)
      : op(op), builder(op), inherit(builder, op), f{builder, op.getLoc()},
        query(tensorTypeOf(op.getQuery()).getShape()),
        key(tensorTypeOf(op.getKey()).getShape()) {}

  void run();

private:
  int64_t queries() const { return query[2]; }
  int64_t keys() const { return key[2]; }
  Value visible();
  Value dropout(Value probabilities);
  Value positions(int64_t dim, int64_t count, int64_t start);

  AttentionOp op;
  OpBuilder builder;
  InheritPrecision inherit;
  Formula f;
  ArrayRef<int64_t> query, key;
};

} // namespace

/// Positions from `start` on along dimension `dim` of [queries, keys].
Value Unfused::positions(int64_t dim, int64_t count, int64_t start) {
  int64_t shape[] = {1, 1};
  shape[dim] = count;
  return IotaOp::create(
      builder, op.getLoc(), RankedTensorType::get(shape, builder.getI64Type()),
      builder.getI64IntegerAttr(dim), builder.getI64IntegerAttr(start));
}

/// Which keys a query sees by position and document; null if all.
Value Unfused::visible() {
  Value seen;
  auto also = [&](Value condition) {
    seen =
        seen ? AndOp::create(builder, op.getLoc(), seen, condition).getResult()
             : condition;
  };
  int64_t shift = keys() - queries();
  Value column = positions(1, keys(), 0);
  if (op.getCausal())
    also(f.compare(Predicate::le, column, positions(0, queries(), shift)));
  if (op.getWindow())
    also(f.compare(Predicate::gt, column,
                   positions(0, queries(), shift - *op.getWindow())));
  if (Value segments = op.getSegments()) {
    Value others = op.getKeySegments() ? op.getKeySegments() : segments;
    also(f.compare(Predicate::eq,
                   f.reshape(segments, {query[0], 1, queries(), 1}),
                   f.reshape(others, {query[0], 1, 1, keys()})));
  }
  return seen;
}

/// Draws the numbers that the op draws: its rows have a multiple of 64 keys.
Value Unfused::dropout(Value probabilities) {
  if (op.getDropout().isZero())
    return probabilities;
  int64_t row = llvm::alignTo(keys(), 64);
  SmallVector<int64_t> shape{query[0], query[1], queries(), keys()};
  if (row == keys())
    return DropoutOp::create(builder, op.getLoc(), probabilities, op.getRng(),
                             Value(), Value(), op.getDropoutAttr(),
                             op.getDropoutIdAttr(), DenseI64ArrayAttr(),
                             IntegerAttr());
  int64_t high[] = {0, 0, 0, row - keys()}, none[] = {0, 0, 0, 0};
  Value padded = PadOp::create(
      builder, op.getLoc(), probabilities, builder.getF64FloatAttr(0),
      builder.getDenseI64ArrayAttr(none), builder.getDenseI64ArrayAttr(high),
      builder.getDenseI64ArrayAttr(none));
  Value dropped =
      DropoutOp::create(builder, op.getLoc(), padded, op.getRng(), Value(),
                        Value(), op.getDropoutAttr(), op.getDropoutIdAttr(),
                        DenseI64ArrayAttr(), IntegerAttr());
  int64_t ones[] = {1, 1, 1, 1};
  return SliceOp::create(
      builder, op.getLoc(), dropped, builder.getDenseI64ArrayAttr(none),
      builder.getDenseI64ArrayAttr(shape), builder.getDenseI64ArrayAttr(ones));
}

void Unfused::run() {
  int64_t groups = key[1], heads = query[1], each = heads / groups;
  bool grouped = groups != heads;
  SmallVector<int64_t> scores{query[0], heads, queries(), keys()};
  Value q = op.getQuery(), k = op.getKey(), v = op.getValue();
  if (grouped)
    q = f.reshape(q, {query[0], groups, each, queries(), query[3]});
  Value s = f.contract(grouped ? "bgmqd,bgkd->bgmqk" : "baqd,bakd->baqk", q, k);
  s = f.mul(s, f.scalar(s, op.getScale().convertToDouble()));
  if (grouped)
    s = f.reshape(s, scores);
  if (Value bias = op.getBias())
    s = f.add(s, f.cast(bias, tensorTypeOf(s).getElementType()));
  Value hidden = f.scalar(s, -std::numeric_limits<double>::infinity());
  Value seen = visible();
  if (seen)
    s = f.select(seen, s, hidden);
  if (Value mask = op.getMask())
    s = f.select(mask, s, hidden);
  Value p = SoftmaxOp::create(builder, op.getLoc(), s, /*log=*/false);
  // A query that sees no key gives 0.
  bool plain = !op.getMask() && !op.getSegments() && !op.getWindow() &&
               !op.getBias() && (!op.getCausal() || keys() >= queries());
  if (!plain)
    p = f.select(f.compare(Predicate::ne, s, hidden), p, f.scalar(p, 0.0));
  p = dropout(p);
  if (grouped)
    p = f.reshape(p, {query[0], groups, each, queries(), keys()});
  Value o = f.contract(grouped ? "bgmqk,bgke->bgmqe" : "baqk,bake->baqe", p, v);
  o = f.reshape(o, tensorTypeOf(op.getOutput()).getShape());
  op.getOutput().replaceAllUsesWith(o);
  op.erase();
}

namespace {
struct UnfuseAttention final
    : cleave::graph::impl::UnfuseAttentionBase<UnfuseAttention> {
  void runOnOperation() override {
    SmallVector<AttentionOp> all;
    getOperation().walk([&](AttentionOp op) { all.push_back(op); });
    for (AttentionOp op : all) {
      if (!op.getLse().use_empty() || op.getOrigin() || op.getOnto() ||
          op.getQueryStarts() || op.getKeyStarts() || op.getBlocks() != 1) {
        op.emitOpError("is a part of an attention already and stays one op");
        return signalPassFailure();
      }
      Unfused(op).run();
    }
  }
};
} // namespace
