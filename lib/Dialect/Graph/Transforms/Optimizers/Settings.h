//===- Settings.h - Settings that several update rules have -----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_OPTIMIZERS_SETTINGS_H
#define CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_OPTIMIZERS_SETTINGS_H

#include "UpdateBuilder.h"
#include "cleave/Dialect/Graph/Transforms/Optimizer.h"

namespace cleave::graph {

/// beta1 and beta2 of Adam, and of rules that keep the same means.
inline OptimizerSetting meanDecay(std::vector<double> drawn) {
  return {.name = "beta1",
          .value = 0.9,
          .text = "decay of the mean of gradients",
          .below = 1.0,
          .drawn = std::move(drawn)};
}
inline OptimizerSetting squareDecay() {
  return {.name = "beta2",
          .value = 0.999,
          .text = "decay of the mean of squared gradients",
          .below = 1.0,
          .drawn = {0.0, 0.9, 0.999}};
}

inline OptimizerSetting denominatorFloor(double value) {
  return {.name = "eps",
          .value = value,
          .text = "added to the denominator",
          .isDivisorFloor = true};
}

inline OptimizerSetting
weightDecay(double value, llvm::StringLiteral text = "decoupled weight decay") {
  return {.name = "weight_decay",
          .value = value,
          .text = text,
          .drawn = {0.0, 0.1, 0.5}};
}

/// A rule that keeps the means of gradients and of their squares, as Adam.
class TwoMeansRule : public OptimizerRule {
public:
  llvm::SmallVector<StateSlot> slots(const TrainedParameter &parameter,
                                     const OptimizerSettings &) const override {
    return {{"exp_avg", parameter.all()}, {"exp_avg_sq", parameter.all()}};
  }
};

} // namespace cleave::graph

#endif // CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_OPTIMIZERS_SETTINGS_H
