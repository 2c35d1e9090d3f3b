//===- Timeline.h - Timelines of a step -------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Timelines of a step, simulated or measured, written as text, as an SVG
/// picture, or as a trace for viewers (Perfetto, chrome://tracing). Several
/// timelines are drawn below each other on one time axis.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SCHEDULING_TIMELINE_TIMELINE_H
#define CLEAVE_SCHEDULING_TIMELINE_TIMELINE_H

#include "cleave/Scheduling/Timeline/Simulate.h"
#include "llvm/Support/raw_ostream.h"

namespace cleave::scheduling {

/// The kind of an event, which decides its color in a picture.
enum class EventKind : uint8_t {
  Forward,
  Backward,
  InputGradient,
  WeightGradient,
  Update,
  Gather,       ///< of parameters, once for a step
  Reduction,    ///< of gradients, once for a step
  Other,        ///< prologues, norms
  Communication ///< transfers, which overlap with the other events
};

/// Returns the kind of a run, by the name of its part; for a transfer,
/// Communication.
EventKind eventKindOf(const Action &action);
/// Returns "forward", "backward", ...
llvm::StringRef eventKindName(EventKind kind);
std::optional<EventKind> parseEventKind(llvm::StringRef name);

struct TimelineEvent {
  /// The action in its text form, or any other text.
  std::string action;
  EventKind kind = EventKind::Other;
  /// -1 for a part that runs once.
  int64_t microBatch = -1;
  /// In seconds.
  double start = 0, end = 0;
  /// Floating-point operations of a run; 0 if unknown.
  double flops = 0;
};

struct Timeline {
  /// A name such as "predicted" or "measured".
  std::string name;
  /// The name and the events of one position. Events other than communication
  /// do not overlap and are ordered by time.
  struct Row {
    std::string name;
    std::vector<TimelineEvent> events;
  };
  std::vector<Row> rows;

  /// The end of the last event.
  double end() const;
};

/// Returns the timeline of a simulation whose costs are in seconds.
Timeline makeTimeline(llvm::StringRef name, const Schedule &schedule,
                      const Simulation &simulation);

/// Writes a row of letters for each position. `columns` is the width of the
/// time axis in characters.
void writeTimelineText(llvm::raw_ostream &os,
                       llvm::ArrayRef<Timeline> timelines,
                       unsigned columns = 120);

/// Writes a picture with `title` above it.
void writeTimelineSvg(llvm::raw_ostream &os, llvm::ArrayRef<Timeline> timelines,
                      llvm::StringRef title);

/// Writes a trace of complete events: `name` is the action, `cat` the kind,
/// `ts` and `dur` are microseconds, and `args` has `device` (the pipeline
/// position) and, unless the part runs once, `micro_batch`. Each timeline is a
/// process; each position is one thread for runs, and one or more for
/// transfers.
void writeTimelineTrace(llvm::raw_ostream &os,
                        llvm::ArrayRef<Timeline> timelines);

/// Reads the events of a trace in the format of `writeTimelineTrace`, all
/// processes as one timeline of this name; other events and fields are ignored.
/// More fields in the `args` of an event are: `step`, the number of the step
/// (each step is a timeline that begins at 0; they are returned in order);
/// `waited`, the microseconds that a run waited for other positions, by which
/// its start is delayed; `flops`, its floating-point operations. On failure
/// returns nothing and sets `error`.
std::optional<std::vector<Timeline>> readTimelineSteps(llvm::StringRef json,
                                                       llvm::StringRef name,
                                                       std::string &error);

/// Reads a trace and returns the step of median length (of an even number of
/// steps, the shorter of the two in the middle).
std::optional<Timeline> readTimelineTrace(llvm::StringRef json,
                                          llvm::StringRef name,
                                          std::string &error);

/// Returns, for each position, the share of the timeline's length in which it
/// is idle. Communication counts as idle.
std::vector<double> idleShares(const Timeline &timeline);

/// Formats a duration in s, ms, us or ns: `1.5 ms`.
std::string formatSeconds(double seconds);

} // namespace cleave::scheduling

#endif // CLEAVE_SCHEDULING_TIMELINE_TIMELINE_H
