//===- Timeline.cpp - Timelines of a step ---------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "TimeAxis.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/Format.h"
#include <cmath>

using namespace cleave::scheduling;
using llvm::StringRef;

static constexpr llvm::StringLiteral kKindNames[] = {
    "forward", "backward",  "input gradient", "weight gradient", "update",
    "gather",  "reduction", "other",          "communication"};

EventKind cleave::scheduling::eventKindOf(const Action &action) {
  if (action.kind != Action::Kind::Run)
    return EventKind::Communication;
  static constexpr std::pair<llvm::StringLiteral, EventKind> kinds[] = {
      {"F", EventKind::Forward},       {"B", EventKind::Backward},
      {"I", EventKind::InputGradient}, {"W", EventKind::WeightGradient},
      {"U", EventKind::Update},        {"D", EventKind::Update},
      {"A", EventKind::Update},        {"G", EventKind::Gather},
      {"R", EventKind::Reduction}};
  for (const auto &[part, kind] : kinds)
    if (action.part == part)
      return kind;
  return EventKind::Other;
}

StringRef cleave::scheduling::eventKindName(EventKind kind) {
  return kKindNames[static_cast<size_t>(kind)];
}

std::optional<EventKind> cleave::scheduling::parseEventKind(StringRef name) {
  for (auto [i, known] : llvm::enumerate(kKindNames))
    if (name == known)
      return static_cast<EventKind>(i);
  return std::nullopt;
}

double Timeline::end() const {
  double last = 0;
  for (const Row &row : rows)
    for (const TimelineEvent &event : row.events)
      last = std::max(last, event.end);
  return last;
}

std::vector<double> cleave::scheduling::idleShares(const Timeline &timeline) {
  double whole = timeline.end();
  std::vector<double> shares;
  for (const Timeline::Row &row : timeline.rows) {
    double busy = 0;
    for (const TimelineEvent &event : row.events)
      if (event.kind != EventKind::Communication)
        busy += event.end - event.start;
    shares.push_back(whole > 0 ? std::clamp(1 - busy / whole, 0.0, 1.0) : 0);
  }
  return shares;
}

Timeline cleave::scheduling::makeTimeline(StringRef name,
                                          const Schedule &schedule,
                                          const Simulation &simulation) {
  Timeline timeline{name.str(), {}};
  for (auto [d, actions] : llvm::enumerate(schedule.devices)) {
    Timeline::Row &row = timeline.rows.emplace_back();
    row.name = "position " + std::to_string(d);
    for (auto [action, span] : llvm::zip_equal(actions, simulation.spans[d]))
      row.events.push_back({action.str(), eventKindOf(action),
                            action.microBatch, span.start, span.end});
  }
  return timeline;
}

namespace {
struct Unit {
  double seconds;
  llvm::StringLiteral name;
};
} // namespace

/// The largest unit that is not greater than `seconds`.
static const Unit &unitOf(double seconds) {
  static constexpr Unit units[] = {
      {1, "s"}, {1e-3, "ms"}, {1e-6, "us"}, {1e-9, "ns"}};
  for (const Unit &unit : units)
    if (seconds >= unit.seconds)
      return unit;
  return std::end(units)[-1];
}

std::string cleave::scheduling::formatSeconds(double seconds) {
  if (seconds == 0)
    return "0 s";
  const Unit &unit = unitOf(seconds);
  std::string text;
  llvm::raw_string_ostream(text)
      << llvm::format("%.3g ", seconds / unit.seconds) << unit.name;
  return text;
}

TimeAxis::TimeAxis(llvm::ArrayRef<Timeline> timelines, unsigned wanted) {
  for (const Timeline &timeline : timelines)
    end = std::max(end, timeline.end());
  if (!(end > 0 && std::isfinite(end)))
    end = 1;
  const Unit &found = unitOf(end);
  unit = found.name;
  // The step is 1, 2 or 5 times a power of 10.
  double least = end / found.seconds / std::max(wanted, 1u);
  double step = std::pow(10, std::floor(std::log10(least)));
  for (double factor : {1, 2, 5, 10})
    if (factor * step >= least) {
      step *= factor;
      break;
    }
  for (int i = 0; i * step <= end / found.seconds * (1 + 1e-9); ++i) {
    std::string label;
    llvm::raw_string_ostream(label) << llvm::format("%.6g", i * step);
    ticks.push_back({i * step * found.seconds, std::move(label)});
  }
}

bool cleave::scheduling::hasKind(llvm::ArrayRef<Timeline> timelines,
                                 EventKind kind) {
  for (const Timeline &timeline : timelines)
    for (const Timeline::Row &row : timeline.rows)
      for (const TimelineEvent &event : row.events)
        if (event.kind == kind)
          return true;
  return false;
}
