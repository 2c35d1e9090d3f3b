//===- AdamW8bit.cpp - AdamW with 8-bit state (arXiv 2110.02861) ----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Dettmers et al., "8-bit Optimizers via Block-wise Quantization", as
/// bitsandbytes' AdamW8bit. Each block of 256 elements in the framework's
/// row-major order has a scale, its largest magnitude, and each element a code:
/// ```
/// m' = beta1 * m + (1 - beta1) * g,  v' = beta2 * v + (1 - beta2) * g * g
/// p' = (p - lr * c2 / c1 * m' / (sqrt(v') + c2 * eps))
///      * (1 - lr * weight_decay)
/// ```
/// with c1 = 1 - beta1^t and c2 = sqrt(1 - beta2^t); m' and v' are encoded
/// afterwards. A parameter of fewer than 4096 elements, or whose dimensions do
/// not end where blocks do, has the state of AdamW.
///
//===----------------------------------------------------------------------===//

#include "Rules.h"
#include "UpdateBuilder.h"
#include <cmath>

using namespace mlir;
using namespace cleave::graph;

namespace {

/// How blocks lie in the stored dimensions of a parameter.
struct Blocks {
  /// Dimension `split` has `count` blocks, each of `parts` parts of `size`
  /// elements along it; dimensions after it lie within a block. Shards may end
  /// between parts: only the maxima of parts then cross them.
  int64_t split, count, parts, size;

  static std::optional<Blocks> of(const TrainedParameter &parameter) {
    constexpr int64_t kBlock = 256, kLeast = 4096, kParts = 8;
    if (parameter.elements() < kLeast)
      return std::nullopt;
    int64_t left = kBlock;
    for (int64_t dim : llvm::reverse(parameter.own())) {
      int64_t size = parameter.type().getDimSize(dim);
      if (size % left == 0) {
        int64_t parts = left % kParts == 0 ? kParts : 1;
        return Blocks{dim, size / left, parts, left / parts};
      }
      if (left % size != 0)
        return std::nullopt;
      left /= size;
    }
    return std::nullopt;
  }

  /// `shape` with the sizes `sizes` for dimension `split`, and, with `inner`,
  /// the dimensions after it.
  SmallVector<int64_t> shape(ArrayRef<int64_t> shape, ArrayRef<int64_t> sizes,
                             bool inner) const {
    SmallVector<int64_t> result(shape.take_front(split));
    llvm::append_range(result, sizes);
    if (inner)
      llvm::append_range(result, shape.drop_front(split + 1));
    return result;
  }
};

/// One moment: its codes, the scales of its blocks, and their new values.
class Moment {
public:
  Moment(UpdateBuilder &b, const Blocks &blocks, bool nonnegative)
      : b(b), blocks(blocks), nonnegative(nonnegative),
        whole(b.parameter.type().getShape()),
        split(blocks.shape(whole, {blocks.count * blocks.parts, blocks.size},
                           /*inner=*/true)) {}

  Value decode(Value codes, Value scales) {
    Value values = DecodeOp::create(b.builder, b.loc, codes, nonnegative);
    return b.reshape(
        b.mul(b.reshape(b.wide(values), split), expand(b.wide(scales))), whole);
  }

  /// The codes and the scales of `value`.
  std::pair<Value, Value> encode(Value value) {
    Value parts = b.reshape(value, split);
    Value size = nonnegative ? parts : abs(parts);
    SmallVector<int64_t> inner = llvm::to_vector(llvm::seq<int64_t>(
        blocks.split + 1, static_cast<int64_t>(split.size())));
    Value largest = largestOf(size, inner);
    if (blocks.parts > 1)
      largest = largestOf(
          b.reshape(largest, blocks.shape(whole, {blocks.count, blocks.parts},
                                          /*inner=*/false)),
          {blocks.split + 1});
    // By the inverse, once for each block. Where the largest number is below
    // the normal ones of f32, the inverse is not finite, and all count as 0.
    Value isZero =
        b.compare(Predicate::lt, largest, b.constant(std::ldexp(1.0, -126)));
    Value inverse =
        b.select(isZero, b.constant(1.0), b.div(b.constant(1.0), largest));
    Value codes = EncodeOp::create(
        b.builder, b.loc, b.reshape(b.mul(parts, expand(inverse)), whole),
        nonnegative);
    return {codes, largest};
  }

private:
  Value abs(Value value) { return AbsOp::create(b.builder, b.loc, value); }
  Value largestOf(Value value, ArrayRef<int64_t> dims) {
    return ReduceOp::create(b.builder, b.loc, ReductionKind::Max, value, dims);
  }

  /// The scale of each part, for each of its elements.
  Value expand(Value scales) {
    if (blocks.parts > 1) {
      SmallVector<int64_t> pairs =
          blocks.shape(whole, {blocks.count, blocks.parts}, /*inner=*/false);
      scales = b.reshape(
          b.expandTo(scales, {blocks.split + 1}, pairs),
          blocks.shape(whole, {blocks.count * blocks.parts}, /*inner=*/false));
    }
    return b.expandTo(
        scales,
        llvm::to_vector(llvm::seq<int64_t>(blocks.split + 1,
                                           static_cast<int64_t>(split.size()))),
        split);
  }

  UpdateBuilder &b;
  Blocks blocks;
  bool nonnegative;
  ArrayRef<int64_t> whole;
  /// The parameter's shape with parts apart.
  SmallVector<int64_t> split;
};

class AdamW8bitRule final : public OptimizerRule {
public:
  StringRef name() const override { return "adamw8bit"; }
  StringRef summary() const override {
    return "AdamW with 8-bit blockwise state (arXiv 2110.02861)";
  }

  ArrayRef<OptimizerSetting> settings() const override {
    return adamwRule().settings();
  }

  SmallVector<StateSlot> slots(const TrainedParameter &parameter,
                               const OptimizerSettings &s) const override {
    std::optional<Blocks> blocks = Blocks::of(parameter);
    if (!blocks)
      return adamwRule().slots(parameter, s);
    Type i8 = IntegerType::get(parameter.type().getContext(), 8);
    auto dims = llvm::to_vector(llvm::seq<int64_t>(0, blocks->split + 1));
    SmallVector<int64_t> scales = blocks->shape(
        parameter.type().getShape(), {blocks->count}, /*inner=*/false);
    return {{"state1", parameter.all(), i8},
            {"absmax1", dims, {}, scales},
            {"state2", parameter.all(), i8},
            {"absmax2", dims, {}, scales}};
  }

  SmallVector<Value> update(UpdateBuilder &b) const override {
    std::optional<Blocks> blocks = Blocks::of(b.parameter);
    if (!blocks)
      return adamwRule().update(b);
    double beta1 = b.setting("beta1"), beta2 = b.setting("beta2");
    // c2 / c1 and c2 * eps, in f64.
    double eps = b.setting("eps");
    ArrayRef<Value> scalars =
        b.once("adamw8bit " + settingText(beta1) + " " + settingText(beta2) +
                   " " + settingText(eps),
               [&](Formula &f, Value t) -> SmallVector<Value> {
                 auto correction = [&](double beta) {
                   return f.sub(f.scalar(t, 1.0), f.pow(f.scalar(t, beta), t));
                 };
                 Value first = correction(beta1);
                 Value root =
                     SqrtOp::create(f.builder, f.loc, correction(beta2));
                 Type type = f.builder.getF32Type();
                 return {f.cast(f.div(root, first), type),
                         f.cast(f.mul(root, f.scalar(t, eps)), type)};
               });
    Moment first(b, *blocks, /*nonnegative=*/false);
    Moment second(b, *blocks, /*nonnegative=*/true);
    Value p = b.wideParameter(), g = b.scaledGradient();
    Value m =
        b.add(b.mul(first.decode(b.state[0], b.state[1]), b.constant(beta1)),
              b.mul(g, b.constant(1.0 - beta1)));
    Value v =
        b.add(b.mul(second.decode(b.state[2], b.state[3]), b.constant(beta2)),
              b.mul(b.mul(g, g), b.constant(1.0 - beta2)));
    Value lr = b.wide(b.lr);
    Value root = b.add(b.sqrt(v), b.wide(scalars[1]));
    Value next = b.sub(p, b.mul(b.mul(lr, b.wide(scalars[0])), b.div(m, root)));
    if (double decay = b.setting("weight_decay"))
      next = b.mul(next, b.sub(b.constant(1.0), b.mul(lr, b.constant(decay))));
    auto [codes1, scales1] = first.encode(m);
    auto [codes2, scales2] = second.encode(v);
    return {b.stored(next, b.parameter.argument()), codes1,
            b.stored(scales1, b.state[1]), codes2,
            b.stored(scales2, b.state[3])};
  }
};

} // namespace

const OptimizerRule &cleave::graph::adamw8bitRule() {
  static const AdamW8bitRule rule;
  return rule;
}
