//===- Resharder.cpp - Collectives that reshard values --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Resharder.h"
#include "cleave/Dialect/Graph/IR/TensorBytes.h"
#include "cleave/Dialect/Spmd/IR/Cause.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Remarks.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

void Resharder::define(Value local, const Sharding &sharding,
                       RankedTensorType global, unsigned seedIndex) {
  values[local] = {sharding, global, seedIndex, nullptr};
}

double Resharder::elements(const Known &known) {
  double result = 1;
  for (auto [size, axes] :
       llvm::zip_equal(known.global.getShape(), known.sharding.dims))
    result *= size / mesh.size(axes);
  return result;
}

/// Returns the smallest of `value` and its origins, the latest one of several.
Value Resharder::smallestForm(Value value) {
  Value best = value;
  while (Value origin = values.find(value)->second.origin) {
    value = origin;
    if (elements(values.find(value)->second) <
        elements(values.find(best)->second))
      best = value;
  }
  return best;
}

/// Whether `to` has what `from` has in its dimensions, or the first axes of it.
static bool isGatheredFrom(const Mesh &mesh, const Sharding &to,
                           const Sharding &from) {
  return to.partial.empty() && from.partial.empty() &&
         llvm::all_of(llvm::zip_equal(to.dims, from.dims), [&](auto pair) {
           return mesh.isPrefix(std::get<0>(pair), std::get<1>(pair));
         });
}

Value Resharder::move(Value local, const Sharding &to, unsigned seedIndex,
                      const ReshardCause &cause, Refusal &refusal) {
  if (seedIndex > values.find(local)->second.seedIndex)
    if (Value smallest = smallestForm(local); smallest != local) {
      // A value that is gathered further for this reader is gathered as others
      // read it first: what they have is not sent again.
      Sharding between = values.find(local)->second.sharding;
      local = smallest;
      if (isGatheredFrom(mesh, to, between))
        local = move(local, between, seedIndex, cause, refusal);
      if (!local)
        return {};
    }
  // Copied, since inserting values invalidates references into the table.
  Known from = values.find(local)->second;
  const ReshardPlan &plan =
      planner.plan(from.sharding, to, from.global.getShape(),
                   elementBytes(from.global.getElementType()));
  if (!plan.error.empty()) {
    refusal = {"has sharding " + from.sharding.str() +
                   " and cannot be resharded to " + to.str() + ": " +
                   plan.error,
               plan.alongSequential};
    return {};
  }
  // The steps up to the smallest form belong to the seed index of the value;
  // the later ones to that of the reader.
  size_t own = 0;
  double least = elements(from);
  for (auto [i, move] : llvm::enumerate(plan.moves))
    if (double size =
            elements({move.sharding, from.global, seedIndex, nullptr});
        size <= least) {
      own = i + 1;
      least = size;
    }
  Value value = local;
  for (auto [i, move] : llvm::enumerate(plan.moves)) {
    if (i == own && seedIndex > from.seedIndex)
      value = barrier(value, seedIndex, cause.op->getLoc());
    value = step(value, move, i >= own, cause);
  }
  return value;
}

Value Resharder::step(Value value, const Collective &move, bool here,
                      const ReshardCause &cause) {
  std::string key =
      std::to_string(static_cast<int>(move.kind)) + move.sharding.str();
  Value &result = moved[{value.getAsOpaquePointer(), key}];
  if (result)
    return result;
  Known from = values.find(value)->second;
  OpBuilder::InsertionGuard guard(builder);
  if (!here && value.getDefiningOp())
    builder.setInsertionPointAfterValue(value);
  result = buildCollective(builder, cause.op->getLoc(), value, move, meshName,
                           mesh, from.global);
  define(result, move.sharding, from.global, from.seedIndex);
  values[result].origin = value;
  explain(result, from.sharding, cause);
  return result;
}

Value Resharder::barrier(Value value, unsigned seedIndex, Location loc) {
  Value &result = barriers[{value.getAsOpaquePointer(), seedIndex}];
  if (result)
    return result;
  Known from = values.find(value)->second;
  auto op = BarrierOp::create(builder, loc, value.getType(), value,
                              seeds[seedIndex - 1]);
  annotate(op, ShardingAttr::get(meshName, from.sharding), from.global);
  result = op;
  define(result, from.sharding, from.global, seedIndex);
  return result;
}

/// Puts the cause of a collective into its location, and emits a remark.
void Resharder::explain(Value moved, const Sharding &from,
                        const ReshardCause &cause) {
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
      remark::passed(op->getLoc(), remark::RemarkOpts::name("Collective")
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
