//===- ScheduleReport.cpp - What a schedule costs, as facts ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ReportParts.h"
#include "ScheduleDetails.h"
#include "cleave/Dialect/Graph/IR/Messages/SourceLine.h"
#include "cleave/Reports/Reports.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;
using scheduling::ScheduleFacts;
namespace json = llvm::json;

/// The first op of the stage's forward that reads a parameter: the name of the
/// parameter and the line of the op.
static json::Object describeBegin(const PredictedSchedule &known,
                                  const llvm::DenseMap<Value, StringRef> &names,
                                  int64_t stage) {
  for (auto [part, invoke] : llvm::zip_equal(known.parts, known.invokes)) {
    if (part.stage != stage || part.name != "F")
      continue;
    llvm::DenseMap<Value, std::string> made = madeOfParameters(names, invoke);
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

static json::Object describeStage(const ScheduleFacts::Stage &facts) {
  json::Object seconds;
  for (const auto &[part, cost] : facts.seconds)
    seconds[part] = cost;
  json::Object stage{{"device", facts.position},
                     {"cost_share", facts.costShare},
                     {"seconds", std::move(seconds)},
                     {"flops", facts.work.flops},
                     {"bytes", facts.work.bytes},
                     {"sent_bytes", facts.work.sentBytes},
                     {"contraction_flops", facts.work.contraction},
                     {"contraction_16bit_flops", facts.work.contraction16},
                     {"contraction_8bit_flops", facts.work.contraction8},
                     {"attention_flops", facts.work.attention},
                     {"streamed_bytes", facts.work.streamed},
                     {"parameters", facts.parameters},
                     {"parameter_bytes", facts.parameterBytes},
                     {"saved_bytes_per_micro_batch", facts.savedBytes},
                     {"peak_in_flight", facts.peakInFlight},
                     {"peak_saved_bytes", facts.peakSavedBytes}};
  if (facts.versions) {
    stage["versions"] = facts.versions->count;
    stage["staleness"] = facts.versions->staleness;
    stage["version_bytes"] = facts.versions->bytes;
  }
  return stage;
}

static json::Object describePosition(const ScheduleFacts::Position &facts) {
  return json::Object{{"stages", json::Array(facts.stages)},
                      {"end", facts.end},
                      {"busy", facts.busy},
                      {"idle_between", facts.idleBetween},
                      {"peak_in_flight", facts.peakInFlight},
                      {"peak_chunks", facts.peakChunks},
                      {"peak_saved_bytes", facts.peakSavedBytes}};
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

/// What is idle of the busiest position, as shares of several times.
static json::Object describeBubble(const ScheduleFacts &facts) {
  auto share = [](double part, double whole) {
    return whole > 0 ? part / whole : 0;
  };
  return json::Object{
      {"of_makespan", share(facts.makespan - facts.ideal, facts.makespan)},
      {"of_ideal", share(facts.makespan - facts.ideal, facts.ideal)},
      // Rounding may make it negative.
      {"of_period",
       share(std::max(facts.period - facts.ideal, 0.0), facts.period)}};
}

static json::Object describe(const PredictedSchedule &known) {
  ScheduleFacts facts = findScheduleFacts(known);
  json::Array stages, positions;
  // An array that grows copies its values.
  stages.reserve(facts.stages.size());
  positions.reserve(facts.positions.size());
  llvm::DenseMap<Value, StringRef> names = parameterNames(known);
  for (auto [number, stage] : llvm::enumerate(facts.stages)) {
    json::Object own = describeStage(stage);
    own["stage"] = static_cast<int64_t>(number);
    own["begins"] = describeBegin(known, names, static_cast<int64_t>(number));
    stages.push_back(std::move(own));
  }
  for (auto [number, position] : llvm::enumerate(facts.positions)) {
    json::Object own = describePosition(position);
    own["device"] = static_cast<int64_t>(number);
    positions.push_back(std::move(own));
  }
  return json::Object{
      {"name", known.name()},
      {"entry", ProgramOp(known.program).getName()},
      {"actions", known.schedule.compact()},
      {"stage_map", known.map.name()},
      {"micro_batches",
       static_cast<int64_t>(ProgramOp(known.program).getMicroBatches())},
      {"machine", json::Object{{"flops", known.machine.flops},
                               {"memory", known.machine.memory},
                               {"link", known.machine.link}}},
      {"costs", known.measuredFrom.empty() ? "estimated" : known.measuredFrom},
      {"predicted", describeIdle(makeTimeline("predicted", known.schedule,
                                              known.simulation))},
      {"makespan", facts.makespan},
      {"period", facts.period},
      {"ideal", facts.ideal},
      {"bubble", describeBubble(facts)},
      {"transfers", facts.transfers},
      {"stages", std::move(stages)},
      {"devices", std::move(positions)},
      {"boundaries", describeBoundaries(known)},
      {"weight_gathers", describeGathers(known)},
      {"reductions", describeReductions(known)}};
}

FailureOr<json::Value>
cleave::describeSchedule(ModuleOp module, const CostSource &source,
                         const scheduling::Timeline *measured) {
  FailureOr<PredictedSchedule> known = PredictedSchedule::of(module, source);
  if (failed(known))
    return failure();
  if (!known->program)
    return json::Value(nullptr);
  json::Object report = describe(*known);
  if (measured)
    report["measured"] = describeIdle(*measured);
  return json::Value(std::move(report));
}

FailureOr<Report> cleave::scheduleReport(ModuleOp module,
                                         const CostSource &source,
                                         const scheduling::Timeline *measured) {
  FailureOr<json::Value> schedule = describeSchedule(module, source, measured);
  if (failed(schedule))
    return failure();
  return Report(json::Object{{"schedule", std::move(*schedule)}});
}
