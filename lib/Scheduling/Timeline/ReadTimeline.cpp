//===- ReadTimeline.cpp - Timelines from traces ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Scheduling/Timeline/Timeline.h"
#include "cleave/Support/JsonDepth.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/JSON.h"
#include <cmath>
#include <map>

using namespace cleave;
using namespace cleave::scheduling;
using llvm::StringRef;
namespace json = llvm::json;

/// A bound on positions, above that of any pipeline.
static constexpr int64_t kMostDevices = 4096;
/// The most rows of all steps together.
static constexpr size_t kMostRows = 1 << 20;
/// The longest time in seconds, so that sums of times stay finite.
static constexpr double kMostTime = 1e12;

namespace {
/// An event of a position.
struct ReadEvent {
  int64_t device = 0, step = 0;
  TimelineEvent event;
};
} // namespace

/// Reads an event. Returns nothing for events of other kinds, which are
/// ignored; sets `error` if the event is invalid.
static std::optional<ReadEvent> readEvent(const json::Value &entry,
                                          std::string &error) {
  const json::Object *object = entry.getAsObject();
  if (!object || object->getString("ph") != StringRef("X"))
    return std::nullopt;
  std::optional<EventKind> kind =
      parseEventKind(object->getString("cat").value_or(""));
  const json::Object *args = object->getObject("args");
  std::optional<int64_t> device =
      args ? args->getInteger("device") : std::nullopt;
  if (!kind || !device)
    return std::nullopt;
  std::string name = object->getString("name").value_or("").str();
  double start = object->getNumber("ts").value_or(NAN) * 1e-6;
  double duration = object->getNumber("dur").value_or(NAN) * 1e-6;
  double waited = args->getNumber("waited").value_or(0) * 1e-6;
  if (*device < 0 || *device >= kMostDevices ||
      !(std::abs(start) <= kMostTime) || !(duration <= kMostTime) ||
      !(duration >= 0) || !(waited >= 0)) {
    error = "the event '" + name +
            "' is invalid: \"ts\" and \"dur\" must be at most 1e18, \"dur\" "
            "and \"waited\" must not be negative, and \"device\" must be from "
            "0 to 4095";
    return std::nullopt;
  }
  return ReadEvent{*device, args->getInteger("step").value_or(0),
                   TimelineEvent{std::move(name), *kind,
                                 args->getInteger("micro_batch").value_or(-1),
                                 start + std::min(waited, duration),
                                 start + duration,
                                 args->getNumber("flops").value_or(0)}};
}

/// Sorts events by time and shifts them so that the first one begins at 0.
static void arrange(Timeline &timeline, size_t devices) {
  double begin = INFINITY;
  while (timeline.rows.size() < devices)
    timeline.rows.push_back(
        {"position " + std::to_string(timeline.rows.size()), {}});
  for (const Timeline::Row &row : timeline.rows)
    for (const TimelineEvent &event : row.events)
      begin = std::min(begin, event.start);
  for (Timeline::Row &row : timeline.rows) {
    for (TimelineEvent &event : row.events) {
      event.start -= begin;
      event.end -= begin;
    }
    llvm::sort(row.events, [](const auto &a, const auto &b) {
      return std::tie(a.start, a.end, a.action) <
             std::tie(b.start, b.end, b.action);
    });
  }
}

std::optional<std::vector<Timeline>>
cleave::scheduling::readTimelineSteps(StringRef text, StringRef name,
                                      std::string &error) {
  if (isJsonTooDeep(text)) {
    error = "the JSON text is nested more than " +
            std::to_string(kMostJsonDepth) + " deep";
    return std::nullopt;
  }
  llvm::Expected<json::Value> value = json::parse(text);
  if (!value) {
    error = llvm::toString(value.takeError());
    return std::nullopt;
  }
  const json::Object *object = value->getAsObject();
  const json::Array *events =
      object ? object->getArray("traceEvents") : value->getAsArray();
  if (!events) {
    error = "the trace has no \"traceEvents\"";
    return std::nullopt;
  }
  std::map<int64_t, Timeline> steps;
  size_t devices = 0;
  std::string wrong;
  for (const json::Value &entry : *events) {
    std::optional<ReadEvent> read = readEvent(entry, wrong);
    if (!wrong.empty()) {
      error = wrong;
      return std::nullopt;
    }
    if (!read)
      continue;
    size_t count = read->device + 1;
    devices = std::max(devices, count);
    std::vector<Timeline::Row> &rows = steps[read->step].rows;
    // Every step has a row for every position.
    if (steps.size() > kMostRows / devices) {
      error = "the trace has " + std::to_string(steps.size()) +
              " steps and more, of " + std::to_string(devices) +
              " pipeline positions, which is too much to compare; trace fewer "
              "steps";
      return std::nullopt;
    }
    while (rows.size() < count)
      rows.push_back({"position " + std::to_string(rows.size()), {}});
    rows[read->device].events.push_back(std::move(read->event));
  }
  if (steps.empty()) {
    error = "no event of the trace has a kind and a pipeline position, such as "
            "\"cat\": \"forward\", \"args\": {\"device\": 0}";
    return std::nullopt;
  }
  std::vector<Timeline> result;
  for (auto &[number, timeline] : steps) {
    timeline.name = name.str();
    arrange(timeline, devices);
    result.push_back(std::move(timeline));
  }
  return result;
}

std::optional<Timeline>
cleave::scheduling::readTimelineTrace(StringRef text, StringRef name,
                                      std::string &error) {
  std::optional<std::vector<Timeline>> steps =
      readTimelineSteps(text, name, error);
  if (!steps)
    return std::nullopt;
  auto middle = steps->begin() + (steps->size() - 1) / 2;
  std::nth_element(
      steps->begin(), middle, steps->end(),
      [](const Timeline &a, const Timeline &b) { return a.end() < b.end(); });
  return std::move(*middle);
}
