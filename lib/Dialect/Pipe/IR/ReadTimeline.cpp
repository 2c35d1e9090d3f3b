//===- ReadTimeline.cpp - Timelines from traces ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Pipe/IR/Timeline.h"
#include "cleave/Support/JsonDepth.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/JSON.h"
#include <cmath>
#include <map>

using namespace cleave;
using namespace cleave::pipe;
using llvm::StringRef;
namespace json = llvm::json;

/// More devices than any pipeline has.
static constexpr int64_t kMostDevices = 4096;
/// Of all steps together.
static constexpr size_t kMostRows = 1 << 20;
/// In seconds. Sums of longer times are not finite in the end.
static constexpr double kMostTime = 1e12;

namespace {
/// What an event says, where it is one of a device.
struct ReadEvent {
  int64_t device = 0, step = 0;
  TimelineEvent event;
};
} // namespace

/// Nothing for an event of another kind, which is left out; what is wrong goes
/// to `error`.
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
            "' needs a \"ts\", a \"dur\" that is not negative, both no more "
            "than 1e18, and a \"device\" from 0 on; a time that it \"waited\" "
            "is not negative";
    return std::nullopt;
  }
  return ReadEvent{*device, args->getInteger("step").value_or(0),
                   TimelineEvent{std::move(name), *kind,
                                 args->getInteger("micro_batch").value_or(-1),
                                 start + std::min(waited, duration),
                                 start + duration,
                                 args->getNumber("flops").value_or(0)}};
}

/// Lets events begin at 0, one after another.
static void arrange(Timeline &timeline, size_t devices) {
  double begin = INFINITY;
  while (timeline.rows.size() < devices)
    timeline.rows.push_back(
        {"device " + std::to_string(timeline.rows.size()), {}});
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
cleave::pipe::readTimelineSteps(StringRef text, StringRef name,
                                std::string &error) {
  if (isJsonTooDeep(text)) {
    error =
        "it is nested more than " + std::to_string(kMostJsonDepth) + " deep";
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
    error = "it has no \"traceEvents\"";
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
    // Every step has a row for every device.
    if (steps.size() > kMostRows / devices) {
      error = "it has " + std::to_string(steps.size()) +
              " steps and more, of " + std::to_string(devices) +
              " devices, which is too much to compare; trace fewer steps";
      return std::nullopt;
    }
    while (rows.size() < count)
      rows.push_back({"device " + std::to_string(rows.size()), {}});
    rows[read->device].events.push_back(std::move(read->event));
  }
  if (steps.empty()) {
    error = "none of its events is of a device and of a kind, such as "
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

std::optional<Timeline> cleave::pipe::readTimelineTrace(StringRef text,
                                                        StringRef name,
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
