//===- RingShifts.cpp - Rotations of values around rings ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Spmd/IR/RingShifts.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "cleave/Dialect/Spmd/IR/AxesText.h"
#include "mlir/IR/BuiltinTypes.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

std::string RingShifts::RingShift::str() const {
  if (steps == 0)
    return "not rotated";
  return "rotated by " + std::to_string(steps) + " around " + setOfAxes(ring);
}

RingShifts::RingShift RingShifts::make(ArrayRef<AxisRef> ring,
                                       int64_t steps) const {
  AxisList axes = mesh.significant(ring);
  int64_t parts = mesh.size(axes);
  steps = (steps % parts + parts) % parts;
  return steps == 0 ? RingShift() : RingShift{axes, steps};
}

std::optional<RingShifts::RingShift> RingShifts::sum(const RingShift &a,
                                                     const RingShift &b) const {
  if (a.steps != 0 && b.steps != 0 && a.ring != b.ring)
    return std::nullopt;
  return make(a.steps != 0 ? a.ring : b.ring, a.steps + b.steps);
}

std::optional<std::string> RingShifts::move(Operation *op,
                                            const Collective &move) {
  RingShift before = shifts.lookup(op->getOperand(0)), after = before;
  AxisList axes(move.axes);
  for (const auto &lists : {move.dims, move.newDims})
    for (const AxisList &list : lists)
      axes.append(list.begin(), list.end());
  if (move.kind == CollectiveKind::Rotate) {
    auto next = sum(before, make(axes, 1));
    if (!next)
      return "rotates over another ring a value that was " + before.str();
    after = *next;
  } else if (llvm::any_of(axes, [&](const AxisRef &axis) {
               return mesh.size(axis) > 1 && mesh.overlap(axis, before.ring);
             })) {
    return "communicates over its ring a value that was " + before.str();
  } else if (move.into && !(shifts.lookup(move.into) == before)) {
    return "inserts a value that was " + before.str() + " into one that was " +
           shifts.lookup(move.into).str();
  }
  if (after.steps != 0)
    shifts[op->getResult(0)] = after;
  return std::nullopt;
}

void RingShifts::same(Operation *op) {
  if (RingShift shift = shifts.lookup(op->getOperand(0)); shift.steps != 0)
    shifts[op->getResult(0)] = shift;
}

/// Returns the shift of the attribute of `op`, else that of its rule.
static graph::RingShift shiftOf(Operation *op,
                                const graph::ShardingRule &rule) {
  auto shifted = op->getAttrOfType<DictionaryAttr>(kRingShiftAttr);
  if (!shifted)
    return rule.shift;
  auto number = [&](StringRef name) {
    auto value = shifted.getAs<IntegerAttr>(name);
    return value ? std::optional(value.getInt()) : std::nullopt;
  };
  graph::RingShift shift;
  auto operand = number("operand");
  unsigned tensor = operand ? *operand : *number("result");
  const graph::FactorMapping &mapping =
      operand ? rule.operands[tensor] : rule.results[tensor];
  ArrayRef<int64_t> factors = mapping[*number("dim")];
  if (factors.empty())
    return shift;
  shift.factor = factors.front();
  shift.steps = *number("steps");
  if (operand)
    shift.operands.push_back(tensor);
  else
    shift.results.push_back(tensor);
  return shift;
}

std::optional<std::string> RingShifts::op(Operation *op,
                                          const graph::ShardingRule &rule,
                                          const FactorAxes &axes) {
  RingShift ahead, behind;
  graph::RingShift meets = shiftOf(op, rule);
  if (meets.steps != 0) {
    ahead = make(axes[meets.factor], meets.steps);
    behind = make(axes[meets.factor], -meets.steps);
  }
  // What is whole at each position of a ring meets every rotation around it.
  SmallVector<AxisRef> rings;
  for (Value operand : op->getOperands())
    llvm::append_range(rings, shifts.lookup(operand).ring);
  auto isWhole = [&](size_t i) {
    return !rings.empty() && shifts.lookup(op->getOperand(i)).steps == 0 &&
           llvm::none_of(rule.operands[i], [&](ArrayRef<int64_t> factors) {
             return llvm::any_of(factors, [&](int64_t factor) {
               return llvm::any_of(axes[factor], [&](const AxisRef &axis) {
                 return mesh.size(axis) > 1 && mesh.overlap(axis, rings);
               });
             });
           });
  };
  // Less the shift of the rule, all operands must have the same rotation.
  std::optional<RingShift> common;
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    if (llvm::is_contained(rule.unused, i) || isWhole(i) ||
        cast<RankedTensorType>(operand.getType()).getNumElements() == 1)
      continue;
    RingShift own = shifts.lookup(operand);
    bool shifted = llvm::is_contained(meets.operands, i);
    auto rest = shifted ? sum(own, behind) : own;
    if (!rest || (common && !(*rest == *common))) {
      RingShift wanted = common.value_or(RingShift());
      if (auto more = shifted ? sum(wanted, ahead) : wanted)
        wanted = *more;
      return "has an " + graph::nameOperand(op->getOpOperand(i)) +
             " that was " + own.str() + ", expected " + wanted.str() +
             " from the other operands";
    }
    common = rest;
  }
  for (auto [i, result] : llvm::enumerate(op->getResults())) {
    auto own = common ? *common : RingShift();
    if (llvm::is_contained(meets.results, i))
      if (auto more = sum(own, ahead))
        own = *more;
    if (own.steps != 0)
      shifts[result] = own;
  }
  return std::nullopt;
}

std::optional<std::string> RingShifts::result(Value value) {
  RingShift shift = shifts.lookup(value);
  if (shift.steps == 0)
    return std::nullopt;
  return "returns a value that was " + shift.str();
}
