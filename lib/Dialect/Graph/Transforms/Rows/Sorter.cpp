//===- Sorter.cpp - Rows sorted by group, and sent ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Ops that compute each row alone (RowOps.h) keep the order of rows that they
/// are given. So rows are sorted before the first op with weights of groups,
/// and put back after the last one. Where groups are on other ranks, rows are
/// sent there after they are sorted, and sent back before they are put back.
///
//===----------------------------------------------------------------------===//

#include "RowOps.h"
#include "cleave/Dialect/Graph/Analysis/LinearLayers.h"
#include "cleave/Dialect/Graph/IR/Attributes/EvenRows.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/Transforms/SortedRows.h"
#include "mlir/IR/OperationSupport.h"
#include "llvm/ADT/SetVector.h"

#include <map>

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

//===----------------------------------------------------------------------===//
// The groups of rows
//===----------------------------------------------------------------------===//

template <typename OpTy> static RowGroups groupsOf(OpTy op, int64_t size) {
  Value root = op.getGroups();
  while (auto reshape = root.getDefiningOp<ReshapeOp>())
    root = reshape.getInput();
  return {root, op.getOrigin(), size,
          static_cast<int64_t>(op.getGlobalSize().value_or(size))};
}

static RowGroups groupsOf(Operation *op) {
  if (auto linear = dyn_cast<GroupedLinearOp>(op))
    return groupsOf(linear, tensorTypeOf(linear.getWeight()).getDimSize(0));
  auto grad = cast<GroupedLinearWeightGradOp>(op);
  return groupsOf(grad, static_cast<int64_t>(grad.getSize()));
}

/// Origins are computed for each op anew.
static bool isSame(Value a, Value b) {
  if (a == b || !a || !b)
    return a == b;
  Operation *left = a.getDefiningOp(), *right = b.getDefiningOp();
  return left && right &&
         OperationEquivalence::isEquivalentTo(
             left, right, OperationEquivalence::exactValueMatch,
             /*markEquivalent=*/nullptr, OperationEquivalence::IgnoreLocations);
}

bool RowGroups::operator==(const RowGroups &other) const {
  return root == other.root && size == other.size &&
         globalSize == other.globalSize && isSame(origin, other.origin);
}

int64_t RowGroups::rows() const { return tensorTypeOf(root).getNumElements(); }

SmallVector<GroupedOps> cleave::graph::findGroupedOps(Block &block) {
  SmallVector<GroupedOps> all;
  for (Operation &op : block) {
    if (!isa<GroupedLinearOp, GroupedLinearWeightGradOp>(op))
      continue;
    RowGroups groups = groupsOf(&op);
    auto *known = llvm::find_if(
        all, [&](const auto &other) { return other.groups == groups; });
    if (known == all.end()) {
      all.push_back({groups, {}});
      known = &all.back();
    }
    known->ops.push_back(&op);
  }
  return all;
}

namespace {

/// Moves the ops on single rows between the ops of one value of groups.
class Sorter {
public:
  Sorter(const GroupedOps &grouped, RowTravel *travel)
      : groups(grouped.groups), grouped(grouped.ops.begin(), grouped.ops.end()),
        travel(travel), rows(groups.rows()), builder(grouped.ops.front()) {}

  void run();

private:
  using Ops = llvm::SetVector<Operation *>;
  /// Sorted rows are those that are `Own`, or, where they travel, those that
  /// are `Held` with their groups.
  enum Side { Own, Held };

  // The choice of ops.
  void choose();
  void follow(llvm::SetVector<Value> &values, Ops &ops) const;
  void trace(llvm::SetVector<Value> &values, Ops &ops) const;
  bool isReadSorted(OpOperand &use) const;
  bool isWorthMoving(Operation *op) const;
  void narrow(ArrayRef<Operation *> later);
  void round();
  bool isReducedSorted(Operation *op, const RowOp &reduced) const;

  // Their form on sorted rows.
  void placeAt(Operation *op);
  void sort();
  void build(Operation *op);
  void buildMoved(Operation *op, const RowOp &own);
  Value sorted(Value value, Side side);
  Value sortedCopy(Value value, Side side);
  Value repeatedRows(ArrayRef<int64_t> index, ArrayRef<int64_t> shape);
  Value sortedBroadcast(Value value, ArrayRef<int64_t> shape, Side side);
  Value sortedOperand(Operation *op, const RowOp &own, unsigned index,
                      Side side);
  SmallVector<int64_t> inRows(ArrayRef<int64_t> shape, Side side) const;
  Value gather(Value value, Value indices);
  void putBack();

  Value reshape(Value value, ArrayRef<int64_t> shape) {
    return Formula{builder, loc}.reshape(value, shape);
  }

  /// The side where ops between those of groups are computed.
  Side far() const { return travel ? Held : Own; }
  int64_t rowsAt(Side side) const {
    return side == Held ? travel->room() : rows;
  }

  RowGroups groups;
  Ops grouped;
  RowTravel *travel;
  int64_t rows;
  /// Ops that work on sorted rows, those of them that do before rows are sent,
  /// and ops that reduce all of them.
  Ops moved, early, reduced;
  /// The first op behind what the groups are computed by.
  Operation *known = nullptr;
  OpBuilder builder;
  Location loc = builder.getUnknownLoc();
  Value order, inverse, offsets;
  /// Of each side the sorted rows of a value, [rows, ...]; and, of what
  /// broadcasts to a shape, of that.
  DenseMap<Value, Value> sortedRows[2];
  std::map<std::pair<void *, std::vector<int64_t>>, Value> repeated[2];
};

} // namespace

//===----------------------------------------------------------------------===//
// The choice of ops
//===----------------------------------------------------------------------===//

/// The rows that an op of groups reads.
static SmallVector<OpOperand *, 2> rowOperands(Operation *op) {
  SmallVector<OpOperand *, 2> operands{&op->getOpOperand(0)};
  if (isa<GroupedLinearWeightGradOp>(op))
    operands.push_back(&op->getOpOperand(1));
  return operands;
}

/// Adds the ops that compute rows of `values`, and their results.
void Sorter::follow(llvm::SetVector<Value> &values, Ops &ops) const {
  for (size_t i = 0; i < values.size(); ++i)
    for (OpOperand &use : values[i].getUses()) {
      Operation *user = use.getOwner();
      if (ops.contains(user) || user->getBlock() != grouped[0]->getBlock())
        continue;
      std::optional<RowOp> own = RowOp::of(user, rows);
      if (!own || own->operands[use.getOperandNumber()] != RowUse::Rows)
        continue;
      ops.insert(user);
      values.insert(user->result_begin(), user->result_end());
    }
}

/// Adds the ops of which `values` are rows, and their operands.
void Sorter::trace(llvm::SetVector<Value> &values, Ops &ops) const {
  for (size_t i = 0; i < values.size(); ++i) {
    Operation *op = values[i].getDefiningOp();
    std::optional<RowOp> own = op ? RowOp::of(op, rows) : std::nullopt;
    if (!own || !ops.insert(op))
      continue;
    for (auto [use, operand] : llvm::zip(own->operands, op->getOperands()))
      if (use == RowUse::Rows)
        values.insert(operand);
  }
}

/// Whether the one who reads it does so in the sorted order.
bool Sorter::isReadSorted(OpOperand &use) const {
  Operation *user = use.getOwner();
  if (grouped.contains(user))
    return llvm::is_contained(rowOperands(user), &use);
  return moved.contains(user) &&
         RowOp::of(user, rows)->operands[use.getOperandNumber()] ==
             RowUse::Rows;
}

/// Elements for each row.
static int64_t widthOf(Value value, int64_t rows) {
  return tensorTypeOf(value).getNumElements() / rows;
}

/// Whether it is cheaper to sort what an op reads than what it computes, which
/// is only read in the sorted order.
bool Sorter::isWorthMoving(Operation *op) const {
  for (OpResult result : op->getResults())
    for (OpOperand &use : result.getUses())
      if (!isReadSorted(use))
        return false;
  RowOp own = *RowOp::of(op, rows);
  if (own.reshapes)
    return true;
  int64_t read = 0, made = 0;
  for (auto [use, operand] : llvm::zip(own.operands, op->getOperands()))
    if (use == RowUse::Rows)
      read += widthOf(operand, rows);
    else if (use == RowUse::Repeated)
      read += tensorTypeOf(operand).getShape().back();
  for (Value result : op->getResults())
    made += widthOf(result, rows);
  // A result would be written, and read again to be sorted.
  return read < 2 * made;
}

/// Whether all rows that `op` reduces, and that are wide, are sorted.
bool Sorter::isReducedSorted(Operation *op, const RowOp &own) const {
  int64_t known = 0, others = 0;
  for (auto [use, operand] : llvm::zip(own.operands, op->getOperands())) {
    if (use == RowUse::Other)
      continue;
    Operation *made = operand.getDefiningOp();
    (made && (grouped.contains(made) || moved.contains(made)) ? known
                                                              : others) +=
        widthOf(operand, rows);
  }
  return others < known;
}

/// Bits for each row.
static int64_t bitsOf(Value value, int64_t rows) {
  return widthOf(value, rows) *
         tensorTypeOf(value).getElementType().getIntOrFloatBitWidth();
}

/// Moves ops that make less of a row than they read, of rows that no other op
/// reads in their own order: less is sent back.
void Sorter::narrow(ArrayRef<Operation *> later) {
  SmallVector<Operation *> ops(later);
  llvm::sort(ops,
             [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); });
  for (Operation *op : ops) {
    if (moved.contains(op))
      continue;
    RowOp own = *RowOp::of(op, rows);
    SmallPtrSet<Value, 4> read;
    bool can = true;
    for (auto [use, operand] : llvm::zip(own.operands, op->getOperands())) {
      Operation *made = operand.getDefiningOp();
      if (use == RowUse::Rows)
        read.insert(operand);
      can &= use == RowUse::Other ||
             (use == RowUse::Rows && made &&
              (grouped.contains(made) || moved.contains(made)) &&
              !early.contains(made));
      if (use == RowUse::Rows)
        can &= llvm::all_of(operand.getUses(), [&](OpOperand &other) {
          return other.getOwner() == op || isReadSorted(other);
        });
    }
    int64_t before = 0, after = 0;
    for (Value operand : read)
      before += bitsOf(operand, rows);
    for (Value result : op->getResults())
      after += bitsOf(result, rows);
    if (can && after < before)
      moved.insert(op);
  }
}

/// Rounds what is sent back to the type in which it is sent, where it is
/// computed.
void Sorter::round() {
  SmallVector<Operation *> ops(grouped.getArrayRef());
  llvm::append_range(ops, moved);
  for (Operation *op : ops)
    for (Value value : op->getResults()) {
      SmallVector<OpOperand *> readers;
      for (OpOperand &use : value.getUses())
        if (!isReadSorted(use))
          readers.push_back(&use);
      if (readers.empty() || early.contains(op))
        continue;
      builder.setInsertionPointAfter(op);
      auto [narrow, wide] = travel->round(builder, value);
      if (!narrow)
        continue;
      moved.insert(narrow.getDefiningOp());
      readRounded(readers, narrow, wide);
    }
}

void Sorter::choose() {
  // Of one row the order is known, and its dimensions say nothing.
  if (rows < 2)
    return;
  llvm::SetVector<Value> after, before;
  for (Operation *op : grouped) {
    if (isa<GroupedLinearOp>(op))
      after.insert(op->getResult(0));
    for (OpOperand *operand : rowOperands(op))
      before.insert(operand->get());
  }
  Ops later, earlier;
  follow(after, later);
  trace(before, earlier);
  SmallVector<Operation *> others;
  for (Operation *op : earlier)
    if (later.contains(op))
      moved.insert(op);
    else
      others.push_back(op);
  // Users first.
  llvm::sort(others,
             [](Operation *a, Operation *b) { return b->isBeforeInBlock(a); });
  for (Operation *op : others)
    if (isWorthMoving(op)) {
      moved.insert(op);
      early.insert(op);
    }
  // Rows that were received are not all that there is room for.
  if (travel) {
    narrow(later.getArrayRef());
    return round();
  }
  for (Value value : after)
    for (OpOperand &use : value.getUses()) {
      Operation *made = value.getDefiningOp(), *user = use.getOwner();
      if ((!grouped.contains(made) && !moved.contains(made)) ||
          user->getBlock() != made->getBlock())
        continue;
      std::optional<RowOp> own =
          RowOp::reducing(user, use.getOperandNumber(), rows);
      if (own && isReducedSorted(user, *own))
        reduced.insert(user);
    }
}

//===----------------------------------------------------------------------===//
// Their form on sorted rows
//===----------------------------------------------------------------------===//

/// Where `op` is, or, if its groups are not known yet, where they are.
void Sorter::placeAt(Operation *op) {
  loc = op->getLoc();
  builder.setInsertionPoint(known && op->isBeforeInBlock(known) ? known : op);
}

void Sorter::sort() {
  auto sort =
      SortRowsOp::create(builder, loc, reshape(groups.root, {rows}),
                         groups.origin, builder.getI64IntegerAttr(groups.size),
                         groups.globalSize == groups.size && !groups.origin
                             ? IntegerAttr()
                             : builder.getI64IntegerAttr(groups.globalSize));
  order = sort.getOrder();
  inverse = sort.getInverse();
  offsets = sort.getOffsets();
  if (travel)
    offsets = travel->begin(builder, loc, offsets);
}

Value Sorter::gather(Value value, Value indices) {
  return GatherOp::create(builder, loc, value, indices, /*origin=*/Value(),
                          /*dim=*/builder.getI64IntegerAttr(0),
                          /*padding_index=*/IntegerAttr(),
                          /*global_size=*/IntegerAttr(),
                          /*batch=*/builder.getI64IntegerAttr(0));
}

/// `shape` as that of sorted rows: [rows, ...].
SmallVector<int64_t> Sorter::inRows(ArrayRef<int64_t> shape, Side side) const {
  SmallVector<int64_t> result{rowsAt(side)};
  llvm::append_range(result, shape.drop_front(*rowRank(shape, rows)));
  return result;
}

/// Of each sorted row the one of `index` that it repeats, where `index`
/// broadcasts to `shape`.
Value Sorter::repeatedRows(ArrayRef<int64_t> index, ArrayRef<int64_t> shape) {
  Formula f{builder, loc};
  Value rows =
      IotaOp::create(builder, loc,
                     RankedTensorType::get(ShapedType::getNumElements(index),
                                           builder.getI64Type()),
                     /*dim=*/0, /*start=*/0);
  rows = f.broadcast(f.reshape(rows, index), shape);
  return gather(f.reshape(rows, {this->rows}), order);
}

/// The sorted rows of `value`, which broadcasts to `shape`: rows that are equal
/// are read where they are one.
Value Sorter::sortedBroadcast(Value value, ArrayRef<int64_t> shape, Side side) {
  std::pair<void *, std::vector<int64_t>> key{
      value.getAsOpaquePointer(),
      std::vector<int64_t>(shape.begin(), shape.end())};
  if (Value known = repeated[side][key])
    return known;
  int64_t rank = *rowRank(shape, rows), kept = 1;
  SmallVector<int64_t> own(shape.size(), 1);
  llvm::copy(tensorTypeOf(value).getShape(),
             own.end() - tensorTypeOf(value).getRank());
  auto index = ArrayRef(own).take_front(rank),
       rest = ArrayRef(own).drop_front(rank);
  for (int64_t size : index)
    kept *= size;
  SmallVector<int64_t> flat{kept};
  llvm::append_range(flat, rest);
  Value result;
  if (kept == rows) {
    flat.front() = rowsAt(side);
    result = reshape(sorted(value, side), flat);
  } else {
    result = reshape(value, flat);
    if (kept > 1 || (side == Held && travel->differs(value))) {
      result = gather(result, repeatedRows(index, shape.take_front(rank)));
      if (side == Held)
        result = travel->send(builder, loc, result);
    }
  }
  result = Formula{builder, loc}.broadcast(result, inRows(shape, side));
  return repeated[side][key] = result;
}

/// A copy of `value` with its rows sorted.
Value Sorter::sortedCopy(Value value, Side side) {
  ArrayRef<int64_t> shape = tensorTypeOf(value).getShape();
  if (auto other = value.getDefiningOp<ReshapeOp>();
      other && rowRank(tensorTypeOf(other.getInput()).getShape(), rows))
    return reshape(sorted(other.getInput(), side), inRows(shape, side));
  if (auto repeats = value.getDefiningOp<BroadcastOp>())
    return sortedBroadcast(repeats.getInput(), shape, side);
  if (side == Held)
    return travel->send(builder, loc, sorted(value, Own));
  return gather(reshape(value, inRows(shape, Own)), order);
}

Value Sorter::sorted(Value value, Side side) {
  if (Value known = sortedRows[side].lookup(value))
    return known;
  Value copy = sortedCopy(value, side);
  return sortedRows[side][value] = copy;
}

Value Sorter::sortedOperand(Operation *op, const RowOp &own, unsigned index,
                            Side side) {
  Value value = op->getOperand(index);
  ArrayRef<int64_t> shape = tensorTypeOf(value).getShape();
  if (own.operands[index] == RowUse::Other)
    return value;
  if (own.operands[index] == RowUse::Rows)
    return reshape(sorted(value, side),
                   shapeOnRows(shape, own.rank, rowsAt(side)));
  // As NumPy broadcasts it to the rows of the result.
  ArrayRef<int64_t> result = tensorTypeOf(op->getResult(0)).getShape();
  SmallVector<int64_t> target(result.size(), 1);
  llvm::copy(shape, target.end() - shape.size());
  llvm::copy(result.take_front(own.rank), target.begin());
  return reshape(sortedBroadcast(value, target, side),
                 shapeOnRows(target, own.rank, rowsAt(side)));
}

/// Builds an op on sorted rows.
void Sorter::buildMoved(Operation *op, const RowOp &own) {
  Side side = early.contains(op) ? Own : far();
  if (own.reshapes) {
    ArrayRef<int64_t> shape = tensorTypeOf(op->getResult(0)).getShape();
    sortedRows[side][op->getResult(0)] =
        reshape(sorted(op->getOperand(0), side), inRows(shape, side));
    return;
  }
  SmallVector<Value> operands;
  SmallVector<Type> types;
  for (unsigned i = 0; i < op->getNumOperands(); ++i)
    operands.push_back(sortedOperand(op, own, i, side));
  bool keeps = moved.contains(op);
  for (Value result : op->getResults()) {
    RankedTensorType type = tensorTypeOf(result);
    types.push_back(
        keeps ? type.clone(shapeOnRows(type.getShape(), own.rank, rowsAt(side)))
              : type);
  }
  Operation *built = buildOnRows(op, builder, operands, types);
  for (auto [old, result] : llvm::zip(op->getResults(), built->getResults()))
    if (keeps)
      sortedRows[side][old] =
          reshape(result, inRows(tensorTypeOf(old).getShape(), side));
    else
      old.replaceAllUsesWith(result);
}

void Sorter::build(Operation *op) {
  placeAt(op);
  if (!order)
    sort();
  auto matrix = [&](Value value) {
    return reshape(sorted(value, far()),
                   {rowsAt(far()), tensorTypeOf(value).getShape().back()});
  };
  if (auto linear = dyn_cast<GroupedLinearOp>(op)) {
    auto product = GroupedContractOp::create(
        builder, loc, matrix(linear.getRows()),
        travel ? travel->weightOf(linear) : linear.getWeight(), offsets,
        linear.getTransposeAttr(), linear.getResultElementAttr());
    if (travel)
      setEvenRows(product, travel->even());
    sortedRows[far()][linear.getOutput()] = product;
    return;
  }
  if (auto grad = dyn_cast<GroupedLinearWeightGradOp>(op)) {
    auto product = GroupedContractWeightGradOp::create(
        builder, loc, matrix(grad.getRows()), matrix(grad.getGradient()),
        offsets, grad.getTransposeAttr(), grad.getResultElementAttr());
    if (travel) {
      setEvenRows(product, travel->even());
      return travel->replaceGradient(grad, product);
    }
    product->setDiscardableAttrs(grad->getDiscardableAttrDictionary());
    grad.getOutput().replaceAllUsesWith(product.getOutput());
    return;
  }
  if (moved.contains(op))
    return buildMoved(op, *RowOp::of(op, rows));
  for (unsigned i = 0; i < op->getNumOperands(); ++i)
    if (std::optional<RowOp> own = RowOp::reducing(op, i, rows))
      return buildMoved(op, *own);
}

/// Puts rows back for those who read them in their own order.
void Sorter::putBack() {
  auto isReplaced = [&](Operation *op) {
    return grouped.contains(op) || moved.contains(op) || reduced.contains(op);
  };
  SmallVector<Operation *> replaced;
  for (const Ops *ops : {&grouped, &moved, &reduced})
    llvm::append_range(replaced, *ops);
  llvm::sort(replaced,
             [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); });
  for (Operation *op : replaced)
    for (Value value : op->getResults()) {
      Operation *first = firstUser(value, isReplaced);
      if (!first)
        continue;
      loc = op->getLoc();
      builder.setInsertionPoint(first);
      Value back = sortedRows[far()].lookup(value);
      if (travel)
        back = travel->sendBack(builder, loc, back);
      back = reshape(gather(back, inverse), tensorTypeOf(value).getShape());
      if (travel)
        travel->putBack(back, value);
      value.replaceUsesWithIf(
          back, [&](OpOperand &use) { return !isReplaced(use.getOwner()); });
    }
  for (Operation *op : llvm::reverse(replaced))
    op->erase();
}

void Sorter::run() {
  choose();
  for (Value value : {groups.root, groups.origin})
    if (Operation *made = value ? value.getDefiningOp() : nullptr;
        made && (!known || known->isBeforeInBlock(made->getNextNode())))
      known = made->getNextNode();
  SmallVector<Operation *> all;
  for (const Ops *ops : {&grouped, &moved, &reduced})
    llvm::append_range(all, *ops);
  llvm::sort(all,
             [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); });
  for (Operation *op : all)
    build(op);
  putBack();
}

void cleave::graph::sortRows(const GroupedOps &grouped, RowTravel *travel) {
  Sorter(grouped, travel).run();
}
