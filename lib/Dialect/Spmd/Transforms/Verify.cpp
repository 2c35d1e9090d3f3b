//===- Verify.cpp - Checks a partitioned program --------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Spmd/IR/OpFactors.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"

namespace cleave::spmd {
#define GEN_PASS_DEF_VERIFYLOCAL
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"
} // namespace cleave::spmd

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {
/// What the text says of one value.
struct Claim {
  Sharding sharding;
  RankedTensorType global;
};

class Verifier {
public:
  Verifier(func::FuncOp function, const Mesh &mesh)
      : function(function), mesh(mesh) {}

  LogicalResult run() {
    if (!function.getBody().hasOneBlock())
      return function.emitOpError("must have one block");
    Block &body = function.getBody().front();
    for (BlockArgument argument : body.getArguments())
      if (failed(readEntry(argument)))
        return failure();
    for (Operation &op : body.without_terminator()) {
      if (failed(readResults(&op)))
        return failure();
      if (auto reduction = dyn_cast<AllReduceOp>(op)) {
        if (failed(verifyReduction(reduction)))
          return failure();
      } else if (auto slice = dyn_cast<SliceOp>(op)) {
        if (failed(verifySlice(slice)))
          return failure();
      } else if (!isa<ShardOffsetOp>(op) && failed(verifyOp(&op))) {
        return failure();
      }
    }
    return verifyReturn(body.getTerminator());
  }

private:
  //===--- What the text claims -------------------------------------------===//

  LogicalResult record(Value value, ShardingAttr sharding, TypeAttr global,
                       function_ref<InFlightDiagnostic()> error) {
    if (!sharding || !global)
      return error() << "has no sharding or no global type";
    auto type = dyn_cast<RankedTensorType>(global.getValue());
    auto local = dyn_cast<RankedTensorType>(value.getType());
    Sharding data = sharding.getSharding();
    if (!type || !local ||
        type.getRank() != static_cast<int64_t>(data.dims.size()))
      return error() << "has a sharding that does not fit its type";
    unsigned dim;
    auto shape = localShape(mesh, data, type.getShape(), dim);
    if (!shape || RankedTensorType::get(*shape, type.getElementType()) != local)
      return error() << "has type " << local << ", which is not " << type
                     << " split by " << data.str();
    // Axes of size 1 split and sum nothing.
    llvm::erase_if(data.partial, [&](const PartialAxis &partial) {
      return mesh.size(partial.axis) == 1;
    });
    claims[value] = {std::move(data), type};
    return success();
  }

  LogicalResult readEntry(BlockArgument argument) {
    unsigned i = argument.getArgNumber();
    auto error = [&] { return function.emitOpError("argument ") << i << " "; };
    if (failed(record(
            argument, function.getArgAttrOfType<ShardingAttr>(i, kShardingAttr),
            function.getArgAttrOfType<TypeAttr>(i, kGlobalTypeAttr), error)))
      return failure();
    if (!claims[argument].sharding.partial.empty())
      return error() << "is partial";
    return success();
  }

  LogicalResult readResults(Operation *op) {
    auto shardings = op->getAttrOfType<ArrayAttr>(kShardingsAttr);
    auto globals = op->getAttrOfType<ArrayAttr>(kGlobalTypesAttr);
    for (auto [i, result] : llvm::enumerate(op->getResults())) {
      auto error = [&, i = i] {
        return op->emitOpError("result ") << i << " ";
      };
      if (failed(record(
              result,
              shardings ? dyn_cast<ShardingAttr>(shardings[i]) : ShardingAttr(),
              globals ? dyn_cast<TypeAttr>(globals[i]) : TypeAttr(), error)))
        return failure();
    }
    return success();
  }

  //===--- Ops
  //--------------------------------------------------------------===//

  LogicalResult verifyReduction(AllReduceOp op) {
    const Claim &from = claims.find(op.getInput())->second;
    const Claim &to = claims.find(op.getOutput())->second;
    Sharding expected = from.sharding;
    for (const AxisRef &axis : op.getAxes().getAxes()) {
      if (mesh.size(axis) == 1)
        continue;
      PartialAxis partial{axis, static_cast<PartialKind>(op.getKind())};
      if (!llvm::is_contained(expected.partial, partial))
        return op.emitOpError("reduces over ")
               << axis.str() << " a value that is not partial on it: sharding "
               << from.sharding.str();
      llvm::erase(expected.partial, partial);
    }
    if (expected.dims != to.sharding.dims ||
        expected.partial != to.sharding.partial || from.global != to.global)
      return op.emitOpError("has sharding ")
             << to.sharding.str() << " where its operand gives "
             << expected.str();
    return success();
  }

  LogicalResult verifySlice(SliceOp op) {
    const Claim &from = claims.find(op.getInput())->second;
    const Claim &to = claims.find(op.getOutput())->second;
    Sharding expected = from.sharding;
    for (auto [known, added] :
         llvm::zip(expected.dims, op.getSharding().getDims())) {
      known.append(added.axes.begin(), added.axes.end());
      known = mesh.normalize(known);
      for (const AxisRef &axis : added.axes)
        if (from.sharding.splits(mesh, axis) ||
            from.sharding.partialOn(mesh, axis))
          return op.emitOpError("splits over ")
                 << axis.str() << " a value of sharding "
                 << from.sharding.str();
    }
    if (expected.dims != to.sharding.dims ||
        expected.partial != to.sharding.partial || from.global != to.global)
      return op.emitOpError("has sharding ")
             << to.sharding.str() << " where its operand gives "
             << expected.str();
    return success();
  }

  /// The rule of `op` on whole tensors: its form on one shard, grown again.
  FailureOr<graph::ShardingRule> globalRule(Operation *op) {
    Block scratch;
    OpBuilder builder(op->getContext());
    builder.setInsertionPointToEnd(&scratch);
    SmallVector<Value> operands;
    SmallVector<Type> types;
    for (Value operand : op->getOperands())
      operands.push_back(scratch.addArgument(
          claims.find(operand)->second.global, op->getLoc()));
    for (Value result : op->getResults())
      types.push_back(claims.find(result)->second.global);
    Operation *whole = nullptr;
    if (auto partitionable = dyn_cast<graph::PartitionableOpInterface>(op)) {
      whole = partitionable.buildLocal(
          builder, operands, types,
          [](RankedTensorType, const graph::FactorMapping &) {
            return Value();
          });
    } else {
      whole = builder.clone(*op);
      whole->setOperands(operands);
      for (auto [result, type] : llvm::zip(whole->getResults(), types))
        result.setType(type);
    }
    auto ruled = dyn_cast_or_null<graph::ShardingRuleOpInterface>(whole);
    if (!ruled)
      return op->emitOpError("has no sharding rule");
    return ruled.getShardingRule();
  }

  LogicalResult verifyOp(Operation *op) {
    FailureOr<graph::ShardingRule> rule = globalRule(op);
    if (failed(rule))
      return failure();
    SmallVector<const Sharding *> operands, results;
    SmallVector<int64_t> elements;
    for (Value operand : op->getOperands()) {
      operands.push_back(&claims.find(operand)->second.sharding);
      elements.push_back(claims.find(operand)->second.global.getNumElements());
    }
    for (Value result : op->getResults())
      results.push_back(&claims.find(result)->second.sharding);

    bool agree = true;
    FactorAxes axes = mergeFactors(
        mesh, *rule, operands, results, [&](const std::string &conflict) {
          if (agree)
            op->emitOpError("shardings disagree: ") << conflict;
          agree = false;
        });
    if (!agree ||
        failed(verifyTensors(op, "operand ", *rule, rule->operands, operands,
                             axes)) ||
        failed(
            verifyTensors(op, "result ", *rule, rule->results, results, axes)))
      return failure();

    PartialPlan plan = planPartials(mesh, *rule, axes, operands, elements);
    for (const PartialPlan::Reduction &reduction : plan.reductions)
      return op->emitOpError("is not linear in operand ")
             << reduction.operand << ", which is partial on "
             << reduction.partial.axis.str() << ": a partial result escapes";
    for (auto [i, partial] : llvm::enumerate(plan.results)) {
      llvm::erase_if(partial, [&](const PartialAxis &entry) {
        return mesh.size(entry.axis) == 1;
      });
      if (!llvm::equal(partial, results[i]->partial)) {
        Sharding expected = *results[i];
        expected.partial.assign(partial.begin(), partial.end());
        return op->emitOpError("result ")
               << i << " is marked " << results[i]->str() << " but is "
               << expected.str();
      }
    }
    return success();
  }

  LogicalResult verifyTensors(Operation *op, StringRef what,
                              const graph::ShardingRule &rule,
                              ArrayRef<graph::FactorMapping> mappings,
                              ArrayRef<const Sharding *> tensors,
                              const FactorAxes &axes) {
    for (auto [i, mapping] : llvm::enumerate(mappings)) {
      if (what == "operand " && llvm::is_contained(rule.unread, i))
        continue;
      auto wanted = projectFactors(mesh, rule, mapping, axes);
      for (auto [dim, list] : llvm::enumerate(wanted))
        if (list != tensors[i]->dims[dim] &&
            mesh.size(list) * mesh.size(tensors[i]->dims[dim]) != 1)
          return op->emitOpError(what)
                 << i << " has sharding " << tensors[i]->str()
                 << ", which does not agree with the other operands and "
                    "results in dimension "
                 << dim;
    }
    return success();
  }

  LogicalResult verifyReturn(Operation *terminator) {
    for (auto [i, operand] : llvm::enumerate(terminator->getOperands())) {
      const Claim &claim = claims.find(operand)->second;
      auto declared =
          function.getResultAttrOfType<ShardingAttr>(i, kShardingAttr);
      if (!claim.sharding.partial.empty())
        return terminator->emitOpError("result ")
               << i << " is partial: " << claim.sharding.str();
      if (!declared || declared.getSharding().dims != claim.sharding.dims)
        return terminator->emitOpError("result ")
               << i << " has sharding " << claim.sharding.str()
               << ", not the one that the function declares";
    }
    return success();
  }

  func::FuncOp function;
  const Mesh &mesh;
  llvm::DenseMap<Value, Claim> claims;
};

struct VerifyLocalPass : spmd::impl::VerifyLocalBase<VerifyLocalPass> {
  void runOnOperation() override {
    MeshOp meshOp = findMesh(getOperation());
    if (!meshOp) {
      getOperation().emitError("there is no spmd.mesh");
      return signalPassFailure();
    }
    Mesh mesh = meshOp.getMesh();
    bool valid = true;
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (!function.isExternal())
        valid &= succeeded(Verifier(function, mesh).run());
    if (!valid)
      signalPassFailure();
  }
};
} // namespace
