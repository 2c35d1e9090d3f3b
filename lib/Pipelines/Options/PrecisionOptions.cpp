//===- PrecisionOptions.cpp - Options of number types ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "DeclareOptions.h"

using namespace cleave;
using llvm::StringRef;

static bool isNarrow(const CompileOptions &options) {
  return options.phases.precision != "f32";
}

static bool isFloat8(const CompileOptions &options) {
  return options.phases.precision == "fp8";
}

static bool scalesLoss(const CompileOptions &options) {
  return options.phases.scalesLoss();
}

/// The loss scale as one text: `dynamic`, or the constant.
static OptionValue lossScale(const CompileOptions &options) {
  const runtime::LossScaling &scaling = options.lossScaling;
  return scaling.dynamic ? std::string("dynamic")
                         : std::to_string(scaling.initial);
}

static std::string scaleProblem(StringRef text) {
  double constant;
  if (text == "dynamic")
    return "";
  if (text.getAsDouble(constant))
    return "expected dynamic or a number, not '" + text.str() + "'";
  runtime::LossScaling scaling;
  scaling.initial = static_cast<float>(constant);
  scaling.minimum = std::min(scaling.initial, scaling.minimum);
  return scaling.problem();
}

static void setLossScale(CompileOptions &options, const OptionValue &value) {
  runtime::LossScaling &scaling = options.lossScaling;
  double constant;
  scaling.dynamic =
      StringRef(std::get<std::string>(value)).getAsDouble(constant);
  if (scaling.dynamic)
    return;
  scaling.initial = static_cast<float>(constant);
  scaling.minimum = std::min(scaling.initial, scaling.minimum);
}

static void declareLossScale(OptionTable &table) {
  const std::string unscaled =
      " needs {precision} fp16: other types do not scale the loss";
  // Options of a scale that moves.
  auto dynamic = [](const CompileOptions &options) {
    return options.lossScaling.dynamic;
  };
  auto range = [](const CompileOptions &options) {
    std::string why = options.lossScaling.problem();
    return why.empty() ? why : ": " + why;
  };
  const std::string constant = " is a setting of {loss-scale} dynamic";
  table.custom("loss-scale", OptionKind::Text, lossScale, setLossScale)
      .form("dynamic|number")
      .drawn({"dynamic", "1024", "0", "none"})
      .says("With {precision} fp16, the factor of the loss (arXiv 1710.03740): "
            "dynamic, the default: it falls when a step overflows, and rises "
            "while steps do not; a number: constant, and a step that overflows "
            "ends the run")
      .valid(scaleProblem)
      .needs(scalesLoss, unscaled)
      .refused([](const CompileOptions &options) -> std::string {
        for (const char *name : {"loss-scale-init", "loss-scale-min"})
          if (!options.lossScaling.dynamic && options.given.count(name))
            return ": a constant has no {" + std::string(name) + "}";
        return "";
      });
  table.number("loss-scale-init", &runtime::LossScaling::initial)
      .inPython("loss_scale")
      .drawn({"1", "4096", "-1"})
      .says("The first loss scale (default 65536)")
      .needs(scalesLoss, unscaled)
      .refused(range);
  table.number("loss-scale-min", &runtime::LossScaling::minimum)
      .inPython("loss_scale")
      .drawn({"0.5", "2", "0", "1e9"})
      .says("The least loss scale (default 1): a step that overflows there "
            "ends the run")
      .needs(scalesLoss, unscaled)
      .refused(range);
  table.integer("loss-scale-window", &runtime::LossScaling::window)
      .inPython("loss_scale")
      .form("steps")
      .least(1)
      .drawn({"10", "0"})
      .says("Steps without an overflow after which the loss scale doubles "
            "(default 1000)")
      .needs(scalesLoss, unscaled)
      .needs(dynamic, constant);
  table.integer("loss-scale-hysteresis", &runtime::LossScaling::hysteresis)
      .inPython("loss_scale")
      .form("steps")
      .least(1)
      .drawn({"1", "0"})
      .says("Steps with an overflow after which the loss scale is halved by "
            "each (default 2)")
      .needs(scalesLoss, unscaled)
      .needs(dynamic, constant);
}

void cleave::declarePrecision(OptionTable &table) {
  table
      .choice("precision", &PhaseOptions::precision,
              {"f32", "bf16", "fp16", "fp8"})
      .plain()
      .fact()
      .says("bf16, fp16: contractions and attention read 16-bit copies of "
            "weights and activations, and sum in f32 (mixed precision, arXiv "
            "1710.03740); parameters, optimizer state, gradients of "
            "parameters, losses and statistics stay f32. With fp16 the loss is "
            "scaled, and a step that overflows is skipped. fp8: as bf16, but "
            "linear layers read 8 bits: e4m3 of weights and activations, e5m2 "
            "of gradients, each tensor with a scale that the largest numbers "
            "of the steps before decide")
      .refused([](const CompileOptions &options) -> std::string {
        return options.phases.scalesLoss() && !options.phases.checkFinite
                   ? ": fp16 skips a step of which gradients are not finite, "
                     "which {check-finite} finds; leave it on, or use bf16"
                   : "";
      });
  table.integer("fp8-history", &PhaseOptions::fp8History)
      .form("steps")
      .least(1)
      .drawn({"16", "0"})
      .says("With {precision} fp8, the steps whose largest numbers decide the "
            "scale of a tensor (default 1024)")
      .needs(isFloat8,
             " needs {precision} fp8: other types have no scales of tensors");
  table.integer("fp8-margin", &PhaseOptions::fp8Margin)
      .form("bits")
      .least(0)
      .most(100)
      .drawn({"1", "101"})
      .says("With {precision} fp8, the powers of two by which scales are "
            "smaller than the largest numbers allow (default 0)")
      .needs(isFloat8,
             " needs {precision} fp8: other types have no scales of tensors");
  table.choice("residual", &PhaseOptions::residual, {"16bit", "f32"})
      .says("With 16-bit precision, the type of the residual stream, the sum "
            "of embeddings and blocks: 16bit, the default, or f32, which is "
            "nearer to f32 and saves twice as many bytes of it")
      .needs(isNarrow, " needs {precision} bf16 or fp16: all values are f32 "
                       "without");
  table
      .choice("save-precision", &PhaseOptions::savePrecision,
              {"f32", "bf16", "fp16", "fp8"})
      .says("The type in which forward saves values for backward: bf16 and "
            "fp16 take half of the bytes of f32 and fp8 (e4m3) a quarter, and "
            "gradients are computed from rounded values; forward is unchanged "
            "(Gist, ISCA 2018)");
  table
      .choice("activation-reduction", &PhaseOptions::activationReduction,
              {"auto", "f32", "products", "16bit"})
      .says("With 16-bit precision, the type of matmuls that are activations "
            "or gradients of them: f32; products: 16 bits, but f32 where ranks "
            "reduce their sums over shards; 16bit: ranks send half the bytes, "
            "each rank's part rounded. auto, the default: f32 on a CPU, "
            "16bit on a GPU")
      .refused([](const CompileOptions &options) -> std::string {
        const std::string &type = options.phases.activationReduction;
        if (type == "f32")
          return "";
        if (!isNarrow(options))
          return " needs {precision} bf16 or fp16: all sums are f32 without";
        return isFloat8(options)
                   ? " " + type +
                         " needs {precision} bf16 or fp16: sums of products of "
                         "8 bits are f32"
                   : "";
      });
  table
      .choice("merge-matmuls", &PhaseOptions::mergeMatmuls,
              {"auto", "on", "off"})
      .formerly("merge-products")
      .says("With 16-bit precision, whether matmuls of one value by several "
            "weights are one matmul, as those of query, key and value: auto, "
            "the default: on a GPU; on; off")
      .refused([](const CompileOptions &options) -> std::string {
        return options.phases.mergeMatmuls == "on" && !isNarrow(options)
                   ? " on needs {precision} bf16 or fp16: weights in f32 are "
                     "not copied"
                   : "";
      });
  table
      .choice("gradient-dtype", &PhaseOptions::gradientType,
              {"f32", "bf16", "fp16"})
      .says("With 16-bit precision, the type in which gradients of weights are "
            "summed over micro-batches and ranks: f32, the default, or that of "
            "{precision}, bf16 or fp16, half the bytes, each addition rounded; "
            "those of embeddings, norms and biases stay f32")
      .refused([](const CompileOptions &options) -> std::string {
        const std::string &type = options.phases.gradientType;
        return type == options.phases.precision
                   ? ""
                   : " " + type + " needs {precision} " + type +
                         ": a gradient is f32, or of the type that "
                         "contractions read";
      });
  declareLossScale(table);
}
