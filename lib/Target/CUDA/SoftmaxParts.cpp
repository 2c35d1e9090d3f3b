//===- SoftmaxParts.cpp - Passes of a softmax -----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "SoftmaxParts.h"
#include "cleave/Dialect/Exec/IR/OrderedReduce.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::cuda;
using namespace cleave::exec;

LoadOp cleave::cuda::loadOf(Value value) {
  if (auto wide = value.getDefiningOp<arith::ExtFOp>())
    value = wide.getIn();
  auto load = value.getDefiningOp<LoadOp>();
  return load && !load.getWhere() ? load : LoadOp();
}

bool cleave::cuda::readsSame(LoadOp a, LoadOp b) {
  return a.getMemory() == b.getMemory() && a.getMap() == b.getMap() &&
         a.getIndices() == b.getIndices();
}

ReduceOp cleave::cuda::onlyReduction(PassOp pass, ReductionKind kind) {
  Block &body = pass.getBody().front();
  auto yield = cast<YieldOp>(body.getTerminator());
  if (yield.getValues().size() != 1 || !body.getOps<StoreOp>().empty() ||
      !body.getOps<AccumulateOp>().empty() || !body.getOps<ScanOp>().empty())
    return {};
  auto reduce = yield.getValues()[0].getDefiningOp<ReduceOp>();
  return reduce && reduce.getKind() == kind && reduce.getType().isF32() &&
                 !reduce->hasAttr(kOrderedAttr)
             ? reduce
             : ReduceOp();
}

std::pair<LoadOp, Value> cleave::cuda::exponentialSum(PassOp pass) {
  ReduceOp sum = onlyReduction(pass, ReductionKind::Sum);
  auto exp = sum ? sum.getValue().getDefiningOp<math::ExpOp>() : math::ExpOp();
  auto minus =
      exp ? exp.getOperand().getDefiningOp<arith::SubFOp>() : arith::SubFOp();
  if (!minus)
    return {};
  Operation *from = minus.getRhs().getDefiningOp();
  if (from && from->getBlock() == &pass.getBody().front())
    return {};
  return {loadOf(minus.getLhs()), minus.getRhs()};
}
