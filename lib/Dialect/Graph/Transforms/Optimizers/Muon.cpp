//===- Muon.cpp - Muon (Jordan et al., 2024) ------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Jordan et al., "Muon: An optimizer for hidden layers in neural networks", as
/// torch.optim.Muon, for the matrices of the framework:
/// ```
/// b' = momentum * b + (1 - momentum) * g
/// x  = momentum * b' + (1 - momentum) * g     (without nesterov: b')
/// x /= max(|x|, eps), then ns_steps times, with a = x x^T:
/// x  = 3.4445 x + (-4.7750 a + 2.0315 a a) x
/// p' = p * (1 - lr * weight_decay) - lr * sqrt(max(1, rows / columns)) * x
/// ```
/// For a matrix of more rows than columns a is x^T x, and x (...) is computed.
/// Iterations are made in f32, where torch.optim.Muon rounds to bf16.
///
//===----------------------------------------------------------------------===//

#include "Rules.h"
#include "Settings.h"
#include "UpdateBuilder.h"
#include <cmath>

using namespace mlir;
using namespace cleave::graph;

namespace {

/// The equations of an iteration, in the letters of stored dimensions: a
/// dimension of the framework may be stored as several.
struct Equations {
  /// x, x -> a; a, a -> a a; a, x -> a x (or x, a -> x a).
  std::string gram, square, product;
  /// Whether the Gram matrix is of columns.
  bool ofColumns;

  explicit Equations(const TrainedParameter &parameter) {
    ofColumns = parameter.size(0) > parameter.size(1);
    std::string x, other, batch, own, second, third;
    char next = 'a';
    ArrayRef<int64_t> gramDims = parameter.stored(ofColumns ? 1 : 0);
    SmallVector<int64_t> matrix = parameter.own();
    for (int64_t dim : parameter.all()) {
      char letter = next++;
      x += letter;
      if (!llvm::is_contained(matrix, dim))
        batch += letter;
      else if (llvm::is_contained(gramDims, dim))
        own += letter;
    }
    for (size_t i = 0; i < own.size(); ++i)
      second += next++;
    for (size_t i = 0; i < own.size(); ++i)
      third += next++;
    other = x;
    other.replace(other.find(own), own.size(), second);
    gram = x + "," + other + "->" + batch + own + second;
    square = batch + own + third + "," + batch + third + second + "->" + batch +
             own + second;
    // The Gram matrix is symmetric.
    product = batch + own + second + "," + other + "->" + x;
  }
};

class MuonRule final : public OptimizerRule {
public:
  StringRef name() const override { return "muon"; }
  StringRef summary() const override {
    return "Muon, orthogonalised momentum of matrices, as torch.optim.Muon";
  }
  bool isScaleFree() const override { return true; }

  ArrayRef<OptimizerSetting> settings() const override {
    static const OptimizerSetting table[] = {
        {.name = "momentum",
         .value = 0.95,
         .text = "decay of the mean of gradients",
         .below = 1.0,
         .drawn = {0.5, 0.95}},
        {.name = "nesterov",
         .value = 1.0,
         .text = "Nesterov's momentum",
         .isFlag = true,
         .drawn = {0.0, 1.0}},
        {.name = "ns_steps",
         .value = 5.0,
         .text = "Newton-Schulz iterations",
         .least = 1.0,
         .below = 100.0,
         .drawn = {1.0, 5.0}},
        {.name = "eps",
         .value = 1e-7,
         .text = "least norm that a matrix is divided by",
         .isDivisorFloor = true},
        {.name = "match_rms_adamw",
         .value = 0.0,
         .text = "steps as large as AdamW's: 0.2 sqrt(max(rows, columns))",
         .isFlag = true,
         .drawn = {0.0, 1.0}},
        weightDecay(0.1),
    };
    return table;
  }

  std::string contradiction(const OptimizerSettings &s) const override {
    if (s.at("ns_steps") != std::floor(s.at("ns_steps")))
      return "ns_steps must be a whole number";
    return "";
  }

  std::string refusal(const TrainedParameter &parameter) const override {
    if (parameter.rank() == 2)
      return "";
    return "muon updates matrices, and this has " +
           std::to_string(parameter.rank()) +
           " dimensions: give it another optimizer";
  }

  SmallVector<StateSlot> slots(const TrainedParameter &parameter,
                               const OptimizerSettings &) const override {
    return {{"momentum_buffer", parameter.all()}};
  }

  SmallVector<Value> update(UpdateBuilder &b) const override {
    const TrainedParameter &parameter = b.parameter;
    double momentum = b.setting("momentum");
    Value p = b.wideParameter(), g = b.scaledGradient();
    Value buffer = b.lerp(b.wide(b.state[0]), g, 1.0 - momentum);
    Value x = b.setting("nesterov") ? b.lerp(g, buffer, momentum) : buffer;
    SmallVector<int64_t> own = parameter.own();
    Value norm = b.maximum(b.norm(x), b.constant(b.setting("eps")));
    x = b.div(x, b.expand(norm, own));
    Equations equations(parameter);
    for (int i = 0; i < b.setting("ns_steps"); ++i) {
      Value a = b.contract(equations.gram, x, x);
      Value second = b.contract(equations.square, a, a);
      Value polynomial = b.add(b.mul(a, b.constant(-4.7750)),
                               b.mul(second, b.constant(2.0315)));
      x = b.add(b.mul(x, b.constant(3.4445)),
                b.contract(equations.product, polynomial, x));
    }
    double rows = parameter.size(0), columns = parameter.size(1);
    double factor = b.setting("match_rms_adamw")
                        ? 0.2 * std::sqrt(std::max(rows, columns))
                        : std::sqrt(std::max(1.0, rows / columns));
    Value lr = b.wide(b.lr);
    Value kept = p;
    if (double decay = b.setting("weight_decay"))
      kept = b.mul(p, b.sub(b.constant(1.0), b.mul(lr, b.constant(decay))));
    Value step = b.mul(x, b.mul(lr, b.constant(factor)));
    return {b.stored(b.sub(kept, step), parameter.argument()),
            b.stored(buffer, b.state[0])};
  }
};

} // namespace

const OptimizerRule &cleave::graph::muonRule() {
  static const MuonRule rule;
  return rule;
}
