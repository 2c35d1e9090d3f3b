//===- AdamW.cpp - AdamW (arXiv 1711.05101) -------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Rules.h"
#include "Settings.h"
#include "UpdateBuilder.h"

using namespace mlir;
using namespace cleave::graph;

namespace {

class AdamWRule final : public TwoMeansRule {
public:
  StringRef name() const override { return "adamw"; }
  StringRef summary() const override {
    return "AdamW (arXiv 1711.05101), as torch.optim.AdamW";
  }

  ArrayRef<OptimizerSetting> settings() const override {
    static const OptimizerSetting table[] = {
        meanDecay({0.0, 0.5, 0.9}),
        squareDecay(),
        denominatorFloor(1e-8),
        weightDecay(0.01),
    };
    return table;
  }

  SmallVector<Value> update(UpdateBuilder &b) const override {
    double beta1 = b.setting("beta1"), beta2 = b.setting("beta2");
    // The bias corrections, 1 - beta1^t and sqrt(1 - beta2^t), in f64.
    ArrayRef<Value> corrections =
        b.once("adamw " + settingText(beta1) + " " + settingText(beta2),
               [&](Formula &f, Value t) -> SmallVector<Value> {
                 Value one = f.scalar(t, 1.0);
                 auto correction = [&](double beta) {
                   return f.sub(one, f.pow(f.scalar(t, beta), t));
                 };
                 Type type = f.builder.getF32Type();
                 Value first = f.cast(correction(beta1), type);
                 Value root =
                     SqrtOp::create(f.builder, f.loc, correction(beta2));
                 return {first, f.cast(root, type)};
               });
    auto op = AdamWOp::create(b.builder, b.loc, b.parameter.argument(),
                              b.gradient, b.state[0], b.state[1], b.lr,
                              corrections[0], corrections[1], b.gradientScale,
                              b.attribute("beta1"), b.attribute("beta2"),
                              b.attribute("eps"), b.attribute("weight_decay"));
    return llvm::to_vector_of<Value>(op->getResults());
  }
};

} // namespace

const OptimizerRule &cleave::graph::adamwRule() {
  static const AdamWRule rule;
  return rule;
}
