//===- ScheduleReport.cpp - What a schedule costs, as facts ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "PredictedSchedule.h"
#include "cleave/Dialect/Graph/IR/SourceLine.h"
#include "llvm/ADT/SetVector.h"
#include <map>

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;
namespace json = llvm::json;

namespace {
/// Builds the report of one predicted schedule.
class Reporter {
public:
  explicit Reporter(const PredictedSchedule &known)
      : known(known), count(ProgramOp(known.program).getMicroBatches()),
        names(parameterNames(known)) {}

  json::Object report();

private:
  struct Peak {
    int64_t inFlight = 0, bytes = 0;
  };
  bool savesFor(const PartInfo::Use &use, const PartInfo &part) const;
  std::vector<int64_t> countReaders() const;
  std::vector<Peak> findPeaks() const;
  std::vector<double> findBusy() const;
  llvm::SetVector<Value> parametersOf(int64_t stage) const;
  json::Object describeBegin(int64_t stage) const;
  void describeVersions(int64_t stage, json::Object &facts) const;
  json::Array describeStages();
  json::Array describeDevices(ArrayRef<double> busy) const;

  const PredictedSchedule &known;
  int64_t count;
  llvm::DenseMap<Value, StringRef> names;
};
} // namespace

/// Whether `part` reads saved results of another part of its stage by `use`.
bool Reporter::savesFor(const PartInfo::Use &use, const PartInfo &part) const {
  const PartInfo &from = known.parts[use.part];
  return use.sameMicroBatch && !part.once && !from.once &&
         from.stage == part.stage && from.saved;
}

/// For each part, the number of parts that read its saved results.
std::vector<int64_t> Reporter::countReaders() const {
  std::vector<int64_t> readers(known.parts.size(), 0);
  for (const PartInfo &part : known.parts)
    for (const PartInfo::Use &use : part.uses)
      readers[use.part] += savesFor(use, part);
  return readers;
}

/// For each stage, the most micro-batches with saved results at a time, and the
/// most bytes saved.
std::vector<Reporter::Peak> Reporter::findPeaks() const {
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
std::vector<double> Reporter::findBusy() const {
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

/// The parameters that parts of a stage read, in the order of the entry.
llvm::SetVector<Value> Reporter::parametersOf(int64_t stage) const {
  llvm::SetVector<Value> found;
  ProgramOp program = known.program;
  for (BlockArgument argument : program.getArguments())
    if (names.contains(argument) &&
        llvm::any_of(argument.getUsers(), [&](Operation *user) {
          auto invoke = dyn_cast<InvokeOp>(user);
          return invoke && static_cast<int64_t>(invoke.getStage()) == stage;
        }))
      found.insert(argument);
  return found;
}

/// The first op of the stage's forward that reads a parameter: the name of the
/// parameter and the line of the op.
json::Object Reporter::describeBegin(int64_t stage) const {
  for (auto [part, invoke] : llvm::zip_equal(known.parts, known.invokes)) {
    if (part.stage != stage || part.name != "F")
      continue;
    llvm::DenseMap<Value, std::string> made = madeOfParameters(known, invoke);
    if (made.empty())
      continue;
    func::FuncOp function = InvokeOp(invoke).getPartFunction();
    for (Operation &op : function.getBody().front().without_terminator())
      for (Value operand : op.getOperands())
        if (auto it = made.find(operand);
            it != made.end() &&
            (op.getNumResults() == 0 || !made.count(op.getResult(0))))
          return json::Object{{"parameter", it->second},
                              {"line", sourceLine(op.getLoc())}};
  }
  return {};
}

/// Adds the versions of the stage's parameters under an asynchronous schedule:
/// the newest one, and those that micro-batches in flight have read.
void Reporter::describeVersions(int64_t stage, json::Object &facts) const {
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
    return;
  const Simulation::Stage &found = known.simulation.stages[stage];
  facts["versions"] = found.versions;
  facts["staleness"] = found.staleness;
  facts["version_bytes"] = found.versions * bytes;
}

json::Array Reporter::describeStages() {
  std::vector<Peak> peaks = findPeaks();
  std::vector<int64_t> readers = countReaders();
  double all = 0;
  for (auto [part, seconds] : llvm::zip_equal(known.parts, known.costs.run))
    if (!part.once)
      all += seconds;
  json::Array stages;
  for (int64_t stage = 0; stage < known.stages(); ++stage) {
    Work work;
    double own = 0;
    int64_t saved = 0, parameterBytes = 0;
    json::Object seconds;
    for (auto [part, invoke, cost, read] : llvm::zip_equal(
             known.parts, known.invokes, known.costs.run, readers)) {
      if (part.stage != stage)
        continue;
      seconds[part.name] = cost;
      if (part.once)
        continue;
      own += cost;
      work += workOf(invoke, known.mesh);
      saved += read ? part.saved : 0;
    }
    llvm::SetVector<Value> parameters = parametersOf(stage);
    for (Value parameter : parameters)
      parameterBytes += bytesOf(parameter);
    stages.push_back(
        json::Object{{"stage", stage},
                     {"device", known.map.device(stage)},
                     {"begins", describeBegin(stage)},
                     {"cost_share", all > 0 ? own / all : 0},
                     {"seconds", std::move(seconds)},
                     {"flops", work.flops},
                     {"bytes", work.bytes},
                     {"sent_bytes", work.sentBytes},
                     {"contraction_flops", work.contraction},
                     {"contraction_16bit_flops", work.contraction16},
                     {"contraction_8bit_flops", work.contraction8},
                     {"attention_flops", work.attention},
                     {"streamed_bytes", work.streamed},
                     {"parameters", static_cast<int64_t>(parameters.size())},
                     {"parameter_bytes", parameterBytes},
                     {"saved_bytes_per_micro_batch", saved},
                     {"peak_in_flight", peaks[stage].inFlight},
                     {"peak_saved_bytes", peaks[stage].bytes}});
    describeVersions(stage, *stages.back().getAsObject());
  }
  return stages;
}

json::Array Reporter::describeDevices(ArrayRef<double> busy) const {
  json::Array devices;
  const Simulation &simulation = known.simulation;
  for (int64_t d = 0; d < known.map.devices; ++d) {
    json::Array stages;
    for (int64_t stage = 0; stage < known.stages(); ++stage)
      if (llvm::is_contained(known.map.devicesOf(stage), d))
        stages.push_back(stage);
    double end = 0;
    for (const Span &span : simulation.spans[d])
      end = std::max(end, span.end);
    devices.push_back(
        json::Object{{"device", d},
                     {"stages", std::move(stages)},
                     {"end", end},
                     {"busy", busy[d]},
                     {"idle_between", simulation.idle[d]},
                     {"peak_in_flight", simulation.peakInFlight[d]},
                     {"peak_chunks", simulation.peakChunks[d]},
                     {"peak_saved_bytes", simulation.peakSaved[d]}});
  }
  return devices;
}

/// The length of a step, and for each position the share of it that is idle.
static json::Object describeIdle(const Timeline &timeline) {
  std::vector<double> shares = idleShares(timeline);
  double most = 0;
  for (double share : shares)
    most = std::max(most, share);
  return json::Object{{"makespan", timeline.end()},
                      {"idle", json::Array(shares)},
                      {"largest_idle", most}};
}

json::Object Reporter::report() {
  const Simulation &simulation = known.simulation;
  std::vector<double> busy = findBusy();
  double ideal = *llvm::max_element(busy);
  int64_t transfers = 0;
  for (const std::vector<Action> &actions : known.schedule.devices)
    transfers += llvm::count_if(actions, [](const Action &action) {
      return action.kind == Action::Kind::Send;
    });
  auto share = [](double part, double whole) {
    return whole > 0 ? part / whole : 0;
  };
  return json::Object{
      {"name", known.name()},
      {"entry", ProgramOp(known.program).getName()},
      {"actions", known.schedule.compact()},
      {"stage_map", known.map.name()},
      {"micro_batches", count},
      {"machine", json::Object{{"flops", known.machine.flops},
                               {"memory", known.machine.memory},
                               {"link", known.machine.link}}},
      {"costs", known.measuredFrom.empty() ? "estimated" : known.measuredFrom},
      {"predicted",
       describeIdle(makeTimeline("predicted", known.schedule, simulation))},
      {"makespan", simulation.makespan},
      {"period", simulation.period},
      {"ideal", ideal},
      {"bubble",
       json::Object{
           {"of_makespan",
            share(simulation.makespan - ideal, simulation.makespan)},
           {"of_ideal", share(simulation.makespan - ideal, ideal)},
           // Rounding may make it negative.
           {"of_period", share(std::max(simulation.period - ideal, 0.0),
                               simulation.period)}}},
      {"transfers", transfers},
      {"stages", describeStages()},
      {"devices", describeDevices(busy)},
      {"boundaries", describeBoundaries(known)},
      {"weight_gathers", describeGathers(known)},
      {"reductions", describeReductions(known)}};
}

FailureOr<json::Value> cleave::scheduleReport(ModuleOp module,
                                              const CostSource &source,
                                              const Timeline *measured) {
  FailureOr<PredictedSchedule> known = PredictedSchedule::of(module, source);
  if (failed(known))
    return failure();
  if (!known->program)
    return json::Value(nullptr);
  json::Object report = Reporter(*known).report();
  if (measured)
    report["measured"] = describeIdle(*measured);
  return json::Value(std::move(report));
}
