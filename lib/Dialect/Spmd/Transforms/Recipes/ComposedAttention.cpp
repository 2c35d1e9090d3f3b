//===- ComposedAttention.cpp - Attention of smaller ops -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A softmax leads back to the matmul of queries and keys, and its dimension
/// to the keys. All values with both dimensions are scores, or made of them:
/// they are found through the factors of ops, forward and backward. Only the
/// contractions among these ops are annotated; propagation does the rest.
///
//===----------------------------------------------------------------------===//

#include "Sequence.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {
/// The dimensions of queries and keys of scores.
struct ScoreDims {
  unsigned query, key;
  bool operator==(const ScoreDims &) const = default;
};

/// A value and one of its dimensions.
using DimOf = std::pair<Value, unsigned>;
} // namespace

static int64_t rankOf(Value value) {
  return cast<RankedTensorType>(value.getType()).getRank();
}

static int64_t sizeOf(Value value, unsigned dim) {
  return cast<RankedTensorType>(value.getType()).getDimSize(dim);
}

/// The first factor of dimension `dim` whose size is not 1, or -1.
static int64_t factorOf(const graph::ShardingRule &rule,
                        const graph::FactorMapping &mapping, unsigned dim) {
  for (int64_t factor : mapping[dim])
    if (rule.factors[factor].size != 1)
      return factor;
  return -1;
}

/// The dimension of `mapping` with `factor`, if any.
static std::optional<unsigned> dimWith(const graph::ShardingRule &rule,
                                       const graph::FactorMapping &mapping,
                                       int64_t factor) {
  for (unsigned dim = 0; dim < mapping.size(); ++dim)
    if (factor >= 0 && factorOf(rule, mapping, dim) == factor)
      return dim;
  return std::nullopt;
}

/// Whether `op` keeps the number and the order of dimensions, though it may
/// change the size of one: sinks are scores that are appended and cut off.
static bool keepsDims(Operation *op) {
  return isa<graph::ConcatOp, graph::SliceOp, graph::PadOp>(op);
}

/// Follows dimension `dim` of `value` back to the matmul of two computed
/// values that made it, as scores are made of queries and keys.
static std::optional<DimOf> productOf(Value value, unsigned dim) {
  SmallVector<DimOf> work{{value, dim}};
  DenseSet<DimOf> seen;
  while (!work.empty()) {
    auto [next, at] = work.pop_back_val();
    Operation *op = next.getDefiningOp();
    if (!op || !seen.insert({next, at}).second)
      continue;
    if (isa<graph::ContractOp>(op)) {
      if (llvm::none_of(op->getOperands(), isGiven))
        return DimOf{next, at};
      continue;
    }
    auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(op);
    if (!ruled || isa<graph::LinearOp>(op) || isAttention(op))
      continue;
    graph::ShardingRule rule = ruled.getShardingRule();
    int64_t factor = factorOf(
        rule, rule.results[cast<OpResult>(next).getResultNumber()], at);
    for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
      if (keepsDims(op))
        work.push_back({operand, at});
      else if (auto same = dimWith(rule, rule.operands[i], factor))
        work.push_back({operand, *same});
    }
  }
  return std::nullopt;
}

/// The operand and dimension over which `op` is a softmax, or the sum of one.
static std::optional<DimOf> normalised(Operation &op) {
  if (isa<graph::SoftmaxOp>(op)) {
    Value scores = op.getOperand(0);
    if (int64_t rank = rankOf(scores))
      return DimOf{scores, static_cast<unsigned>(rank - 1)};
  }
  auto sum = dyn_cast<graph::ReduceOp>(op);
  if (sum && sum.getDims().size() == 1 &&
      sum.getInput().getDefiningOp<graph::ExpOp>())
    return DimOf{sum.getInput(), static_cast<unsigned>(sum.getDims().front())};
  return std::nullopt;
}

/// The dimension of queries of `scores`, a matmul whose dimension `key` is
/// that of keys: one that its other operand has alone. Of several, heads come
/// first and positions last, unless one is of the class of the keys.
static std::optional<unsigned> queryDim(const DimensionClasses &classes,
                                        Value scores, unsigned key) {
  Operation *op = scores.getDefiningOp();
  auto rule = cast<graph::ShardingRuleOpInterface>(op).getShardingRule();
  int64_t ofKeys = factorOf(rule, rule.results[0], key);
  std::optional<unsigned> inFirst = dimWith(rule, rule.operands[0], ofKeys),
                          inSecond = dimWith(rule, rule.operands[1], ofKeys);
  if (ofKeys < 0 || inFirst.has_value() == inSecond.has_value())
    return std::nullopt;
  unsigned keys = inFirst ? 0 : 1, queries = 1 - keys;
  unsigned keyClass =
      classes.number(op->getOperand(keys), inFirst ? *inFirst : *inSecond);
  std::optional<unsigned> found;
  for (int64_t dim = 0; dim < rankOf(scores); ++dim) {
    int64_t factor = factorOf(rule, rule.results[0], dim);
    auto own = dimWith(rule, rule.operands[queries], factor);
    if (!own || dimWith(rule, rule.operands[keys], factor))
      continue;
    found = dim;
    if (classes.number(op->getOperand(queries), *own) == keyClass)
      return found;
  }
  return found;
}

namespace {
/// Finds all values with the dimensions of queries and keys of a matmul.
class ScoreFinder {
public:
  llvm::MapVector<Value, ScoreDims> scores;

  /// Adds what is connected with `value`. Returns false if dimensions of
  /// queries are ones of keys elsewhere.
  bool add(Value value, ScoreDims dims) {
    SmallVector<Value> work;
    if (!visit(value, dims, work))
      return false;
    while (!work.empty()) {
      Value next = work.pop_back_val();
      ScoreDims at = scores.lookup(next);
      if (Operation *op = next.getDefiningOp(); op && !pass(op, next, at, work))
        return false;
      for (Operation *user : next.getUsers())
        if (!pass(user, next, at, work))
          return false;
    }
    return true;
  }

private:
  bool visit(Value value, ScoreDims dims, SmallVectorImpl<Value> &work) {
    auto [known, added] = scores.insert({value, dims});
    if (added)
      work.push_back(value);
    return known->second == dims;
  }

  /// Adds the operands and results of `op` with both dimensions of `value`.
  bool pass(Operation *op, Value value, ScoreDims dims,
            SmallVectorImpl<Value> &work) {
    auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(op);
    if (!ruled)
      return true;
    graph::ShardingRule rule = ruled.getShardingRule();
    SmallVector<std::pair<Value, const graph::FactorMapping *>> all;
    for (auto [i, operand] : llvm::enumerate(op->getOperands()))
      if (!llvm::is_contained(rule.unused, i))
        all.push_back({operand, &rule.operands[i]});
    for (auto [i, result] : llvm::enumerate(op->getResults()))
      all.push_back({result, &rule.results[i]});
    for (auto [own, mapping] : all) {
      if (own != value)
        continue;
      int64_t query = factorOf(rule, *mapping, dims.query);
      int64_t key = factorOf(rule, *mapping, dims.key);
      for (auto [other, to] : all) {
        if (keepsDims(op)) {
          if (sizeOf(other, dims.query) != 1 && sizeOf(other, dims.key) != 1 &&
              !visit(other, dims, work))
            return false;
          continue;
        }
        auto q = dimWith(rule, *to, query), k = dimWith(rule, *to, key);
        if (q && k && *q != *k && !visit(other, {*q, *k}, work))
          return false;
      }
    }
    return true;
  }
};
} // namespace

ComposedAttention::ComposedAttention(const DimensionClasses &classes,
                                     func::FuncOp function) {
  Block &body = function.getBody().front();
  ScoreFinder finder;
  SequenceClasses heads;
  for (Operation &op : body.without_terminator()) {
    auto root = normalised(op);
    auto product =
        root ? productOf(root->first, root->second) : std::optional<DimOf>();
    if (!product)
      continue;
    auto [value, key] = *product;
    auto query = queryDim(classes, value, key);
    // Similarities of samples are not attention.
    if (!query || classes.of(value, *query).samples ||
        classes.of(value, key).samples)
      continue;
    bool known = finder.scores.contains(value);
    if (!finder.add(value, {*query, key})) {
      products.clear();
      return;
    }
    if (!known)
      softmaxes.push_back(&op);
    auto rule = cast<graph::ShardingRuleOpInterface>(value.getDefiningOp())
                    .getShardingRule();
    for (int64_t dim = 0; dim < rankOf(value); ++dim) {
      int64_t factor = factorOf(rule, rule.results[0], dim);
      const DimensionClass &own = classes.of(value, dim);
      if (dimWith(rule, rule.operands[0], factor) &&
          dimWith(rule, rule.operands[1], factor) && !own.samples &&
          !own.producers.empty())
        heads.insert(classes.number(value, dim));
    }
  }
  auto hasHeads = [&](Value value) {
    for (int64_t dim = 0; dim < rankOf(value); ++dim)
      if (heads.contains(classes.number(value, dim)))
        return true;
    return false;
  };
  for (Operation &op : body.without_terminator()) {
    for (OpOperand &operand : op.getOpOperands())
      if (auto found = finder.scores.find(operand.get());
          found != finder.scores.end() && !hasHeads(operand.get()) &&
          llvm::any_of(op.getResults(), [&](Value result) {
            return finder.scores.contains(result) && hasHeads(result);
          }))
        shared.push_back(
            {&operand, {found->second.query, found->second.key, {}}});
    if (!isa<graph::ContractOp>(op))
      continue;
    auto rule = cast<graph::ShardingRuleOpInterface>(op).getShardingRule();
    int64_t query = -1, key = -1;
    auto read = [&](Value value, const graph::FactorMapping &mapping) {
      auto found = finder.scores.find(value);
      if (found == finder.scores.end())
        return;
      query = factorOf(rule, mapping, found->second.query);
      key = factorOf(rule, mapping, found->second.key);
    };
    read(op.getOperand(0), rule.operands[0]);
    read(op.getOperand(1), rule.operands[1]);
    read(op.getResult(0), rule.results[0]);
    if (query < 0 || key < 0)
      continue;
    Product &own = products[&op];
    auto dimsOf = [&](Value value, const graph::FactorMapping &mapping) {
      Dims dims{dimWith(rule, mapping, query), dimWith(rule, mapping, key), {}};
      for (int64_t dim = 0; dim < rankOf(value) && !dims.heads; ++dim)
        if (heads.contains(classes.number(value, dim)))
          dims.heads = dim;
      if (dims.query)
        positions.insert(classes.number(value, *dims.query));
      if (dims.key)
        positions.insert(classes.number(value, *dims.key));
      if (dims.heads) {
        own.headCount = sizeOf(value, *dims.heads);
        const DimensionClass &known = classes.of(value, *dims.heads);
        if (!known.arguments.empty())
          std::tie(own.weight, own.weightDim) = known.arguments.front();
      }
      return dims;
    };
    for (unsigned i = 0; i < 2; ++i)
      own.operands.push_back(dimsOf(op.getOperand(i), rule.operands[i]));
    own.result = dimsOf(op.getResult(0), rule.results[0]);
  }
}

/// Annotates dimension `dim` of `value` alone, as sharded over `axes`.
static void close(Sharding &sharding, unsigned dim, AxisList axes) {
  sharding.dims[dim] = std::move(axes);
  sharding.open[dim] = false;
}

/// Annotates `result` for all its readers; returns the annotated value.
static Value constrainResult(Annotator &annotator, Value result,
                             const Sharding &sharding) {
  OpBuilder builder(result.getContext());
  builder.setInsertionPointAfterValue(result);
  ConstrainOp constrain = annotator.constrain(builder, result, sharding);
  result.replaceAllUsesExcept(constrain, constrain);
  return constrain;
}

void ComposedAttention::splitQueries(Annotator &annotator,
                                     StringRef axis) const {
  AxisList over{AxisRef{annotator.getMesh().find(axis)->name}};
  for (const auto &[op, product] : products) {
    for (auto [i, dims] : llvm::enumerate(product.operands)) {
      OpOperand &operand = op->getOpOperand(i);
      Sharding sharding =
          Sharding::replicated(rankOf(operand.get()), /*open=*/true);
      if (dims.query)
        close(sharding, *dims.query, over);
      if (dims.key)
        close(sharding, *dims.key, {});
      OpBuilder builder(op);
      operand.set(annotator.constrain(builder, operand.get(), sharding));
    }
    // A sum over queries is added up where its keys are.
    const Dims &dims = product.result;
    Value result = op->getResult(0);
    Sharding sharding = Sharding::replicated(rankOf(result), /*open=*/true);
    if (dims.query)
      close(sharding, *dims.query, over);
    if (dims.key)
      close(sharding, *dims.key, dims.query ? AxisList() : over);
    constrainResult(annotator, result, sharding);
  }
}

LogicalResult ComposedAttention::splitHeads(Annotator &annotator,
                                            StringRef axis) const {
  AxisRef last{annotator.getMesh().find(axis)->name};
  // A mask along the sequence would shard the scores of all heads so.
  for (const auto &[operand, dims] : shared) {
    Sharding sharding =
        Sharding::replicated(rankOf(operand->get()), /*open=*/true);
    close(sharding, *dims.query, {});
    close(sharding, *dims.key, {});
    OpBuilder builder(operand->getOwner());
    operand->set(annotator.constrain(builder, operand->get(), sharding));
  }
  for (const auto &[op, product] : products) {
    AxisList over;
    if (product.weight)
      over = annotator.given(product.weight).dims[product.weightDim];
    over.push_back(last);
    int64_t parts = annotator.getMesh().size(over);
    if (product.headCount == 0)
      return op->emitOpError(
          "is one of an attention without a dimension of its heads alone, as "
          "where they are joined with samples, and ulysses shards heads: use "
          "the recipe 'context', which shards the sequence alone");
    if (product.headCount % parts != 0)
      return op->emitOpError("has ")
             << product.headCount
             << " heads in common with the scores of an attention, not "
                "divisible by the "
             << parts
             << " positions over which ulysses shards heads: use the "
                "recipe 'context', which shards the sequence alone";
    for (auto [i, dims] : llvm::enumerate(product.operands)) {
      if (!dims.heads)
        continue;
      OpOperand &operand = op->getOpOperand(i);
      Sharding sharding =
          Sharding::replicated(rankOf(operand.get()), /*open=*/true);
      close(sharding, *dims.heads, over);
      OpBuilder builder(op);
      operand.set(annotator.constrain(builder, operand.get(), sharding));
    }
    const Dims &dims = product.result;
    if (!dims.heads)
      continue;
    Value result = op->getResult(0);
    Sharding sharding = Sharding::replicated(rankOf(result), /*open=*/true);
    close(sharding, *dims.heads, over);
    result = constrainResult(annotator, result, sharding);
    if (dims.query && dims.key)
      continue;
    sharding = Sharding::replicated(rankOf(result), /*open=*/true);
    close(sharding, dims.query ? *dims.query : *dims.key, {last});
    constrainResult(annotator, result, sharding);
  }
  return success();
}

void ComposedAttention::remarkGathered(StringRef recipe, StringRef axis) const {
  for (Operation *softmax : softmaxes)
    softmax->emitRemark("the scores of this softmax are held for all keys: "
                        "recipe '")
        << recipe << "' gathers keys and values of such an attention over axis "
        << "\"" << axis << "\" instead of passing them around";
}
