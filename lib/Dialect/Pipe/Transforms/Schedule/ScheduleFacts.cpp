//===- ScheduleFacts.cpp - What a schedule costs --------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Scheduling/Timeline/ScheduleFacts.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Pipe/Transforms/PredictedSchedule.h"
#include <map>

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;
using scheduling::ScheduleFacts;

namespace {
/// Finds the facts of one predicted schedule.
class FactFinder {
public:
  explicit FactFinder(const PredictedSchedule &known) : known(known) {}

  ScheduleFacts find();

private:
  struct Peak {
    int64_t inFlight = 0, bytes = 0;
  };
  bool savesFor(const PartInfo::Use &use, const PartInfo &part) const;
  std::vector<int64_t> countReaders() const;
  std::vector<Peak> findPeaks() const;
  std::vector<double> findBusy() const;
  void countParameters(int64_t stage, ScheduleFacts::Stage &facts) const;
  std::optional<ScheduleFacts::Versions> findVersions(int64_t stage) const;
  std::vector<ScheduleFacts::Stage> findStages() const;
  std::vector<ScheduleFacts::Position>
  findPositions(ArrayRef<double> busy) const;

  const PredictedSchedule &known;
};
} // namespace

/// Whether `part` reads saved results of another part of its stage by `use`.
bool FactFinder::savesFor(const PartInfo::Use &use,
                          const PartInfo &part) const {
  const PartInfo &from = known.parts[use.part];
  return use.sameMicroBatch && !part.once && !from.once &&
         from.stage == part.stage && from.saved;
}

/// For each part, the number of parts that read its saved results.
std::vector<int64_t> FactFinder::countReaders() const {
  std::vector<int64_t> readers(known.parts.size(), 0);
  for (const PartInfo &part : known.parts)
    for (const PartInfo::Use &use : part.uses)
      readers[use.part] += savesFor(use, part);
  return readers;
}

/// For each stage, the most micro-batches with saved results at a time, and the
/// most bytes saved.
std::vector<FactFinder::Peak> FactFinder::findPeaks() const {
  ArrayRef<PartInfo> parts = known.parts;
  std::map<std::pair<int64_t, StringRef>, unsigned> index;
  std::vector<int64_t> readers = countReaders();
  for (auto [p, part] : llvm::enumerate(parts))
    index[{part.stage, part.name}] = p;
  std::vector<Peak> peaks(known.stages());
  for (const std::vector<Action> &actions : known.schedule.devices) {
    // For each run, the readers left; for each stage, the bytes saved and, by
    // micro-batch, the number of runs with saved results.
    std::map<std::pair<unsigned, int64_t>, int64_t> waiting;
    std::map<int64_t, int64_t> bytes;
    std::map<int64_t, std::map<int64_t, int64_t>> live;
    for (const Action &action : actions) {
      if (action.kind != Action::Kind::Run || action.microBatch < 0)
        continue;
      unsigned p = index.at({action.stage, action.part});
      const PartInfo &part = parts[p];
      std::map<int64_t, int64_t> &mine = live[part.stage];
      for (const PartInfo::Use &use : part.uses) {
        if (!savesFor(use, part) ||
            --waiting[{use.part, action.microBatch}] > 0)
          continue;
        bytes[part.stage] -= parts[use.part].saved;
        if (--mine[action.microBatch] == 0)
          mine.erase(action.microBatch);
      }
      if (part.saved && readers[p]) {
        waiting[{p, action.microBatch}] = readers[p];
        bytes[part.stage] += part.saved;
        ++mine[action.microBatch];
      }
      Peak &peak = peaks[part.stage];
      peak.inFlight = std::max<int64_t>(peak.inFlight, mine.size());
      peak.bytes = std::max(peak.bytes, bytes[part.stage]);
    }
  }
  return peaks;
}

/// For each position, the total time of its runs.
std::vector<double> FactFinder::findBusy() const {
  std::vector<double> busy;
  for (auto [actions, spans] :
       llvm::zip_equal(known.schedule.devices, known.simulation.spans)) {
    double sum = 0;
    for (auto [action, span] : llvm::zip_equal(actions, spans))
      if (action.kind == Action::Kind::Run)
        sum += span.end - span.start;
    busy.push_back(sum);
  }
  return busy;
}

/// Counts the parameters that parts of a stage read.
void FactFinder::countParameters(int64_t stage,
                                 ScheduleFacts::Stage &facts) const {
  ProgramOp program = known.program;
  for (BlockArgument argument : program.getArguments()) {
    auto role = program.getArgAttrOfType<StringAttr>(argument.getArgNumber(),
                                                     graph::kRoleAttr);
    if (!role || role.getValue() != "parameter" ||
        llvm::none_of(argument.getUsers(), [&](Operation *user) {
          auto invoke = dyn_cast<InvokeOp>(user);
          return invoke && static_cast<int64_t>(invoke.getStage()) == stage;
        }))
      continue;
    ++facts.parameters;
    facts.parameterBytes += bytesOf(argument);
  }
}

/// The versions of the stage's parameters; nothing without an asynchronous
/// schedule.
std::optional<ScheduleFacts::Versions>
FactFinder::findVersions(int64_t stage) const {
  int64_t bytes = 0;
  bool any = false;
  for (auto [argument, result] : versionedArguments(known.program)) {
    auto own = cast<InvokeOp>(result.getOwner());
    if (static_cast<int64_t>(own.getStage()) != stage)
      continue;
    any = true;
    if (llvm::any_of(argument.getUsers(),
                     [&](Operation *user) { return user != own; }))
      bytes += bytesOf(argument);
  }
  if (!any)
    return std::nullopt;
  const scheduling::Simulation::Stage &found = known.simulation.stages[stage];
  return ScheduleFacts::Versions{found.versions, found.staleness,
                                 found.versions * bytes};
}

std::vector<ScheduleFacts::Stage> FactFinder::findStages() const {
  std::vector<Peak> peaks = findPeaks();
  std::vector<int64_t> readers = countReaders();
  double all = 0;
  for (auto [part, seconds] : llvm::zip_equal(known.parts, known.costs.run))
    if (!part.once)
      all += seconds;
  std::vector<ScheduleFacts::Stage> stages;
  for (int64_t stage = 0; stage < known.stages(); ++stage) {
    ScheduleFacts::Stage facts;
    double own = 0;
    for (auto [part, invoke, cost, read] : llvm::zip_equal(
             known.parts, known.invokes, known.costs.run, readers)) {
      if (part.stage != stage)
        continue;
      facts.seconds[part.name] = cost;
      if (part.once)
        continue;
      own += cost;
      facts.work += workOf(invoke, known.mesh);
      facts.savedBytes += read ? part.saved : 0;
    }
    facts.position = known.map.device(stage);
    facts.costShare = all > 0 ? own / all : 0;
    countParameters(stage, facts);
    facts.peakInFlight = peaks[stage].inFlight;
    facts.peakSavedBytes = peaks[stage].bytes;
    facts.versions = findVersions(stage);
    stages.push_back(std::move(facts));
  }
  return stages;
}

std::vector<ScheduleFacts::Position>
FactFinder::findPositions(ArrayRef<double> busy) const {
  std::vector<ScheduleFacts::Position> positions;
  const scheduling::Simulation &simulation = known.simulation;
  for (int64_t p = 0; p < known.map.devices; ++p) {
    ScheduleFacts::Position facts;
    for (int64_t stage = 0; stage < known.stages(); ++stage)
      if (llvm::is_contained(known.map.devicesOf(stage), p))
        facts.stages.push_back(stage);
    for (const scheduling::Span &span : simulation.spans[p])
      facts.end = std::max(facts.end, span.end);
    facts.busy = busy[p];
    facts.idleBetween = simulation.idle[p];
    facts.peakInFlight = simulation.peakInFlight[p];
    facts.peakChunks = simulation.peakChunks[p];
    facts.peakSavedBytes = simulation.peakSaved[p];
    positions.push_back(std::move(facts));
  }
  return positions;
}

ScheduleFacts FactFinder::find() {
  std::vector<double> busy = findBusy();
  ScheduleFacts facts;
  facts.stages = findStages();
  facts.positions = findPositions(busy);
  facts.makespan = known.simulation.makespan;
  facts.period = known.simulation.period;
  facts.ideal = *llvm::max_element(busy);
  for (const std::vector<Action> &actions : known.schedule.devices)
    facts.transfers += llvm::count_if(actions, [](const Action &action) {
      return action.kind == Action::Kind::Send;
    });
  return facts;
}

ScheduleFacts cleave::pipe::findScheduleFacts(const PredictedSchedule &known) {
  return FactFinder(known).find();
}
