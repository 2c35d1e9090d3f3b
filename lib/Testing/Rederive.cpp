//===- Rederive.cpp - A local program after one change --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Testing/Rederive.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Spmd/IR/OpFactors.h"
#include "cleave/Dialect/Spmd/IR/Resharding/Collective.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

Rederivation::Rederivation(func::FuncOp function, MeshOp meshOp)
    : function(function), meshName(FlatSymbolRefAttr::get(meshOp)),
      mesh(meshOp.getMesh()), builder(function.getContext()) {}

RankedTensorType Rederivation::localType(const Claim &claim) const {
  unsigned dim;
  auto shape = localShape(mesh, claim.sharding, claim.global.getShape(), dim);
  if (!shape)
    return {};
  return RankedTensorType::get(*shape, claim.global.getElementType());
}

Value Rederivation::define(Operation *op, const Claim &claim) {
  annotate(op, ShardingAttr::get(meshName, claim.sharding), claim.global);
  Value result = op->getResult(0);
  set(result, claim);
  return result;
}

Rederivation::Claim Rederivation::readClaim(OpResult result) const {
  unsigned i = result.getResultNumber();
  Operation *op = result.getOwner();
  auto sharding = cast<ShardingAttr>(
      op->getAttrOfType<ArrayAttr>(kShardingsAttr).getValue()[i]);
  auto global = cast<TypeAttr>(
      op->getAttrOfType<ArrayAttr>(kGlobalTypesAttr).getValue()[i]);
  return {sharding.getSharding(), cast<RankedTensorType>(global.getValue())};
}

bool Rederivation::run(Operation *changed, Replacement replace) {
  builder.setInsertionPointAfter(function);
  auto copied = cast<func::FuncOp>(builder.cloneWithoutRegions(*function));
  Block *body = builder.createBlock(&copied.getBody());
  for (BlockArgument argument : function.getArguments()) {
    unsigned i = argument.getArgNumber();
    Value own = body->addArgument(argument.getType(), argument.getLoc());
    mapping.map(argument, own);
    Claim claim{
        function.getArgAttrOfType<ShardingAttr>(i, kShardingAttr).getSharding(),
        cast<RankedTensorType>(
            function.getArgAttrOfType<TypeAttr>(i, kGlobalTypeAttr)
                .getValue())};
    set(argument, claim);
    set(own, claim);
  }
  for (Operation &op : function.getBody().front().without_terminator()) {
    for (OpResult result : op.getResults())
      set(result, readClaim(result));
    if (&op == changed) {
      Value value = replace(*this, &op, mapping.lookup(op.getOperand(0)));
      if (!value) {
        copied.erase();
        return false;
      }
      mapping.map(op.getResult(0), value);
    } else if (!isChanged(&op) || !redo(&op)) {
      copy(&op);
    }
  }
  Operation *last =
      builder.clone(*function.getBody().front().getTerminator(), mapping);
  copied.setFunctionType(builder.getFunctionType(
      copied.getFunctionType().getInputs(), last->getOperandTypes()));
  function.erase();
  function = copied;
  return true;
}

/// Whether the annotations of an operand have changed.
bool Rederivation::isChanged(Operation *op) const {
  return llvm::any_of(op->getOperands(), [&](Value operand) {
    const Sharding &before = claims.find(operand)->second.sharding;
    const Sharding &now = claims.find(mapping.lookup(operand))->second.sharding;
    return !sameDims(mesh, before.dims, now.dims) ||
           !samePartial(mesh, before.partial, now.partial);
  });
}

void Rederivation::copy(Operation *op) {
  Operation *clone = builder.clone(*op, mapping);
  for (auto [from, to] : llvm::zip(op->getResults(), clone->getResults()))
    set(to, claims.find(from)->second);
}

bool Rederivation::redo(Operation *op) {
  if (readCollective(op) || isa<BarrierOp>(op))
    return redoMove(op);
  return redoOp(op);
}

bool Rederivation::redoMove(Operation *op) {
  Value operand = mapping.lookup(op->getOperand(0));
  Claim claim = claims.find(operand)->second;
  std::optional<Collective> move = readCollective(op);
  if (!move) {
    Operation *clone = builder.clone(*op, mapping);
    clone->getResult(0).setType(operand.getType());
    mapping.map(op->getResult(0), define(clone, claim));
    return true;
  }
  RankedTensorType global = claim.global;
  claim.global = collectiveType(mesh, *move, global);
  if (applyCollective(mesh, *move, claim.sharding) || !localType(claim))
    return false;
  move->sharding = claim.sharding;
  if (move->into)
    move->into = mapping.lookup(move->into);
  Value value = buildCollective(builder, op->getLoc(), operand, *move, meshName,
                                mesh, global);
  set(value, claim);
  mapping.map(op->getResult(0), value);
  return true;
}

/// `op` on global tensors.
Operation *Rederivation::buildWhole(Operation *op, Block &scratch) {
  OpBuilder whole(op->getContext());
  whole.setInsertionPointToEnd(&scratch);
  SmallVector<Value> operands;
  SmallVector<Type> types;
  for (Value operand : op->getOperands())
    operands.push_back(
        scratch.addArgument(claims.find(operand)->second.global, op->getLoc()));
  for (Value result : op->getResults())
    types.push_back(claims.find(result)->second.global);
  if (auto partitionable = dyn_cast<graph::PartitionableOpInterface>(op))
    return partitionable.buildLocal(
        whole, operands, types,
        [](RankedTensorType, const graph::FactorMapping &) { return Value(); });
  Operation *clone = whole.clone(*op);
  clone->setOperands(operands);
  for (auto [result, type] : llvm::zip(clone->getResults(), types))
    result.setType(type);
  return clone;
}

bool Rederivation::redoOp(Operation *op) {
  Block scratch;
  Operation *whole = buildWhole(op, scratch);
  auto ruled = dyn_cast_or_null<graph::ShardingRuleOpInterface>(whole);
  if (!ruled)
    return false;
  graph::ShardingRule rule = ruled.getShardingRule();
  // Offsets are derived again.
  SmallVector<Value> operands;
  SmallVector<const Sharding *> given;
  SmallVector<int64_t> elements;
  for (Value operand : whole->getOperands()) {
    unsigned i = cast<BlockArgument>(operand).getArgNumber();
    operands.push_back(mapping.lookup(op->getOperand(i)));
    const Claim &claim = claims.find(operands.back())->second;
    given.push_back(&claim.sharding);
    elements.push_back(claim.global.getNumElements());
  }
  SmallVector<Sharding, 1> unknown;
  for (Value result : whole->getResults())
    unknown.push_back(Sharding::replicated(
        cast<RankedTensorType>(result.getType()).getRank(), /*open=*/true));
  SmallVector<const Sharding *> results;
  for (const Sharding &sharding : unknown)
    results.push_back(&sharding);
  bool agree = true;
  FactorAxes axes = mergeFactors(mesh, rule, given, results,
                                 [&](const std::string &) { agree = false; });
  PartialPlan plan = planPartials(mesh, rule, axes, given, elements);
  if (!agree || !plan.reductions.empty())
    return false;
  for (auto [i, sharding] : llvm::enumerate(given)) {
    if (llvm::is_contained(rule.unused, i))
      continue;
    auto wanted = projectFactors(mesh, rule, rule.operands[i], axes);
    wanted.resize(sharding->dims.size());
    if (!sameDims(mesh, wanted, sharding->dims))
      return false;
  }

  SmallVector<Claim, 1> made;
  SmallVector<Type> types;
  SmallVector<Attribute> shardings, globals;
  for (auto [i, result] : llvm::enumerate(whole->getResults())) {
    Claim claim{unknown[i], cast<RankedTensorType>(result.getType())};
    auto dims = projectFactors(mesh, rule, rule.results[i], axes);
    dims.resize(claim.sharding.dims.size());
    claim.sharding.dims = std::move(dims);
    claim.sharding.open.assign(claim.sharding.open.size(), false);
    claim.sharding.partial = plan.results[i];
    types.push_back(localType(claim));
    if (!types.back())
      return false;
    shardings.push_back(ShardingAttr::get(meshName, claim.sharding));
    globals.push_back(TypeAttr::get(claim.global));
    made.push_back(std::move(claim));
  }
  auto place = [&](RankedTensorType type,
                   const graph::FactorMapping &factors) -> Value {
    Sharding sharding = Sharding::replicated(type.getRank());
    sharding.dims = projectFactors(mesh, rule, factors, axes);
    if (llvm::all_of(sharding.dims, [&](ArrayRef<AxisRef> list) {
          return mesh.size(list) == 1;
        }))
      return {};
    auto result = RankedTensorType::get(type.getRank(), builder.getI64Type());
    auto offset =
        ShardOffsetOp::create(builder, op->getLoc(), result,
                              ShardingAttr::get(meshName, sharding), type);
    return define(offset, {Sharding::replicated(1), result});
  };
  Operation *built = nullptr;
  if (auto partitionable = dyn_cast<graph::PartitionableOpInterface>(whole)) {
    built = partitionable.buildLocal(builder, operands, types, place);
  } else {
    built = builder.clone(*whole);
    built->setOperands(operands);
    for (auto [result, type] : llvm::zip(built->getResults(), types))
      result.setType(type);
  }
  if (!built)
    return false;
  built->setAttr(kShardingsAttr, builder.getArrayAttr(shardings));
  built->setAttr(kGlobalTypesAttr, builder.getArrayAttr(globals));
  for (auto [i, result] : llvm::enumerate(built->getResults())) {
    set(result, made[i]);
    mapping.map(op->getResult(i), result);
  }
  return true;
}
