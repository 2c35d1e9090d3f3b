//===- MatmulGroups.cpp - Products of one value --------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "MatmulGroups.h"
#include "Pieces.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

std::optional<Product> Product::read(Operation *op) {
  if (auto linear = dyn_cast<graph::LinearOp>(op)) {
    // [..., i] by [o, i].
    graph::Einsum equation;
    for (int64_t i = 0, e = graph::tensorTypeOf(linear.getInput()).getRank();
         i + 1 < e; ++i)
      equation.lhs += static_cast<char>('A' + i);
    equation.output = equation.lhs + "o";
    equation.lhs += "i";
    equation.rhs = "oi";
    return Product{op,
                   linear.getInput(),
                   linear.getWeight(),
                   linear.getBias(),
                   equation,
                   linear.getResultElementAttr()};
  }
  if (auto contract = dyn_cast<graph::ContractOp>(op)) {
    std::string error;
    auto equation = graph::Einsum::parse(contract.getEquation(), error);
    if (!equation)
      return std::nullopt;
    return Product{op,      contract.getLhs(), contract.getRhs(),
                   Value(), *equation,         contract.getResultElementAttr()};
  }
  return std::nullopt;
}

Value Product::rebuild(OpBuilder &builder, Value lhs, Value rhs,
                       Value bias) const {
  if (isa<graph::LinearOp>(op))
    return graph::LinearOp::create(builder, op->getLoc(), lhs, rhs, bias,
                                   element);
  return graph::ContractOp::create(builder, op->getLoc(),
                                   builder.getStringAttr(equation.str()), lhs,
                                   rhs, element);
}

BlockArgument cleave::spmd::copiedParameter(Value value) {
  if (isa<BlockArgument>(value))
    return nullptr;
  while (
      isa_and_nonnull<graph::CastOp, graph::ReshapeOp, AllGatherOp, BarrierOp>(
          value.getDefiningOp()))
    value = value.getDefiningOp()->getOperand(0);
  auto argument = dyn_cast<BlockArgument>(value);
  auto function =
      argument ? dyn_cast<func::FuncOp>(argument.getOwner()->getParentOp())
               : func::FuncOp();
  return function &&
                 graph::hasRole(function, argument.getArgNumber(), "parameter")
             ? argument
             : BlockArgument();
}

/// Whether the first dimension of the weight is of the result, too, and of the
/// weight only.
static bool isFirstFree(const graph::Einsum &equation) {
  return !equation.rhs.empty() &&
         equation.lhs.find(equation.rhs[0]) == std::string::npos &&
         equation.output.find(equation.rhs[0]) != std::string::npos;
}

SmallVector<ProductGroup> cleave::spmd::findProductGroups(Block &body) {
  SmallVector<ProductGroup> groups;
  ProductGroup open;
  auto close = [&] {
    if (open.size() > 1)
      groups.push_back(std::move(open));
    open = ProductGroup();
  };
  for (Operation &op : body) {
    auto product = Product::read(&op);
    if (!product)
      continue;
    // Parts of the first dimension lie in one place each.
    bool fits = isFirstFree(product->equation) &&
                copiedParameter(product->rhs) &&
                (!product->bias || copiedParameter(product->bias));
    if (!open.empty()) {
      const Product &first = open.front();
      bool joins =
          fits && product->isLike(first) && product->lhs == first.lhs &&
          isAlike(product->rhs, first.rhs, /*dim=*/0) &&
          writtenShardingAttr(product->op->getResult(0)) ==
              writtenShardingAttr(first.op->getResult(0)) &&
          llvm::none_of(open, [&](const Product &other) {
            return copiedParameter(other.rhs) == copiedParameter(product->rhs);
          });
      if (!joins)
        close();
    }
    if (!fits)
      continue;
    open.push_back(std::move(*product));
  }
  close();
  return groups;
}
