//===- Lion.cpp - Lion (arXiv 2302.06675) ---------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Chen et al., "Symbolic Discovery of Optimization Algorithms", algorithm 2:
/// ```
/// u  = sign(beta1 * m + (1 - beta1) * g)
/// p' = p - lr * (u + weight_decay * p)
/// m' = beta2 * m + (1 - beta2) * g
/// ```
///
//===----------------------------------------------------------------------===//

#include "Rules.h"
#include "Settings.h"
#include "UpdateBuilder.h"

using namespace mlir;
using namespace cleave::graph;

namespace {

class LionRule final : public OptimizerRule {
public:
  StringRef name() const override { return "lion"; }
  StringRef summary() const override {
    return "Lion, the sign of a mean of gradients (arXiv 2302.06675)";
  }
  bool isScaleFree() const override { return true; }

  ArrayRef<OptimizerSetting> settings() const override {
    static const OptimizerSetting table[] = {
        {.name = "beta1",
         .value = 0.9,
         .text = "weight of the mean in what is stepped along",
         .below = 1.0,
         .drawn = {0.5, 0.9}},
        {.name = "beta2",
         .value = 0.99,
         .text = "decay of the mean of gradients",
         .below = 1.0,
         .drawn = {0.0, 0.9, 0.99}},
        weightDecay(0.0),
    };
    return table;
  }

  SmallVector<StateSlot> slots(const TrainedParameter &parameter,
                               const OptimizerSettings &) const override {
    return {{"exp_avg", parameter.all()}};
  }

  SmallVector<Value> update(UpdateBuilder &b) const override {
    Value p = b.wideParameter(), g = b.scaledGradient();
    Value m = b.wide(b.state[0]);
    Value towards = b.lerp(m, g, 1.0 - b.setting("beta1"));
    Value zero = b.constant(0.0);
    // Zero, and what is not a number, stay as they are.
    Value sign =
        b.select(b.compare(Predicate::lt, towards, zero), b.constant(-1.0),
                 b.select(b.compare(Predicate::gt, towards, zero),
                          b.constant(1.0), towards));
    Value step = sign;
    if (double decay = b.setting("weight_decay"))
      step = b.add(sign, b.mul(p, b.constant(decay)));
    return {
        b.stored(b.sub(p, b.mul(step, b.wide(b.lr))), b.parameter.argument()),
        b.stored(b.lerp(m, g, 1.0 - b.setting("beta2")), b.state[0])};
  }
};

} // namespace

const OptimizerRule &cleave::graph::lionRule() {
  static const LionRule rule;
  return rule;
}
