//===- SplitFurther.cpp - Ops on smaller shards ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Spmd/IR/SplitFurther.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Spmd/IR/OpFactors.h"
#include "cleave/Dialect/Spmd/IR/Resharding/Collective.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

std::optional<WholeRule>
cleave::spmd::wholeRule(Operation *op, TypeRange operands, TypeRange results) {
  WholeRule found;
  Block scratch;
  OpBuilder builder(op->getContext());
  builder.setInsertionPointToEnd(&scratch);
  SmallVector<Value> values;
  for (Type type : operands)
    values.push_back(scratch.addArgument(type, op->getLoc()));
  Operation *whole = nullptr;
  auto noPlace = [](RankedTensorType, const graph::FactorMapping &) {
    return Value();
  };
  if (auto partitionable = dyn_cast<graph::PartitionableOpInterface>(op)) {
    whole = partitionable.buildLocal(builder, values, results, noPlace);
    // The rule of the global op has global factors.
    if (auto again = dyn_cast_or_null<graph::PartitionableOpInterface>(whole))
      again.buildLocal(
          builder, values, results,
          [&](RankedTensorType, const graph::FactorMapping &mapping) {
            found.places.push_back(mapping);
            return Value();
          });
  } else {
    whole = builder.clone(*op);
    whole->setOperands(values);
    for (auto [result, type] : llvm::zip(whole->getResults(), results))
      result.setType(type);
  }
  auto ruled = dyn_cast_or_null<graph::ShardingRuleOpInterface>(whole);
  if (!ruled)
    return std::nullopt;
  found.rule = ruled.getShardingRule();
  return found;
}

std::optional<SmallVector<AxisList, 4>>
cleave::spmd::addedAxes(const Mesh &mesh, const Sharding &from,
                        const Sharding &to) {
  SmallVector<AxisList, 4> added;
  for (auto [before, after] : llvm::zip_equal(from.dims, to.dims)) {
    AxisList first = mesh.significant(before), all = mesh.significant(after);
    auto cut = mesh.split(all, mesh.size(first));
    if (!cut || mesh.significant(cut->first) != first)
      return std::nullopt;
    added.push_back(cut->second);
  }
  return added;
}

/// Returns the type of a shard of `global`; null if it is not divisible.
static RankedTensorType shardType(const Mesh &mesh, const Sharding &sharding,
                                  RankedTensorType global) {
  unsigned dim;
  auto shape = localShape(mesh, sharding, global.getShape(), dim);
  return shape ? RankedTensorType::get(*shape, global.getElementType())
               : RankedTensorType();
}

/// Builds `op` on smaller shards, without its attributes. `place` returns the
/// offset of its shard, for an op that does not read it yet.
static Operation *buildOn(
    OpBuilder &builder, Operation *op, ValueRange operands, TypeRange types,
    function_ref<Value(RankedTensorType, const graph::FactorMapping &)> place) {
  if (auto partitionable = dyn_cast<graph::PartitionableOpInterface>(op))
    return partitionable.buildLocal(builder, operands, types, place);
  Operation *built = builder.clone(*op);
  built->setOperands(operands);
  for (auto [result, type] : llvm::zip(built->getResults(), types))
    result.setType(type);
  return built;
}

static bool knowsPlace(Operation *op) {
  return llvm::any_of(op->getOperands(), [](Value operand) {
    return operand.getDefiningOp<ShardOffsetOp>() != nullptr;
  });
}

/// Returns the sharding of the tensor whose shard offset the op reads.
static SmallVector<AxisList, 4> splitOfPlace(const FurtherSplit &split,
                                             const Mesh &mesh) {
  if (split.whole.places.empty())
    return {};
  return projectFactors(mesh, split.whole.rule, split.whole.places.front(),
                        split.axes);
}

/// Whether `op` reads its offset on smaller shards, and does not read it yet.
static bool needsPlace(Operation *op, const FurtherSplit &split,
                       const Mesh &mesh) {
  return !knowsPlace(op) &&
         llvm::any_of(splitOfPlace(split, mesh), [&](ArrayRef<AxisRef> axes) {
           return mesh.size(axes) > 1;
         });
}

/// Whether `op` has a form on shards of the types of `split`.
static bool canBuild(Operation *op, const FurtherSplit &split,
                     const Mesh &mesh) {
  Block scratch;
  OpBuilder builder(op->getContext());
  builder.setInsertionPointToEnd(&scratch);
  SmallVector<Value> operands;
  SmallVector<Type> types;
  for (auto [operand, sharding] :
       llvm::zip_equal(op->getOperands(), split.operands)) {
    Type type = shardType(mesh, sharding, writtenGlobalType(operand));
    if (!type)
      return false;
    operands.push_back(scratch.addArgument(type, op->getLoc()));
  }
  for (auto [result, sharding] :
       llvm::zip_equal(op->getResults(), split.results)) {
    types.push_back(shardType(mesh, sharding, writtenGlobalType(result)));
    if (!types.back())
      return false;
  }
  bool needs = needsPlace(op, split, mesh);
  auto place = [&](RankedTensorType type, const graph::FactorMapping &) {
    auto index = RankedTensorType::get(type.getRank(), builder.getI64Type());
    return needs ? scratch.addArgument(index, op->getLoc()) : Value();
  };
  return buildOn(builder, op, operands, types, place) != nullptr;
}

std::optional<FurtherSplit> cleave::spmd::splitFurther(Operation *op,
                                                       unsigned result,
                                                       const Sharding &wanted,
                                                       const Mesh &mesh) {
  if (op->hasAttr(kRingShiftAttr))
    return std::nullopt;
  SmallVector<Type> operandTypes, resultTypes;
  FurtherSplit split;
  auto read = [&](ValueRange values, SmallVectorImpl<Type> &types,
                  auto &shardings) {
    for (Value value : values) {
      std::optional<Sharding> known = writtenSharding(value);
      RankedTensorType global = writtenGlobalType(value);
      if (!known || !global)
        return false;
      types.push_back(global);
      shardings.push_back(std::move(*known));
    }
    return true;
  };
  if (!read(op->getOperands(), operandTypes, split.operands) ||
      !read(op->getResults(), resultTypes, split.results))
    return std::nullopt;
  std::optional<WholeRule> whole = wholeRule(op, operandTypes, resultTypes);
  // Only the offset of the shards of one tensor can change.
  if (!whole || whole->rule.shift.steps != 0 || whole->places.size() > 1 ||
      (knowsPlace(op) && whole->places.empty()))
    return std::nullopt;
  split.whole = std::move(*whole);
  const graph::ShardingRule &rule = split.whole.rule;

  SmallVector<Sharding, 1> before = split.results;
  split.results[result].dims = wanted.dims;
  SmallVector<const Sharding *> operands, results;
  SmallVector<int64_t> elements;
  for (auto [sharding, type] : llvm::zip_equal(split.operands, operandTypes)) {
    operands.push_back(&sharding);
    elements.push_back(cast<RankedTensorType>(type).getNumElements());
  }
  for (const Sharding &sharding : split.results)
    results.push_back(&sharding);
  bool agree = true;
  split.axes = mergeFactors(mesh, rule, operands, results,
                            [&](const std::string &) { agree = false; });
  if (!agree)
    return std::nullopt;
  auto project = [&](Sharding &sharding, const graph::FactorMapping &mapping) {
    Sharding further = sharding;
    further.dims = projectFactors(mesh, rule, mapping, split.axes);
    further.dims.resize(sharding.dims.size());
    if (!addedAxes(mesh, sharding, further))
      return false;
    sharding = std::move(further);
    return true;
  };
  for (auto [i, sharding] : llvm::enumerate(split.operands))
    if (!llvm::is_contained(rule.unused, i) &&
        !project(sharding, rule.operands[i]))
      return std::nullopt;
  for (auto [i, sharding] : llvm::enumerate(split.results))
    if (!project(sharding, rule.results[i]))
      return std::nullopt;
  if (!sameDims(mesh, split.results[result].dims, wanted.dims))
    return std::nullopt;
  PartialPlan plan = planPartials(mesh, rule, split.axes, operands, elements,
                                  summedByItself(op));
  if (!plan.reductions.empty())
    return std::nullopt;
  for (auto [partial, known] : llvm::zip_equal(plan.results, before))
    if (!samePartial(mesh, partial, known.partial))
      return std::nullopt;
  if (!canBuild(op, split, mesh))
    return std::nullopt;
  return split;
}

Operation *cleave::spmd::buildFurther(OpBuilder &builder, Operation *op,
                                      const FurtherSplit &split,
                                      ValueRange operands,
                                      FlatSymbolRefAttr meshName,
                                      const Mesh &mesh) {
  SmallVector<Type> types;
  SmallVector<Attribute> shardings, globals;
  for (auto [result, sharding] :
       llvm::zip_equal(op->getResults(), split.results)) {
    RankedTensorType global = writtenGlobalType(result);
    types.push_back(shardType(mesh, sharding, global));
    shardings.push_back(ShardingAttr::get(meshName, sharding));
    globals.push_back(TypeAttr::get(global));
  }
  // Returns the offset of the shard of a tensor of type `global`.
  auto offset = [&](RankedTensorType global) {
    Sharding place = Sharding::replicated(global.getRank());
    place.dims = splitOfPlace(split, mesh);
    auto type = RankedTensorType::get(global.getRank(), builder.getI64Type());
    auto made =
        ShardOffsetOp::create(builder, op->getLoc(), type,
                              ShardingAttr::get(meshName, place), global);
    annotate(made, ShardingAttr::get(meshName, Sharding::replicated(1)), type);
    return made;
  };
  SmallVector<Value> values(operands);
  for (Value &value : values)
    if (auto known = value.getDefiningOp<ShardOffsetOp>())
      value = offset(cast<RankedTensorType>(known.getGlobal()));
  bool needs = needsPlace(op, split, mesh);
  Operation *built = buildOn(
      builder, op, values, types,
      // The op was not sharded along these dimensions: types are global.
      [&](RankedTensorType type, const graph::FactorMapping &) -> Value {
        return needs ? offset(type) : Value();
      });
  built->setAttr(kShardingsAttr, builder.getArrayAttr(shardings));
  built->setAttr(kGlobalTypesAttr, builder.getArrayAttr(globals));
  return built;
}
