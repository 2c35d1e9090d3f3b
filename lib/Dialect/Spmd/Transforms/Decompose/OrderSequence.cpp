//===- OrderSequence.cpp - Sequences in zig-zag order ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Under a causal mask the last of N devices attends to all keys and the first
/// one to few. In zig-zag order, device r holds the chunks r and 2N-1-r of 2N,
/// and all devices do the same work.
///
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/DependsOnIndex.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "cleave/Dialect/Spmd/Transforms/Propagation/DimensionClasses.h"
#include "cleave/Dialect/Spmd/Transforms/Recipes.h"
#include "llvm/ADT/MapVector.h"

namespace cleave::spmd {
#define GEN_PASS_DEF_ORDERSEQUENCE
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"
} // namespace cleave::spmd

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;
using graph::ShardingRule;

namespace {

/// Permutes the dimensions of some classes, of size `size`: piece `order[i]`
/// becomes piece `i`.
class Reorderer {
public:
  Reorderer(func::FuncOp function, const DimensionClasses &classes,
            const llvm::SmallDenseSet<unsigned> &sequences, int64_t size,
            ArrayRef<int64_t> order)
      : body(function.getBody().front()), classes(classes),
        sequences(sequences), size(size), order(order),
        builder(OpBuilder::atBlockBegin(&body)), loc(function.getLoc()) {
    for (Operation &op : body)
      if (isa<graph::GradientOp>(op) ||
          llvm::any_of(op.getOperands(), [&](Value operand) {
            return updates.contains(operand.getDefiningOp());
          }))
        updates.insert(&op);
  }

  /// Permutes what follows the order, if one of `attentions` can compute in
  /// it. Returns whether one can; otherwise nothing changes.
  bool run(ArrayRef<Operation *> attentions);

private:
  /// Whether a dimension belongs to the permuted classes.
  bool isPermuted(Value value, unsigned dim) const {
    return cast<RankedTensorType>(value.getType()).getDimSize(dim) == size &&
           sequences.contains(classes.number(value, dim));
  }
  SmallVector<int64_t, 2> permutedDims(Value value) const {
    SmallVector<int64_t, 2> dims;
    for (int64_t dim = 0,
                 rank = cast<RankedTensorType>(value.getType()).getRank();
         dim < rank; ++dim)
      if (isPermuted(value, dim))
        dims.push_back(dim);
    return dims;
  }

  bool canPermute(Operation *op);
  bool isUniform(Operation *op, const ShardingRule &rule, bool placed);
  Value constant(ArrayRef<int64_t> values);
  Value starts();
  Value permute(Value value, bool back);
  graph::GatherOp permutation(Value value, bool back) const;
  Value reshapeAs(Value value, Value like);
  void addInOrder(graph::ScatterAddOp op);
  void readInOrder(graph::GatherOp op);
  Value gatherPieces(Value value, ArrayRef<int64_t> pieces, int64_t dim);
  void sumPieces(graph::CumulativeSumOp op);

  Block &body;
  const DimensionClasses &classes;
  const llvm::SmallDenseSet<unsigned> &sequences;
  int64_t size;
  ArrayRef<int64_t> order;
  OpBuilder builder;
  Location loc;
  /// Gradients, and the ops that depend on them.
  llvm::SmallPtrSet<Operation *, 32> updates;
  /// Cumulative sums along a permuted dimension, which are computed in it.
  SmallVector<graph::CumulativeSumOp> sums;
  /// The index tables, built on first use, and the permuted copies of values.
  Value startsTable, indexTables[2];
  llvm::DenseMap<Value, Value> permuted;
};

} // namespace

/// Whether `op` is independent of the order: permuted dimensions are factors of
/// their own, and the op does not depend on the index along them.
bool Reorderer::isUniform(Operation *op, const ShardingRule &rule,
                          bool placed) {
  llvm::SmallDenseSet<int64_t> factors;
  auto collect = [&](Value value, const graph::FactorMapping &mapping) {
    for (int64_t dim : permutedDims(value)) {
      int64_t found = -1;
      for (int64_t factor : mapping[dim])
        if (rule.factors[factor].size == size)
          found = factor;
      if (found < 0)
        return false;
      factors.insert(found);
    }
    return true;
  };
  for (auto [i, operand] : llvm::enumerate(op->getOperands()))
    if (!llvm::is_contained(rule.unused, i) &&
        !collect(operand, rule.operands[i]))
      return false;
  for (auto [i, result] : llvm::enumerate(op->getResults()))
    if (!collect(result, rule.results[i]))
      return false;
  for (int64_t factor : factors) {
    if (!placed &&
        (rule.factors[factor].kind == graph::FactorKind::Replicated ||
         graph::dependsOnIndex(op, factor)))
      return false;
    // The factor must not be joined with others in one dimension.
    for (ArrayRef<graph::FactorMapping> mappings :
         {ArrayRef<graph::FactorMapping>(rule.operands), {rule.results}})
      for (const graph::FactorMapping &mapping : mappings)
        for (ArrayRef<int64_t> dim : mapping)
          if (llvm::is_contained(dim, factor) &&
              llvm::any_of(dim, [&](int64_t other) {
                return other != factor && rule.factors[other].size != 1;
              }))
            return false;
  }
  return true;
}

/// Whether `op` can compute in the permuted order. Gives the offsets of pieces
/// to an op that depends on them.
bool Reorderer::canPermute(Operation *op) {
  auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(op);
  // A gradient keeps the order of its parameter, as the update of the parameter
  // and of its state does; a buffer keeps its own.
  if (!ruled || updates.contains(op) || isa<graph::WrittenOp>(op))
    return false;
  // Integers, whose sums do not depend on the order in which they are added.
  if (auto sum = dyn_cast<graph::CumulativeSumOp>(op)) {
    auto isSequence = [&](Value value) {
      return permutedDims(value) == ArrayRef<int64_t>(sum.getDim());
    };
    if (graph::tensorTypeOf(sum).getElementType().isInteger(64) &&
        isSequence(sum.getInput()) && isSequence(sum.getOutput())) {
      sums.push_back(sum);
      return true;
    }
  }
  auto placed = dyn_cast<graph::PlacedOpInterface>(op);
  if (!isUniform(op, ruled.getShardingRule(), placed != nullptr))
    return false;
  return !placed || placed.setStarts([&](Value value, unsigned dim) {
    return isPermuted(value, dim) ? starts() : Value();
  });
}

Value Reorderer::constant(ArrayRef<int64_t> values) {
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPointToStart(&body);
  auto type = RankedTensorType::get(values.size(), builder.getI64Type());
  return graph::ConstantOp::create(builder, loc,
                                   DenseElementsAttr::get(type, values));
}

/// Returns the offset of each piece.
Value Reorderer::starts() {
  if (startsTable)
    return startsTable;
  SmallVector<int64_t> values;
  for (int64_t piece : order)
    values.push_back(piece * (size / order.size()));
  return startsTable = constant(values);
}

/// Returns `value` in the permuted order, or back in its own.
Value Reorderer::permute(Value value, bool back) {
  Value &known = permuted[value];
  if (known)
    return known;
  if (!indexTables[back]) {
    SmallVector<int64_t> indices(size);
    int64_t length = size / order.size();
    for (int64_t i = 0; i < size; ++i) {
      int64_t from = order[i / length] * length + i % length;
      indices[back ? from : i] = back ? i : from;
    }
    indexTables[back] = constant(indices);
  }
  OpBuilder::InsertionGuard guard(builder);
  if (Operation *op = value.getDefiningOp())
    builder.setInsertionPointAfter(op);
  else
    builder.setInsertionPointAfterValue(indexTables[back]);
  Value result = value;
  for (int64_t dim : permutedDims(value))
    result = graph::GatherOp::create(
        builder, value.getLoc(), result, indexTables[back],
        /*origin=*/Value(), builder.getI64IntegerAttr(dim),
        /*padding_index=*/nullptr, /*global_size=*/nullptr,
        builder.getI64IntegerAttr(0));
  return known = result;
}

/// The permutation of which `value` is another shape, or null.
graph::GatherOp Reorderer::permutation(Value value, bool back) const {
  while (auto reshape = value.getDefiningOp<graph::ReshapeOp>())
    value = reshape.getInput();
  auto gather = value.getDefiningOp<graph::GatherOp>();
  return gather && indexTables[back] && gather.getIndices() == indexTables[back]
             ? gather
             : graph::GatherOp();
}

Value Reorderer::reshapeAs(Value value, Value like) {
  if (value.getType() == like.getType())
    return value;
  return graph::ReshapeOp::create(builder, like.getLoc(), like.getType(),
                                  value);
}

/// Whether `a` and `b`, whose first dimensions are those of `b`, are permuted
/// and reshaped alike.
static bool isPermutedAlike(graph::GatherOp a, Value aShape, graph::GatherOp b,
                            Value bShape) {
  auto shapeOf = [](Value value) {
    return cast<RankedTensorType>(value.getType()).getShape();
  };
  ArrayRef<int64_t> from = shapeOf(b.getResult()), to = shapeOf(bShape);
  return a.getDim() == b.getDim() &&
         shapeOf(aShape).take_front(to.size()) == to &&
         shapeOf(a.getResult()).take_front(from.size()) == from;
}

/// Rows are added to places in any order: where rows and their places are put
/// back in their own order, which joins positions with others in one dimension,
/// both stay as they are.
void Reorderer::addInOrder(graph::ScatterAddOp op) {
  graph::GatherOp rows = permutation(op.getUpdates(), /*back=*/true),
                  places = permutation(op.getIndices(), /*back=*/true);
  if (!rows || !places ||
      !isPermutedAlike(rows, op.getUpdates(), places, op.getIndices()))
    return;
  builder.setInsertionPoint(op);
  op->setOperand(0, reshapeAs(rows.getInput(), op.getUpdates()));
  op->setOperand(1, reshapeAs(places.getInput(), op.getIndices()));
}

/// As are rows that are read from places, and put in order then.
void Reorderer::readInOrder(graph::GatherOp op) {
  graph::GatherOp places = permutation(op.getIndices(), /*back=*/true);
  Value result = op.getResult();
  while (result.hasOneUse() && isa<graph::ReshapeOp>(*result.user_begin()))
    result = result.user_begin()->getResult(0);
  if (!places || result.use_empty() || !op->hasOneUse())
    return;
  for (Operation *user : result.getUsers()) {
    auto rows = dyn_cast<graph::GatherOp>(user);
    if (!rows || rows != permutation(rows.getResult(), /*back=*/false) ||
        rows.getDim() != places.getDim() || rows.getInput() != result)
      return;
  }
  auto rows = cast<graph::GatherOp>(*result.user_begin());
  if (!isPermutedAlike(rows, op.getResult(), places, op.getIndices()))
    return;
  builder.setInsertionPoint(op);
  op->setOperand(1, reshapeAs(places.getInput(), op.getIndices()));
  for (Operation *user : llvm::make_early_inc_range(result.getUsers())) {
    user->replaceAllUsesWith(ValueRange{result});
    user->erase();
  }
}

/// Piece `pieces[i]` of dimension `dim` as piece `i`.
Value Reorderer::gatherPieces(Value value, ArrayRef<int64_t> pieces,
                              int64_t dim) {
  return graph::GatherOp::create(
      builder, value.getLoc(), value, constant(pieces), /*origin=*/Value(),
      builder.getI64IntegerAttr(dim), /*padding_index=*/nullptr,
      /*global_size=*/nullptr, builder.getI64IntegerAttr(0));
}

/// Computes cumulative sums in the permuted order: those of each piece, and the
/// sums of the pieces before it, of which there are few.
void Reorderer::sumPieces(graph::CumulativeSumOp op) {
  builder.setInsertionPoint(op);
  graph::Formula f{builder, op.getLoc()};
  auto along = [&](Value value, int64_t dim) -> Value {
    return graph::CumulativeSumOp::create(builder, f.loc, value, dim,
                                          op.getReverse());
  };
  int64_t dim = op.getDim(), pieces = order.size();
  SmallVector<int64_t> whole(graph::tensorTypeOf(op.getInput()).getShape()),
      shape(whole);
  shape[dim] = pieces;
  shape.insert(shape.begin() + dim + 1, size / pieces);
  Value rows = f.reshape(op.getInput(), shape);
  SmallVector<int64_t> back(pieces);
  for (auto [i, piece] : llvm::enumerate(order))
    back[piece] = i;
  Value totals = gatherPieces(f.sum(rows, {dim + 1}), back, dim);
  Value before = gatherPieces(f.sub(along(totals, dim), totals), order, dim);
  shape[dim + 1] = 1;
  Value result = f.add(along(rows, dim + 1), f.reshape(before, shape));
  op.getOutput().replaceAllUsesWith(f.reshape(result, whole));
  op.erase();
}

bool Reorderer::run(ArrayRef<Operation *> attentions) {
  SmallVector<Operation *> ops;
  for (Operation &op : body)
    ops.push_back(&op);
  llvm::SmallPtrSet<Operation *, 32> inOrder;
  for (Operation *op : attentions)
    if (canPermute(op))
      inOrder.insert(op);
  if (inOrder.empty()) {
    if (startsTable)
      startsTable.getDefiningOp()->erase();
    return false;
  }
  for (Operation *op : ops)
    if (!llvm::is_contained(attentions, op) && canPermute(op))
      inOrder.insert(op);
  for (Operation *op : ops) {
    auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(op);
    SmallVector<unsigned, 1> unused;
    if (ruled)
      unused = ruled.getShardingRule().unused;
    bool wanted = inOrder.contains(op);
    for (OpOperand &operand : op->getOpOperands()) {
      Operation *maker = operand.get().getDefiningOp();
      // Skips the index tables.
      if (operand.get() == startsTable || permutedDims(operand.get()).empty() ||
          llvm::is_contained(unused, operand.getOperandNumber()))
        continue;
      bool made = maker && inOrder.contains(maker);
      if (made != wanted)
        operand.set(permute(operand.get(), /*back=*/made));
    }
  }
  for (Operation *op : ops)
    if (auto add = dyn_cast<graph::ScatterAddOp>(op))
      addInOrder(add);
    else if (auto read = dyn_cast<graph::GatherOp>(op))
      readInOrder(read);
  for (graph::CumulativeSumOp sum : sums)
    sumPieces(sum);
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(body)))
    if (isa<graph::GatherOp, graph::ReshapeOp>(op) && isOpTriviallyDead(&op))
      op.erase();
  return true;
}

namespace {
struct OrderSequencePass : spmd::impl::OrderSequenceBase<OrderSequencePass> {
  using OrderSequenceBase::OrderSequenceBase;

  /// Returns the number of positions of the ring; 1 without a ring recipe.
  static int64_t countParts(const PlanOnMesh &planned) {
    for (const RecipeCall &call : planned.plan.recipes)
      for (const MeshAxis &axis : planned.axes)
        if (seesKeysInTurn(call) && call.axes.front() == axis.name)
          return axis.size;
    return 1;
  }

  /// The causal attentions over sequences of one length, and the classes of
  /// these.
  struct Sequences {
    llvm::SmallDenseSet<unsigned> classes;
    SmallVector<Operation *> attentions;
  };

  /// Returns the causal attentions of `function` that are not among `tried`,
  /// by length.
  static llvm::MapVector<int64_t, Sequences>
  findSequences(func::FuncOp function, const DimensionClasses &classes,
                const llvm::SmallPtrSetImpl<Operation *> &tried) {
    llvm::MapVector<int64_t, Sequences> found;
    auto add = [&](auto op) {
      if (!op.getCausal() || op.getQueryStarts() || op.getKeyStarts() ||
          tried.contains(op))
        return;
      auto places = [](Value value) {
        return cast<RankedTensorType>(value.getType()).getDimSize(2);
      };
      if (places(op.getQuery()) == 0 ||
          places(op.getQuery()) != places(op.getKey()))
        return;
      Sequences &sequences = found[places(op.getQuery())];
      sequences.classes.insert(classes.number(op.getQuery(), 2));
      sequences.classes.insert(classes.number(op.getKey(), 2));
      sequences.attentions.push_back(op);
    };
    for (Operation &op : function.getBody().front()) {
      if (auto attention = dyn_cast<graph::AttentionOp>(op))
        add(attention);
      else if (auto gradient = dyn_cast<graph::AttentionGradOp>(op))
        add(gradient);
    }
    return found;
  }

  /// Permutes the sequences of `function`, one length after the other: what is
  /// permuted has other classes than before.
  static void orderSequences(func::FuncOp function, ArrayRef<int64_t> order) {
    int64_t chunks = order.size();
    llvm::SmallPtrSet<Operation *, 16> tried;
    while (true) {
      DimensionClasses classes(function);
      auto found = findSequences(function, classes, tried);
      if (found.empty())
        return;
      auto &[size, sequences] = found.front();
      tried.insert_range(sequences.attentions);
      std::string reason;
      if (size % chunks != 0)
        reason = "is not divisible by the " + std::to_string(chunks) +
                 " chunks of zig-zag order";
      else if (!Reorderer(function, classes, sequences.classes, size, order)
                    .run(sequences.attentions))
        reason = "is not put in zig-zag order, in which its attention cannot "
                 "compute";
      if (!reason.empty())
        function.emitRemark("sequence of length ")
            << size << " " << reason
            << ": later positions of the ring compute more than earlier ones";
    }
  }

  void runOnOperation() override {
    auto planned = readPlan(getOperation(), mesh, recipes);
    if (failed(planned))
      return signalPassFailure();
    int64_t parts = countParts(*planned);
    if (parts == 1)
      return;
    SmallVector<int64_t> places;
    for (int64_t part = 0; part < parts; ++part)
      llvm::append_values(places, part, 2 * parts - 1 - part);
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (!function.isExternal())
        orderSequences(function, places);
  }
};
} // namespace
