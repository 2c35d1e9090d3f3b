//===- FitReport.cpp - What fits a memory limit, as facts and text
//----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ReportText.h"
#include "cleave/Reports/Reports.h"
#include "cleave/Support/ByteSize.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FormatVariadic.h"

using namespace cleave;
namespace json = llvm::json;

/// `4 micro-batches of 8 samples`, or the mesh.
static std::string describeTrial(const FitAnswer &fit,
                                 const FitAnswer::Trial &trial) {
  if (fit.devices)
    return llvm::formatv("{0}: mesh {1}", counted(trial.devices, "device"),
                         trial.mesh);
  return llvm::formatv("{0} of {1}", counted(trial.microBatches, "micro-batch"),
                       counted(trial.samples, "sample"));
}

/// A row of the table: what was tried, what it needs, and whether it fits.
static std::string describeRow(const FitAnswer &fit,
                               const FitAnswer::Trial &trial) {
  std::string what =
      fit.devices
          ? llvm::formatv("{0,-24} {1,8}", trial.mesh, trial.devices).str()
          : llvm::formatv("{0,13} {1,8}", trial.microBatches, trial.samples)
                .str();
  if (!trial.bytes)
    return what + "     refused: " + trial.refused;
  return llvm::formatv("{0}  {1,10}  {2,-4}  {3}", what,
                       formatBytes(static_cast<double>(*trial.bytes)),
                       trial.fits ? "yes" : "no", trial.recompute);
}

std::vector<std::string> cleave::explainFit(const FitAnswer &fit) {
  std::vector<std::string> lines;
  lines.push_back(
      (fit.devices
           ? llvm::formatv("{0,-24} {1,8}", "mesh", "devices").str()
           : llvm::formatv("{0,13} {1,8}", "micro-batches", "samples").str()) +
      "       needed  fits  recompute");
  for (const FitAnswer::Trial &trial : fit.tried)
    lines.push_back(describeRow(fit, trial));
  std::string limit = formatBytes(static_cast<double>(fit.limit));
  if (fit.answer) {
    lines.push_back(llvm::formatv(
        "{0} within {1}: {2}; pass {3}",
        fit.devices ? "the fewest devices" : "the largest micro-batch", limit,
        describeTrial(fit, fit.tried[*fit.answer]), fit.flag));
    return lines;
  }
  if (!fit.smallest)
    return lines;
  const FitAnswer::Trial &smallest = fit.tried[*fit.smallest];
  lines.push_back(llvm::formatv("none fits {0}; the smallest of these plans "
                                "needs {1}, by {2}",
                                limit, formatLimit(*smallest.bytes),
                                describeTrial(fit, smallest)));
  std::vector<std::pair<int64_t, std::string>> kinds;
  for (const auto &[kind, bytes] : smallest.kinds)
    if (bytes > 0)
      kinds.push_back({-bytes, kind});
  llvm::sort(kinds);
  std::string text;
  for (const auto &[bytes, kind] : kinds)
    text += (text.empty() ? "  " : ", ") +
            formatBytes(static_cast<double>(-bytes)) + " " + kind;
  if (!text.empty())
    lines.push_back(text);
  for (const std::string &advice : fit.advice)
    lines.push_back("what would help: " + advice);
  return lines;
}

static json::Object describe(const FitAnswer::Trial &trial) {
  json::Object facts{
      {"mesh", trial.mesh},
      {"devices", trial.devices},
      {"micro_batches", trial.microBatches},
      {"samples", trial.samples},
      {"bytes", trial.bytes ? json::Value(*trial.bytes) : json::Value(nullptr)},
      {"fits", trial.fits},
      {"recompute", trial.recompute}};
  if (!trial.refused.empty())
    facts["refused"] = trial.refused;
  return facts;
}

Report cleave::fitReport(const FitAnswer &fit) {
  auto index = [](std::optional<size_t> i) {
    return i ? json::Value(static_cast<int64_t>(*i)) : json::Value(nullptr);
  };
  json::Array tried;
  for (const FitAnswer::Trial &trial : fit.tried)
    tried.push_back(describe(trial));
  json::Object facts{{"question", fit.devices ? "devices" : "micro_batch"},
                     {"limit", fit.limit},
                     {"batch", fit.batch},
                     {"tried", std::move(tried)},
                     {"answer", index(fit.answer)},
                     {"smallest", index(fit.smallest)}};
  if (fit.devices)
    facts["axis"] = fit.axis;
  if (fit.answer)
    facts["flag"] = fit.flag;
  if (fit.smallest) {
    json::Object kinds;
    for (const auto &[kind, bytes] : fit.tried[*fit.smallest].kinds)
      kinds[kind] = bytes;
    facts["kinds"] = std::move(kinds);
    if (!fit.answer)
      facts["advice"] = json::Array(fit.advice);
  }
  return Report(json::Object{{"fit", std::move(facts)}});
}
