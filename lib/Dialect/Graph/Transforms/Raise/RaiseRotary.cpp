//===- RaiseRotary.cpp - Rotary embeddings of smaller ops -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Matching.h"
#include "cleave/Dialect/Graph/IR/Attributes/ChosenPrecision.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/TensorType.h"
#include "cleave/Dialect/Graph/Transforms/Passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/TypeUtilities.h"

namespace cleave::graph {
#define GEN_PASS_DEF_RAISEROTARY
#include "cleave/Dialect/Graph/Transforms/Passes.h.inc"
} // namespace cleave::graph

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

namespace {

/// The first or second half of the last dimension of `source`, or, if
/// `interleaved`, the first or second element of each pair.
struct Half {
  Value source;
  bool second = false;
  bool interleaved = false;

  bool operator==(const Half &other) const {
    return source == other.source && second == other.second &&
           interleaved == other.interleaved;
  }
};

} // namespace

static ArrayRef<int64_t> shapeOf(Value value) {
  return tensorTypeOf(value).getShape();
}

/// `shape` with another last dimension.
static SmallVector<int64_t> withLast(ArrayRef<int64_t> shape, int64_t last) {
  SmallVector<int64_t> result(shape);
  result.back() = last;
  return result;
}

/// `shape` with one more dimension at the end.
static SmallVector<int64_t> appended(ArrayRef<int64_t> shape, int64_t last) {
  SmallVector<int64_t> result(shape);
  result.push_back(last);
  return result;
}

/// Whether a tensor of shape `from` broadcasts to `to`.
static bool broadcastsTo(ArrayRef<int64_t> from, ArrayRef<int64_t> to) {
  if (from.size() > to.size())
    return false;
  return llvm::all_of(
      llvm::zip(from, to.take_back(from.size())), [](auto pair) {
        return std::get<0>(pair) == 1 || std::get<0>(pair) == std::get<1>(pair);
      });
}

/// The half of a tensor that `value` is.
static std::optional<Half> halfOf(Value value) {
  ArrayRef<int64_t> shape = shapeOf(value);
  if (shape.empty())
    return std::nullopt;
  int64_t size = shape.back();
  if (auto reshape = value.getDefiningOp<ReshapeOp>()) {
    // One column of [..., d / 2, 2].
    auto part = reshape.getInput().getDefiningOp<SliceOp>();
    auto split =
        part ? part.getInput().getDefiningOp<ReshapeOp>() : ReshapeOp();
    if (!split || shapeOf(part.getOutput()) != ArrayRef(appended(shape, 1)) ||
        shapeOf(split.getOutput()) != ArrayRef(appended(shape, 2)) ||
        shapeOf(split.getInput()) != ArrayRef(withLast(shape, 2 * size)))
      return std::nullopt;
    return Half{split.getInput(), part.getOffsets().back() == 1, true};
  }
  auto slice = value.getDefiningOp<SliceOp>();
  if (!slice ||
      shapeOf(slice.getInput()) != ArrayRef(withLast(shape, 2 * size)))
    return std::nullopt;
  int64_t offset = slice.getOffsets().back();
  int64_t stride = slice.getStrides().back();
  if (stride == 1 && (offset == 0 || offset == size))
    return Half{slice.getInput(), offset == size, false};
  if (stride == 2 && (offset == 0 || offset == 1))
    return Half{slice.getInput(), offset == 1, true};
  return std::nullopt;
}

/// The two tensors that `value` is concatenated from, or interleaved from if it
/// is a reshape, along the last dimension.
static std::optional<std::pair<Value, Value>> halvesOf(Value value) {
  auto reshape = value.getDefiningOp<ReshapeOp>();
  Value joined = reshape ? reshape.getInput() : value;
  auto concat = joined.getDefiningOp<ConcatOp>();
  if (!concat || concat.getInputs().size() != 2 ||
      static_cast<int64_t>(concat.getDim()) !=
          tensorTypeOf(joined).getRank() - 1)
    return std::nullopt;
  Value a = concat.getInputs()[0], b = concat.getInputs()[1];
  if (!reshape) {
    if (shapeOf(a) != shapeOf(b))
      return std::nullopt;
    return std::pair(a, b);
  }
  ArrayRef<int64_t> shape = shapeOf(value);
  auto first = a.getDefiningOp<ReshapeOp>(),
       second = b.getDefiningOp<ReshapeOp>();
  if (shape.empty() || !first || !second)
    return std::nullopt;
  SmallVector<int64_t> half = withLast(shape, shape.back() / 2);
  if (shapeOf(joined) != ArrayRef(appended(half, 2)) ||
      shapeOf(first.getInput()) != ArrayRef(half) ||
      shapeOf(second.getInput()) != ArrayRef(half))
    return std::nullopt;
  return std::pair(first.getInput(), second.getInput());
}

/// Whether `rotated` is rotate(x), and then whether it rotates pairs.
static std::optional<bool> rotationOf(Value rotated, Value x) {
  auto halves = halvesOf(rotated);
  auto neg = halves ? halves->first.getDefiningOp<NegOp>() : NegOp();
  if (!neg)
    return std::nullopt;
  std::optional<Half> second = halfOf(neg.getInput());
  std::optional<Half> first = halfOf(halves->second);
  if (!first || !second || first->source != x || first->second ||
      *second != Half{x, true, first->interleaved})
    return std::nullopt;
  bool pairs = !rotated.getDefiningOp<ConcatOp>();
  if (first->interleaved != pairs)
    return std::nullopt;
  return pairs;
}

static bool isProduct(Value value, Value a, Value b) {
  return llvm::is_contained(bothOrders<MulOp>(value), std::pair(a, b));
}

namespace {

/// The rotary embeddings of one function.
class Rotary {
public:
  explicit Rotary(func::FuncOp function);

  /// Replaces the result of `root` if it is the last op of a rotary embedding;
  /// returns whether it is.
  bool raise(Operation *root);

private:
  bool isTable(Value table, Value x) const;
  Value rotated(OpBuilder &builder, Operation *root);
  Value joinedHalves(OpBuilder &builder, Operation *root);
  Value doubled(OpBuilder &builder, Location loc, Value table,
                bool interleaved);
  bool dependsOnTrained(Operation *op) const {
    return llvm::any_of(op->getOperands(),
                        [&](Value v) { return trained.contains(v); });
  }

  /// Floats that depend on a trained parameter.
  DenseSet<Value> trained;
  /// Tables for both halves, by tables for one: of halves, and of pairs.
  DenseMap<Value, Value> doubles[2];
};

} // namespace

Rotary::Rotary(func::FuncOp function) {
  for (BlockArgument argument : function.getArguments())
    if (isTrained(function, argument.getArgNumber()))
      trained.insert(argument);
  for (Operation &op : function.getBody().front())
    if (dependsOnTrained(&op))
      for (Value result : op.getResults())
        if (isa<FloatType>(getElementTypeOrSelf(result)))
          trained.insert(result);
}

/// Whether `table` can be an operand of rope: it has no gradient and broadcasts
/// to `x`.
bool Rotary::isTable(Value table, Value x) const {
  RankedTensorType from = tensorTypeOf(table), to = tensorTypeOf(x);
  return !trained.contains(table) && to.getRank() == 4 &&
         from.getElementType() == to.getElementType() &&
         broadcastsTo(from.getShape(), to.getShape());
}

/// x * cos + rotate(x) * sin.
Value Rotary::rotated(OpBuilder &builder, Operation *root) {
  for (auto [plain, turned] : bothOrders<AddOp>(root->getResult(0)))
    for (auto [x, cos] : bothOrders<MulOp>(plain))
      for (auto [rotated, sin] : bothOrders<MulOp>(turned)) {
        std::optional<bool> interleaved = rotationOf(rotated, x);
        if (interleaved && isTable(cos, x) && isTable(sin, x))
          return RopeOp::create(builder, root->getLoc(), x, cos, sin,
                                *interleaved, /*adjoint=*/false);
      }
  return {};
}

/// [x1 cos - x2 sin, x2 cos + x1 sin], whose tables have half the size.
Value Rotary::joinedHalves(OpBuilder &builder, Operation *root) {
  auto halves = halvesOf(root->getResult(0));
  auto sub = halves ? halves->first.getDefiningOp<SubOp>() : SubOp();
  if (!sub)
    return {};
  auto isHalfTable = [&](Value table, Value x1) {
    return isTable(table, x1) && !shapeOf(table).empty() &&
           shapeOf(table).back() == shapeOf(x1).back();
  };
  for (auto [x1, cos] : bothOrders<MulOp>(sub.getLhs())) {
    std::optional<Half> first = halfOf(x1);
    if (!first || first->second || first->interleaved != isa<ReshapeOp>(root))
      continue;
    for (auto [x2, sin] : bothOrders<MulOp>(sub.getRhs())) {
      if (halfOf(x2) != Half{first->source, true, first->interleaved} ||
          !isHalfTable(cos, x1) || !isHalfTable(sin, x1))
        continue;
      for (auto [left, right] : bothOrders<AddOp>(halves->second))
        if (isProduct(left, x2, cos) && isProduct(right, x1, sin)) {
          Value tables[] = {
              doubled(builder, root->getLoc(), cos, first->interleaved),
              doubled(builder, root->getLoc(), sin, first->interleaved)};
          return RopeOp::create(builder, root->getLoc(), first->source,
                                tables[0], tables[1], first->interleaved,
                                /*adjoint=*/false);
        }
    }
  }
  return {};
}

/// Repeats a table of half the size for both halves, or for both elements of
/// each pair.
Value Rotary::doubled(OpBuilder &builder, Location loc, Value table,
                      bool interleaved) {
  Value &known = doubles[interleaved][table];
  if (known)
    return known;
  ArrayRef<int64_t> shape = shapeOf(table);
  if (!interleaved)
    return known = ConcatOp::create(builder, loc, ValueRange{table, table},
                                    shape.size() - 1);
  Formula f{builder, loc};
  Value source = table;
  while (auto reshape = source.getDefiningOp<ReshapeOp>())
    source = reshape.getInput();
  Value pairs =
      f.broadcast(f.reshape(source, appended(shape, 1)), appended(shape, 2));
  return known = f.reshape(pairs, withLast(shape, 2 * shape.back()));
}

bool Rotary::raise(Operation *root) {
  if (!isa<FloatType>(getElementTypeOrSelf(root->getResult(0))))
    return false;
  OpBuilder builder(root);
  InheritPrecision inherit(builder, root);
  Value rope =
      isa<AddOp>(root) ? rotated(builder, root) : joinedHalves(builder, root);
  if (!rope)
    return false;
  if (trained.contains(root->getResult(0)))
    trained.insert(rope);
  root->getResult(0).replaceAllUsesWith(rope);
  return true;
}

namespace {
struct RaiseRotary final : cleave::graph::impl::RaiseRotaryBase<RaiseRotary> {
  void runOnOperation() override {
    SmallVector<Operation *> replaced;
    for (auto function : getOperation().getOps<func::FuncOp>()) {
      if (function.isExternal())
        continue;
      Rotary rotary(function);
      for (Operation &op : function.getBody().front())
        if (isa<AddOp, ConcatOp, ReshapeOp>(op) && rotary.raise(&op))
          replaced.push_back(&op);
    }
    eraseUnread(replaced);
  }
};
} // namespace
