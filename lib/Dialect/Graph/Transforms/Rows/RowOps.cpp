//===- RowOps.cpp - Ops that compute each row alone -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "RowOps.h"
#include "cleave/Dialect/Graph/IR/DependsOnIndex.h"

using namespace mlir;
using namespace cleave::graph;

std::optional<int64_t> cleave::graph::rowRank(ArrayRef<int64_t> shape,
                                              int64_t rows) {
  int64_t product = 1;
  for (auto [i, size] : llvm::enumerate(shape)) {
    product *= size;
    if (product == rows)
      return static_cast<int64_t>(i) + 1;
  }
  return std::nullopt;
}

/// The factors of the first `rank` dimensions, one each; of one element: -1.
static std::optional<SmallVector<int64_t>>
rowFactors(const FactorMapping &mapping, ArrayRef<int64_t> shape,
           int64_t rank) {
  SmallVector<int64_t> factors;
  for (int64_t dim = 0; dim < rank; ++dim) {
    if (shape[dim] == 1 && mapping[dim].empty())
      factors.push_back(-1);
    else if (mapping[dim].size() == 1)
      factors.push_back(mapping[dim].front());
    else
      return std::nullopt;
  }
  return factors;
}

/// How a tensor of `mapping` has rows along `factors`; nothing where it has
/// them in other dimensions.
static std::optional<RowUse> useOf(const FactorMapping &mapping,
                                   ArrayRef<int64_t> factors) {
  auto isOfRows = [&](int64_t factor) {
    return llvm::is_contained(factors, factor);
  };
  int64_t rank = factors.size(), dims = mapping.size(), found = 0;
  for (ArrayRef<int64_t> dim : mapping)
    found += llvm::any_of(dim, isOfRows);
  if (found == 0)
    return RowUse::Other;
  int64_t matching = 0, wanted = 0;
  for (int64_t i = 0; i < rank; ++i) {
    wanted += factors[i] >= 0;
    matching += factors[i] >= 0 && i < dims && mapping[i].size() == 1 &&
                mapping[i].front() == factors[i];
  }
  if (dims >= rank && matching == wanted && found == wanted)
    return RowUse::Rows;
  return std::nullopt;
}

/// Whether no result depends on which row it is.
static bool isPlain(Operation *op, const ShardingRule &rule,
                    ArrayRef<int64_t> factors, FactorKind kind) {
  if (isa<RandomOpInterface, PlacedOpInterface>(op) || rule.shift.factor >= 0)
    return false;
  return llvm::all_of(factors, [&](int64_t factor) {
    return factor < 0 ||
           (rule.factors[factor].kind == kind && !dependsOnIndex(op, factor));
  });
}

/// Whether `op` is none that keeps or reduces rows cheaply.
static bool isDear(Operation *op) {
  auto cost = dyn_cast<CostOpInterface>(op);
  if (!cost || op->getNumResults() == 0 || op->getNumOperands() == 0 ||
      op->getNumRegions() != 0 || !isMemoryEffectFree(op))
    return true;
  WorkClass work = cost.getCost().work;
  return work == WorkClass::Contraction || work == WorkClass::Attention;
}

std::optional<RowOp> RowOp::of(Operation *op, int64_t rows) {
  auto ruled = dyn_cast<ShardingRuleOpInterface>(op);
  if (!ruled || isDear(op))
    return std::nullopt;
  RowOp own;
  auto shapeOf = [](Value value) {
    return cast<RankedTensorType>(value.getType()).getShape();
  };
  std::optional<int64_t> rank = rowRank(shapeOf(op->getResult(0)), rows);
  if (!rank)
    return std::nullopt;
  own.rank = *rank;
  if (auto reshape = dyn_cast<ReshapeOp>(op)) {
    if (!rowRank(shapeOf(reshape.getInput()), rows))
      return std::nullopt;
    own.reshapes = true;
    own.operands = {RowUse::Rows};
    return own;
  }
  ShardingRule rule = ruled.getShardingRule();
  std::optional<SmallVector<int64_t>> factors =
      rowFactors(rule.results[0], shapeOf(op->getResult(0)), own.rank);
  if (!factors || !isPlain(op, rule, *factors, FactorKind::Parallel))
    return std::nullopt;
  for (const FactorMapping &result : rule.results)
    if (useOf(result, *factors) != RowUse::Rows)
      return std::nullopt;
  for (const FactorMapping &operand : rule.operands) {
    std::optional<RowUse> use = useOf(operand, *factors);
    // Only element-wise ops broadcast.
    if (!use && !op->hasTrait<OpTrait::PointwiseOp>())
      return std::nullopt;
    own.operands.push_back(use.value_or(RowUse::Repeated));
  }
  return own;
}

std::optional<RowOp> RowOp::reducing(Operation *op, unsigned index,
                                     int64_t rows) {
  auto ruled = dyn_cast<ShardingRuleOpInterface>(op);
  auto shape =
      cast<RankedTensorType>(op->getOperand(index).getType()).getShape();
  std::optional<int64_t> rank = rowRank(shape, rows);
  if (!ruled || !rank || isDear(op))
    return std::nullopt;
  ShardingRule rule = ruled.getShardingRule();
  std::optional<SmallVector<int64_t>> factors =
      rowFactors(rule.operands[index], shape, *rank);
  if (!factors || !isPlain(op, rule, *factors, FactorKind::Reduction))
    return std::nullopt;
  RowOp own;
  own.rank = *rank;
  for (const FactorMapping &result : rule.results)
    if (useOf(result, *factors) != RowUse::Other)
      return std::nullopt;
  for (const FactorMapping &operand : rule.operands) {
    std::optional<RowUse> use = useOf(operand, *factors);
    if (!use)
      return std::nullopt;
    own.operands.push_back(*use);
  }
  return own;
}

SmallVector<int64_t> cleave::graph::shapeOnRows(ArrayRef<int64_t> shape,
                                                int64_t rank, int64_t rows) {
  SmallVector<int64_t> result(rank, 1);
  result.back() = rows;
  llvm::append_range(result, shape.drop_front(rank));
  return result;
}

Operation *cleave::graph::firstUser(Value value,
                                    function_ref<bool(Operation *)> isLeftOut) {
  Operation *first = nullptr;
  for (Operation *user : value.getUsers()) {
    user = value.getParentBlock()->findAncestorOpInBlock(*user);
    if (!isLeftOut(user) && (!first || user->isBeforeInBlock(first)))
      first = user;
  }
  return first;
}

Operation *cleave::graph::buildOnRows(Operation *op, OpBuilder &builder,
                                      ValueRange operands, TypeRange types) {
  Operation *built;
  if (auto local = dyn_cast<PartitionableOpInterface>(op)) {
    built = local.buildLocal(
        builder, operands, types,
        [](RankedTensorType, const FactorMapping &) { return Value(); });
  } else {
    built = builder.clone(*op);
    built->setOperands(operands);
    for (auto [result, type] : llvm::zip(built->getResults(), types))
      result.setType(type);
  }
  // Attributes of other dialects are of its former types.
  if (op->getResultTypes() != types)
    for (NamedAttribute attribute :
         llvm::to_vector(built->getDiscardableAttrs()))
      if (attribute.getNameDialect() != op->getDialect())
        built->removeDiscardableAttr(attribute.getName());
  return built;
}
