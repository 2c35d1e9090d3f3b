//===- ActionTrace.cpp - The actions that a rank ran ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Core/ActionTrace.h"
#include "llvm/ADT/Twine.h"

using namespace cleave::runtime;

/// The name of `scheduled` for one micro-batch.
static std::string nameOf(const ScheduledAction &scheduled,
                          int32_t microBatch) {
  auto [before, after] = llvm::StringRef(scheduled.name).split('*');
  if (before.size() == scheduled.name.size())
    return scheduled.name;
  return (before + llvm::Twine(microBatch) + after).str();
}

std::vector<ActionEvent>
cleave::runtime::actionsOf(const Program &program, llvm::StringRef entry,
                           llvm::ArrayRef<TraceEvent> trace) {
  std::vector<ActionEvent> events;
  auto it = program.entries.find(entry.str());
  if (it == program.entries.end())
    return events;
  while (!trace.empty()) {
    int32_t run = trace.front().run;
    int64_t at = trace.front().start;
    for (const Action &action : it->second.actions) {
      const Part &part = program.parts[static_cast<size_t>(action.part)];
      ActionEvent event;
      // An action without commands takes no time.
      event.start = at;
      while (!trace.empty() && trace.front().run == run &&
             trace.front().action == &action) {
        const TraceEvent &command = trace.front();
        at = command.start + command.duration;
        event.duration = at - event.start;
        if (command.command->kind == CommandKind::Check)
          event.waited += command.duration;
        trace = trace.drop_front();
      }
      const ScheduledAction &scheduled = part.scheduled;
      if (scheduled.name.empty())
        continue;
      bool once = !llvm::StringRef(scheduled.name).contains('*');
      event.name = nameOf(scheduled, action.microBatch);
      event.kind = scheduled.kind;
      event.stage = scheduled.stage;
      event.flops = scheduled.flops;
      event.microBatch = once ? -1 : action.microBatch;
      event.run = run;
      events.push_back(std::move(event));
    }
    // Commands that belong to no action of this entry.
    while (!trace.empty() && trace.front().run == run)
      trace = trace.drop_front();
  }
  return events;
}
