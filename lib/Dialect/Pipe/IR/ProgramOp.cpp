//===- ProgramOp.cpp - The pipe.program operation -------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "cleave/Dialect/Pipe/IR/PartFunctions.h"
#include "cleave/Support/FunctionLike.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

void ProgramOp::build(OpBuilder &builder, OperationState &state, StringRef name,
                      FunctionType type, int64_t microBatches) {
  state.addAttribute(getSymNameAttrName(state.name),
                     builder.getStringAttr(name));
  state.addAttribute(getFunctionTypeAttrName(state.name), TypeAttr::get(type));
  state.addAttribute(getMicroBatchesAttrName(state.name),
                     builder.getI64IntegerAttr(microBatches));
  Region *body = state.addRegion();
  SmallVector<Location> locs(type.getNumInputs(), state.location);
  body->emplaceBlock().addArguments(type.getInputs(), locs);
}

ParseResult ProgramOp::parse(OpAsmParser &parser, OperationState &result) {
  return parseFunctionLike<ProgramOp>(parser, result);
}

void ProgramOp::print(OpAsmPrinter &printer) {
  printFunctionLike(printer, *this);
}

/// A bound above any real program, so that lists of them fit into memory.
static constexpr int64_t kMostMicroBatches = 1 << 20;

/// Each argument that is updated takes a result of its own: one value has one
/// place.
static LogicalResult verifyUpdates(ProgramOp program) {
  auto returned = dyn_cast<ReturnOp>(program.getBody().front().back());
  llvm::SmallDenseMap<Value, StringAttr> updated;
  for (OpOperand &operand : returned->getOpOperands()) {
    unsigned i = operand.getOperandNumber();
    auto name =
        program.getResultAttrOfType<StringAttr>(i, cleave::graph::kUpdatesAttr);
    if (!name || !operand.get().getDefiningOp())
      continue;
    auto [it, fresh] = updated.try_emplace(operand.get(), name);
    if (!fresh && it->second != name)
      return graph::emitResultError(program, i)
             << " is that of '" << it->second.getValue()
             << "', too: let the part return it once for each of them";
  }
  return success();
}

LogicalResult ProgramOp::verify() {
  if (getMicroBatches() < 1)
    return emitOpError("micro_batches must be positive");
  if (getMicroBatches() > kMostMicroBatches)
    return emitOpError("micro_batches must not be more than ")
           << kMostMicroBatches;
  if (std::optional<StringRef> text = getSchedule()) {
    std::string error;
    if (!Schedule::parse(*text, error))
      return emitOpError("schedule: ") << error;
  }
  if (!isa<ReturnOp>(getBody().front().back()))
    return emitOpError("must end in pipe.return");
  for (Operation &op : getBody().front().without_terminator())
    if (!isa<InvokeOp>(op))
      return op.emitOpError("is not allowed in a pipe.program, which may "
                            "contain only pipe.invoke");
  return verifyUpdates(*this);
}

llvm::MapVector<BlockArgument, OpResult>
cleave::pipe::versionedArguments(ProgramOp program) {
  llvm::MapVector<BlockArgument, OpResult> found;
  for (auto invoke : program.getBody().getOps<InvokeOp>())
    for (OpResult result : invoke->getOpResults())
      if (auto index = invoke.getVersioned(result.getResultNumber()))
        found[program.getArgument(*index)] = result;
  return found;
}

StringRef cleave::pipe::updatedArgument(OpResult result) {
  for (OpOperand &use : result.getUses())
    if (isa<ReturnOp>(use.getOwner()))
      if (auto name = use.getOwner()
                          ->getParentOfType<ProgramOp>()
                          .getResultAttrOfType<StringAttr>(
                              use.getOperandNumber(), graph::kUpdatesAttr))
        return name;
  return {};
}

LogicalResult cleave::pipe::verifyPartFunctions(ProgramOp program) {
  auto module = program->getParentOfType<ModuleOp>();
  for (auto invoke : program.getBody().getOps<InvokeOp>()) {
    func::FuncOp function = invoke.getPartFunction();
    if (!function || !function.getBody().hasOneBlock())
      return invoke.emitOpError("'")
             << invoke.getCallee() << "' has no body of one block";
  }
  llvm::DenseMap<StringAttr, Operation *> first;
  WalkResult result = module.walk([&](Operation *op) {
    StringAttr callee;
    if (auto invoke = dyn_cast<InvokeOp>(op))
      callee = invoke.getCalleeAttr().getAttr();
    else if (auto call = dyn_cast<func::CallOp>(op))
      callee = call.getCalleeAttr().getAttr();
    else
      return WalkResult::advance();
    auto [it, fresh] = first.try_emplace(callee, op);
    if (fresh ||
        (op->getParentOp() != program && it->second->getParentOp() != program))
      return WalkResult::advance();
    InFlightDiagnostic error = op->emitOpError("'")
                               << callee.getValue()
                               << "' is called twice: each part must have a "
                                  "function of its own";
    error.attachNote(it->second->getLoc()) << "the first call is here";
    return WalkResult::interrupt();
  });
  return failure(result.wasInterrupted());
}

FailureOr<StageMap> cleave::pipe::stageMapOf(ProgramOp program,
                                             int64_t devices) {
  std::string error;
  auto map = StageMap::parse(program.getStageMap().value_or("modular"), devices,
                             error);
  if (!map)
    return program.emitOpError("stage_map: ") << error;
  return *map;
}

FailureOr<Schedule> cleave::pipe::readSchedule(ProgramOp program) {
  if (!program.getSchedule())
    return program.emitOpError("has no schedule; run --pipe-schedule first");
  std::string error;
  std::optional<Schedule> schedule =
      Schedule::parse(*program.getSchedule(), error);
  if (!schedule)
    return program.emitOpError("schedule: ") << error;
  int64_t devices = schedule->devices.size();
  FailureOr<StageMap> map = stageMapOf(program, devices);
  if (failed(map))
    return failure();
  std::vector<PartInfo> parts = describeParts(program);
  if (std::optional<std::string> why =
          devices == 1 ? schedule->verify(parts, program.getMicroBatches())
                       : verifySchedule(*schedule, parts,
                                        program.getMicroBatches(), *map))
    return program.emitOpError("schedule: ") << *why;
  return *schedule;
}
