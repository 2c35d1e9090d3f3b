//===- Summary.cpp - A report in ten lines --------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CollectivePlaces.h"
#include "ReportParts.h"
#include "ReportText.h"
#include "cleave/Scheduling/Timeline/Timeline.h"
#include "cleave/Support/TargetTraits.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/FormatVariadic.h"
#include <map>
#include <unistd.h>

using namespace cleave;
using llvm::StringRef;
using scheduling::formatSeconds;
namespace json = llvm::json;

namespace {

/// The facts of a report that the lines speak of: those of the entry that
/// trains, or of the first one, and of the position that needs most.
class Summary {
public:
  explicit Summary(const json::Object &report);
  std::vector<std::string> lines() const;

private:
  std::string describeStep() const;
  std::string describeMemory() const;
  std::string describePeak() const;
  std::string describeSaved() const;
  std::string describeSent() const;
  std::string describeMost() const;
  std::string describePipeline() const;
  std::string describeTime() const;

  const json::Object &report;
  const json::Object &plan;
  /// Null if missing.
  const json::Object *schedule = nullptr, *entry = nullptr, *sent = nullptr;
  std::string name;
  int64_t devices = 1, positions = 1;
};

} // namespace

Summary::Summary(const json::Object &report)
    : report(report), plan(*report.getObject("plan")),
      schedule(report.getObject("schedule")) {
  if (const json::Object *entries = plan.getObject("entries"))
    for (const auto &[key, value] : *entries)
      if (name.empty() || key == "train") {
        name = StringRef(key).str();
        entry = value.getAsObject();
      }
  if (const json::Object *all = report.getObject("communication"))
    sent = all->getObject(name);
  if (const json::Object *placement = report.getObject("placement"))
    if (const json::Array *mesh = placement->getArray("mesh"))
      for (const json::Value &axis : *mesh)
        devices *= axis.getAsObject()->getInteger("size").value_or(1);
  if (const json::Array *several = plan.getArray("positions"))
    positions = several->size();
}

std::string Summary::describeStep() const {
  std::string axes;
  if (const json::Array *mesh = report.getObject("placement")->getArray("mesh"))
    for (const json::Value &value : *mesh) {
      const json::Object &axis = *value.getAsObject();
      axes += (axes.empty() ? "" : ", ") + textOf(axis, "axis") + "=" +
              std::to_string(axis.getInteger("size").value_or(1));
    }
  std::string fusion = entry ? textOf(*entry, "optimizer_fusion") : "";
  return "step: " + counted(devices, "device") +
         (axes.empty() ? "" : " (" + axes + ")") + ", " +
         counted(report.getInteger("micro_batches").value_or(1),
                 "micro-batch") +
         (fusion == "backward" || fusion == "forward"
              ? ", updates fused with " + fusion
              : "") +
         (report.getBoolean("check_finite").value_or(true)
              ? ""
              : ", losses and gradients not checked to be finite");
}

/// The bytes of a tensor's kind, as people say it.
static StringRef kindName(StringRef kind) {
  return llvm::StringSwitch<StringRef>(kind)
      .Case("parameter", "parameters")
      .Case("state", "optimizer state")
      .Case("buffer", "buffers")
      .Case("input", "inputs")
      .Case("constant", "constants")
      .Case("gradient", "gradients kept between steps")
      .Case("shared", "activations, gradients and scratch")
      .Default("");
}

std::string Summary::describeMemory() const {
  double arena = number(plan, "arena_bytes"), all = arena * devices;
  if (const json::Array *several = plan.getArray("positions")) {
    all = 0;
    for (const json::Value &position : *several)
      all +=
          number(*position.getAsObject(), "arena_bytes") * devices / positions;
  }
  std::string line =
      "memory: " + formatBytes(arena) + (devices > 1 ? " for a device" : "") +
      (positions > 1 ? llvm::formatv(" of position {0}, the largest",
                                     plan.getInteger("largest").value_or(0))
                           .str()
                     : "");
  std::vector<std::pair<double, std::string>> kinds;
  if (const json::Object *bytes = plan.getObject("bytes"))
    for (const auto &[kind, value] : *bytes)
      if (StringRef known = kindName(kind); !known.empty())
        kinds.push_back({value.getAsNumber().value_or(0), known.str()});
  llvm::sort(kinds, std::greater<>());
  std::string parts;
  // What is less than a hundredth is left out.
  for (const auto &[bytes, kind] : kinds)
    if (bytes * 100 >= arena)
      parts += (parts.empty() ? ": " : ", ") + kind + " " + formatBytes(bytes);
  line += parts;
  if (devices > 1)
    line += "; all devices " + formatBytes(all);
  // The memory of a GPU is another one, and that of another machine.
  if (TargetTraits::of(textOf(report, "target")).isGpu())
    return line;
  double machine = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
                   static_cast<double>(::sysconf(_SC_PAGESIZE));
  if (machine > 0)
    line += (all <= machine ? "; fits in the " : "; does not fit in the ") +
            formatBytes(machine) + " of this machine";
  return line;
}

std::string Summary::describePeak() const {
  const json::Array *live = entry ? entry->getArray("live_at_peak") : nullptr;
  if (!live || live->empty())
    return "";
  struct Held {
    double bytes = 0;
    int64_t count = 0;
  };
  std::map<std::string, Held> groups;
  for (const json::Value &value : *live) {
    const json::Object &own = *value.getAsObject();
    std::string name = textOf(own, "name");
    // Not the command: `exec.launch#2 tensor<4x8xf32> at model.py:7`.
    StringRef shown(name);
    if (shown.starts_with("exec."))
      shown = shown.split(' ').second;
    Held &held =
        groups[textOf(own, "kind") + (shown.empty() ? "" : " " + shown.str())];
    held.bytes += number(own, "bytes");
    held.count += own.getInteger("count").value_or(1);
  }
  std::vector<std::pair<std::string, Held>> sorted(groups.begin(),
                                                   groups.end());
  llvm::stable_sort(sorted, [](const auto &a, const auto &b) {
    return a.second.bytes > b.second.bytes;
  });
  std::string line = "largest at the peak: ";
  for (auto [i, group] : llvm::enumerate(llvm::ArrayRef(sorted).take_front(3)))
    line += (i ? ", " : "") + formatBytes(group.second.bytes) + " " +
            (group.second.count > 1
                 ? "in " + std::to_string(group.second.count) + " x "
                 : "in ") +
            group.first;
  return line;
}

std::string Summary::describeSaved() const {
  if (!schedule || textOf(*schedule, "entry") != name)
    return "";
  double bytes = 0;
  for (const json::Value &stage : *schedule->getArray("stages"))
    bytes += number(*stage.getAsObject(), "saved_bytes_per_micro_batch");
  std::string line =
      "saved for backward: " + formatBytes(bytes) + " for each micro-batch";
  if (double less = entry ? number(*entry, "unsaved_bytes") : 0; less > 0)
    line += ", " + formatBytes(less) + " less by recomputation";
  return line;
}

std::string Summary::describeSent() const {
  if (!sent || number(*sent, "count") == 0)
    return devices > 1 ? "sent: nothing" : "";
  std::string line =
      "sent: " + formatBytes(number(*sent, "bytes")) + " by a device in a step";
  std::vector<const json::Object *> totals;
  if (const json::Array *all = sent->getArray("totals"))
    for (const json::Value &value : *all)
      totals.push_back(value.getAsObject());
  llvm::stable_sort(totals, [](const json::Object *a, const json::Object *b) {
    return number(*a, "bytes") > number(*b, "bytes");
  });
  size_t shown = std::min<size_t>(totals.size(), 4);
  for (size_t i = 0; i < shown; ++i)
    line +=
        llvm::formatv("{0}{1} by {2} {3} over {4}", i ? ", " : ": ",
                      formatBytes(number(*totals[i], "bytes")),
                      totals[i]->getInteger("count").value_or(0),
                      textOf(*totals[i], "kind"), textOf(*totals[i], "axes"));
  if (shown < totals.size())
    line += llvm::formatv(", and {0} more", totals.size() - shown);
  return line;
}

std::string Summary::describeMost() const {
  if (!sent)
    return "";
  std::vector<CollectivePlace> places = collectivePlaces(*sent, /*fold=*/true);
  auto most = llvm::max_element(
      places, [](const auto &a, const auto &b) { return a.bytes < b.bytes; });
  return most == places.end() || most->bytes == 0
             ? ""
             : "most of it: " + most->describe();
}

std::string Summary::describePipeline() const {
  if (!schedule || schedule->getArray("devices")->size() < 2)
    return "";
  std::string begins;
  const json::Array &stages = *schedule->getArray("stages");
  for (const json::Value &value : llvm::drop_begin(stages)) {
    std::string first =
        textOf(*value.getAsObject()->getObject("begins"), "parameter");
    if (!first.empty())
      begins += (begins.empty() ? "" : ", ") + first;
  }
  double bytes = 0;
  for (const json::Value &value : *schedule->getArray("boundaries"))
    bytes =
        std::max(bytes, number(*value.getAsObject(), "bytes_per_micro_batch"));
  return llvm::formatv(
      "pipeline {0}: {1} on {2}{3}; a boundary sends at most {4} for a "
      "micro-batch",
      textOf(*schedule, "name"), counted(stages.size(), "stage"),
      counted(schedule->getArray("devices")->size(), "position"),
      // More would fill the line.
      begins.empty() || stages.size() > 8 ? "" : ", from " + begins,
      formatBytes(bytes));
}

std::string Summary::describeTime() const {
  if (!schedule)
    return "";
  // Of the position that has most to do.
  const json::Object *busiest = nullptr;
  for (const json::Value &value : *schedule->getArray("devices"))
    if (!busiest ||
        number(*value.getAsObject(), "busy") > number(*busiest, "busy"))
      busiest = value.getAsObject();
  double span = number(*schedule, "makespan");
  if (!busiest || span <= 0)
    return "";
  const json::Object &machine = *schedule->getObject("machine");
  double flops = 0, memory = 0, link = 0;
  double count = number(*schedule, "micro_batches");
  const json::Array &stages = *schedule->getArray("stages");
  for (const json::Value &index : *busiest->getArray("stages")) {
    const json::Object &stage =
        *stages[index.getAsInteger().value_or(0)].getAsObject();
    flops += count * number(stage, "flops") / number(machine, "flops");
    memory += count * number(stage, "bytes") / number(machine, "memory");
    link += count * number(stage, "sent_bytes") / number(machine, "link");
  }
  double busy = number(*busiest, "busy");
  std::string line = "time: predicted " + formatSeconds(span) + " a step";
  StringRef costs = schedule->getString("costs").value_or("");
  if (costs != "estimated")
    return line + ", by costs measured in " + costs.str() + "; " +
           formatShare(std::max(span - busy, 0.0) / span) +
           " of it idle at the busiest position";
  std::vector<std::pair<double, std::string>> shares{
      {flops / span, "arithmetic"},
      {memory / span, "memory"},
      {link / span, "collectives"},
      {std::max(busy - flops - memory - link, 0.0) / span, "updates"},
      {std::max(span - busy, 0.0) / span, "waiting for other stages"}};
  llvm::stable_sort(
      shares, [](const auto &a, const auto &b) { return a.first > b.first; });
  line += ", bound by " + shares.front().second + ": ";
  for (auto [i, share] : llvm::enumerate(shares))
    if (share.first >= 0.001)
      line += (i ? ", " : "") + share.second + " " + formatShare(share.first);
  llvm::raw_string_ostream(line)
      << llvm::format(" (at %.3g flop/s, %.3g B/s of memory, %.3g B/s sent)",
                      number(machine, "flops"), number(machine, "memory"),
                      number(machine, "link"));
  return line;
}

std::vector<std::string> Summary::lines() const {
  std::vector<std::string> lines;
  for (std::string line :
       {describeStep(), describeMemory(), describePeak(), describeSaved(),
        describeSent(), describeMost(), describePipeline(), describeTime()})
    if (!line.empty())
      lines.push_back(std::move(line));
  // Detail "cost" has all.
  if (std::vector<std::string> replicated = explainReplicated(report);
      !replicated.empty())
    lines.push_back(std::move(replicated.front()));
  lines.push_back("more: detail \"layers\" has each decision, with layers "
                  "folded; \"full\" has all of them");
  return lines;
}

std::vector<std::string> cleave::summarizeReport(const json::Object &report) {
  return Summary(report).lines();
}
