//===- PredictionReport.cpp - An estimate of a step, as facts and text ----===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ReportParts.h"
#include "llvm/Support/FormatVariadic.h"
#include <cmath>

using namespace cleave;
using machines::Prediction;
namespace json = llvm::json;

static json::Object describe(const machines::CommandSums &sums) {
  return json::Object{{"launches", sums.launches},
                      {"operations", sums.operations},
                      {"bytes", sums.bytes},
                      {"seconds", sums.seconds}};
}

json::Object cleave::describePrediction(const Prediction &prediction) {
  json::Object rates;
  for (const auto &[name, rate] : prediction.rates)
    rates[name] = rate;
  json::Array kinds, labels;
  for (const Prediction::Kind &kind : prediction.kinds) {
    json::Object own = describe(kind.sums);
    own["kind"] = kind.kind;
    own["commands"] = kind.sums.commands;
    kinds.push_back(std::move(own));
  }
  for (const Prediction::Label &label : prediction.labels) {
    json::Object own = describe(label.sums);
    own["label"] = label.label;
    own["kind"] = label.kind;
    own["count"] = label.sums.commands;
    labels.push_back(std::move(own));
  }
  return json::Object{{"device", prediction.device},
                      {"estimate", true},
                      {"rates", std::move(rates)},
                      {"tokens", prediction.tokens},
                      {"launches", prediction.launches},
                      {"seconds", prediction.seconds},
                      {"bytes_outside", prediction.bytesOutside},
                      {"kinds", std::move(kinds)},
                      {"commands", std::move(labels)}};
}

std::vector<std::string>
cleave::explainPrediction(const Prediction &prediction) {
  std::vector<std::string> lines;
  double seconds = prediction.seconds;
  lines.push_back(llvm::formatv(
      "estimate for one {0} (nothing was run): {1:F1} ms a step, {2} tokens/s, "
      "{3} launches",
      prediction.device, seconds * 1e3,
      seconds > 0 ? std::llround(prediction.tokens / seconds) : 0,
      prediction.launches));
  for (const Prediction::Kind &kind : prediction.kinds)
    lines.push_back(llvm::formatv(
        "  {0,-28} {1,8:F2} ms {2,5:F1} %  {3,5} launches {4,9:F1} GFLOP "
        "{5,9:F1} MB",
        kind.kind, kind.sums.seconds * 1e3,
        seconds > 0 ? 100 * kind.sums.seconds / seconds : 0.0,
        kind.sums.launches, kind.sums.operations / 1e9, kind.sums.bytes / 1e6));
  if (prediction.tokens > 0)
    lines.push_back(llvm::formatv(
        "  outside of products and attention, {0:F1} kB a token are moved "
        "(estimate)",
        prediction.bytesOutside / static_cast<double>(prediction.tokens) /
            1e3));
  return lines;
}
