//===- PackedCollectives.cpp - One message for many tensors
//-----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "PackedCollectives.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;
using graph::Formula;
using graph::tensorTypeOf;

/// The ops that follow the gradients, by the number of exchanges before them.
std::vector<std::vector<Operation *>>
PackedCollectives::findRounds(Block &block) {
  llvm::DenseMap<Operation *, unsigned> known;
  std::vector<std::vector<Operation *>> rounds;
  for (Operation &op : block.without_terminator()) {
    std::optional<unsigned> round;
    if (gradients.contains(&op))
      round = 0;
    for (Value operand : op.getOperands()) {
      Operation *from = operand.getDefiningOp();
      if (auto it = known.find(from); from && it != known.end())
        round = std::max(round.value_or(0),
                         it->second + unsigned(exchanges.contains(from)));
    }
    if (!round)
      continue;
    known[&op] = *round;
    rounds.resize(std::max<size_t>(rounds.size(), *round + 1));
    rounds[*round].push_back(&op);
  }
  return rounds;
}

/// What the exchanges of one message have in common: for an annotation the
/// sharding and the shape but for the last dimension; and the element type.
static std::tuple<Attribute, Type> kindOf(Operation *exchange) {
  RankedTensorType type = tensorTypeOf(exchange->getOperand(0));
  bool isPlaced = isa<ConstrainOp>(exchange);
  ArrayRef<int64_t> shape =
      isPlaced ? type.getShape().drop_back() : type.getShape().take_front(1);
  return {isPlaced ? cast<ConstrainOp>(exchange).getSharding() : Attribute(),
          RankedTensorType::get(shape, type.getElementType())};
}

/// The sum of `value` over workers, which ranks exchange in its own type: it is
/// not left partial until it has a wider one.
static Value sumOf(Formula &f, Value value, FlatSymbolRefAttr mesh) {
  Value sum = f.sum(value, {0});
  Sharding whole = Sharding::replicated(tensorTypeOf(sum).getRank());
  return ConstrainOp::create(f.builder, f.loc, sum.getType(), sum,
                             ShardingAttr::get(mesh, whole), /*reduced=*/true);
}

/// Replaces exchanges of one kind by one of all their operands.
static void packOne(OpBuilder &builder, ArrayRef<Operation *> exchanges,
                    FlatSymbolRefAttr mesh) {
  Operation *last = exchanges.back();
  builder.setInsertionPoint(last);
  if (exchanges.size() == 1) {
    Formula f{builder, last->getLoc()};
    if (!isa<ConstrainOp>(last))
      last->getResult(0).replaceAllUsesWith(
          sumOf(f, last->getOperand(0), mesh));
    return;
  }
  Formula f{builder, last->getLoc()};
  auto leading = cast<RankedTensorType>(std::get<1>(kindOf(last))).getShape();
  SmallVector<Value> rows;
  for (Operation *op : exchanges) {
    int64_t all = tensorTypeOf(op->getOperand(0)).getNumElements();
    SmallVector<int64_t> shape(leading);
    shape.push_back(all / ShapedType::getNumElements(leading));
    rows.push_back(f.reshape(op->getOperand(0), shape));
  }
  Value packed = graph::ConcatOp::create(builder, f.loc, rows, leading.size());
  if (auto placed = dyn_cast<ConstrainOp>(last))
    packed = ConstrainOp::create(builder, f.loc, packed, placed.getSharding());
  else
    packed = sumOf(f, packed, mesh);
  RankedTensorType type = tensorTypeOf(packed);
  SmallVector<int64_t> offsets(type.getRank(), 0), ones(type.getRank(), 1),
      sizes(type.getShape());
  for (auto [op, row] : llvm::zip(exchanges, rows)) {
    sizes.back() = tensorTypeOf(row).getShape().back();
    Value own =
        graph::SliceOp::create(builder, f.loc, packed, offsets, sizes, ones);
    offsets.back() += sizes.back();
    op->getResult(0).replaceAllUsesWith(
        f.reshape(own, tensorTypeOf(op->getResult(0)).getShape()));
  }
  for (Operation *op : exchanges)
    op->erase();
}

void PackedCollectives::pack(OpBuilder &builder, FlatSymbolRefAttr mesh,
                             bool together) {
  if (gradients.empty())
    return;
  Block &block = *(*gradients.begin())->getBlock();
  if (!together) {
    for (Operation &op : llvm::make_early_inc_range(block))
      if (exchanges.contains(&op))
        packOne(builder, &op, mesh);
    return;
  }
  for (const std::vector<Operation *> &round : findRounds(block)) {
    llvm::MapVector<std::tuple<Attribute, Type>, SmallVector<Operation *>>
        messages;
    // What is exchanged stands behind all that is computed in the round.
    for (bool exchanged : {false, true})
      for (Operation *op : round)
        if (exchanges.contains(op) == exchanged)
          op->moveBefore(block.getTerminator());
    for (Operation *op : round)
      if (exchanges.contains(op))
        messages[kindOf(op)].push_back(op);
    for (auto &[kind, members] : messages)
      packOne(builder, members, mesh);
  }
}
