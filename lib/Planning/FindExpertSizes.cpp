//===- FindExpertSizes.cpp - Mixtures, routers and latent widths ---------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "SizeFinder.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

/// The choices of tokens.
void SizeFinder::describe(closedforms::Mixture &mixture) {
  if (!choice)
    return;
  mixture.scores = elementsOf(choice.getInput());
  mixture.choices = static_cast<double>(
      cast<RankedTensorType>(choice.getValues().getType()).getShape().back());
}

/// Weights of experts have a dimension that contracted values have too. Of a
/// mixture that drops no token and has places for all at each expert, tokens
/// need but those at their own experts (MegaBlocks, arXiv 2211.15841, section
/// 3).
void SizeFinder::addExperts(ContractOp op, closedforms::Contraction &own) {
  StringRef equation = op.getEquation();
  auto [factors, out] = equation.split("->");
  auto [lhs, rhs] = factors.split(',');
  for (auto [letters, others, factor, other] :
       {std::tuple(lhs, rhs, op.getLhs(), op.getRhs()),
        std::tuple(rhs, lhs, op.getRhs(), op.getLhs())}) {
    closedforms::Parameter *weight = parameterOf(factor);
    if (!weight || parameterOf(other))
      continue;
    for (auto [letter, size] : llvm::zip(
             letters, cast<RankedTensorType>(factor.getType()).getShape())) {
      if (!others.contains(letter) || !out.contains(letter))
        continue;
      weight->experts = static_cast<double>(size);
      double rows = own.operations / 2 / weight->elements * weight->experts;
      double share = 1;
      closedforms::Mixture mixture;
      if (choice) {
        double scores = elementsOf(choice.getInput());
        mixture.weights = elementsOf(choice.getValues());
        if (rows >= scores)
          share = mixture.weights / scores;
      }
      own.operations *= share;
      if (!ofExperts.contains(other) && !own.sharesInput) {
        mixture.places = share * own.input;
        mixture.given = own.input;
        describe(mixture);
        sizes.mixtures.push_back(mixture);
      }
      ofExperts.insert(op.getOutput());
      return;
    }
  }
}

/// Each choice of a token is a row, and rows go to the ranks of their experts.
void SizeFinder::addRowsOfExperts(GroupedLinearOp op) {
  if (closedforms::Parameter *weight = parameterOf(op.getWeight()))
    weight->experts = static_cast<double>(
        cast<RankedTensorType>(op.getWeight().getType()).getDimSize(0));
  // A router has read the tokens before, and several layers may read the rows.
  if (!ofExperts.contains(op.getRows()) && read.insert(op.getGroups()).second) {
    closedforms::Mixture mixture;
    mixture.places = elementsOf(op.getRows());
    mixture.weights = elementsOf(op.getGroups());
    mixture.expertsOfRows = static_cast<double>(
        cast<RankedTensorType>(op.getWeight().getType()).getDimSize(0));
    mixture.given = mixture.places;
    describe(mixture);
    sizes.mixtures.push_back(mixture);
  }
  ofExperts.insert(op.getOutput());
}

/// Places are elementwise, and their sums by tokens are what an addition to the
/// stream reads.
void SizeFinder::followExperts(Operation &op) {
  auto any = [&](const llvm::DenseSet<Value> &values) {
    return llvm::any_of(op.getOperands(),
                        [&](Value value) { return values.contains(value); });
  };
  bool places = any(ofExperts);
  if ((!places && !any(ofMixtures)) || isa<LayerNormOp, RmsNormOp>(op))
    return;
  bool sums = !places || isContraction(&op) ||
              isa<GatherOp, ScatterAddOp, ReduceOp>(op);
  if (isContraction(&op) && !places)
    return;
  for (Value result : op.getResults())
    if (!ofExperts.contains(result))
      (sums ? ofMixtures : ofExperts).insert(result);
}

void SizeFinder::keepWhole(Operation &op) {
  sizes.contractions[contractions.at(&op)].isWhole = true;
  for (Value factor : {op.getOperand(0), op.getOperand(1)})
    if (closedforms::Parameter *parameter = parameterOf(factor))
      parameter->hasFeatures = false;
}

/// The logits of a router are few, and each rank chooses by all.
void SizeFinder::addRouter(TopKOp op) {
  choice = op;
  SmallVector<Value> todo{op.getInput()};
  llvm::DenseSet<Value> seen;
  while (!todo.empty()) {
    Operation *from = todo.pop_back_val().getDefiningOp();
    if (!from || isa<LayerNormOp, RmsNormOp>(from))
      continue;
    if (isContraction(from)) {
      keepWhole(*from);
      continue;
    }
    for (Value operand : from->getOperands())
      if (hasGradient(operand) && seen.insert(operand).second)
        todo.push_back(operand);
  }
}

/// A norm of rows of a contraction, or of their activation, reads these whole
/// (the head of BERT, the latent width of
/// DeepSeek-V2, arXiv 2405.04434, section 2.1); one of heads does not.
void SizeFinder::addNorm(Operation &op) {
  Value input = op.getOperand(0);
  auto type = cast<RankedTensorType>(input.getType());
  if (type.getRank() <= 3)
    sizes.normSums += elementsOf(input) /
                      static_cast<double>(type.getShape().back()) *
                      (isa<LayerNormOp>(op) ? 4 : 2);
  // Rows that are parts of those of a contraction.
  Operation *made = contractionOf(input);
  if (made && op.getNumOperands() > 1 &&
      cast<RankedTensorType>(made->getResult(0).getType()).getShape().back() !=
          type.getShape().back())
    if (closedforms::Parameter *scale = parameterOf(op.getOperand(1)))
      scale->ofHeads = true;
  while (Operation *from = input.getDefiningOp()) {
    if (isContraction(from))
      return keepWhole(*from);
    if (from->getNumOperands() != 1 || isa<ReshapeOp, TransposeOp>(from))
      return;
    input = from->getOperand(0);
  }
}
