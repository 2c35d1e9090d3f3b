//===- DecomposeHead.cpp - Heads whose classes can be sharded -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Shoeybi et al., "Megatron-LM" (arXiv 1909.08053), section 3: for its
/// classes, a device contributes the maximum, the sum of exponentials and the
/// target's logit of each row. Logits are not communicated.
///
//===----------------------------------------------------------------------===//

#include "../Recipes/Summa.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "cleave/Dialect/Spmd/Transforms/Recipes.h"
#include "llvm/Support/MathExtras.h"

namespace cleave::spmd {
#define GEN_PASS_DEF_DECOMPOSEHEAD
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"
} // namespace cleave::spmd

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;
using graph::Formula;
using graph::tensorTypeOf;

namespace {
/// The numbers of shards that recipes will give to the dimensions of a head.
struct HeadParts {
  int64_t samples = 1, sequence = 1, classes = 1;
  /// Classes that are not divisible stay replicated.
  bool even = false;
  std::vector<MeshAxis> axes;
  std::vector<Placement> placements;
};

/// The results of a chunk of rows.
struct ChunkResults {
  Value loss, input, weight, bias;
};

class Head {
public:
  Head(graph::HeadLossOp op, const HeadParts &parts, int64_t maxBytes,
       int64_t maxRows)
      : op(op), parts(parts), maxBytes(maxBytes), maxRows(maxRows), builder(op),
        f{builder, op.getLoc()} {}

  void rewrite();

private:
  void findRows();
  int64_t chunkSize();
  Value inShape(Value value, ArrayRef<int64_t> shape);
  Value behindSeed(Value value);
  Value cut(Value value, int64_t begin, int64_t size);
  Value join(ArrayRef<Value> chunks);
  ChunkResults chunk(Value x, Value targets, Value gradient);
  void replace(Value old, Value by);

  graph::HeadLossOp op;
  HeadParts parts;
  int64_t maxBytes, maxRows;
  OpBuilder builder;
  Formula f;
  /// The input before its rows were joined, `[b, s, h]`. Samples are the first
  /// dimension, and chunks are cut along the last dimension of the rows.
  Value input;
  SmallVector<int64_t> rows;
};
} // namespace

/// Returns the value before reshapes that keep the last dimension of `value`.
static Value skipRowReshapes(Value value) {
  while (auto reshape = value.getDefiningOp<graph::ReshapeOp>()) {
    if (tensorTypeOf(reshape.getInput()).getRank() < 2 ||
        tensorTypeOf(reshape.getInput()).getShape().back() !=
            tensorTypeOf(value).getShape().back())
      break;
    value = reshape.getInput();
  }
  return value;
}

/// Returns `value` in another shape, reshaped from its first form, so that a
/// sharded dimension is not joined with others in between.
Value Head::inShape(Value value, ArrayRef<int64_t> shape) {
  while (auto reshape = value.getDefiningOp<graph::ReshapeOp>())
    value = reshape.getInput();
  return f.reshape(value, shape);
}

/// Makes the shards of the dimension that is cut into chunks (the sequence, or
/// samples joined with it) a dimension of their own, as major digits.
void Head::findRows() {
  input = skipRowReshapes(op.getInput());
  rows.assign(tensorTypeOf(input).getShape().begin(),
              tensorTypeOf(input).getShape().end() - 1);
  int64_t major =
      rows.size() > 1 ? parts.sequence : parts.samples * parts.sequence;
  if (major > 1 && rows.back() % major == 0) {
    rows.back() /= major;
    rows.insert(rows.end() - 1, major);
  }
  SmallVector<int64_t> shape(rows);
  shape.push_back(tensorTypeOf(input).getShape().back());
  input = f.reshape(input, shape);
}

/// Returns the size of a chunk along the last dimension of the rows.
int64_t Head::chunkSize() {
  int64_t classes =
      llvm::divideCeil(op.getWeight().getType().getDimSize(0), parts.classes);
  int64_t width = op.getInput().getType().getElementTypeBitWidth() / 8;
  int64_t most = std::max<int64_t>(maxBytes / (classes * width), 1);
  int64_t count = op.getTargets().getType().getNumElements();
  count = llvm::divideCeil(count, parts.samples * parts.sequence);
  if (count <= most)
    return rows.back();
  // Small chunks fit in caches; many chunks make a long program.
  constexpr int64_t fewChunks = 16;
  most = std::min(
      most, std::max<int64_t>(maxRows, llvm::divideCeil(count, fewChunks)));
  // The rows of a device at each index of the last dimension.
  int64_t each = std::max<int64_t>(count / rows.back(), 1);
  int64_t fits = std::max<int64_t>(most / each, 1);
  int64_t chunks = llvm::divideCeil(rows.back(), fits);
  return llvm::divideCeil(rows.back(), chunks);
}

/// Returns `value` after a barrier of the gradient, so that values computed
/// from it belong to backward and none is kept from forward.
Value Head::behindSeed(Value value) {
  if (!op.getGradient())
    return value;
  return BarrierOp::create(builder, op.getLoc(), value.getType(), value,
                           op.getGradient());
}

Value Head::cut(Value value, int64_t begin, int64_t size) {
  SmallVector<int64_t> sizes(tensorTypeOf(value).getShape());
  size_t dim = rows.size() - 1;
  if (sizes[dim] == size)
    return value;
  SmallVector<int64_t> offsets(sizes.size(), 0), strides(sizes.size(), 1);
  offsets[dim] = begin;
  sizes[dim] = size;
  return graph::SliceOp::create(builder, op.getLoc(), value, offsets, sizes,
                                strides);
}

Value Head::join(ArrayRef<Value> chunks) {
  if (chunks.size() == 1)
    return chunks.front();
  return graph::ConcatOp::create(builder, op.getLoc(), chunks,
                                 static_cast<int64_t>(rows.size()) - 1);
}

ChunkResults Head::chunk(Value x, Value targets, Value gradient) {
  Location loc = op.getLoc();
  int64_t classes = op.getWeight().getType().getDimSize(0);
  int64_t last = rows.size();
  double smoothing = op.getLabelSmoothing().convertToDouble();
  ArrayRef<int64_t> shape = tensorTypeOf(targets).getShape();
  SmallVector<int64_t> column(shape);
  column.push_back(1);
  auto reduce = [&](graph::ReductionKind kind, Value value) -> Value {
    return graph::ReduceOp::create(builder, loc, kind, value, ArrayRef(last));
  };

  // All chunks read the weight.
  auto holdWeight = [&](Value product) {
    product.getDefiningOp()->setAttr(kHeldAttr,
                                     builder.getDenseI64ArrayAttr({1}));
    return product;
  };
  // Sums are in the loss's type; what is multiplied, in the input's.
  Type element = tensorTypeOf(x).getElementType(),
       wide = tensorTypeOf(op.getLoss()).getElementType();
  TypeAttr sums = element == wide ? TypeAttr() : TypeAttr::get(wide);
  Value logits = holdWeight(
      graph::LinearOp::create(builder, loc, x, op.getWeight(), Value(), sums));
  if (op.getBias())
    logits = f.add(logits, op.getBias());
  if (op.getNarrowLogits())
    logits = f.cast(f.cast(logits, element), wide);
  Value here = graph::OneHotOp::create(
      builder, loc, targets, /*origin=*/Value(),
      builder.getI64IntegerAttr(classes), op.getIgnoreIndexAttr(),
      /*global_size=*/IntegerAttr());
  Value zero = f.scalar(logits, 0.0);
  // The weights of the target's distribution on `value`.
  auto weigh = [&](Value value) {
    if (smoothing == 0.0)
      return f.select(here, value, zero);
    double rest = smoothing / classes;
    Value weights = f.select(here, f.scalar(logits, 1.0 - smoothing + rest),
                             f.scalar(logits, rest));
    return f.mul(weights, value);
  };

  // The maximum keeps exponentials finite; the loss does not depend on it.
  auto exponential = [&](Value shift) -> Value {
    return graph::ExpOp::create(builder, loc,
                                f.sub(logits, f.reshape(shift, column)));
  };
  Value largest = reduce(graph::ReductionKind::Max, logits);
  Value wanted = reduce(graph::ReductionKind::Sum, weigh(logits));
  Value sum = reduce(graph::ReductionKind::Sum, exponential(largest));
  Value logSum = graph::LogOp::create(builder, loc, sum);
  Value counted =
      f.compare(graph::Predicate::ne, targets,
                f.scalar(targets, static_cast<int64_t>(op.getIgnoreIndex())));
  ChunkResults results;
  results.loss = f.select(counted, f.add(f.sub(largest, wanted), logSum), zero);
  if (!gradient)
    return results;

  // Probabilities are computed from the logits again, and replace them.
  Value scale = f.reshape(f.select(counted, gradient, zero), column);
  // Subtracts the rounding error of a large log-sum-exp separately.
  Value lse = f.add(largest, logSum);
  Value lost = f.sub(logSum, f.sub(lse, largest));
  Value unit = graph::ExpOp::create(builder, loc, f.neg(lost));
  Value probabilities =
      f.mul(exponential(lse), f.mul(scale, f.reshape(unit, column)));
  Value slope = f.sub(probabilities, weigh(scale));
  std::string letters;
  for (int64_t i = 0; i < last; ++i)
    letters += static_cast<char>('a' + i);
  Value factor = f.cast(slope, element);
  // Classes may be sharded, and no partial sum is narrowed.
  results.input =
      f.cast(holdWeight(f.contract(letters + "v,vh->" + letters + "h", factor,
                                   op.getWeight(), wide)),
             element);
  results.weight =
      f.contract(letters + "v," + letters + "h->vh", factor, x, wide);
  if (op.getBias())
    results.bias = f.sum(slope, llvm::to_vector(llvm::seq<int64_t>(0, last)));
  return results;
}

/// Removes reshapes of readers that only restore the shape of `by`.
void Head::replace(Value old, Value by) {
  Value reshaped;
  for (OpOperand &use : llvm::make_early_inc_range(old.getUses())) {
    Operation *user = use.getOwner();
    if (isa<graph::ReshapeOp>(user) &&
        user->getResult(0).getType() == by.getType()) {
      user->getResult(0).replaceAllUsesWith(by);
      user->erase();
      continue;
    }
    if (!reshaped)
      reshaped = f.reshape(by, tensorTypeOf(old).getShape());
    use.set(reshaped);
  }
}

void Head::rewrite() {
  ArrayRef<int64_t> whole =
      tensorTypeOf(skipRowReshapes(op.getInput())).getShape();
  findRows();
  Value x = behindSeed(input);
  Value targets = behindSeed(inShape(op.getTargets(), rows));
  Value gradient = op.getGradient() ? inShape(op.getGradient(), rows) : Value();
  int64_t size = chunkSize();
  SmallVector<Value> losses, inputs;
  Value weight, bias;
  for (int64_t begin = 0; begin < rows.back(); begin += size) {
    int64_t count = std::min(size, rows.back() - begin);
    ChunkResults results =
        chunk(cut(x, begin, count), cut(targets, begin, count),
              gradient ? cut(gradient, begin, count) : Value());
    losses.push_back(results.loss);
    if (!gradient)
      continue;
    inputs.push_back(results.input);
    weight = weight ? f.add(weight, results.weight) : results.weight;
    if (results.bias)
      bias = bias ? f.add(bias, results.bias) : results.bias;
  }
  replace(op.getLoss(), join(losses));
  if (gradient) {
    replace(op->getResult(1), f.reshape(join(inputs), whole));
    replace(op->getResult(2), weight);
    if (bias)
      replace(op->getResult(3), bias);
  }
  SmallVector<Value> read(op->getOperands());
  op.erase();
  // The reshapes that joined the rows.
  for (Value value : read)
    while (auto reshape = value.getDefiningOp<graph::ReshapeOp>()) {
      if (!reshape->use_empty())
        break;
      value = reshape.getInput();
      reshape.erase();
    }
}

namespace {
struct DecomposeHeadPass : spmd::impl::DecomposeHeadBase<DecomposeHeadPass> {
  using DecomposeHeadBase::DecomposeHeadBase;

  HeadParts findParts(PlanOnMesh &&planned) {
    HeadParts parts;
    parts.samples = std::max<int64_t>(microBatches, 1);
    for (const MeshAxis &axis : planned.axes) {
      RecipeSplit what = splitBy(planned.plan.recipes, axis.name);
      for (const RecipeCall &call : planned.plan.recipes)
        if (splitBy(call, axis.name) == RecipeSplit::Features)
          parts.even = splitsEvenly(call);
      if (what == RecipeSplit::Samples)
        parts.samples *= axis.size;
      else if (what == RecipeSplit::Sequence)
        parts.sequence *= axis.size;
      else if (what == RecipeSplit::Features && parts.classes == 1)
        parts.classes = axis.size;
    }
    // Chunks are then the same on every mesh.
    if (grains > 0)
      parts.samples = grains;
    parts.axes = std::move(planned.axes);
    parts.placements = std::move(planned.plan.placements);
    return parts;
  }

  /// Returns the number of shards of the classes of `op`. A placement of the
  /// weight takes precedence over recipes. Nothing if the weight is neither an
  /// argument nor a copy of one, in another type or rounded.
  std::optional<int64_t> classParts(graph::HeadLossOp op,
                                    const HeadParts &parts) {
    std::optional<Place> weight = argumentOf(op.getWeight(), 0);
    if (!weight)
      return std::nullopt;
    auto argument = cast<BlockArgument>(weight->first);
    unsigned dim = weight->second;
    StringRef name = graph::getArgString(
        cast<func::FuncOp>(argument.getOwner()->getParentOp()),
        argument.getArgNumber(), graph::kNameAttr);
    for (const Placement &placement : parts.placements)
      if (placement.fits(name) && placement.dims.size() > dim) {
        int64_t count = 1;
        for (const MeshAxis &axis : parts.axes)
          if (llvm::is_contained(placement.dims[dim], axis.name))
            count *= axis.size;
        return count;
      }
    return parts.classes;
  }

  void runOnOperation() override {
    if (maxChunkBytes <= 0 || maxChunkRows <= 0) {
      getOperation().emitError(
          "max-chunk-bytes and max-chunk-rows must be positive");
      return signalPassFailure();
    }
    auto planned = readPlan(getOperation(), mesh, recipes);
    if (failed(planned))
      return signalPassFailure();
    HeadParts parts = findParts(std::move(*planned));
    SmallVector<graph::HeadLossOp> heads;
    getOperation().walk([&](graph::HeadLossOp op) { heads.push_back(op); });
    for (graph::HeadLossOp op : heads) {
      std::optional<int64_t> count = classParts(op, parts);
      if (!count || *count == 1 ||
          (parts.even && op.getWeight().getType().getDimSize(0) % *count) ||
          op.getWeight().getType().getDimSize(0) < *count ||
          op.getTargets().getType().getNumElements() == 0)
        continue;
      HeadParts own = parts;
      own.classes = *count;
      Head(op, own, maxChunkBytes, maxChunkRows).rewrite();
    }
  }
};
} // namespace
