//===- Decompose.cpp - Decomposition of rare graph ops --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Conversion/Passes.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace cleave::exec {
#define GEN_PASS_DEF_DECOMPOSE
#include "cleave/Conversion/Passes.h.inc"
} // namespace cleave::exec

using namespace mlir;
using namespace cleave;
using graph::tensorTypeOf;

static SmallVector<int64_t> constants(int64_t rank, int64_t value) {
  return SmallVector<int64_t>(rank, value);
}

namespace {

//===----------------------------------------------------------------------===//
// Sums of pads
//===----------------------------------------------------------------------===//

/// add(pad(a), add(pad(b), ...)) -> concat(a, b, ...), where the operands tile
/// the result along one dimension.
struct PadsToConcat : OpRewritePattern<graph::AddOp> {
  using OpRewritePattern::OpRewritePattern;

  /// The zero pads that `top` is a sum of; empty if it is not such a sum. The
  /// nearest terms come first: a long sum of other terms is left at once.
  static SmallVector<graph::PadOp> collect(graph::AddOp top) {
    SmallVector<graph::PadOp> pads;
    SmallVector<Value> terms{top.getOutput()};
    for (size_t i = 0; i < terms.size(); ++i) {
      if (auto pad = terms[i].getDefiningOp<graph::PadOp>()) {
        if (!pad.getValue().isZero() || pad.getValue().isNegative() ||
            llvm::any_of(pad.getInterior(), [](int64_t i) { return i != 0; }))
          return {};
        pads.push_back(pad);
        continue;
      }
      auto add = terms[i].getDefiningOp<graph::AddOp>();
      if (!add || (add != top && !terms[i].hasOneUse()) ||
          add.getLhs().getType() != add.getRhs().getType())
        return {};
      terms.append({add.getLhs(), add.getRhs()});
    }
    return pads;
  }

  LogicalResult matchAndRewrite(graph::AddOp op,
                                PatternRewriter &rewriter) const override {
    SmallVector<graph::PadOp> pads = collect(op);
    if (pads.empty())
      return failure();
    RankedTensorType type = tensorTypeOf(op.getOutput());
    int64_t dim = -1;
    for (graph::PadOp pad : pads)
      for (int64_t i = 0; i < type.getRank(); ++i)
        if (pad.getLow()[i] != 0 || pad.getHigh()[i] != 0) {
          if (dim >= 0 && dim != i)
            return failure();
          dim = i;
        }
    if (dim < 0)
      return failure();
    llvm::sort(pads, [&](graph::PadOp a, graph::PadOp b) {
      return a.getLow()[dim] < b.getLow()[dim];
    });
    int64_t end = 0;
    SmallVector<Value> inputs;
    for (graph::PadOp pad : pads) {
      if (pad.getLow()[dim] != end)
        return failure();
      inputs.push_back(pad.getInput());
      end += tensorTypeOf(pad.getInput()).getDimSize(dim);
    }
    if (end != type.getDimSize(dim))
      return failure();
    rewriter.replaceOpWithNewOp<graph::ConcatOp>(op, inputs, dim);
    return success();
  }
};

//===----------------------------------------------------------------------===//
// Windows
//===----------------------------------------------------------------------===//

struct PadPatches : OpRewritePattern<graph::PatchesOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(graph::PatchesOp op,
                                PatternRewriter &rewriter) const override {
    int64_t h = op.getPadding()[0], w = op.getPadding()[1];
    if (h == 0 && w == 0)
      return failure();
    SmallVector<int64_t> border{0, 0, h, w};
    Value padded = graph::PadOp::create(rewriter, op.getLoc(), op.getInput(),
                                        llvm::APFloat(0.0), border, border,
                                        constants(4, 0));
    rewriter.replaceOpWithNewOp<graph::PatchesOp>(
        op, padded, op.getKernel(), op.getStride(), ArrayRef<int64_t>{0, 0},
        op.getDilation());
    return success();
  }
};

/// The sum, over positions in the window, of that position's gradients, each
/// expanded to the padded image.
struct PatchesGrad : OpRewritePattern<graph::PatchesGradOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(graph::PatchesGradOp op,
                                PatternRewriter &rewriter) const override {
    Location loc = op.getLoc();
    RankedTensorType type = tensorTypeOf(op.getGradient());
    ArrayRef<int64_t> shape = type.getShape(); // n, oh, ow, c, kh, kw
    int64_t ph = op.getPadding()[0], pw = op.getPadding()[1];
    int64_t h = op.getImage()[0] + 2 * ph, w = op.getImage()[1] + 2 * pw;
    Value moved = graph::TransposeOp::create(
        rewriter, loc, op.getGradient(), ArrayRef<int64_t>{0, 3, 4, 5, 1, 2});
    Value sum;
    for (int64_t i = 0; i < shape[4]; ++i)
      for (int64_t j = 0; j < shape[5]; ++j) {
        Value one = graph::SliceOp::create(
            rewriter, loc, moved, ArrayRef<int64_t>{0, 0, i, j, 0, 0},
            ArrayRef<int64_t>{shape[0], shape[3], 1, 1, shape[1], shape[2]},
            constants(6, 1));
        one = graph::ReshapeOp::create(
            rewriter, loc,
            RankedTensorType::get({shape[0], shape[3], shape[1], shape[2]},
                                  type.getElementType()),
            one);
        int64_t top = i * op.getDilation()[0], left = j * op.getDilation()[1];
        int64_t spanH = (shape[1] - 1) * op.getStride()[0] + 1,
                spanW = (shape[2] - 1) * op.getStride()[1] + 1;
        one = graph::PadOp::create(
            rewriter, loc, one, llvm::APFloat(0.0),
            ArrayRef<int64_t>{0, 0, top, left},
            ArrayRef<int64_t>{0, 0, h - top - spanH, w - left - spanW},
            ArrayRef<int64_t>{0, 0, op.getStride()[0] - 1,
                              op.getStride()[1] - 1});
        sum = sum ? graph::AddOp::create(rewriter, loc, sum, one).getOutput()
                  : one;
      }
    if (ph != 0 || pw != 0)
      sum = graph::SliceOp::create(
          rewriter, loc, sum, ArrayRef<int64_t>{0, 0, ph, pw},
          tensorTypeOf(op.getOutput()).getShape(), constants(4, 1));
    rewriter.replaceOp(op, sum);
    return success();
  }
};

//===----------------------------------------------------------------------===//
// Dropout of elements in another order
//===----------------------------------------------------------------------===//

/// Each piece draws from its own origin.
struct DropoutOfPieces : OpRewritePattern<graph::DropoutOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(graph::DropoutOp op,
                                PatternRewriter &rewriter) const override {
    if (!op.getStarts())
      return failure();
    Location loc = op.getLoc();
    RankedTensorType type = tensorTypeOf(op.getInput());
    int64_t rank = type.getRank(), dim = *op.getStartsDim();
    int64_t pieces = tensorTypeOf(op.getStarts()).getDimSize(0);
    auto part = [&](Value value, int64_t begin, int64_t size) -> Value {
      return graph::SliceOp::create(rewriter, loc, value,
                                    ArrayRef<int64_t>{begin},
                                    ArrayRef<int64_t>{size}, constants(1, 1));
    };
    Value origin = op.getOrigin();
    if (!origin)
      origin = graph::ConstantOp::create(
          rewriter, loc,
          DenseElementsAttr::get(
              RankedTensorType::get(rank, rewriter.getI64Type()), int64_t(0)));
    SmallVector<int64_t> sizes(type.getShape()), offsets = constants(rank, 0);
    sizes[dim] /= pieces;
    SmallVector<Value> results;
    for (int64_t i = 0; i < pieces; ++i) {
      SmallVector<Value> place;
      if (dim > 0)
        place.push_back(part(origin, 0, dim));
      Value start = part(op.getStarts(), i, 1);
      if (op.getOrigin())
        start =
            graph::AddOp::create(rewriter, loc, start, part(origin, dim, 1));
      place.push_back(start);
      if (dim + 1 < rank)
        place.push_back(part(origin, dim + 1, rank - dim - 1));
      offsets[dim] = i * sizes[dim];
      Value piece = graph::SliceOp::create(rewriter, loc, op.getInput(),
                                           offsets, sizes, constants(rank, 1));
      results.push_back(graph::DropoutOp::create(
          rewriter, loc, piece, op.getRng(),
          graph::ConcatOp::create(rewriter, loc, place, 0), Value(),
          op.getProbabilityAttr(), op.getIdAttr(),
          rewriter.getDenseI64ArrayAttr(
              op.getGlobalShape().value_or(type.getShape())),
          IntegerAttr()));
    }
    rewriter.replaceOpWithNewOp<graph::ConcatOp>(op, results, dim);
    return success();
  }
};

//===----------------------------------------------------------------------===//
// Sums along a dimension
//===----------------------------------------------------------------------===//

/// Each round adds the sums of twice as many neighbours.
struct CumulativeSum : OpRewritePattern<graph::CumulativeSumOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(graph::CumulativeSumOp op,
                                PatternRewriter &rewriter) const override {
    Value sum = op.getInput();
    RankedTensorType type = tensorTypeOf(sum);
    int64_t rank = type.getRank(), dim = op.getDim(),
            size = type.getDimSize(dim);
    for (int64_t shift = 1; shift < size; shift *= 2) {
      SmallVector<int64_t> offsets = constants(rank, 0),
                           low = constants(rank, 0), high = constants(rank, 0),
                           sizes(type.getShape());
      sizes[dim] -= shift;
      (op.getReverse() ? offsets : low)[dim] = shift;
      if (op.getReverse())
        high[dim] = shift;
      Value moved = graph::SliceOp::create(rewriter, op.getLoc(), sum, offsets,
                                           sizes, constants(rank, 1));
      moved =
          graph::PadOp::create(rewriter, op.getLoc(), moved, llvm::APFloat(0.0),
                               low, high, constants(rank, 0));
      sum = graph::AddOp::create(rewriter, op.getLoc(), sum, moved);
    }
    rewriter.replaceOp(op, sum);
    return success();
  }
};

/// Attention of 16-bit heads: the command computes in f32 throughout, on copies
/// that live as long as it runs. If `always` is off, one that the command takes
/// in 16 bits stays.
template <typename OpTy> struct WidenAttention : OpRewritePattern<OpTy> {
  WidenAttention(MLIRContext *context, bool always)
      : OpRewritePattern<OpTy>(context), always(always) {}

  /// Whether the command computes the op as it is: all factors are of one type,
  /// and what is added is f32.
  static bool isCommand(OpTy op) {
    Type element = tensorTypeOf(op.getQuery()).getElementType();
    auto is = [](Value value, Type type) {
      return !value || tensorTypeOf(value).getElementType() == type;
    };
    Type f32 = Float32Type::get(op.getContext());
    if (!element.isBF16() && !element.isF16())
      return false;
    if constexpr (!std::is_same_v<OpTy, graph::AttentionOp>)
      if (!is(op.getGradient(), element) || !is(op.getOutput(), element))
        return false;
    return is(op.getBias(), f32) && is(op.getLse(), f32);
  }

  LogicalResult matchAndRewrite(OpTy op,
                                PatternRewriter &rewriter) const override {
    if (tensorTypeOf(op.getQuery()).getElementType().getIntOrFloatBitWidth() >=
            32 ||
        (!always && isCommand(op)))
      return failure();
    graph::Formula f{rewriter, op.getLoc()};
    IRMapping widened;
    for (Value operand : op->getOperands())
      if (isa<FloatType>(tensorTypeOf(operand).getElementType()))
        widened.map(operand, f.cast(operand, rewriter.getF32Type()));
    Operation *wide = rewriter.clone(*op, widened);
    SmallVector<Value> results;
    for (OpResult result : wide->getResults()) {
      RankedTensorType type = tensorTypeOf(result);
      result.setType(type.clone(rewriter.getF32Type()));
      results.push_back(f.cast(result, type.getElementType()));
    }
    rewriter.replaceOp(op, results);
    return success();
  }

  bool always;
};

/// cast(rope(cast(x))) -> rope(x): of 16 bits its kernel computes in f32, and
/// rounds once, as these do.
struct RopeOfNarrow : OpRewritePattern<graph::CastOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(graph::CastOp op,
                                PatternRewriter &rewriter) const override {
    auto rope = op.getInput().getDefiningOp<graph::RopeOp>();
    auto wide =
        rope ? rope.getInput().getDefiningOp<graph::CastOp>() : graph::CastOp();
    if (!wide || !rope.getOutput().hasOneUse() ||
        wide.getInput().getType() != op.getType() ||
        !tensorTypeOf(rope.getOutput()).getElementType().isF32())
      return failure();
    Type element = tensorTypeOf(op.getOutput()).getElementType();
    if (!element.isBF16() && !element.isF16())
      return failure();
    rewriter.replaceOpWithNewOp<graph::RopeOp>(
        op, op.getType(), wide.getInput(), rope.getCos(), rope.getSin(),
        rope.getInterleaved(), rope.getAdjoint());
    return success();
  }
};

/// The largest or least numbers of 16 bits, as those of the same numbers in
/// f32: kernels combine numbers of 32 bits at least.
struct ExtremesOfNarrow : OpRewritePattern<graph::ReduceOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(graph::ReduceOp op,
                                PatternRewriter &rewriter) const override {
    RankedTensorType type = tensorTypeOf(op.getOutput());
    Type element = type.getElementType(), f32 = rewriter.getF32Type();
    if ((!element.isBF16() && !element.isF16()) ||
        op.getKind() == graph::ReductionKind::Sum)
      return failure();
    Value wide = graph::CastOp::create(rewriter, op.getLoc(),
                                       tensorTypeOf(op.getInput()).clone(f32),
                                       op.getInput());
    Operation *reduce = rewriter.clone(*op);
    reduce->setOperand(0, wide);
    reduce->getResult(0).setType(type.clone(f32));
    rewriter.replaceOpWithNewOp<graph::CastOp>(op, type, reduce->getResult(0));
    return success();
  }
};

/// Along another dimension than the first, with the dimension moved there.
struct ScatterAlongFirst : OpRewritePattern<graph::ScatterAddOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(graph::ScatterAddOp op,
                                PatternRewriter &rewriter) const override {
    int64_t dim = op.getDim();
    if (dim == 0 || op.getBatch() != 0)
      return failure();
    int64_t rank = tensorTypeOf(op.getUpdates()).getRank();
    int64_t indices = tensorTypeOf(op.getIndices()).getRank();
    SmallVector<int64_t> there, back;
    llvm::append_range(there, llvm::seq<int64_t>(dim, dim + indices));
    llvm::append_range(there, llvm::seq<int64_t>(0, dim));
    llvm::append_range(there, llvm::seq<int64_t>(dim + indices, rank));
    int64_t outRank = tensorTypeOf(op.getOutput()).getRank();
    llvm::append_range(back, llvm::seq<int64_t>(1, dim + 1));
    back.push_back(0);
    llvm::append_range(back, llvm::seq<int64_t>(dim + 1, outRank));
    Value moved = graph::TransposeOp::create(rewriter, op.getLoc(),
                                             op.getUpdates(), there);
    Value sums = graph::ScatterAddOp::create(
        rewriter, op.getLoc(), moved, op.getIndices(), op.getOrigin(),
        rewriter.getI64IntegerAttr(0), op.getSizeAttr(),
        op.getPaddingIndexAttr(), op.getGlobalSizeAttr(),
        rewriter.getI64IntegerAttr(0), op.getResultElementAttr());
    rewriter.replaceOpWithNewOp<graph::TransposeOp>(op, sums, back);
    return success();
  }
};

/// For batches: adds to each index the offset of its batch, in one dimension
/// that covers all batches.
struct ScatterInBatches : OpRewritePattern<graph::ScatterAddOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(graph::ScatterAddOp op,
                                PatternRewriter &rewriter) const override {
    int64_t batch = op.getBatch(), dim = op.getDim(), size = op.getSize();
    if (batch == 0)
      return failure();
    graph::Formula f{rewriter, op.getLoc()};
    ArrayRef<int64_t> shape = tensorTypeOf(op.getIndices()).getShape();
    int64_t batches = ShapedType::getNumElements(shape.take_front(batch));
    int64_t count = ShapedType::getNumElements(shape.drop_front(batch));
    Value indices = f.reshape(f.cast(op.getIndices(), rewriter.getI64Type()),
                              {batches, count});
    Value local = indices;
    if (op.getOrigin())
      local = f.sub(local, f.reshape(op.getOrigin(), {}));
    Value first = graph::IotaOp::create(
        rewriter, op.getLoc(),
        RankedTensorType::get({batches, 1}, rewriter.getI64Type()), 0, 0);
    Value places = f.add(local, f.mul(first, f.scalar(local, size)));
    // An index that is out of range in its batch must not reach another batch.
    auto outside = [&](graph::Predicate predicate, Value a, double b) {
      places = f.select(f.compare(predicate, a, f.scalar(a, b)),
                        f.scalar(places, -1), places);
    };
    outside(graph::Predicate::lt, local, 0);
    outside(graph::Predicate::ge, local, size);
    if (std::optional<int64_t> padding = op.getPaddingIndex())
      outside(graph::Predicate::eq, indices, *padding);

    // Dimensions between batches and indices are moved after them.
    int64_t own = shape.size() - batch,
            rank = tensorTypeOf(op.getUpdates()).getRank();
    SmallVector<int64_t> there, back;
    llvm::append_range(there, llvm::seq<int64_t>(0, batch));
    llvm::append_range(there, llvm::seq<int64_t>(dim, dim + own));
    llvm::append_range(there, llvm::seq<int64_t>(batch, dim));
    llvm::append_range(there, llvm::seq<int64_t>(dim + own, rank));
    Value moved = op.getUpdates();
    if (!llvm::is_sorted(there))
      moved = graph::TransposeOp::create(rewriter, op.getLoc(), moved, there);
    ArrayRef<int64_t> slice =
        tensorTypeOf(moved).getShape().drop_front(batch + own);
    SmallVector<int64_t> rows{batches * count}, result(shape.take_front(batch));
    llvm::append_range(rows, slice);
    result.push_back(size);
    llvm::append_range(result, slice);
    Value sums = graph::ScatterAddOp::create(
        rewriter, op.getLoc(), f.reshape(moved, rows),
        f.reshape(places, {batches * count}), /*origin=*/Value(),
        rewriter.getI64IntegerAttr(0),
        rewriter.getI64IntegerAttr(batches * size),
        /*padding_index=*/IntegerAttr(), /*global_size=*/IntegerAttr(),
        rewriter.getI64IntegerAttr(0), op.getResultElementAttr());
    sums = f.reshape(sums, result);
    llvm::append_range(back, llvm::seq<int64_t>(0, batch));
    llvm::append_range(back, llvm::seq<int64_t>(batch + 1, dim + 1));
    back.push_back(batch);
    llvm::append_range(back, llvm::seq<int64_t>(dim + 1, result.size()));
    if (!llvm::is_sorted(back))
      sums = graph::TransposeOp::create(rewriter, op.getLoc(), sums, back);
    rewriter.replaceOp(op, sums);
    return success();
  }
};

struct SeedToValue : OpRewritePattern<graph::SeedOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(graph::SeedOp op,
                                PatternRewriter &rewriter) const override {
    RankedTensorType type = tensorTypeOf(op.getOutput());
    if (op.getScale())
      rewriter.replaceOp(op, op.getScale());
    else
      rewriter.replaceOpWithNewOp<graph::ConstantOp>(
          op, type,
          DenseElementsAttr::get(
              type, rewriter.getFloatAttr(type.getElementType(), 1.0)));
    return success();
  }
};

struct Decompose : exec::impl::DecomposeBase<Decompose> {
  using DecomposeBase::DecomposeBase;

  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    patterns.add<PadsToConcat, PadPatches, PatchesGrad, CumulativeSum,
                 ScatterAlongFirst, ScatterInBatches, SeedToValue,
                 DropoutOfPieces, RopeOfNarrow, ExtremesOfNarrow>(
        &getContext());
    patterns.add<WidenAttention<graph::AttentionOp>,
                 WidenAttention<graph::AttentionGradOp>,
                 WidenAttention<graph::AttentionBiasGradOp>>(&getContext(),
                                                             wideAttention);
    // Each pattern takes an op of its kind away: there is an end.
    GreedyRewriteConfig config;
    config.setMaxIterations(GreedyRewriteConfig::kNoLimit);
    if (failed(
            applyPatternsGreedily(getOperation(), std::move(patterns), config)))
      signalPassFailure();
  }
};

} // namespace
