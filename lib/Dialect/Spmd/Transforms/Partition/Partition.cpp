//===- Partition.cpp - Functions on shards --------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "../Propagation/AnnotationCauses.h"
#include "Resharder.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/Messages/ErrorTopic.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "cleave/Dialect/Spmd/IR/OpFactors.h"
#include "cleave/Dialect/Spmd/IR/Resharding/Collective.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "cleave/Dialect/Spmd/Transforms/Propagation/SeedOrder.h"
#include "mlir/IR/IRMapping.h"

namespace cleave::spmd {
#define GEN_PASS_DEF_PARTITION
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"
} // namespace cleave::spmd

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

/// `error`, which says of a value that it is not resharded.
static InFlightDiagnostic about(const Resharder::Refusal &refusal,
                                InFlightDiagnostic &error) {
  if (refusal.alongSequential)
    graph::setTopic(error, graph::ErrorTopic::CoupledSamples);
  return std::move(error);
}

namespace {
/// The axes of an op's factors, its partial operands, and disagreements.
struct OpPlan {
  graph::ShardingRule rule;
  FactorAxes axes;
  PartialPlan partial;
  std::string conflict;
};

/// Rewrites one function to compute on shards.
class Partitioner {
public:
  Partitioner(func::FuncOp function, MeshOp meshOp)
      : function(function), meshName(FlatSymbolRefAttr::get(meshOp)),
        mesh(meshOp.getMesh()), builder(function.getContext()),
        resharder(builder, meshName, mesh), causes(function, mesh),
        seedOrder(function.getBody().front()) {}

  LogicalResult run() {
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
  LogicalResult startFunction();
  LogicalResult finishFunction();
  LogicalResult partition(Operation *op);
  OpPlan plan(Operation *op, bool whole);
  FailureOr<Operation *> buildOp(Operation *op, const OpPlan &plan);
  Operation *buildLocal(Operation *op, const OpPlan &plan, ValueRange operands,
                        TypeRange types);
  LogicalResult readResultShardings(Operation *op);
  bool isPartOf(const PartialList &declared, const PartialList &made);

  FailureOr<RankedTensorType> localType(Location loc, const Sharding &sharding,
                                        Type type, const Twine &what);
  FailureOr<Sharding> entrySharding(DictionaryAttr attributes,
                                    const Twine &what);
  Value local(Value value) { return mapping.lookup(value); }
  const Sharding &sharding(Value value) {
    return shardings.find(value)->second;
  }

  func::FuncOp function, result;
  FlatSymbolRefAttr meshName;
  Mesh mesh;
  OpBuilder builder;
  Resharder resharder;
  AnnotationCauses causes;
  /// Of the global ops.
  SeedOrder seedOrder;
  /// Global values to local ones, of the sharding that they have in
  /// `shardings`.
  IRMapping mapping;
  llvm::DenseMap<Value, Sharding> shardings;
  std::vector<Sharding> resultShardings;
};
} // namespace

//===----------------------------------------------------------------------===//
// Shardings and types
//===----------------------------------------------------------------------===//

/// Returns the type of a shard of `type`.
FailureOr<RankedTensorType> Partitioner::localType(Location loc,
                                                   const Sharding &sharding,
                                                   Type type,
                                                   const Twine &what) {
  auto global = cast<RankedTensorType>(type);
  unsigned dim;
  auto shape = localShape(mesh, sharding, global.getShape(), dim);
  if (!shape)
    return emitError(loc) << what << ": dimension " << dim << " of " << global
                          << " is not divisible by the "
                          << mesh.size(sharding.dims[dim])
                          << " shards of its sharding " << sharding.str();
  return RankedTensorType::get(*shape, global.getElementType());
}

FailureOr<Sharding> Partitioner::entrySharding(DictionaryAttr attributes,
                                               const Twine &what) {
  auto sharding = attributes ? attributes.getAs<ShardingAttr>(kShardingAttr)
                             : ShardingAttr();
  if (!sharding)
    return function.emitError(what)
           << " has no sharding; run --spmd-propagate first";
  return sharding.getSharding();
}

LogicalResult Partitioner::readResultShardings(Operation *op) {
  if (op->getNumResults() == 0)
    return success();
  auto given = op->getAttrOfType<ArrayAttr>(kShardingsAttr);
  if (!given)
    return op->emitOpError("has no shardings; run --spmd-propagate first");
  for (auto [result, attribute] : llvm::zip(op->getResults(), given))
    shardings[result] = cast<ShardingAttr>(attribute).getSharding();
  return success();
}

//===----------------------------------------------------------------------===//
// The function
//===----------------------------------------------------------------------===//

/// Creates the local function, with its arguments.
LogicalResult Partitioner::startFunction() {
  SmallVector<Type> inputs, results;
  for (BlockArgument argument : function.getArguments()) {
    unsigned i = argument.getArgNumber();
    std::string name = graph::nameArgument(argument);
    auto sharding = entrySharding(function.getArgAttrDict(i), name);
    if (failed(sharding))
      return failure();
    if (!sharding->partial.empty())
      return function.emitError(name) << " is partial, which is not supported";
    auto type =
        localType(argument.getLoc(), *sharding, argument.getType(), name);
    if (failed(type))
      return failure();
    inputs.push_back(*type);
    shardings[argument] = *sharding;
  }
  for (auto [i, type] : llvm::enumerate(function.getResultTypes())) {
    std::string name = graph::nameResult(function, i);
    auto sharding = entrySharding(function.getResultAttrDict(i), name);
    if (failed(sharding))
      return failure();
    auto local = localType(function.getLoc(), *sharding, type, name);
    if (failed(local))
      return failure();
    results.push_back(*local);
    resultShardings.push_back(*sharding);
  }

  builder.setInsertionPoint(function);
  result = cast<func::FuncOp>(builder.cloneWithoutRegions(*function));
  result.setFunctionType(builder.getFunctionType(inputs, results));
  Block *body = builder.createBlock(&result.getBody());
  graph::EntryAttributes attributes(result);
  for (auto [argument, type] : llvm::zip(function.getArguments(), inputs)) {
    Value own = body->addArgument(type, argument.getLoc());
    mapping.map(argument, own);
    resharder.define(own, sharding(argument),
                     cast<RankedTensorType>(argument.getType()), 0);
    attributes.setArg(argument.getArgNumber(), kGlobalTypeAttr,
                      TypeAttr::get(argument.getType()));
  }
  for (auto [i, type] : llvm::enumerate(function.getResultTypes()))
    attributes.setResult(i, kGlobalTypeAttr, TypeAttr::get(type));
  attributes.write();
  return success();
}

LogicalResult Partitioner::finishFunction() {
  Operation *terminator = function.getBody().front().getTerminator();
  SmallVector<Value> values;
  for (auto [i, operand] : llvm::enumerate(terminator->getOperands())) {
    Operation *producer = operand.getDefiningOp();
    auto blamed = [&](ArrayRef<AxisRef> axes) {
      return causes.find(producer ? producer : terminator, axes);
    };
    ReshardCause cause{terminator, graph::nameResult(function, i), blamed};
    Resharder::Refusal refusal;
    Value value = resharder.move(local(operand), resultShardings[i],
                                 seedOrder.of(operand), cause, refusal);
    if (!value) {
      InFlightDiagnostic diagnostic = graph::emitResultError(function, i);
      diagnostic << " " << refusal.text;
      return about(refusal, diagnostic);
    }
    values.push_back(value);
  }
  func::ReturnOp::create(builder, terminator->getLoc(), values);
  return success();
}

//===----------------------------------------------------------------------===//
// Ops
//===----------------------------------------------------------------------===//

/// Plans the sharding of `op`; with none, it is computed on global tensors.
OpPlan Partitioner::plan(Operation *op, bool whole) {
  OpPlan plan;
  plan.rule = cast<graph::ShardingRuleOpInterface>(op).getShardingRule();
  SmallVector<const Sharding *> operands, results;
  SmallVector<int64_t> elements;
  for (Value operand : op->getOperands()) {
    operands.push_back(&sharding(operand));
    elements.push_back(
        cast<RankedTensorType>(operand.getType()).getNumElements());
  }
  for (Value result : op->getResults())
    results.push_back(&sharding(result));
  if (whole)
    plan.axes.resize(plan.rule.factors.size());
  else
    plan.axes = mergeFactors(mesh, plan.rule, operands, results,
                             [&](const std::string &text) {
                               if (plan.conflict.empty())
                                 plan.conflict = text;
                             });
  plan.partial = planPartials(mesh, plan.rule, plan.axes, operands, elements,
                              summedByItself(op));
  return plan;
}

/// Whether the axes `declared` as partial are among those on which an op makes
/// its result partial. The result is reduced over the others after the op.
bool Partitioner::isPartOf(const PartialList &declared,
                           const PartialList &made) {
  AxisList axes;
  for (const PartialAxis &entry : declared)
    axes.push_back(entry.axis);
  std::optional<PartialList> rest = withoutPartial(mesh, made, axes);
  if (!rest)
    return samePartial(mesh, declared, made);
  PartialList together = *rest;
  together.append(declared.begin(), declared.end());
  return samePartial(mesh, together, made);
}

LogicalResult Partitioner::partition(Operation *op) {
  auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(op);
  if (!ruled)
    return op->emitOpError("has no sharding rule");
  if (failed(readResultShardings(op)))
    return failure();
  OpPlan split = plan(op, /*whole=*/false);
  unsigned seedIndex = seedOrder.of(op);
  for (auto [result, partial] :
       llvm::zip(op->getResults(), split.partial.results))
    if (!isPartOf(sharding(result).partial,
                  staysPartial(mesh, sharding(result), partial)))
      return op->emitOpError("is marked partial as ")
             << sharding(result).str()
             << ", but its operands do not make it so";
  FailureOr<Operation *> built = buildOp(op, split);
  // An op without a form on shards is computed on global tensors, then sliced.
  if (succeeded(built) && !*built)
    built = buildOp(op, plan(op, /*whole=*/true));
  if (failed(built))
    return failure();
  if (!*built && !isa<ConstrainOp>(op))
    return op->emitOpError("cannot be computed on shards of this sharding");
  if (isa<graph::SeedOp>(op))
    resharder.addSeed((*built)->getResult(0));

  auto blamed = [&](ArrayRef<AxisRef> axes) { return causes.find(op, axes); };
  // Reshards the results to their declared shardings.
  for (auto [i, result] : llvm::enumerate(op->getResults())) {
    Value value =
        *built ? Value((*built)->getResult(i)) : local(op->getOperand(0));
    ReshardCause cause{op,
                       "result " + std::to_string(i) + " of '" +
                           op->getName().getStringRef().str() + "'",
                       blamed};
    Resharder::Refusal refusal;
    value = resharder.move(value, sharding(result), seedIndex, cause, refusal);
    if (!value) {
      InFlightDiagnostic diagnostic =
          op->emitOpError("cannot be partitioned: result ");
      diagnostic << i << " " << refusal.text;
      if (!split.conflict.empty())
        diagnostic.attachNote(op->getLoc()) << split.conflict;
      return about(refusal, diagnostic);
    }
    mapping.map(result, value);
  }
  return success();
}

/// Reshards the operands as `plan` requires and builds the op on one shard.
/// Returns null for an op without such a form, and for an annotation.
FailureOr<Operation *> Partitioner::buildOp(Operation *op, const OpPlan &plan) {
  if (isa<ConstrainOp>(op))
    return nullptr;
  unsigned seedIndex = seedOrder.of(op);
  auto blamed = [&](ArrayRef<AxisRef> axes) { return causes.find(op, axes); };
  SmallVector<Value> locals;
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    if (llvm::is_contained(plan.rule.unused, i)) {
      locals.push_back(local(operand));
      continue;
    }
    Sharding wanted = sharding(operand);
    auto dims =
        projectFactors(mesh, plan.rule, plan.rule.operands[i], plan.axes);
    dims.resize(wanted.dims.size());
    wanted.dims = std::move(dims);
    AxisList reduced;
    for (const PartialPlan::Reduction &reduction : plan.partial.reductions)
      if (reduction.operand == i)
        reduced.push_back(reduction.partial.axis);
    if (auto rest = withoutPartial(mesh, wanted.partial, reduced))
      wanted.partial = std::move(*rest);
    ReshardCause cause{op,
                       "operand " + std::to_string(i) + " of '" +
                           op->getName().getStringRef().str() + "'",
                       blamed};
    if (!plan.conflict.empty())
      cause.what += ": " + plan.conflict;
    Resharder::Refusal refusal;
    Value value =
        resharder.move(local(operand), wanted, seedIndex, cause, refusal);
    if (!value) {
      InFlightDiagnostic diagnostic =
          op->emitOpError("cannot be partitioned: ");
      diagnostic << graph::nameOperand(op->getOpOperand(i)) << " "
                 << refusal.text;
      if (!plan.conflict.empty())
        diagnostic.attachNote(op->getLoc()) << plan.conflict;
      return about(refusal, diagnostic);
    }
    locals.push_back(value);
  }

  SmallVector<Type> types;
  SmallVector<Attribute> globals, attributes;
  SmallVector<Sharding, 1> made;
  for (auto [i, result] : llvm::enumerate(op->getResults())) {
    Sharding &own = made.emplace_back(sharding(result));
    auto dims =
        projectFactors(mesh, plan.rule, plan.rule.results[i], plan.axes);
    dims.resize(own.dims.size());
    own.dims = std::move(dims);
    own.partial = plan.partial.results[i];
    auto type = localType(op->getLoc(), own, result.getType(), "result");
    if (failed(type))
      return failure();
    types.push_back(*type);
    globals.push_back(TypeAttr::get(result.getType()));
    attributes.push_back(ShardingAttr::get(meshName, own));
  }
  Operation *built = buildLocal(op, plan, locals, types);
  if (!built)
    return nullptr;
  if (!globals.empty()) {
    built->setAttr(kShardingsAttr, builder.getArrayAttr(attributes));
    built->setAttr(kGlobalTypesAttr, builder.getArrayAttr(globals));
  }
  for (auto [i, value] : llvm::enumerate(op->getResults()))
    resharder.define(built->getResult(i), made[i],
                     cast<RankedTensorType>(value.getType()), seedIndex);
  return built;
}

Operation *Partitioner::buildLocal(Operation *op, const OpPlan &plan,
                                   ValueRange operands, TypeRange types) {
  auto shardOffset = [&](RankedTensorType type,
                         const graph::FactorMapping &factors) -> Value {
    Sharding sharding = Sharding::replicated(type.getRank());
    sharding.dims = projectFactors(mesh, plan.rule, factors, plan.axes);
    if (llvm::all_of(sharding.dims, [&](ArrayRef<AxisRef> list) {
          return mesh.size(list) == 1;
        }))
      return {};
    auto result = RankedTensorType::get(type.getRank(), builder.getI64Type());
    auto offset =
        ShardOffsetOp::create(builder, op->getLoc(), result,
                              ShardingAttr::get(meshName, sharding), type);
    annotate(offset, ShardingAttr::get(meshName, Sharding::replicated(1)),
             result);
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

namespace {
struct PartitionPass : spmd::impl::PartitionBase<PartitionPass> {
  static LogicalResult partition(func::FuncOp function, MeshOp mesh) {
    if (!function.getBody().hasOneBlock())
      return function.emitOpError("must have one block to be partitioned");
    return Partitioner(function, mesh).run();
  }

  void runOnOperation() override {
    MeshOp mesh = findMesh(getOperation());
    if (!mesh) {
      getOperation().emitError("the module has no spmd.mesh");
      return signalPassFailure();
    }
    for (auto function :
         llvm::make_early_inc_range(getOperation().getOps<func::FuncOp>()))
      if (!function.isExternal() && failed(partition(function, mesh)))
        return signalPassFailure();
  }
};
} // namespace
