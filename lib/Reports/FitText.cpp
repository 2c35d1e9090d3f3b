//===- FitText.cpp - What fits a memory limit, in lines of text -----------===//
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

/// The plan of index `key`; null if there is none.
static const json::Object *trialAt(const json::Object &fit,
                                   llvm::StringRef key) {
  auto index = fit.getInteger(key);
  return index ? (*fit.getArray("tried"))[*index].getAsObject() : nullptr;
}

/// `4 micro-batches of 8 samples`, or the mesh.
static std::string describeTrial(const json::Object &fit,
                                 const json::Object &trial) {
  if (textOf(fit, "question") == "devices")
    return llvm::formatv("{0}: mesh {1}",
                         counted(*trial.getInteger("devices"), "device"),
                         textOf(trial, "mesh"));
  return llvm::formatv(
      "{0} of {1}", counted(*trial.getInteger("micro_batches"), "micro-batch"),
      counted(*trial.getInteger("samples"), "sample"));
}

/// A row of the table: what was tried, what it needs, and whether it fits.
static std::string describeRow(const json::Object &fit,
                               const json::Object &trial) {
  bool devices = textOf(fit, "question") == "devices";
  std::string what =
      devices
          ? llvm::formatv("{0,-24} {1,8}", textOf(trial, "mesh"),
                          *trial.getInteger("devices"))
                .str()
          : llvm::formatv("{0,13} {1,8}", *trial.getInteger("micro_batches"),
                          *trial.getInteger("samples"))
                .str();
  auto bytes = trial.getNumber("bytes");
  if (!bytes)
    return what + "     refused: " + textOf(trial, "refused");
  return llvm::formatv("{0}  {1,10}  {2,-4}  {3}", what, formatBytes(*bytes),
                       trial.getBoolean("fits").value_or(false) ? "yes" : "no",
                       textOf(trial, "recompute"));
}

std::vector<std::string> cleave::explainFit(const json::Object &fit) {
  bool devices = textOf(fit, "question") == "devices";
  std::vector<std::string> lines;
  lines.push_back(
      (devices
           ? llvm::formatv("{0,-24} {1,8}", "mesh", "devices").str()
           : llvm::formatv("{0,13} {1,8}", "micro-batches", "samples").str()) +
      "       needed  fits  recompute");
  for (const json::Value &trial : *fit.getArray("tried"))
    lines.push_back(describeRow(fit, *trial.getAsObject()));
  std::string limit = formatBytes(number(fit, "limit"));
  if (const json::Object *answer = trialAt(fit, "answer")) {
    lines.push_back(llvm::formatv(
        "{0} within {1}: {2}; pass {3}",
        devices ? "the fewest devices" : "the largest micro-batch", limit,
        describeTrial(fit, *answer), textOf(fit, "flag")));
    return lines;
  }
  const json::Object *smallest = trialAt(fit, "smallest");
  if (!smallest)
    return lines;
  lines.push_back(llvm::formatv("none fits {0}; the smallest of these plans "
                                "needs {1}, by {2}",
                                limit,
                                formatLimit(*smallest->getInteger("bytes")),
                                describeTrial(fit, *smallest)));
  std::vector<std::pair<double, std::string>> kinds;
  for (const auto &[kind, bytes] : *fit.getObject("kinds"))
    if (bytes.getAsNumber().value_or(0) > 0)
      kinds.push_back({-*bytes.getAsNumber(), kind.str()});
  llvm::sort(kinds);
  std::string text;
  for (const auto &[bytes, kind] : kinds)
    text += (text.empty() ? "  " : ", ") + formatBytes(-bytes) + " " + kind;
  if (!text.empty())
    lines.push_back(text);
  for (const json::Value &advice : *fit.getArray("advice"))
    lines.push_back("what would help: " + advice.getAsString()->str());
  return lines;
}
