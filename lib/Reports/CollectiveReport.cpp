//===- CollectiveReport.cpp - What a schedule exchanges within stages
//-------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ScheduleDetails.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "llvm/ADT/StringSet.h"
#include <map>
#include <set>

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;
namespace json = llvm::json;

llvm::DenseMap<Value, StringRef>
cleave::parameterNames(const PredictedSchedule &known) {
  llvm::DenseMap<Value, StringRef> names;
  ProgramOp program = known.program;
  llvm::StringSet<> parameters;
  for (BlockArgument argument : program.getArguments()) {
    auto text = [&](StringRef attribute) {
      auto found = program.getArgAttrOfType<StringAttr>(argument.getArgNumber(),
                                                        attribute);
      return found ? found.getValue() : StringRef();
    };
    if (text(graph::kRoleAttr) != "parameter")
      continue;
    names[argument] = text(graph::kNameAttr);
    parameters.insert(text(graph::kNameAttr));
  }
  for (auto [i, value] : llvm::enumerate(
           program.getBody().front().getTerminator()->getOperands()))
    if (auto name =
            program.getResultAttrOfType<StringAttr>(i, graph::kUpdatesAttr);
        name && parameters.contains(name.getValue()))
      names[value] = name.getValue();
  return names;
}

llvm::DenseMap<Value, std::string>
cleave::madeOfParameters(const llvm::DenseMap<Value, StringRef> &names,
                         InvokeOp invoke) {
  llvm::DenseMap<Value, std::string> made;
  func::FuncOp function = invoke.getPartFunction();
  if (!function || function.isExternal())
    return made;
  // Values that another part has gathered once still depend on parameters.
  std::map<Operation *, llvm::DenseMap<Value, std::string>> others;
  for (auto [argument, input] :
       llvm::zip_equal(function.getArguments(), invoke.getInputs())) {
    if (auto it = names.find(input); it != names.end())
      made[argument] = it->second.str();
    auto from = input.getDefiningOp<InvokeOp>();
    if (!from || !from.getOnce() || from.getPartFunction().isExternal())
      continue;
    auto [other, fresh] = others.try_emplace(from);
    if (fresh)
      other->second = madeOfParameters(names, from);
    Value given = from.getPartFunction().front().getTerminator()->getOperand(
        cast<OpResult>(input).getResultNumber());
    if (auto it = other->second.find(given); it != other->second.end())
      made[argument] = it->second;
  }
  for (Operation &op : function.getBody().front().without_terminator()) {
    if (op.getNumOperands() == 0 ||
        !llvm::all_of(op.getOperands(),
                      [&](Value value) { return made.count(value); }))
      continue;
    std::string together;
    for (Value operand : op.getOperands())
      together += (together.empty() ? "" : ", ") + made[operand];
    for (Value result : op.getResults())
      made[result] = together;
  }
  return made;
}

static double count(const PredictedSchedule &known) {
  return ProgramOp(known.program).getMicroBatches();
}

namespace {
/// The bytes sent in a step, by mesh axes.
class AxesBytes {
public:
  void add(const PredictedSchedule &known, spmd::CommunicationOpInterface op,
           double bytes) {
    std::string text;
    for (const spmd::AxisRef &axis :
         known.mesh.deviceAxes(op.getCommunicationAxes()))
      text += (text.empty() ? "" : ", ") + axis.str();
    if (bytes > 0)
      this->bytes[text] += bytes;
  }
  json::Object describe() const {
    json::Object result;
    for (const auto &[axes, sent] : bytes)
      result[axes] = sent;
    return result;
  }

private:
  std::map<std::string, double> bytes;
};
} // namespace

json::Object cleave::describeGathers(const PredictedSchedule &known) {
  double perMicroBatch = 0, inFront = 0, once = 0, kept = 0, held = 0;
  int64_t number = 0, numberInFront = 0;
  AxesBytes axes;
  std::set<std::tuple<int64_t, std::string, const void *, const void *>> seen;
  llvm::DenseMap<Value, StringRef> names = parameterNames(known);
  for (auto [part, invoke] : llvm::zip_equal(known.parts, known.invokes)) {
    // Parts that run once count if parts of micro-batches read their results.
    InvokeOp run = invoke;
    if (part.once && llvm::none_of(run->getUsers(), [](Operation *user) {
          auto reader = dyn_cast<InvokeOp>(user);
          return reader && !reader.getOnce();
        }))
      continue;
    llvm::DenseMap<Value, std::string> made = madeOfParameters(names, run);
    if (made.empty())
      continue;
    Block &body = run.getPartFunction().getBody().front();
    for (Operation &op : body.without_terminator()) {
      auto sender = dyn_cast<spmd::CommunicationOpInterface>(op);
      auto it = sender ? made.find(op.getResult(0)) : made.end();
      if (it == made.end())
        continue;
      double sent = sender.getBytesSent(known.mesh);
      (part.once ? inFront : perMicroBatch) += sent;
      axes.add(known, sender, part.once ? sent : sent * count(known));
      ++(part.once ? numberInFront : number);
      Value result = op.getResult(0);
      if (part.once &&
          llvm::is_contained(body.getTerminator()->getOperands(), result))
        held += bytesOf(result);
      if (seen.insert({part.stage, it->second,
                       op.getAttrDictionary().getAsOpaquePointer(),
                       result.getType().getAsOpaquePointer()})
              .second) {
        once += sent;
        kept += bytesOf(result);
      }
    }
  }
  ProgramOp program = known.program;
  auto choice = program->getAttrOfType<StringAttr>(kGatherAttr);
  return json::Object{
      {"choice", choice ? choice.getValue() : "each"},
      {"count_per_micro_batch", number},
      {"count_once", numberInFront},
      {"sent_bytes_per_micro_batch", perMicroBatch},
      {"sent_bytes_once", inFront},
      {"sent_bytes_per_step", perMicroBatch * count(known) + inFront},
      {"sent_bytes_by_axes", axes.describe()},
      {"kept_bytes", held},
      {"sent_bytes_if_once", once},
      {"kept_bytes_if_once", kept}};
}

/// Whether the op is linear in this operand and reduces nothing itself, so that
/// it commutes with the sum over micro-batches. Such ops lie between a gradient
/// and its accumulation.
static bool passesSums(OpOperand &use) {
  Operation *op = use.getOwner();
  // Slices and collectives.
  if (isa<spmd::SliceOp, spmd::CommunicationOpInterface>(op))
    return true;
  auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(op);
  if (!ruled)
    return false;
  graph::ShardingRule rule = ruled.getShardingRule();
  return llvm::any_of(rule.linear,
                      [&](ArrayRef<unsigned> set) {
                        return llvm::is_contained(set, use.getOperandNumber());
                      }) &&
         llvm::none_of(rule.factors, [](const graph::Factor &factor) {
           return factor.kind == graph::FactorKind::Reduction;
         });
}

json::Object cleave::describeReductions(const PredictedSchedule &known) {
  double perMicroBatch = 0, once = 0;
  int64_t number = 0, numberOnce = 0;
  AxesBytes axes;
  for (auto [part, invoke] : llvm::zip_equal(known.parts, known.invokes)) {
    InvokeOp run = invoke;
    func::FuncOp function = run.getPartFunction();
    if (!function || function.isExternal() ||
        (part.once ? part.name != "R" : part.name == "F" || part.name == "P"))
      continue;
    llvm::DenseSet<Operation *> summed;
    for (Operation &op :
         llvm::reverse(function.getBody().front().without_terminator())) {
      bool own = part.once || llvm::all_of(op.getUses(), [&](OpOperand &use) {
                   if (isa<func::ReturnOp>(use.getOwner()))
                     return run.isAccumulated(use.getOperandNumber());
                   return summed.contains(use.getOwner()) && passesSums(use);
                 });
      if (!own)
        continue;
      summed.insert(&op);
      auto sender = dyn_cast<spmd::CommunicationOpInterface>(op);
      if (!sender)
        continue;
      ++(part.once ? numberOnce : number);
      double sent = sender.getBytesSent(known.mesh);
      (part.once ? once : perMicroBatch) += sent;
      axes.add(known, sender, part.once ? sent : sent * count(known));
    }
  }
  return json::Object{
      {"count_per_micro_batch", number},
      {"count_once", numberOnce},
      {"sent_bytes_per_micro_batch", perMicroBatch},
      {"sent_bytes_once", once},
      {"sent_bytes_per_step", perMicroBatch * count(known) + once},
      {"sent_bytes_by_axes", axes.describe()}};
}
