//===- Simulate.cpp - Simulation of a schedule ----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Scheduling/Timeline/Simulate.h"
#include "cleave/Scheduling/Check/ResolvedSchedule.h"
#include "cleave/Scheduling/Check/SavedReplay.h"
#include "llvm/ADT/STLExtras.h"
#include <cmath>

using namespace cleave::scheduling;

Costs Costs::uniform(
    llvm::ArrayRef<PartInfo> parts,
    llvm::ArrayRef<std::pair<llvm::StringRef, double>> byName) {
  Costs costs;
  for (const PartInfo &part : parts) {
    auto it = llvm::find_if(
        byName, [&](const auto &entry) { return entry.first == part.name; });
    costs.run.push_back(!part.fuses.empty()  ? -1
                        : it == byName.end() ? 0
                                             : it->second);
  }
  return costs;
}

std::optional<std::string> Costs::check(llvm::ArrayRef<PartInfo> parts) const {
  if (run.size() != parts.size() ||
      (!transfer.empty() && transfer.size() != parts.size()))
    return "expected one cost for each of the " + std::to_string(parts.size()) +
           " parts";
  for (auto [p, part] : llvm::enumerate(parts))
    if (!std::isfinite(run[p]) || (run[p] < 0 && part.fuses.empty()) ||
        (!transfer.empty() &&
         !(transfer[p] >= 0 && std::isfinite(transfer[p]))))
      return "part " + part.name + " of stage " + std::to_string(part.stage) +
             ": a cost must be finite and not negative";
  return std::nullopt;
}

double Costs::ofPart(llvm::ArrayRef<PartInfo> parts, unsigned part) const {
  if (run[part] >= 0)
    return run[part];
  double sum = 0;
  for (unsigned other : parts[part].fuses)
    sum += run[other];
  return sum;
}

namespace {
/// The simulated time of all positions.
class Clock {
public:
  Clock(const ResolvedSchedule &schedule, const Costs &costs)
      : schedule(schedule), costs(costs), free(schedule.deviceCount(), 0),
        lastStart(schedule.deviceCount(), 0), spans(schedule.nodes.size()) {
    for (auto [n, node] : llvm::enumerate(schedule.nodes))
      if (node.kind == Action::Kind::Receive)
        for (int task : node.tasks)
          arrivals[{task, node.device}] = n;
  }

  /// Simulates one step, from the times in `free` on.
  void step() {
    ScheduleRunner(schedule).run(
        [&](llvm::ArrayRef<int> nodes) { place(nodes); });
  }

  const ResolvedSchedule &schedule;
  const Costs &costs;
  /// For each position, the end of its last run.
  std::vector<double> free;
  /// For each position, the start of its last run.
  std::vector<double> lastStart;
  std::vector<Span> spans;

private:
  double transferCost(int part) const {
    return costs.transfer.empty() ? 0 : costs.transfer[part];
  }
  /// The time when the results of a task are available at a position.
  double arrival(int need, int64_t device) const;
  /// Sets the time of an event: a run, a transfer or a collective.
  void place(llvm::ArrayRef<int> nodes);

  /// By task and position, the node that receives it.
  std::map<std::pair<int, int64_t>, int> arrivals;
};
} // namespace

double Clock::arrival(int need, int64_t device) const {
  int runner = schedule.runner[need];
  if (schedule.table->tasks[need].device == device)
    return spans[runner].end;
  if (!schedule.hasTransfers)
    return spans[runner].end + transferCost(schedule.nodes[runner].part);
  return spans[arrivals.find({need, device})->second].end;
}

void Clock::place(llvm::ArrayRef<int> nodes) {
  double start = 0;
  for (int n : nodes) {
    const Node &node = schedule.nodes[n];
    bool isRun = node.kind == Action::Kind::Run;
    start = std::max(start, isRun ? free[node.device] : lastStart[node.device]);
    if (node.kind == Action::Kind::Send)
      for (int task : node.tasks)
        start = std::max(start, spans[schedule.runner[task]].end);
    for (int need : node.needs)
      start = std::max(start, arrival(need, node.device));
  }
  for (int n : nodes) {
    const Node &node = schedule.nodes[n];
    if (node.partner >= 0) {
      spans[n] = {start, start + transferCost(node.part)};
      continue;
    }
    spans[n] = {start, start + costs.ofPart(schedule.table->parts, node.part)};
    lastStart[node.device] = start;
    free[node.device] = spans[n].end;
  }
}

/// Computes the results that depend on the order of each position's own actions
/// alone: saved amounts and versions.
static void replay(const ResolvedSchedule &schedule, Simulation &result) {
  result.stages.resize(schedule.table->stages);
  int number = 0;
  for (int64_t d = 0; d < schedule.deviceCount(); ++d) {
    SavedReplay saved(*schedule.table);
    UpdateReplay updates(*schedule.table);
    int64_t most = 0, inFlight = 0, chunks = 0, versions = 0;
    for (const Node &node : schedule.device(d)) {
      saved.run(node);
      auto update = updates.run(node, number++);
      if (node.kind == Action::Kind::Run) {
        int64_t number = schedule.table->parts[node.part].stage;
        Simulation::Stage &stage = result.stages[number];
        stage.versions = std::max(stage.versions, updates.versions(number));
        if (update)
          stage.staleness = std::max(stage.staleness, update->staleness);
      }
      most = std::max(most, saved.saved());
      inFlight = std::max(inFlight, saved.inFlight());
      chunks = std::max(chunks, saved.inFlightOfStages());
      versions = std::max(versions, updates.versions());
    }
    result.peakSaved.push_back(most);
    result.peakInFlight.push_back(inFlight);
    result.peakChunks.push_back(chunks);
    result.versions.push_back(versions);
  }
}

std::optional<Simulation> cleave::scheduling::simulate(
    const Schedule &schedule, llvm::ArrayRef<PartInfo> parts,
    int64_t microBatches, const StageMap &map, const Costs &costs,
    std::string &error, const VerifyOptions &options) {
  Violation violation;
  auto verified = VerifiedSchedule::create(schedule, parts, microBatches, map,
                                           options, violation);
  std::optional<std::string> why =
      verified ? costs.check(parts) : std::move(violation.text);
  if (why) {
    error = *why;
    return std::nullopt;
  }
  const ResolvedSchedule &resolved = verified->resolved;

  Simulation result;
  Clock clock(resolved, costs);
  clock.step();
  for (int64_t d = 0; d < resolved.deviceCount(); ++d) {
    std::vector<Span> &spans =
        result.spans.emplace_back(clock.spans.begin() + resolved.begin[d],
                                  clock.spans.begin() + resolved.begin[d + 1]);
    double last = -1, idle = 0;
    for (auto [node, span] : llvm::zip_equal(resolved.device(d), spans)) {
      result.makespan = std::max(result.makespan, span.end);
      if (node.partner >= 0)
        continue;
      if (last >= 0)
        idle += span.start - last;
      last = span.end;
    }
    result.idle.push_back(idle);
    result.maxIdle = std::max(result.maxIdle, idle);
  }
  clock.step();
  double second = 0;
  for (const Span &span : clock.spans)
    second = std::max(second, span.end);
  result.period = second - result.makespan;
  replay(resolved, result);
  return result;
}
