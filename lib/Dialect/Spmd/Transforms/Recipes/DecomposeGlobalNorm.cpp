//===- DecomposeGlobalNorm.cpp - The norm of all gradients ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "DecomposeGlobalNorm.h"
#include "cleave/Dialect/Graph/IR/Attributes/OrderedSum.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include <set>

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

GlobalNormDecomposition::GlobalNormDecomposition(ModuleOp module,
                                                 int64_t grains)
    : grains(grains) {
  module.walk([&](graph::GlobalNormOp op) { norms.push_back({op, {}}); });
  for (Norm &norm : norms) {
    OpBuilder builder(norm.op);
    graph::Formula f{builder, norm.op.getLoc()};
    SmallVector<Value> sums;
    for (Value tensor : norm.op.getGradients()) {
      Value squares = f.mul(tensor, tensor);
      auto dims = llvm::to_vector(llvm::seq<int64_t>(
          0, cast<RankedTensorType>(tensor.getType()).getRank()));
      Value sum = dims.empty() ? squares : f.sum(squares, dims);
      norm.squares.push_back({sum, tensor});
      sums.push_back(sum);
    }
    // Scalar operands do not join the gradients' dimension classes.
    norm.op.getGradientsMutable().assign(sums);
  }
}

namespace {
/// The shardings of gradients as they are annotated.
class GradientShardings {
public:
  explicit GradientShardings(Annotator &annotator) : annotator(annotator) {}

  /// The sharding of the `graph.gradient` before casts and products with
  /// constants.
  Sharding of(Value gradient);

private:
  Annotator &annotator;
  /// The arguments of each function by name.
  DenseMap<Operation *, llvm::StringMap<BlockArgument>> arguments;
};
} // namespace

Sharding GradientShardings::of(Value gradient) {
  Sharding sharding =
      Sharding::replicated(graph::tensorTypeOf(gradient).getRank());
  while (Operation *op = gradient.getDefiningOp()) {
    if (isa<graph::GradientOp>(op) || op->getNumOperands() == 0 ||
        llvm::any_of(op->getOperands().drop_front(), [](Value operand) {
          return !operand.getDefiningOp<graph::ConstantOp>();
        }))
      break;
    gradient = op->getOperand(0);
  }
  auto op = gradient.getDefiningOp<graph::GradientOp>();
  if (!op)
    return sharding;
  if (auto constrain = op.getInput().getDefiningOp<ConstrainOp>())
    return constrain.getSharding().getSharding();
  auto function = op->getParentOfType<func::FuncOp>();
  auto [own, fresh] = arguments.try_emplace(function);
  if (fresh)
    for (BlockArgument argument : function.getArguments())
      own->second[graph::getArgString(function, argument.getArgNumber(),
                                      graph::kNameAttr)] = argument;
  BlockArgument argument = own->second.lookup(op.getParameter());
  return argument ? annotator.given(argument) : sharding;
}

/// Returns all axes of `sharding`, sorted, as one text.
static std::string axesOf(const Sharding &sharding) {
  std::set<std::string> axes;
  for (const AxisList &list : sharding.dims)
    for (const AxisRef &axis : list)
      axes.insert(axis.str());
  return llvm::join(axes, " ");
}

namespace {
/// Builds sums of squares by grains.
class GrainSums {
public:
  /// `annotator` is null without a mesh, and there are no `shardings` then.
  GrainSums(Annotator *annotator, std::optional<GradientShardings> &shardings,
            int64_t grains, graph::Formula f)
      : annotator(annotator), shardings(shardings), grains(grains), f(f) {
    if (annotator)
      samples = annotator->sampleAxes();
  }

  /// Returns the sum of the squares of `tensor`, and the axes over which it is
  /// partial.
  std::pair<Value, std::string> build(Value tensor);

private:
  Value constrain(Value value, const Sharding &sharding) {
    return annotator
               ? annotator->constrain(f.builder, value, sharding).getOutput()
               : value;
  }
  Value sum(Value value, ArrayRef<int64_t> dims) {
    auto op = graph::ReduceOp::create(f.builder, f.loc,
                                      graph::ReductionKind::Sum, value, dims);
    op->setAttr(graph::kOrderedAttr, f.builder.getUnitAttr());
    return op;
  }
  /// Sums the squares of `value` over all dimensions but `kept`.
  Value sumSquares(Value value, std::optional<int64_t> kept);

  Annotator *annotator;
  std::optional<GradientShardings> &shardings;
  int64_t grains;
  graph::Formula f;
  AxisList samples;
};
} // namespace

Value GrainSums::sumSquares(Value value, std::optional<int64_t> kept) {
  Value sums = f.mul(value, value);
  int64_t rank = graph::tensorTypeOf(value).getRank();
  // Rows first: each is one run of memory.
  if (rank > 1 && kept != rank - 1)
    sums = sum(sums, {--rank});
  SmallVector<int64_t> rest;
  for (int64_t dim = 0; dim < rank; ++dim)
    if (kept != dim)
      rest.push_back(dim);
  return rest.empty() ? sums : sum(sums, rest);
}

std::pair<Value, std::string> GrainSums::build(Value tensor) {
  auto type = graph::tensorTypeOf(tensor);
  int64_t rank = type.getRank();
  Sharding given =
      shardings ? shardings->of(tensor) : Sharding::replicated(rank);
  // The same without the axes of the samples.
  Sharding fixed = Sharding::replicated(rank);
  SmallVector<AxisList> sampled(rank);
  SmallVector<int64_t> parts(rank, 1);
  for (auto [dim, axes] : llvm::enumerate(given.dims)) {
    for (const AxisRef &axis : axes)
      (annotator->getMesh().overlap(axis, samples) ? sampled[dim]
                                                   : fixed.dims[dim])
          .push_back(axis);
    if (annotator)
      parts[dim] = annotator->getMesh().size(fixed.dims[dim]);
  }
  std::optional<unsigned> best = bestSlicedDim(type, parts, grains);
  if (!best)
    return {sumSquares(constrain(tensor, fixed), std::nullopt), axesOf(fixed)};
  // Dimension `best` becomes [parts, grains, rest], without sizes of 1.
  SmallVector<int64_t> shape;
  Sharding sliced;
  int64_t kept = 0;
  auto append = [&](int64_t size, const AxisList &axes) {
    shape.push_back(size);
    sliced.dims.push_back(axes);
    sliced.open.push_back(false);
  };
  for (auto [dim, size] : llvm::enumerate(type.getShape())) {
    if (dim != *best) {
      append(size, fixed.dims[dim]);
      continue;
    }
    if (parts[dim] != 1)
      append(parts[dim], fixed.dims[dim]);
    kept = shape.size();
    append(grains, sampled[dim]);
    if (int64_t rest = size / parts[dim] / grains; rest != 1)
      append(rest, {});
  }
  Value slices = sumSquares(constrain(f.reshape(tensor, shape), sliced), kept);
  return {sum(constrain(slices, Sharding::replicated(1)), {0}), ""};
}

void GlobalNormDecomposition::finish(Annotator *annotator) {
  std::optional<GradientShardings> shardings;
  if (annotator)
    shardings.emplace(*annotator);
  for (Norm &norm : norms) {
    OpBuilder builder(norm.op);
    graph::Formula f{builder, norm.op.getLoc()};
    GrainSums sums(annotator, shardings, grains, f);
    SmallVector<std::pair<Value, std::string>> terms;
    for (auto [sum, tensor] : norm.squares)
      terms.push_back(grains > 0
                          ? sums.build(tensor)
                          : std::pair(sum, axesOf(shardings->of(tensor))));
    // From the last parameter to the first, as pipelines add up their stages.
    llvm::MapVector<std::string, Value, std::map<std::string, unsigned>> groups;
    for (auto &[term, axes] : llvm::reverse(terms)) {
      Value &group = groups[axes];
      group = group ? f.add(group, term) : term;
    }
    Value total;
    for (auto &[axes, group] : groups)
      total = total ? f.add(total, group) : group;
    replace(norm, total);
  }
}

void GlobalNormDecomposition::replace(Norm &norm, Value total) {
  OpBuilder builder(norm.op);
  norm.op.getOutput().replaceAllUsesWith(
      graph::SqrtOp::create(builder, norm.op.getLoc(), total));
  norm.op.erase();
  // Sums that others replace.
  for (auto [sum, tensor] : norm.squares)
    for (Operation *op = sum.getDefiningOp(); op && op->use_empty();) {
      Operation *square = op->getOperand(0).getDefiningOp();
      bool reduces = isa<graph::ReduceOp>(op);
      op->erase();
      op = reduces ? square : nullptr;
    }
}
