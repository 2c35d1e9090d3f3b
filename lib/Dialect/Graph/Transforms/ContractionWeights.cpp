//===- ContractionWeights.cpp - Parameters that multiply ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/Transforms/ContractionWeights.h"
#include "Optimizers/UpdateBuilder.h"
#include "cleave/Dialect/Graph/Analysis/StepRoles.h"
#include "cleave/Dialect/Graph/IR/Einsum.h"
#include "llvm/ADT/SmallBitVector.h"

using namespace mlir;
using namespace cleave::graph;

namespace {

/// For each dimension of a value, the dimensions of the parameter that it is
/// made of.
using Labels = SmallVector<llvm::SmallBitVector>;

/// Follows one parameter to the contractions that read it.
class Uses {
public:
  Uses(BlockArgument argument, const StepRoles &roles)
      : roles(roles), rank(tensorTypeOf(argument).getRank()), summed(rank),
        kept(rank) {
    Labels labels;
    for (int64_t dim = 0; dim < rank; ++dim) {
      labels.emplace_back(rank);
      labels.back().set(dim);
    }
    follow(argument, labels);
    if (!reason.empty())
      return;
    if (summed.none())
      reason = "no contraction reads it";
    else if (summed.anyCommon(kept) || !(summed | kept).all())
      reason = "contractions sum over different dimensions of it";
  }

  std::string reason;

private:
  void follow(Value value, const Labels &labels);
  void read(OpOperand &use, const Labels &labels);
  void note(StringRef letters, StringRef output, const Labels &labels);

  const StepRoles &roles;
  int64_t rank;

public:
  llvm::SmallBitVector summed, kept;
};

} // namespace

/// Dimensions of a reshape: each of the result has the labels of those of the
/// input whose elements it is a part or a product of.
static Labels reshapeLabels(const Labels &labels, ArrayRef<int64_t> from,
                            ArrayRef<int64_t> to) {
  Labels result(to.size(), llvm::SmallBitVector(labels.front().size()));
  size_t i = 0, j = 0;
  while (i < from.size() || j < to.size()) {
    size_t firstIn = i, firstOut = j;
    int64_t in = 1, out = 1;
    if (i < from.size())
      in = from[i++];
    if (j < to.size())
      out = to[j++];
    while (in != out) {
      if (in < out && i < from.size())
        in *= from[i++];
      else if (out < in && j < to.size())
        out *= to[j++];
      else
        break;
    }
    // Dimensions of size 1 behind have no elements of their own.
    while (i < from.size() && from[i] == 1)
      ++i;
    while (j < to.size() && to[j] == 1)
      ++j;
    llvm::SmallBitVector all(labels.front().size());
    for (size_t k = firstIn; k < i; ++k)
      all |= labels[k];
    for (size_t k = firstOut; k < j; ++k)
      result[k] = all;
  }
  return result;
}

/// Counts the dimensions `letters` of a factor as summed over or kept.
void Uses::note(StringRef letters, StringRef output, const Labels &labels) {
  for (auto [letter, label] : llvm::zip_equal(letters, labels))
    (output.contains(letter) ? kept : summed) |= label;
}

void Uses::read(OpOperand &use, const Labels &labels) {
  Operation *op = use.getOwner();
  unsigned index = use.getOperandNumber();
  if (isa<CastOp, StopGradientOp, SliceOp>(op))
    return follow(op->getResult(0), labels);
  if (auto transpose = dyn_cast<TransposeOp>(op)) {
    Labels permuted;
    for (int64_t dim : transpose.getPermutation())
      permuted.push_back(labels[dim]);
    return follow(transpose.getOutput(), permuted);
  }
  if (auto reshape = dyn_cast<ReshapeOp>(op))
    return follow(reshape.getOutput(),
                  reshapeLabels(labels, tensorTypeOf(use.get()).getShape(),
                                tensorTypeOf(reshape.getOutput()).getShape()));
  if (isa<LinearOp>(op) && index == 1)
    return note("oi", "o", labels);
  if (auto grouped = dyn_cast<GroupedLinearOp>(op); grouped && index == 1)
    return note(grouped.getTranspose() ? "emk" : "ekm", "em", labels);
  if (auto contract = dyn_cast<ContractOp>(op)) {
    std::string error;
    if (std::optional<Einsum> einsum =
            Einsum::parse(contract.getEquation(), error))
      return note(index == 0 ? einsum->lhs : einsum->rhs, einsum->output,
                  labels);
  }
  reason = ("'" + op->getName().getStringRef() + "' reads it").str();
}

void Uses::follow(Value value, const Labels &labels) {
  for (OpOperand &use : value.getUses()) {
    Operation *user = use.getOwner();
    if (!user->hasTrait<OpTrait::IsTerminator>() && roles.isForward(user) &&
        !roles.servesUpdate(user))
      read(use, labels);
  }
}

std::vector<ContractionWeight>
cleave::graph::findContractionWeights(func::FuncOp entry) {
  StepRoles roles(entry.getBody().front());
  std::vector<ContractionWeight> found;
  for (BlockArgument argument : entry.getArguments()) {
    if (!hasRole(entry, argument.getArgNumber(), "parameter"))
      continue;
    TrainedParameter parameter(entry, argument);
    if (parameter.rank() < 2)
      continue;
    ContractionWeight weight{argument, parameter.name().str(), {}, {}, {}};
    Uses uses(argument, roles);
    weight.reason = uses.reason;
    for (int64_t dim : parameter.all())
      (uses.summed.test(dim) ? weight.inputs : weight.outputs).push_back(dim);
    found.push_back(std::move(weight));
  }
  return found;
}
