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
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include <map>
#include <numeric>
#include <tuple>

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

static std::string axesOf(CollectiveOp op) {
  std::string text;
  for (const spmd::AxisRef &axis : cast<spmd::AxesAttr>(op.getAxes()).getAxes())
    text += (text.empty() ? "" : ", ") + axis.str();
  return text;
}

namespace {
struct Sent {
  int64_t count = 0;
  double elements = 0, bytes = 0;

  void add(int64_t times, double each, double size) {
    count += times;
    elements += static_cast<double>(times) * each;
    bytes += static_cast<double>(times) * each * size;
  }
  json::Object describe() const {
    return json::Object{
        {"count", count}, {"elements", elements}, {"bytes", bytes}};
  }
};
} // namespace

/// Whether a flag decides if the part runs.
static bool isOptional(func::FuncOp part) {
  for (unsigned i = 0; i < part.getNumArguments(); ++i)
    if (part.getArgAttr(i, kUnlessAttr))
      return true;
  return false;
}

static json::Object describe(ProgramOp program, const SymbolTable &symbols) {
  // By kind, axes, line and cause.
  std::map<std::tuple<std::string, std::string, std::string, std::string>, Sent>
      places;
  std::map<std::pair<std::string, std::string>, Sent> totals;
  Sent all, again;
  for (auto [run, times] : llvm::zip_equal(program.getBody().getOps<RunOp>(),
                                           program.countActions())) {
    auto part = symbols.lookup<func::FuncOp>(run.getCallee());
    if (!part || part.isExternal())
      continue;
    // The repeated update runs only if the first one was wrong.
    if (isOptional(part)) {
      for (auto op : part.front().getOps<CollectiveOp>())
        again.add(times, elementsSent(op),
                  elementBytes(op.getInput().getType().getElementType()));
      continue;
    }
    for (auto op : part.front().getOps<SendOp>()) {
      RankedTensorType type = op.getInput().getType();
      double elements = static_cast<double>(type.getNumElements()),
             size = elementBytes(type.getElementType());
      std::string axes = spmd::AxisRef{spmd::kPipelineAxis}.str();
      places[{"send", axes, sourceLine(op.getLoc()),
              "position " + std::to_string(op.getTo()) + " reads it"}]
          .add(times, elements, size);
      totals[{"send", axes}].add(times, elements, size);
      all.add(times, elements, size);
    }
    for (auto op : part.front().getOps<CollectiveOp>()) {
      double elements = elementsSent(op);
      double size = elementBytes(op.getInput().getType().getElementType());
      std::string kind = stringifyCollectiveKind(op.getKind()).str();
      std::string axes = axesOf(op);
      places[{kind, axes, sourceLine(op.getLoc()),
              spmd::causeOf(op.getLoc()).str()}]
          .add(times, elements, size);
      totals[{kind, axes}].add(times, elements, size);
      all.add(times, elements, size);
    }
  }
  json::Array collectives, sums;
  for (auto &[key, sent] : places) {
    json::Object entry = sent.describe();
    entry["kind"] = std::get<0>(key);
    entry["axes"] = std::get<1>(key);
    entry["line"] = std::get<2>(key);
    entry["cause"] = std::get<3>(key);
    collectives.push_back(std::move(entry));
  }
  for (auto &[key, sent] : totals) {
    json::Object entry = sent.describe();
    entry["kind"] = key.first;
    entry["axes"] = key.second;
    sums.push_back(std::move(entry));
  }
  json::Object result = all.describe();
  if (again.count)
    result["updated_again"] = again.describe();
  result["collectives"] = std::move(collectives);
  result["totals"] = std::move(sums);
  return result;
}

json::Value cleave::communicationReport(ModuleOp module) {
  // The entry is that of the pipeline position that sends most.
  json::Object entries;
  std::map<std::string, json::Array> positions;
  SymbolTable symbols(module);
  for (auto program : module.getOps<ProgramOp>()) {
    StringRef name = program.getEntryName();
    json::Object own = describe(program, symbols);
    if (program.getPosition())
      positions[name.str()].push_back(json::Object(own));
    const json::Object *known = entries.getObject(name);
    if (!known || known->getNumber("bytes") < own.getNumber("bytes"))
      entries[name] = std::move(own);
  }
  for (auto &[name, all] : positions)
    (*entries.getObject(name))["positions"] = std::move(all);
  return entries;
}
