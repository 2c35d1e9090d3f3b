//===- ScheduleRunner.cpp - Execution of a schedule -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Scheduling/Check/ResolvedSchedule.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave::scheduling;

ScheduleRunner::ScheduleRunner(const ResolvedSchedule &schedule)
    : schedule(schedule),
      at(schedule.begin.begin(), std::prev(schedule.begin.end())),
      done(schedule.nodes.size(), false) {}

int ScheduleRunner::blocker(int64_t device) const {
  const Node &node = schedule.nodes[at[device]];
  auto waitsFor = [&](int other) {
    return other != head(schedule.nodes[other].device);
  };
  if (node.partner >= 0)
    return waitsFor(node.partner) ? node.partner : -1;
  for (int need : node.needs) {
    // With transfers, results of another position arrive by a receive.
    if (schedule.hasTransfers &&
        schedule.table->tasks[need].device != node.device)
      continue;
    if (int runner = schedule.runner[need]; !done[runner])
      return runner;
  }
  if (node.group >= 0)
    for (int other : schedule.groups[node.group])
      if (waitsFor(other))
        return other;
  return -1;
}

void ScheduleRunner::run(llvm::function_ref<void(llvm::ArrayRef<int>)> visit) {
  for (bool progress = true; progress;) {
    progress = false;
    for (int64_t d = 0; d < schedule.deviceCount(); ++d)
      while (!atEnd(d) && blocker(d) < 0) {
        const Node &node = schedule.nodes[at[d]];
        llvm::SmallVector<int, 4> event{at[d]};
        if (node.partner >= 0) {
          event.push_back(node.partner);
        } else if (node.group >= 0) {
          event = schedule.groups[node.group];
          // All members have arrived, but one may wait for a dependency.
          bool ready = llvm::all_of(event, [&](int n) {
            return blocker(schedule.nodes[n].device) < 0;
          });
          if (!ready)
            break;
        }
        for (int n : event) {
          done[n] = true;
          ++at[schedule.nodes[n].device];
        }
        visit(event);
        progress = true;
      }
  }
}

bool ScheduleRunner::finished() const {
  for (int64_t d = 0; d < schedule.deviceCount(); ++d)
    if (!atEnd(d))
      return false;
  return true;
}
