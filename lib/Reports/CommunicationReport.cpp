//===- CommunicationReport.cpp - What devices send, and why ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ReportParts.h"
#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Graph/IR/Messages/SourceLine.h"
#include "cleave/Dialect/Spmd/IR/Cause.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Machines/CollectiveCost.h"
#include "cleave/Reports/CommunicationFacts.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include <map>
#include <numeric>

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;
namespace json = llvm::json;

/// The elements that one rank sends. The `block` of an op is what one member
/// sends to another one, or, for an all-reduce, all that is reduced.
static double elementsSent(CollectiveOp op) {
  double block = 1;
  for (int64_t size : op.getBlock())
    block *= size;
  auto members = static_cast<int64_t>(op.getMembers());
  switch (op.getKind()) {
  case CollectiveKind::AllGather:
  case CollectiveKind::ReduceScatter:
  case CollectiveKind::AllToAll:
    block *= members;
    break;
  default:
    break;
  }
  return machines::elementsSent(op.getKind(), members, block);
}

static double elementsSent(AllToAllRowsOp op) {
  return machines::elementsSent(CollectiveKind::AllToAllRows, op.getMembers(),
                                op.getEvenElements());
}

template <typename Op> static std::string axesOf(Op op) {
  std::string text;
  for (const spmd::AxisRef &axis : cast<spmd::AxesAttr>(op.getAxes()).getAxes())
    text += (text.empty() ? "" : ", ") + axis.str();
  return text;
}

using Sent = CommunicationFacts::Sent;

static json::Object describe(const Sent &sent) {
  return json::Object{{"count", sent.count},
                      {"elements", sent.elements},
                      {"bytes", sent.bytes}};
}

/// The names of the axes, of a part of one with its size.
template <typename Op> static std::vector<std::string> namesOf(Op op) {
  std::vector<std::string> names;
  for (const spmd::AxisRef &axis : cast<spmd::AxesAttr>(op.getAxes()).getAxes())
    names.push_back(axis.isWhole() ? axis.name.str() : axis.str());
  return names;
}

/// Whether a flag decides if the part runs.
static bool isOptional(func::FuncOp part) {
  for (unsigned i = 0; i < part.getNumArguments(); ++i)
    if (part.getArgAttr(i, kUnlessAttr))
      return true;
  return false;
}

static CommunicationFacts find(ProgramOp program, const SymbolTable &symbols) {
  CommunicationFacts facts;
  facts.entry = program.getEntryName().str();
  if (program.getPosition())
    facts.position = program.getPipelinePosition();
  // Messages of an op of a part, each time, and where they are added up.
  struct Sending {
    Sent *place, *total;
    double elements, size;

    void add(int64_t times, Sent &all) const {
      for (Sent *sum : {place, total, &all})
        sum->add(times, elements, size);
    }
  };
  DenseMap<StringAttr, SmallVector<Sending, 2>> known;
  auto add = [&](SmallVectorImpl<Sending> &list, Operation *op,
                 std::string kind, std::string axes,
                 std::vector<std::string> names, std::string cause,
                 double elements, double size) {
    CommunicationFacts::Place &place =
        facts.places[{kind, axes, sourceLine(op->getLoc()), std::move(cause)}];
    if (!place.location) {
      place.location = op->getLoc();
      place.axes = std::move(names);
    }
    list.push_back({&place, &facts.totals[{kind, axes}], elements, size});
  };
  for (auto [run, times] : llvm::zip_equal(program.getBody().getOps<RunOp>(),
                                           program.countActions())) {
    StringAttr callee = run.getCalleeAttr().getAttr();
    if (auto it = known.find(callee); it != known.end()) {
      for (const Sending &sending : it->second)
        sending.add(times, facts.all);
      continue;
    }
    auto part = symbols.lookup<func::FuncOp>(callee);
    if (!part || part.isExternal())
      continue;
    // The repeated update runs only if the first one was wrong.
    if (isOptional(part)) {
      for (auto op : part.front().getOps<CollectiveOp>())
        facts.again.add(times, elementsSent(op),
                        elementBytes(op.getInput().getType().getElementType()));
      for (auto op : part.front().getOps<AllToAllRowsOp>())
        facts.again.add(times, elementsSent(op),
                        elementBytes(op.getType().getElementType()));
      continue;
    }
    SmallVector<Sending, 2> &list = known[callee];
    for (auto op : part.front().getOps<SendOp>()) {
      RankedTensorType type = op.getInput().getType();
      add(list, op, "send", spmd::AxisRef{spmd::kPipelineAxis}.str(),
          {spmd::kPipelineAxis.str()},
          "position " + std::to_string(op.getTo()) + " reads it",
          static_cast<double>(type.getNumElements()),
          elementBytes(type.getElementType()));
    }
    for (auto op : part.front().getOps<CollectiveOp>())
      add(list, op, stringifyCollectiveKind(op.getKind()).str(), axesOf(op),
          namesOf(op), spmd::causeOf(op.getLoc()).str(), elementsSent(op),
          elementBytes(op.getInput().getType().getElementType()));
    for (auto op : part.front().getOps<AllToAllRowsOp>())
      add(list, op, stringifyCollectiveKind(CollectiveKind::AllToAllRows).str(),
          axesOf(op), namesOf(op), spmd::causeOf(op.getLoc()).str(),
          elementsSent(op), elementBytes(op.getType().getElementType()));
    for (const Sending &sending : list)
      sending.add(times, facts.all);
  }
  return facts;
}

std::vector<CommunicationFacts> cleave::findCommunication(ModuleOp module) {
  std::vector<CommunicationFacts> all;
  SymbolTable symbols(module);
  for (auto program : module.getOps<ProgramOp>())
    all.push_back(find(program, symbols));
  return all;
}

static json::Object describe(const CommunicationFacts &facts) {
  json::Array collectives, sums;
  for (const auto &[key, sent] : facts.places) {
    json::Object entry = describe(sent);
    entry["kind"] = std::get<0>(key);
    entry["axes"] = std::get<1>(key);
    entry["line"] = std::get<2>(key);
    entry["cause"] = std::get<3>(key);
    collectives.push_back(std::move(entry));
  }
  for (const auto &[key, sent] : facts.totals) {
    json::Object entry = describe(sent);
    entry["kind"] = key.first;
    entry["axes"] = key.second;
    sums.push_back(std::move(entry));
  }
  json::Object result = describe(facts.all);
  if (facts.again.count)
    result["updated_again"] = describe(facts.again);
  result["collectives"] = std::move(collectives);
  result["totals"] = std::move(sums);
  return result;
}

json::Value cleave::communicationReport(ModuleOp module) {
  // The entry is that of the pipeline position that sends most.
  json::Object entries;
  std::map<std::string, json::Array> positions;
  for (const CommunicationFacts &facts : findCommunication(module)) {
    json::Object own = describe(facts);
    if (facts.position)
      positions[facts.entry].push_back(json::Object(own));
    const json::Object *known = entries.getObject(facts.entry);
    if (!known || known->getNumber("bytes") < own.getNumber("bytes"))
      entries[facts.entry] = std::move(own);
  }
  for (auto &[name, all] : positions)
    (*entries.getObject(name))["positions"] = std::move(all);
  return entries;
}
