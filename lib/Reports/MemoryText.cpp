//===- MemoryText.cpp - The memory of a device on a page ------------------===//
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
namespace json = llvm::json;

/// The largest tensors that are listed; the others are one line.
static constexpr size_t kListed = 24;

/// `12.3 MiB saved, 4.0 MiB state`, the largest first.
static std::string describeKinds(const json::Object &kinds) {
  std::vector<std::pair<double, std::string>> sorted;
  for (const auto &[kind, bytes] : kinds)
    if (bytes.getAsNumber().value_or(0) > 0)
      sorted.push_back({*bytes.getAsNumber(), kind.str()});
  llvm::sort(sorted, [](const auto &a, const auto &b) {
    return std::pair(-a.first, a.second) < std::pair(-b.first, b.second);
  });
  std::string text;
  for (const auto &[bytes, kind] : sorted)
    text += (text.empty() ? "" : ", ") + formatBytes(bytes) + " " + kind;
  return text;
}

/// The lines of `items`, the largest first.
static void listTensors(std::vector<const json::Object *> items,
                        std::vector<std::string> &lines) {
  llvm::stable_sort(items, [](const json::Object *a, const json::Object *b) {
    return number(*a, "bytes") > number(*b, "bytes");
  });
  double rest = 0;
  for (auto [i, item] : llvm::enumerate(items)) {
    if (i >= kListed) {
      rest += number(*item, "bytes");
      continue;
    }
    int64_t count = item->getInteger("count").value_or(1);
    lines.push_back(llvm::formatv(
        "  {0,-10} {1,-13} {2}{3}", formatBytes(number(*item, "bytes")),
        textOf(*item, "kind"),
        count > 1 ? llvm::formatv("{0} x ", count).str() : "",
        textOf(*item, "name")));
  }
  if (items.size() > kListed)
    lines.push_back(llvm::formatv("  {0,-10} in {1} more lines",
                                  formatBytes(rest), items.size() - kListed));
}

static void explainEntry(StringRef name, const json::Object &position,
                         const json::Object &entry,
                         std::vector<std::string> &lines) {
  std::string when;
  if (const json::Object *time = entry.getObject("peak_time"))
    when = llvm::formatv(
        " in {0}, command {1} of {2}{3}", textOf(*time, "action"),
        time->getInteger("command").value_or(0),
        time->getInteger("commands").value_or(0),
        textOf(*time, "at").empty() ? "" : ", " + textOf(*time, "at"));
  lines.push_back(
      llvm::formatv("{0}: the peak is{1}", name, when.empty() ? " 0" : when));
  if (const json::Object *kinds = entry.getObject("kinds_at_peak"))
    lines.push_back("  " + describeKinds(*kinds));
  if (const json::Object *moved = entry.getObject("offload"))
    lines.push_back(
        llvm::formatv("  {0} fetched from the second tier, {1} "
                      "evicted to it",
                      formatBytes(number(*moved, "fetched_bytes")),
                      formatBytes(number(*moved, "evicted_bytes"))));
  std::vector<const json::Object *> items;
  for (const json::Array *array :
       {position.getArray("fixed"), entry.getArray("live_at_peak")})
    if (array)
      for (const json::Value &item : *array)
        items.push_back(item.getAsObject());
  listTensors(std::move(items), lines);
}

/// The lines of what is saved by block.
static void explainSaved(const json::Object &entry,
                         std::vector<std::string> &lines) {
  const json::Array *groups = entry.getArray("saved_by_block");
  if (!groups)
    return;
  for (const json::Value &value : *groups) {
    const json::Object &group = *value.getAsObject();
    size_t blocks = group.getArray("blocks")->size();
    std::string masks =
        number(group, "mask_bytes") > 0
            ? llvm::formatv("; dropout masks, which are not stored, would take "
                            "{0}",
                            formatBytes(number(group, "mask_bytes")))
                  .str()
            : "";
    lines.push_back(llvm::formatv(
        "saved for backward of a micro-batch {0}: {1}{2}",
        blocks == 0   ? "outside of blocks"
        : blocks == 1 ? "in a block"
                      : llvm::formatv("in each of {0} blocks", blocks).str(),
        formatBytes(number(group, "bytes")), masks));
    std::vector<const json::Object *> tensors;
    for (const json::Value &tensor : *group.getArray("tensors"))
      tensors.push_back(tensor.getAsObject());
    llvm::stable_sort(tensors,
                      [](const json::Object *a, const json::Object *b) {
                        return number(*a, "bytes") > number(*b, "bytes");
                      });
    for (const json::Object *tensor :
         llvm::ArrayRef(tensors).take_front(kListed))
      lines.push_back(llvm::formatv(
          "  {0,-10} {1} x {2}{3}", formatBytes(number(*tensor, "bytes")),
          tensor->getInteger("count").value_or(1), textOf(*tensor, "op"),
          textOf(*tensor, "line").empty() ? ""
                                          : " at " + textOf(*tensor, "line")));
  }
}

std::vector<std::string> cleave::explainMemory(const json::Object &report) {
  const json::Object &plan = *report.getObject("plan");
  const json::Array *several = plan.getArray("positions");
  std::vector<std::string> lines;
  auto largest = plan.getInteger("largest").value_or(0);
  if (several)
    for (auto [i, position] : llvm::enumerate(*several))
      lines.push_back(llvm::formatv(
          "position {0}: {1} for a device{2}", i,
          formatBytes(number(*position.getAsObject(), "arena_bytes")),
          static_cast<int64_t>(i) == largest ? ", the largest; more of it below"
                                             : ""));
  lines.push_back("arena of a device: " +
                  formatBytes(number(plan, "arena_bytes")));
  if (double bytes = number(plan, "tier_bytes"); bytes > 0)
    lines.push_back("in the second tier of a device: " + formatBytes(bytes));
  if (const json::Object *outside = plan.getObject("outside"))
    lines.push_back(llvm::formatv(
        "outside of the arena: {0} workspace of the library at most, {1} "
        "messages of a rank that is a process",
        formatBytes(number(*outside, "library")),
        formatBytes(number(*outside, "messages"))));
  const json::Object *entries = plan.getObject("entries");
  if (!entries)
    return lines;
  std::vector<std::string> names;
  for (const auto &[name, entry] : *entries)
    names.push_back(StringRef(name).str());
  llvm::sort(names, [](const std::string &a, const std::string &b) {
    return std::pair(a != "train", a) < std::pair(b != "train", b);
  });
  // The entry with the largest peak decides; of the others, only its size.
  for (auto [i, name] : llvm::enumerate(names)) {
    const json::Object &entry = *entries->getObject(name);
    if (i == 0) {
      explainEntry(name, plan, entry, lines);
      explainSaved(entry, lines);
      continue;
    }
    lines.push_back(llvm::formatv("{0}: {1} shared with the other entries",
                                  name,
                                  formatBytes(number(entry, "peak_bytes"))));
  }
  return lines;
}

std::string cleave::memoryTrace(const Report &whole) {
  const json::Object &report = factsOf(whole);
  const json::Object &plan = *report.getObject("plan");
  std::vector<const json::Object *> positions{&plan};
  if (const json::Array *several = plan.getArray("positions")) {
    positions.clear();
    for (const json::Value &position : *several)
      positions.push_back(position.getAsObject());
  }
  json::Array events;
  for (auto [i, position] : llvm::enumerate(positions)) {
    const json::Object *entries = position->getObject("entries");
    for (const auto &[name, value] : *entries) {
      const json::Object *profile = value.getAsObject()->getObject("profile");
      if (!profile)
        continue;
      auto id = static_cast<int64_t>(i);
      std::string title = llvm::formatv(
          "memory of {0}{1}", StringRef(name),
          positions.size() > 1 ? llvm::formatv(", position {0}", i).str() : "");
      const json::Array &times = *profile->getArray("times");
      for (auto [sample, time] : llvm::enumerate(times)) {
        json::Object bytes;
        for (const auto &[kind, values] : *profile->getObject("kinds"))
          bytes[kind] = (*values.getAsArray())[sample];
        events.push_back(json::Object{{"ph", "C"},
                                      {"name", title},
                                      {"pid", id},
                                      {"ts", time},
                                      {"args", std::move(bytes)}});
      }
      const json::Array &actions = *profile->getArray("actions");
      for (size_t a = 0; a < actions.size(); ++a) {
        const json::Object &action = *actions[a].getAsObject();
        double begin = number(action, "begin"),
               end =
                   a + 1 < actions.size()
                       ? number(*actions[a + 1].getAsObject(), "begin")
                       : std::max(begin,
                                  times.back().getAsNumber().value_or(begin)) +
                             1;
        events.push_back(json::Object{{"ph", "X"},
                                      {"name", textOf(action, "name")},
                                      {"pid", id},
                                      {"tid", StringRef(name)},
                                      {"ts", begin},
                                      {"dur", end - begin}});
      }
    }
  }
  std::string text;
  llvm::raw_string_ostream(text) << json::Value(json::Object{
      {"traceEvents", std::move(events)}, {"displayTimeUnit", "ns"}});
  return text;
}
