//===- Expert.cpp - Expert parallelism ------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The recipe "expert": Lepikhin et al., "GShard" (arXiv 2006.16668),
/// section 3. Samples and experts are sharded over one axis. Tokens are
/// exchanged between the shardings of samples and of experts by an all-to-all,
/// as are their gradients:
/// ```
/// [samples/n, experts, slots, features]      dispatched, sharded by samples
/// [samples, experts/n, slots, features]      computed, sharded by experts
/// ```
/// Stacked tables of embeddings are sharded alike: whole tables over the axis,
/// and the vectors that samples look up are exchanged (Naumov et al., "DLRM",
/// arXiv 1906.00091, section 3).
///
//===----------------------------------------------------------------------===//

#include "Annotator.h"
#include "ExpertDimensions.h"
#include "cleave/Dialect/Graph/Analysis/LinearLayers.h"
#include "cleave/Dialect/Graph/Analysis/StepRoles.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include <map>

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

static FloatType floatTypeOf(Value value) {
  return dyn_cast<FloatType>(
      cast<RankedTensorType>(value.getType()).getElementType());
}

/// The value that is sent in place of `value`: where all that reads it casts it
/// to one narrower type, the result of one cast, which the readers of the
/// others read then.
static Value sentValue(Value value) {
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

/// The axes that shard other dimensions of the weights of experts: over these,
/// what experts compute is a partial sum, in forward or in backward.
static AxisList featureAxes(const Annotator &annotator,
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

/// Whether `value` is a sum in f32 of a matmul of 16-bit values, or was rounded
/// from one.
static bool isRounded(Value value) {
  if (auto cast = value.getDefiningOp<graph::CastOp>())
    return graph::roundedType(cast.getInput()) == floatTypeOf(value);
  return graph::roundedType(value) != FloatType();
}

static Sharding open(Value value) {
  return Sharding::replicated(cast<RankedTensorType>(value.getType()).getRank(),
                              /*open=*/true);
}

static int64_t sizeOf(Value value, unsigned dim) {
  return cast<RankedTensorType>(value.getType()).getDimSize(dim);
}

/// Annotates the values of `function` that are exchanged between the shardings
/// of samples and of experts. `kept` are the axes of experts over which no
/// samples are sharded. Gradients in f32 of activations in 16 bits are rounded
/// before they are sent, as eager autocast rounds each of their terms; not with
/// matmuls of 8 bits, whose scales would follow from other numbers than on one
/// device.
static void annotateCollectives(Annotator &annotator, func::FuncOp function,
                                const ExpertDimensions &experts, StringRef axis,
                                const AxisList &kept) {
  // Collected before annotations are inserted.
  SmallVector<OpResult> entering = experts.entering(function);
  bool rounds = annotator.getGrains() == 0 && !graph::usesFloat8(function);
  AxisList features = featureAxes(annotator, experts);
  for (OpOperand *operand : experts.leaving(function)) {
    Value value = operand->get();
    unsigned dim = *experts.expertDim(value);
    Sharding sharding = open(value);
    sharding.dims[dim] = kept;
    sharding.open[dim] = false;
    FloatType narrow = rounds ? graph::roundedType(value) : FloatType();
    OpBuilder builder(operand->getOwner());
    SmallVector<Sharding, 2> shardings;
    if (rounds && isRounded(value) && !features.empty()) {
      auto parts = annotator.getMesh().size(features);
      auto dim = experts.featureDim(value);
      if (dim && sizeOf(value, *dim) % parts == 0) {
        // Partial sums are scattered in f32, sent as slices and gathered.
        Sharding scattered = open(value);
        scattered.dims[*dim] = features;
        scattered.open[*dim] = false;
        value = annotator.constrain(builder, value, scattered);
        shardings.push_back(sharding);
        shardings.back().dims[*dim] = features;
        shardings.back().open[*dim] = sharding.open[*dim] = false;
      } else {
        narrow = FloatType();
      }
    }
    shardings.push_back(sharding);
    // Ranks that share a sequence gather places before these are wider.
    if (auto slots = experts.slotDim(value); slots && narrow) {
      sharding.open[*slots] = false;
      shardings.push_back(sharding);
    }
    annotator.send(builder, value, narrow, shardings, {operand});
  }
  for (OpResult result : entering) {
    unsigned dim = *experts.expertDim(result);
    Value value = result;
    while (value.hasOneUse() && isa<ConstrainOp>(*value.user_begin()))
      value = value.user_begin()->getResult(0);
    Value sent = sentValue(value);
    if (sent == value) {
      annotator.splitValue(result, dim, axis);
      continue;
    }
    // Ranks that share a sequence scatter their sum first.
    auto before = value.getDefiningOp<ConstrainOp>();
    Sharding sharding = open(value), sent16 = sharding;
    if (before)
      sharding = before.getSharding().getSharding();
    sharding.open[dim] = false;
    OpBuilder builder(sent.getDefiningOp());
    if (before)
      before.setShardingAttr(annotator.attribute(sharding));
    else
      sent.getDefiningOp()->setOperand(
          0, annotator.constrain(builder, value, sharding));
    sent16.dims[dim] = sharding.dims[dim];
    sent16.dims[dim].push_back({annotator.getMesh().find(axis)->name});
    sent16.open[dim] = false;
    builder.setInsertionPointAfterValue(sent);
    ConstrainOp exchanged = annotator.constrain(builder, sent, sent16);
    sent.replaceAllUsesExcept(exchanged, exchanged);
  }
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

  /// Whether each element of the result of `op` needs one of each operand.
  static bool isElementwise(Operation *op) {
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

  /// Whether the op that reads `use` computes as many elements, each from one
  /// of `use` and of smaller values.
  static bool scales(OpOperand &use) {
    auto elements = [](Value value) {
      return cast<RankedTensorType>(value.getType()).getNumElements();
    };
    Operation *op = use.getOwner();
    return isElementwise(op) &&
           elements(op->getResult(0)) == elements(use.get()) &&
           llvm::all_of(op->getOpOperands(), [&](OpOperand &other) {
             return &other == &use ||
                    elements(other.get()) < elements(use.get());
           });
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
    auto cast = [&](Value from, Type element) -> Value {
      auto type = mlir::cast<RankedTensorType>(from.getType()).clone(element);
      Value to = graph::CastOp::create(builder, from.getLoc(), type, from);
      originals[to] = original(value);
      return to;
    };
    FloatType narrow = gathered ? roundedType(value) : FloatType();
    ConstrainOp constrain = annotator.constrain(
        builder, narrow ? cast(value, narrow) : value, sharding);
    operand.set(narrow ? cast(constrain, floatTypeOf(value)) : constrain);
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
  /// The types of outputs, by their shapes.
  std::map<SmallVector<int64_t>, FloatType> rounded;
};
} // namespace

/// Whether values between blocks are sharded over `axis` along the sequence.
static bool shardsStreams(Annotator &annotator, const AxisRef &axis) {
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

/// `values`, and all that is computed of them element by element.
static llvm::SmallDenseSet<Value> reachedBy(ArrayRef<Value> values) {
  llvm::SmallDenseSet<Value> reached(values.begin(), values.end());
  SmallVector<Value> stack(values);
  while (!stack.empty())
    for (Operation *user : stack.pop_back_val().getUsers())
      if (TokenGathers::isElementwise(user) &&
          reached.insert(user->getResult(0)).second)
        stack.push_back(user->getResult(0));
  return reached;
}

/// Gathers the tokens that go to experts over `axis`, by which the sequence is
/// sharded between blocks, and adds up those that come back before they are
/// scattered: places of experts are more than tokens.
static void gatherBetween(Annotator &annotator, func::FuncOp function,
                          const ExpertDimensions &experts,
                          const DimensionClasses &classes,
                          const AxisRef &axis) {
  TokenGathers tokens(annotator, function, experts, classes, axis.name);
  for (OpOperand *operand : experts.leaving(function)) {
    Value places = operand->get();
    if (auto rounded = places.getDefiningOp<graph::CastOp>())
      places = rounded.getInput();
    auto sharded = places.getDefiningOp<ConstrainOp>();
    if (auto slots = experts.slotDim(operand->get()); sharded && slots) {
      Sharding sharding = sharded.getSharding().getSharding();
      llvm::erase(sharding.dims[*slots], axis);
      sharded.setShardingAttr(annotator.attribute(sharding));
    }
    tokens.gatherFor(*operand);
  }
  for (OpResult result : experts.entering(function))
    tokens.gatherFor(result);
  // Rows, of which each choice of a token is one: tokens are gathered before
  // they are repeated, and rows scaled and added up before they are scattered.
  tokens.keepOtherAxes();
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
      Sharding sharding = sharded.getSharding().getSharding();
      for (AxisList &dim : sharding.dims)
        llvm::erase(dim, axis);
      if (llvm::all_of(sharding.dims,
                       [](const AxisList &axes) { return axes.empty(); })) {
        annotator.drop(sharded);
        continue;
      }
      sharded.setShardingAttr(annotator.attribute(sharding));
      made = sharded;
    }
    for (OpOperand &use : made.getUses())
      if (TokenGathers::scales(use))
        scaled.push_back(&use);
  }
  for (auto &[value, operands] : readers)
    tokens.gatherFor(operands);
  for (OpOperand *use : scaled)
    tokens.gatherFor(*use);
}

/// Shards the experts of all entries over `axis`. The axis is `folded` if no
/// samples are sharded over it.
static LogicalResult splitExperts(Annotator &annotator, StringRef axis,
                                  bool folded) {
  int64_t parts = annotator.getMesh().size(AxisRef{axis});
  AxisList samples = annotator.sampleAxes();
  bool found = false;
  for (func::FuncOp function : annotator.entries()) {
    const DimensionClasses &classes = annotator.classesOf(function);
    for (unsigned number : ExpertDimensions::find(classes)) {
      const DimensionClass &known = classes.all()[number];
      ExpertDimensions experts(classes, number);
      auto [first, firstDim] = experts.getMembers().front();
      AxisList kept;
      Sharding sharding = annotator.given(first);
      for (const AxisRef &other : sharding.dims[firstDim])
        if (other.name != axis && !annotator.getMesh().overlap(other, samples))
          kept.push_back(other);
      int64_t places = known.divisor / annotator.getMesh().size(kept);
      // Without folding, a number that is not divisible is padded later.
      bool padded = !folded && kept.empty();
      if (padded ? places < parts : places % parts != 0) {
        Operation *op = known.stacked.front();
        InFlightDiagnostic error = op->emitOpError("has ");
        error << places << (isa<graph::GatherOp>(op) ? " tables" : " experts")
              << (places == known.divisor ? "" : " in each shard") << ", "
              << (padded ? "fewer than" : "not divisible by") << " the "
              << parts << " positions of axis \"" << axis << "\"";
        if (std::string fits = partsThatFit(places); !fits.empty())
          error << ": use " << fits;
        return error;
      }
      found = true;
      for (auto [argument, dim] : experts.getMembers())
        annotator.split(argument, dim, axis);
      // Indices are exchanged first, so that gradients meet them at the tables.
      for (auto [argument, dim] : experts.getMembers())
        if (graph::hasRole(function, argument.getArgNumber(), "input") &&
            annotator.isSplit(argument, axis))
          annotator.splitValue(argument, dim, axis);
      if (folded) {
        TokenGathers tokens(annotator, function, experts, classes, axis);
        SmallVector<OpResult> entering = experts.entering(function);
        for (OpOperand *operand : experts.leaving(function))
          tokens.gatherFor(*operand);
        for (OpResult result : entering) {
          tokens.gatherFor(result);
          annotator.splitValue(result, *experts.expertDim(result), axis);
        }
        completeRows(annotator, function, experts);
      } else {
        for (const AxisRef &between : featureAxes(annotator, experts))
          if (shardsStreams(annotator, between))
            gatherBetween(annotator, function, experts, classes, between);
        annotateCollectives(annotator, function, experts, axis, kept);
      }
    }
    FailureOr<bool> masked =
        splitMaskedExperts(annotator, function, axis, folded);
    if (failed(masked))
      return failure();
    found |= *masked;
  }
  if (!found)
    return annotator.getModule().emitError()
           << "recipe 'expert': the model has no experts, that is, no batched "
              "product in which each batch index has its own weights, no "
              "product of rows that have the weights of their group, and no "
              "batched lookup in which each has its own table";
  return success();
}

LogicalResult cleave::spmd::applyExpert(Annotator &annotator, StringRef axis) {
  if (failed(applyDp(annotator, axis)))
    return failure();
  return splitExperts(annotator, axis, /*folded=*/false);
}

LogicalResult cleave::spmd::applyFoldedExpert(Annotator &annotator,
                                              StringRef axis) {
  return splitExperts(annotator, axis, /*folded=*/true);
}

//===----------------------------------------------------------------------===//
// Partial sums
//===----------------------------------------------------------------------===//

/// Whether `use` only moves elements of the value, to any shape.
static bool moves(OpOperand &use) {
  return isa<graph::ReshapeOp, graph::TransposeOp, graph::GatherOp>(
             use.getOwner()) &&
         use.getOperandNumber() == 0;
}

static bool widens(Operation *op, Type element) {
  return isa<graph::CastOp>(op) && floatTypeOf(op->getResult(0)) == element;
}

/// Whether all that read `narrow` move its elements and read them in the type
/// `element` then.
static bool isOnlyWidened(Value narrow, Type element) {
  return llvm::all_of(narrow.getUses(), [&](OpOperand &use) {
    return widens(use.getOwner(), element) ||
           (moves(use) && isOnlyWidened(use.getOwner()->getResult(0), element));
  });
}

/// Lets readers of `narrow` read `wide`.
static void widen(Value narrow, Value wide) {
  Type element = floatTypeOf(wide);
  for (OpOperand &use : llvm::make_early_inc_range(narrow.getUses())) {
    Operation *op = use.getOwner();
    Value result = op->getResult(0);
    if (widens(op, element)) {
      result.replaceAllUsesWith(wide);
    } else {
      Operation *copy = OpBuilder(op).clone(*op);
      copy->setOperand(0, wide);
      copy->getResult(0).setType(
          cast<RankedTensorType>(result.getType()).clone(element));
      widen(result, copy->getResult(0));
    }
    op->erase();
  }
}

/// The weights of experts that `op` reads, rounded and gathered or not.
static BlockArgument weightOf(Operation &op, const ExpertDimensions &experts) {
  for (Value weight : op.getOperands()) {
    while (isa_and_nonnull<graph::CastOp, ConstrainOp>(weight.getDefiningOp()))
      weight = weight.getDefiningOp()->getOperand(0);
    if (isa<BlockArgument>(weight) && experts.expertDim(weight))
      return cast<BlockArgument>(weight);
  }
  return {};
}

void cleave::spmd::keepPartialSums(Annotator &annotator) {
  const Mesh &mesh = annotator.getMesh();
  AxisList samples = annotator.sampleAxes();
  for (func::FuncOp function : annotator.entries()) {
    if (annotator.getGrains() > 0 || graph::usesFloat8(function))
      continue;
    const DimensionClasses &classes = annotator.classesOf(function);
    SmallVector<graph::CastOp> roundings;
    for (unsigned number : ExpertDimensions::find(classes)) {
      ExpertDimensions experts(classes, number);
      for (Operation &op : function.getBody().front().without_terminator()) {
        BlockArgument weight = weightOf(op, experts);
        if (!weight || op.getNumResults() != 1 ||
            !graph::roundedType(op.getResult(0)))
          continue;
        const Sharding sharding = annotator.given(weight);
        bool partial = llvm::any_of(sharding.dims, [&](const AxisList &axes) {
          return llvm::any_of(axes, [&](const AxisRef &axis) {
            return mesh.size(axis) > 1 && !mesh.overlap(axis, samples);
          });
        });
        for (Operation *user : op.getResult(0).getUsers())
          if (auto rounding = dyn_cast<graph::CastOp>(user);
              rounding && partial &&
              isOnlyWidened(rounding, floatTypeOf(op.getResult(0))))
            roundings.push_back(rounding);
      }
    }
    for (graph::CastOp rounding : roundings) {
      widen(rounding, rounding.getInput());
      rounding.erase();
    }
  }
}
