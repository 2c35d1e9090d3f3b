//===- DecomposeContraction.cpp - The steps of SUMMA ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Decomposes marked products into steps. The broadcasts for the next step come
/// before the product of this step. The steps of products that read the same
/// parts alternate, and share the broadcasts.
///
//===----------------------------------------------------------------------===//

#include "AlternateMatmuls.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"

namespace cleave::spmd {
#define GEN_PASS_DEF_DECOMPOSECONTRACTION
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"
} // namespace cleave::spmd

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

/// Builds the steps of a group at the last of its products.
static void decompose(ArrayRef<ContractionSteps *> products) {
  OpBuilder builder(products.back()->getOp());
  // Operands that several products read are broadcast once for all.
  SmallVector<std::pair<SentParts, Value>> shared;
  SmallVector<SmallVector<Value, 2>> operands(products.size());
  // The barrier waits for the seed of the last product, the latest one.
  for (size_t i = products.size(); i-- > 0;)
    for (unsigned index = 0; index < 2; ++index) {
      std::optional<SentParts> sent = products[i]->sent(index);
      auto known = llvm::find_if(
          shared, [&](const auto &other) { return other.first == sent; });
      bool isKnown = sent && known != shared.end();
      operands[i].push_back(isKnown ? known->second
                                    : products[i]->operand(builder, index));
      if (sent && !isKnown)
        shared.push_back({*sent, operands[i].back()});
    }

  llvm::DenseMap<std::pair<Value, int64_t>, Value> received;
  auto receive = [&](size_t turn) {
    size_t i = turn % products.size();
    int64_t part = turn / products.size();
    SmallVector<Value, 2> values = operands[i];
    for (unsigned index = 0; index < 2; ++index) {
      if (!products[i]->sent(index))
        continue;
      Value &known = received[{operands[i][index], part}];
      if (!known)
        known =
            products[i]->broadcast(builder, index, operands[i][index], part);
      values[index] = known;
    }
    return values;
  };
  size_t turns = products.size() * products.front()->getParts();
  SmallVector<Value, 2> next = receive(0);
  for (size_t turn = 0; turn < turns; ++turn) {
    SmallVector<Value, 2> own = next;
    if (turn + 1 < turns)
      next = receive(turn + 1);
    products[turn % products.size()]->step(builder, own,
                                           turn / products.size());
  }
  for (ContractionSteps *product : products)
    product->finish(builder);
}

namespace {
struct DecomposeContractionPass
    : spmd::impl::DecomposeContractionBase<DecomposeContractionPass> {
  static LogicalResult decompose(func::FuncOp function) {
    SmallVector<Operation *> ops;
    function.walk([&](Operation *op) {
      if (op->hasAttr(kStepsAttr))
        ops.push_back(op);
      else
        op->removeAttr(kHeldAttr);
    });
    if (ops.empty())
      return success();
    if (!function.getBody().hasOneBlock())
      return function.emitOpError("must have one block to be sharded");
    SeedOrder seedOrder(function.getBody().front());
    // The order is that of the ops before decomposition.
    std::vector<ContractionSteps> work;
    for (Operation *op : ops) {
      MeshOp mesh = lookupMesh(
          op, cast<ShardingAttr>(cast<ArrayAttr>(op->getAttr(kStepsAttr))[0])
                  .getMesh());
      auto costed = dyn_cast<graph::CostOpInterface>(op);
      bool known = isa<graph::GatherOp, graph::ScatterAddOp>(op) ||
                   (costed && isa<graph::ShardingRuleOpInterface>(op) &&
                    costed.getCost().work == graph::WorkClass::Contraction);
      if (!mesh || !known || op->getParentOp() != function)
        return op->emitOpError("cannot be decomposed into steps");
      work.emplace_back(op, mesh, seedOrder);
    }
    for (ContractionSteps &product : work)
      if (failed(product.read()))
        return failure();
    for (const AlternatingProducts &together : findAlternatingProducts(work))
      ::decompose(together);
    return success();
  }

  void runOnOperation() override {
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (!function.isExternal() && failed(decompose(function)))
        return signalPassFailure();
  }
};
} // namespace
