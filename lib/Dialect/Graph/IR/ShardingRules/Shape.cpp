//===- Shape.cpp - Sharding rules of reductions and layout ops ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "RuleBuilder.h"
#include <numeric>

using namespace mlir;
using namespace cleave::graph;

ShardingRule ReduceOp::getShardingRule() {
  RuleBuilder builder(getOperation());
  ReductionKind kind = getKind();
  SmallVector<DimFactors> kept;
  for (auto [i, size] : llvm::enumerate(shapeOf(getInput()))) {
    bool reduced = llvm::is_contained(getDims(), static_cast<int64_t>(i));
    DimFactors factor =
        reduced
            ? builder.factor(size, FactorKind::Reduction, kind,
                             kind == ReductionKind::Sum ? PaddingNeed::Zero
                                                        : PaddingNeed::Identity)
            : builder.factor(size);
    builder.operand(0)[i] = factor;
    if (!reduced)
      kept.push_back(factor);
  }
  llvm::copy(kept, builder.result(0).begin());
  if (kind == ReductionKind::Sum)
    builder.linear({0});
  return builder.take();
}

/// One operand and one result of equal rank: dimensions where `whole` is true
/// are replicated, the others correspond.
static ShardingRule dimensionwise(Operation *op, bool linear,
                                  function_ref<bool(int64_t)> whole) {
  RuleBuilder builder(op);
  ArrayRef<int64_t> in = shapeOf(op->getOperand(0));
  ArrayRef<int64_t> out = shapeOf(op->getResult(0));
  for (size_t i = 0; i < in.size(); ++i) {
    if (whole(i)) {
      builder.operand(0)[i] = builder.wholeFactor(in[i]);
      builder.result(0)[i] = builder.wholeFactor(out[i]);
    } else {
      builder.operand(0)[i] = builder.result(0)[i] = builder.factor(in[i]);
    }
  }
  if (linear)
    builder.linear({0});
  return builder.take();
}

ShardingRule CumulativeSumOp::getShardingRule() {
  return dimensionwise(getOperation(), /*linear=*/true, [&](int64_t i) {
    return i == static_cast<int64_t>(getDim());
  });
}

ShardingRule LinearScanOp::getShardingRule() {
  RuleBuilder builder(getOperation());
  for (auto [i, size] : llvm::enumerate(shapeOf(getInput()))) {
    DimFactors factor =
        i == getDim() ? builder.wholeFactor(size) : builder.factor(size);
    builder.operand(0)[i] = builder.operand(1)[i] = builder.result(0)[i] =
        factor;
  }
  builder.linear({1});
  return builder.take();
}

ShardingRule TopKOp::getShardingRule() {
  RuleBuilder builder(getOperation());
  ArrayRef<int64_t> in = shapeOf(getInput());
  FactorMapping rows = builder.factors(in.drop_back());
  for (FactorMapping *mapping :
       {&builder.operand(0), &builder.result(0), &builder.result(1)})
    llvm::copy(rows, mapping->begin());
  builder.operand(0).back() = builder.wholeFactor(in.back());
  builder.result(0).back() = builder.result(1).back() =
      builder.wholeFactor(getK());
  return builder.take();
}

ShardingRule SliceOp::getShardingRule() {
  ArrayRef<int64_t> in = shapeOf(getInput());
  return dimensionwise(getOperation(), /*linear=*/true,
                       [&](int64_t i) { return getSizes()[i] != in[i]; });
}

ShardingRule PadOp::getShardingRule() {
  return dimensionwise(getOperation(), getValue().isZero(), [&](int64_t i) {
    return getLow()[i] != 0 || getHigh()[i] != 0 || getInterior()[i] != 0;
  });
}

ShardingRule ReshapeOp::getShardingRule() {
  RuleBuilder builder(getOperation());
  builder.linear({0});
  ArrayRef<int64_t> in = shapeOf(getInput()), out = shapeOf(getOutput());
  if (llvm::is_contained(in, 0))
    return builder.take();
  FactorMapping &from = builder.operand(0), &to = builder.result(0);

  // Walks both shapes from the major end; `a` and `b` are the remaining sizes
  // of the current dimensions. A common divisor of both is a factor of both.
  size_t i = 0, j = 0;
  int64_t a = 1, b = 1;
  while (true) {
    while (a == 1 && i < in.size())
      a = in[i++];
    while (b == 1 && j < out.size())
      b = out[j++];
    if (a == 1 && b == 1)
      return builder.take();
    if (int64_t common = std::gcd(a, b); common > 1) {
      DimFactors factor = builder.factor(common);
      llvm::append_range(from[i - 1], factor);
      llvm::append_range(to[j - 1], factor);
      a /= common;
      b /= common;
      if (a == 1 || b == 1)
        continue;
    }
    // Sizes that do not nest: replicated until both sides end together.
    auto whole = [&](DimFactors &dim, int64_t size) {
      llvm::append_range(dim, builder.wholeFactor(size));
    };
    whole(from[i - 1], a);
    whole(to[j - 1], b);
    while (a != b) {
      if (a < b) {
        whole(from[i], in[i]);
        a *= in[i++];
      } else {
        whole(to[j], out[j]);
        b *= out[j++];
      }
    }
    a = b = 1;
  }
}

ShardingRule TransposeOp::getShardingRule() {
  RuleBuilder builder(getOperation());
  builder.operand(0) = builder.factors(shapeOf(getInput()));
  for (auto [i, dim] : llvm::enumerate(getPermutation()))
    builder.result(0)[i] = builder.operand(0)[dim];
  builder.linear({0});
  return builder.take();
}

ShardingRule BroadcastOp::getShardingRule() {
  RuleBuilder builder(getOperation());
  builder.result(0) = builder.factors(shapeOf(getOutput()));
  builder.broadcastOperand(0, builder.result(0));
  builder.linear({0});
  return builder.take();
}

ShardingRule ConcatOp::getShardingRule() {
  RuleBuilder builder(getOperation());
  int64_t dim = getDim();
  FactorMapping mapping = builder.factors(shapeOf(getOutput()));
  mapping[dim] = builder.wholeFactor(shapeOf(getOutput())[dim]);
  builder.result(0) = mapping;
  SmallVector<unsigned> all;
  for (unsigned i = 0; i < getNumOperands(); ++i) {
    builder.operand(i) = mapping;
    builder.operand(i)[dim] = builder.wholeFactor(shapeOf(getOperand(i))[dim]);
    all.push_back(i);
  }
  builder.linear(all);
  return builder.take();
}

ShardingRule GatherOp::getShardingRule() {
  RuleBuilder builder(getOperation());
  size_t dim = getDim(), batch = getBatch();
  FactorMapping input = builder.factors(shapeOf(getInput()));
  // An index out of range is an error on every shard.
  for (size_t i = 0; i < batch; ++i)
    input[i] = builder.factor(shapeOf(getInput())[i], FactorKind::Parallel,
                              ReductionKind::Sum, PaddingNeed::Zero);
  // Any element of the dimension may be read: a shard gives 0 for elements that
  // it does not hold. Booleans have no sum.
  int64_t size = shapeOf(getInput())[dim];
  input[dim] = getInput().getType().getElementType().isInteger(1)
                   ? builder.wholeFactor(size)
                   : builder.factor(size, FactorKind::Reduction);
  FactorMapping own = builder.factors(shapeOf(getIndices()).drop_front(batch),
                                      FactorKind::Parallel, PaddingNeed::Zero);
  FactorMapping indices(input.begin(), input.begin() + batch);
  llvm::append_range(indices, own);
  builder.operand(0) = input;
  builder.operand(1) = indices;
  FactorMapping &output = builder.result(0);
  llvm::copy(ArrayRef(input).take_front(dim), output.begin());
  llvm::copy(own, output.begin() + dim);
  llvm::copy(ArrayRef(input).drop_front(dim + 1),
             output.begin() + dim + own.size());
  builder.linear({0});
  return builder.take();
}

ShardingRule ScatterAddOp::getShardingRule() {
  RuleBuilder builder(getOperation());
  size_t dim = getDim(), batch = getBatch();
  size_t rank = shapeOf(getIndices()).size() - batch;
  for (auto [i, size] : llvm::enumerate(shapeOf(getUpdates()))) {
    // Each index adds to its slice: shards of indices give partial sums.
    bool index = i >= dim && i < dim + rank;
    // An index out of range is an error, also in the padding of a batch
    // dimension.
    DimFactors factor =
        index
            ? builder.sumFactor(size)
            : builder.factor(size, FactorKind::Parallel, ReductionKind::Sum,
                             i < batch ? PaddingNeed::Zero : PaddingNeed::Any);
    builder.operand(0)[i] = factor;
    if (index)
      builder.operand(1)[batch + i - dim] = factor;
    else
      builder.result(0)[i < dim ? i : i - rank + 1] = factor;
    if (i < batch)
      builder.operand(1)[i] = factor;
  }
  // A shard takes the updates of its own elements; padding receives none.
  builder.result(0)[dim] = builder.factor(shapeOf(getOutput())[dim]);
  builder.linear({0});
  builder.keepsZero();
  return builder.take();
}

ShardingRule OneHotOp::getShardingRule() {
  RuleBuilder builder(getOperation());
  builder.operand(0) = builder.factors(shapeOf(getIndices()),
                                       FactorKind::Parallel, PaddingNeed::Zero);
  builder.result(0) = builder.operand(0);
  builder.result(0).push_back(builder.factor(getSize()));
  return builder.take();
}

/// Bytes can be sharded where flags fill them.
static ShardingRule bitsRule(Operation *op, bool packs) {
  RuleBuilder builder(op);
  FactorMapping &flags = packs ? builder.operand(0) : builder.result(0),
                &bytes = packs ? builder.result(0) : builder.operand(0);
  ArrayRef<int64_t> shape =
      shapeOf(packs ? op->getOperand(0) : op->getResult(0));
  flags = bytes = builder.factors(shape.drop_back());
  int64_t size = shape.back();
  if (size % 8 != 0) {
    flags.push_back(builder.wholeFactor(size));
    bytes.push_back(builder.wholeFactor((size + 7) / 8));
    return builder.take();
  }
  DimFactors both = builder.factor(size / 8);
  bytes.push_back(both);
  llvm::append_range(both, builder.wholeFactor(8));
  flags.push_back(both);
  return builder.take();
}

ShardingRule PackBitsOp::getShardingRule() {
  return bitsRule(getOperation(), /*packs=*/true);
}

ShardingRule UnpackBitsOp::getShardingRule() {
  return bitsRule(getOperation(), /*packs=*/false);
}

ShardingRule PatchesOp::getShardingRule() {
  // [n, c, h, w] to [n, oh, ow, c, kh, kw]: windows overlap, so h and w are
  // replicated.
  RuleBuilder builder(getOperation());
  ArrayRef<int64_t> in = shapeOf(getInput()), out = shapeOf(getOutput());
  DimFactors n = builder.factor(in[0]), c = builder.factor(in[1]);
  builder.operand(0) = {n, c, builder.wholeFactor(in[2]),
                        builder.wholeFactor(in[3])};
  builder.result(0) = {
      n, builder.wholeFactor(out[1]), builder.wholeFactor(out[2]),
      c, builder.wholeFactor(out[4]), builder.wholeFactor(out[5])};
  builder.linear({0});
  return builder.take();
}

ShardingRule PatchesGradOp::getShardingRule() {
  RuleBuilder builder(getOperation());
  ArrayRef<int64_t> in = shapeOf(getGradient()), out = shapeOf(getOutput());
  DimFactors n = builder.factor(out[0]), c = builder.factor(out[1]);
  builder.operand(0) = {
      n, builder.wholeFactor(in[1]), builder.wholeFactor(in[2]),
      c, builder.wholeFactor(in[4]), builder.wholeFactor(in[5])};
  builder.result(0) = {n, c, builder.wholeFactor(out[2]),
                       builder.wholeFactor(out[3])};
  builder.linear({0});
  return builder.take();
}
