//===- OrderSequence.cpp - A sequence in another order --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Under a causal mask the last of N devices would see all keys and the first
/// one hardly any. In zig-zag order device r has the chunks r and 2N-1-r of 2N,
/// and all do the same work.
///
//===----------------------------------------------------------------------===//

#include "DimensionClasses.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "cleave/Dialect/Spmd/Transforms/Recipes.h"
#include "llvm/ADT/MapVector.h"

namespace cleave::spmd {
#define GEN_PASS_DEF_ORDERSEQUENCE
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"
} // namespace cleave::spmd

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;
using graph::FactorKind;
using graph::FactorMapping;
using graph::ShardingRule;

namespace {

/// Puts the dimensions of some classes, of `size` places, in another order:
/// `order[i]` is the piece that comes as piece `i`.
class Reorderer {
public:
  Reorderer(func::FuncOp function, const DimensionClasses &classes,
            const llvm::SmallDenseSet<unsigned> &sequences, int64_t size,
            ArrayRef<int64_t> order)
      : body(function.getBody().front()), classes(classes),
        sequences(sequences), size(size), order(order),
        builder(OpBuilder::atBlockBegin(&body)), loc(function.getLoc()) {}

  void run();

private:
  /// Whether a dimension comes in the other order where its value does.
  bool turns(Value value, unsigned dim) const {
    return cast<RankedTensorType>(value.getType()).getDimSize(dim) == size &&
           sequences.contains(classes.number(value, dim));
  }
  SmallVector<int64_t, 2> turningDims(Value value) const {
    SmallVector<int64_t, 2> dims;
    for (int64_t dim = 0,
                 rank = cast<RankedTensorType>(value.getType()).getRank();
         dim < rank; ++dim)
      if (turns(value, dim))
        dims.push_back(dim);
    return dims;
  }

  bool takesOrder(Operation *op);
  bool isUniform(Operation *op, const ShardingRule &rule, bool placed);
  static bool goesByPlaces(Operation *op, int64_t factor);
  Value constant(ArrayRef<int64_t> values);
  Value starts();
  Value turn(Value value, bool back);

  Block &body;
  const DimensionClasses &classes;
  const llvm::SmallDenseSet<unsigned> &sequences;
  int64_t size;
  ArrayRef<int64_t> order;
  OpBuilder builder;
  Location loc;
  /// The tables, made where they are first asked for; and values in the order
  /// that they are not made in.
  Value startsTable, places[2];
  llvm::DenseMap<Value, Value> turned;
};

} // namespace

/// Whether the result of `op` depends on where along `factor` elements lie: its
/// form on a shard would ask.
bool Reorderer::goesByPlaces(Operation *op, int64_t factor) {
  auto local = dyn_cast<graph::PartitionableOpInterface>(op);
  if (!local)
    return false;
  Block scratch;
  OpBuilder builder(op->getContext());
  builder.setInsertionPointToEnd(&scratch);
  bool asked = false;
  local.buildLocal(builder, op->getOperands(), op->getResultTypes(),
                   [&](RankedTensorType, const FactorMapping &mapping) {
                     for (ArrayRef<int64_t> dim : mapping)
                       asked |= llvm::is_contained(dim, factor);
                     return Value();
                   });
  return asked;
}

/// Whether `op` does the same in another order: what turns runs along factors
/// of its own, of which no place matters.
bool Reorderer::isUniform(Operation *op, const ShardingRule &rule,
                          bool placed) {
  llvm::SmallDenseSet<int64_t> factors;
  auto collect = [&](Value value, const FactorMapping &mapping) {
    for (int64_t dim : turningDims(value)) {
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
    if (!llvm::is_contained(rule.unread, i) &&
        !collect(operand, rule.operands[i]))
      return false;
  for (auto [i, result] : llvm::enumerate(op->getResults()))
    if (!collect(result, rule.results[i]))
      return false;
  for (int64_t factor : factors) {
    if (!placed && (rule.factors[factor].kind == FactorKind::Replicated ||
                    goesByPlaces(op, factor)))
      return false;
    // Not as a part of a dimension that joins several.
    for (ArrayRef<FactorMapping> mappings :
         {ArrayRef<FactorMapping>(rule.operands), {rule.results}})
      for (const FactorMapping &mapping : mappings)
        for (ArrayRef<int64_t> dim : mapping)
          if (llvm::is_contained(dim, factor) &&
              llvm::any_of(dim, [&](int64_t other) {
                return other != factor && rule.factors[other].size != 1;
              }))
            return false;
  }
  return true;
}

/// Whether `op` works in the other order; tells it of places where it goes by
/// them.
bool Reorderer::takesOrder(Operation *op) {
  auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(op);
  // A gradient is published as its parameter lies.
  if (!ruled || isa<graph::GradientOp>(op))
    return false;
  auto placed = dyn_cast<graph::PlacedOpInterface>(op);
  if (!isUniform(op, ruled.getShardingRule(), placed != nullptr))
    return false;
  return !placed || placed.setStarts([&](Value value, unsigned dim) {
    return turns(value, dim) ? starts() : Value();
  });
}

Value Reorderer::constant(ArrayRef<int64_t> values) {
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPointToStart(&body);
  auto type = RankedTensorType::get(values.size(), builder.getI64Type());
  return graph::ConstantOp::create(builder, loc,
                                   DenseElementsAttr::get(type, values));
}

/// Where each piece begins.
Value Reorderer::starts() {
  if (startsTable)
    return startsTable;
  SmallVector<int64_t> values;
  for (int64_t piece : order)
    values.push_back(piece * (size / order.size()));
  return startsTable = constant(values);
}

/// `value` in the other order, or back in its own.
Value Reorderer::turn(Value value, bool back) {
  Value &known = turned[value];
  if (known)
    return known;
  if (!places[back]) {
    SmallVector<int64_t> indices(size);
    int64_t length = size / order.size();
    for (int64_t i = 0; i < size; ++i) {
      int64_t from = order[i / length] * length + i % length;
      indices[back ? from : i] = back ? i : from;
    }
    places[back] = constant(indices);
  }
  OpBuilder::InsertionGuard guard(builder);
  if (Operation *op = value.getDefiningOp())
    builder.setInsertionPointAfter(op);
  else
    builder.setInsertionPointAfterValue(places[back]);
  Value result = value;
  for (int64_t dim : turningDims(value))
    result = graph::GatherOp::create(
        builder, value.getLoc(), result, places[back],
        /*origin=*/Value(), builder.getI64IntegerAttr(dim),
        /*padding_index=*/nullptr, /*global_size=*/nullptr,
        builder.getI64IntegerAttr(0));
  return known = result;
}

void Reorderer::run() {
  SmallVector<Operation *> ops;
  for (Operation &op : body)
    ops.push_back(&op);
  llvm::SmallPtrSet<Operation *, 32> inOrder;
  for (Operation *op : ops)
    if (takesOrder(op))
      inOrder.insert(op);
  for (Operation *op : ops) {
    auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(op);
    SmallVector<unsigned, 1> unread;
    if (ruled)
      unread = ruled.getShardingRule().unread;
    bool wanted = inOrder.contains(op);
    for (OpOperand &operand : op->getOpOperands()) {
      Operation *maker = operand.get().getDefiningOp();
      // The tables themselves are no one's sequence.
      if (operand.get() == startsTable || turningDims(operand.get()).empty() ||
          llvm::is_contained(unread, operand.getOperandNumber()))
        continue;
      bool made = maker && inOrder.contains(maker);
      if (made != wanted)
        operand.set(turn(operand.get(), /*back=*/made));
    }
  }
}

namespace {
struct OrderSequencePass : spmd::impl::OrderSequenceBase<OrderSequencePass> {
  using OrderSequenceBase::OrderSequenceBase;

  /// The positions of the ring; 1 where no recipe asks for one.
  static int64_t countParts(const PlanOnMesh &planned) {
    for (const RecipeCall &call : planned.plan.recipes)
      for (const MeshAxis &axis : planned.axes)
        if (seesKeysInTurn(call) && call.axes.front() == axis.name)
          return axis.size;
    return 1;
  }

  /// The sequences of the causal attentions of `function`, by their length.
  static llvm::MapVector<int64_t, llvm::SmallDenseSet<unsigned>>
  findSequences(func::FuncOp function, const DimensionClasses &classes) {
    llvm::MapVector<int64_t, llvm::SmallDenseSet<unsigned>> found;
    auto add = [&](auto op) {
      if (!op.getCausal() || op.getQueryStarts() || op.getKeyStarts())
        return;
      auto places = [](Value value) {
        return cast<RankedTensorType>(value.getType()).getDimSize(2);
      };
      if (places(op.getQuery()) != places(op.getKey()))
        return;
      llvm::SmallDenseSet<unsigned> &sequences = found[places(op.getQuery())];
      sequences.insert(classes.number(op.getQuery(), 2));
      sequences.insert(classes.number(op.getKey(), 2));
    };
    for (Operation &op : function.getBody().front()) {
      if (auto attention = dyn_cast<graph::AttentionOp>(op))
        add(attention);
      else if (auto gradient = dyn_cast<graph::AttentionGradOp>(op))
        add(gradient);
    }
    return found;
  }

  /// Puts the first of the sequences that are in order, and can be, in the
  /// other one.
  static bool orderOne(func::FuncOp function, ArrayRef<int64_t> order,
                       bool remark) {
    DimensionClasses classes(function);
    int64_t chunks = order.size();
    for (auto &[size, sequences] : findSequences(function, classes)) {
      if (size % chunks == 0) {
        Reorderer(function, classes, sequences, size, order).run();
        return true;
      }
      if (remark)
        function.emitRemark("its sequence of ")
            << size << " places does not come in the " << chunks
            << " chunks that zig-zag order needs: later devices of the ring do "
               "more than earlier ones";
    }
    return false;
  }

  void runOnOperation() override {
    auto planned = readPlan(getOperation(), mesh, recipes);
    if (failed(planned))
      return signalPassFailure();
    int64_t parts = countParts(*planned);
    if (parts == 1)
      return;
    SmallVector<int64_t> order;
    for (int64_t part = 0; part < parts; ++part)
      llvm::append_values(order, part, 2 * parts - 1 - part);
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (!function.isExternal())
        for (bool first = true; orderOne(function, order, first); first = false)
          ;
  }
};
} // namespace
