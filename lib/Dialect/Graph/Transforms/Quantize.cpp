//===- Quantize.cpp - Weights rounded to 8 bits ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Quantization-aware training (Jacob et al., arXiv 1712.05877) as a rewrite of
/// whole tensors. What forward and backward read of a weight is
///
///   w' = s round(w / s),  s = max |w| / 127 of each output channel
///
/// and the update reads the weight itself. It runs after differentiation, so
/// that the gradient of w' is that of w: the straight-through estimator (Bengio
/// et al., arXiv 1308.3432). No element lies outside of the range, and nothing
/// flows through s.
///
//===----------------------------------------------------------------------===//

#include "Optimizers/UpdateBuilder.h"
#include "cleave/Dialect/Graph/Analysis/StepRoles.h"
#include "cleave/Dialect/Graph/Transforms/ContractionWeights.h"
#include "cleave/Dialect/Graph/Transforms/Passes.h"
#include "cleave/Dialect/Graph/Transforms/Pruning.h"

namespace cleave::graph {
#define GEN_PASS_DEF_QUANTIZE
#include "cleave/Dialect/Graph/Transforms/Passes.h.inc"
} // namespace cleave::graph

using namespace mlir;
using namespace cleave::graph;

std::string cleave::graph::quantizationProblem(StringRef text) {
  if (text == "int8")
    return "";
  return ("unknown quantization '" + text + "'; there is int8").str();
}

/// The integer closest to `x`; of two, the even one.
static Value roundToEven(Formula &f, Value x) {
  auto floor = [&](Value value) -> Value {
    return FloorOp::create(f.builder, f.loc, value);
  };
  Value below = floor(x), rest = f.sub(x, below);
  Value half = f.mul(below, f.scalar(x, 0.5));
  Value isOdd = f.compare(Predicate::ne, half, floor(half));
  Value isTie = f.compare(Predicate::eq, rest, f.scalar(x, 0.5));
  Value goesUp = OrOp::create(f.builder, f.loc,
                              f.compare(Predicate::gt, rest, f.scalar(x, 0.5)),
                              AndOp::create(f.builder, f.loc, isTie, isOdd));
  return f.select(goesUp, f.add(below, f.scalar(x, 1.0)), below);
}

/// The weight as its codes of 8 bits and scales give it.
static Value quantize(Formula &f, Value weight, ArrayRef<int64_t> inputs) {
  constexpr double kLargest = 127.0;
  Type element = tensorTypeOf(weight).getElementType();
  Value w = element.isF64() ? weight : f.cast(weight, f.builder.getF32Type());
  ArrayRef<int64_t> shape = tensorTypeOf(w).getShape();
  Value size = AbsOp::create(f.builder, f.loc, w);
  Value scale = f.div(
      ReduceOp::create(f.builder, f.loc, ReductionKind::Max, size, inputs),
      f.scalar(w, kLargest));
  // A channel of zeros has codes of zero.
  Value divisor = f.select(f.compare(Predicate::eq, scale, f.scalar(w, 0.0)),
                           f.scalar(w, 1.0), scale);
  Value code = roundToEven(f, f.div(w, f.expandTo(divisor, inputs, shape)));
  // A scale that is subnormal is not as precise as its quotients.
  code = MaximumOp::create(f.builder, f.loc, code, f.scalar(w, -kLargest));
  code = MinimumOp::create(f.builder, f.loc, code, f.scalar(w, kLargest));
  return f.cast(f.mul(code, f.expandTo(scale, inputs, shape)), element);
}

/// Gives all ops but those of the update the quantized weight.
static void rewrite(func::FuncOp entry, BlockArgument argument,
                    ArrayRef<int64_t> inputs, const StepRoles &roles) {
  SmallVector<OpOperand *> uses;
  for (OpOperand &use : argument.getUses())
    if (!roles.servesUpdate(use.getOwner()) &&
        !use.getOwner()->hasTrait<OpTrait::IsTerminator>())
      uses.push_back(&use);
  if (uses.empty())
    return;
  OpBuilder builder(entry.getContext());
  builder.setInsertionPointToStart(&entry.getBody().front());
  Formula f{builder, argument.getLoc()};
  Value quantized = quantize(f, argument, inputs);
  for (OpOperand *use : uses)
    use->set(quantized);
}

namespace {
struct Quantize final : cleave::graph::impl::QuantizeBase<Quantize> {
  using QuantizeBase::QuantizeBase;

  void runOnOperation() override {
    if (std::string why = quantizationProblem(type); !why.empty()) {
      getOperation().emitError(why);
      return signalPassFailure();
    }
    FailureOr<func::FuncOp> step = findEntry(getOperation(), entry);
    if (failed(step))
      return signalPassFailure();
    llvm::StringMap<SmallVector<int64_t>> inputs;
    std::string example;
    for (const ContractionWeight &weight : findContractionWeights(*step)) {
      if (weight.reason.empty()) {
        inputs[weight.name] = weight.inputs;
        continue;
      }
      emitRemark(weight.argument.getLoc())
          << "\"" << weight.name << "\" is not quantized: " << weight.reason;
      if (example.empty())
        example = "; \"" + weight.name + "\": " + weight.reason;
    }
    if (inputs.empty()) {
      step->emitError("quantization: '@")
          << step->getSymName() << "' has no weight of a contraction"
          << example;
      return signalPassFailure();
    }
    FailureOr<SmallVector<func::FuncOp>> functions = findBodies(getOperation());
    if (failed(functions))
      return signalPassFailure();
    for (func::FuncOp function : *functions) {
      StepRoles roles(function.getBody().front());
      for (BlockArgument argument : function.getArguments())
        if (hasRole(function, argument.getArgNumber(), "parameter"))
          if (auto known = inputs.find(
                  getArgString(function, argument.getArgNumber(), kNameAttr));
              known != inputs.end())
            rewrite(function, argument, known->second, roles);
    }
  }
};
} // namespace
