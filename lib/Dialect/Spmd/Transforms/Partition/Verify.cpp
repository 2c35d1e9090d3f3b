//===- Verify.cpp - Checks a partitioned program --------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "cleave/Dialect/Spmd/IR/AxesText.h"
#include "cleave/Dialect/Spmd/IR/OfDevice.h"
#include "cleave/Dialect/Spmd/IR/OpFactors.h"
#include "cleave/Dialect/Spmd/IR/Resharding/Collective.h"
#include "cleave/Dialect/Spmd/IR/RingShifts.h"
#include "cleave/Dialect/Spmd/IR/SplitFurther.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"

namespace cleave::spmd {
#define GEN_PASS_DEF_VERIFYLOCAL
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"
} // namespace cleave::spmd

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {
/// The sharding and global type that attributes give to one value.
struct Claim {
  Sharding sharding;
  RankedTensorType global;
};

class Verifier {
public:
  Verifier(func::FuncOp function, const Mesh &mesh)
      : function(function), mesh(mesh), shifts(mesh) {}

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
      // No op on global tensors.
      if (op.hasAttr(kOfDeviceAttr))
        continue;
      if (std::optional<Collective> move = readCollective(&op)) {
        if (failed(verifyMove(&op, *move)))
          return failure();
      } else if (auto barrier = dyn_cast<BarrierOp>(op)) {
        if (failed(verifySame(barrier)))
          return failure();
      } else if (auto rows = dyn_cast<AllToAllRowsOp>(op)) {
        if (failed(verifyRows(rows)))
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
    // Axes of size 1 are ignored.
    llvm::erase_if(data.partial, [&](const PartialAxis &partial) {
      return mesh.size(partial.axis) == 1;
    });
    claims[value] = {std::move(data), type};
    return success();
  }

  LogicalResult readEntry(BlockArgument argument) {
    unsigned i = argument.getArgNumber();
    auto error = [&] { return graph::emitArgumentError(function, i) << " "; };
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

  /// Checks that a collective turns the sharding of its operand into that of
  /// its result.
  LogicalResult verifyMove(Operation *op, const Collective &move) {
    const Claim &from = claims.find(op->getOperand(0))->second;
    Sharding expected = from.sharding;
    if (std::optional<std::string> error =
            applyCollective(mesh, move, expected))
      return op->emitOpError() << *error;
    if (std::optional<std::string> error = shifts.move(op, move))
      return op->emitOpError() << *error;
    RankedTensorType global = collectiveType(mesh, move, from.global);
    if (move.into) {
      const Claim &into = claims.find(move.into)->second;
      if (!sameDims(mesh, expected.dims, into.sharding.dims) ||
          !samePartial(mesh, expected.partial, into.sharding.partial) ||
          global != into.global)
        return op->emitOpError("inserts a part with sharding ")
               << expected.str() << " of " << global
               << " into an accumulator with sharding " << into.sharding.str()
               << " of " << into.global;
    }
    return verifyClaim(op, expected, global);
  }

  /// Checks that dimension 0 is sharded over the axes of the collective, and
  /// the others alike.
  LogicalResult verifyRows(AllToAllRowsOp op) {
    ArrayRef<AxisRef> axes = op.getAxes().getAxes();
    auto verify = [&](Value value) -> LogicalResult {
      const Sharding &sharding = claims.find(value)->second.sharding;
      if (mesh.significant(sharding.dims[0]) == mesh.significant(axes))
        return success();
      return op.emitOpError("sends rows over ")
             << setOfAxes(AxisList(axes)) << " of a value of sharding "
             << sharding.str()
             << ", where they are not the axes of dimension 0";
    };
    for (Value operand : op->getOperands())
      if (failed(verify(operand)))
        return failure();
    for (Value offsets : {op.getSendOffsets(), op.getReceiveOffsets()})
      if (!claims.find(offsets)->second.sharding.partial.empty())
        return op.emitOpError("has partial offsets");
    const Claim &from = claims.find(op.getInput())->second;
    SmallVector<int64_t> shape(from.global.getShape());
    shape[0] = op.getOutput().getType().getDimSize(0) * mesh.size(axes);
    return verifyClaim(op, from.sharding, from.global.clone(shape));
  }

  LogicalResult verifySame(BarrierOp op) {
    const Claim &from = claims.find(op.getInput())->second;
    shifts.same(op);
    return verifyClaim(op, from.sharding, from.global);
  }

  LogicalResult verifyClaim(Operation *op, const Sharding &expected,
                            RankedTensorType global) {
    const Claim &to = claims.find(op->getResult(0))->second;
    if (!sameDims(mesh, expected.dims, to.sharding.dims) ||
        !samePartial(mesh, expected.partial, to.sharding.partial) ||
        global != to.global)
      return op->emitOpError("has sharding ")
             << to.sharding.str() << " of " << to.global << ", expected "
             << expected.str() << " of " << global;
    return success();
  }

  /// Returns the rule of `op` on global tensors, rebuilt from its form on
  /// shards.
  FailureOr<WholeRule> globalRule(Operation *op) {
    SmallVector<Type> operands, results;
    for (Value operand : op->getOperands())
      operands.push_back(claims.find(operand)->second.global);
    for (Value result : op->getResults())
      results.push_back(claims.find(result)->second.global);
    std::optional<WholeRule> rule = wholeRule(op, operands, results);
    if (!rule)
      return op->emitOpError("has no sharding rule");
    return std::move(*rule);
  }

  LogicalResult verifyOp(Operation *op) {
    FailureOr<WholeRule> whole = globalRule(op);
    if (failed(whole))
      return failure();
    const graph::ShardingRule *rule = &whole->rule;
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
        failed(verifyTensors(op, "result ", *rule, rule->results, results,
                             axes)) ||
        failed(verifyPlaces(op, *rule, whole->places, axes)))
      return failure();
    if (std::optional<std::string> error = shifts.op(op, *rule, axes))
      return op->emitOpError() << *error;

    PartialPlan plan = planPartials(mesh, *rule, axes, operands, elements);
    for (const PartialPlan::Reduction &reduction : plan.reductions)
      return op->emitOpError("is not linear in ")
             << graph::nameOperand(op->getOpOperand(reduction.operand))
             << ", which is partial on " << reduction.partial.axis.str()
             << ": a partial result escapes";
    for (auto [i, partial] : llvm::enumerate(plan.results)) {
      llvm::erase_if(partial, [&](const PartialAxis &entry) {
        return mesh.size(entry.axis) == 1;
      });
      if (!samePartial(mesh, partial, results[i]->partial)) {
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
      if (what == "operand " && llvm::is_contained(rule.unused, i))
        continue;
      auto wanted = projectFactors(mesh, rule, mapping, axes);
      wanted.resize(tensors[i]->dims.size());
      for (auto [dim, list] : llvm::enumerate(wanted))
        if (mesh.significant(list) != mesh.significant(tensors[i]->dims[dim]))
          return op->emitOpError(what)
                 << i << " has sharding " << tensors[i]->str()
                 << ", which does not agree with the other operands and "
                    "results in dimension "
                 << dim;
    }
    return success();
  }

  /// Checks that an op that depends on the offset of a shard reads that offset.
  LogicalResult verifyPlaces(Operation *op, const graph::ShardingRule &rule,
                             ArrayRef<graph::FactorMapping> places,
                             const FactorAxes &axes) {
    for (const graph::FactorMapping &mapping : places) {
      auto wanted = projectFactors(mesh, rule, mapping, axes);
      bool split = llvm::any_of(
          wanted, [&](ArrayRef<AxisRef> list) { return mesh.size(list) > 1; });
      bool known = false;
      for (Value operand : op->getOperands()) {
        auto offset = operand.getDefiningOp<ShardOffsetOp>();
        if (!offset)
          continue;
        known = true;
        Sharding place = offset.getSharding().getSharding();
        if (!sameDims(mesh, place.dims, wanted))
          return op->emitOpError("reads the offset of a shard of ")
                 << place.str()
                 << ", which is not the sharding of its operands";
      }
      if (split && !known)
        return op->emitOpError("does not read the offset of its shard");
    }
    return success();
  }

  LogicalResult verifyReturn(Operation *terminator) {
    for (auto [i, operand] : llvm::enumerate(terminator->getOperands())) {
      const Claim &claim = claims.find(operand)->second;
      auto declared =
          function.getResultAttrOfType<ShardingAttr>(i, kShardingAttr);
      if (!claim.sharding.partial.empty())
        return graph::emitResultError(function, i)
               << " is partial: " << claim.sharding.str();
      if (std::optional<std::string> error = shifts.result(operand))
        return terminator->emitOpError() << *error;
      if (!declared ||
          !sameDims(mesh, declared.getSharding().dims, claim.sharding.dims))
        return graph::emitResultError(function, i)
               << " has sharding " << claim.sharding.str()
               << ", not the one that the function declares";
    }
    return success();
  }

  func::FuncOp function;
  const Mesh &mesh;
  RingShifts shifts;
  llvm::DenseMap<Value, Claim> claims;
};

struct VerifyLocalPass : spmd::impl::VerifyLocalBase<VerifyLocalPass> {
  void runOnOperation() override {
    MeshOp meshOp = findMesh(getOperation());
    if (!meshOp) {
      getOperation().emitError("the module has no spmd.mesh");
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
