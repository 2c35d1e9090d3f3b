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
/// This says where arguments lie; SummaSteps.cpp what products do then.
///
//===----------------------------------------------------------------------===//

#include "Summa.h"
#include "DecomposeFeatureNorms.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/ShardingRules/ScaledOperand.h"
#include "cleave/Dialect/Spmd/Transforms/Propagation/SeedOrder.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

graph::ShardingRule cleave::spmd::ruleOf(Operation *op) {
  return cast<graph::ShardingRuleOpInterface>(op).getShardingRule();
}

bool cleave::spmd::isProduct(Operation *op) {
  auto costed = dyn_cast<graph::CostOpInterface>(op);
  return costed && isa<graph::ShardingRuleOpInterface>(op) &&
         costed.getCost().work == graph::WorkClass::Contraction &&
         op->getNumResults() == 1 && op->getNumOperands() >= 2;
}

int64_t cleave::spmd::factorOf(const graph::ShardingRule &rule,
                               ArrayRef<int64_t> factors) {
  for (int64_t factor : factors)
    if (rule.factors[factor].size != 1)
      return factor;
  return -1;
}

std::optional<unsigned> cleave::spmd::dimOf(const graph::ShardingRule &rule,
                                            const graph::FactorMapping &mapping,
                                            int64_t factor) {
  for (auto [dim, factors] : llvm::enumerate(mapping))
    if (factor >= 0 && factorOf(rule, factors) == factor)
      return dim;
  return std::nullopt;
}

std::optional<Place> cleave::spmd::argumentOf(Value value, unsigned dim) {
  while (Operation *op = value.getDefiningOp()) {
    auto costed = dyn_cast<graph::CostOpInterface>(op);
    if (BlockArgument argument = graph::pointwiseArgument(value))
      return Place(argument, dim);
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

/// Says of a table or a head that its places are not split over `axis`.
void Summa::remarkWhole(BlockArgument table, unsigned dim, int64_t places,
                        StringRef axis) {
  mlir::emitRemark(table.getLoc())
      << "dimension " << dim << " stays whole: the " << parts
      << " positions of axis \"" << axis << "\" do not divide its " << places
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
  auto classOf = [&](int64_t factor) -> const DimensionClass & {
    return classes.of(weight, *dimOf(rule, rule.operands[operand], factor));
  };
  bool head = out && classOf(*out).consumers.empty();
  // It does so too where a loss needs all of its classes: the entry that
  // returns the logits splits it as the others do.
  bool table =
      (head && classOf(*out).reduced) || llvm::any_of(made, [&](int64_t own) {
        const DimensionClass &known = classOf(own);
        return known.consumers.empty() && !known.lookups.empty();
      });
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
      // A model works without it: no product sums over the logits of a head.
      if (head && factor == out) {
        remarkWhole(argument, place->second, known.divisor, axis);
        continue;
      }
      InFlightDiagnostic error = emitError(argument.getLoc());
      error << "dimension " << place->second << " of parameter \""
            << graph::getArgString(function, argument.getArgNumber(),
                                   graph::kNameAttr)
            << "\" comes in " << known.divisor
            << (known.attended ? " heads" : "") << ", which the " << parts
            << " positions of axis \"" << axis << "\" do not divide";
      std::string fits = partsThatFit(known.divisor);
      error << ": " << (fits.empty() ? "" : "use " + fits + ", or ")
            << "replicate the parameter by a placement";
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
  SeedOrder seedOrder(function.getBody().front());
  for (Operation &op : function.getBody().front().without_terminator()) {
    if (!isProduct(&op) || seedOrder.of(&op) != 0)
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
        remarkWhole(argument, dim, places, row);
    }
  }
}

LogicalResult Summa::run() {
  // Forward alone says what a weight sums over; the classes of entries differ.
  for (func::FuncOp function : annotator.entries())
    decomposeFeatureNorms(function, [&](Value value) {
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
    if (failed(applyDp(annotator, axis)))
      return failure();
  return Summa(annotator, row, col).run();
}
