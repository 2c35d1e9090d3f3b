//===- MergeMatmuls.cpp - One product of what several read ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "MatmulGroups.h"
#include "Pieces.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace cleave::spmd {
#define GEN_PASS_DEF_MERGEMATMULS
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"
} // namespace cleave::spmd

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {

/// Merges one group: forward, and what differentiation made of it.
class Merger {
public:
  /// The products of copies of each parameter.
  using Readers = llvm::DenseMap<Value, SmallVector<Operation *>>;

  Merger(ProductGroup &group, const Readers &readers, bool gradients,
         OpBuilder &builder)
      : group(group), readersOf(readers), gradients(gradients),
        builder(builder) {}

  void run();

private:
  /// The gradients of the products, in their rows.
  struct Gradients {
    /// As backward computes them.
    SmallVector<Value> values;
    /// The order of their dimensions in `whole`: what the products with weights
    /// keep, then what they sum over.
    SmallVector<int64_t> order;
    Value whole;
    /// The dimension along which they are concatenated.
    int64_t dim;

    std::string reorder(const std::string &letters) const {
      std::string result;
      for (int64_t from : order)
        result += letters[from];
      return result;
    }
  };

  Value concat(const Pieces &pieces);
  Value inRows(Value gradient, ArrayRef<int64_t> order);
  Gradients joinGradients(ArrayRef<Product> readers);
  void replace(Pieces pieces, Value whole);
  void moveReaders(ArrayRef<Operation *> slices);
  void insertBehind(ArrayRef<Value> values);
  void hoist(Value value, Operation *op);
  void replaceBehind(Pieces pieces, Value whole);
  std::optional<SmallVector<Product>> findReaders();
  void mergeSum(ArrayRef<Product> readers, const Gradients &gradients);
  void mergeWeightGradients(const Gradients &gradients);
  void mergeBiasGradients(const Gradients &gradients);

  ProductGroup &group;
  const Readers &readersOf;
  /// Whether gradients of weights and biases are merged.
  bool gradients;
  OpBuilder &builder;
  /// The concatenations of this group.
  SmallVector<std::pair<SmallVector<Value>, Value>> joined;
};

} // namespace

Value Merger::concat(const Pieces &pieces) {
  if (Value whole = cutFrom(pieces))
    return whole;
  Value first = pieces.values.front();
  if (std::optional<Pieces> inner = beforeReshape(pieces)) {
    SmallVector<int64_t> shape(graph::tensorTypeOf(first).getShape());
    shape[0] = 0;
    for (Value piece : pieces.values)
      shape[0] += graph::tensorTypeOf(piece).getDimSize(0);
    Value whole = concat(*inner);
    return placeAs(graph::ReshapeOp::create(
                       builder, first.getLoc(),
                       graph::tensorTypeOf(first).clone(shape), whole),
                   first, 0);
  }
  for (const auto &[known, whole] : joined)
    if (known == pieces.values)
      return whole;
  Value whole = placeAs(graph::ConcatOp::create(builder, first.getLoc(),
                                                pieces.values, pieces.dim),
                        first, pieces.dim);
  markOfDevice(whole.getDefiningOp(), first, pieces.dim);
  joined.push_back({pieces.values, whole});
  return whole;
}

/// Replaces pieces of values that were computed apart by slices of the whole.
/// What all pieces are reduced by is done to the whole.
void Merger::replace(Pieces pieces, Value whole) {
  placeAs(whole, pieces.values.front(), pieces.dim);
  auto reduction = [](Value value) {
    return value.hasOneUse() ? dyn_cast<AllReduceOp>(*value.user_begin())
                             : AllReduceOp();
  };
  while (true) {
    AllReduceOp first = reduction(pieces.values.front());
    if (!first || !llvm::all_of(pieces.values, [&](Value piece) {
          AllReduceOp op = reduction(piece);
          return op && op.getKind() == first.getKind() &&
                 op.getMesh() == first.getMesh() &&
                 writtenShardingAttr(op) == writtenShardingAttr(first) &&
                 op.getAxes() == first.getAxes();
        }))
      break;
    whole = AllReduceOp::create(builder, first.getLoc(), whole.getType(),
                                first.getKindAttr(), whole, first.getMeshAttr(),
                                first.getAxesAttr());
    placeAs(whole, first, pieces.dim);
    for (Value &piece : pieces.values)
      piece = reduction(piece).getOutput();
  }
  SmallVector<Operation *> slices = cut(builder, whole, pieces);
  for (auto [slice, piece] : llvm::zip_equal(slices, pieces.values))
    piece.replaceAllUsesWith(slice->getResult(0));
  moveReaders(slices);
}

/// Moves what reads `slices`, or what reads that, and stands before them,
/// behind them.
void Merger::moveReaders(ArrayRef<Operation *> slices) {
  llvm::SmallPtrSet<Operation *, 16> readers(slices.begin(), slices.end());
  SmallVector<Operation *> moved;
  for (Operation &op : llvm::make_range(slices.front()->getBlock()->begin(),
                                        slices.front()->getIterator()))
    if (llvm::any_of(op.getOperands(), [&](Value operand) {
          return readers.contains(operand.getDefiningOp());
        })) {
      readers.insert(&op);
      moved.push_back(&op);
    }
  Operation *last = slices.back();
  for (Operation *op : moved) {
    op->moveAfter(last);
    last = op;
  }
}

/// Behind the last op that gives one of `values`.
void Merger::insertBehind(ArrayRef<Value> values) {
  Operation *last = nullptr;
  for (Value value : values)
    if (Operation *op = value.getDefiningOp();
        op && (!last || last->isBeforeInBlock(op)))
      last = op;
  if (last)
    builder.setInsertionPointAfter(last);
}

/// The products that read the weights, or further copies of them, in backward,
/// one for each: of gradients of the products, summed over the dimension of the
/// weights.
std::optional<SmallVector<Product>> Merger::findReaders() {
  SmallVector<Product> found;
  for (const Product &product : group) {
    SmallVector<Product> own;
    BlockArgument parameter = copiedParameter(product.rhs);
    for (Operation *op :
         parameter ? readersOf.lookup(parameter) : SmallVector<Operation *>()) {
      if (op == product.op)
        continue;
      Product reader = *Product::read(op);
      char letter = reader.equation.rhs.front();
      if (reader.equation.lhs.find(letter) != std::string::npos &&
          reader.equation.output.find(letter) == std::string::npos)
        own.push_back(reader);
    }
    if (own.size() != 1 || own.front().bias)
      return std::nullopt;
    if (!found.empty()) {
      const Product &first = found.front();
      int64_t dim = first.equation.lhs.find(first.equation.rhs.front());
      if (!own.front().isLike(first) ||
          !isAlike(own.front().rhs, first.rhs, /*dim=*/0) ||
          !isAlike(own.front().lhs, first.lhs, dim) ||
          writtenShardingAttr(own.front().op->getResult(0)) !=
              writtenShardingAttr(first.op->getResult(0)))
        return std::nullopt;
    }
    found.push_back(own.front());
  }
  return found;
}

/// The operands of a sum of sums that nothing else reads.
static void flattenSum(Value value, SmallVectorImpl<Value> &terms) {
  auto sum = value.getDefiningOp<graph::AddOp>();
  if (!sum || !value.hasOneUse() ||
      llvm::any_of(sum->getOperands(), [&](Value operand) {
        return operand.getType() != value.getType();
      }))
    return terms.push_back(value);
  for (Value operand : sum->getOperands())
    flattenSum(operand, terms);
}

/// `gradient` with its dimensions in another order.
Value Merger::inRows(Value gradient, ArrayRef<int64_t> order) {
  if (llvm::is_sorted(order))
    return gradient;
  Value moved =
      graph::TransposeOp::create(builder, gradient.getLoc(), gradient, order);
  if (ShardingAttr known = writtenShardingAttr(gradient)) {
    Sharding sharding = known.getSharding(), own = sharding;
    RankedTensorType global = writtenGlobalType(gradient);
    SmallVector<int64_t> shape;
    for (auto [to, from] : llvm::enumerate(order)) {
      own.dims[to] = sharding.dims[from];
      if (!sharding.open.empty())
        own.open[to] = sharding.open[from];
      shape.push_back(global.getDimSize(from));
    }
    annotate(moved.getDefiningOp(), ShardingAttr::get(known.getMesh(), own),
             RankedTensorType::get(shape, global.getElementType()));
  }
  return moved;
}

Merger::Gradients Merger::joinGradients(ArrayRef<Product> readers) {
  const graph::Einsum &equation = readers.front().equation;
  Gradients result;
  for (char letter : equation.output)
    if (size_t at = equation.lhs.find(letter); at != std::string::npos)
      result.order.push_back(at);
  for (char letter : equation.rhs)
    if (size_t at = equation.lhs.find(letter);
        at != std::string::npos &&
        equation.output.find(letter) == std::string::npos)
      result.order.push_back(at);
  // What only the gradient has, and is summed over.
  for (size_t at = 0; at < equation.lhs.size(); ++at)
    if (!llvm::is_contained(result.order, static_cast<int64_t>(at)))
      result.order.push_back(at);
  result.dim = result.reorder(equation.lhs).find(equation.rhs.front());
  Pieces pieces{{}, result.dim};
  for (const Product &reader : readers)
    result.values.push_back(reader.lhs);
  insertBehind(result.values);
  for (Value gradient : result.values)
    pieces.values.push_back(inRows(gradient, result.order));
  result.whole = concat(pieces);
  return result;
}

/// A sum of the products becomes one that is summed over all of them.
void Merger::mergeSum(ArrayRef<Product> readers, const Gradients &gradients) {
  Value sum = readers.front().op->getResult(0);
  SmallVector<Value> terms;
  auto isTerm = [&](const Product &reader) {
    return llvm::count(terms, reader.op->getResult(0)) == 1;
  };
  do {
    auto add = sum.hasOneUse() ? dyn_cast<graph::AddOp>(*sum.user_begin())
                               : graph::AddOp();
    if (!add || add.getType() != sum.getType())
      return;
    sum = add.getOutput();
    terms.clear();
    for (Value operand : add->getOperands())
      flattenSum(operand, terms);
  } while (!llvm::all_of(readers, isTerm));
  auto place = [&](Value value) {
    if (ShardingAttr sharding = writtenShardingAttr(sum))
      annotate(value.getDefiningOp(), sharding, writtenGlobalType(sum));
    return value;
  };
  builder.setInsertionPoint(sum.getDefiningOp());
  // Backward may read copies of its own, made when it needs them.
  Pieces weights{{}, /*dim=*/0};
  for (const Product &reader : readers)
    weights.values.push_back(reader.rhs);
  Product product = readers.front();
  product.equation.lhs = gradients.reorder(product.equation.lhs);
  Value merged = place(
      product.rebuild(builder, gradients.whole, concat(weights), Value()));
  for (Value term : terms)
    if (llvm::none_of(readers, [&](const Product &reader) {
          return reader.op->getResult(0) == term;
        }))
      merged = place(graph::AddOp::create(builder, sum.getLoc(), term, merged));
  sum.replaceAllUsesWith(merged);
}

/// Gradients of the weights: products of the gradients with one value, what
/// forward multiplied, or another copy of it.
void Merger::mergeWeightGradients(const Gradients &gradients) {
  std::optional<Product> first;
  Pieces results{{}, -1};
  Value input;
  bool isLhs = false;
  for (Value gradient : gradients.values) {
    std::optional<Product> own;
    size_t dim = 0;
    for (Operation *user : gradient.getUsers()) {
      auto product = Product::read(user);
      if (!product || product->bias || product->lhs == product->rhs)
        continue;
      const graph::Einsum &equation = product->equation;
      auto [mine, other] = product->lhs == gradient
                               ? std::pair(equation.lhs, equation.rhs)
                               : std::pair(equation.rhs, equation.lhs);
      char letter = mine[gradients.order[gradients.dim]];
      if (equation.output.find(letter) == std::string::npos ||
          other.find(letter) != std::string::npos)
        continue;
      if (own)
        return;
      own = product;
      dim = equation.output.find(letter);
    }
    if (!own)
      return;
    bool ownIsLhs = own->lhs == gradient;
    Value ownInput = ownIsLhs ? own->rhs : own->lhs;
    if (first &&
        (!own->isLike(*first) || isLhs != ownIsLhs || input != ownInput ||
         writtenShardingAttr(own->op->getResult(0)) !=
             writtenShardingAttr(first->op->getResult(0))))
      return;
    if (!first)
      first = own;
    input = ownInput;
    isLhs = ownIsLhs;
    results.dim = dim;
    results.values.push_back(own->op->getResult(0));
  }
  std::string &letters = isLhs ? first->equation.lhs : first->equation.rhs;
  letters = gradients.reorder(letters);
  insertBehind(results.values);
  replace(results, first->rebuild(builder, isLhs ? gradients.whole : input,
                                  isLhs ? input : gradients.whole, Value()));
}

namespace {
/// A sum of a value over some of its dimensions, possibly in another type.
struct Sum {
  Value result;
  Type element;
  /// The dimensions that are left, in the order of the result.
  SmallVector<int64_t> kept;
};
} // namespace

/// The sum that `user` begins to compute of a value of `rank` dimensions.
static std::optional<Sum> readSum(Operation *user, int64_t rank) {
  Sum sum;
  SmallVector<int64_t> dims = llvm::to_vector(llvm::seq<int64_t>(0, rank));
  while (isa<graph::CastOp, graph::TransposeOp>(user)) {
    if (auto transpose = dyn_cast<graph::TransposeOp>(user)) {
      SmallVector<int64_t> moved;
      for (int64_t from : transpose.getPermutation())
        moved.push_back(dims[from]);
      dims = moved;
    } else if (sum.element) {
      return std::nullopt;
    } else {
      sum.element = graph::tensorTypeOf(user->getResult(0)).getElementType();
    }
    if (!user->hasOneUse())
      return std::nullopt;
    user = *user->user_begin();
  }
  auto reduce = dyn_cast<graph::ReduceOp>(user);
  if (!reduce || reduce.getKind() != graph::ReductionKind::Sum)
    return std::nullopt;
  for (auto [i, dim] : llvm::enumerate(dims))
    if (!llvm::is_contained(reduce.getDims(), static_cast<int64_t>(i)))
      sum.kept.push_back(dim);
  sum.result = reduce.getOutput();
  return sum;
}

/// Gradients of biases: sums over all other dimensions.
void Merger::mergeBiasGradients(const Gradients &gradients) {
  std::optional<Sum> first;
  Pieces results{{}, 0};
  int64_t rank = gradients.order.size();
  for (Value gradient : gradients.values) {
    std::optional<Sum> own;
    for (Operation *user : gradient.getUsers())
      if (auto sum = readSum(user, rank);
          sum &&
          llvm::is_contained(sum->kept, gradients.order[gradients.dim])) {
        if (own)
          return;
        own = sum;
      }
    if (!own ||
        (first && (own->kept != first->kept || own->element != first->element ||
                   writtenShardingAttr(own->result) !=
                       writtenShardingAttr(first->result))))
      return;
    if (!first)
      first = own;
    results.values.push_back(own->result);
  }
  SmallVector<int64_t> kept, summed;
  for (auto [i, dim] : llvm::enumerate(gradients.order))
    if (llvm::is_contained(first->kept, dim)) {
      if (static_cast<int64_t>(i) == gradients.dim)
        results.dim = kept.size();
      kept.push_back(dim);
    } else {
      summed.push_back(i);
    }
  if (kept != first->kept)
    return;
  insertBehind(results.values);
  Value whole = gradients.whole;
  if (first->element) {
    whole = graph::CastOp::create(
        builder, whole.getLoc(),
        graph::tensorTypeOf(whole).clone(first->element), whole);
    if (ShardingAttr sharding = writtenShardingAttr(gradients.whole))
      annotate(whole.getDefiningOp(), sharding,
               writtenGlobalType(gradients.whole).clone(first->element));
  }
  replace(results,
          graph::ReduceOp::create(builder, whole.getLoc(),
                                  graph::ReductionKind::Sum, whole, summed));
}

/// Moves the copy of a parameter before `op`, with what it is made by.
void Merger::hoist(Value value, Operation *op) {
  Operation *from = value.getDefiningOp();
  if (!from || from->isBeforeInBlock(op))
    return;
  for (Value operand : from->getOperands())
    hoist(operand, op);
  from->moveBefore(op);
}

/// Replaces what reads `pieces` behind the op that joins them.
void Merger::replaceBehind(Pieces pieces, Value whole) {
  Operation *join = whole.getDefiningOp();
  builder.setInsertionPointAfter(join);
  SmallVector<Operation *> slices = cut(builder, whole, pieces);
  for (auto [slice, piece] : llvm::zip_equal(slices, pieces.values))
    piece.replaceUsesWithIf(slice->getResult(0), [&](OpOperand &use) {
      return join->isBeforeInBlock(use.getOwner());
    });
}

void Merger::run() {
  // As groups before have left them.
  for (Product &product : group)
    product = *Product::read(product.op);
  const Product &first = group.front();
  builder.setInsertionPoint(first.op);
  Pieces weights{{}, /*dim=*/0}, biases{{}, 0},
      results{{},
              static_cast<int64_t>(
                  first.equation.output.find(first.equation.rhs.front()))};
  for (const Product &product : group) {
    weights.values.push_back(product.rhs);
    if (product.bias)
      biases.values.push_back(product.bias);
    results.values.push_back(product.op->getResult(0));
  }
  for (Value value : llvm::concat<Value>(weights.values, biases.values))
    hoist(value, first.op);
  // Found before weights have other readers.
  auto readers = findReaders();
  Value weight = concat(weights);
  Value bias = biases.values.empty() ? Value() : concat(biases);
  replace(results, first.rebuild(builder, first.lhs, weight, bias));

  if (readers) {
    Gradients joined = joinGradients(*readers);
    mergeSum(*readers, joined);
    if (gradients) {
      mergeWeightGradients(joined);
      mergeBiasGradients(joined);
    }
  }
  // What reads a weight by itself reads it there.
  if (std::optional<Pieces> inner = beforeReshape(weights))
    replaceBehind(*inner, concat(*inner));
  else if (!cutFrom(weights))
    replaceBehind(weights, weight);
}

namespace {

struct MergeMatmulsPass
    : cleave::spmd::impl::MergeMatmulsBase<MergeMatmulsPass> {
  using MergeMatmulsBase::MergeMatmulsBase;

  void runOnOperation() override {
    for (auto function : getOperation().getOps<func::FuncOp>()) {
      if (function.isExternal())
        continue;
      Block &body = function.getBody().front();
      SmallVector<ProductGroup> groups = findProductGroups(body);
      if (groups.empty())
        continue;
      Merger::Readers readers;
      for (Operation &op : body)
        if (auto product = Product::read(&op))
          if (Value parameter = copiedParameter(product->rhs))
            readers[parameter].push_back(&op);
      llvm::DenseSet<Operation *> unread;
      for (Operation &op : body)
        if (isOpTriviallyDead(&op))
          unread.insert(&op);
      OpBuilder builder(function.getContext());
      for (ProductGroup &group : groups)
        Merger(group, readers, gradients, builder).run();
      for (Operation &op : llvm::make_early_inc_range(llvm::reverse(body)))
        if (isOpTriviallyDead(&op) && !unread.contains(&op))
          op.erase();
    }
  }
};

} // namespace
