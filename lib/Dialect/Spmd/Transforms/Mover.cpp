//===- Mover.cpp - Brings values to other shardings -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Mover.h"
#include "cleave/Dialect/Graph/IR/TensorBytes.h"
#include "cleave/Dialect/Spmd/IR/Cause.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Remarks.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

void Mover::define(Value local, const Sharding &sharding,
                   RankedTensorType global, unsigned era) {
  values[local] = {sharding, global, era, nullptr};
}

double Mover::elements(const Known &known) {
  double result = 1;
  for (auto [size, axes] :
       llvm::zip_equal(known.global.getShape(), known.sharding.dims))
    result *= size / mesh.size(axes);
  return result;
}

/// Of `value` and all that it was moved from, the latest of the smallest.
Value Mover::smallestForm(Value value) {
  Value best = value;
  while (Value origin = values.find(value)->second.origin) {
    value = origin;
    if (elements(values.find(value)->second) <
        elements(values.find(best)->second))
      best = value;
  }
  return best;
}

Value Mover::move(Value local, const Sharding &to, unsigned era,
                  const MoveCause &cause, std::string &error) {
  if (era > values.find(local)->second.era)
    local = smallestForm(local);
  // A copy: new values move the table.
  Known from = values.find(local)->second;
  const ReshardPlan &plan =
      planner.plan(from.sharding, to, from.global.getShape(),
                   elementBytes(from.global.getElementType()));
  if (!plan.error.empty()) {
    error = "has sharding " + from.sharding.str() + " and cannot be moved to " +
            to.str() + ": " + plan.error;
    return {};
  }
  // How far the value moves in its own era: to its smallest form.
  size_t own = 0;
  double least = elements(from);
  for (auto [i, move] : llvm::enumerate(plan.moves))
    if (double size = elements({move.sharding, from.global, era, nullptr});
        size <= least) {
      own = i + 1;
      least = size;
    }
  Value value = local;
  for (auto [i, move] : llvm::enumerate(plan.moves)) {
    if (i == own && era > from.era)
      value = barrier(value, era, cause.op->getLoc());
    value = step(value, move, i >= own, cause);
  }
  return value;
}

Value Mover::step(Value value, const Move &move, bool here,
                  const MoveCause &cause) {
  std::string key =
      std::to_string(static_cast<int>(move.kind)) + move.sharding.str();
  Value &result = moved[{value.getAsOpaquePointer(), key}];
  if (result)
    return result;
  Known from = values.find(value)->second;
  OpBuilder::InsertionGuard guard(builder);
  if (!here && value.getDefiningOp())
    builder.setInsertionPointAfterValue(value);
  result = buildMove(builder, cause.op->getLoc(), value, move, meshName, mesh,
                     from.global);
  define(result, move.sharding, from.global, from.era);
  values[result].origin = value;
  explain(result, from.sharding, cause);
  return result;
}

Value Mover::barrier(Value value, unsigned era, Location loc) {
  Value &result = barriers[{value.getAsOpaquePointer(), era}];
  if (result)
    return result;
  Known from = values.find(value)->second;
  auto op =
      BarrierOp::create(builder, loc, value.getType(), value, seeds[era - 1]);
  annotate(op, ShardingAttr::get(meshName, from.sharding), from.global);
  result = op;
  define(result, from.sharding, from.global, era);
  return result;
}

/// The movement's cause goes into its location, and all of it into a remark.
void Mover::explain(Value moved, const Sharding &from, const MoveCause &cause) {
  Operation *op = moved.getDefiningOp();
  auto communication = dyn_cast<CommunicationOpInterface>(op);
  if (!communication)
    return;
  std::string annotation;
  if (cause.annotation)
    annotation = cause.annotation(communication.getCommunicationAxes());
  op->setLoc(withCause(op->getLoc(), annotation));
  auto function = op->getParentOfType<func::FuncOp>();
  auto remark =
      remark::passed(op->getLoc(), remark::RemarkOpts::name("Movement")
                                       .category("spmd-partition")
                                       .function(function.getSymName()));
  if (!remark)
    return;
  std::string axes;
  for (const AxisRef &axis : communication.getCommunicationAxes())
    axes += (axes.empty() ? "" : ", ") + axis.str();
  remark << remark::metric("Op", op->getName().getStringRef())
         << remark::metric("Axes", axes)
         << remark::metric(
                "Bytes",
                llvm::formatv("{0}", communication.getBytesSent(mesh)).str())
         << remark::metric("From", from.str())
         << remark::metric("To", shardingOf(moved).str())
         << remark::metric("Cause", cause.what)
         << remark::metric("Annotation", annotation);
}
