//===- BoundaryReport.cpp - What stages send each other -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ScheduleDetails.h"
#include "cleave/Dialect/Graph/IR/Messages/SourceLine.h"
#include <deque>
#include <map>
#include <set>

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;
namespace json = llvm::json;

/// The bytes of the value that stage `to` gathers from slices that it receives;
/// nothing if the value is not sent in slices.
static std::optional<double> bytesWhole(Value value, int64_t to,
                                        const SymbolTable &functions) {
  for (OpOperand &use : value.getUses()) {
    auto reader = dyn_cast<InvokeOp>(use.getOwner());
    if (!reader || static_cast<int64_t>(reader.getStage()) != to)
      continue;
    auto function = functions.lookup<func::FuncOp>(reader.getCallee());
    if (!function || function.isExternal())
      continue;
    for (Operation *user :
         function.getArgument(use.getOperandNumber()).getUsers())
      if (user->hasAttr(kSlicedAttr))
        return bytesOf(user->getResult(0));
  }
  return std::nullopt;
}

json::Array cleave::describeBoundaries(const PredictedSchedule &known) {
  ProgramOp program = known.program;
  int64_t count = program.getMicroBatches();
  SymbolTable functions(program->getParentOfType<ModuleOp>());
  struct Sent {
    std::deque<json::Value> values;
    double elements = 0, bytes = 0, elementsOnce = 0, bytesOnce = 0;
    double bytesWhole = 0;
  };
  std::map<std::pair<int64_t, int64_t>, Sent> boundaries;
  for (auto [part, invoke] : llvm::zip_equal(known.parts, known.invokes)) {
    InvokeOp run = invoke;
    auto function = functions.lookup<func::FuncOp>(run.getCallee());
    std::set<int64_t> readers;
    for (Operation *user : run->getUsers())
      if (auto reader = dyn_cast<InvokeOp>(user))
        readers.insert(reader.getStage());
    for (int64_t to : readers) {
      if (known.map.devicesOf(to) == known.map.devicesOf(part.stage))
        continue;
      for (unsigned result : resultsReadBy(run, to)) {
        Value value = run->getResult(result);
        auto type = cast<RankedTensorType>(value.getType());
        bool once = part.once || !run.isSaved(result);
        Sent &sent = boundaries[{part.stage, to}];
        (once ? sent.elementsOnce : sent.elements) += type.getNumElements();
        (once ? sent.bytesOnce : sent.bytes) += bytesOf(value);
        std::string shape, line;
        llvm::raw_string_ostream(shape) << type;
        if (function && !function.isExternal())
          line = sourceLine(function.getBody()
                                .front()
                                .getTerminator()
                                ->getOperand(result)
                                .getLoc());
        std::optional<double> whole = bytesWhole(value, to, functions);
        sent.bytesWhole += once ? 0 : whole.value_or(bytesOf(value));
        sent.values.push_back(json::Object{{"part", part.name},
                                           {"type", shape},
                                           {"bytes", bytesOf(value)},
                                           {"line", line},
                                           {"once", once}});
        if (whole)
          (*sent.values.back().getAsObject())["whole_bytes"] = *whole;
      }
    }
  }
  json::Array result;
  result.reserve(boundaries.size());
  for (auto &[ends, sent] : boundaries) {
    // An array that grows copies its values.
    json::Array values;
    values.reserve(sent.values.size());
    for (json::Value &value : sent.values)
      values.push_back(std::move(value));
    result.push_back(json::Object{
        {"from", ends.first},
        {"to", ends.second},
        {"elements_per_micro_batch", sent.elements},
        {"bytes_per_micro_batch", sent.bytes},
        {"whole_bytes_per_micro_batch", sent.bytesWhole},
        {"elements_per_step", sent.elements * count + sent.elementsOnce},
        {"bytes_per_step", sent.bytes * count + sent.bytesOnce},
        {"values", std::move(values)}});
  }
  return result;
}
