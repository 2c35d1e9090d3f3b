//===- JoinBlocks.cpp - Blocks of several parts computed as a whole -------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Conversion/Passes.h"
#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace cleave::exec {
#define GEN_PASS_DEF_JOINBLOCKS
#include "cleave/Conversion/Passes.h.inc"
} // namespace cleave::exec

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

namespace {

/// Whether several dimensions of a tensor may be reduced at once, in any order,
/// with the same result.
bool isExact(ReductionKind kind) { return kind != ReductionKind::Sum; }

/// For each dimension of `to`, the dimensions of `from` whose product it is;
/// none for a size of 1. Nothing if a dimension of `from` is in several of
/// `to`.
std::optional<SmallVector<SmallVector<int64_t>>> partsOf(ArrayRef<int64_t> from,
                                                         ArrayRef<int64_t> to) {
  SmallVector<SmallVector<int64_t>> parts(to.size());
  size_t next = 0;
  for (auto [dim, size] : llvm::enumerate(to)) {
    int64_t product = 1;
    while (product < size && next < from.size()) {
      parts[dim].push_back(next);
      product *= from[next++];
    }
    if (product != size)
      return std::nullopt;
  }
  return parts;
}

/// The largest (or least) of the largest of parts is that of the whole:
/// reduce(reshape(reduce(x))) becomes reduce(reshape(x)).
struct JoinReductions : OpRewritePattern<ReduceOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(ReduceOp op,
                                PatternRewriter &rewriter) const override {
    auto reshape = op.getInput().getDefiningOp<ReshapeOp>();
    auto inner =
        reshape ? reshape.getInput().getDefiningOp<ReduceOp>() : ReduceOp();
    if (!inner || inner.getKind() != op.getKind() || !isExact(op.getKind()) ||
        !inner->hasOneUse() || !reshape->hasOneUse())
      return failure();
    // The last dimensions are reduced first.
    RankedTensorType from = inner.getInput().getType();
    int64_t kept = inner.getType().getRank();
    for (int64_t dim : inner.getDims())
      if (dim < kept)
        return failure();
    SmallVector<int64_t> shape(reshape.getType().getShape());
    SmallVector<int64_t> dims(op.getDims());
    for (int64_t dim = kept; dim < from.getRank(); ++dim) {
      dims.push_back(shape.size());
      shape.push_back(from.getDimSize(dim));
    }
    Formula f{rewriter, op.getLoc()};
    rewriter.replaceOpWithNewOp<ReduceOp>(
        op, op.getKind(), f.reshape(inner.getInput(), shape), dims);
    return success();
  }
};

/// Elements of the parts of a block have a value of the block: an element-wise
/// op of such values computes with the block's own dimensions, in which they
/// are read where they are.
///
///     %r = broadcast %s : 4x1 -> 4x8        %y = reshape %x : 32x64 -> 4x8x64
///     %p = reshape %r : 4x8 -> 32x1    =>   %t = reshape %s : 4x1 -> 4x1x1
///     %z = mul %x, %p : 32x64, 32x1         %z = mul %y, %t, and a reshape
struct SplitIntoParts : RewritePattern {
  SplitIntoParts(MLIRContext *context)
      : RewritePattern(MatchAnyOpTypeTag(), /*benefit=*/1, context) {}

  LogicalResult matchAndRewrite(Operation *op,
                                PatternRewriter &rewriter) const override {
    if (!op->hasTrait<mlir::OpTrait::PointwiseOp>() ||
        op->getNumOperands() != 2 || op->getNumResults() != 1 ||
        op->hasTrait<OpTrait::AttrSizedOperandSegments>())
      return failure();
    ArrayRef<int64_t> whole = tensorTypeOf(op->getResult(0)).getShape();
    for (Value operand : op->getOperands()) {
      auto reshape = operand.getDefiningOp<ReshapeOp>();
      auto repeat =
          reshape ? reshape.getInput().getDefiningOp<BroadcastOp>() : nullptr;
      if (!repeat || reshape.getType().getRank() != (int64_t)whole.size())
        continue;
      ArrayRef<int64_t> split = repeat.getType().getShape();
      auto parts = partsOf(split, reshape.getType().getShape());
      if (!parts || !joinsRepeated(repeat, *parts))
        continue;
      // The dimensions of the result, with parts apart.
      SmallVector<SmallVector<int64_t>> sizes;
      for (auto [dim, size] : llvm::enumerate(whole)) {
        sizes.emplace_back();
        for (int64_t part : (*parts)[dim])
          sizes.back().push_back(split[part]);
        if (reshape.getType().getDimSize(dim) != size)
          sizes.back() = {size};
      }
      if (succeeded(rewrite(op, sizes, rewriter)))
        return success();
    }
    return failure();
  }

private:
  /// Whether a dimension of several parts repeats the values of some of them
  /// only, which no strides describe.
  static bool joinsRepeated(BroadcastOp repeat,
                            ArrayRef<SmallVector<int64_t>> parts) {
    ArrayRef<int64_t> from = repeat.getInput().getType().getShape(),
                      to = repeat.getType().getShape();
    auto repeats = [&](int64_t dim) {
      int64_t own = dim - (int64_t)(to.size() - from.size());
      return to[dim] != 1 && (own < 0 || from[own] == 1);
    };
    return llvm::any_of(parts, [&](ArrayRef<int64_t> dims) {
      return llvm::any_of(dims, repeats) && !llvm::all_of(dims, [&](int64_t d) {
               return to[d] == 1 || repeats(d);
             });
    });
  }

  /// An operand of the op with parts apart: a reshape of `source`.
  struct InParts {
    Value source;
    SmallVector<int64_t> shape;
  };

  /// Fails, and changes nothing, if a dimension of the result is one that only
  /// repeated values have.
  static LogicalResult rewrite(Operation *op,
                               ArrayRef<SmallVector<int64_t>> sizes,
                               PatternRewriter &rewriter) {
    SmallVector<int64_t> shape;
    for (ArrayRef<int64_t> dims : sizes)
      llvm::append_range(shape, dims);
    SmallVector<int64_t> computed(shape.size(), 1);
    SmallVector<InParts> parts;
    for (Value operand : op->getOperands()) {
      ArrayRef<int64_t> own = tensorTypeOf(operand).getShape();
      size_t lead = sizes.size() - own.size();
      SmallVector<int64_t> apart;
      for (auto [dim, size] : llvm::enumerate(own))
        for (int64_t part : sizes[lead + dim])
          apart.push_back(size == 1 ? 1 : part);
      parts.push_back(inParts(operand, apart));
      size_t before = shape.size() - parts.back().shape.size();
      for (auto [dim, size] : llvm::enumerate(parts.back().shape))
        computed[before + dim] = std::max(computed[before + dim], size);
    }
    if (computed != shape)
      return failure();
    Formula f{rewriter, op->getLoc()};
    SmallVector<Value> operands;
    for (const InParts &part : parts)
      operands.push_back(f.reshape(part.source, part.shape));
    RankedTensorType type = tensorTypeOf(op->getResult(0));
    Operation *apart = rewriter.clone(*op);
    apart->setOperands(operands);
    apart->getResult(0).setType(type.clone(shape));
    rewriter.replaceOp(op, f.reshape(apart->getResult(0), type.getShape()));
    return success();
  }

  /// `value` in `shape`; of values that are repeated, those that are.
  static InParts inParts(Value value, ArrayRef<int64_t> shape) {
    InParts whole{value, SmallVector<int64_t>(shape)};
    auto reshape = value.getDefiningOp<ReshapeOp>();
    auto repeat =
        reshape ? reshape.getInput().getDefiningOp<BroadcastOp>() : nullptr;
    if (!repeat)
      return whole;
    ArrayRef<int64_t> from = repeat.getInput().getType().getShape(),
                      to = repeat.getType().getShape();
    // Where the dimensions of the broadcast are those of `shape`, sizes of 1
    // aside.
    SmallVector<int64_t> given;
    size_t next = 0;
    for (int64_t size : shape) {
      while (next < to.size() && to[next] == 1)
        ++next;
      if (size == 1) {
        given.push_back(1);
        continue;
      }
      if (next == to.size() || to[next] != size)
        return whole;
      size_t lead = to.size() - from.size();
      given.push_back(next < lead ? 1 : from[next - lead]);
      ++next;
    }
    return {repeat.getInput(), given};
  }
};

struct JoinBlocks : exec::impl::JoinBlocksBase<JoinBlocks> {
  using JoinBlocksBase::JoinBlocksBase;

  /// Both patterns begin at a reshape of repeated or reduced values.
  static bool hasBlocks(func::FuncOp function) {
    return function
        .walk([](ReshapeOp reshape) {
          return isa_and_nonnull<BroadcastOp, ReduceOp>(
                     reshape.getInput().getDefiningOp())
                     ? WalkResult::interrupt()
                     : WalkResult::advance();
        })
        .wasInterrupted();
  }

  void runOnOperation() override {
    // Most parts have none.
    if (!hasBlocks(getOperation()))
      return;
    RewritePatternSet patterns(&getContext());
    patterns.add<JoinReductions, SplitIntoParts>(&getContext());
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns))))
      signalPassFailure();
  }
};

} // namespace
