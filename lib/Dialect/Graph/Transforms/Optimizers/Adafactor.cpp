//===- Adafactor.cpp - Adafactor (arXiv 1804.04235) -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Shazeer and Stern, "Adafactor", algorithms 4 and 5, without first moment.
/// For a matrix of the framework, with means for the sums of the paper, which
/// is the same:
/// ```
/// beta = 1 - t^beta2_decay
/// R'   = beta * R + (1 - beta) * mean over columns of (g * g + eps1)
/// C'   = beta * C + (1 - beta) * mean over rows of (g * g + eps1)
/// u    = g / sqrt(R' C' / mean(R')),   u /= max(1, rms(u) / d)
/// p'   = p * (1 - lr * weight_decay)
///        - max(eps2, rms(p)) * min(lr, 1 / sqrt(t)) * u
/// ```
/// A tensor of more dimensions is a stack of matrices, its last two dimensions;
/// one of fewer keeps the mean of its squares whole. The state of an n x m
/// matrix is n + m numbers.
///
//===----------------------------------------------------------------------===//

#include "Rules.h"
#include "Settings.h"
#include "UpdateBuilder.h"
#include <cmath>

using namespace mlir;
using namespace cleave::graph;

namespace {

class AdafactorRule final : public OptimizerRule {
public:
  StringRef name() const override { return "adafactor"; }
  StringRef summary() const override {
    return "Adafactor, second moments as rows and columns (arXiv 1804.04235)";
  }
  bool isScaleFree() const override { return true; }

  ArrayRef<OptimizerSetting> settings() const override {
    static const OptimizerSetting table[] = {
        {.name = "beta2_decay",
         .value = -0.8,
         .text = "the means of squares decay by 1 - t to the power of this",
         .least = std::numeric_limits<double>::lowest(),
         .below = 0.0,
         .drawn = {-0.8, -0.5}},
        {.name = "eps1",
         .value = 1e-30,
         .text = "added to squared gradients",
         .isDivisorFloor = true},
        {.name = "eps2",
         .value = 1e-3,
         .text = "least root mean square of a parameter, for its step",
         .drawn = {1e-3, 0.1}},
        {.name = "d",
         .value = 1.0,
         .text = "largest root mean square of a step, before it is scaled",
         .least = std::numeric_limits<double>::min(),
         .drawn = {0.5, 1.0}},
        {.name = "scale_parameter",
         .value = 1.0,
         .text = "steps are relative to the parameter's root mean square; "
                 "without, 0.05 is taken for it",
         .isFlag = true,
         .drawn = {0.0, 1.0}},
        weightDecay(0.0),
    };
    return table;
  }

  SmallVector<StateSlot> slots(const TrainedParameter &parameter,
                               const OptimizerSettings &) const override {
    unsigned rank = parameter.rank();
    if (rank < 2)
      return {{"variance", parameter.all()}};
    return {{"row_var", parameter.without(rank - 1)},
            {"col_var", parameter.without(rank - 2)}};
  }

  SmallVector<Value> update(UpdateBuilder &b) const override {
    double decay2 = b.setting("beta2_decay");
    // t^beta2_decay and 1 / sqrt(t), in f64.
    ArrayRef<Value> scalars =
        b.once("adafactor " + settingText(decay2),
               [&](Formula &f, Value t) -> SmallVector<Value> {
                 Type type = f.builder.getF32Type();
                 auto power = [&](double exponent) {
                   return f.cast(f.pow(t, f.scalar(t, exponent)), type);
                 };
                 Value weight = power(decay2);
                 return {weight, power(-0.5)};
               });
    const TrainedParameter &parameter = b.parameter;
    Value p = b.wideParameter(), g = b.scaledGradient();
    Value weight = b.wide(scalars[0]);
    Value squares = b.add(b.mul(g, g), b.constant(b.setting("eps1")));
    auto moved = [&](Value old, Value towards) {
      Value wide = b.wide(old);
      return b.add(wide, b.mul(b.sub(towards, wide), weight));
    };
    SmallVector<Value> state;
    Value u;
    if (unsigned rank = parameter.rank(); rank < 2) {
      state = {moved(b.state[0], squares)};
      u = b.div(g, b.sqrt(state[0]));
    } else {
      ArrayRef<int64_t> rows = parameter.stored(rank - 2);
      ArrayRef<int64_t> columns = parameter.stored(rank - 1);
      state = {moved(b.state[0], b.mean(squares, columns)),
               moved(b.state[1], b.mean(squares, rows))};
      // Columns are the last dimensions: those of rows are the same in R.
      Value r = state[0];
      Value share = b.div(
          r, b.expandTo(b.mean(r, rows), rows, tensorTypeOf(r).getShape()));
      u = b.div(b.div(g, b.expand(b.sqrt(share), columns)),
                b.expand(b.sqrt(state[1]), rows));
    }
    SmallVector<int64_t> own = parameter.own();
    auto rms = [&](Value value) {
      return b.sqrt(b.mean(b.mul(value, value), own));
    };
    Value excess =
        b.maximum(b.div(rms(u), b.constant(b.setting("d"))), b.constant(1.0));
    Value rate = b.minimum(b.wide(b.lr), b.wide(scalars[1]));
    Value scale = b.setting("scale_parameter")
                      ? b.maximum(rms(p), b.constant(b.setting("eps2")))
                      : b.constant(0.05);
    Value alpha = b.div(b.mul(rate, scale), excess);
    Value kept = p;
    if (double decay = b.setting("weight_decay"))
      kept = b.mul(
          p, b.sub(b.constant(1.0), b.mul(b.wide(b.lr), b.constant(decay))));
    Value next = b.sub(kept, b.mul(u, b.expand(alpha, own)));
    SmallVector<Value> results{b.stored(next, parameter.argument())};
    for (auto [value, old] : llvm::zip_equal(state, b.state))
      results.push_back(b.stored(value, old));
    return results;
  }
};

} // namespace

const OptimizerRule &cleave::graph::adafactorRule() {
  static const AdafactorRule rule;
  return rule;
}
