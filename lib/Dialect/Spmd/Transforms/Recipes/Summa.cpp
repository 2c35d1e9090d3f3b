//===- Summa.cpp - 2D and 2.5D parallelism --------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Xu et al., "Optimus" (arXiv 2104.05343): values are split into samples over
/// one axis and features over another, weights into what they sum over and what
/// they make. Wang et al., "Tesseract" (arXiv 2105.14500): samples over a third
/// axis too, over which weights lie whole.
///
/// What this writes is where arguments lie, and of each product with a weight,
/// or of two values that makes the gradient of one, where its operands and
/// result do: --spmd-decompose-contraction finds the steps.
///
//===----------------------------------------------------------------------===//

#include "../Eras.h"
#include "Annotator.h"
#include "FeatureNorms.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "llvm/ADT/DenseSet.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {

/// A dimension of a value.
using Place = std::pair<Value, unsigned>;

graph::ShardingRule ruleOf(Operation *op) {
  return cast<graph::ShardingRuleOpInterface>(op).getShardingRule();
}

bool isProduct(Operation *op) {
  auto costed = dyn_cast<graph::CostOpInterface>(op);
  return costed && isa<graph::ShardingRuleOpInterface>(op) &&
         costed.getCost().work == graph::WorkClass::Contraction &&
         op->getNumResults() == 1 && op->getNumOperands() >= 2;
}

/// The major factor of a dimension that is not 1, or -1.
int64_t factorOf(const graph::ShardingRule &rule, ArrayRef<int64_t> factors) {
  for (int64_t factor : factors)
    if (rule.factors[factor].size != 1)
      return factor;
  return -1;
}

/// The dimension along which `mapping` has `factor`.
std::optional<unsigned> dimOf(const graph::ShardingRule &rule,
                              const graph::FactorMapping &mapping,
                              int64_t factor) {
  for (auto [dim, factors] : llvm::enumerate(mapping))
    if (factor >= 0 && factorOf(rule, factors) == factor)
      return dim;
  return std::nullopt;
}

class Summa {
public:
  Summa(Annotator &annotator, StringRef row, StringRef col)
      : annotator(annotator), row(annotator.getMesh().find(row)->name),
        col(annotator.getMesh().find(col)->name),
        parts(annotator.getMesh().size(AxisRef{row})) {}

  LogicalResult run();

private:
  LogicalResult splitWeight(func::FuncOp function, Operation *op,
                            unsigned operand);
  LogicalResult splitWeights(func::FuncOp function);
  void remarkWhole(BlockArgument table, unsigned dim, int64_t places);
  void splitRest(func::FuncOp function);
  void mark(func::FuncOp function);

  std::optional<Place> argumentOf(Value value, unsigned dim);
  std::optional<unsigned> weightOf(func::FuncOp function, Operation *op);
  std::optional<int64_t> choose(const DimensionClasses &classes, Operation *op,
                                ArrayRef<int64_t> factors, Value weight,
                                unsigned operand);
  Sharding layout(func::FuncOp function, Value value);
  BlockArgument gradientOf(func::FuncOp function, Value value,
                           SmallVectorImpl<unsigned> &dims);

  bool isFeature(const DimensionClasses &classes, Value value, unsigned dim) {
    return features.contains(classes.number(value, dim));
  }

  Annotator &annotator;
  /// The mesh's own text: it outlives the call.
  StringRef row, col;
  int64_t parts;
  /// Whether there is a weight.
  bool found = false;
  /// Of the function at hand: the classes that values have in parts over `col`.
  llvm::SmallDenseSet<unsigned> features;
};
} // namespace

/// The argument that `value` is a view of, and its dimension there.
std::optional<Place> Summa::argumentOf(Value value, unsigned dim) {
  while (Operation *op = value.getDefiningOp()) {
    auto costed = dyn_cast<graph::CostOpInterface>(op);
    bool view = isa<ConstrainOp>(op) || (costed && costed.getCost().flops == 0);
    if (!view || op->getNumOperands() != 1 ||
        !isa<graph::ShardingRuleOpInterface>(op))
      return std::nullopt;
    graph::ShardingRule rule = ruleOf(op);
    auto from =
        dimOf(rule, rule.operands[0], factorOf(rule, rule.results[0][dim]));
    if (!from)
      return std::nullopt;
    value = op->getOperand(0);
    dim = *from;
  }
  return Place(value, dim);
}

/// The operand of a product that is a parameter, where the other is none.
std::optional<unsigned> Summa::weightOf(func::FuncOp function, Operation *op) {
  std::optional<unsigned> found;
  for (unsigned i = 0; i < 2; ++i) {
    Value value = op->getOperand(i);
    auto place = argumentOf(value, 0);
    for (int64_t dim = 1;
         !place && dim < cast<RankedTensorType>(value.getType()).getRank();
         ++dim)
      place = argumentOf(value, dim);
    if (!place ||
        !graph::hasRole(function,
                        cast<BlockArgument>(place->first).getArgNumber(),
                        "parameter"))
      continue;
    if (found)
      return std::nullopt;
    found = i;
  }
  return found;
}

/// Of the factors that a weight has on one side, the one that is split: heads,
/// else the largest. What no product sums over is left to an op that needs it
/// whole.
std::optional<int64_t> Summa::choose(const DimensionClasses &classes,
                                     Operation *op, ArrayRef<int64_t> factors,
                                     Value weight, unsigned operand) {
  graph::ShardingRule rule = ruleOf(op);
  std::optional<int64_t> best;
  for (int64_t factor : factors) {
    auto dim = dimOf(rule, rule.operands[operand], factor);
    const DimensionClass &known = classes.of(weight, *dim);
    if (known.wholeIn && known.consumers.empty())
      continue;
    if (known.attended)
      return factor;
    if (!best || rule.factors[factor].size > rule.factors[*best].size)
      best = factor;
  }
  return best;
}

/// Says of a table that its places are not split.
void Summa::remarkWhole(BlockArgument table, unsigned dim, int64_t places) {
  mlir::emitRemark(table.getLoc())
      << "dimension " << dim << " stays whole: the " << parts
      << " positions of axis \"" << row << "\" do not divide its " << places
      << " places";
}

/// Splits the weight that is operand `operand` of the forward product `op`.
LogicalResult Summa::splitWeight(func::FuncOp function, Operation *op,
                                 unsigned operand) {
  const DimensionClasses &classes = annotator.classesOf(function);
  graph::ShardingRule rule = ruleOf(op);
  Value weight = op->getOperand(operand);
  SmallVector<int64_t> summed, made;
  for (ArrayRef<int64_t> dim : rule.operands[operand]) {
    int64_t factor = factorOf(rule, dim);
    bool kept = dimOf(rule, rule.results[0], factor).has_value();
    bool shared = dimOf(rule, rule.operands[1 - operand], factor).has_value();
    if (factor >= 0 && kept != shared)
      (kept ? made : summed).push_back(factor);
  }
  // A head joined with its loss makes nothing that could lie in blocks.
  if (made.empty())
    return success();
  auto in = choose(classes, op, summed, weight, operand);
  auto out = choose(classes, op, made, weight, operand);
  // A table of classes lies as one that is looked up: its classes over the
  // first axis.
  bool table = false;
  if (out) {
    const DimensionClass &known =
        classes.of(weight, *dimOf(rule, rule.operands[operand], *out));
    table =
        known.consumers.empty() && (known.reduced || !known.lookups.empty());
  }
  for (auto [factor, axis] :
       {std::pair(in, table ? col : row), std::pair(out, table ? row : col)}) {
    if (!factor)
      continue;
    unsigned dim = *dimOf(rule, rule.operands[operand], *factor);
    const DimensionClass &known = classes.of(weight, dim);
    auto place = argumentOf(weight, dim);
    if (!place)
      continue;
    auto argument = cast<BlockArgument>(place->first);
    if (known.divisor % parts != 0) {
      // A model works without it.
      if (table && factor == out) {
        remarkWhole(argument, place->second, known.divisor);
        continue;
      }
      InFlightDiagnostic error = emitError(argument.getLoc());
      error << "dimension " << place->second << " of parameter \""
            << graph::getArgString(function, argument.getArgNumber(),
                                   graph::kNameAttr)
            << "\" comes in " << known.divisor << ", which the " << parts
            << " positions of axis \"" << axis << "\" do not divide";
      std::string fits = partsThatFit(known.divisor);
      if (!fits.empty())
        error << ": use " << fits;
      return error;
    }
    found = true;
    if (annotator.isPlaced(argument) || annotator.isSplit(argument, axis))
      continue;
    annotator.split(argument, place->second, axis);
  }
  return success();
}

LogicalResult Summa::splitWeights(func::FuncOp function) {
  // Backward sums over what forward makes. A head may belong to backward: an
  // entry without gradients has it, too.
  Eras eras(function.getBody().front());
  for (Operation &op : function.getBody().front().without_terminator()) {
    if (!isProduct(&op) || eras.of(&op) != 0)
      continue;
    if (auto weight = weightOf(function, &op))
      if (failed(splitWeight(function, &op, *weight)))
        return failure();
  }
  return success();
}

/// Values have in parts what weights have. What no product reads lies as the
/// values that it meets, and a table that is looked up has its places over the
/// first axis, as that of a head has.
void Summa::splitRest(func::FuncOp function) {
  const DimensionClasses &classes = annotator.classesOf(function);
  features.clear();
  for (BlockArgument argument : function.getArguments())
    if (graph::hasRole(function, argument.getArgNumber(), "parameter"))
      for (auto [dim, axes] : llvm::enumerate(annotator.given(argument).dims))
        for (StringRef axis : {row, col})
          if (llvm::is_contained(axes, AxisRef{axis}))
            features.insert(classes.number(argument, dim));
  for (BlockArgument argument : function.getArguments()) {
    if (!graph::hasRole(function, argument.getArgNumber(), "parameter") ||
        annotator.isPlaced(argument) || annotator.isSplit(argument, row) ||
        annotator.isSplit(argument, col))
      continue;
    auto type = cast<RankedTensorType>(argument.getType());
    for (int64_t dim = type.getRank(); dim-- > 0;)
      if (isFeature(classes, argument, dim)) {
        annotator.split(argument, dim, col);
        break;
      }
    for (int64_t dim = 0; dim < type.getRank(); ++dim) {
      if (classes.of(argument, dim).lookups.empty())
        continue;
      if (int64_t places = type.getDimSize(dim); places % parts == 0)
        annotator.split(argument, dim, row);
      else
        remarkWhole(argument, dim, places);
    }
  }
}

/// The parameter whose gradient is made of `value`, and, for each dimension of
/// that, its own; null where it is none.
BlockArgument Summa::gradientOf(func::FuncOp function, Value value,
                                SmallVectorImpl<unsigned> &dims) {
  llvm::DenseSet<Value> seen;
  SmallVector<std::pair<Value, SmallVector<unsigned>>> work;
  int64_t rank = cast<RankedTensorType>(value.getType()).getRank();
  work.push_back({value, llvm::to_vector(llvm::seq<unsigned>(0, rank))});
  while (!work.empty()) {
    auto [next, own] = work.pop_back_val();
    if (!seen.insert(next).second)
      continue;
    for (OpOperand &use : next.getUses()) {
      Operation *user = use.getOwner();
      if (auto gradient = dyn_cast<graph::GradientOp>(user)) {
        for (BlockArgument argument : function.getArguments())
          if (graph::getArgString(function, argument.getArgNumber(),
                                  graph::kNameAttr) ==
              gradient.getParameter()) {
            dims.assign(own.begin(), own.end());
            return argument;
          }
        continue;
      }
      auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(user);
      if (!ruled || user->getNumResults() != 1 || isProduct(user))
        continue;
      graph::ShardingRule rule = ruled.getShardingRule();
      if (llvm::is_contained(rule.unread, use.getOperandNumber()))
        continue;
      SmallVector<unsigned> there;
      bool whole = true;
      for (unsigned dim : own) {
        // A dimension of size 1 has no factor, and is not split.
        unsigned at = ~0u;
        if (dim != ~0u)
          if (auto known = dimOf(
                  rule, rule.results[0],
                  factorOf(rule, rule.operands[use.getOperandNumber()][dim])))
            at = *known;
        whole &= at != ~0u || dim == ~0u ||
                 cast<RankedTensorType>(next.getType()).getDimSize(dim) == 1;
        there.push_back(at);
      }
      // A sum over a dimension is another tensor.
      if (!whole)
        continue;
      work.push_back({user->getResult(0), std::move(there)});
    }
  }
  return {};
}

/// Where a parameter, the gradient of one, or a value lies: the dimensions that
/// this recipe splits are closed.
Sharding Summa::layout(func::FuncOp function, Value value) {
  const DimensionClasses &classes = annotator.classesOf(function);
  auto type = cast<RankedTensorType>(value.getType());
  Sharding sharding = Sharding::replicated(type.getRank(), /*open=*/true);
  auto splitAs = [&](int64_t dim, BlockArgument argument, unsigned at) {
    for (StringRef axis : {row, col})
      if (llvm::is_contained(annotator.given(argument).dims[at],
                             AxisRef{axis})) {
        sharding.dims[dim].push_back({axis});
        sharding.open[dim] = false;
      }
  };
  SmallVector<unsigned> dims;
  if (BlockArgument argument = gradientOf(function, value, dims)) {
    for (int64_t dim = 0; dim < type.getRank(); ++dim)
      if (dims[dim] != ~0u)
        splitAs(dim, argument, dims[dim]);
    return sharding;
  }
  bool isParameter = false;
  for (int64_t dim = 0; dim < type.getRank(); ++dim)
    if (auto place = argumentOf(value, dim)) {
      auto argument = cast<BlockArgument>(place->first);
      if (!graph::hasRole(function, argument.getArgNumber(), "parameter"))
        break;
      splitAs(dim, argument, place->second);
      isParameter = true;
    }
  if (isParameter)
    return sharding;
  for (int64_t dim = type.getRank(); dim-- > 0;)
    if (isFeature(classes, value, dim)) {
      sharding.dims[dim].push_back({col});
      sharding.open[dim] = false;
      break;
    }
  return sharding;
}

/// The dimension of a table whose places indices name, where `op` looks up in
/// it (operand 0) or adds to it (its result).
static std::optional<unsigned> indexedDim(Operation *op, bool &adds) {
  adds = isa<graph::ScatterAddOp>(op);
  if (op->getNumOperands() != 2)
    return std::nullopt;
  if (auto lookup = dyn_cast<graph::GatherOp>(op))
    return lookup.getDim();
  if (auto scatter = dyn_cast<graph::ScatterAddOp>(op))
    return scatter.getDim();
  return std::nullopt;
}

/// Whether a dimension lies in two ways among the operands and the result. One
/// of the result does only where what is summed up lies in parts over its axes:
/// over `samples`, it does in any case.
static bool liesInTwoWays(Operation *op, ArrayRef<Sharding> lies,
                          const AxisRef &samples) {
  graph::ShardingRule rule = ruleOf(op);
  const graph::FactorMapping *mappings[] = {
      &rule.operands[0], &rule.operands[1], &rule.results[0]};
  // How each factor lies in those that have it.
  std::vector<SmallVector<std::optional<AxisList>, 3>> factors;
  for (size_t factor = 0; factor < rule.factors.size(); ++factor) {
    auto &known = factors.emplace_back();
    for (unsigned i = 0; i < 3; ++i) {
      auto dim = dimOf(rule, *mappings[i], factor);
      known.push_back(dim ? std::optional(lies[i].dims[*dim]) : std::nullopt);
    }
  }
  auto isSummed = [&](const AxisList &axes) {
    return axes == AxisList{samples} ||
           llvm::any_of(factors, [&](const auto &known) {
             return known[0] == axes && known[1] == axes && !known[2];
           });
  };
  auto differ = [](const std::optional<AxisList> &a,
                   const std::optional<AxisList> &b) {
    return a && b && !a->empty() && !b->empty() && *a != *b;
  };
  return llvm::any_of(factors, [&](const auto &known) {
    if (!known[2])
      return differ(known[0], known[1]);
    return known[0].has_value() != known[1].has_value() &&
           differ(known[0] ? known[0] : known[1], known[2]) &&
           isSummed(*known[2]);
  });
}

/// Marks what goes in steps: products one of whose dimensions lies in two ways,
/// and tables whose places lie in parts.
void Summa::mark(func::FuncOp function) {
  SmallVector<std::pair<Operation *, ArrayAttr>> marks;
  for (Operation &op : function.getBody().front().without_terminator()) {
    bool adds = false;
    auto table = indexedDim(&op, adds);
    if (!table && (!isProduct(&op) || op.getNumOperands() != 2))
      continue;
    Sharding lies[] = {layout(function, op.getOperand(0)),
                       layout(function, op.getOperand(1)),
                       layout(function, op.getResult(0))};
    if (table
            ? !llvm::is_contained(lies[adds ? 2 : 0].dims[*table], AxisRef{row})
            : !liesInTwoWays(&op, lies, AxisRef{row}))
      continue;
    SmallVector<Attribute> attributes;
    for (const Sharding &sharding : lies)
      attributes.push_back(annotator.attribute(sharding));
    marks.push_back({&op, ArrayAttr::get(op.getContext(), attributes)});
  }
  for (auto [op, attribute] : marks)
    op->setAttr(kStepsAttr, attribute);
}

LogicalResult Summa::run() {
  // Forward alone says what a weight sums over; the classes of entries differ.
  for (func::FuncOp function : annotator.entries())
    openNorms(function, [&](Value value) {
      int64_t rank = cast<RankedTensorType>(value.getType()).getRank();
      return !annotator.classesOf(function)
                  .of(value, rank - 1)
                  .consumers.empty();
    });
  annotator.beginRecipe();
  for (func::FuncOp function : annotator.entries())
    if (failed(splitWeights(function)))
      return failure();
  for (func::FuncOp function : annotator.entries()) {
    splitRest(function);
    mark(function);
  }
  if (!found)
    return annotator.getModule().emitError()
           << "there is no product with a weight that could go in steps over "
              "axes \""
           << row << "\" and \"" << col << "\"";
  return success();
}

LogicalResult cleave::spmd::applySumma(Annotator &annotator,
                                       ArrayRef<std::string> axes) {
  const Mesh &mesh = annotator.getMesh();
  StringRef row = axes[axes.size() - 2], col = axes.back();
  int64_t rows = mesh.size(AxisRef{row}), cols = mesh.size(AxisRef{col});
  if (rows != cols)
    return annotator.getModule().emitError("axes \"")
           << row << "\" and \"" << col << "\" have " << rows << " and " << cols
           << " positions: products in steps need as many of both";
  for (const std::string &axis : axes.drop_back())
    if (failed(applyData(annotator, axis)))
      return failure();
  return Summa(annotator, row, col).run();
}
