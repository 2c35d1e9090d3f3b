//===- JoinBias.cpp - Biases of products that no device sums --------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/Einsum.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace cleave::spmd {
#define GEN_PASS_DEF_JOINBIAS
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"
} // namespace cleave::spmd

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

/// Gives `to` the place of `from`, which has the same shape.
static void placeAs(Operation *to, Operation *from) {
  if (ShardingAttr sharding = writtenShardingAttr(from->getResult(0)))
    annotate(
        to, sharding,
        writtenGlobalType(from->getResult(0))
            .clone(graph::tensorTypeOf(to->getResult(0)).getElementType()));
}

namespace {

/// A vector that is added to all rows of a product.
struct Bias {
  Value vector;
  /// The sum, in the type of the product.
  Operation *sum;
};

} // namespace

/// The bias that is added to `product`, in its type or, with `wide`, in a wider
/// one to which the product is cast before the sum and from which it is cast
/// behind it.
static std::optional<Bias> readBias(Operation *product, bool wide) {
  Value value = product->getResult(0);
  if (!value.hasOneUse())
    return std::nullopt;
  Operation *user = *value.user_begin();
  bool isWide = isa<graph::CastOp>(user);
  if (isWide) {
    if (!wide || !user->hasOneUse())
      return std::nullopt;
    value = user->getResult(0);
    user = *value.user_begin();
  }
  auto sum = dyn_cast<graph::AddOp>(user);
  if (!sum || sum.getType() != value.getType() || sum.getLhs() == sum.getRhs())
    return std::nullopt;
  Bias bias{sum.getLhs() == value ? sum.getRhs() : sum.getLhs(), sum};
  if (isWide) {
    if (!sum->hasOneUse())
      return std::nullopt;
    bias.sum = *sum->user_begin();
    if (!isa<graph::CastOp>(bias.sum) ||
        bias.sum->getResult(0).getType() != product->getResult(0).getType())
      return std::nullopt;
  }
  return bias;
}

/// Whether devices hold different terms of `value`.
static bool isPartial(Value value) {
  std::optional<Sharding> sharding = writtenSharding(value);
  return sharding && !sharding->partial.empty();
}

/// Whether the bias is there where the product is.
static bool dominates(Value vector, Operation *product) {
  Operation *from = vector.getDefiningOp();
  return !from || from->isBeforeInBlock(product);
}

static void joinLinear(graph::LinearOp product) {
  std::optional<Bias> bias = readBias(product, /*wide=*/false);
  if (!bias || product.getBias() || isPartial(product.getOutput()))
    return;
  RankedTensorType vector = graph::tensorTypeOf(bias->vector);
  if (vector.getRank() != 1 ||
      vector.getDimSize(0) != product.getType().getShape().back() ||
      vector.getElementType() != product.getType().getElementType() ||
      !dominates(bias->vector, product))
    return;
  product.getBiasMutable().assign(bias->vector);
  bias->sum->getResult(0).replaceAllUsesWith(product.getOutput());
  bias->sum->erase();
}

//===----------------------------------------------------------------------===//
// Products whose columns are several dimensions
//===----------------------------------------------------------------------===//

namespace {

/// Rewrites `kept summed, columns summed -> kept columns` with a bias of the
/// columns as a linear.
class HeadsToLinear {
public:
  explicit HeadsToLinear(graph::ContractOp product)
      : product(product), builder(product) {}

  void run();

private:
  Value reshape(Value value, int64_t first, int64_t count);

  graph::ContractOp product;
  OpBuilder builder;
};

} // namespace

/// `value` with `count` dimensions from `first` on as one. Null if another than
/// the first of them is sharded.
Value HeadsToLinear::reshape(Value value, int64_t first, int64_t count) {
  if (count == 1)
    return value;
  RankedTensorType type = graph::tensorTypeOf(value);
  RankedTensorType global = writtenGlobalType(value);
  std::optional<Sharding> sharding = writtenSharding(value);
  SmallVector<int64_t> shape(type.getShape()),
      whole(global ? global.getShape() : type.getShape());
  for (int64_t i = first + 1; i < first + count; ++i) {
    if (sharding && !sharding->dims[i].empty())
      return nullptr;
    shape[first] *= shape[i];
    whole[first] *= whole[i];
  }
  auto drop = [&](auto &list) {
    list.erase(list.begin() + first + 1, list.begin() + first + count);
  };
  drop(shape), drop(whole);
  Value result = graph::ReshapeOp::create(
      builder, value.getLoc(),
      RankedTensorType::get(shape, type.getElementType()), value);
  if (sharding && global) {
    drop(sharding->dims);
    if (!sharding->open.empty())
      drop(sharding->open);
    annotate(result.getDefiningOp(),
             ShardingAttr::get(
                 writtenShardingAttr(product.getOutput()).getMesh(), *sharding),
             RankedTensorType::get(whole, type.getElementType()));
  }
  return result;
}

void HeadsToLinear::run() {
  std::optional<Bias> bias = readBias(product, /*wide=*/true);
  std::string error;
  auto equation = graph::Einsum::parse(product.getEquation(), error);
  if (!bias || !equation || !writtenShardingAttr(product.getOutput()) ||
      isPartial(product.getOutput()) || !dominates(bias->vector, product))
    return;
  // The columns are what the weight has before what is summed.
  size_t columns = 0;
  while (columns < equation->rhs.size() &&
         equation->output.find(equation->rhs[columns]) != std::string::npos)
    ++columns;
  std::string names = equation->rhs.substr(0, columns),
              summed = equation->rhs.substr(columns);
  size_t kept = equation->lhs.size() - summed.size();
  if (columns < 2 || summed.empty() || equation->lhs.size() <= summed.size() ||
      equation->lhs.substr(kept) != summed ||
      equation->output != equation->lhs.substr(0, kept) + names)
    return;
  RankedTensorType vector = graph::tensorTypeOf(bias->vector),
                   type = product.getType();
  if (vector.getShape() != type.getShape().take_back(columns))
    return;

  Value lhs = reshape(product.getLhs(), kept, summed.size());
  Value rhs = reshape(product.getRhs(), columns, summed.size());
  rhs = rhs ? reshape(rhs, 0, columns) : Value();
  Value own = bias->vector;
  if (vector.getElementType() != type.getElementType()) {
    // Where a product of one device would round its bias.
    auto narrow = graph::CastOp::create(
        builder, own.getLoc(), vector.clone(type.getElementType()), own);
    std::optional<Sharding> sharding = writtenSharding(own);
    if (!sharding)
      return narrow.erase();
    annotate(narrow,
             ShardingAttr::get(
                 writtenShardingAttr(product.getOutput()).getMesh(), *sharding),
             writtenGlobalType(own).clone(type.getElementType()));
    own = narrow;
  }
  own = reshape(own, 0, columns);
  if (!lhs || !rhs || !own)
    return;
  auto linear = graph::LinearOp::create(builder, product.getLoc(), lhs, rhs,
                                        own, product.getResultElementAttr());
  auto result = graph::ReshapeOp::create(builder, product.getLoc(), type,
                                         linear.getOutput());
  placeAs(result, product);
  // As the result has its columns as one dimension.
  std::optional<Sharding> sharding = writtenSharding(product.getOutput());
  RankedTensorType global = writtenGlobalType(product.getOutput());
  SmallVector<int64_t> whole(global.getShape());
  for (size_t i = kept + 1; i < kept + columns; ++i)
    whole[kept] *= whole[i];
  whole.truncate(kept + 1);
  sharding->dims.truncate(kept + 1);
  if (!sharding->open.empty())
    sharding->open.truncate(kept + 1);
  annotate(linear,
           ShardingAttr::get(writtenShardingAttr(product.getOutput()).getMesh(),
                             *sharding),
           RankedTensorType::get(whole, type.getElementType()));
  bias->sum->getResult(0).replaceAllUsesWith(result.getOutput());
}

namespace {

struct JoinBiasPass : cleave::spmd::impl::JoinBiasBase<JoinBiasPass> {
  using JoinBiasBase::JoinBiasBase;

  void runOnOperation() override {
    for (auto function : getOperation().getOps<func::FuncOp>()) {
      if (function.isExternal())
        continue;
      Block &body = function.getBody().front();
      for (auto product : llvm::to_vector(body.getOps<graph::LinearOp>()))
        joinLinear(product);
      if (!heads)
        continue;
      llvm::DenseSet<Operation *> unread;
      SmallVector<graph::ContractOp> products;
      for (Operation &op : body) {
        if (isOpTriviallyDead(&op))
          unread.insert(&op);
        if (auto product = dyn_cast<graph::ContractOp>(op))
          products.push_back(product);
      }
      for (graph::ContractOp product : products)
        HeadsToLinear(product).run();
      for (Operation &op : llvm::make_early_inc_range(llvm::reverse(body)))
        if (isOpTriviallyDead(&op) && !unread.contains(&op))
          op.erase();
    }
  }
};

} // namespace
