//===- PaddedForm.cpp - Ops on padded tensors -----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/ShardingRules/PaddedForm.h"

using namespace mlir;
using namespace cleave::graph;

Operation *cleave::graph::buildPadded(Operation *op, OpBuilder &builder,
                                      ValueRange operands, TypeRange types) {
  auto nowhere = [](RankedTensorType, const FactorMapping &) {
    return Value();
  };
  if (auto partitionable = dyn_cast<PartitionableOpInterface>(op))
    return partitionable.buildLocal(builder, operands, types, nowhere);
  Operation *clone = builder.clone(*op);
  clone->setOperands(operands);
  for (auto [result, type] : llvm::zip_equal(clone->getResults(), types))
    result.setType(type);
  return clone;
}

TypedAttr cleave::graph::paddingFill(const Factor &factor, Type element) {
  Builder builder(element.getContext());
  if (factor.padding == PaddingNeed::Any)
    return {};
  if (factor.padding == PaddingNeed::Zero ||
      factor.partial == ReductionKind::Sum)
    return builder.getZeroAttr(element);
  bool least = factor.partial == ReductionKind::Max;
  if (auto type = dyn_cast<FloatType>(element)) {
    const llvm::fltSemantics &semantics = type.getFloatSemantics();
    return builder.getFloatAttr(
        type, APFloat::semanticsHasInf(semantics)
                  ? APFloat::getInf(semantics, /*Negative=*/least)
                  : APFloat::getLargest(semantics, /*Negative=*/least));
  }
  unsigned width = element.getIntOrFloatBitWidth();
  if (width == 1)
    return builder.getBoolAttr(!least);
  return builder.getIntegerAttr(element, least
                                             ? APInt::getSignedMinValue(width)
                                             : APInt::getSignedMaxValue(width));
}

bool cleave::graph::staysZero(const ShardingRule &rule, int64_t factor,
                              function_ref<bool(unsigned)> isZero) {
  auto has = [&](unsigned operand) {
    return llvm::any_of(rule.operands[operand], [&](ArrayRef<int64_t> dim) {
      return llvm::is_contained(dim, factor);
    });
  };
  SmallVector<unsigned> along;
  for (unsigned i = 0; i < rule.operands.size(); ++i)
    if (!llvm::is_contained(rule.unused, i) && has(i))
      along.push_back(i);
  if (!llvm::all_of(along, isZero))
    return false;
  // An operand in which the op is not linear must not run along the factor:
  // zero padding divided by zero padding is not zero.
  return rule.keepsZero || llvm::is_contained(rule.linear, along);
}
