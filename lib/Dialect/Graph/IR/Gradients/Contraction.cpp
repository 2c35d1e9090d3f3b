//===- Contraction.cpp - Gradients of contractions -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Gradients.h"
#include "cleave/Dialect/Graph/IR/Einsum.h"

using namespace mlir;
using namespace cleave::graph;

/// The gradient for the operand with `letters`: the contraction of the result's
/// gradient with the other operand, repeated along the dimensions that only
/// `letters` has.
static Value contractGradient(Formula &f, Value g, StringRef output,
                              Value other, StringRef otherLetters,
                              Value operand, StringRef letters) {
  std::string shared;
  SmallVector<int64_t> alone;
  for (auto [i, letter] : llvm::enumerate(letters))
    if (output.contains(letter) || otherLetters.contains(letter))
      shared += letter;
    else
      alone.push_back(i);
  // Sums in f32 of 16-bit products have gradients that are 16-bit factors.
  g = f.cast(g, tensorTypeOf(other).getElementType());
  Value gradient =
      f.contract((output + "," + otherLetters + "->" + shared).str(), g, other);
  return f.expandTo(gradient, alone, tensorTypeOf(operand).getShape());
}

CLEAVE_GRADIENTS(ContractOp) {
  Value g = resultGradients[0];
  if (!g)
    return success();
  std::string error;
  std::optional<Einsum> einsum = Einsum::parse(getEquation(), error);
  if (!einsum)
    return emitOpError("equation ") << error;
  Formula f{builder, getLoc()};
  if (needed[0])
    operandGradients[0] = contractGradient(f, g, einsum->output, getRhs(),
                                           einsum->rhs, getLhs(), einsum->lhs);
  if (needed[1])
    operandGradients[1] = contractGradient(f, g, einsum->output, getLhs(),
                                           einsum->lhs, getRhs(), einsum->rhs);
  return success();
}

CLEAVE_GRADIENTS(LinearOp) {
  Value g = resultGradients[0];
  if (!g)
    return success();
  Formula f{builder, getLoc()};
  int64_t leading = getInput().getType().getRank() - 1;
  std::string rows;
  for (char letter = 'a'; static_cast<int64_t>(rows.size()) < leading; ++letter)
    if (letter != 'i' && letter != 'o')
      rows += letter;
  if (rows.size() > 24)
    return emitOpError("has too many dimensions to differentiate");
  Value factor = g;
  if (needed[0] || needed[1])
    factor = f.cast(g, getInput().getType().getElementType());
  if (needed[0])
    operandGradients[0] =
        f.contract(rows + "o,oi->" + rows + "i", factor, getWeight());
  if (needed[1])
    operandGradients[1] =
        f.contract(rows + "o," + rows + "i->oi", factor, getInput());
  if (getBias() && needed[2])
    operandGradients[2] =
        f.sum(g, llvm::to_vector(llvm::seq<int64_t>(0, leading)));
  return success();
}

CLEAVE_GRADIENTS(GroupedLinearOp) {
  Value g = resultGradients[0];
  if (!g)
    return success();
  Formula f{builder, getLoc()};
  g = f.cast(g, getRows().getType().getElementType());
  if (needed[0])
    operandGradients[0] = GroupedLinearOp::create(
        builder, getLoc(), g, getWeight(), getGroups(), getOrigin(),
        /*transpose=*/!getTranspose(), getGlobalSizeAttr(), TypeAttr());
  if (needed[1])
    operandGradients[1] = GroupedLinearWeightGradOp::create(
        builder, getLoc(), getRows(), g, getGroups(), getOrigin(),
        builder.getI64IntegerAttr(getWeight().getType().getDimSize(0)),
        getTransposeAttr(), getGlobalSizeAttr(), TypeAttr());
  return success();
}

CLEAVE_GRADIENTS(GroupedLinearWeightGradOp) {
  Value g = resultGradients[0];
  if (!g)
    return success();
  Formula f{builder, getLoc()};
  g = f.cast(g, getRows().getType().getElementType());
  auto times = [&](Value rows, bool transpose) {
    return GroupedLinearOp::create(builder, getLoc(), rows, g, getGroups(),
                                   getOrigin(), transpose, getGlobalSizeAttr(),
                                   TypeAttr());
  };
  if (needed[0])
    operandGradients[0] = times(getGradient(), !getTranspose());
  if (needed[1])
    operandGradients[1] = times(getRows(), getTranspose());
  return success();
}

// Made by a pass after differentiation.
CLEAVE_NO_GRADIENT(SortRowsOp)
CLEAVE_NO_GRADIENT(GroupedContractOp)
CLEAVE_NO_GRADIENT(GroupedContractWeightGradOp)
