//===- OrderSamples.cpp - Joined batches in the order of samples ----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A dimension is sharded along its major factor. Where a batch is joined with
/// another one, repeated or regrouped, samples are a minor factor: the pass
/// makes them the major one. What is computed for each sample alone gives the
/// same results in any order of samples.
///
//===----------------------------------------------------------------------===//

#include "SamplePlaces.h"
#include "cleave/Dialect/Graph/IR/DependsOnIndex.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "cleave/Dialect/Spmd/Transforms/Recipes.h"
#include <numeric>

namespace cleave::spmd {
#define GEN_PASS_DEF_ORDERSAMPLES
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"
} // namespace cleave::spmd

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

using Shape = SmallVector<int64_t>;

namespace {

/// Rewrites a function so that samples are the major factor of dimensions.
class Reorderer {
public:
  Reorderer(func::FuncOp function, const SamplePlaces &places)
      : body(function.getBody().front()), places(places),
        samples(places.factors().samples), builder(function.getContext()),
        loc(function.getLoc()) {}

  void run() {
    SmallVector<Operation *> ops, replaced;
    for (Operation &op : body)
      ops.push_back(&op);
    for (Operation *op : ops) {
      builder.setInsertionPoint(op);
      loc = op->getLoc();
      switch (places.use(op).mode) {
      case SampleMode::Original:
        for (OpOperand &operand : op->getOpOperands())
          operand.set(inModel(operand.get()));
        break;
      case SampleMode::Ordered:
        order(op);
        break;
      case SampleMode::Moves:
        move(op);
        replaced.push_back(op);
        break;
      }
    }
    for (Operation *op : llvm::reverse(replaced))
      op->erase();
  }

private:
  /// A value in the order of the model, and in that of samples; null where it
  /// is not computed yet. Both are one where samples are the major factor.
  struct Versions {
    Value model, ordered;
  };
  Versions &versionsOf(Value value) {
    return versions.try_emplace(value, Versions{value, {}}).first->second;
  }

  Value reshape(Value value, ArrayRef<int64_t> shape) {
    return graph::Formula{builder, loc}.reshape(value, shape);
  }

  /// Returns `value` with dimension `dim` split into `factors`.
  Value split(Value value, int64_t dim, ArrayRef<int64_t> factors) {
    Shape shape(shapeOf(value));
    shape.erase(shape.begin() + dim);
    shape.insert(shape.begin() + dim, factors.begin(), factors.end());
    return reshape(value, shape);
  }

  /// Returns `value` with the dimensions `dim` and `dim + 1` exchanged.
  Value swap(Value value, int64_t dim) {
    Shape permutation =
        llvm::to_vector(llvm::seq<int64_t>(0, shapeOf(value).size()));
    std::swap(permutation[dim], permutation[dim + 1]);
    return graph::TransposeOp::create(builder, loc, value, permutation);
  }

  /// Returns `value`, whose dimension `dim` has the factors (`major`, `minor`,
  /// rest), with (`minor`, `major`, rest).
  Value exchange(Value value, int64_t dim, int64_t major, int64_t minor) {
    Shape shape(shapeOf(value));
    if (major == 1 || minor == 1)
      return value;
    Shape factors{major, minor};
    if (int64_t rest = shape[dim] / (major * minor); rest > 1)
      factors.push_back(rest);
    Value exchanged = swap(split(value, dim, factors), dim);
    // Shards of an argument hold other samples.
    if (isa<BlockArgument>(value) && places.of(value))
      exchanged.getDefiningOp()->setAttr(kSamplesAttr,
                                         builder.getI64IntegerAttr(dim));
    return reshape(exchanged, shape);
  }

  /// Returns `value` in the order of the model.
  Value inModel(Value value) {
    Versions &known = versionsOf(value);
    if (!known.model) {
      SamplePlace place = *places.of(value);
      known.model = exchange(known.ordered, place.dim, samples, place.outer);
    }
    return known.model;
  }

  /// Returns `value` in the order of samples along `place`, also if it holds
  /// none, as a table with a row for each sample.
  Value inOrder(Value value, const SamplePlace &place) {
    if (places.of(value) != place)
      return exchange(inModel(value), place.dim, place.outer, samples);
    Versions &known = versionsOf(value);
    if (!known.ordered)
      known.ordered = exchange(known.model, place.dim, place.outer, samples);
    return known.ordered;
  }

  /// Returns the index in the model at which each piece of `place` begins.
  Value starts(const SamplePlace &place) {
    Shape values;
    for (int64_t sample = 0; sample < samples; ++sample)
      for (int64_t outer = 0; outer < place.outer; ++outer)
        values.push_back((outer * samples + sample) * place.inner);
    auto type = RankedTensorType::get(values.size(), builder.getI64Type());
    return graph::ConstantOp::create(
        builder, loc, DenseElementsAttr::get(type, ArrayRef(values)));
  }

  /// Gives `op` its operands in the order of samples, in which its results are
  /// then.
  void order(Operation *op) {
    SampleUse use = places.use(op);
    auto rule = cast<graph::ShardingRuleOpInterface>(op).getShardingRule();
    if (graph::dependsOnIndex(op, use.factor))
      setSampleStarts(op, use.factor, starts(use.place));
    for (auto [i, mapping] : llvm::enumerate(rule.operands)) {
      std::optional<int64_t> along;
      for (auto [dim, factors] : llvm::enumerate(mapping))
        if (llvm::is_contained(factors, use.factor))
          along = dim;
      Value value = op->getOperand(i);
      op->setOperand(
          i, along ? inOrder(value, {*along, use.place.outer, use.place.inner})
                   : inModel(value));
    }
    for (Value result : op->getResults())
      if (places.of(result))
        versions[result] = {{}, result};
  }

  /// Builds a reshape, a concatenation or a slice so that samples keep a
  /// dimension of their own.
  void move(Operation *op) {
    SamplePlace to = places.use(op).place;
    Versions made;
    if (auto concat = dyn_cast<graph::ConcatOp>(op))
      made.ordered = concatenated(concat, to);
    else if (auto slice = dyn_cast<graph::SliceOp>(op))
      made.ordered = sliced(slice);
    else
      made = reshaped(op->getOperand(0), op->getResult(0), to);
    if (to.outer == 1)
      made.model = made.ordered = made.model ? made.model : made.ordered;
    versions[op->getResult(0)] = made;
  }

  Value concatenated(graph::ConcatOp op, const SamplePlace &to) {
    SmallVector<Value> inputs;
    for (Value input : op.getInputs()) {
      int64_t outer = shapeOf(input)[to.dim] / (samples * to.inner);
      inputs.push_back(split(inOrder(input, {to.dim, outer, to.inner}), to.dim,
                             {samples, outer * to.inner}));
    }
    return reshape(graph::ConcatOp::create(builder, loc, inputs, to.dim + 1),
                   op.getType().getShape());
  }

  Value sliced(graph::SliceOp op) {
    SamplePlace from = *places.of(op.getInput());
    int64_t dim = from.dim;
    bool batches = op.getStrides()[dim] == 1;
    int64_t major = batches ? samples : samples * from.outer;
    Value input = split(inOrder(op.getInput(), from), dim,
                        {major, shapeOf(op.getInput())[dim] / major});
    Shape offsets(op.getOffsets()), sizes(op.getSizes()),
        strides(op.getStrides());
    if (batches)
      offsets[dim] /= samples;
    sizes[dim] /= major;
    offsets.insert(offsets.begin() + dim, 0);
    sizes.insert(sizes.begin() + dim, major);
    strides.insert(strides.begin() + dim, 1);
    return reshape(
        graph::SliceOp::create(builder, loc, input, offsets, sizes, strides),
        op.getType().getShape());
  }

  Versions reshaped(Value input, Value output, const SamplePlace &to) {
    SamplePlace from = *places.of(input);
    ArrayRef<int64_t> in = shapeOf(input), out = shapeOf(output);
    Versions own = versionsOf(input), made;
    // The same factors are major to samples in both.
    if (ShapedType::getNumElements(in.take_front(from.dim)) ==
        ShapedType::getNumElements(out.take_front(to.dim))) {
      if (own.model)
        made.model = reshape(own.model, out);
      if (own.ordered)
        made.ordered = reshape(own.ordered, out);
      return made;
    }
    Value whole = own.model ? split(own.model, from.dim,
                                    {from.outer, samples, from.inner})
                            : swap(split(own.ordered, from.dim,
                                         {samples, from.outer, from.inner}),
                                   from.dim);
    Shape shape(out.take_front(to.dim));
    llvm::append_values(shape, to.outer, samples, to.inner);
    llvm::append_range(shape, out.drop_front(to.dim + 1));
    whole = reshape(whole, shape);
    made.ordered = reshape(to.outer == 1 ? whole : swap(whole, to.dim), out);
    return made;
  }

  Block &body;
  const SamplePlaces &places;
  int64_t samples;
  OpBuilder builder;
  Location loc;
  llvm::DenseMap<Value, Versions> versions;
};

struct OrderSamplesPass : spmd::impl::OrderSamplesBase<OrderSamplesPass> {
  using OrderSamplesBase::OrderSamplesBase;

  void runOnOperation() override {
    auto planned = readPlan(getOperation(), mesh, recipes);
    if (failed(planned))
      return signalPassFailure();
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (!function.isExternal() && function.getBody().hasOneBlock())
        if (std::optional<int64_t> samples = samplesOf(function))
          reorder(function, *samples, countParts(*planned));
  }

private:
  /// Returns the number of shards and micro-batches of the samples.
  int64_t countParts(const PlanOnMesh &planned) {
    int64_t parts = std::max<int64_t>(microBatches, 1);
    for (const MeshAxis &axis : planned.axes)
      if (splitBy(planned.plan.recipes, axis.name) == RecipeSplit::Samples)
        parts *= axis.size;
    return parts;
  }

  /// Returns the number of samples, if all arguments that hold any agree.
  static std::optional<int64_t> samplesOf(func::FuncOp function) {
    std::optional<int64_t> found;
    for (BlockArgument argument : function.getArguments())
      if (auto dim = function.getArgAttrOfType<IntegerAttr>(
              argument.getArgNumber(), graph::kBatchDimAttr)) {
        int64_t size = shapeOf(argument)[dim.getInt()];
        if (size < 2 || (found && *found != size))
          return std::nullopt;
        found = size;
      }
    return found;
  }

  /// Keeps the order in which most of the work can be sharded: of equal ones
  /// the model's, or else the first.
  void reorder(func::FuncOp function, int64_t samples, int64_t parts) {
    SamplePlaces inModel(function, {1, samples, 1}, /*reorders=*/false);
    if (parts < 2 || inModel.lost().empty())
      return;
    auto best = std::make_unique<SamplePlaces>(
        function, SampleFactors{1, samples, 1}, /*reorders=*/true);
    for (const SampleFactors &factors : candidates(*best, parts)) {
      auto next =
          std::make_unique<SamplePlaces>(function, factors, /*reorders=*/true);
      if (next->covered() > best->covered())
        best = std::move(next);
    }
    if (best->covered() > inModel.covered())
      Reorderer(function, *best).run();
  }

  /// Returns factors of the batch by which the model takes it apart, as far as
  /// all parts get an equal share of one of them.
  SmallVector<SampleFactors> candidates(const SamplePlaces &places,
                                        int64_t parts) {
    int64_t samples = places.factors().samples;
    SmallVector<SampleFactors> found;
    auto add = [&](int64_t outer, int64_t size) {
      if (outer * size < 1 || samples % (outer * size) != 0 || size == samples)
        return;
      SampleFactors factors{outer, size, samples / (outer * size)};
      // A micro-batch has the samples of one part of each argument.
      if (outer > 1 && microBatches > 1)
        return;
      if (size % parts == 0 && found.size() < 8 &&
          !llvm::is_contained(found, factors))
        found.push_back(factors);
    };
    for (Operation *op : places.lost()) {
      auto place = places.of(op->getOperand(0));
      if (!place)
        continue;
      if (auto slice = dyn_cast<graph::SliceOp>(op)) {
        int64_t size = std::gcd(slice.getSizes()[place->dim],
                                slice.getOffsets()[place->dim]) /
                       place->inner;
        int64_t stride = slice.getStrides()[place->dim];
        if (stride > 1)
          add(1, samples / stride);
        else if (size > 0)
          add(samples / size, size);
      } else if (isa<graph::ReshapeOp>(op)) {
        // The first factor of the samples has a dimension of its own.
        int64_t before =
            ShapedType::getNumElements(
                shapeOf(op->getOperand(0)).take_front(place->dim)) *
            place->outer;
        int64_t major = 1;
        for (int64_t size : shapeOf(op->getResult(0))) {
          if (major == before && size > 1) {
            add(1, size);
            add(size, samples / size);
            break;
          }
          major *= size;
        }
      }
    }
    return found;
  }
};
} // namespace
