//===- Prune.cpp - Weights that stay zero ---------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Multiplies updated weights by masks, on whole tensors. A mask is chosen by
/// magnitudes of the updated weight up to a step; from then on it is what is
/// not zero already, so that no state is needed, and a weight that is pruned
/// stays zero whatever the optimizer does.
///
/// All ops depend on the update, and therefore are part of it.
///
//===----------------------------------------------------------------------===//

#include "Optimizers/UpdateBuilder.h"
#include "cleave/Dialect/Graph/Transforms/ContractionWeights.h"
#include "cleave/Dialect/Graph/Transforms/Passes.h"
#include "cleave/Dialect/Graph/Transforms/Pruning.h"
#include <cmath>

namespace cleave::graph {
#define GEN_PASS_DEF_PRUNE
#include "cleave/Dialect/Graph/Transforms/Passes.h.inc"
} // namespace cleave::graph

using namespace mlir;
using namespace cleave::graph;

std::optional<PruneSettings> cleave::graph::parsePruning(StringRef text,
                                                         std::string &error) {
  auto fail = [&](const Twine &why) {
    error = ("pruning '" + text + "': " + why).str();
    return std::nullopt;
  };
  SmallVector<StringRef> parts;
  text.split(parts, ',');
  PruneSettings settings;
  std::optional<int64_t> steps;
  StringRef schedule;
  if (parts[0].contains(':')) {
    if (parts[0] != "2:4")
      return fail("the pattern of groups is 2:4, not '" + parts[0] + "'");
    settings.groups = true;
  } else if (double share; parts[0].getAsDouble(share)) {
    return fail("'" + parts[0] +
                "' is neither 2:4 nor the share of elements that are zero");
  } else if (!(share > 0.0 && share < 1.0)) {
    return fail("the share of elements that are zero must be above 0 and below "
                "1, got " +
                parts[0]);
  } else {
    settings.sparsity = share;
  }
  for (StringRef part : llvm::drop_begin(parts)) {
    auto [name, value] = part.split('=');
    if (name == "steps") {
      int64_t number;
      if (value.getAsInteger(10, number) || number < 1)
        return fail("steps must be a positive integer, got '" + value + "'");
      if (steps)
        return fail("steps is given twice");
      steps = number;
    } else if (part == "cubic" || part == "constant") {
      if (!schedule.empty())
        return fail("the schedule is given twice");
      schedule = part;
    } else if (part.contains('=')) {
      return fail("unknown setting '" + name + "'; there is steps");
    } else {
      return fail("unknown schedule '" + part +
                  "'; there are constant and cubic");
    }
  }
  settings.cubic = schedule == "cubic";
  if (settings.groups && settings.cubic)
    return fail("half of each group is zero, which has no schedule of its "
                "own: leave out cubic");
  settings.steps = steps.value_or(settings.cubic ? 1000 : 1);
  return settings;
}

std::string cleave::graph::pruningProblem(StringRef text) {
  std::string error;
  parsePruning(text, error);
  return error;
}

namespace {

/// Rewrites the entry that trains.
class Pruning {
public:
  Pruning(func::FuncOp step, const PruneSettings &settings)
      : step(step), settings(settings), builder(step.getContext()) {}

  LogicalResult run();

private:
  std::string problem(const ContractionWeight &weight,
                      const TrainedParameter &parameter) const;
  Value prune(const ContractionWeight &weight,
              const TrainedParameter &parameter, Value updated);
  Value largestOfFour(Formula &f, Value size, const ContractionWeight &weight);
  Value largestOfAll(Formula &f, Value size, const TrainedParameter &parameter);
  Value sparsity();
  int64_t removed(int64_t elements) const {
    return static_cast<int64_t>(std::floor(settings.sparsity * elements + 0.5));
  }

  func::FuncOp step;
  const PruneSettings &settings;
  OpBuilder builder;
  /// The number of the update, from 1.
  Value number;
  /// The sparsity of this step, an f64 scalar, with a schedule.
  Value share;
};

} // namespace

/// Why the mask would be of no use; else "".
std::string Pruning::problem(const ContractionWeight &weight,
                             const TrainedParameter &parameter) const {
  if (!weight.reason.empty())
    return weight.reason;
  if (settings.groups) {
    int64_t inputs = 1;
    for (int64_t dim : weight.inputs)
      inputs *= parameter.type().getDimSize(dim);
    return inputs % 4 == 0 ? ""
                           : "its " + std::to_string(inputs) +
                                 " inputs are not divisible by 4";
  }
  int64_t elements = parameter.elements(), zero = removed(elements);
  return zero > 0 && zero < elements
             ? ""
             : "of its " + std::to_string(elements) + " elements " +
                   (zero ? "all" : "none") + " would be zero";
}

/// Whether an element is one of the two largest of its group of four. Of equal
/// magnitudes the lower index comes first.
Value Pruning::largestOfFour(Formula &f, Value size,
                             const ContractionWeight &weight) {
  SmallVector<int64_t> order(weight.outputs),
      back(order.size() + weight.inputs.size());
  llvm::append_range(order, weight.inputs);
  for (auto [at, dim] : llvm::enumerate(order))
    back[dim] = at;
  bool isSorted = llvm::is_sorted(order);
  if (!isSorted)
    size = TransposeOp::create(f.builder, f.loc, size, order);
  SmallVector<int64_t> shape(tensorTypeOf(size).getShape()), groups;
  int64_t inputs = 1;
  for (auto [at, extent] : llvm::enumerate(shape)) {
    if (at < weight.outputs.size())
      groups.push_back(extent);
    else
      inputs *= extent;
  }
  // Where the last dimension has whole groups, it alone is split, so that
  // dimensions before it stay as they may be sharded.
  if (shape.back() % 4 == 0) {
    groups.assign(shape.begin(), shape.end() - 1);
    inputs = shape.back();
  }
  groups.append({inputs / 4, 4});
  Value grouped = f.reshape(size, groups);
  SmallVector<int64_t> one(groups), zeros(groups.size(), 0),
      strides(groups.size(), 1);
  one.back() = 1;
  Value of[4], above[4][4];
  for (int64_t i = 0; i < 4; ++i) {
    SmallVector<int64_t> offsets(zeros);
    offsets.back() = i;
    of[i] = SliceOp::create(f.builder, f.loc, grouped, offsets, one, strides);
  }
  for (int i = 0; i < 4; ++i)
    for (int j = i + 1; j < 4; ++j) {
      above[i][j] = f.compare(Predicate::ge, of[i], of[j]);
      above[j][i] = NotOp::create(f.builder, f.loc, above[i][j]);
    }
  auto both = [&](Value a, Value b) -> Value {
    return AndOp::create(f.builder, f.loc, a, b);
  };
  auto either = [&](Value a, Value b) -> Value {
    return OrOp::create(f.builder, f.loc, a, b);
  };
  // An element stays where it is above at least two of the three others.
  SmallVector<Value> keep;
  for (int i = 0; i < 4; ++i) {
    SmallVector<Value> wins;
    for (int j = 0; j < 4; ++j)
      if (j != i)
        wins.push_back(above[i][j]);
    keep.push_back(either(both(wins[0], wins[1]),
                          both(wins[2], either(wins[0], wins[1]))));
  }
  Value mask = ConcatOp::create(f.builder, f.loc, keep, groups.size() - 1);
  mask = f.reshape(mask, shape);
  return isSorted ? mask : TransposeOp::create(f.builder, f.loc, mask, back);
}

/// s (1 - (1 - min(t/T, 1))^3).
Value Pruning::sparsity() {
  if (share)
    return share;
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPointToStart(&step.getBody().front());
  Formula f{builder, step.getLoc()};
  Value t = f.cast(number, builder.getF64Type());
  Value part = f.mul(t, f.scalar(t, 1.0 / settings.steps));
  part = MinimumOp::create(builder, f.loc, part, f.scalar(t, 1.0));
  // Of the last step the quotient may be rounded.
  part =
      f.select(f.compare(Predicate::ge, number,
                         f.scalar(number, static_cast<double>(settings.steps))),
               f.scalar(t, 1.0), part);
  Value left = f.sub(f.scalar(t, 1.0), part);
  Value cube = f.mul(left, f.mul(left, left));
  return share = f.mul(f.sub(f.scalar(t, 1.0), cube),
                       f.scalar(t, settings.sparsity));
}

/// Whether an element is among the largest of its tensor, of which as many are
/// removed as the sparsity says, rounded. Of equal magnitudes the lower index
/// comes first.
Value Pruning::largestOfAll(Formula &f, Value size,
                            const TrainedParameter &parameter) {
  int64_t elements = parameter.elements();
  SmallVector<int64_t> shape(tensorTypeOf(size).getShape());
  int64_t tensors = ShapedType::getNumElements(shape) / elements;
  int64_t most = settings.cubic ? elements : elements - removed(elements);
  auto largest = TopKOp::create(f.builder, f.loc,
                                f.reshape(size, {tensors, elements}), most);
  Value taken = f.splat(tensorTypeOf(largest.getValues()), 1.0);
  if (settings.cubic) {
    Value s = sparsity();
    Value zero = FloorOp::create(
        f.builder, f.loc,
        f.add(f.mul(s, f.scalar(s, static_cast<double>(elements))),
              f.scalar(s, 0.5)));
    Value kept = f.cast(f.sub(f.scalar(s, static_cast<double>(elements)), zero),
                        builder.getI64Type());
    Value place = IotaOp::create(
        f.builder, f.loc,
        RankedTensorType::get({tensors, most}, builder.getI64Type()), 1, 0);
    taken = f.cast(f.compare(Predicate::lt, place, kept),
                   tensorTypeOf(largest.getValues()).getElementType());
  }
  Value mask = ScatterAddOp::create(
      f.builder, f.loc, taken, largest.getIndices(), Value(),
      builder.getI64IntegerAttr(1), builder.getI64IntegerAttr(elements),
      IntegerAttr(), IntegerAttr(), builder.getI64IntegerAttr(1));
  return f.reshape(f.compare(Predicate::ne, mask, f.scalar(mask, 0.0)), shape);
}

Value Pruning::prune(const ContractionWeight &weight,
                     const TrainedParameter &parameter, Value updated) {
  builder.setInsertionPointAfterValue(updated);
  Formula f{builder, updated.getLoc()};
  Value zero = f.scalar(updated, 0.0);
  Value size = AbsOp::create(builder, f.loc, updated);
  Value chosen = settings.groups ? largestOfFour(f, size, weight)
                                 : largestOfAll(f, size, parameter);
  // Of the weight before the update, read by an op that is part of the update.
  Value before =
      f.select(f.compare(Predicate::ne, updated, zero), weight.argument, zero);
  Value isFixed =
      f.compare(Predicate::gt, number,
                f.scalar(number, static_cast<double>(settings.steps)));
  Value mask =
      f.select(isFixed, f.compare(Predicate::ne, before, zero), chosen);
  return f.select(mask, updated, zero);
}

LogicalResult Pruning::run() {
  auto returnOp = cast<func::ReturnOp>(step.getBody().front().getTerminator());
  for (BlockArgument argument : step.getArguments())
    if (hasRole(step, argument.getArgNumber(), "scalar") &&
        getArgString(step, argument.getArgNumber(), kNameAttr) == "step")
      number = argument;
  if (!number)
    return step.emitError("pruning needs the number of the update: run "
                          "--graph-apply-optimizer before");
  SmallVector<BlockArgument> updated = updatedArguments(step);
  // Before anything is rewritten: masks are no contractions.
  std::vector<ContractionWeight> weights = findContractionWeights(step);
  bool any = false;
  std::string example;
  for (const ContractionWeight &weight : weights) {
    auto result = llvm::find(updated, weight.argument);
    if (result == updated.end())
      continue;
    TrainedParameter parameter(step, weight.argument);
    if (std::string why = problem(weight, parameter); !why.empty()) {
      emitRemark(weight.argument.getLoc())
          << "\"" << weight.name << "\" is not pruned: " << why;
      if (example.empty())
        example = "; \"" + weight.name + "\": " + why;
      continue;
    }
    OpOperand &operand = returnOp->getOpOperand(result - updated.begin());
    operand.set(prune(weight, parameter, operand.get()));
    any = true;
  }
  if (!any)
    return step.emitError("pruning: '@")
           << step.getSymName()
           << "' trains no weight of a contraction that can be pruned"
           << example;
  return success();
}

namespace {
struct Prune final : cleave::graph::impl::PruneBase<Prune> {
  using PruneBase::PruneBase;

  void runOnOperation() override {
    std::string error;
    std::optional<PruneSettings> settings = parsePruning(prune, error);
    if (!settings) {
      getOperation().emitError(error);
      return signalPassFailure();
    }
    FailureOr<func::FuncOp> step = findEntry(getOperation(), entry);
    if (failed(step) || failed(Pruning(*step, *settings).run()))
      signalPassFailure();
  }
};
} // namespace
