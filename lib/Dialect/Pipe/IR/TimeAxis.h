//===- TimeAxis.h - The axis that timelines are drawn on --------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_IR_TIMEAXIS_H
#define CLEAVE_LIB_DIALECT_PIPE_IR_TIMEAXIS_H

#include "cleave/Dialect/Pipe/IR/Timeline.h"

namespace cleave::pipe {

struct TimeAxis {
  /// From 0 to the end of the longest, with about so many ticks.
  TimeAxis(llvm::ArrayRef<Timeline> timelines, unsigned wanted);

  double end = 0;
  llvm::StringRef unit;
  struct Tick {
    double seconds;
    std::string label; ///< In units.
  };
  std::vector<Tick> ticks;
};

/// All kinds, in the order of a legend.
inline constexpr EventKind kEventKinds[] = {
    EventKind::Forward,        EventKind::Backward, EventKind::InputGradient,
    EventKind::WeightGradient, EventKind::Update,   EventKind::Gather,
    EventKind::Reduction,      EventKind::Other,    EventKind::Communication};

/// Whether any timeline has events of this kind.
bool hasKind(llvm::ArrayRef<Timeline> timelines, EventKind kind);

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_IR_TIMEAXIS_H
