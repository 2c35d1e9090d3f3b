//===- Propagate.cpp - From the arguments' shardings to all values' -------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Spmd/IR/OpFactors.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"

namespace cleave::spmd {
#define GEN_PASS_DEF_PROPAGATE
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"
} // namespace cleave::spmd

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {
/// The propagation in one function.
class Propagation {
public:
  Propagation(func::FuncOp function, MeshOp meshOp)
      : function(function), meshName(FlatSymbolRefAttr::get(meshOp)),
        mesh(meshOp.getMesh()) {}

  LogicalResult run() {
    if (!function.getBody().hasOneBlock())
      return function.emitOpError("must have one block to be sharded");
    if (failed(readAnnotations()))
      return failure();
    // Forward then backward, until neither changes anything. Each change adds
    // an axis to a dimension, so that this ends.
    bool changed = true;
    while (changed) {
      changed = false;
      for (Operation &op : body().without_terminator())
        changed |= visit(&op);
      for (Operation &op : llvm::reverse(body().without_terminator()))
        changed |= visit(&op);
    }
    for (Operation &op : body().without_terminator())
      finish(&op);
    writeResults();
    return success();
  }

private:
  Block &body() { return function.getBody().front(); }

  /// The state before propagation: arguments are closed unless annotated
  /// otherwise, results of ops open unless the op is an annotation.
  LogicalResult readAnnotations() {
    for (BlockArgument argument : body().getArguments()) {
      auto given = function.getArgAttrOfType<ShardingAttr>(
          argument.getArgNumber(), kShardingAttr);
      auto type = dyn_cast<RankedTensorType>(argument.getType());
      if (!type)
        return function.emitOpError("argument ")
               << argument.getArgNumber() << " is not a tensor";
      if (given && given.getMesh() != meshName)
        return function.emitOpError("argument ")
               << argument.getArgNumber() << " is sharded on another mesh, "
               << given.getMesh();
      shardings[argument] =
          given ? given.getSharding() : Sharding::replicated(type.getRank());
    }
    for (Operation &op : body().without_terminator()) {
      auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(&op);
      if (!ruled)
        return op.emitOpError("has no sharding rule");
      rules[&op] = ruled.getShardingRule();
      auto constrain = dyn_cast<ConstrainOp>(&op);
      for (Value result : op.getResults())
        shardings[result] =
            constrain ? constrain.getSharding().getSharding()
                      : Sharding::replicated(
                            cast<RankedTensorType>(result.getType()).getRank(),
                            /*open=*/true);
    }
    return success();
  }

  SmallVector<const Sharding *> shardingsOf(ValueRange values) {
    SmallVector<const Sharding *> result;
    for (Value value : values)
      result.push_back(&shardings.find(value)->second);
    return result;
  }

  FactorAxes merge(Operation *op,
                   function_ref<void(const std::string &)> conflict) {
    return mergeFactors(mesh, rules[op], shardingsOf(op->getOperands()),
                        shardingsOf(op->getResults()), conflict);
  }

  /// Extends the open dimensions of `value` by what `axes` says.
  bool extend(Value value, ArrayRef<AxisList> dims) {
    Sharding &sharding = shardings.find(value)->second;
    bool changed = false;
    for (auto [i, axes] : llvm::enumerate(dims)) {
      AxisList &known = sharding.dims[i];
      if (!sharding.open[i] || known == axes || !mesh.isPrefix(known, axes))
        continue;
      // An axis that splits another dimension already cannot split this one.
      auto used = [&](const AxisRef &axis) {
        return llvm::any_of(llvm::enumerate(sharding.dims), [&](auto other) {
          return other.index() != i && mesh.overlap(axis, other.value());
        });
      };
      if (llvm::any_of(axes, used))
        continue;
      known = axes;
      changed = true;
    }
    return changed;
  }

  bool visit(Operation *op) {
    graph::ShardingRule &rule = rules[op];
    FactorAxes axes = merge(op, [](const std::string &) {});
    bool changed = false;
    for (auto [i, operand] : llvm::enumerate(op->getOperands()))
      if (!llvm::is_contained(rule.unread, i))
        changed |=
            extend(operand, projectFactors(mesh, rule, rule.operands[i], axes));
    for (auto [i, result] : llvm::enumerate(op->getResults()))
      changed |=
          extend(result, projectFactors(mesh, rule, rule.results[i], axes));
    return changed;
  }

  /// Partial results, in the order of the program; then the attributes.
  void finish(Operation *op) {
    FactorAxes axes = merge(op, [&](const std::string &conflict) {
      op->emitRemark("shardings disagree: ") << conflict;
    });
    SmallVector<int64_t> elements;
    for (Type type : op->getOperandTypes())
      elements.push_back(cast<RankedTensorType>(type).getNumElements());
    PartialPlan plan = planPartials(mesh, rules[op], axes,
                                    shardingsOf(op->getOperands()), elements);
    SmallVector<Attribute> attributes;
    for (auto [result, partial] : llvm::zip(op->getResults(), plan.results)) {
      Sharding &sharding = shardings.find(result)->second;
      sharding.partial.assign(partial.begin(), partial.end());
      sharding.open.assign(sharding.open.size(), false);
      attributes.push_back(ShardingAttr::get(meshName, sharding));
    }
    if (!attributes.empty())
      op->setAttr(kShardingsAttr, ArrayAttr::get(op->getContext(), attributes));
  }

  /// Arguments and results of the function; what it returns is whole.
  void writeResults() {
    graph::EntryAttributes attributes(function);
    for (BlockArgument argument : body().getArguments()) {
      Sharding &sharding = shardings.find(argument)->second;
      sharding.open.assign(sharding.open.size(), false);
      attributes.setArg(argument.getArgNumber(), kShardingAttr,
                          ShardingAttr::get(meshName, sharding));
    }
    for (auto [i, value] :
         llvm::enumerate(body().getTerminator()->getOperands())) {
      Sharding sharding = shardings.find(value)->second;
      sharding.partial.clear();
      if (!function.getResultAttr(i, kShardingAttr))
        attributes.setResult(i, kShardingAttr,
                             ShardingAttr::get(meshName, sharding));
    }
    attributes.write();
  }

  func::FuncOp function;
  FlatSymbolRefAttr meshName;
  Mesh mesh;
  llvm::DenseMap<Operation *, graph::ShardingRule> rules;
  llvm::DenseMap<Value, Sharding> shardings;
};

struct PropagatePass : spmd::impl::PropagateBase<PropagatePass> {
  void runOnOperation() override {
    MeshOp mesh = findMesh(getOperation());
    if (!mesh) {
      getOperation().emitError("there is no spmd.mesh");
      return signalPassFailure();
    }
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (!function.isExternal() && failed(Propagation(function, mesh).run()))
        return signalPassFailure();
  }
};
} // namespace
