//===- Lamb.cpp - LAMB (arXiv 1904.00962) ---------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// You et al., "Large Batch Optimization for Deep Learning", algorithm 2, with
/// the identity as the function of the parameter's norm:
/// ```
/// m' = beta1 * m + (1 - beta1) * g,  v' = beta2 * v + (1 - beta2) * g * g
/// r  = m' / (1 - beta1^t) / (sqrt(v' / (1 - beta2^t)) + eps)
///      + weight_decay * p
/// p' = p - lr * |p| / |r| * r
/// ```
/// The ratio of norms is 1 if one of them is 0, and, unless `always_adapt`, of
/// a parameter without weight decay (as in NVIDIA's FusedLAMB and timm's Lamb).
/// Norms are those of a whole tensor of the framework: sums over its shards are
/// added.
///
//===----------------------------------------------------------------------===//

#include "Rules.h"
#include "Settings.h"
#include "UpdateBuilder.h"

using namespace mlir;
using namespace cleave::graph;

namespace {

class LambRule final : public TwoMeansRule {
public:
  StringRef name() const override { return "lamb"; }
  StringRef summary() const override {
    return "LAMB, Adam with steps relative to the parameter's norm (arXiv "
           "1904.00962)";
  }
  bool isScaleFree() const override { return true; }

  ArrayRef<OptimizerSetting> settings() const override {
    static const OptimizerSetting table[] = {
        meanDecay({0.5, 0.9}),
        squareDecay(),
        denominatorFloor(1e-6),
        weightDecay(0.01,
                    "added to the step times the parameter, before its norm"),
        {.name = "always_adapt",
         .value = 1.0,
         .text = "steps are relative to the parameter's norm also without "
                 "weight decay",
         .isFlag = true,
         .drawn = {0.0, 1.0}},
    };
    return table;
  }

  SmallVector<Value> update(UpdateBuilder &b) const override {
    double beta1 = b.setting("beta1"), beta2 = b.setting("beta2");
    // 1 - beta1^t and 1 - beta2^t, in f64.
    ArrayRef<Value> corrections =
        b.once("lamb " + settingText(beta1) + " " + settingText(beta2),
               [&](Formula &f, Value t) -> SmallVector<Value> {
                 auto correction = [&](double beta) {
                   Value power = f.pow(f.scalar(t, beta), t);
                   return f.cast(f.sub(f.scalar(t, 1.0), power),
                                 f.builder.getF32Type());
                 };
                 Value first = correction(beta1);
                 return {first, correction(beta2)};
               });
    Value p = b.wideParameter(), g = b.scaledGradient();
    Value m = b.lerp(b.wide(b.state[0]), g, 1.0 - beta1);
    Value v = b.lerp(b.wide(b.state[1]), b.mul(g, g), 1.0 - beta2);
    Value root = b.add(b.sqrt(b.div(v, b.wide(corrections[1]))),
                       b.constant(b.setting("eps")));
    Value r = b.div(b.div(m, b.wide(corrections[0])), root);
    double decay = b.setting("weight_decay");
    auto results = [&](Value rate) -> SmallVector<Value> {
      return {b.stored(b.sub(p, b.mul(rate, r)), b.parameter.argument()),
              b.stored(m, b.state[0]), b.stored(v, b.state[1])};
    };
    if (decay == 0.0 && !b.setting("always_adapt"))
      return results(b.wide(b.lr));
    if (decay != 0.0)
      r = b.add(r, b.mul(p, b.constant(decay)));
    Value own = b.norm(p), step = b.norm(r);
    Value zero = b.constant(0.0), one = b.constant(1.0);
    Value moves = b.compare(Predicate::ne, step, zero);
    // No division by zero, even where its result is not used.
    Value ratio = b.div(own, b.select(moves, step, one));
    Value both = AndOp::create(b.builder, b.loc, moves,
                               b.compare(Predicate::ne, own, zero));
    ratio = b.expand(b.select(both, ratio, one), b.parameter.own());
    return results(b.mul(b.wide(b.lr), ratio));
  }
};

} // namespace

const OptimizerRule &cleave::graph::lambRule() {
  static const LambRule rule;
  return rule;
}
