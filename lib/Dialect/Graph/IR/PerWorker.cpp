//===- PerWorker.cpp - Ops for the samples of each worker -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// What `graph.per_worker` is follows from the op that a worker computes: its
/// verifier, its sharding rule, its cost and its form on a shard are asked of
/// that op, which is built on the slices of one worker and thrown away.
///
//===----------------------------------------------------------------------===//

#include "Costs/CostBuilder.h"
#include "Gradients/Gradients.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/IndexUse.h"
#include "mlir/IR/Verifier.h"

using namespace mlir;
using namespace cleave::graph;

CLEAVE_NO_GRADIENT(PerWorkerOp)

RankedTensorType PerWorkerOp::sliceType(Type type, int64_t dim) {
  auto tensor = cast<RankedTensorType>(type);
  if (dim < 0)
    return tensor;
  SmallVector<int64_t> shape(tensor.getShape());
  if (dim > 0) {
    shape[dim - 1] *= shape[dim + 1];
    shape.erase(shape.begin() + dim + 1);
  }
  shape.erase(shape.begin() + dim);
  return RankedTensorType::get(shape, tensor.getElementType());
}

int64_t PerWorkerOp::getWorkers() {
  return cast<RankedTensorType>(getResult(0).getType())
      .getDimSize(getResultDims()[0]);
}

Operation *PerWorkerOp::createInner(OpBuilder &builder, ValueRange operands) {
  std::optional<RegisteredOperationName> name =
      RegisteredOperationName::lookup(getCallee(), getContext());
  if (!name)
    return nullptr;
  OperationState state(getLoc(), *name);
  state.addOperands(operands);
  for (auto [type, dim] : llvm::zip(getResultTypes(), getResultDims()))
    state.addTypes(sliceType(type, dim));
  state.addAttributes(getWith().getValue());
  return builder.create(state);
}

namespace {

/// The op of one worker, on values of its own.
class InnerOp {
public:
  explicit InnerOp(PerWorkerOp op) : builder(op.getContext()) {
    builder.setInsertionPointToEnd(&scratch);
    for (auto [operand, dim] : llvm::zip(op.getInputs(), op.getWorkerDims()))
      scratch.addArgument(PerWorkerOp::sliceType(operand.getType(), dim),
                          op.getLoc());
    inner = op.createInner(builder, scratch.getArguments());
  }
  Operation *operator->() { return inner; }
  Operation *get() { return inner; }

  Block scratch;
  OpBuilder builder;

private:
  Operation *inner = nullptr;
};

/// Whether `dim` can be the dimension of the workers of a tensor of `rank`.
bool isWorkerDim(int64_t dim, int64_t rank) {
  return dim == 0 ? rank > 0 : dim > 0 && dim + 1 < rank;
}

} // namespace

LogicalResult PerWorkerOp::verify() {
  if (getWorkerDims().size() != getInputs().size() ||
      getResultDims().size() != getNumResults() || getNumResults() == 0)
    return emitOpError("needs an entry of worker_dims for each operand, and of "
                       "result_dims for each of its results");
  std::optional<int64_t> workers;
  auto check = [&](Type type, int64_t dim, StringRef what) -> LogicalResult {
    auto tensor = cast<RankedTensorType>(type);
    if (!isWorkerDim(dim, tensor.getRank()))
      return emitOpError() << what << " of type " << tensor
                           << " cannot have the workers in dimension " << dim;
    if (workers && *workers != tensor.getDimSize(dim))
      return emitOpError() << what << " of type " << tensor << " has "
                           << tensor.getDimSize(dim) << " workers, not "
                           << *workers << " as the others";
    workers = tensor.getDimSize(dim);
    return success();
  };
  for (auto [type, dim] : llvm::zip(getResultTypes(), getResultDims()))
    if (failed(check(type, dim, "result")))
      return failure();
  for (auto [operand, dim] : llvm::zip(getInputs(), getWorkerDims()))
    if (dim != -1 && failed(check(operand.getType(), dim, "operand")))
      return failure();
  InnerOp inner(*this);
  if (!inner.get() || !inner.get()->hasTrait<OpTrait::ZeroRegions>() ||
      !isa<ShardingRuleOpInterface>(inner.get()))
    return emitOpError() << "there is no op '" << getCallee()
                         << "' that a worker could compute";
  return mlir::verify(inner.get());
}

OpCost PerWorkerOp::getCost() {
  InnerOp inner(*this);
  OpCost cost = cast<CostOpInterface>(inner.get()).getCost();
  OpCost own = streamingCost(getOperation(), cost.work, 0);
  own.flops = cost.flops * getWorkers();
  own.factorBits = cost.factorBits;
  return own;
}

IndexUse PerWorkerOp::getIndexUse(unsigned index) {
  InnerOp inner(*this);
  if (auto indexed = dyn_cast<IndexUseOpInterface>(inner.get()))
    return indexed.getIndexUse(index);
  return {};
}

//===----------------------------------------------------------------------===//
// On shards
//===----------------------------------------------------------------------===//

namespace {

/// The rule of the op that a worker computes, with the workers as one more
/// factor. What runs along samples is cut where the workers stand.
class WorkerRule {
public:
  explicit WorkerRule(ShardingRule inner) : rule(std::move(inner)) {}

  ShardingRule build(PerWorkerOp op);

  /// `mapping`, of the factors of the worker's op, by those of this rule.
  FactorMapping translate(const FactorMapping &mapping) const {
    FactorMapping result;
    for (ArrayRef<int64_t> dim : mapping) {
      auto &list = result.emplace_back();
      for (int64_t factor : dim) {
        list.push_back(factor);
        if (auto it = minor.find(factor); it != minor.end())
          list.push_back(it->second);
      }
    }
    return result;
  }

private:
  void cut(ArrayRef<int64_t> factors, int64_t before);
  void insert(FactorMapping &mapping, int64_t dim, int64_t before,
              ArrayRef<int64_t> workers);

  ShardingRule rule;
  /// For a factor that is cut, the one that its minor part became.
  llvm::SmallDenseMap<int64_t, int64_t> minor;
};

} // namespace

/// Cuts the factor that a boundary `before` elements behind the major end of
/// `factors` runs through.
void WorkerRule::cut(ArrayRef<int64_t> factors, int64_t before) {
  int64_t left = before;
  for (int64_t index : factors) {
    Factor &factor = rule.factors[index];
    if (left == 1)
      return;
    if (left % factor.size == 0) {
      left /= factor.size;
      continue;
    }
    if (minor.contains(index))
      return;
    if (factor.size % left != 0) {
      factor.kind = FactorKind::Replicated;
      return;
    }
    Factor rest = factor;
    rest.size = factor.size / left;
    factor.size = left;
    minor[index] = rule.factors.size();
    rule.factors.push_back(rest);
    return;
  }
}

/// Inserts the dimension of the workers at `dim`.
void WorkerRule::insert(FactorMapping &mapping, int64_t dim, int64_t before,
                        ArrayRef<int64_t> workers) {
  mapping.insert(mapping.begin() + dim,
                 SmallVector<int64_t, 2>(workers.begin(), workers.end()));
  if (dim == 0)
    return;
  SmallVector<int64_t, 2> all = std::move(mapping[dim - 1]), minorPart;
  mapping[dim - 1].clear();
  int64_t left = before;
  for (int64_t index : all) {
    bool isMajor = left % rule.factors[index].size == 0 && left > 1;
    if (isMajor)
      left /= rule.factors[index].size;
    (isMajor ? mapping[dim - 1] : minorPart).push_back(index);
  }
  mapping.insert(mapping.begin() + dim + 1, std::move(minorPart));
}

ShardingRule WorkerRule::build(PerWorkerOp op) {
  auto before = [](Type type, int64_t dim) {
    return cast<RankedTensorType>(type).getDimSize(dim - 1);
  };
  auto forEach = [&](auto &mappings, TypeRange types, ArrayRef<int64_t> dims,
                     auto &&function) {
    for (auto [mapping, type, dim] : llvm::zip(mappings, types, dims))
      function(mapping, type, dim);
  };
  auto cutOne = [&](FactorMapping &mapping, Type type, int64_t dim) {
    if (dim > 0)
      cut(mapping[dim - 1], before(type, dim));
  };
  TypeRange operands = op.getInputs().getTypes();
  forEach(rule.operands, operands, op.getWorkerDims(), cutOne);
  forEach(rule.results, op.getResultTypes(), op.getResultDims(), cutOne);
  for (FactorMapping &mapping : rule.operands)
    mapping = translate(mapping);
  for (FactorMapping &mapping : rule.results)
    mapping = translate(mapping);
  SmallVector<int64_t, 1> workers;
  if (op.getWorkers() > 1)
    workers.push_back(rule.addFactor(op.getWorkers(), FactorKind::Parallel,
                                     ReductionKind::Sum, PaddingNeed::Refused));
  auto insertOne = [&](FactorMapping &mapping, Type type, int64_t dim) {
    if (dim >= 0)
      insert(mapping, dim, dim > 0 ? before(type, dim) : 1, workers);
  };
  forEach(rule.operands, operands, op.getWorkerDims(), insertOne);
  forEach(rule.results, op.getResultTypes(), op.getResultDims(), insertOne);
  return rule;
}

ShardingRule PerWorkerOp::getShardingRule() {
  InnerOp inner(*this);
  return WorkerRule(
             cast<ShardingRuleOpInterface>(inner.get()).getShardingRule())
      .build(*this);
}

/// The worker's op on its shard is what the op itself makes of it; it may read
/// the offset of the shard as a further operand.
Operation *PerWorkerOp::buildLocal(
    OpBuilder &builder, ValueRange operands, TypeRange resultTypes,
    function_ref<Value(RankedTensorType, const FactorMapping &)> shardOffset) {
  InnerOp inner(*this);
  SmallVector<Value> inputs(operands);
  SmallVector<int64_t> dims(getWorkerDims());
  DictionaryAttr with = getWith();
  if (auto partitionable = dyn_cast<PartitionableOpInterface>(inner.get())) {
    WorkerRule rule(
        cast<ShardingRuleOpInterface>(inner.get()).getShardingRule());
    rule.build(*this);
    Block slices;
    for (auto [value, dim] : llvm::zip(operands, getWorkerDims()))
      slices.addArgument(sliceType(value.getType(), dim), getLoc());
    SmallVector<Type> types;
    for (auto [type, dim] : llvm::zip(resultTypes, getResultDims()))
      types.push_back(sliceType(type, dim));
    Operation *local = partitionable.buildLocal(
        inner.builder, slices.getArguments(), types,
        [&](RankedTensorType type, const FactorMapping &mapping) {
          return shardOffset(type, rule.translate(mapping));
        });
    if (!local)
      return nullptr;
    inputs.clear(), dims.clear();
    for (Value operand : local->getOperands()) {
      auto slice = dyn_cast<BlockArgument>(operand);
      bool isSlice = slice && slice.getOwner() == &slices;
      inputs.push_back(isSlice ? operands[slice.getArgNumber()] : operand);
      dims.push_back(isSlice ? getWorkerDims()[slice.getArgNumber()] : -1);
    }
    with = local->getAttrDictionary();
    local->erase();
  }
  return PerWorkerOp::create(builder, getLoc(), resultTypes, inputs,
                             getCallee(), dims, getResultDims(), with);
}
