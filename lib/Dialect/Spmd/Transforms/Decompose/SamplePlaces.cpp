//===- SamplePlaces.cpp - Where values hold samples -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "SamplePlaces.h"
#include "cleave/Dialect/Graph/IR/DependsOnIndex.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;
using graph::FactorKind;
using graph::FactorMapping;
using graph::ShardingRule;

/// The one factor of a dimension that is not of size 1, or -1.
static int64_t onlyFactor(const ShardingRule &rule, ArrayRef<int64_t> factors) {
  int64_t found = -1;
  for (int64_t factor : factors)
    if (rule.factors[factor].size != 1) {
      if (found >= 0)
        return -1;
      found = factor;
    }
  return found;
}

/// Whether each dimension that runs along `factor` has no other factor.
static bool isAlone(const ShardingRule &rule, int64_t factor) {
  for (ArrayRef<FactorMapping> mappings :
       {ArrayRef<FactorMapping>(rule.operands), {rule.results}})
    for (const FactorMapping &mapping : mappings)
      for (ArrayRef<int64_t> dim : mapping)
        if (llvm::is_contained(dim, factor) && onlyFactor(rule, dim) != factor)
          return false;
  return true;
}

bool cleave::spmd::setSampleStarts(Operation *op, int64_t factor,
                                   Value starts) {
  auto placed = dyn_cast<graph::PlacedOpInterface>(op);
  if (!placed)
    return false;
  ShardingRule rule =
      cast<graph::ShardingRuleOpInterface>(op).getShardingRule();
  bool asked = false;
  auto table = [&](Value value, unsigned dim) {
    for (auto [i, operand] : llvm::enumerate(op->getOperands()))
      if (operand == value &&
          llvm::is_contained(rule.operands[i][dim], factor)) {
        asked = true;
        return starts;
      }
    return Value();
  };
  return placed.setStarts(table) && asked;
}

/// Whether `op` can be given a table of starts along `factor`.
static bool canSetStarts(Operation *op, int64_t factor, int64_t pieces) {
  Block scratch;
  OpBuilder builder(op->getContext());
  builder.setInsertionPointToEnd(&scratch);
  auto type = RankedTensorType::get(pieces, builder.getI64Type());
  Value starts = graph::ConstantOp::create(
      builder, op->getLoc(),
      DenseElementsAttr::get(type, builder.getI64IntegerAttr(0)));
  return setSampleStarts(builder.clone(*op), factor, starts);
}

SamplePlaces::SamplePlaces(func::FuncOp function, SampleFactors factors,
                           bool reorders)
    : known(factors), reorders(reorders) {
  for (BlockArgument argument : function.getArguments())
    if (auto dim = function.getArgAttrOfType<IntegerAttr>(
            argument.getArgNumber(), graph::kBatchDimAttr))
      places[argument] = {dim.getInt(), known.outer, known.inner};
  for (Operation &op : function.getBody().front().without_terminator())
    visit(&op);
}

void SamplePlaces::visit(Operation *op) {
  if (llvm::none_of(op->getOperands(),
                    [&](Value value) { return places.contains(value); }))
    return;
  if (!visitMove(op))
    visitOther(op);
  SampleUse found = use(op);
  if (found.mode == SampleMode::Original && found.factor < 0)
    return;
  if (auto costed = dyn_cast<graph::CostOpInterface>(op)) {
    graph::OpCost cost = costed.getCost();
    work += cost.flops + cost.bytesRead + cost.bytesWritten;
  }
}

/// The samples of the input are the same elements of one dimension of the
/// output, or of none.
std::optional<SamplePlace> SamplePlaces::reshaped(Value input, Value output) {
  SamplePlace from = *of(input);
  int64_t before =
      ShapedType::getNumElements(shapeOf(input).take_front(from.dim)) *
      from.outer;
  int64_t major = 1;
  for (auto [dim, size] : llvm::enumerate(shapeOf(output))) {
    if (major > before || size == 0)
      break;
    int64_t batches = before / major * known.samples;
    if (before % major == 0 && size % batches == 0)
      return SamplePlace{static_cast<int64_t>(dim), before / major,
                         size / batches};
    major *= size;
  }
  return std::nullopt;
}

/// Batches that are joined along `dim` are a factor of it.
std::optional<SamplePlace> SamplePlaces::joined(ValueRange inputs, int64_t dim,
                                                int64_t inner) {
  int64_t each = known.samples * inner, all = 0;
  for (Value input : inputs) {
    int64_t size = shapeOf(input)[dim];
    auto place = of(input);
    if (size % each != 0 ||
        (place && place->dim == dim && place->inner != inner))
      return std::nullopt;
    all += size;
  }
  return SamplePlace{dim, all / each, inner};
}

/// A slice of whole batches, or of the same elements of each sample.
std::optional<SamplePlace> SamplePlaces::sliced(Value input, int64_t offset,
                                                int64_t size, int64_t stride) {
  SamplePlace from = *of(input);
  int64_t each = known.samples * from.inner;
  if (stride == 1 && size > 0 && offset % each == 0 && size % each == 0)
    return SamplePlace{from.dim, size / each, from.inner};
  if (stride > 1 && from.inner % stride == 0 && offset < stride &&
      size * stride == shapeOf(input)[from.dim])
    return SamplePlace{from.dim, from.outer, from.inner / stride};
  return std::nullopt;
}

/// Returns whether `op` moves samples to other places.
bool SamplePlaces::visitMove(Operation *op) {
  std::optional<SamplePlace> to;
  bool changes = true;
  if (auto reshape = dyn_cast<graph::ReshapeOp>(op)) {
    to = reshaped(reshape.getInput(), reshape.getOutput());
    changes = false;
  } else if (auto concat = dyn_cast<graph::ConcatOp>(op)) {
    int64_t dim = concat.getDim();
    auto first = llvm::find_if(concat.getInputs(), [&](Value input) {
      auto place = of(input);
      return place && place->dim == dim;
    });
    if (first == concat.getInputs().end())
      return false;
    to = joined(concat.getInputs(), dim, of(*first)->inner);
  } else if (auto slice = dyn_cast<graph::SliceOp>(op)) {
    int64_t dim = of(slice.getInput())->dim;
    if (slice.getType().getDimSize(dim) == shapeOf(slice.getInput())[dim])
      return false;
    to = sliced(slice.getInput(), slice.getOffsets()[dim],
                slice.getSizes()[dim], slice.getStrides()[dim]);
  } else {
    return false;
  }
  if (!to || (!reorders && (changes || to->outer > 1))) {
    losing.push_back(op);
    return true;
  }
  places[op->getResult(0)] = *to;
  uses[op] = {SampleMode::Moves, -1, *to};
  return true;
}

void SamplePlaces::visitOther(Operation *op) {
  auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(op);
  if (!ruled)
    return;
  ShardingRule rule = ruled.getShardingRule();
  // The samples of results come before those that are summed.
  SampleUse use;
  for (FactorKind kind : {FactorKind::Parallel, FactorKind::Reduction})
    for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
      auto place = of(operand);
      if (!place || use.factor >= 0 || llvm::is_contained(rule.unused, i))
        continue;
      int64_t factor = onlyFactor(rule, rule.operands[i][place->dim]);
      if (factor >= 0 && rule.factors[factor].kind == kind &&
          isAlone(rule, factor)) {
        use.factor = factor;
        use.place = *place;
      }
    }
  if (use.factor < 0)
    return;
  for (auto [result, mapping] : llvm::zip(op->getResults(), rule.results))
    for (auto [dim, factors] : llvm::enumerate(mapping))
      if (llvm::is_contained(factors, use.factor))
        places[result] = {static_cast<int64_t>(dim), use.place.outer,
                          use.place.inner};
  if (use.place.outer > 1) {
    if (!graph::dependsOnIndex(op, use.factor) ||
        canSetStarts(op, use.factor, known.samples * use.place.outer))
      use.mode = SampleMode::Ordered;
    else
      use.factor = -1;
  }
  uses[op] = use;
}
