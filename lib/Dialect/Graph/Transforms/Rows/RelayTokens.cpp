//===- RelayTokens.cpp - Tokens sent once to each node of their groups ----===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A token that chooses several experts of one node crosses the link between
/// nodes once (DeepSeek-AI, "DeepSeek-V3", arXiv 2412.19437, section 3.2.2):
/// rows are the pairs of a token and a node that holds one of its groups,
/// sorted by node. Of tokens x [t, h] and choices i [t, c],
///
/// y[t] = sum over c of w[t, c] f(x[t], i[t, c])
///
/// becomes, with the tokens of a rank of a node called r,
///
/// x[r], w[r], i[r] = received from all nodes
/// z[r] = sum over the c with i[r, c] on the node of w[r, c] f(x[r], i[r, c])
/// y[t] = sum over nodes of z
///
/// in forward and, alike, in backward. Ops are moved that compute each choice
/// or each token alone (RowOps.h), between values that have more than one
/// element for each choice. A value of a choice that is read elsewhere is
/// picked from its node.
///
//===----------------------------------------------------------------------===//

#include "RowOps.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/Transforms/SortedRows.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

Choices Choices::of(const RowGroups &groups) {
  int64_t each = tensorTypeOf(groups.root).getShape().empty()
                     ? 1
                     : tensorTypeOf(groups.root).getShape().back();
  return {each ? groups.rows() / each : 0, each};
}

static ArrayRef<int64_t> shapeOf(Value value) {
  return tensorTypeOf(value).getShape();
}

namespace {

/// How a moved op reads and makes rows: of tokens, or of choices.
struct Moved {
  RowOp own;
  bool ofChoices = false;
  /// It adds up the choices of a token; or those of all tokens, as a bias's
  /// gradient does, which are added up over ranks.
  bool sums = false, sumsAll = false;
};

class Relay {
public:
  Relay(const GroupedOps &grouped, int64_t nodes, RowTravel &travel)
      : groups(grouped.groups), grouped(grouped.ops.begin(), grouped.ops.end()),
        nodes(nodes), travel(travel), tokens(Choices::of(groups).tokens),
        choices(Choices::of(groups).perToken), room(travel.room()),
        builder(grouped.ops.front()) {}

  /// Chooses the ops. Why none can be moved, or nothing.
  std::optional<std::string> choose(bool always);
  RowGroups run();

private:
  bool isWide(Value value) const;
  bool isSum(Value value) const;
  bool sumsAll(Operation *op) const {
    const auto *it = moved.find(op);
    return it != moved.end() && it->second.sumsAll;
  }
  bool isMoved(Operation *op) const {
    return op && (grouped.contains(op) || moved.contains(op));
  }
  std::optional<Moved> movable(Operation *op) const;
  std::optional<Moved> summing(Operation *op) const;
  void visit(Value value, llvm::SetVector<Value> &values);
  std::optional<std::string> whyNot(bool always) const;

  void placeAt(Operation *op);
  void begin();
  void receiveGroups();
  void build(Operation *op);
  void buildMoved(Operation *op, const Moved &how);
  Value narrowed(CastOp op);
  Value operand(Operation *op, const Moved &how, unsigned index);
  Value received(Value value);
  Value sent(Value value);
  Value withoutOthers(Value rows, const Moved &how);
  bool isZeroElsewhere(Value value, int depth = 16) const;
  void putBack();
  Value summedOverNodes(Value value);
  Value picked(Value value);

  SmallVector<int64_t> inRows(Value value, int64_t number) const;
  SmallVector<int64_t> inTokens(Value value, int64_t number) const;
  Value reshaped(Value value, ArrayRef<int64_t> shape, Value like);
  Value annotated(Value built, Value like);
  Value gather(Value value, Value indices);
  Value iota(ArrayRef<int64_t> shape, int64_t dim);

  RowGroups groups;
  llvm::SetVector<Operation *> grouped;
  int64_t nodes;
  RowTravel &travel;
  int64_t tokens, choices, room;
  llvm::MapVector<Operation *, Moved> moved;
  /// The first op behind those that compute the groups.
  Operation *known = nullptr;
  OpBuilder builder;
  Location loc = builder.getUnknownLoc();
  /// Of each choice its node, [t, c]. Of pairs that are sorted by node the
  /// token, and the places of the pairs [t, n].
  Value owner, tokenOf, inverse;
  /// On a node, groups [r, c]: of tokens that were not received, none. And
  /// whether a choice is of a group of the node, once it is needed.
  RowGroups own{{}, {}, 0, 0};
  Value here;
  /// Of a value, of moved ops or sent, its rows on a node.
  DenseMap<Value, Value> rows;
};

} // namespace

//===----------------------------------------------------------------------===//
// The choice of ops
//===----------------------------------------------------------------------===//

/// Whether it has more than one element for each choice.
bool Relay::isWide(Value value) const {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  int64_t all = tokens * choices;
  return type && type.getNumElements() > all && rowRank(type.getShape(), all);
}

std::optional<Moved> Relay::movable(Operation *op) const {
  auto isPlain = [](const std::optional<RowOp> &own) {
    return own && !llvm::is_contained(own->operands, RowUse::Repeated);
  };
  std::optional<RowOp> ofTokens = RowOp::of(op, tokens),
                       ofChoices = RowOp::of(op, tokens * choices);
  if (isPlain(ofChoices))
    return isPlain(ofTokens) ? Moved{*ofTokens, false}
                             : Moved{*ofChoices, true};
  if (!isPlain(ofTokens))
    return std::nullopt;
  if (op->hasTrait<OpTrait::PointwiseOp>() || isa<BroadcastOp>(op))
    return Moved{*ofTokens};
  auto reduce = dyn_cast<ReduceOp>(op);
  if (!reduce || reduce.getKind() != ReductionKind::Sum ||
      rowRank(shapeOf(reduce.getInput()), tokens * choices) !=
          ofTokens->rank + 1 ||
      !llvm::is_contained(reduce.getDims(), ofTokens->rank))
    return std::nullopt;
  return Moved{*ofTokens, false, /*sums=*/true};
}

/// How `op` adds up the choices of all tokens, if it does.
std::optional<Moved> Relay::summing(Operation *op) const {
  auto reduce = dyn_cast<ReduceOp>(op);
  if (!isa<ScatterAddOp>(op) &&
      !(reduce && reduce.getKind() == ReductionKind::Sum))
    return std::nullopt;
  std::optional<RowOp> own = RowOp::reducing(op, 0, tokens * choices);
  if (!own || llvm::is_contained(own->operands, RowUse::Repeated))
    return std::nullopt;
  Moved how{*own, /*ofChoices=*/true};
  how.sumsAll = true;
  return how;
}

/// Moves the ops that make and read a wide value.
void Relay::visit(Value value, llvm::SetVector<Value> &values) {
  SmallVector<Operation *> ops(value.getUsers());
  if (Operation *made = value.getDefiningOp())
    ops.push_back(made);
  for (Operation *op : ops) {
    if (isMoved(op) || op->getBlock() != grouped[0]->getBlock())
      continue;
    std::optional<Moved> how = movable(op);
    if (!how && op->getNumOperands() && op->getOperand(0) == value)
      how = summing(op);
    if (!how)
      continue;
    moved.insert({op, *how});
    for (ValueRange all :
         {ValueRange(op->getOperands()), ValueRange(op->getResults())})
      for (Value other : all)
        if (isWide(other))
          values.insert(other);
  }
}

/// The operands of an op of groups that are rows.
static ValueRange rowsOf(Operation *op) {
  return op->getOperands().take_front(isa<GroupedLinearWeightGradOp>(op) ? 2
                                                                         : 1);
}

/// Whether it is the sum of the choices of each token.
bool Relay::isSum(Value value) const {
  const auto *it = moved.find(value.getDefiningOp());
  return it != moved.end() && it->second.sums;
}

std::optional<std::string> Relay::whyNot(bool always) const {
  std::string wide = "a value of each choice is read or made outside of it";
  auto check = [&](Value value) -> std::optional<std::string> {
    if (isSum(value))
      return "sums of choices are read beside choices";
    if (!always && !isMoved(value.getDefiningOp()) && isWide(value))
      return wide;
    if (!isMoved(value.getDefiningOp()) && !rowRank(shapeOf(value), tokens) &&
        !rowRank(shapeOf(value), tokens * choices))
      return "rows are not those of tokens";
    return std::nullopt;
  };
  SmallVector<Operation *> all(grouped.getArrayRef());
  for (const auto &[op, how] : moved) {
    all.push_back(op);
    for (auto [use, value] : llvm::zip(how.own.operands, op->getOperands()))
      if (use == RowUse::Rows)
        if (auto why = check(value))
          return why;
  }
  for (Operation *op : all) {
    if (grouped.contains(op))
      for (Value value : rowsOf(op))
        if (auto why = check(value))
          return why;
    if (isa<GroupedLinearWeightGradOp>(op))
      continue;
    // Values that do not depend on groups are not put back before these are
    // known.
    for (Value value : op->getResults())
      if (!isSum(value) && !sumsAll(op) &&
          ((!always && isWide(value)) ||
           (known && op->isBeforeInBlock(known))) &&
          !llvm::all_of(value.getUsers(),
                        [&](Operation *user) { return isMoved(user); }))
        return wide;
  }
  return std::nullopt;
}

std::optional<std::string> Relay::choose(bool always) {
  if (choices < 2)
    return "a token chooses one group";
  if (tokens < 2)
    return "a rank has one token";
  if (Operation *made = groups.root.getDefiningOp())
    known = made->getNextNode();
  llvm::SetVector<Value> values;
  for (Operation *op : grouped) {
    if (isa<GroupedLinearOp>(op))
      values.insert(op->getResult(0));
    for (Value value : rowsOf(op))
      values.insert(value);
  }
  for (size_t i = 0; i < values.size(); ++i)
    visit(values[i], values);
  // Perhaps the last dimension of groups is one of tokens.
  if (llvm::none_of(moved, [](const auto &it) { return it.second.sums; }))
    return "no sum of the choices of a token is found";
  return whyNot(always);
}

//===----------------------------------------------------------------------===//
// Values
//===----------------------------------------------------------------------===//

void Relay::placeAt(Operation *op) {
  loc = op->getLoc();
  builder.setInsertionPoint(known && op->isBeforeInBlock(known) ? known : op);
}

Value Relay::gather(Value value, Value indices) {
  return GatherOp::create(builder, loc, value, indices, /*origin=*/Value(),
                          /*dim=*/builder.getI64IntegerAttr(0),
                          /*padding_index=*/IntegerAttr(),
                          /*global_size=*/IntegerAttr(),
                          /*batch=*/builder.getI64IntegerAttr(0));
}

Value Relay::iota(ArrayRef<int64_t> shape, int64_t dim) {
  return IotaOp::create(builder, loc,
                        RankedTensorType::get(shape, builder.getI64Type()), dim,
                        /*start=*/0);
}

/// The shape of `value` with those of `number` tokens in the last one of its
/// dimensions of tokens, or, where no dimension ends tokens, of choices.
SmallVector<int64_t> Relay::inRows(Value value, int64_t number) const {
  ArrayRef<int64_t> shape = shapeOf(value);
  if (std::optional<int64_t> rank = rowRank(shape, tokens))
    return shapeOnRows(shape, *rank, number);
  return shapeOnRows(shape, *rowRank(shape, tokens * choices),
                     number * choices);
}

/// [number, ...]
SmallVector<int64_t> Relay::inTokens(Value value, int64_t number) const {
  ArrayRef<int64_t> shape = shapeOf(value);
  SmallVector<int64_t> result{number};
  std::optional<int64_t> rank = rowRank(shape, tokens);
  if (!rank) {
    // Rows of choices, as many for each token.
    result.push_back(choices);
    rank = rowRank(shape, tokens * choices);
  }
  llvm::append_range(result, shape.drop_front(*rank));
  return result;
}

/// Annotates rows that were built in the place of `like`.
Value Relay::annotated(Value built, Value like) {
  ArrayRef<int64_t> shape = shapeOf(like);
  std::optional<int64_t> rank = rowRank(shape, tokens);
  int64_t from = rank ? *rank : *rowRank(shape, tokens * choices);
  travel.annotateLike(built, like, from,
                      tensorTypeOf(built).getRank() -
                          (static_cast<int64_t>(shape.size()) - from));
  return built;
}

Value Relay::reshaped(Value value, ArrayRef<int64_t> shape, Value like) {
  if (shapeOf(value) == shape)
    return value;
  return annotated(Formula{builder, loc}.reshape(value, shape), like);
}

/// Sends a value, which has rows of all tokens, and of which it is known that
/// it is there.
Value Relay::sent(Value value) {
  if (auto reshape = value.getDefiningOp<ReshapeOp>();
      reshape && rowRank(shapeOf(reshape.getInput()), tokens) &&
      !isSum(reshape.getInput()))
    return reshaped(received(reshape.getInput()), inRows(value, room), value);
  // Values that were widened are sent as they were before.
  if (auto cast = value.getDefiningOp<CastOp>();
      cast && !isSum(cast.getInput())) {
    auto from = dyn_cast<FloatType>(
             tensorTypeOf(cast.getInput()).getElementType()),
         to = dyn_cast<FloatType>(tensorTypeOf(value).getElementType());
    if (from && to && from.getWidth() < to.getWidth())
      return annotated(
          Formula{builder, loc}.cast(received(cast.getInput()), to), value);
  }
  Value flat = reshaped(value, inTokens(value, tokens), value);
  flat = annotated(gather(flat, tokenOf), value);
  flat = annotated(travel.send(builder, loc, flat), value);
  return reshaped(flat, inRows(value, room), value);
}

/// The rows of `value` on a node.
Value Relay::received(Value value) {
  if (Value known = rows.lookup(value))
    return known;
  Value result = sent(value);
  return rows[value] = result;
}

//===----------------------------------------------------------------------===//
// Pairs of tokens and nodes
//===----------------------------------------------------------------------===//

/// Sorts the pairs of tokens and nodes that hold groups of theirs.
void Relay::begin() {
  Formula f{builder, loc};
  int64_t each = groups.size / nodes;
  Type index = builder.getI64Type();
  Value chosen = f.cast(f.reshape(groups.root, {tokens, choices, 1}), index);
  Value node = iota({1, 1, nodes}, 2);
  Value first = f.mul(node, f.scalar(node, static_cast<double>(each)));
  Value behind = f.cast(f.compare(Predicate::ge, chosen, first), index);
  owner = f.sum(behind, {2});
  owner = f.sub(owner, f.scalar(owner, 1));
  Value holds =
      f.compare(Predicate::eq, f.reshape(owner, {tokens, choices, 1}), node);
  Value any =
      ReduceOp::create(builder, loc, ReductionKind::Max, f.cast(holds, index),
                       builder.getDenseI64ArrayAttr({1}));
  Value none = f.scalar(any, static_cast<double>(nodes));
  Value pairs =
      f.select(f.compare(Predicate::gt, any, f.scalar(any, 0)),
               f.broadcast(f.reshape(node, {1, nodes}), {tokens, nodes}), none);
  auto sort = SortRowsOp::create(
      builder, loc, f.reshape(pairs, {tokens * nodes}), /*origin=*/Value(),
      builder.getI64IntegerAttr(nodes), builder.getI64IntegerAttr(nodes + 1));
  inverse = sort.getInverse();
  Value token = f.broadcast(iota({tokens, 1}, 0), {tokens, nodes});
  tokenOf = gather(f.reshape(token, {tokens * nodes}), sort.getOrder());
  travel.begin(builder, loc, sort.getOffsets());
}

/// Rows that were not received are 0, so that groups are sent from 1 on.
void Relay::receiveGroups() {
  Formula f{builder, loc};
  Value chosen = f.reshape(groups.root, {tokens, choices});
  Type type = tensorTypeOf(chosen).getElementType();
  chosen = f.cast(chosen, builder.getI64Type());
  chosen = f.add(chosen, f.scalar(chosen, 1));
  Value arrived = travel.send(builder, loc, gather(chosen, tokenOf));
  Value zero = f.scalar(arrived, 0);
  Value group = f.sub(arrived, f.scalar(arrived, 1));
  // Any group is read, and its rows are dropped.
  rows[groups.root] =
      f.reshape(f.cast(MaximumOp::create(builder, loc, group, zero), type),
                inRows(groups.root, room));
  own.root = f.select(f.compare(Predicate::eq, arrived, zero),
                      f.scalar(arrived, static_cast<double>(groups.globalSize)),
                      group);
  own.origin = travel.origin(builder, loc);
  own.size = groups.size / nodes;
  own.globalSize = groups.globalSize + 1;
}

//===----------------------------------------------------------------------===//
// Ops on the tokens of a node
//===----------------------------------------------------------------------===//

/// Whether the choices of groups of other nodes are 0 in `value`.
bool Relay::isZeroElsewhere(Value value, int depth) const {
  Operation *op = value.getDefiningOp();
  if (!op || depth == 0 || !isMoved(op))
    return getSplatValue(value) == 0.0;
  auto isZero = [&](Value of) { return isZeroElsewhere(of, depth - 1); };
  if (isa<GroupedLinearOp>(op))
    return true;
  if (isa<MulOp>(op))
    return isZero(op->getOperand(0)) || isZero(op->getOperand(1));
  if (isa<AddOp, SubOp>(op))
    return isZero(op->getOperand(0)) && isZero(op->getOperand(1));
  if (isa<SelectOp>(op))
    return isZero(op->getOperand(1)) && isZero(op->getOperand(2));
  return isa<CastOp, ReshapeOp, NegOp, SiluOp, ReluOp, GeluOp, TanhOp>(op) &&
         isZero(op->getOperand(0));
}

/// Rows of a sum, of the choices of groups of the node.
Value Relay::withoutOthers(Value rows, const Moved &how) {
  Formula f{builder, loc};
  if (!here) {
    Value groups = own.root;
    Value last =
        f.add(own.origin, f.scalar(own.origin, static_cast<double>(own.size)));
    here = AndOp::create(builder, loc,
                         f.compare(Predicate::ge, groups, own.origin),
                         f.compare(Predicate::lt, groups, last));
  }
  SmallVector<int64_t> shape(shapeOf(rows).size(), 1);
  shape[how.own.rank - 1] = how.ofChoices ? room * choices : room;
  if (!how.ofChoices)
    shape[how.own.rank] = choices;
  return f.select(f.reshape(here, shape), rows, f.scalar(rows, 0));
}

Value Relay::operand(Operation *op, const Moved &how, unsigned index) {
  Value value = op->getOperand(index);
  if (how.own.operands[index] == RowUse::Other)
    return value;
  int64_t number = how.ofChoices ? room * choices : room;
  return reshaped(received(value),
                  shapeOnRows(shapeOf(value), how.own.rank, number), value);
}

/// A cast of tokens that all choices read, or null: it is done before they are
/// sent.
Value Relay::narrowed(CastOp op) {
  auto repeat = op.getInput().getDefiningOp<BroadcastOp>();
  auto isFloat = [](Value value) {
    return isa<FloatType>(tensorTypeOf(value).getElementType());
  };
  if (!repeat || !isMoved(repeat) ||
      isMoved(repeat.getInput().getDefiningOp()) || !isFloat(op) ||
      !isFloat(repeat) ||
      tensorTypeOf(op.getOutput()).getElementTypeBitWidth() >=
          tensorTypeOf(op.getInput()).getElementTypeBitWidth())
    return nullptr;
  std::optional<int64_t> rank = rowRank(shapeOf(repeat.getInput()), tokens);
  if (!rank || rowRank(shapeOf(op.getOutput()), tokens) != rank)
    return nullptr;
  Value token = repeat.getInput();
  while (auto reshape = token.getDefiningOp<ReshapeOp>()) {
    if (!rowRank(shapeOf(reshape.getInput()), tokens))
      break;
    token = reshape.getInput();
  }
  Value cast = Formula{builder, loc}.cast(
      token, tensorTypeOf(op.getOutput()).getElementType());
  annotated(cast, token);
  Value arrived = reshaped(received(cast),
                           shapeOnRows(shapeOf(repeat.getInput()), *rank, room),
                           repeat.getInput());
  return annotated(
      Formula{builder, loc}.broadcast(
          arrived, shapeOnRows(shapeOf(op.getOutput()), *rank, room)),
      op.getOutput());
}

void Relay::buildMoved(Operation *op, const Moved &how) {
  if (how.own.reshapes) {
    Value result = op->getResult(0);
    rows[result] =
        reshaped(received(op->getOperand(0)), inRows(result, room), result);
    return;
  }
  if (auto cast = dyn_cast<CastOp>(op))
    if (Value built = narrowed(cast)) {
      rows[cast.getOutput()] =
          reshaped(built, inRows(cast.getOutput(), room), cast.getOutput());
      return;
    }
  SmallVector<Value> operands;
  SmallVector<Type> types;
  for (unsigned i = 0; i < op->getNumOperands(); ++i)
    operands.push_back(operand(op, how, i));
  if ((how.sums || how.sumsAll) && !isZeroElsewhere(op->getOperand(0)))
    operands[0] = withoutOthers(operands[0], how);
  if (how.sumsAll) {
    Operation *built = buildOnRows(op, builder, operands, op->getResultTypes());
    travel.putBack(built->getResult(0), op->getResult(0));
    op->getResult(0).replaceAllUsesWith(built->getResult(0));
    return;
  }
  int64_t number = how.ofChoices ? room * choices : room;
  for (Value result : op->getResults())
    types.push_back(tensorTypeOf(result).clone(
        shapeOnRows(shapeOf(result), how.own.rank, number)));
  Operation *built = buildOnRows(op, builder, operands, types);
  for (auto [old, result] : llvm::zip(op->getResults(), built->getResults()))
    rows[old] = reshaped(annotated(result, old), inRows(old, room), old);
}

void Relay::build(Operation *op) {
  placeAt(op);
  if (!tokenOf) {
    begin();
    receiveGroups();
  }
  if (!grouped.contains(op))
    return buildMoved(op, moved.find(op)->second);
  Formula f{builder, loc};
  auto size = builder.getI64IntegerAttr(own.globalSize);
  SmallVector<Value> operands;
  for (Value value : rowsOf(op))
    operands.push_back(received(value));
  Value groups = f.reshape(own.root, shapeOf(operands[0]).drop_back());
  if (auto linear = dyn_cast<GroupedLinearOp>(op)) {
    Value output = linear.getOutput();
    auto built = GroupedLinearOp::create(
        builder, loc, operands[0], travel.weightOf(linear), groups, own.origin,
        linear.getTransposeAttr(), size, linear.getResultElementAttr());
    rows[output] =
        reshaped(annotated(built, output), inRows(output, room), output);
    return;
  }
  auto grad = cast<GroupedLinearWeightGradOp>(op);
  auto built = GroupedLinearWeightGradOp::create(
      builder, loc, operands[0], operands[1], groups, own.origin,
      builder.getI64IntegerAttr(own.size), grad.getTransposeAttr(), size,
      grad.getResultElementAttr());
  travel.replaceGradient(grad, built);
}

//===----------------------------------------------------------------------===//
// Values that are read elsewhere
//===----------------------------------------------------------------------===//

/// The sum of the rows that the nodes of a token return.
Value Relay::summedOverNodes(Value value) {
  Formula f{builder, loc};
  Value back = travel.sendBack(
      builder, loc, reshaped(rows.lookup(value), inTokens(value, room), value));
  back = annotated(annotated(gather(annotated(back, value), inverse), value),
                   value);
  SmallVector<int64_t> shape{tokens, nodes};
  llvm::append_range(shape, shapeOf(back).drop_front());
  return f.reshape(f.sum(f.reshape(back, shape), {1}), shapeOf(value));
}

/// Of each choice the row that its node returns.
Value Relay::picked(Value value) {
  Formula f{builder, loc};
  Value token = iota({tokens, 1}, 0);
  Value pair =
      f.add(f.mul(token, f.scalar(token, static_cast<double>(nodes))), owner);
  Value place = gather(inverse, f.reshape(pair, {tokens * choices}));
  place = f.reshape(place, {tokens, choices});
  place = f.add(f.mul(place, f.scalar(place, static_cast<double>(choices))),
                iota({1, choices}, 1));
  Value sent = rows.lookup(value);
  int64_t width = tensorTypeOf(value).getNumElements() / (tokens * choices);
  sent = f.reshape(sent, {room, choices * width});
  Value back = travel.sendBack(builder, loc, sent);
  back = f.reshape(back, {tokens * nodes * choices, width});
  return f.reshape(gather(back, f.reshape(place, {tokens * choices})),
                   shapeOf(value));
}

void Relay::putBack() {
  SmallVector<Operation *> replaced(grouped.getArrayRef());
  for (const auto &[op, how] : moved)
    replaced.push_back(op);
  llvm::sort(replaced,
             [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); });
  for (Operation *op : replaced)
    for (Value value : op->getResults()) {
      Operation *first =
          firstUser(value, [&](Operation *user) { return isMoved(user); });
      if (!first)
        continue;
      loc = op->getLoc();
      builder.setInsertionPoint(first);
      Value back = isSum(value) ? summedOverNodes(value) : picked(value);
      travel.putBack(back, value);
      value.replaceUsesWithIf(
          back, [&](OpOperand &use) { return !isMoved(use.getOwner()); });
    }
  for (Operation *op : llvm::reverse(replaced))
    op->erase();
}

RowGroups Relay::run() {
  SmallVector<Operation *> all(grouped.getArrayRef());
  for (const auto &[op, how] : moved)
    all.push_back(op);
  llvm::sort(all,
             [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); });
  for (Operation *op : all)
    build(op);
  putBack();
  return own;
}

std::variant<RowGroups, std::string>
cleave::graph::relayTokens(const GroupedOps &grouped, int64_t nodes,
                           RowTravel &travel, bool always) {
  Relay relay(grouped, nodes, travel);
  if (std::optional<std::string> why = relay.choose(always))
    return *why;
  return relay.run();
}
