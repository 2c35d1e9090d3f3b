//===- ExpertTokens.cpp - Tokens that experts read and give ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ExpertTokens.h"
#include "cleave/Dialect/Graph/Analysis/LinearLayers.h"
#include "cleave/Dialect/Graph/Analysis/StepRoles.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include <map>

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

FloatType cleave::spmd::floatTypeOf(Value value) {
  return dyn_cast<FloatType>(
      cast<RankedTensorType>(value.getType()).getElementType());
}

Sharding cleave::spmd::openSharding(Value value) {
  return Sharding::replicated(cast<RankedTensorType>(value.getType()).getRank(),
                              /*open=*/true);
}

AxisList cleave::spmd::featureAxes(const Annotator &annotator,
                                   const ExpertDimensions &experts) {
  AxisList found;
  for (auto [argument, own] : experts.getMembers()) {
    const Sharding sharding = annotator.given(argument);
    for (auto [dim, axes] : llvm::enumerate(sharding.dims))
      for (const AxisRef &axis : axes)
        if (dim != own && !llvm::is_contained(found, axis))
          found.push_back(axis);
  }
  return found;
}

Value cleave::spmd::sentValue(Value value) {
  SmallVector<graph::CastOp> casts;
  for (Operation *user : value.getUsers()) {
    auto cast = dyn_cast<graph::CastOp>(user);
    FloatType to = cast ? floatTypeOf(cast) : FloatType(),
              from = floatTypeOf(value);
    if (!to || !from || to.getWidth() >= from.getWidth() ||
        (!casts.empty() && cast.getType() != casts.front().getType()))
      return value;
    casts.push_back(cast);
  }
  if (casts.empty())
    return value;
  graph::CastOp first =
      *llvm::min_element(casts, [](graph::CastOp a, graph::CastOp b) {
        return a->isBeforeInBlock(b);
      });
  for (graph::CastOp cast : casts)
    if (cast != first) {
      cast->replaceAllUsesWith(first);
      cast->erase();
    }
  return first;
}

bool cleave::spmd::isElementwise(Operation *op) {
  auto ruled = dyn_cast_or_null<graph::ShardingRuleOpInterface>(op);
  if (!ruled || op->getNumResults() != 1 || op->getNumOperands() == 0 ||
      isa<ConstrainOp>(op))
    return false;
  graph::ShardingRule rule = ruled.getShardingRule();
  auto costed = dyn_cast<graph::CostOpInterface>(op);
  if (!costed)
    return false;
  graph::WorkClass work = costed.getCost().work;
  return (work == graph::WorkClass::View ||
          work == graph::WorkClass::ElementWise) &&
         llvm::all_of(rule.factors, [](const graph::Factor &factor) {
           return factor.kind == graph::FactorKind::Parallel;
         });
}

bool cleave::spmd::scales(OpOperand &use) {
  auto elements = [](Value value) {
    return cast<RankedTensorType>(value.getType()).getNumElements();
  };
  Operation *op = use.getOwner();
  return isElementwise(op) &&
         elements(op->getResult(0)) == elements(use.get()) &&
         llvm::all_of(op->getOpOperands(), [&](OpOperand &other) {
           return &other == &use || elements(other.get()) < elements(use.get());
         });
}

namespace {
/// The operands of matmuls of rows with experts of this class that are rows,
/// and the results that are.
struct RowsOfExperts {
  SmallVector<OpOperand *> read;
  SmallVector<Value> made;

  RowsOfExperts(func::FuncOp function, const ExpertDimensions &experts) {
    for (Operation &op : function.getBody().front().without_terminator()) {
      auto costed = dyn_cast<graph::CostOpInterface>(op);
      auto reader = dyn_cast<graph::IndexUseOpInterface>(op);
      if (!reader || !costed ||
          costed.getCost().work != graph::WorkClass::Contraction)
        continue;
      auto ofExperts = [&](Value value) { return experts.expertDim(value); };
      if (llvm::none_of(op.getOperands(), ofExperts) &&
          llvm::none_of(op.getResults(), ofExperts))
        continue;
      for (OpOperand &operand : op.getOpOperands())
        if (!ofExperts(operand.get()) &&
            reader.getIndexUse(operand.getOperandNumber()).bound == 0)
          read.push_back(&operand);
      for (Value result : op.getResults())
        if (!ofExperts(result))
          made.push_back(result);
    }
  }
};

/// Annotates the tokens that folded experts read. Values may be sharded over
/// the axis of experts along the sequence: tokens, and the slots that they are
/// sent to or come from, are gathered. Each rank then fills the slots of its
/// own experts, and the contributions of all experts to a token are partial
/// sums. Gradients in f32 of outputs in 16 bits are rounded before they are
/// gathered, as eager autocast has them.
class TokenGathers {
public:
  TokenGathers(Annotator &annotator, func::FuncOp function,
               const ExpertDimensions &experts, const DimensionClasses &classes,
               StringRef axis)
      : annotator(annotator), classes(classes),
        axis(annotator.getMesh().find(axis)->name),
        roles(function.getBody().front()) {
    if (annotator.getGrains() == 0 && !graph::usesFloat8(function))
      findRounded(function, experts);
  }

  /// Gathers the operands of the op that fills the slots `result`.
  void gatherFor(OpResult result) {
    Operation *op = result.getOwner();
    while (op && op->getNumOperands() == 1)
      op = op->getOperand(0).getDefiningOp();
    if (op)
      for (OpOperand &operand : op->getOpOperands())
        gather(operand);
  }

  /// Gathers the other operands of the op that reads slots through `operand`,
  /// and of those that scale what it reads, before choices are added up.
  void gatherFor(OpOperand &operand) {
    OpOperand *slots = &operand;
    while (slots->getOwner()->getNumOperands() == 1 &&
           slots->getOwner()->getNumResults() == 1 &&
           slots->getOwner()->getResult(0).hasOneUse())
      slots = &*slots->getOwner()->getResult(0).use_begin();
    for (OpOperand &other : slots->getOwner()->getOpOperands())
      if (&other != slots)
        gather(other);
    // Tokens of one choice are not added up: their sum is scaled.
    SmallVector<Value> scaled(slots->getOwner()->getResults());
    SmallVector<OpOperand *> factors;
    bool addsUp = false;
    while (!scaled.empty())
      for (OpOperand &use : scaled.pop_back_val().getUses()) {
        Operation *op = use.getOwner();
        addsUp |= isa<graph::ReduceOp>(op);
        if (!scales(use))
          continue;
        for (OpOperand &other : op->getOpOperands())
          if (&other != &use)
            factors.push_back(&other);
        scaled.push_back(op->getResult(0));
      }
    for (OpOperand *factor : factors)
      if (addsUp)
        gather(*factor);
  }

  /// Leaves what is gathered from now on sharded by the other axes that shard
  /// the sequence.
  void keepOtherAxes() {
    kept = annotator.getSequenceAxes();
    llvm::erase(kept, AxisRef{axis});
  }

  /// Gathers the rows that `readers`, which read one value, send to experts.
  void gatherFor(ArrayRef<OpOperand *> readers) {
    gather(*readers.front());
    for (OpOperand *reader : readers.drop_front())
      reader->set(readers.front()->get());
  }

private:
  /// Where the fewest bits are gathered to have a value whole.
  struct Cut {
    int64_t bits = 0;
    SmallVector<OpOperand *> operands;
  };

  /// The value of which the classes say something.
  Value original(Value value) const {
    while (auto constrain = value.getDefiningOp<ConstrainOp>())
      value = constrain.getInput();
    Value known = originals.lookup(value);
    return known ? known : value;
  }

  /// The dimensions of `value` that can be sharded along the sequence.
  SmallVector<unsigned> tokenDims(Value value) const {
    SmallVector<unsigned> dims;
    auto type = cast<RankedTensorType>(value.getType());
    for (int64_t dim = 0; dim < type.getRank(); ++dim) {
      const DimensionClass &known = classes.of(original(value), dim);
      if (type.getDimSize(dim) > 1 && !known.samples &&
          known.producers.empty() && known.consumers.empty())
        dims.push_back(dim);
    }
    return dims;
  }

  /// The sizes of a value but for those of one position.
  static SmallVector<int64_t> shapeOf(Value value) {
    return llvm::filter_to_vector(
        cast<RankedTensorType>(value.getType()).getShape(),
        [](int64_t size) { return size > 1; });
  }

  /// Finds the shapes of outputs of `experts` that forward rounds to 16 bits
  /// for each token.
  void findRounded(func::FuncOp function, const ExpertDimensions &experts) {
    SmallVector<Value> outputs;
    llvm::SmallPtrSet<Operation *, 16> visited;
    auto follow = [&](Operation *op) {
      if (visited.insert(op).second)
        llvm::append_range(outputs, op->getResults());
    };
    for (OpOperand *operand : experts.leaving(function))
      if (!roles.dependsOnSeed(operand->getOwner()))
        follow(operand->getOwner());
    for (Value row : RowsOfExperts(function, experts).made)
      if (!roles.dependsOnSeed(row.getDefiningOp()))
        outputs.push_back(row);
    while (!outputs.empty())
      for (OpOperand &use : outputs.pop_back_val().getUses()) {
        Operation *op = use.getOwner();
        auto cast = dyn_cast<graph::CastOp>(op);
        FloatType to = cast ? floatTypeOf(cast) : FloatType();
        if (to && to.getWidth() == 16)
          rounded[shapeOf(cast)] = to;
        else if (isElementwise(op) ||
                 isa<ConstrainOp, graph::ReduceOp, graph::GatherOp>(op))
          follow(op);
      }
  }

  /// The type of 16 bits in which `value` is gathered; null where it is
  /// gathered as it is.
  FloatType roundedType(Value value) const {
    Operation *op = original(value).getDefiningOp();
    FloatType own = floatTypeOf(value);
    auto it = rounded.find(shapeOf(value));
    return own && own.isF32() && op && roles.dependsOnSeed(op) &&
                   it != rounded.end()
               ? it->second
               : FloatType();
  }

  Cut cut(OpOperand &operand, int depth = 6) {
    Cut here;
    Value value = operand.get();
    if (tokenDims(value).empty())
      return here;
    auto type = cast<RankedTensorType>(value.getType());
    here.bits = type.getNumElements() *
                (roundedType(value) ? 16 : type.getElementTypeBitWidth());
    here.operands = {&operand};
    Operation *op = value.getDefiningOp();
    if (depth == 0 || !isElementwise(op))
      return here;
    Cut above;
    for (OpOperand &source : op->getOpOperands()) {
      Cut next = cut(source, depth - 1);
      above.bits += next.bits;
      llvm::append_range(above.operands, next.operands);
    }
    return above.bits < here.bits ? above : here;
  }

  void gather(OpOperand &operand) {
    SmallVector<OpOperand *> operands = cut(operand).operands;
    gather(operand, {operands.begin(), operands.end()});
  }

  /// Annotates the operands `at`, from which that of an op is computed, and
  /// that operand. Values that others read too are computed for these as
  /// before.
  void gather(OpOperand &operand, llvm::SmallPtrSet<OpOperand *, 4> at) {
    Operation *op = operand.get().getDefiningOp();
    if (!at.contains(&operand) && op && !at.empty() && isElementwise(op) &&
        !annotated.contains(&operand)) {
      if (!operand.get().hasOneUse()) {
        Operation *copy = OpBuilder(op).clone(*op);
        originals[copy->getResult(0)] = original(op->getResult(0));
        for (auto [own, other] :
             llvm::zip(op->getOpOperands(), copy->getOpOperands()))
          if (at.contains(&own))
            at.insert(&other);
        operand.set(copy->getResult(0));
        op = copy;
      }
      for (OpOperand &source : op->getOpOperands())
        if (!tokenDims(source.get()).empty())
          gather(source, at);
    }
    annotate(operand, at.contains(&operand));
  }

  /// `value` in another type: one copy for all that read it in any shape.
  Value rounding(Value value, FloatType narrow) {
    if (Value known = roundings.lookup(value))
      return known;
    // A value that was widened is read as it was.
    if (auto wide = value.getDefiningOp<graph::CastOp>();
        wide && floatTypeOf(wide.getInput()) == narrow)
      return wide.getInput();
    auto reshape = value.getDefiningOp<graph::ReshapeOp>();
    Value from = reshape ? rounding(reshape.getInput(), narrow) : value;
    OpBuilder builder(value.getContext());
    builder.setInsertionPointAfterValue(value);
    auto type = cast<RankedTensorType>(value.getType()).clone(narrow);
    Value to;
    if (reshape)
      to = graph::ReshapeOp::create(builder, value.getLoc(), type, from);
    else
      to = graph::CastOp::create(builder, value.getLoc(), type, from);
    originals[to] = original(value);
    return roundings[value] = to;
  }

  /// Annotates `operand`, which is rounded before if it is `gathered` here.
  void annotate(OpOperand &operand, bool gathered) {
    Value value = operand.get();
    SmallVector<unsigned> dims = tokenDims(value);
    if (dims.empty() || !annotated.insert(&operand).second)
      return;
    Sharding sharding = Sharding::replicated(
        cast<RankedTensorType>(value.getType()).getRank(), /*open=*/true);
    for (unsigned dim : dims)
      sharding.open[dim] = false;
    sharding.dims[dims.front()] = kept;
    OpBuilder builder(operand.getOwner());
    FloatType narrow = gathered ? roundedType(value) : FloatType();
    ConstrainOp constrain = annotator.constrain(
        builder, narrow ? rounding(value, narrow) : value, sharding);
    operand.set(constrain);
    if (narrow) {
      operand.set(graph::CastOp::create(builder, value.getLoc(),
                                        value.getType(), constrain));
      originals[operand.get()] = original(value);
    }
    // Another axis may shard the sequence.
    annotator.addStream(constrain, dims.front(), axis);
  }

  Annotator &annotator;
  const DimensionClasses &classes;
  StringRef axis;
  AxisList kept;
  graph::StepRoles roles;
  llvm::SmallPtrSet<OpOperand *, 16> annotated;
  /// Of copies of ops that others read, and of values that are rounded.
  llvm::DenseMap<Value, Value> originals;
  /// Rounded values.
  llvm::DenseMap<Value, Value> roundings;
  /// The types of outputs, by their shapes.
  std::map<SmallVector<int64_t>, FloatType> rounded;
};
} // namespace

bool cleave::spmd::shardsStreams(Annotator &annotator, const AxisRef &axis) {
  return llvm::any_of(annotator.getStreams(), [&](Annotator::Stream stream) {
    return stream.except != axis.name &&
           stream.constrain.getSharding().getSharding().splits(
               annotator.getMesh(), axis);
  });
}

/// Annotates rows that the experts of this class read as complete. A partial
/// sum over the axis of the experts would otherwise be read as such, and shard
/// no experts.
static void completeRows(Annotator &annotator, func::FuncOp function,
                         const ExpertDimensions &experts) {
  for (OpOperand *operand : RowsOfExperts(function, experts).read) {
    OpBuilder builder(operand->getOwner());
    ConstrainOp complete = annotator.constrain(
        builder, operand->get(),
        Sharding::replicated(
            cast<RankedTensorType>(operand->get().getType()).getRank(),
            /*open=*/true));
    complete.setReduced(true);
    operand->set(complete);
  }
}

void cleave::spmd::gatherFolded(Annotator &annotator, func::FuncOp function,
                                const ExpertDimensions &experts,
                                const DimensionClasses &classes,
                                StringRef axis) {
  TokenGathers tokens(annotator, function, experts, classes, axis);
  SmallVector<OpResult> entering = experts.entering(function);
  for (OpOperand *operand : experts.leaving(function))
    tokens.gatherFor(*operand);
  for (OpResult result : entering) {
    tokens.gatherFor(result);
    annotator.splitValue(result, *experts.expertDim(result), axis);
  }
  completeRows(annotator, function, experts);
}

/// `values`, and all that is computed of them element by element.
static llvm::SmallDenseSet<Value> reachedBy(ArrayRef<Value> values) {
  llvm::SmallDenseSet<Value> reached(values.begin(), values.end());
  SmallVector<Value> stack(values);
  while (!stack.empty())
    for (Operation *user : stack.pop_back_val().getUsers())
      if (isElementwise(user) && reached.insert(user->getResult(0)).second)
        stack.push_back(user->getResult(0));
  return reached;
}

/// Leaves open what `constrain` says of `axis`. Returns whether it says more;
/// else it is dropped.
static bool dropAxis(Annotator &annotator, ConstrainOp constrain,
                     const AxisRef &axis) {
  Sharding sharding = constrain.getSharding().getSharding();
  for (auto [dim, open] : llvm::zip_equal(sharding.dims, sharding.open))
    if (llvm::is_contained(dim, axis)) {
      llvm::erase(dim, axis);
      open |= dim.empty();
    }
  if (llvm::all_of(sharding.dims,
                   [](const AxisList &axes) { return axes.empty(); })) {
    annotator.drop(constrain);
    return false;
  }
  constrain.setShardingAttr(annotator.attribute(sharding));
  return true;
}

/// Gathers the tokens that go to experts over `axis`, by which the sequence is
/// sharded between blocks, and adds up those that come back before they are
/// scattered: places of experts are more than tokens.
static void gatherBetween(Annotator &annotator, func::FuncOp function,
                          const ExpertDimensions &experts,
                          const DimensionClasses &classes,
                          const AxisRef &axis) {
  TokenGathers tokens(annotator, function, experts, classes, axis.name);
  tokens.keepOtherAxes();
  for (OpOperand *operand : experts.leaving(function)) {
    Value places = operand->get();
    if (auto rounded = places.getDefiningOp<graph::CastOp>())
      places = rounded.getInput();
    auto sharded = places.getDefiningOp<ConstrainOp>();
    if (sharded && experts.slotDim(operand->get()))
      dropAxis(annotator, sharded, axis);
    tokens.gatherFor(*operand);
  }
  for (OpResult result : experts.entering(function))
    tokens.gatherFor(result);
  // Rows, of which each choice of a token is one: tokens are gathered before
  // they are repeated, and rows scaled and added up before they are scattered.
  RowsOfExperts rows(function, experts);
  llvm::MapVector<Value, SmallVector<OpOperand *>> readers;
  llvm::SmallDenseSet<Value> inner = reachedBy(rows.made);
  for (OpOperand *operand : rows.read)
    if (!inner.contains(operand->get()))
      readers[operand->get()].push_back(operand);
  SmallVector<OpOperand *> scaled;
  for (Value made : rows.made) {
    // Their sum is scattered after they are added up.
    while (made.hasOneUse() && isa<ConstrainOp>(*made.user_begin())) {
      auto sharded = cast<ConstrainOp>(*made.user_begin());
      if (!dropAxis(annotator, sharded, axis))
        continue;
      made = sharded;
    }
    for (OpOperand &use : made.getUses())
      if (scales(use))
        scaled.push_back(&use);
  }
  for (auto &[value, operands] : readers)
    tokens.gatherFor(operands);
  for (OpOperand *use : scaled)
    tokens.gatherFor(*use);
}

bool cleave::spmd::isOverSequence(const Annotator &annotator,
                                  const ExpertDimensions &experts) {
  auto [weight, own] = experts.getMembers().front();
  AxisList sequence = annotator.getSequenceAxes();
  return llvm::any_of(
      annotator.given(weight).dims[own],
      [&](const AxisRef &axis) { return llvm::is_contained(sequence, axis); });
}

void cleave::spmd::gatherTokens(Annotator &annotator) {
  for (func::FuncOp function : annotator.entries()) {
    const DimensionClasses &classes = annotator.classesOf(function);
    for (unsigned number : ExpertDimensions::find(classes)) {
      ExpertDimensions experts(classes, number);
      // Tokens of experts over a sequence are gathered over all that shard it.
      if (isOverSequence(annotator, experts))
        continue;
      for (const AxisRef &between : featureAxes(annotator, experts))
        if (shardsStreams(annotator, between))
          gatherBetween(annotator, function, experts, classes, between);
    }
  }
}
