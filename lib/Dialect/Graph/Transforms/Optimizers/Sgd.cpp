//===- Sgd.cpp - Stochastic gradient descent ------------------------------===//
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

class SgdRule final : public OptimizerRule {
public:
  StringRef name() const override { return "sgd"; }
  StringRef summary() const override {
    return "stochastic gradient descent, as torch.optim.SGD";
  }

  ArrayRef<OptimizerSetting> settings() const override {
    static const OptimizerSetting table[] = {
        {.name = "momentum",
         .value = 0.0,
         .text = "of the velocity; 0 keeps no state",
         .drawn = {0.0, 0.5, 0.9}},
        {.name = "dampening",
         .value = 0.0,
         .text = "of the gradient that enters the velocity",
         .least = std::numeric_limits<double>::lowest(),
         .drawn = {0.0, 0.1, 0.5}},
        {.name = "nesterov",
         .value = 0.0,
         .text = "Nesterov's momentum",
         .isFlag = true,
         .drawn = {0.0, 1.0}},
        weightDecay(0.0, "added to the gradient times the parameter"),
    };
    return table;
  }

  std::string contradiction(const OptimizerSettings &s) const override {
    if (s.at("nesterov") && (s.at("momentum") == 0.0 || s.at("dampening")))
      return "Nesterov's momentum needs momentum and no dampening";
    return "";
  }

  SmallVector<StateSlot> slots(const TrainedParameter &parameter,
                               const OptimizerSettings &s) const override {
    if (s.at("momentum") == 0.0)
      return {};
    return {{"momentum_buffer", parameter.all()}};
  }

  SmallVector<Value> update(UpdateBuilder &b) const override {
    auto op = SgdOp::create(
        b.builder, b.loc, b.parameter.argument(), b.gradient,
        b.state.empty() ? Value() : b.state[0], b.lr, b.number, b.gradientScale,
        b.attribute("momentum"), b.attribute("dampening"),
        b.attribute("weight_decay"), b.setting("nesterov") != 0.0);
    return llvm::to_vector_of<Value>(op->getResults());
  }
};

} // namespace

const OptimizerRule &cleave::graph::sgdRule() {
  static const SgdRule rule;
  return rule;
}
