//===- Contraction.cpp - Costs of contractions ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CostBuilder.h"
#include "cleave/Dialect/Graph/IR/Attributes/EvenRows.h"
#include "cleave/Dialect/Graph/IR/Einsum.h"

using namespace mlir;
using namespace cleave::graph;

OpCost ContractOp::getCost() {
  std::string error;
  std::optional<Einsum> einsum = Einsum::parse(getEquation(), error);
  int64_t volume = 1;
  if (einsum) {
    llvm::SmallDenseSet<char> seen;
    for (auto [letters, value] :
         {std::pair(StringRef(einsum->lhs), getLhs()), {einsum->rhs, getRhs()}})
      for (auto [letter, size] : llvm::zip(
               letters, cast<RankedTensorType>(value.getType()).getShape()))
        if (seen.insert(letter).second)
          volume *= size;
  }
  return contractionCost(getOperation(), getLhs(), getRhs(), 2 * volume,
                         {{0, 1}, {}});
}

OpCost LinearOp::getCost() {
  int64_t inner = cast<RankedTensorType>(getWeight().getType()).getDimSize(1);
  int64_t flops = 2 * inner * elementsOf(getOutput());
  if (getBias())
    flops += elementsOf(getOutput());
  return contractionCost(getOperation(), getInput(), getWeight(), flops,
                         {{0, 1}, {}});
}

/// Of all rows a shard of groups has its share, where groups have as many rows.
template <typename Op>
static int64_t flopsOfRows(Op op, int64_t held, int64_t products) {
  int64_t all = op.getOrigin() ? op.getGlobalSize().value_or(held) : held;
  return all > held ? static_cast<int64_t>(2.0 * products * held / all)
                    : 2 * products;
}

/// One product of each row with one matrix.
OpCost GroupedLinearOp::getCost() {
  int64_t inner = cast<RankedTensorType>(getRows().getType()).getShape().back();
  int64_t held = cast<RankedTensorType>(getWeight().getType()).getDimSize(0);
  return contractionCost(
      getOperation(), getRows(), getWeight(),
      flopsOfRows(*this, held, inner * elementsOf(getOutput())),
      {{0, 1, 2}, {}});
}

OpCost GroupedLinearWeightGradOp::getCost() {
  int64_t columns =
      cast<RankedTensorType>(getGradient().getType()).getShape().back();
  return contractionCost(
      getOperation(), getRows(), getGradient(),
      flopsOfRows(*this, getSize(), columns * elementsOf(getRows())),
      {{0, 1, 2}, {}});
}

OpCost SortRowsOp::getCost() {
  return streamingCost(getOperation(), WorkClass::Gather, 0);
}

/// The share of rows that are expected to be used, of those there is room for.
static double usedShare(Operation *op, Value rows) {
  int64_t room = cast<RankedTensorType>(rows.getType()).getDimSize(0);
  return room ? static_cast<double>(evenRows(op, room)) / room : 1;
}

OpCost GroupedContractOp::getCost() {
  int64_t inner = cast<RankedTensorType>(getRows().getType()).getDimSize(1);
  double flops = 2.0 * inner * elementsOf(getOutput());
  return contractionCost(
      getOperation(), getRows(), getWeight(),
      static_cast<int64_t>(flops * usedShare(*this, getRows())),
      {{0, 1, 2}, {}});
}

OpCost GroupedContractWeightGradOp::getCost() {
  int64_t columns = cast<RankedTensorType>(getGrads().getType()).getDimSize(1);
  double flops = 2.0 * columns * elementsOf(getRows());
  return contractionCost(
      getOperation(), getRows(), getGrads(),
      static_cast<int64_t>(flops * usedShare(*this, getRows())));
}
