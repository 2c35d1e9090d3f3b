//===- FindCost.cpp - A plan beside its closed form -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/OpCost.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "cleave/Dialect/Spmd/Transforms/Recipes.h"
#include "cleave/Planning/CostForms.h"
#include "cleave/Reports/CommunicationFacts.h"
#include "cleave/Reports/FormatBytes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include <set>

using namespace mlir;
using namespace cleave;
using closedforms::Form;
using closedforms::SentKey;
using closedforms::StepOptions;

std::optional<double> cleave::operationsOf(Operation *op) {
  auto costed = dyn_cast<graph::CostOpInterface>(op);
  if (!costed)
    return std::nullopt;
  graph::OpCost cost = costed.getCost();
  if (cost.work != graph::WorkClass::Contraction &&
      cost.work != graph::WorkClass::Attention)
    return std::nullopt;
  return static_cast<double>(cost.flops);
}

double cleave::findOperations(ModuleOp module) {
  double sum = 0;
  for (auto program : module.getOps<pipe::ProgramOp>()) {
    if (program.getSymName() != "train")
      continue;
    auto count = static_cast<double>(program.getMicroBatches());
    for (auto invoke : program.getBody().getOps<pipe::InvokeOp>()) {
      func::FuncOp part = invoke.getPartFunction();
      if (!part || part.isExternal() || invoke.isConditional())
        continue;
      for (Operation &op : part.getBody().front().without_terminator())
        sum += operationsOf(&op).value_or(0) * (invoke.getOnce() ? 1 : count);
    }
  }
  return sum;
}

namespace {
/// The plan's side of a row, and the place that sends most of it.
struct Planned {
  CommunicationFacts::Sent sent;
  double most = 0;
  LocationAttr location;
  std::string cause, line;
};

/// Compares one plan.
class Comparison {
public:
  Comparison(const Form &form, const StepOptions &options)
      : form(form), options(options) {}

  void addPlan(ModuleOp module);
  CostFacts find(double operations, const runtime::MemoryPlan &memory,
                 LocationAttr location);

private:
  SentKey keyOf(const CommunicationFacts::Key &key,
                const CommunicationFacts::Place &place) const;
  void addRow(const SentKey &key, CostFacts &cost) const;
  double numbers() const;

  const Form &form;
  const StepOptions &options;
  std::map<SentKey, Planned> planned;
  int64_t positions = 0;
};
} // namespace

/// The axes in the order of the mesh; micro-batches are no axis of devices, and
/// one step of a ring is a permutation.
SentKey Comparison::keyOf(const CommunicationFacts::Key &key,
                          const CommunicationFacts::Place &place) const {
  std::vector<std::string> axes;
  for (const closedforms::Axis &axis : options.axes)
    if (llvm::is_contained(place.axes, axis.name))
      axes.push_back(axis.name);
  for (const std::string &name : place.axes)
    if (!llvm::is_contained(axes, name) && name != spmd::kMicroBatchAxis)
      axes.push_back(name);
  const std::string &kind = std::get<0>(key);
  return {kind == "rotate" ? "permute" : kind, std::move(axes)};
}

void Comparison::addPlan(ModuleOp module) {
  for (const CommunicationFacts &facts : findCommunication(module)) {
    if (facts.entry != "train")
      continue;
    ++positions;
    for (const auto &[key, place] : facts.places) {
      Planned &own = planned[keyOf(key, place)];
      own.sent.count += place.count;
      own.sent.elements += place.elements;
      own.sent.bytes += place.bytes;
      if (place.bytes <= own.most)
        continue;
      own.most = place.bytes;
      own.location = place.location;
      own.line = std::get<2>(key);
      own.cause = std::get<3>(key);
    }
  }
}

/// Bytes of losses, norms, flags and scales, which no form counts.
double Comparison::numbers() const {
  return (closedforms::kNumbers + options.scaleBytes) * options.microBatches *
         static_cast<double>(std::max<int64_t>(positions, 1));
}

void Comparison::addRow(const SentKey &key, CostFacts &cost) const {
  auto formed = form.sent.find(key);
  auto found = planned.find(key);
  CostFacts::Row row;
  row.kind = key.first;
  // Parts of an axis are written with their quotes.
  row.axes = llvm::join(llvm::map_range(key.second,
                                        [](const std::string &axis) {
                                          return axis.front() == '"'
                                                     ? axis
                                                     : '"' + axis + '"';
                                        }),
                        ", ");
  if (formed != form.sent.end()) {
    row.elements.form = formed->second.elements;
    row.bytes.form = formed->second.bytes;
    row.terms = formed->second.terms;
  }
  if (found != planned.end()) {
    row.count = found->second.sent.count;
    row.elements.plan = found->second.sent.elements;
    row.bytes.plan = found->second.sent.bytes;
  }
  row.exceeds = row.bytes.plan >
                row.bytes.form * (1 + closedforms::kTolerance) + numbers();
  if (row.exceeds) {
    std::string text = llvm::formatv(
        "the plan sends {0} by {1} over {2}, and its closed form ",
        formatBytes(row.bytes.plan), row.kind, row.axes);
    text += formed == form.sent.end()
                ? std::string("has none")
                : formatBytes(row.bytes.form) + " (" + row.terms + ")";
    text += "; most of it: " + formatBytes(found->second.most);
    if (!found->second.line.empty())
      text += " at " + found->second.line;
    if (!found->second.cause.empty())
      text += ", because " + found->second.cause;
    cost.excesses.push_back({found->second.location, std::move(text)});
  }
  cost.sent.push_back(std::move(row));
}

CostFacts Comparison::find(double operations, const runtime::MemoryPlan &memory,
                           LocationAttr location) {
  CostFacts cost;
  std::set<SentKey> keys;
  for (const auto &[key, sent] : form.sent)
    keys.insert(key);
  for (const auto &[key, sent] : planned)
    keys.insert(key);
  for (const SentKey &key : keys)
    addRow(key, cost);
  cost.operations = {form.operations, operations};
  cost.modelOperations = form.modelOperations;
  double ranks = 1;
  for (const closedforms::Axis &axis : options.axes)
    if (axis.split != closedforms::Split::Stages)
      ranks *= static_cast<double>(axis.size);
  cost.repeated = {ranks * form.operations / form.wholeOperations,
                   ranks * operations / form.wholeOperations};
  cost.parameterBytes.form = form.parameterBytes;
  cost.stateBytes.form = form.stateBytes;
  for (const closedforms::Kept &kept : form.kept)
    cost.kept.push_back({kept.term, kept.elements, kept.ranks});
  cost.working = form.working;
  for (const runtime::MemoryPlan::Position &position : memory.positions)
    for (const auto &[role, bytes] : position.bytesOfRoles)
      if (role == "parameter" || role == "state")
        (role == "state" ? cost.stateBytes : cost.parameterBytes).plan +=
            static_cast<double>(bytes);
  auto over = [&](const CostFacts::Pair &pair, double more) {
    return pair.plan > pair.form * (1 + closedforms::kTolerance) + more;
  };
  if (over(cost.operations, 0))
    cost.excesses.push_back(
        {location,
         llvm::formatv("a rank computes {0:e3} operations in a step, and its "
                       "closed form {1:e3}: {2:f2} times as many",
                       cost.operations.plan, cost.operations.form,
                       cost.operations.plan / cost.operations.form)});
  if (over(cost.parameterBytes, numbers()))
    cost.excesses.push_back(
        {location, "parameters at rest take " +
                       formatBytes(cost.parameterBytes.plan) +
                       ", and by their closed form " +
                       formatBytes(cost.parameterBytes.form)});
  if (cost.stateBytes.form >= 0 && over(cost.stateBytes, numbers()))
    cost.excesses.push_back({location, "the optimizer's state takes " +
                                           formatBytes(cost.stateBytes.plan) +
                                           ", and by its closed form " +
                                           formatBytes(cost.stateBytes.form)});
  return cost;
}

CostFacts cleave::findCost(ModuleOp module, const Form &form,
                           const StepOptions &options, double operations,
                           const runtime::MemoryPlan &memory) {
  if (!form.missing.empty()) {
    CostFacts none;
    none.missing = form.missing;
    return none;
  }
  Comparison comparison(form, options);
  comparison.addPlan(module);
  return comparison.find(operations, memory, module.getLoc());
}

LogicalResult cleave::checkCost(ModuleOp module, const CostFacts &cost) {
  if (!cost.missing.empty())
    return module.emitError("no closed form for ")
           << cost.missing << ", so its cost cannot be checked";
  if (cost.excesses.empty())
    return success();
  auto at = [&](const CostFacts::Excess &excess) {
    return excess.location ? Location(excess.location) : module.getLoc();
  };
  // One error, so that none of two at one place is dropped.
  InFlightDiagnostic error = emitError(at(cost.excesses.front()))
                             << cost.excesses.front().text;
  for (const CostFacts::Excess &excess : llvm::drop_begin(cost.excesses))
    error.attachNote(at(excess)) << excess.text;
  return error;
}
