//===- RaiseAttention.cpp - Attention of smaller ops ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "AttentionParts.h"
#include "Matching.h"
#include "cleave/Dialect/Graph/IR/Attributes/ChosenPrecision.h"
#include "cleave/Dialect/Graph/IR/Einsum.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/TensorType.h"
#include "cleave/Dialect/Graph/Transforms/Passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/TypeUtilities.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

namespace cleave::graph {
#define GEN_PASS_DEF_RAISEATTENTION
#include "cleave/Dialect/Graph/Transforms/Passes.h.inc"
} // namespace cleave::graph

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

//===----------------------------------------------------------------------===//
// Scores
//===----------------------------------------------------------------------===//

/// `value` without a reshape that keeps its last two dimensions.
static Value pastReshape(Value value) {
  auto reshape = value.getDefiningOp<ReshapeOp>();
  if (!reshape)
    return value;
  ArrayRef<int64_t> from = shapeOf(reshape.getInput()), to = shapeOf(value);
  if (from.size() >= 3 && to.size() >= 3 &&
      from.take_back(2) == to.take_back(2))
    return reshape.getInput();
  return value;
}

/// Whether a contraction is among the ops, up to `depth`, from which `value` is
/// computed.
static bool holdsProduct(Value value, int depth = 8) {
  Operation *op = value.getDefiningOp();
  if (isa_and_nonnull<ContractOp>(op))
    return true;
  if (depth == 0 ||
      !isa_and_nonnull<AddOp, SubOp, MulOp, DivOp, SelectOp, ReshapeOp>(op))
    return false;
  return llvm::any_of(op->getOperands(), [&](Value operand) {
    return holdsProduct(operand, depth - 1);
  });
}

namespace {

/// The operand of softmax: `factor` times the `product` of queries and keys,
/// with biases and masks.
struct Scores {
  ContractOp product;
  double factor = 1;
  SmallVector<Scaled> biases;
  SmallVector<Replacement> masks;
};

/// A softmax of scores, possibly after dropout.
struct Probabilities {
  SoftmaxOp softmax;
  DropoutOp dropout;
};

/// The letters of a contraction of probabilities [..., q, k] and values.
struct Letters {
  StringRef batch;
  char query, key, channel;
};

/// One op that may be attention.
class Root {
public:
  Root(Operation *op, KnownValues &known, BuiltCasts &casts)
      : op(op), known(known), builder(op), inherit(builder, op),
        b(builder, op->getLoc(), casts) {}

  /// The result of the contraction of probabilities and values; null if it is
  /// not attention.
  Value ofContraction();

  /// The output of an attention, with what its masks and biases say in its
  /// attributes.
  Value ofAttention();

private:
  Value contracted(Probabilities found, const Einsum &letters,
                   Value probabilities, Value values);
  std::optional<Scores> scores(Value value, ArrayRef<int64_t> shape);
  Value termOfRank4(Value term, Value scores, ArrayRef<int64_t> shape);
  bool queryAndKey(ContractOp product, ArrayRef<int64_t> heads,
                   AttentionParts &parts);
  Value toRank4(Value x, StringRef letters, const Letters &roles, char position,
                char channel, ArrayRef<int64_t> lead, ArrayRef<int64_t> heads);
  Value build(AttentionParts parts) {
    return buildAttention(b, known, std::move(parts));
  }

  Operation *op;
  KnownValues &known;
  OpBuilder builder;
  InheritPrecision inherit;
  Folding b;
};

} // namespace

/// `term`, which broadcasts to `scores`, so that it broadcasts to the rank-4
/// `shape`.
Value Root::termOfRank4(Value term, Value scores, ArrayRef<int64_t> shape) {
  ArrayRef<int64_t> own = shapeOf(term);
  if (shapeOf(scores).size() == 4 || own.size() < 3)
    return term;
  if (own[0] == 1)
    return b.reshape(term, joined({1}, own));
  return b.reshape(term, joined(shape.take_front(2), own.drop_front()));
}

/// Traces the operand of softmax back to the product of queries and keys.
std::optional<Scores> Root::scores(Value value, ArrayRef<int64_t> shape) {
  Scores found;
  while (true) {
    value = pastReshape(value);
    if (auto contract = value.getDefiningOp<ContractOp>()) {
      found.product = contract;
      return found;
    }
    if (std::optional<Scaled> step = scaledOnce(value)) {
      value = step->value;
      found.factor *= step->factor;
      continue;
    }
    if (auto select = value.getDefiningOp<SelectOp>()) {
      auto onTrue = maskingNumber(select.getOnTrue(), found.factor),
           onFalse = maskingNumber(select.getOnFalse(), found.factor);
      if (onTrue.has_value() == onFalse.has_value())
        return std::nullopt;
      bool negated = onTrue.has_value();
      found.masks.push_back({termOfRank4(select.getCondition(), value, shape),
                             negated, negated ? *onTrue : *onFalse});
      value = negated ? select.getOnFalse() : select.getOnTrue();
      continue;
    }
    if (auto sub = value.getDefiningOp<SubOp>();
        sub && holdsProduct(sub.getLhs())) {
      found.biases.push_back(
          {termOfRank4(sub.getRhs(), value, shape), -found.factor});
      value = sub.getLhs();
      continue;
    }
    bool added = false;
    for (auto [inner, term] : bothOrders<AddOp>(value))
      if (holdsProduct(inner) && shapeOf(inner) == shapeOf(value)) {
        found.biases.push_back({termOfRank4(term, value, shape), found.factor});
        value = inner;
        added = true;
        break;
      }
    if (!added)
      return std::nullopt;
  }
}

//===----------------------------------------------------------------------===//
// Queries, keys and values
//===----------------------------------------------------------------------===//

/// `x` transposed and reshaped to [batch, heads, position, channel], with one
/// head if it has no letter for heads; null if that is not possible.
Value Root::toRank4(Value x, StringRef letters, const Letters &roles,
                    char position, char channel, ArrayRef<int64_t> lead,
                    ArrayRef<int64_t> heads) {
  SmallVector<int64_t> order;
  SmallVector<bool> present;
  for (char letter : roles.batch) {
    present.push_back(letters.contains(letter));
    if (present.back())
      order.push_back(letters.find(letter));
  }
  for (char letter : {position, channel}) {
    if (!letters.contains(letter))
      return {};
    order.push_back(letters.find(letter));
  }
  if (order.size() != letters.size())
    return {};
  x = b.transpose(x, order);
  Shape last(shapeOf(x).take_back(2));
  if (llvm::all_of(present, [](bool here) { return here; }))
    return b.reshape(x, joined(heads, last));
  if (lead != heads)
    return {};
  if (present[0])
    return b.reshape(x, joined({heads[0], 1}, last));
  Shape small, wide{heads[0]};
  for (auto [i, size] : llvm::enumerate(lead)) {
    small.push_back(present[i] ? size : 1);
    if (i > 0)
      wide.push_back(small.back());
  }
  return b.broadcast(b.reshape(x, joined(small, last)), joined(wide, last));
}

/// Sets queries [b, a, q, d] and keys [b, g, k, d] of the contraction
/// `product`; returns whether it is one of them.
bool Root::queryAndKey(ContractOp product, ArrayRef<int64_t> heads,
                       AttentionParts &parts) {
  std::string error;
  auto letters = Einsum::parse(product.getEquation(), error);
  if (!letters || product.getResultElement())
    return false;
  StringRef output = letters->output, own = letters->lhs, other = letters->rhs;
  if (output.size() != 3 && output.size() != 4)
    return false;
  Letters roles{output.drop_back(2), output[output.size() - 2], output.back(),
                0};
  Value query = product.getLhs(), key = product.getRhs();
  if (other.contains(roles.query) || own.contains(roles.key)) {
    std::swap(own, other);
    std::swap(query, key);
  }
  std::string summed;
  for (char letter : own)
    if (!output.contains(letter))
      summed += letter;
  if (summed.size() != 1 || !other.contains(summed[0]) ||
      !own.contains(roles.query) || !other.contains(roles.key) ||
      other.contains(roles.query) || own.contains(roles.key))
    return false;
  ArrayRef<int64_t> lead = shapeOf(product.getOutput()).drop_back(2);
  query = toRank4(query, own, roles, roles.query, summed[0], lead, heads);
  key = toRank4(key, other, roles, roles.key, summed[0], lead, heads);
  if (!query || !key)
    return false;
  parts.query = b.broadcast(query, joined(heads, shapeOf(query).take_back(2)));
  parts.key = key;
  return true;
}

/// A softmax in `value`, possibly after dropout.
static std::optional<Probabilities> probabilitiesOf(Value value) {
  Probabilities found;
  value = pastReshape(value);
  if (auto dropout = value.getDefiningOp<DropoutOp>()) {
    found.dropout = dropout;
    value = pastReshape(dropout.getInput());
  }
  found.softmax = value.getDefiningOp<SoftmaxOp>();
  if (!found.softmax || found.softmax.getLog())
    return std::nullopt;
  return found;
}

Value Root::ofContraction() {
  auto contract = cast<ContractOp>(op);
  std::string error;
  auto letters = Einsum::parse(contract.getEquation(), error);
  if (!letters || contract.getResultElement())
    return {};
  if (auto found = probabilitiesOf(contract.getLhs()))
    return contracted(*found, *letters, contract.getLhs(), contract.getRhs());
  if (auto found = probabilitiesOf(contract.getRhs())) {
    std::swap(letters->lhs, letters->rhs);
    return contracted(*found, *letters, contract.getRhs(), contract.getLhs());
  }
  return {};
}

/// Attention for the contraction of probabilities, whose letters are on the
/// left, and values; null if it is none.
Value Root::contracted(Probabilities found, const Einsum &letters,
                       Value probabilities, Value values) {
  ArrayRef<int64_t> shape = shapeOf(found.softmax.getOutput());
  StringRef left = letters.lhs, right = letters.rhs, output = letters.output;
  if ((shape.size() != 3 && shape.size() != 4) ||
      (left.size() != 3 && left.size() != 4))
    return {};
  Letters roles{left.drop_back(2), left[left.size() - 2], left.back(), 0};
  std::string extra;
  for (char letter : right)
    if (!left.contains(letter))
      extra += letter;
  if (!right.contains(roles.key) || output.contains(roles.key) ||
      right.contains(roles.query) || extra.size() != 1)
    return {};
  std::string order = roles.batch.str() + roles.query + extra, sorted = order,
              result = output.str();
  llvm::sort(sorted);
  llvm::sort(result);
  if (sorted != result)
    return {};
  Shape heads =
      shape.size() == 4 ? Shape(shape.drop_back(2)) : Shape{shape[0], 1};
  auto found2 =
      scores(found.softmax.getInput(), joined(heads, shape.take_back(2)));
  if (!found2)
    return {};
  ArrayRef<int64_t> lead = shapeOf(probabilities).drop_back(2);
  AttentionParts parts;
  if (!queryAndKey(found2->product, heads, parts))
    return {};
  parts.value = toRank4(values, right, roles, roles.key, extra[0], lead, heads);
  if (!parts.value)
    return {};
  parts.scale = found2->factor;
  parts.biases = found2->biases;
  parts.replaced = found2->masks;
  if (found.dropout) {
    parts.rng = found.dropout.getRng();
    parts.dropout = found.dropout.getProbability().convertToDouble();
    parts.dropoutId = found.dropout.getId();
  }
  Value built = build(std::move(parts));
  if (!built)
    return {};
  // From [b, a, q, e] to the dimensions of the contraction, in its order.
  built = b.reshape(built, joined(lead, shapeOf(built).take_back(2)));
  SmallVector<int64_t> permutation;
  for (char letter : output)
    permutation.push_back(order.find(letter));
  return b.transpose(built, permutation);
}

//===----------------------------------------------------------------------===//
// Attention
//===----------------------------------------------------------------------===//

Value Root::ofAttention() {
  auto attention = cast<AttentionOp>(op);
  AttentionParts parts;
  parts.query = attention.getQuery();
  parts.key = attention.getKey();
  parts.value = attention.getValue();
  parts.scale = attention.getScale().convertToDouble();
  parts.mask = attention.getMask();
  if (Value bias = attention.getBias())
    parts.biases.push_back({bias, 1});
  parts.segments = attention.getSegments();
  parts.causal = attention.getCausal();
  parts.window = attention.getWindow();
  parts.rng = attention.getRng();
  parts.dropout = attention.getDropout().convertToDouble();
  parts.dropoutId = attention.getDropoutId();
  return build(std::move(parts));
}

/// Whether `attention` is on all of its keys at once, as a front end writes it,
/// and may be built again.
static bool isPlain(AttentionOp attention) {
  return attention.getLse().use_empty() && !attention.getOrigin() &&
         !attention.getKeySegments() && !attention.getQueryStarts() &&
         !attention.getKeyStarts() && !attention.getOnto() &&
         !attention.getGlobalShape() && attention.getBlocks() == 1 &&
         attention.getStep() == 0 && !attention.getResultElement();
}

/// Writes numbers in f64 that a cast rounds as constants of its type.
static void roundNumbers(Block &block) {
  for (CastOp op : llvm::make_early_inc_range(block.getOps<CastOp>())) {
    auto constant = op.getInput().getDefiningOp<ConstantOp>();
    RankedTensorType type = tensorTypeOf(op.getOutput());
    if (!constant || type.getRank() != 0 ||
        !isa<FloatType>(type.getElementType()))
      continue;
    std::optional<double> number = getSplatValue(op.getInput());
    if (!number || !tensorTypeOf(op.getInput()).getElementType().isF64())
      continue;
    OpBuilder builder(op);
    op.getOutput().replaceAllUsesWith(
        Formula{builder, op.getLoc()}.splat(type, *number));
  }
}

namespace {
struct RaiseAttention final
    : cleave::graph::impl::RaiseAttentionBase<RaiseAttention> {
  void runOnOperation() override {
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (!function.isExternal())
        raise(function);
  }

  static void raise(func::FuncOp function) {
    KnownValues known(function);
    BuiltCasts casts;
    Block &block = function.getBody().front();
    for (Operation &op : llvm::make_early_inc_range(block)) {
      Value built;
      if (isa<ContractOp>(op))
        built = Root(&op, known, casts).ofContraction();
      else if (auto attention = dyn_cast<AttentionOp>(op);
               attention && isPlain(attention))
        built = Root(&op, known, casts).ofAttention();
      if (built)
        op.getResult(0).replaceAllUsesWith(built);
    }
    roundNumbers(block);
    // Nothing asks for known values any more, so that ops may go.
    for (Operation &op : llvm::make_early_inc_range(llvm::reverse(block)))
      if (isOpTriviallyDead(&op))
        op.erase();
  }
};
} // namespace
