//===- Executor.cpp - Execution of the command table ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/CPU/Executor.h"
#include "LibraryMemory.h"

#include <algorithm>

using namespace cleave::runtime;

//===----------------------------------------------------------------------===//
// Execution
//===----------------------------------------------------------------------===//

bool Executor::exchange(cleave_request *request) const {
  const cleave_communicator_api &api = *communicator->api;
  return api.start(request) == 0 && api.wait(request) == 0;
}

bool Executor::checkLibrary() const {
  std::string why = libraryFailure();
  if (why.empty())
    return true;
  communicator->api->fail(communicator, why.c_str());
  return false;
}

bool Executor::failTier() const {
  communicator->api->fail(communicator, tier->failure().c_str());
  return false;
}

bool Executor::execute(const Step &step) {
  const Command &command = *step.command;
  switch (command.kind) {
  case CommandKind::Kernel: {
    const KernelCommand &c = command.kernel;
    const Kernel &kernel = *std::get_if<Kernel>(&step.what);
    team->parallelFor(c.items, c.grain, [&](int64_t begin, int64_t end) {
      kernel.function(kernel.args.data(), begin, end, kernel.scratch);
    });
    // Pieces of whole cache lines, so that no two threads write to one.
    if (kernel.finish)
      team->parallelFor(
          c.finishItems, 512,
          [&](int64_t begin, int64_t end) {
            kernel.finish(kernel.args.data(), begin, end, kernel.scratch);
          },
          64);
    return true;
  }
  case CommandKind::Contract:
    std::get_if<Contraction>(&step.what)->execute(*team, workspace.data());
    return checkLibrary();
  case CommandKind::AttentionForward:
  case CommandKind::AttentionBackward: {
    const Attention &attention = *std::get_if<Attention>(&step.what);
    (attention.backward ? attentionBackward : attentionForward)(
        command.attention, attention.pointers, *team);
    return checkLibrary();
  }
  case CommandKind::ScatterAdd: {
    const Scatter &scatter = *std::get_if<Scatter>(&step.what);
    scatterAdd(command.scatterAdd, scatter.rows, scatter.ids, scatter.out,
               *team);
    return true;
  }
  case CommandKind::TopK: {
    const Largest &largest = *std::get_if<Largest>(&step.what);
    topK(command.topK, largest.in, largest.values, largest.indices,
         largest.scratch, *team);
    return true;
  }
  case CommandKind::Orthonormalize: {
    const Columns &columns = *std::get_if<Columns>(&step.what);
    orthonormalize(command.orthonormalize, columns.in, columns.out,
                   columns.scratch, *team);
    return true;
  }
  case CommandKind::SortRows:
    sortRows(command.sortRows, *std::get_if<SortRowsPointers>(&step.what));
    return true;
  case CommandKind::GroupedContract:
    groupedContract(command.groupedContract,
                    *std::get_if<GroupedPointers>(&step.what), *team);
    return checkLibrary();
  case CommandKind::Copy: {
    const Copy &copy = *std::get_if<Copy>(&step.what);
    copy.copy.execute(copy.src, copy.dst, *team);
    return true;
  }
  case CommandKind::Fill:
    fill(command.fill, std::get_if<Fill>(&step.what)->dst, *team);
    return true;
  case CommandKind::Check: {
    const Check &check = *std::get_if<Check>(&step.what);
    checks.note(command.check, *check.flag != 0, check.values);
    if (!check.request)
      return true;
    *check.own = checks.passed();
    return exchange(check.request) && *check.agreed != 0;
  }
  case CommandKind::Collective:
  case CommandKind::Wait: {
    if (const auto *ended = std::get_if<Move>(&step.what))
      return tier->wait(*ended->move) || failTier();
    const Exchange &e = *std::get_if<Exchange>(&step.what);
    const cleave_communicator_api &api = *communicator->api;
    return (e.ends ? api.wait(e.request) : api.start(e.request)) == 0;
  }
  case CommandKind::Fetch:
  case CommandKind::Evict: {
    FileTier::Move &move = *std::get_if<Move>(&step.what)->move;
    (move.evicts ? offloaded.evicted : offloaded.fetched) += move.bytes;
    tier->start(move);
    return true;
  }
  }
  return true;
}

void Executor::finishCollectives(llvm::ArrayRef<Step> steps,
                                 const Step *last) const {
  std::vector<cleave_request *> open;
  for (const Step &step : steps) {
    if (&step == last)
      break;
    if (const auto *e = std::get_if<Exchange>(&step.what)) {
      if (e->ends)
        open.erase(std::find(open.begin(), open.end(), e->request));
      else
        open.push_back(e->request);
    }
  }
  for (cleave_request *request : open)
    (void)communicator->api->wait(request);
  if (tier)
    tier->drain();
}

void Executor::takeBack(llvm::ArrayRef<Step> steps, const Step *last) {
  for (const Step &step : steps.drop_front(last - steps.data()))
    if (step.whenStopped)
      (void)execute(step);
}

Stop Executor::stopAt(const CheckCommand &last) const {
  const CheckCommand *why = checks.failed();
  if (!why)
    return Stop{last.message, false, last.skips, false};
  return Stop{checks.message(communicator->rank), true, why->skips, false,
              why->room};
}

std::optional<Stop> Executor::run(llvm::StringRef name) {
  auto it = entries.find(name.str());
  if (it == entries.end())
    return Stop{"the program has no such entry", true, false, true};
  if (tier)
    if (std::string why = tier->failure(); !why.empty())
      return Stop{std::move(why), false, false, true};
  ThreadTeam::Adopted adopted = team->adopt();
  checks = {};
  offloaded = {};
  updatedAgain = 0;
  breakdown = Breakdown();
  SentSums &sent = it->second.sent;
  sent.begin();
  bool traced = tracedRuns < runsToTrace && name == tracedEntry;
  bool measure = timing || traced;
  int64_t last = measure ? monotonicNanoseconds() : 0;
  const Action *action = nullptr;
  bool skipped = false;
  for (const Step &step : it->second.steps) {
    // An action may overwrite its flag.
    if (step.action != action) {
      action = step.action;
      skipped = step.whenStopped || (step.unless && *step.unless != 0);
      updatedAgain += step.unless && !skipped;
    }
    if (skipped)
      continue;
    bool ok = execute(step);
    if (const auto *e = std::get_if<Exchange>(&step.what); e && !e->ends)
      sent.ran(e->counter);
    if (measure) {
      int64_t time = monotonicNanoseconds();
      breakdown[step.command->timeClass] += time - last;
      if (const auto *e = std::get_if<Exchange>(&step.what))
        sent.took(e->counter, time - last);
      if (traced)
        trace.push_back({step.command, step.action,
                         static_cast<int32_t>(tracedRuns), last - traceStart,
                         time - last});
      last = time;
    }
    if (ok)
      continue;
    finishCollectives(it->second.steps, &step);
    if (const char *why = communicator->api->error(communicator); *why)
      return Stop{why, false, false, true};
    takeBack(it->second.steps, &step);
    return stopAt(step.command->check);
  }
  tracedRuns += traced;
  return std::nullopt;
}

llvm::ArrayRef<Communication>
Executor::getCommunication(llvm::StringRef entry) const {
  auto it = entries.find(entry.str());
  if (it == entries.end())
    return {};
  return it->second.sent.list();
}

void Executor::startTrace(llvm::StringRef entry, int64_t runs, int64_t origin) {
  trace.clear();
  // A step does not allocate memory.
  trace.reserve(countCommands(entry) * static_cast<size_t>(runs));
  tracedEntry = entry.str();
  tracedRuns = 0;
  runsToTrace = runs;
  traceStart = origin;
}

int64_t Executor::workspaceBytes() const {
  return workspace.size() + libraryMemoryBytes();
}
