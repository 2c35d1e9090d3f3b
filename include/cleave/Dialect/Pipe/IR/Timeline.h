//===- Timeline.h - When each device does what ------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A step on a time axis, simulated or measured, as text, as a picture, and as
/// a trace for viewers (Perfetto, chrome://tracing). Several are drawn below
/// each other on one axis.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_PIPE_IR_TIMELINE_H
#define CLEAVE_DIALECT_PIPE_IR_TIMELINE_H

#include "cleave/Dialect/Pipe/IR/Simulate.h"
#include "llvm/Support/raw_ostream.h"

namespace cleave::pipe {

/// What a device does, which a picture shows by its color.
enum class EventKind : uint8_t {
  Forward,
  Backward,
  InputGradient,
  WeightGradient,
  Update,
  Gather,       ///< of parameters, once for a step
  Reduction,    ///< of gradients, once for a step
  Other,        ///< prologues, norms
  Communication ///< beside the others, which it does not interrupt
};

/// The kind of a run, by the name of its part; of a transfer, Communication.
EventKind eventKindOf(const Action &action);
/// "forward", "backward", ...
llvm::StringRef eventKindName(EventKind kind);
std::optional<EventKind> parseEventKind(llvm::StringRef name);

struct TimelineEvent {
  /// As it stands in a schedule, or any other text.
  std::string action;
  EventKind kind = EventKind::Other;
  /// -1 for what runs once.
  int64_t microBatch = -1;
  /// In seconds.
  double start = 0, end = 0;
  /// Floating-point operations of a run; 0 where it is not known.
  double flops = 0;
};

struct Timeline {
  /// Such as "predicted" or "measured".
  std::string name;
  /// For each device, its name and what it does; all but communication one
  /// after another, by time.
  struct Row {
    std::string name;
    std::vector<TimelineEvent> events;
  };
  std::vector<Row> rows;

  /// When the last event ends.
  double end() const;
};

/// That of a simulation in seconds.
Timeline makeTimeline(llvm::StringRef name, const Schedule &schedule,
                      const Simulation &simulation);

/// A row of letters for each device. `columns` is how many the time has.
void writeTimelineText(llvm::raw_ostream &os,
                       llvm::ArrayRef<Timeline> timelines,
                       unsigned columns = 120);

/// A picture. `title` stands above it.
void writeTimelineSvg(llvm::raw_ostream &os, llvm::ArrayRef<Timeline> timelines,
                      llvm::StringRef title);

/// A trace of complete events: `name` is the action, `cat` the kind, `ts` and
/// `dur` are microseconds, and `args` has `device` and, unless it runs once,
/// `micro_batch`. Each timeline is a process, each device a thread of it, and
/// its transfers are one or several more.
void writeTimelineTrace(llvm::raw_ostream &os,
                        llvm::ArrayRef<Timeline> timelines);

/// Reads the events of a trace as `writeTimelineTrace` writes it, all processes
/// as one timeline of this name; others, and other fields, are left out. `step`
/// in the `args` of an event says which of several steps it is of: each is a
/// timeline that begins at 0, in their order. `waited` there, in microseconds,
/// is how long a run waited for other devices: so much later it begins; `flops`
/// are its floating-point operations. On failure returns nothing and sets
/// `error`.
std::optional<std::vector<Timeline>> readTimelineSteps(llvm::StringRef json,
                                                       llvm::StringRef name,
                                                       std::string &error);

/// The same of one step: of several, that of median length (of an even number,
/// the shorter one in the middle).
std::optional<Timeline> readTimelineTrace(llvm::StringRef json,
                                          llvm::StringRef name,
                                          std::string &error);

/// Of each device, the share of the whole timeline in which it runs nothing,
/// whatever is sent meanwhile.
std::vector<double> idleShares(const Timeline &timeline);

/// Seconds in the unit that suits them: `1.5 ms`.
std::string formatSeconds(double seconds);

} // namespace cleave::pipe

#endif // CLEAVE_DIALECT_PIPE_IR_TIMELINE_H
