//===- ChunkLoss.cpp - Head and cross entropy without materialised logits -===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/Analysis/Slices.h"
#include "cleave/Dialect/Graph/IR/Attributes/ChosenPrecision.h"
#include "cleave/Dialect/Graph/IR/Einsum.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/Transforms/Passes.h"
#include "llvm/Support/MathExtras.h"

namespace cleave::graph {
#define GEN_PASS_DEF_CHUNKLOSS
#include "cleave/Dialect/Graph/Transforms/Passes.h.inc"
} // namespace cleave::graph

using namespace mlir;
using namespace cleave::graph;

namespace {

/// A projection of rows to classes, `[..., h]` by `[v, h]` to `[..., v]`.
struct Projection {
  Operation *op = nullptr;
  Value input, weight, bias;
};

/// The gradients computed from the gradient of the logits; null if not needed.
struct LogitGradientUses {
  /// The contraction with the weight, with the input, and the sum over rows.
  Operation *input = nullptr, *weight = nullptr, *bias = nullptr;
  /// Whether the weight's gradient has the shape `[h, v]`.
  bool transposed = false;
};

/// Whether `op` only rearranges rows: a reshape that keeps the last dimension.
bool isRowReshape(Operation *op) {
  auto reshape = dyn_cast_or_null<ReshapeOp>(op);
  if (!reshape)
    return false;
  ArrayRef<int64_t> from = reshape.getInput().getType().getShape();
  ArrayRef<int64_t> to = reshape.getType().getShape();
  return !from.empty() && !to.empty() && from.back() == to.back();
}

Value skipRowReshapes(Value value) {
  while (isRowReshape(value.getDefiningOp()))
    value = value.getDefiningOp()->getOperand(0);
  return value;
}

std::optional<Projection> matchProjection(Operation *op) {
  if (auto linear = dyn_cast_or_null<LinearOp>(op))
    return Projection{op, linear.getInput(), linear.getWeight(),
                      linear.getBias()};
  auto contract = dyn_cast_or_null<ContractOp>(op);
  if (!contract)
    return std::nullopt;
  std::string error;
  std::optional<Einsum> einsum = Einsum::parse(contract.getEquation(), error);
  if (!einsum)
    return std::nullopt;
  Projection projection{op, contract.getLhs(), contract.getRhs(), Value()};
  // "Rh,vh->Rv", in either order of operands.
  auto matches = [](StringRef rows, StringRef weight, StringRef output) {
    return weight.size() == 2 && !rows.empty() && rows.back() == weight[1] &&
           !output.empty() && output.back() == weight[0] &&
           rows.drop_back() == output.drop_back() && !rows.contains(weight[0]);
  };
  if (matches(einsum->lhs, einsum->rhs, einsum->output))
    return projection;
  std::swap(projection.input, projection.weight);
  if (matches(einsum->rhs, einsum->lhs, einsum->output))
    return projection;
  return std::nullopt;
}

/// Whether the value of `value` depends on `source`: a seed reads only the type
/// of its loss.
bool dependsOn(Value value, Operation *source) {
  Operation *op = value.getDefiningOp();
  return op && cleave::graph::dependsOn(op, source, [](OpOperand &use) {
           auto seed = dyn_cast<SeedOp>(use.getOwner());
           return !seed || use != seed.getLossMutable();
         });
}

/// One head and its loss.
class Head {
public:
  Head(CrossEntropyOp loss, int64_t maxChunkBytes, int64_t maxChunkRows)
      : loss(loss), maxChunkBytes(maxChunkBytes), maxChunkRows(maxChunkRows) {}

  bool match();
  void rewrite(OpBuilder &builder);

private:
  bool matchLogits();
  bool matchGradient();
  bool matchGradientUse(OpOperand &use);
  bool matchContraction(ContractOp contract, Value gradient);
  int64_t chunkRows();
  void freeSeeds(OpBuilder &builder);
  void moveLossBehind(Operation *head);

  CrossEntropyOp loss;
  int64_t maxChunkBytes, maxChunkRows;
  Projection projection;
  CrossEntropyGradOp gradient; ///< null in an entry without backward
  LogitGradientUses uses;
};

/// Finds the projection, and checks that only the loss reads its result.
bool Head::matchLogits() {
  Value logits = loss.getLogits();
  for (Operation *user : logits.getUsers()) {
    if (user == loss)
      continue;
    auto grad = dyn_cast<CrossEntropyGradOp>(user);
    if (!grad || gradient || grad.getLogits() != logits ||
        grad.getLse() != loss.getLse() ||
        grad.getTargets() != loss.getTargets() ||
        grad.getIgnoreIndex() != loss.getIgnoreIndex() ||
        grad.getLabelSmoothing() != loss.getLabelSmoothing())
      return false;
    gradient = grad;
  }
  for (Operation *user : loss.getLse().getUsers())
    if (user != gradient)
      return false;
  Operation *op = logits.getDefiningOp();
  for (; isRowReshape(op); op = op->getOperand(0).getDefiningOp())
    if (!op->getOperand(0).hasOneUse())
      return false;
  std::optional<Projection> found = matchProjection(op);
  if (found)
    projection = *found;
  return found.has_value();
}

/// Classifies a contraction of the logits' gradient: with the weight,
/// "Rv,vh->Rh", or with the input, "Rv,Rh->vh".
bool Head::matchContraction(ContractOp contract, Value ofLogits) {
  std::string error;
  std::optional<Einsum> einsum = Einsum::parse(contract.getEquation(), error);
  if (!einsum)
    return false;
  StringRef mine = einsum->lhs, others = einsum->rhs, output = einsum->output;
  Value other = contract.getRhs();
  if (contract.getLhs() != ofLogits) {
    std::swap(mine, others);
    other = contract.getLhs();
  }
  if (other == ofLogits || mine.empty())
    return false;
  char v = mine.back();
  StringRef rows = mine.drop_back();
  if (!uses.input && other == projection.weight && others.size() == 2 &&
      others[0] == v && output == (rows + others.drop_front()).str()) {
    uses.input = contract;
    return true;
  }
  if (!uses.weight &&
      skipRowReshapes(other) == skipRowReshapes(projection.input) &&
      others.drop_back() == rows && output.size() == 2) {
    char h = others.back();
    uses.transposed = output[0] == h && output[1] == v;
    if (!uses.transposed && !(output[0] == v && output[1] == h))
      return false;
    uses.weight = contract;
    return true;
  }
  return false;
}

bool Head::matchGradientUse(OpOperand &use) {
  Operation *user = use.getOwner();
  if (isRowReshape(user))
    return llvm::all_of(user->getResult(0).getUses(), [&](OpOperand &next) {
      return matchGradientUse(next);
    });
  if (auto contract = dyn_cast<ContractOp>(user))
    return matchContraction(contract, use.get());
  auto reduce = dyn_cast<ReduceOp>(user);
  if (!reduce || uses.bias || !projection.bias ||
      reduce.getKind() != ReductionKind::Sum)
    return false;
  // All dimensions but the last.
  int64_t last = reduce.getInput().getType().getRank() - 1;
  uses.bias = reduce;
  return static_cast<int64_t>(reduce.getDims().size()) == last &&
         !llvm::is_contained(reduce.getDims(), last);
}

bool Head::matchGradient() {
  return !dependsOn(gradient.getGradient(), projection.op) &&
         llvm::all_of(gradient.getOutput().getUses(),
                      [&](OpOperand &use) { return matchGradientUse(use); });
}

bool Head::match() { return matchLogits() && (!gradient || matchGradient()); }

/// Chunks are multiples of 64 rows and as equal as possible.
int64_t Head::chunkRows() {
  RankedTensorType logits = loss.getLogits().getType();
  int64_t classes = logits.getShape().back();
  int64_t rows = logits.getNumElements() / classes;
  int64_t rowBytes = classes * logits.getElementTypeBitWidth() / 8;
  int64_t most = std::max<int64_t>(maxChunkBytes / rowBytes, 1);
  if (rows <= most)
    return rows;
  most = std::max<int64_t>(std::min(most, maxChunkRows) / 64 * 64, 64);
  int64_t chunks = llvm::divideCeil(rows, most);
  return llvm::alignTo(llvm::divideCeil(rows, chunks), 64);
}

/// Replaces the operands of the seeds of backward: the loss is computed after
/// them.
void Head::freeSeeds(OpBuilder &builder) {
  for (SeedOp seed : loss->getBlock()->getOps<SeedOp>()) {
    if (!dependsOn(seed.getLoss(), loss))
      continue;
    builder.setInsertionPoint(seed);
    Value zero = Formula{builder, seed.getLoc()}.scalar(seed.getLoss(), 0.0);
    seed.getLossMutable().assign(zero);
  }
}

/// Moves the readers of `head` after it, in order.
void Head::moveLossBehind(Operation *head) {
  llvm::SmallPtrSet<Operation *, 16> moved{head};
  Operation *last = head;
  for (Operation *op = &head->getBlock()->front(), *next; op != head;
       op = next) {
    next = op->getNextNode();
    if (!llvm::any_of(op->getOperands(), [&](Value operand) {
          return moved.contains(operand.getDefiningOp());
        }))
      continue;
    op->moveAfter(last);
    moved.insert(op);
    last = op;
  }
}

void Head::rewrite(OpBuilder &builder) {
  if (gradient)
    freeSeeds(builder);
  Operation *place = gradient ? gradient.getOperation() : loss.getOperation();
  builder.setInsertionPoint(place);
  Formula f{builder, loss.getLoc()};
  SmallVector<int64_t> inputShape(loss.getTargets().getType().getShape());
  inputShape.push_back(tensorTypeOf(projection.input).getShape().back());
  Value bias = projection.bias;
  if (bias)
    bias = f.cast(bias, tensorTypeOf(loss.getLoss()).getElementType());
  auto head = HeadLossOp::create(
      builder, loss.getLoc(), f.reshape(projection.input, inputShape),
      projection.weight, bias, loss.getTargets(),
      gradient ? gradient.getGradient() : Value(), loss.getIgnoreIndexAttr(),
      loss.getLabelSmoothingAttr(), builder.getI64IntegerAttr(chunkRows()),
      /*narrow_logits=*/UnitAttr());
  // Losses are f32 in any case.
  if (Attribute precision = projection.op->getAttr(kPrecisionAttr))
    head->setAttr(kPrecisionAttr, precision);
  loss.getLoss().replaceAllUsesWith(head.getLoss());
  SmallVector<Operation *> dead;
  auto replace = [&](Operation *op, unsigned result, bool transposed) {
    if (!op)
      return;
    builder.setInsertionPointAfter(head);
    Formula f{builder, op->getLoc()};
    Value value = head->getResult(result);
    if (transposed)
      value = TransposeOp::create(builder, op->getLoc(), value,
                                  ArrayRef<int64_t>{1, 0});
    RankedTensorType type = tensorTypeOf(op->getResult(0));
    op->getResult(0).replaceAllUsesWith(
        f.cast(f.reshape(value, type.getShape()), type.getElementType()));
    op->erase();
  };
  replace(uses.input, 1, false);
  replace(uses.weight, 2, uses.transposed);
  replace(uses.bias, 3, false);
  if (gradient) {
    moveLossBehind(head);
    SmallVector<Operation *> reshapes{gradient};
    for (size_t i = 0; i < reshapes.size(); ++i)
      llvm::append_range(reshapes, reshapes[i]->getUsers());
    for (Operation *op : llvm::reverse(reshapes))
      op->erase();
  }
  // The projection and the reshapes after it have no readers left.
  Operation *op = loss.getLogits().getDefiningOp();
  loss->erase();
  while (op != projection.op) {
    Operation *producer = op->getOperand(0).getDefiningOp();
    op->erase();
    op = producer;
  }
  op->erase();
}

struct ChunkLoss final : cleave::graph::impl::ChunkLossBase<ChunkLoss> {
  using ChunkLossBase::ChunkLossBase;

  void runOnOperation() override {
    if (maxChunkBytes <= 0) {
      getOperation().emitError("max-chunk-bytes must be positive");
      return signalPassFailure();
    }
    if (maxChunkRows <= 0) {
      getOperation().emitError("max-chunk-rows must be positive");
      return signalPassFailure();
    }
    OpBuilder builder(&getContext());
    SmallVector<CrossEntropyOp> losses;
    getOperation().walk([&](CrossEntropyOp op) { losses.push_back(op); });
    for (CrossEntropyOp op : losses) {
      Head head(op, maxChunkBytes, maxChunkRows);
      if (head.match())
        head.rewrite(builder);
    }
  }
};

} // namespace
