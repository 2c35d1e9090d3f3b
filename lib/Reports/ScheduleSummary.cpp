//===- ScheduleSummary.cpp - What a schedule costs, for people ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ReportParts.h"
#include "ReportText.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FormatVariadic.h"

using namespace cleave;
using llvm::StringRef;
using scheduling::formatSeconds;
namespace json = llvm::json;

/// `idle, measured: 5.1 % at position 0, 7.3 % at position 1`.
static std::string describeIdle(StringRef which, const json::Object &idle) {
  std::string text = ("idle, " + which + ": ").str();
  for (auto [device, share] : llvm::enumerate(*idle.getArray("idle")))
    text += llvm::formatv("{0}{1} at position {2}", device ? ", " : "",
                          formatShare(share.getAsNumber().value_or(0)), device);
  return text;
}

/// `2 micro-batches`; for a position with several stages, `8 chunks, of which a
/// micro-batch has 2`: a chunk is a micro-batch in one of the stages.
static std::string describeInFlight(const json::Object &device) {
  size_t stages = device.getArray("stages")->size();
  if (stages < 2)
    return counted(device.getInteger("peak_in_flight").value_or(0),
                   "micro-batch");
  return counted(device.getInteger("peak_chunks").value_or(0), "chunk") +
         llvm::formatv(", of which a micro-batch has {0}", stages).str();
}

std::vector<std::string> cleave::explainSchedule(const json::Value &report) {
  std::vector<std::string> lines;
  const json::Object *facts = report.getAsObject();
  if (!facts)
    return lines;
  const json::Object &bubble = *facts->getObject("bubble");
  const json::Array &devices = *facts->getArray("devices");
  lines.push_back(llvm::formatv(
      "schedule {0}: {1}, {2}; predicted {3}, of which {4} are the bubble ({5} "
      "of the ideal), and {6} for each further step",
      facts->getString("name").value_or(""),
      counted(devices.size(), "pipeline position"),
      counted(facts->getInteger("micro_batches").value_or(0), "micro-batch"),
      formatSeconds(number(*facts, "makespan")),
      formatShare(number(bubble, "of_makespan")),
      formatShare(number(bubble, "of_ideal")),
      formatSeconds(number(*facts, "period"))));
  if (StringRef costs = facts->getString("costs").value_or("");
      costs != "estimated")
    lines.push_back(("costs: measured, " + costs).str());
  for (StringRef which : {"predicted", "measured"})
    if (const json::Object *idle = facts->getObject(which))
      lines.push_back(describeIdle(which, *idle));
  for (const json::Value &value : devices) {
    const json::Object &device = *value.getAsObject();
    lines.push_back(llvm::formatv(
        "position {0}: busy {1}, idle {2} between its first and last action; "
        "saves at most {3}, {4}",
        device.getInteger("device").value_or(0),
        formatSeconds(number(device, "busy")),
        formatSeconds(number(device, "idle_between")), describeInFlight(device),
        formatBytes(number(device, "peak_saved_bytes"))));
  }
  for (const json::Value &value : *facts->getArray("stages")) {
    const json::Object &stage = *value.getAsObject();
    const json::Object &begins = *stage.getObject("begins");
    StringRef first = begins.getString("parameter").value_or("");
    StringRef line = begins.getString("line").value_or("");
    lines.push_back(
        llvm::formatv("stage {0}{1}{2}: {3} of the cost, parameters of {4}; "
                      "saves {5} for each micro-batch, at most {6} of them, "
                      "{7}",
                      stage.getInteger("stage").value_or(0),
                      first.empty() ? std::string() : (" from " + first).str(),
                      line.empty() ? std::string() : (" at " + line).str(),
                      formatShare(number(stage, "cost_share")),
                      formatBytes(number(stage, "parameter_bytes")),
                      formatBytes(number(stage, "saved_bytes_per_micro_batch")),
                      stage.getInteger("peak_in_flight").value_or(0),
                      formatBytes(number(stage, "peak_saved_bytes"))));
    if (std::optional<int64_t> versions = stage.getInteger("versions"))
      lines.push_back(llvm::formatv(
          "stage {0}: holds at most {1} of its parameters, {2}; staleness of "
          "at most {3} updates",
          stage.getInteger("stage").value_or(0), counted(*versions, "version"),
          formatBytes(number(stage, "version_bytes")),
          stage.getInteger("staleness").value_or(0)));
  }
  for (const json::Value &value : *facts->getArray("boundaries")) {
    const json::Object &boundary = *value.getAsObject();
    double bytes = number(boundary, "bytes_per_micro_batch"),
           whole = number(boundary, "whole_bytes_per_micro_batch");
    lines.push_back(llvm::formatv(
        "stage {0} to stage {1}: {2} for each micro-batch{3}, {4} in a step",
        boundary.getInteger("from").value_or(0),
        boundary.getInteger("to").value_or(0), formatBytes(bytes),
        bytes < whole ? " (in slices, instead of " + formatBytes(whole) + ")"
                      : std::string(),
        formatBytes(number(boundary, "bytes_per_step"))));
  }
  const json::Object &gathers = *facts->getObject("weight_gathers");
  if (number(gathers, "count_per_micro_batch") > 0)
    lines.push_back(
        llvm::formatv("parameters are gathered for each micro-batch: {0} sent "
                      "in a step; gathering once for a step would send {1}, "
                      "and hold {2} more",
                      formatBytes(number(gathers, "sent_bytes_per_step")),
                      formatBytes(number(gathers, "sent_bytes_if_once")),
                      formatBytes(number(gathers, "kept_bytes_if_once"))));
  if (number(gathers, "count_once") > 0)
    lines.push_back(llvm::formatv(
        "parameters are gathered once for a step: {0} sent in a step, and {1} "
        "more held",
        formatBytes(number(gathers, "sent_bytes_per_step")),
        formatBytes(number(gathers, "kept_bytes"))));
  const json::Object &reductions = *facts->getObject("reductions");
  if (number(reductions, "sent_bytes_per_step") > 0)
    lines.push_back(llvm::formatv(
        "gradients are reduced over devices: {0} sent by backward in a step, "
        "{1} after it",
        formatBytes(number(reductions, "sent_bytes_per_step") -
                    number(reductions, "sent_bytes_once")),
        formatBytes(number(reductions, "sent_bytes_once"))));
  return lines;
}
