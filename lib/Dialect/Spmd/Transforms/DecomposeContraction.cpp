//===- DecomposeContraction.cpp - The steps of SUMMA ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// van de Geijn and Watts, "SUMMA" (1997), as Xu et al. use it (Optimus, arXiv
/// 2104.05343): each step multiplies one part of what would have to be
/// gathered. What the next step multiplies is sent before this one computes.
///
//===----------------------------------------------------------------------===//

#include "Eras.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/IR/Cause.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "llvm/ADT/StringExtras.h"

namespace cleave::spmd {
#define GEN_PASS_DEF_DECOMPOSECONTRACTION
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"
} // namespace cleave::spmd

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {

/// One dimension of an operand or of the result, and how it is split.
struct Dimension {
  unsigned dim;
  AxisList axes;
};

/// One contraction.
class Steps {
public:
  Steps(Operation *op, MeshOp mesh, const Eras &eras)
      : op(op), mesh(mesh.getMesh()), meshName(FlatSymbolRefAttr::get(mesh)),
        builder(op) {
    for (unsigned i = 0; i < 2; ++i)
      early[i] = eras.of(op->getOperand(i)) < eras.of(op) &&
                 eras.of(op->getOperand(1 - i)) == eras.of(op);
  }

  LogicalResult run() {
    auto marks = cast<ArrayAttr>(op->getAttr(kStepsAttr));
    for (Attribute mark : marks)
      lies.push_back(cast<ShardingAttr>(mark));
    op->removeAttr(kStepsAttr);
    if (failed(findFactor()))
      return failure();
    // Where things lie is said in any case.
    SmallVector<Value, 2> operands;
    for (unsigned i = 0; i < 2; ++i)
      operands.push_back(constrain(again(i), lies[i]));
    Value result;
    if (parts == 1) {
      Operation *same = builder.clone(*op);
      same->setOperands(operands);
      result = same->getResult(0);
    } else if (auto lookup = dyn_cast<graph::GatherOp>(op)) {
      result = addLookups(lookup, operands);
    } else if (auto scatter = dyn_cast<graph::ScatterAddOp>(op)) {
      result = reduceScatters(scatter, operands);
    } else if (at[0] && at[1]) {
      result = addProducts(operands);
    } else {
      result = reduceProducts(operands, at[0] ? 0 : 1);
    }
    op->getResult(0).replaceAllUsesWith(constrain(result, lies[2]));
    op->erase();
    return success();
  }

private:
  LogicalResult findTable(ShardingAttr lie, unsigned tensor, int64_t dim);
  LogicalResult findFactor();
  Value addLookups(graph::GatherOp lookup, ValueRange operands);
  Value reduceScatters(graph::ScatterAddOp scatter, ValueRange operands);
  Value addProducts(ArrayRef<Value> operands);
  Value reduceProducts(ArrayRef<Value> operands, unsigned moved);

  /// Sent again in backward: what forward received is not kept.
  Value again(unsigned index) {
    Value value = op->getOperand(index), other = op->getOperand(1 - index);
    if (!early[index])
      return value;
    return BarrierOp::create(builder, op->getLoc(), value.getType(), value,
                             other);
  }

  Value constrain(Value value, ShardingAttr sharding) {
    return ConstrainOp::create(builder, op->getLoc(), value.getType(), value,
                               sharding, /*reduced=*/false);
  }

  Location location(StringRef what) {
    return withCause(op->getLoc(), ("the steps of SUMMA over " + what).str());
  }

  std::string text(ArrayRef<AxisRef> axes) {
    return llvm::join(
        llvm::map_range(axes, [](const AxisRef &axis) { return axis.str(); }),
        ", ");
  }

  Value broadcast(Value value, const Dimension &along, int64_t part) {
    auto type = cast<RankedTensorType>(value.getType());
    SmallVector<int64_t> shape(type.getShape());
    shape[along.dim] /= parts;
    return BroadcastOp::create(builder, location(text(along.axes)),
                               type.clone(shape), value, meshName.getValue(),
                               AxesAttr::get(builder.getContext(), along.axes),
                               along.dim, part);
  }

  Value place(int64_t index) {
    auto type = RankedTensorType::get(1, builder.getI64Type());
    return graph::ConstantOp::create(
        builder, op->getLoc(), DenseElementsAttr::get(type, ArrayRef(index)));
  }

  Value multiply(Value lhs, Value rhs, RankedTensorType type) {
    Operation *step = builder.clone(*op);
    step->setOperands({lhs, rhs});
    step->getResult(0).setType(type);
    return step->getResult(0);
  }

  Operation *op;
  Mesh mesh;
  FlatSymbolRefAttr meshName;
  OpBuilder builder;
  /// The operands that were there before what the op belongs to.
  bool early[2];
  /// Of both operands and of the result.
  SmallVector<ShardingAttr, 3> lies;
  /// Where they have the factor that lies in two ways.
  std::optional<Dimension> at[3];
  int64_t parts = 1;
};
} // namespace

/// The one factor that two of the three have, split over different axes.
LogicalResult Steps::findFactor() {
  if (auto lookup = dyn_cast<graph::GatherOp>(op))
    return findTable(lies[0], 0, lookup.getDim());
  if (auto scatter = dyn_cast<graph::ScatterAddOp>(op))
    return findTable(lies[2], 2, scatter.getDim());
  auto rule = cast<graph::ShardingRuleOpInterface>(op).getShardingRule();
  const graph::FactorMapping *mappings[] = {
      &rule.operands[0], &rule.operands[1], &rule.results[0]};
  bool found = false;
  for (auto [factor, info] : llvm::enumerate(rule.factors)) {
    std::optional<Dimension> own[3];
    SmallVector<Dimension, 3> known;
    for (unsigned i = 0; i < 3; ++i)
      for (auto [dim, factors] : llvm::enumerate(*mappings[i]))
        if (llvm::is_contained(factors, static_cast<int64_t>(factor))) {
          AxisList axes = mesh.significant(lies[i].getSharding().dims[dim]);
          own[i] = Dimension{static_cast<unsigned>(dim), axes};
          known.push_back(*own[i]);
        }
    if (known.size() != 2 || known[0].axes == known[1].axes)
      continue;
    int64_t sizes[] = {mesh.size(known[0].axes), mesh.size(known[1].axes)};
    if (sizes[0] != sizes[1])
      return op->emitOpError("splits a dimension of ")
             << info.size << " over " << text(known[0].axes) << " and over "
             << text(known[1].axes) << ", which have " << sizes[0] << " and "
             << sizes[1] << " positions: steps need as many of both";
    if (info.size % sizes[0] != 0)
      return op->emitOpError("has a dimension of ")
             << info.size << ", which the " << sizes[0] << " positions of "
             << text(known[0].axes) << " do not divide";
    if (found)
      return op->emitOpError("has two dimensions that lie in two ways: steps "
                             "go along one");
    found = true;
    parts = sizes[0];
    std::copy(std::begin(own), std::end(own), std::begin(at));
  }
  return success();
}

/// Where a table is cut that is looked up, or that is added to.
LogicalResult Steps::findTable(ShardingAttr lie, unsigned tensor, int64_t dim) {
  AxisList axes = mesh.significant(lie.getSharding().dims[dim]);
  Value table = tensor == 2 ? op->getResult(0) : op->getOperand(tensor);
  int64_t size = cast<RankedTensorType>(table.getType()).getDimSize(dim);
  parts = mesh.size(axes);
  if (size % parts != 0)
    return op->emitOpError("has a dimension of ")
           << size << ", which the " << parts << " positions of " << text(axes)
           << " do not divide";
  at[tensor] = Dimension{static_cast<unsigned>(dim), axes};
  return success();
}

/// What a part does not hold is 0.
Value Steps::addLookups(graph::GatherOp lookup, ValueRange operands) {
  int64_t size = lookup.getInput().getType().getDimSize(lookup.getDim());
  Value sum, next = broadcast(operands[0], *at[0], 0);
  for (int64_t part = 0; part < parts; ++part) {
    Value own = next;
    if (part + 1 < parts)
      next = broadcast(operands[0], *at[0], part + 1);
    Value origin = place(part * (size / parts));
    auto step = cast<graph::GatherOp>(builder.clone(*op));
    step->setOperands(0, 2, {own, operands[1]});
    step.getOriginMutable().assign(origin);
    step.setGlobalSize(lookup.getGlobalSize().value_or(size));
    sum = sum ? graph::AddOp::create(builder, op->getLoc(), sum, step)
              : step.getOutput();
  }
  return sum;
}

/// What goes elsewhere is dropped.
Value Steps::reduceScatters(graph::ScatterAddOp scatter, ValueRange operands) {
  const Dimension &to = *at[2];
  auto whole = scatter.getOutput().getType();
  SmallVector<int64_t> shape(whole.getShape());
  int64_t size = shape[to.dim];
  shape[to.dim] /= parts;
  auto axes = AxesAttr::get(builder.getContext(), to.axes);
  Value sum;
  for (int64_t part = 0; part < parts; ++part) {
    Value origin = place(part * shape[to.dim]);
    auto step = cast<graph::ScatterAddOp>(builder.clone(*op));
    step->setOperands(0, 2, operands);
    step.getOriginMutable().assign(origin);
    step.setGlobalSize(scatter.getGlobalSize().value_or(size));
    step.setSize(shape[to.dim]);
    step.getOutput().setType(whole.clone(shape));
    sum = ReduceOp::create(builder, location(text(to.axes)), whole,
                           step.getOutput(), sum, meshName.getValue(), axes,
                           to.dim, part);
  }
  return sum;
}

/// Both operands have the factor, which is summed over: one part of each.
Value Steps::addProducts(ArrayRef<Value> operands) {
  auto send = [&](int64_t part) {
    return std::pair(broadcast(operands[0], *at[0], part),
                     broadcast(operands[1], *at[1], part));
  };
  auto type = cast<RankedTensorType>(op->getResult(0).getType());
  Value sum;
  std::pair<Value, Value> next = send(0);
  for (int64_t part = 0; part < parts; ++part) {
    auto [lhs, rhs] = next;
    if (part + 1 < parts)
      next = send(part + 1);
    Value product = multiply(lhs, rhs, type);
    sum = sum ? graph::AddOp::create(builder, op->getLoc(), sum, product)
              : product;
  }
  return sum;
}

/// Operand `moved` and the result have the factor: a part of one makes a
/// summand of that part of the other.
Value Steps::reduceProducts(ArrayRef<Value> operands, unsigned moved) {
  const Dimension &from = *at[moved], &to = *at[2];
  auto whole = cast<RankedTensorType>(op->getResult(0).getType());
  SmallVector<int64_t> shape(whole.getShape());
  shape[to.dim] /= parts;
  RankedTensorType type = whole.clone(shape);
  auto axes = AxesAttr::get(builder.getContext(), to.axes);
  Value sum, next = broadcast(operands[moved], from, 0);
  for (int64_t part = 0; part < parts; ++part) {
    Value own = next;
    if (part + 1 < parts)
      next = broadcast(operands[moved], from, part + 1);
    Value product = moved == 0 ? multiply(own, operands[1], type)
                               : multiply(operands[0], own, type);
    sum = ReduceOp::create(builder, location(text(to.axes)), whole, product,
                           sum, meshName.getValue(), axes, to.dim, part);
  }
  return sum;
}

namespace {
struct DecomposeContractionPass
    : spmd::impl::DecomposeContractionBase<DecomposeContractionPass> {
  static LogicalResult decompose(func::FuncOp function) {
    SmallVector<Operation *> ops;
    function.walk([&](Operation *op) {
      if (op->hasAttr(kStepsAttr))
        ops.push_back(op);
    });
    if (ops.empty())
      return success();
    if (!function.getBody().hasOneBlock())
      return function.emitOpError("must have one block to be sharded");
    Eras eras(function.getBody().front());
    // Eras are those of ops that are there now.
    std::vector<Steps> work;
    for (Operation *op : ops) {
      MeshOp mesh = lookupMesh(
          op, cast<ShardingAttr>(cast<ArrayAttr>(op->getAttr(kStepsAttr))[0])
                  .getMesh());
      auto costed = dyn_cast<graph::CostOpInterface>(op);
      bool known = isa<graph::GatherOp, graph::ScatterAddOp>(op) ||
                   (costed && isa<graph::ShardingRuleOpInterface>(op) &&
                    costed.getCost().work == graph::WorkClass::Contraction);
      if (!mesh || !known)
        return op->emitOpError("is nothing that could go in steps");
      work.emplace_back(op, mesh, eras);
    }
    for (Steps &steps : work)
      if (failed(steps.run()))
        return failure();
    return success();
  }

  void runOnOperation() override {
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (!function.isExternal() && failed(decompose(function)))
        return signalPassFailure();
  }
};
} // namespace
