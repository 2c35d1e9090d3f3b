//===- TimeAxis.h - The time axis of drawn timelines ------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_SCHEDULING_TIMELINE_TIMEAXIS_H
#define CLEAVE_LIB_SCHEDULING_TIMELINE_TIMEAXIS_H

#include "cleave/Scheduling/Timeline/Timeline.h"

namespace cleave::scheduling {

struct TimeAxis {
  /// Makes an axis from 0 to the end of the longest timeline, with about
  /// `wanted` ticks.
  TimeAxis(llvm::ArrayRef<Timeline> timelines, unsigned wanted);

  double end = 0;
  llvm::StringRef unit;
  struct Tick {
    double seconds;
    std::string label; ///< The time in `unit`.
  };
  std::vector<Tick> ticks;
};

/// All kinds of events, in the order of the legend.
inline constexpr EventKind kEventKinds[] = {
    EventKind::Forward,        EventKind::Backward, EventKind::InputGradient,
    EventKind::WeightGradient, EventKind::Update,   EventKind::Gather,
    EventKind::Reduction,      EventKind::Other,    EventKind::Communication};

/// Whether any timeline has events of this kind.
bool hasKind(llvm::ArrayRef<Timeline> timelines, EventKind kind);

} // namespace cleave::scheduling

#endif // CLEAVE_LIB_SCHEDULING_TIMELINE_TIMEAXIS_H
