//===- ProgramReport.cpp - All that was decided of a program --------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ReportParts.h"

using namespace cleave;
using llvm::StringRef;
namespace json = llvm::json;

static StringRef nameOf(RecomputeDecision::Binds binds) {
  switch (binds) {
  case RecomputeDecision::Binds::Nothing:
    return "nothing";
  case RecomputeDecision::Binds::MemoryLimit:
    return "memory limit";
  case RecomputeDecision::Binds::SavedBytes:
    return "limit of saved bytes";
  }
  return "";
}

static json::Object describe(const RecomputeDecision &decision) {
  json::Array tried;
  for (const RecomputeDecision::Tried &plan : decision.tried)
    tried.push_back(json::Object{
        {"policy", plan.policy},
        {"bytes", plan.bytes ? json::Value(*plan.bytes) : json::Value(nullptr)},
        {"seconds", plan.seconds}});
  return json::Object{
      {"policy", decision.policy},       {"bytes", decision.bytes},
      {"limit", decision.limit},         {"seconds", decision.seconds},
      {"binds", nameOf(decision.binds)}, {"tried", std::move(tried)}};
}

static json::Object describe(const ExpertBufferDecision &decision) {
  return json::Object{{"shares", decision.shares},
                      {"given", decision.given},
                      {"arena_bytes", decision.arenaBytes},
                      {"worst_bytes", decision.worstBytes},
                      {"most_bytes", decision.mostBytes},
                      {"other_shares", decision.otherShares},
                      {"other_arena_bytes", decision.otherArenaBytes},
                      {"other_bytes", decision.otherBytes}};
}

Report cleave::programReport(mlir::ModuleOp module, const ProgramFacts &facts,
                             Report schedule) {
  const runtime::MemoryPlan &memory = facts.memory;
  json::Object plan = describeMemory(module, memory);
  if (json::Array *positions = plan.getArray("positions"))
    for (auto [position, own] : llvm::zip_equal(*positions, memory.positions))
      (*position.getAsObject())["memory"] = summarizeMemory(own);
  json::Object report{
      {"memory", memory.positions.empty()
                     ? json::Object()
                     : summarizeMemory(memory.positions[memory.largest])},
      {"recompute", facts.recompute ? json::Value(describe(*facts.recompute))
                                    : json::Value(nullptr)},
      {"communication", communicationReport(module)},
      {"placement", placementReport(module)},
      {"plan", std::move(plan)},
      {"target", facts.target},
      {"check_finite", facts.checkFinite},
      {"micro_batches", facts.microBatches}};
  if (facts.expertBuffer)
    report["expert_buffer"] = describe(*facts.expertBuffer);
  if (facts.cost)
    report["cost"] = describeCost(*facts.cost);
  if (facts.prediction)
    report["prediction"] = describePrediction(*facts.prediction);
  json::Object scheduled = takeFactsOf(std::move(schedule));
  json::Value *own = scheduled.get("schedule");
  report["schedule"] = own ? std::move(*own) : json::Value(nullptr);
  report["decisions"] = explainDecisions(report);
  return Report(std::move(report));
}
