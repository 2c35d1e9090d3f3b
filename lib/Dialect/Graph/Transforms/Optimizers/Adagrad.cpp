//===- Adagrad.cpp - Adagrad (JMLR 12, 2011) ------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Duchi et al., "Adaptive Subgradient Methods", as torch.optim.Adagrad:
/// ```
/// g  = gradient + weight_decay * p
/// s' = s + g * g
/// p' = p - lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s') + eps)
/// ```
///
//===----------------------------------------------------------------------===//

#include "Rules.h"
#include "Settings.h"
#include "UpdateBuilder.h"

using namespace mlir;
using namespace cleave::graph;

namespace {

class AdagradRule final : public OptimizerRule {
public:
  StringRef name() const override { return "adagrad"; }
  StringRef summary() const override {
    return "Adagrad, as torch.optim.Adagrad";
  }

  ArrayRef<OptimizerSetting> settings() const override {
    static const OptimizerSetting table[] = {
        {.name = "lr_decay",
         .value = 0.0,
         .text = "the learning rate is divided by 1 + (t - 1) times this",
         .drawn = {0.0, 0.5}},
        denominatorFloor(1e-10),
        {.name = "initial_accumulator_value",
         .value = 0.0,
         .text = "what the sum of squared gradients starts with",
         .drawn = {0.0, 0.1}},
        weightDecay(0.0, "added to the gradient times the parameter"),
    };
    return table;
  }

  SmallVector<StateSlot> slots(const TrainedParameter &parameter,
                               const OptimizerSettings &) const override {
    return {{"sum", parameter.all()}};
  }

  SmallVector<Value> update(UpdateBuilder &b) const override {
    double lrDecay = b.setting("lr_decay");
    double initial = b.setting("initial_accumulator_value");
    // The divisor of the learning rate, and what the first update adds.
    ArrayRef<Value> scalars =
        b.once("adagrad " + settingText(lrDecay) + " " + settingText(initial),
               [&](Formula &f, Value t) -> SmallVector<Value> {
                 Value one = f.scalar(t, 1.0);
                 Value divisor =
                     f.add(one, f.mul(f.sub(t, one), f.scalar(t, lrDecay)));
                 Value start = f.select(f.compare(Predicate::eq, t, one),
                                        f.scalar(t, initial), f.scalar(t, 0.0));
                 Type type = f.builder.getF32Type();
                 return {f.cast(divisor, type), f.cast(start, type)};
               });
    Value p = b.wideParameter(), g = b.scaledGradient();
    if (double decay = b.setting("weight_decay"))
      g = b.add(g, b.mul(p, b.constant(decay)));
    Value sum = b.wide(b.state[0]);
    if (initial != 0.0)
      sum = b.add(sum, b.wide(scalars[1]));
    sum = b.add(sum, b.mul(g, g));
    Value rate = b.wide(b.lr);
    if (lrDecay != 0.0)
      rate = b.div(rate, b.wide(scalars[0]));
    Value root = b.add(b.sqrt(sum), b.constant(b.setting("eps")));
    return {
        b.stored(b.sub(p, b.mul(rate, b.div(g, root))), b.parameter.argument()),
        b.stored(sum, b.state[0])};
  }
};

} // namespace

const OptimizerRule &cleave::graph::adagradRule() {
  static const AdagradRule rule;
  return rule;
}
