//===- Partition.cpp - One function for each shard ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Spmd/IR/OpFactors.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "mlir/IR/IRMapping.h"
#include <map>

namespace cleave::spmd {
#define GEN_PASS_DEF_PARTITION
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"
} // namespace cleave::spmd

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {
/// Rewrites one function for one shard.
class Partitioner {
public:
  Partitioner(func::FuncOp function, MeshOp meshOp)
      : function(function), meshName(FlatSymbolRefAttr::get(meshOp)),
        mesh(meshOp.getMesh()), builder(function.getContext()) {}

  LogicalResult run() {
    if (!function.getBody().hasOneBlock())
      return function.emitOpError("must have one block to be partitioned");
    if (failed(startFunction()))
      return failure();
    for (Operation &op : function.getBody().front().without_terminator())
      if (failed(partition(&op)))
        return failure();
    if (failed(finishFunction()))
      return failure();
    function.erase();
    return success();
  }

private:
  //===--- Shardings and types --------------------------------------------===//

  /// The type of one shard of `type`.
  FailureOr<RankedTensorType> localType(Location loc, const Sharding &sharding,
                                        Type type, const Twine &what) {
    auto global = cast<RankedTensorType>(type);
    unsigned dim;
    auto shape = localShape(mesh, sharding, global.getShape(), dim);
    if (!shape)
      return emitError(loc)
             << what << ": dimension " << dim << " of " << global
             << " does not divide into the " << mesh.size(sharding.dims[dim])
             << " parts of its sharding " << sharding.str();
    return RankedTensorType::get(*shape, global.getElementType());
  }

  FailureOr<Sharding> entrySharding(DictionaryAttr attributes,
                                    const Twine &what) {
    auto sharding = attributes ? attributes.getAs<ShardingAttr>(kShardingAttr)
                               : ShardingAttr();
    if (!sharding)
      return function.emitOpError(what)
             << " has no sharding; run --spmd-propagate first";
    return sharding.getSharding();
  }

  //===--- The function
  //----------------------------------------------------===//

  /// Creates the local function, with its arguments.
  LogicalResult startFunction() {
    SmallVector<Type> inputs, results;
    for (BlockArgument argument : function.getArguments()) {
      unsigned i = argument.getArgNumber();
      auto sharding =
          entrySharding(function.getArgAttrDict(i), "argument " + Twine(i));
      if (failed(sharding))
        return failure();
      if (!sharding->partial.empty())
        return function.emitOpError("argument ")
               << i << " is partial, which is not supported";
      auto type = localType(argument.getLoc(), *sharding, argument.getType(),
                            "argument " + Twine(i));
      if (failed(type))
        return failure();
      inputs.push_back(*type);
      shardings[argument] = *sharding;
    }
    for (auto [i, type] : llvm::enumerate(function.getResultTypes())) {
      auto sharding =
          entrySharding(function.getResultAttrDict(i), "result " + Twine(i));
      if (failed(sharding))
        return failure();
      auto local =
          localType(function.getLoc(), *sharding, type, "result " + Twine(i));
      if (failed(local))
        return failure();
      results.push_back(*local);
      resultShardings.push_back(*sharding);
    }

    builder.setInsertionPoint(function);
    local = cast<func::FuncOp>(builder.cloneWithoutRegions(*function));
    local.setFunctionType(builder.getFunctionType(inputs, results));
    Block *body = builder.createBlock(&local.getBody());
    graph::EntryAttributes attributes(local);
    for (auto [argument, type] : llvm::zip(function.getArguments(), inputs)) {
      mapping.map(argument, body->addArgument(type, argument.getLoc()));
      attributes.setArg(argument.getArgNumber(), kGlobalTypeAttr,
                        TypeAttr::get(argument.getType()));
    }
    for (auto [i, type] : llvm::enumerate(function.getResultTypes()))
      attributes.setResult(i, kGlobalTypeAttr, TypeAttr::get(type));
    attributes.write();
    return success();
  }

  LogicalResult finishFunction() {
    Operation *terminator = function.getBody().front().getTerminator();
    SmallVector<Value> values;
    for (auto [i, operand] : llvm::enumerate(terminator->getOperands())) {
      Sharding sharding = shardings.find(operand)->second;
      Value value = reduce(operand, sharding.partial);
      sharding.partial.clear();
      if (failed(slice(value, sharding.dims, resultShardings[i].dims,
                       operand.getType())))
        return terminator->emitOpError("result ")
               << i << " has sharding " << sharding.str()
               << ", which cannot be moved to " << resultShardings[i].str()
               << " yet";
      values.push_back(value);
    }
    func::ReturnOp::create(builder, terminator->getLoc(), values);
    return success();
  }

  //===--- Ops
  //---------------------------------------------------------------===//

  LogicalResult partition(Operation *op) {
    auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(op);
    if (!ruled)
      return op->emitOpError("has no sharding rule");
    if (failed(readResultShardings(op)))
      return failure();
    graph::ShardingRule rule = ruled.getShardingRule();
    SmallVector<const Sharding *> operands, results;
    SmallVector<int64_t> elements;
    for (Value operand : op->getOperands()) {
      operands.push_back(&shardings.find(operand)->second);
      elements.push_back(
          cast<RankedTensorType>(operand.getType()).getNumElements());
    }
    for (Value result : op->getResults())
      results.push_back(&shardings.find(result)->second);

    // 1. The op's factors. A disagreement is resolved where a value only needs
    // to be split further.
    std::string conflict;
    FactorAxes axes = mergeFactors(mesh, rule, operands, results,
                                   [&](const std::string &text) {
                                     if (conflict.empty())
                                       conflict = text;
                                   });
    auto unable = [&](StringRef what, size_t i, const Sharding &from,
                      ArrayRef<AxisList> to) {
      Sharding target = Sharding::replicated(to.size());
      target.dims.assign(to.begin(), to.end());
      InFlightDiagnostic error = op->emitOpError("cannot be partitioned: ");
      error << what << i << " has sharding " << from.str()
            << " and would have to be moved to " << target.str()
            << ", which is not supported yet";
      if (!conflict.empty())
        error.attachNote(op->getLoc()) << conflict;
      return error;
    };

    // 2. Operands, reduced where the op is not linear in them.
    PartialPlan plan = planPartials(mesh, rule, axes, operands, elements);
    SmallVector<Value> locals;
    for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
      SmallVector<PartialAxis> needed;
      for (const PartialPlan::Reduction &reduction : plan.reductions)
        if (reduction.operand == i)
          needed.push_back(reduction.partial);
      Value local = reduce(operand, needed);
      if (!llvm::is_contained(rule.unread, i)) {
        auto wanted = projectFactors(mesh, rule, rule.operands[i], axes);
        if (failed(slice(local, operands[i]->dims, wanted, operand.getType())))
          return unable("operand ", i, *operands[i], wanted);
      }
      locals.push_back(local);
    }
    for (auto [sharding, partial] : llvm::zip(results, plan.results))
      if (!llvm::equal(sharding->partial, partial))
        return op->emitOpError("is marked partial as ")
               << sharding->str() << ", which its operands do not give";

    // 3. The op itself.
    SmallVector<Type> types;
    SmallVector<Attribute> globals, attributes;
    SmallVector<Sharding, 1> made;
    for (auto [i, result] : llvm::enumerate(op->getResults())) {
      Sharding &sharding = made.emplace_back(*results[i]);
      sharding.dims = projectFactors(mesh, rule, rule.results[i], axes);
      auto type = localType(op->getLoc(), sharding, result.getType(), "result");
      if (failed(type))
        return failure();
      types.push_back(*type);
      globals.push_back(TypeAttr::get(result.getType()));
      attributes.push_back(ShardingAttr::get(meshName, sharding));
    }
    if (isa<ConstrainOp>(op)) {
      mapping.map(op->getResult(0), locals[0]);
      return success();
    }
    Operation *built = buildLocal(op, rule, axes, locals, types);
    if (!built)
      return op->emitOpError("has no form on one shard of this sharding");
    if (!globals.empty()) {
      built->setAttr(kShardingsAttr, builder.getArrayAttr(attributes));
      built->setAttr(kGlobalTypesAttr, builder.getArrayAttr(globals));
    }
    for (auto [i, result] : llvm::enumerate(op->getResults())) {
      Value local = built->getResult(i);
      if (failed(
              slice(local, made[i].dims, results[i]->dims, result.getType())))
        return unable("result ", i, made[i], results[i]->dims);
      mapping.map(result, local);
    }
    return success();
  }

  /// Splits `local`, whose dimensions are split by `from`, further to `to`;
  /// fails where that needs more than each position has.
  LogicalResult slice(Value &local, ArrayRef<AxisList> from,
                      ArrayRef<AxisList> to, Type global) {
    Sharding added = Sharding::replicated(from.size());
    bool needed = false;
    for (auto [i, dim] : llvm::enumerate(from)) {
      if (dim == to[i] || mesh.size(dim) * mesh.size(to[i]) == 1)
        continue;
      auto rest = mesh.split(to[i], mesh.size(dim));
      if (!mesh.isPrefix(dim, to[i]) || !rest)
        return failure();
      added.dims[i] = rest->second;
      needed = true;
    }
    if (!needed)
      return success();
    Sharding sharding = shardingAt(local);
    sharding.dims.assign(to.begin(), to.end());
    auto type = localType(local.getLoc(), sharding, global, "value");
    if (failed(type))
      return failure();
    auto op = SliceOp::create(builder, local.getLoc(), *type, local,
                              ShardingAttr::get(meshName, added));
    annotate(op, sharding, global);
    local = op;
    return success();
  }

  /// The sharding of a local value.
  Sharding shardingAt(Value local) {
    if (auto argument = dyn_cast<BlockArgument>(local))
      return shardings.find(function.getArgument(argument.getArgNumber()))
          ->second;
    auto result = cast<OpResult>(local);
    auto array = result.getOwner()->getAttrOfType<ArrayAttr>(kShardingsAttr);
    return cast<ShardingAttr>(array[result.getResultNumber()]).getSharding();
  }

  LogicalResult readResultShardings(Operation *op) {
    if (op->getNumResults() == 0)
      return success();
    auto given = op->getAttrOfType<ArrayAttr>(kShardingsAttr);
    if (!given)
      return op->emitOpError("has no shardings; run --spmd-propagate first");
    for (auto [result, attribute] : llvm::zip(op->getResults(), given))
      shardings[result] = cast<ShardingAttr>(attribute).getSharding();
    return success();
  }

  Operation *buildLocal(Operation *op, const graph::ShardingRule &rule,
                        const FactorAxes &axes, ValueRange operands,
                        TypeRange types) {
    auto shardOffset = [&](RankedTensorType type,
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
      annotate(offset, Sharding::replicated(1), result);
      return offset;
    };
    if (auto partitionable = dyn_cast<graph::PartitionableOpInterface>(op))
      return partitionable.buildLocal(builder, operands, types, shardOffset);
    Operation *clone = builder.clone(*op);
    clone->setOperands(operands);
    for (auto [result, type] : llvm::zip(clone->getResults(), types))
      result.setType(type);
    return clone;
  }

  /// The local value of `value`, reduced over `partials`; axes of size 1 need
  /// nothing. One reduction serves all uses.
  Value reduce(Value value, ArrayRef<PartialAxis> partials) {
    Value current = mapping.lookup(value);
    for (const PartialAxis &partial : partials) {
      if (mesh.size(partial.axis) == 1)
        continue;
      Value &reduced = reductions[{current, partial.axis.str()}];
      if (!reduced) {
        OpBuilder::InsertionGuard guard(builder);
        builder.setInsertionPointAfterValue(current);
        auto op = AllReduceOp::create(
            builder, value.getLoc(), current.getType(),
            static_cast<ReductionKind>(partial.kind), current,
            meshName.getValue(),
            AxesAttr::get(builder.getContext(), partial.axis));
        Sharding sharding = shardingAt(current);
        llvm::erase(sharding.partial, partial);
        annotate(op, sharding, value.getType());
        reduced = op;
      }
      current = reduced;
    }
    return current;
  }

  void annotate(Operation *op, const Sharding &sharding, Type global) {
    op->setAttr(kShardingsAttr,
                builder.getArrayAttr(ShardingAttr::get(meshName, sharding)));
    op->setAttr(kGlobalTypesAttr, builder.getArrayAttr(TypeAttr::get(global)));
  }

  func::FuncOp function, local;
  FlatSymbolRefAttr meshName;
  Mesh mesh;
  OpBuilder builder;
  /// Global values to local ones, before reductions.
  IRMapping mapping;
  /// Shardings of global values.
  llvm::DenseMap<Value, Sharding> shardings;
  std::vector<Sharding> resultShardings;
  /// A local value and an axis, to the value reduced over it.
  struct Key {
    Value value;
    std::string axis;
    bool operator<(const Key &other) const {
      return std::pair(value.getAsOpaquePointer(), axis) <
             std::pair(other.value.getAsOpaquePointer(), other.axis);
    }
  };
  std::map<Key, Value> reductions;
};

struct PartitionPass : spmd::impl::PartitionBase<PartitionPass> {
  void runOnOperation() override {
    MeshOp mesh = findMesh(getOperation());
    if (!mesh) {
      getOperation().emitError("there is no spmd.mesh");
      return signalPassFailure();
    }
    for (auto function :
         llvm::make_early_inc_range(getOperation().getOps<func::FuncOp>()))
      if (!function.isExternal() && failed(Partitioner(function, mesh).run()))
        return signalPassFailure();
  }
};
} // namespace
