//===- Turns.cpp - How far values were passed on around rings -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Turns.h"
#include "mlir/IR/BuiltinTypes.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

std::string Turns::Turn::str() const {
  if (steps == 0)
    return "not passed on";
  std::string text = "passed on by " + std::to_string(steps) + " around {";
  llvm::raw_string_ostream os(text);
  llvm::interleaveComma(ring, os, [&](const AxisRef &a) { os << a.str(); });
  os << "}";
  return text;
}

Turns::Turn Turns::make(ArrayRef<AxisRef> ring, int64_t steps) const {
  AxisList axes = mesh.significant(ring);
  int64_t parts = mesh.size(axes);
  steps = (steps % parts + parts) % parts;
  return steps == 0 ? Turn() : Turn{axes, steps};
}

std::optional<Turns::Turn> Turns::sum(const Turn &a, const Turn &b) const {
  if (a.steps != 0 && b.steps != 0 && a.ring != b.ring)
    return std::nullopt;
  return make(a.steps != 0 ? a.ring : b.ring, a.steps + b.steps);
}

std::optional<std::string> Turns::move(Operation *op, const Move &move) {
  Turn before = turns.lookup(op->getOperand(0)), after = before;
  AxisList axes(move.axes);
  for (const auto &lists : {move.dims, move.newDims})
    for (const AxisList &list : lists)
      axes.append(list.begin(), list.end());
  if (move.kind == MoveKind::Rotate) {
    auto next = sum(before, make(axes, 1));
    if (!next)
      return "passes on what was " + before.str();
    after = *next;
  } else if (llvm::any_of(axes, [&](const AxisRef &axis) {
               return mesh.size(axis) > 1 && mesh.overlap(axis, before.ring);
             })) {
    return "moves along its ring what was " + before.str();
  } else if (move.into && !(turns.lookup(move.into) == before)) {
    return "puts what was " + before.str() + " into what was " +
           turns.lookup(move.into).str();
  }
  if (after.steps != 0)
    turns[op->getResult(0)] = after;
  return std::nullopt;
}

void Turns::same(Operation *op) {
  if (Turn turn = turns.lookup(op->getOperand(0)); turn.steps != 0)
    turns[op->getResult(0)] = turn;
}

/// What `op` says of itself, else what its rule says.
static graph::Turn turnOf(Operation *op, const graph::ShardingRule &rule) {
  auto turned = op->getAttrOfType<DictionaryAttr>(kTurnedAttr);
  if (!turned)
    return rule.turn;
  auto number = [&](StringRef name) {
    auto value = turned.getAs<IntegerAttr>(name);
    return value ? std::optional(value.getInt()) : std::nullopt;
  };
  graph::Turn turn;
  auto operand = number("operand");
  unsigned tensor = operand ? *operand : *number("result");
  const graph::FactorMapping &mapping =
      operand ? rule.operands[tensor] : rule.results[tensor];
  ArrayRef<int64_t> factors = mapping[*number("dim")];
  if (factors.empty())
    return turn;
  turn.factor = factors.front();
  turn.steps = *number("steps");
  if (operand)
    turn.operands.push_back(tensor);
  else
    turn.results.push_back(tensor);
  return turn;
}

std::optional<std::string> Turns::op(Operation *op,
                                     const graph::ShardingRule &rule,
                                     const FactorAxes &axes) {
  Turn ahead, behind;
  graph::Turn meets = turnOf(op, rule);
  if (meets.steps != 0) {
    ahead = make(axes[meets.factor], meets.steps);
    behind = make(axes[meets.factor], -meets.steps);
  }
  // Behind what the rule says, all operands are the same way from home.
  std::optional<Turn> common;
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    if (llvm::is_contained(rule.unread, i) ||
        cast<RankedTensorType>(operand.getType()).getNumElements() == 1)
      continue;
    Turn own = turns.lookup(operand);
    bool turned = llvm::is_contained(meets.operands, i);
    auto rest = turned ? sum(own, behind) : own;
    if (!rest || (common && !(*rest == *common))) {
      Turn wanted = common.value_or(Turn());
      if (auto more = turned ? sum(wanted, ahead) : wanted)
        wanted = *more;
      return "has an operand " + std::to_string(i) + " that was " + own.str() +
             " where the others want it " + wanted.str();
    }
    common = rest;
  }
  for (auto [i, result] : llvm::enumerate(op->getResults())) {
    auto own = common ? *common : Turn();
    if (llvm::is_contained(meets.results, i))
      if (auto more = sum(own, ahead))
        own = *more;
    if (own.steps != 0)
      turns[result] = own;
  }
  return std::nullopt;
}

std::optional<std::string> Turns::result(Value value) {
  Turn turn = turns.lookup(value);
  if (turn.steps == 0)
    return std::nullopt;
  return "gives back what was " + turn.str();
}
