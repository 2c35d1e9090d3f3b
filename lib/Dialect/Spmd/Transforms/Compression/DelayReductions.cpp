//===- DelayReductions.cpp - Delayed gradients summed a step later --------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A delayed gradient waits as the terms of each worker, which the next step
/// adds up. Nothing of that sum depends on what the next step computes, so that
/// it overlaps with all of it (`pipe::Exchanges`). The worker is a dimension of
/// the state that waits: the result is a program on whole tensors.
///
//===----------------------------------------------------------------------===//

#include "WorkerGradients.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/Transforms/UpdateDelay.h"
#include "cleave/Dialect/Spmd/IR/Cause.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "cleave/Dialect/Spmd/Transforms/Recipes.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/SetVector.h"

namespace cleave::spmd {
#define GEN_PASS_DEF_DELAYREDUCTIONS
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"
} // namespace cleave::spmd

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {

/// A gradient that waits, and the state in which it does.
struct WaitingGradient {
  graph::GradientOp gradient;
  BlockArgument parameter, pending;
  /// The result that updates the state.
  unsigned result = 0;
  /// The sharding of the terms of one worker.
  Sharding sharding;
  /// How a recipe places the gradient, or null.
  ConstrainOp placed;
};

/// Rewrites the entry that trains.
class ReductionDelay {
public:
  ReductionDelay(func::FuncOp step, MeshOp meshOp)
      : step(step), body(step.getBody().front()),
        meshName(FlatSymbolRefAttr::get(meshOp)), mesh(meshOp.getMesh()),
        builder(step.getContext()) {}

  LogicalResult run();

private:
  FailureOr<SampleOrder> findOrder();
  FailureOr<std::optional<WaitingGradient>> choose(BlockArgument pending,
                                                   WorkerGradients &workers);
  LogicalResult rewrite(WaitingGradient &own, WorkerGradients &workers);
  void sumPending(WaitingGradient &own, RankedTensorType whole);
  LogicalResult replaceReaders(graph::GradientOp gradient, Value parts);
  LogicalResult replaceReader(Operation *op,
                              llvm::DenseMap<Value, Value> &parts,
                              SmallVectorImpl<Value> &work);

  BlockArgument argumentNamed(StringRef name, StringRef role);
  Location because(Location loc) {
    return withCause(loc, "delayed gradients are summed in the next step");
  }

  func::FuncOp step;
  Block &body;
  FlatSymbolRefAttr meshName;
  Mesh mesh;
  OpBuilder builder;
  /// Over which samples are sharded, major to minor: the workers.
  AxisList axes;
};

} // namespace

//===----------------------------------------------------------------------===//
// What waits
//===----------------------------------------------------------------------===//

BlockArgument ReductionDelay::argumentNamed(StringRef name, StringRef role) {
  for (BlockArgument argument : step.getArguments())
    if (graph::hasRole(step, argument.getArgNumber(), role) &&
        graph::getArgString(step, argument.getArgNumber(), graph::kNameAttr) ==
            name)
      return argument;
  return {};
}

/// The order of samples, `[micro-batches, workers, rest]`, of all inputs.
FailureOr<SampleOrder> ReductionDelay::findOrder() {
  std::optional<AxisList> found;
  int64_t samples = 0;
  for (BlockArgument argument : step.getArguments()) {
    auto dim = step.getArgAttrOfType<IntegerAttr>(argument.getArgNumber(),
                                                  graph::kBatchDimAttr);
    if (!dim)
      continue;
    AxisList own = givenSharding(step, argument).dims[dim.getInt()];
    if (found && *found != own)
      return emitError(argument.getLoc())
             << "delayed reductions: inputs are sharded in different orders";
    found = own;
    samples = tensorTypeOf(argument).getDimSize(dim.getInt());
  }
  SampleOrder order;
  if (found)
    for (const AxisRef &axis : *found) {
      if (!mesh.isSequential(axis)) {
        axes.push_back(axis);
        continue;
      }
      if (!axes.empty())
        return step.emitError("delayed reductions: samples are sharded over "
                              "micro-batches within workers");
      order.outer *= mesh.size(axis);
    }
  order.workers = mesh.size(axes);
  if (order.workers <= 1)
    return step.emitError("delayed reductions: no axis of the mesh shards "
                          "samples, so that no gradient is summed over ranks; "
                          "leave out 'reduce=next'");
  if (samples % (order.outer * order.workers) != 0)
    return step.emitError("delayed reductions: ")
           << samples << " samples are not divisible by "
           << order.outer * order.workers
           << ", the shards of the batch in all micro-batches";
  return order;
}

FailureOr<std::optional<WaitingGradient>>
ReductionDelay::choose(BlockArgument pending, WorkerGradients &workers) {
  unsigned index = pending.getArgNumber();
  StringRef parameter = graph::getArgString(step, index, graph::kOfAttr),
            name = graph::getArgString(step, index, graph::kNameAttr);
  WaitingGradient own;
  own.pending = pending;
  own.parameter = argumentNamed(parameter, "parameter");
  for (auto gradient : body.getOps<graph::GradientOp>())
    if (gradient.getParameter() == parameter)
      own.gradient = gradient;
  bool isWritten = false;
  for (unsigned i = 0; i < step.getNumResults() && !isWritten; ++i) {
    auto updates = step.getResultAttrOfType<StringAttr>(i, graph::kUpdatesAttr);
    isWritten = updates && updates.getValue() == name;
    own.result = i;
  }
  if (!own.parameter || !own.gradient || !isWritten)
    return step.emitError("the state '") << name << "' belongs to no gradient";
  own.sharding = givenSharding(step, own.parameter);
  own.placed = own.gradient.getInput().getDefiningOp<ConstrainOp>();
  Value sum = own.gradient.getInput();
  if (own.placed) {
    // As for compression: a recipe may keep the gradient whole on each rank.
    own.sharding = own.placed.getSharding().getSharding();
    bool splits = llvm::any_of(axes, [&](const AxisRef &axis) {
      return own.sharding.splits(mesh, axis);
    });
    if (splits && !own.placed.getReduced())
      return emitError(own.parameter.getLoc())
             << "delayed reductions: no rank has the whole gradient of \""
             << parameter << "\", which a recipe shards over the workers: use '"
             << recipesThat(keepsGradientsWhole)
             << "', or leave out 'reduce=next'";
    for (AxisList &list : own.sharding.dims)
      llvm::erase_if(
          list, [&](const AxisRef &axis) { return mesh.overlap(axis, axes); });
    sum = own.placed.getInput();
  }
  // What is sharded over the workers themselves, as experts are, has no sum
  // over them.
  if (llvm::any_of(axes,
                   [&](const AxisRef &axis) {
                     return own.sharding.splits(mesh, axis);
                   }) ||
      !workers.isSum(sum))
    return std::optional<WaitingGradient>();
  return std::optional(own);
}

//===----------------------------------------------------------------------===//
// The rewrite
//===----------------------------------------------------------------------===//

/// Gives the state a dimension of workers; what reads it reads its sum.
void ReductionDelay::sumPending(WaitingGradient &own, RankedTensorType whole) {
  unsigned index = own.pending.getArgNumber();
  SmallVector<int64_t> shape{mesh.size(axes)};
  llvm::append_range(shape, whole.getShape());
  BlockArgument pending = own.pending;
  SmallVector<OpOperand *> readers;
  for (OpOperand &use : pending.getUses())
    readers.push_back(&use);
  pending.setType(RankedTensorType::get(shape, whole.getElementType()));
  Sharding place = own.sharding;
  place.dims.insert(place.dims.begin(), axes);
  place.open.assign(place.dims.size(), false);
  auto attribute = ShardingAttr::get(meshName, place);
  step.setArgAttr(index, kShardingAttr, attribute);
  step.setResultAttr(own.result, kShardingAttr, attribute);
  SmallVector<int64_t> dims =
      llvm::to_vector(llvm::seq<int64_t>(-1, whole.getRank()));
  step.setArgAttr(index, graph::kParameterDimsAttr,
                  builder.getDenseI64ArrayAttr(dims));
  // Another number of workers adds up what waits, and shares it.
  step.setArgAttr(index, graph::kSummedAttr, builder.getUnitAttr());
  if (auto known = step.getArgAttrOfType<DenseI64ArrayAttr>(
          index, graph::kFrameworkShapeAttr)) {
    SmallVector<int64_t> framework{mesh.size(axes)};
    llvm::append_range(framework, known.asArrayRef());
    step.setArgAttr(index, graph::kFrameworkShapeAttr,
                    builder.getDenseI64ArrayAttr(framework));
  }
  builder.setInsertionPointToStart(&body);
  Formula f{builder, because(own.gradient.getLoc())};
  Value sum = f.sum(pending, {0});
  if (ConstrainOp placed = own.placed) {
    IRMapping mapping;
    mapping.map(placed.getInput(), sum);
    Operation *copy = builder.clone(*placed, mapping);
    copy->setLoc(f.loc);
    sum = copy->getResult(0);
  }
  for (OpOperand *reader : readers)
    reader->set(sum);
}

/// Replaces what reads a gradient by what reads the terms of each worker.
LogicalResult ReductionDelay::replaceReaders(graph::GradientOp gradient,
                                             Value parts) {
  llvm::DenseMap<Value, Value> known;
  known[gradient.getOutput()] = parts;
  SmallVector<Value> work{gradient.getOutput()};
  llvm::SetVector<Operation *> replaced;
  while (!work.empty()) {
    Value value = work.pop_back_val();
    for (Operation *user : llvm::make_early_inc_range(value.getUsers()))
      if (replaced.insert(user) && failed(replaceReader(user, known, work)))
        return failure();
  }
  for (Operation *op : llvm::reverse(replaced))
    op->erase();
  gradient.erase();
  return success();
}

LogicalResult ReductionDelay::replaceReader(Operation *op,
                                            llvm::DenseMap<Value, Value> &parts,
                                            SmallVectorImpl<Value> &work) {
  builder.setInsertionPoint(op);
  Formula f{builder, op->getLoc()};
  Value first = parts.lookup(op->getOperand(0));
  if (auto written = dyn_cast<graph::WrittenOp>(op)) {
    auto fresh = graph::WrittenOp::create(builder, op->getLoc(), first,
                                          written.getBufferAttr());
    op->replaceAllUsesWith(fresh);
    return success();
  }
  if (auto reduce = dyn_cast<graph::ReduceOp>(op);
      reduce && reduce.getKind() == graph::ReductionKind::Sum &&
      tensorTypeOf(reduce.getOutput()).getRank() == 0) {
    // A check of all elements.
    auto dims =
        llvm::to_vector(llvm::seq<int64_t>(0, tensorTypeOf(first).getRank()));
    reduce.getOutput().replaceAllUsesWith(f.sum(first, dims));
    return success();
  }
  bool isPointwise =
      op->hasTrait<OpTrait::PointwiseOp>() && op->getNumResults() == 1;
  SmallVector<Value> operands;
  ArrayRef<int64_t> shape;
  for (Value operand : op->getOperands()) {
    Value own = parts.lookup(operand);
    operands.push_back(own ? own : operand);
    if (own)
      shape = tensorTypeOf(own).getShape();
    else
      isPointwise &= tensorTypeOf(operand).getRank() == 0;
  }
  if (!isPointwise)
    return op->emitOpError("reads a gradient whose reduction is delayed: it "
                           "would have to wait for it; leave out "
                           "'reduce=next'");
  Value result = op->getResult(0);
  OperationState state(op->getLoc(), op->getName());
  state.addOperands(operands);
  state.addTypes(
      RankedTensorType::get(shape, tensorTypeOf(result).getElementType()));
  state.addAttributes(op->getAttrs());
  parts[result] = builder.create(state)->getResult(0);
  work.push_back(result);
  return success();
}

LogicalResult ReductionDelay::rewrite(WaitingGradient &own,
                                      WorkerGradients &workers) {
  graph::GradientOp gradient = own.gradient;
  ConstrainOp placed = own.placed;
  FailureOr<Value> parts =
      workers.partsOf(placed ? placed.getInput() : gradient.getInput());
  if (failed(parts))
    return failure();
  sumPending(own, tensorTypeOf(gradient.getOutput()));
  builder.setInsertionPoint(gradient);
  Location loc = because(gradient.getLoc());
  Value terms =
      ConstrainOp::create(builder, loc, *parts,
                          step.getArgAttrOfType<ShardingAttr>(
                              own.pending.getArgNumber(), kShardingAttr));
  auto made = graph::GradientOp::create(builder, loc, terms,
                                        gradient.getParameterAttr());
  return replaceReaders(gradient, made.getOutput());
}

LogicalResult ReductionDelay::run() {
  std::string slot = (graph::kPendingSlot + Twine(1)).str();
  SmallVector<BlockArgument> pending;
  for (BlockArgument argument : step.getArguments())
    if (graph::getArgString(step, argument.getArgNumber(), graph::kSlotAttr) ==
        slot)
      pending.push_back(argument);
  FailureOr<SampleOrder> order = findOrder();
  if (failed(order))
    return failure();
  WorkerGradients workers(step, *order);
  std::vector<WaitingGradient> chosen;
  for (BlockArgument argument : pending) {
    FailureOr<std::optional<WaitingGradient>> one = choose(argument, workers);
    if (failed(one))
      return failure();
    if (*one)
      chosen.push_back(**one);
  }
  if (chosen.empty())
    return step.emitError("delayed reductions: no gradient that waits is "
                          "summed over ranks; leave out 'reduce=next'");
  for (WaitingGradient &one : chosen)
    if (failed(rewrite(one, workers)))
      return failure();
  step.setFunctionType(builder.getFunctionType(
      body.getArgumentTypes(), body.getTerminator()->getOperandTypes()));
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(body)))
    if (isOpTriviallyDead(&op))
      op.erase();
  return success();
}

namespace {
struct DelayReductionsPass final
    : spmd::impl::DelayReductionsBase<DelayReductionsPass> {
  using DelayReductionsBase::DelayReductionsBase;

  void runOnOperation() override {
    MeshOp mesh = findMesh(getOperation());
    if (!mesh) {
      getOperation().emitError("delayed reductions need a mesh");
      return signalPassFailure();
    }
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (!function.isExternal() &&
          !function.getBody().front().getOps<graph::GradientOp>().empty() &&
          failed(ReductionDelay(function, mesh).run()))
        return signalPassFailure();
  }
};
} // namespace
