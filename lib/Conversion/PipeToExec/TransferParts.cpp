//===- TransferParts.cpp - Values sent to another position ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "TransferParts.h"
#include "PartForms.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

Transfers::Transfers(pipe::ProgramOp program,
                     const scheduling::Schedule &schedule,
                     const scheduling::StageMap &map, SymbolTable &symbols)
    : program(program), map(map), symbols(symbols) {
  for (auto invoke : program.getBody().getOps<pipe::InvokeOp>())
    invokes[{invoke.getPart().str(), invoke.getStage()}] = invoke;
  for (const std::vector<scheduling::Action> &actions : schedule.devices)
    for (const scheduling::Action &action : actions)
      if (action.kind == scheduling::Action::Kind::Run)
        last[{action.part, action.stage}] = action.microBatch;
}

pipe::InvokeOp Transfers::invokeOf(const scheduling::Action &action) const {
  return invokes.find({action.part, action.stage})->second;
}

ArrayRef<OpResult> Transfers::values(const scheduling::Action &action,
                                     int64_t device) {
  pipe::InvokeOp invoke = invokeOf(action);
  int64_t latest = last.find({action.part, action.stage})->second;
  bool complete = action.microBatch == (latest < 0 ? latest : latest - removed);
  auto [it, fresh] = sent.try_emplace({invoke, device, complete});
  if (!fresh)
    return it->second;
  SmallVector<OpResult> &results = it->second;
  for (OpResult result : invoke->getResults())
    if ((complete || invoke.isSaved(result.getResultNumber())) &&
        llvm::any_of(result.getUsers(), [&](Operation *user) {
          auto reader = dyn_cast<pipe::InvokeOp>(user);
          return reader && map.device(reader.getStage()) == device;
        }))
      results.push_back(result);
  return results;
}

int64_t Transfers::tokenOf(OpResult result, int64_t device) {
  return tokens.try_emplace({result, device}, tokens.size()).first->second;
}

func::FuncOp
Transfers::partOf(const scheduling::Action &action, StringRef what,
                  ArrayRef<OpResult> results, TypeRange inputs,
                  llvm::function_ref<void(OpBuilder &, func::FuncOp)> build) {
  // The values sent with the last micro-batch are another part.
  pipe::InvokeOp giver = invokeOf(action);
  int64_t to = map.device(action.to);
  bool isLast = llvm::any_of(results, [](OpResult result) {
    auto invoke = cast<pipe::InvokeOp>(result.getOwner());
    return !invoke.getOnce() && !invoke.isSaved(result.getResultNumber());
  });
  func::FuncOp &known = made[{giver, to, what, isLast}];
  if (known)
    return known;
  std::string name =
      (giver.getCallee() + "." + std::to_string(to) + "." + what).str();
  if (isLast)
    name += ".last";
  if ((known = symbols.lookup<func::FuncOp>(name)))
    return known;
  OpBuilder builder(program);
  Location loc = giver.getLoc();
  auto part = func::FuncOp::create(
      builder, loc, name, builder.getFunctionType(inputs, TypeRange()));
  part.setPrivate();
  builder.setInsertionPointToStart(part.addEntryBlock());
  build(builder, part);
  part.setFunctionType(builder.getFunctionType(
      inputs, part.front().getTerminator()->getOperandTypes()));
  symbols.insert(part);
  known = part;
  return part;
}

RunOp Transfers::run(OpBuilder &builder, const scheduling::Action &action,
                     func::FuncOp part, ValueRange values) {
  return RunOp::create(
      builder, part.getLoc(), part.getResultTypes(),
      FlatSymbolRefAttr::get(part.getSymNameAttr()), values,
      builder.getI64IntegerAttr(std::max<int64_t>(action.microBatch, 0)),
      IntegerAttr(), DenseI64ArrayAttr());
}

void Transfers::send(OpBuilder &builder, const scheduling::Action &action,
                     ArrayRef<OpResult> results, ValueRange values) {
  int64_t to = map.device(action.to);
  func::FuncOp part =
      partOf(action, "send", results, values.getTypes(),
             [&](OpBuilder &inside, func::FuncOp made) {
               for (auto [result, argument] :
                    llvm::zip_equal(results, made.getArguments()))
                 SendOp::create(inside, result.getLoc(), argument, to,
                                tokenOf(result, to));
               func::ReturnOp::create(inside, made.getLoc());
             });
  setAction(part, action);
  run(builder, action, part, values);
}

ValueRange Transfers::receive(OpBuilder &builder,
                              const scheduling::Action &action,
                              ArrayRef<OpResult> results) {
  int64_t from = map.device(action.stage), to = map.device(action.to);
  func::FuncOp part = partOf(
      action, "receive", results, {},
      [&](OpBuilder &inside, func::FuncOp made) {
        SmallVector<Value> received;
        for (OpResult result : results) {
          auto invoke = cast<pipe::InvokeOp>(result.getOwner());
          unsigned index = result.getResultNumber();
          // The whole value if micro-batches write slices of it, otherwise the
          // part's result.
          Type type = invoke.getConcatDim(index)
                          ? result.getType()
                          : symbols.lookup<func::FuncOp>(invoke.getCallee())
                                .getResultTypes()[index];
          received.push_back(ReceiveOp::create(inside, result.getLoc(), type,
                                               from, tokenOf(result, to)));
        }
        func::ReturnOp::create(inside, made.getLoc(), received);
      });
  return run(builder, action, part, {}).getResults();
}

void Transfers::await(OpBuilder &builder, const scheduling::Action &action,
                      ArrayRef<OpResult> results, ValueRange values) {
  int64_t to = map.device(action.to);
  bool sends = action.kind == scheduling::Action::Kind::Send;
  func::FuncOp part = partOf(
      action, sends ? "sent" : "received", results, values.getTypes(),
      [&](OpBuilder &inside, func::FuncOp made) {
        SmallVector<int64_t> waits;
        for (OpResult result : results)
          waits.push_back(tokenOf(result, to));
        AwaitOp::create(inside, made.getLoc(), made.getArguments(), waits);
        func::ReturnOp::create(inside, made.getLoc());
      });
  // In the schedule, a receive is listed where it ends, a send where it begins.
  if (!sends)
    setAction(part, action);
  run(builder, action, part, values);
}
