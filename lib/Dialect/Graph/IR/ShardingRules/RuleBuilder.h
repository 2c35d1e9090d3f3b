//===- RuleBuilder.h - Building sharding rules ------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_GRAPH_IR_SHARDINGRULES_RULEBUILDER_H
#define CLEAVE_LIB_DIALECT_GRAPH_IR_SHARDINGRULES_RULEBUILDER_H

#include "cleave/Dialect/Graph/IR/GraphOps.h"

namespace cleave::graph {

inline llvm::ArrayRef<int64_t> shapeOf(mlir::Value value) {
  return llvm::cast<mlir::RankedTensorType>(value.getType()).getShape();
}

/// The factors of one dimension; none for a dimension of one element.
using DimFactors = llvm::SmallVector<int64_t, 2>;

/// A rule that starts with a mapping without factors for each operand and
/// result of `op`.
class RuleBuilder {
public:
  explicit RuleBuilder(mlir::Operation *op) : op(op) {
    for (mlir::Value operand : op->getOperands())
      rule.operands.emplace_back().resize(shapeOf(operand).size());
    for (mlir::Value result : op->getResults())
      rule.results.emplace_back().resize(shapeOf(result).size());
  }

  /// Adds a factor and returns it as the factors of a dimension of that size.
  DimFactors factor(int64_t size, FactorKind kind = FactorKind::Parallel,
                    ReductionKind partial = ReductionKind::Sum,
                    PaddingNeed padding = PaddingNeed::Any) {
    if (size < 2)
      return {};
    return {rule.addFactor(size, kind, partial, padding)};
  }
  DimFactors sumFactor(int64_t size) {
    return factor(size, FactorKind::Reduction, ReductionKind::Sum,
                  PaddingNeed::Zero);
  }
  DimFactors wholeFactor(int64_t size) {
    return factor(size, FactorKind::Replicated);
  }

  /// Adds one factor for each dimension of `shape`.
  FactorMapping factors(llvm::ArrayRef<int64_t> shape,
                        FactorKind kind = FactorKind::Parallel,
                        PaddingNeed padding = PaddingNeed::Any) {
    FactorMapping mapping;
    for (int64_t size : shape)
      mapping.push_back(factor(size, kind, ReductionKind::Sum, padding));
    return mapping;
  }

  /// The mapping of operand or result `index`.
  FactorMapping &operand(unsigned index) { return rule.operands[index]; }
  FactorMapping &result(unsigned index) { return rule.results[index]; }

  /// Maps operand `index` to `mapping`, broadcast by the rules of NumPy.
  void broadcastOperand(unsigned index, const FactorMapping &mapping) {
    rule.operands[index] = broadcast(shapeOf(op->getOperand(index)), mapping);
  }
  void broadcastResult(unsigned index, const FactorMapping &mapping) {
    rule.results[index] = broadcast(shapeOf(op->getResult(index)), mapping);
  }

  void linear(llvm::ArrayRef<unsigned> operands) {
    rule.linear.emplace_back(operands.begin(), operands.end());
  }
  void keepsZero() { rule.keepsZero = true; }
  void unused(unsigned index) { rule.unused.push_back(index); }

  RingShift &shift() { return rule.shift; }

  ShardingRule take() { return std::move(rule); }

private:
  static FactorMapping broadcast(llvm::ArrayRef<int64_t> shape,
                                 const FactorMapping &mapping) {
    FactorMapping result(shape.size());
    size_t lead = mapping.size() - shape.size();
    for (auto [i, size] : llvm::enumerate(shape))
      if (size != 1)
        result[i] = mapping[lead + i];
    return result;
  }

  mlir::Operation *op;
  ShardingRule rule;
};

/// The first flat operand index of ODS operand `n` of `op`, or nothing if it is
/// absent.
template <typename Op> std::optional<unsigned> operandIndex(Op op, unsigned n) {
  auto [start, length] = op.getODSOperandIndexAndLength(n);
  if (length == 0)
    return std::nullopt;
  return start;
}

} // namespace cleave::graph

#endif // CLEAVE_LIB_DIALECT_GRAPH_IR_SHARDINGRULES_RULEBUILDER_H
