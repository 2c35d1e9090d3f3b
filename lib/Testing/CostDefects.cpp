//===- CostDefects.cpp - Plans that are too dear --------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Testing/CostDefects.h"
#include "cleave/Dialect/Graph/Analysis/Work.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Planning/CostForms.h"
#include "cleave/Planning/PlanPhases.h"

using namespace mlir;
using namespace cleave;

static int64_t elementsOf(Value value) {
  return cast<RankedTensorType>(value.getType()).getNumElements();
}

static FloatType floatOf(Value value) {
  return dyn_cast<FloatType>(
      cast<RankedTensorType>(value.getType()).getElementType());
}

/// The ops of `entry` for which `chosen` holds and that have floats, the
/// largest results first.
static SmallVector<Operation *>
largest(func::FuncOp entry, int64_t most,
        llvm::function_ref<bool(Operation *)> chosen) {
  SmallVector<Operation *> ops;
  for (Operation &op : entry.getBody().front().without_terminator())
    if (op.getNumResults() && op.getNumOperands() && floatOf(op.getResult(0)) &&
        floatOf(op.getOperand(0)) && op.getOperand(0).getDefiningOp() &&
        chosen(&op))
      ops.push_back(&op);
  llvm::stable_sort(ops, [](Operation *a, Operation *b) {
    return elementsOf(a->getResult(0)) > elementsOf(b->getResult(0));
  });
  if (static_cast<int64_t>(ops.size()) > most)
    ops.resize(most);
  return ops;
}

/// Gives `made`, which has one result, what is said of `value` on the mesh.
static void placeLike(Operation *made, Value value) {
  auto result = cast<OpResult>(value);
  Operation *op = result.getOwner();
  for (NamedAttribute attribute : op->getDiscardableAttrs())
    if (auto all = dyn_cast<ArrayAttr>(attribute.getValue());
        all && all.size() == op->getNumResults())
      made->setDiscardableAttr(
          attribute.getName(),
          ArrayAttr::get(op->getContext(), all[result.getResultNumber()]));
}

/// Computes `op` again on the negative of an operand, so that nothing merges
/// the two, and adds the results.
static void repeat(Operation *op) {
  OpBuilder builder(op->getContext());
  builder.setInsertionPointAfter(op);
  Value operand = op->getOperand(0);
  Operation *negative = graph::NegOp::create(builder, op->getLoc(), operand);
  placeLike(negative, operand);
  Operation *again = builder.clone(*op);
  again->setOperand(0, negative->getResult(0));
  Operation *sum = graph::AddOp::create(builder, op->getLoc(), op->getResult(0),
                                        again->getResult(0));
  placeLike(sum, op->getResult(0));
  op->getResult(0).replaceUsesWithIf(
      sum->getResult(0), [&](OpOperand &use) { return use.getOwner() != sum; });
}

template <typename Op>
static int64_t repeatCollectives(func::FuncOp entry, int64_t most) {
  auto ops = largest(entry, most, [](Operation *op) { return isa<Op>(op); });
  llvm::for_each(ops, repeat);
  return ops.size();
}

template <graph::WorkClass Work>
static int64_t repeatWork(func::FuncOp entry, int64_t most) {
  auto ops = largest(entry, most, [](Operation *op) {
    auto costed = dyn_cast<graph::CostOpInterface>(op);
    return costed && costed.getCost().work == Work;
  });
  llvm::for_each(ops, repeat);
  return ops.size();
}

/// Sends f32 in the place of 16 bits.
static int64_t widen(func::FuncOp entry, int64_t most) {
  auto ops = largest(entry, most, [](Operation *op) {
    return isa<spmd::CommunicationOpInterface>(op) &&
           floatOf(op->getOperand(0)).getWidth() == 16;
  });
  for (Operation *op : ops) {
    OpBuilder builder(op);
    Type wide = builder.getF32Type();
    Type narrow = floatOf(op->getResult(0));
    auto cast = graph::CastOp::create(
        builder, op->getLoc(),
        llvm::cast<RankedTensorType>(op->getOperand(0).getType()).clone(wide),
        op->getOperand(0));
    placeLike(cast, op->getOperand(0));
    op->setOperand(0, cast.getOutput());
    auto type = llvm::cast<RankedTensorType>(op->getResult(0).getType());
    op->getResult(0).setType(type.clone(wide));
    builder.setInsertionPointAfter(op);
    auto back = graph::CastOp::create(builder, op->getLoc(), type.clone(narrow),
                                      op->getResult(0));
    placeLike(back, op->getResult(0));
    op->getResult(0).replaceAllUsesExcept(back.getOutput(), back);
  }
  return ops.size();
}

/// Sums gradients of parameters over all axes of the mesh once more.
static int64_t reduceGradients(func::FuncOp entry, int64_t most) {
  auto ops = largest(entry, most,
                     [](Operation *op) { return isa<graph::GradientOp>(op); });
  spmd::MeshOp mesh = spmd::findMesh(entry->getParentOfType<ModuleOp>());
  SmallVector<spmd::AxisRef> axes;
  for (const spmd::MeshAxis &axis : mesh.getMesh().axes)
    if (axis.size > 1 && !axis.sequential)
      axes.push_back({axis.name});
  for (Operation *op : ops) {
    OpBuilder builder(op);
    auto sum = spmd::AllReduceOp::create(
        builder, op->getLoc(), op->getOperand(0).getType(),
        ReductionKindAttr::get(builder.getContext(), ReductionKind::Sum),
        op->getOperand(0), FlatSymbolRefAttr::get(mesh.getSymNameAttr()),
        spmd::AxesAttr::get(builder.getContext(), axes));
    placeLike(sum, op->getOperand(0));
    op->setOperand(0, sum.getOutput());
  }
  return ops.size();
}

/// Reduces what was reduced, in forward and backward: a sum too many.
static int64_t reduceAgain(func::FuncOp entry, int64_t most) {
  auto ops = largest(entry, most,
                     [](Operation *op) { return isa<spmd::AllReduceOp>(op); });
  for (Operation *op : ops) {
    OpBuilder builder(op->getContext());
    builder.setInsertionPointAfter(op);
    Operation *again = builder.clone(*op);
    again->setOperand(0, op->getResult(0));
    op->getResult(0).replaceUsesWithIf(
        again->getResult(0),
        [&](OpOperand &use) { return use.getOwner() != again; });
  }
  return ops.size();
}

llvm::ArrayRef<CostDefect> cleave::costDefects() {
  static const CostDefect all[] = {
      {"repeated all_gather", repeatCollectives<spmd::AllGatherOp>},
      {"repeated all_reduce", repeatCollectives<spmd::AllReduceOp>},
      {"repeated reduce_scatter", repeatCollectives<spmd::ReduceScatterOp>},
      {"repeated all_to_all", repeatCollectives<spmd::AllToAllOp>},
      {"repeated rotate", repeatCollectives<spmd::RotateOp>},
      {"repeated contraction", repeatWork<graph::WorkClass::Contraction>},
      {"repeated attention", repeatWork<graph::WorkClass::Attention>},
      {"f32 on the wire", widen},
      {"gradients reduced over all axes", reduceGradients},
      {"sums reduced again", reduceAgain},
  };
  return all;
}

FailureOr<CostFacts> cleave::judgeCost(ModuleOp model,
                                       const CompileOptions &options,
                                       const CompileOptions &planned,
                                       const CostDefect *defect, int64_t most,
                                       int64_t &seeded) {
  OwningOpRef<ModuleOp> module = model.clone();
  closedforms::ModelSizes sizes;
  seeded = 0;
  auto after = [&](Phase phase, ModuleOp reached) {
    if (phase == Phase::Model)
      sizes = findSizes(reached);
    else if (phase == Phase::Local && defect)
      seeded = defect->seed(reached.lookupSymbol<func::FuncOp>("train"), most);
  };
  CompileOptions unverified = planned, own = options;
  // Sums too many are no mistake here.
  unverified.verify = Verify::Never;
  Decisions decisions;
  if (failed(
          runPhases(*module, Phase::Executable, unverified, after, &decisions)))
    return failure();
  FailureOr<PlannedProgram> program = planProgram(*module, planned);
  if (failed(program))
    return failure();
  settleTarget(own);
  closedforms::StepOptions step =
      findStepOptions(own, own.phases.recompute, sizes);
  return findCost(*module, closedforms::findForm(sizes, step), step,
                  decisions.operations, program->memory);
}
