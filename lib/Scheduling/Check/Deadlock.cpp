//===- Deadlock.cpp - A schedule whose actions wait for each other --------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Scheduling/Check/ResolvedSchedule.h"

using namespace cleave::scheduling;

Violation ScheduleRunner::describeCycle() const {
  // The next action of a position waits for a later action of another position,
  // whose own next action waits too: following them reaches a cycle.
  auto next = [&](int64_t d) -> std::pair<int64_t, int> {
    int wanted = blocker(d);
    if (wanted < 0) // Another member of its collective waits.
      for (int other : schedule.groups[schedule.nodes[at[d]].group])
        if (blocker(schedule.nodes[other].device) >= 0)
          wanted = other;
    return {schedule.nodes[wanted].device, wanted};
  };
  int64_t d = 0;
  while (atEnd(d))
    ++d;
  for (int64_t steps = 0; steps < schedule.deviceCount(); ++steps)
    d = next(d).first;
  Violation found{"deadlock: "};
  std::string &text = found.text;
  int64_t start = d;
  do {
    auto [other, wanted] = next(d);
    found.actions.push_back(schedule.ref(at[d]));
    text += schedule.str(at[d]) + " at pipeline position " + std::to_string(d) +
            " waits for " + schedule.str(wanted) + " at position " +
            std::to_string(other);
    if (wanted != at[other])
      text += ", which comes after " + schedule.str(at[other]);
    text += "; ";
    d = other;
  } while (d != start);
  text += "change the order at one of these positions";
  return found;
}

std::optional<Violation>
cleave::scheduling::checkDeadlock(const ResolvedSchedule &schedule) {
  ScheduleRunner runner(schedule);
  runner.run([](llvm::ArrayRef<int>) {});
  if (runner.finished())
    return std::nullopt;
  return runner.describeCycle();
}
