//===- Copies.cpp - The copies of what a program updates ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Each pipeline position has its own copy of an argument that its parts read.
/// If a program updates the argument, each of these positions must compute the
/// update: a copy that is not updated has the value with which training began.
///
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

/// The positions that run `invoke`.
static llvm::BitVector positionsOf(InvokeOp invoke, const StageMap &map) {
  llvm::BitVector found(map.devices);
  for (int64_t device : map.devicesOf(invoke.getStage()))
    found.set(device);
  return found;
}

llvm::MapVector<StringAttr, llvm::BitVector>
cleave::pipe::updatedCopies(ProgramOp program, const StageMap &map) {
  llvm::MapVector<StringAttr, llvm::BitVector> found;
  Operation *returned = program.getBody().front().getTerminator();
  for (auto [i, value] : llvm::enumerate(returned->getOperands())) {
    auto name = program.getResultAttrOfType<StringAttr>(i, graph::kUpdatesAttr);
    auto invoke = value.getDefiningOp<InvokeOp>();
    if (!name || !invoke)
      continue;
    llvm::BitVector &positions = found[name];
    positions.resize(map.devices);
    positions |= positionsOf(invoke, map);
  }
  return found;
}

LogicalResult cleave::pipe::verifyCopies(ArrayRef<ProgramOp> programs) {
  for (ProgramOp training : programs) {
    // Only the number of positions matters: whoever asks has read it.
    std::string error;
    std::optional<Schedule> schedule;
    if (training.getSchedule())
      schedule = Schedule::parse(*training.getSchedule(), error);
    if (!schedule)
      return failure(failed(readSchedule(training)));
    auto devices = static_cast<int64_t>(schedule->devices.size());
    FailureOr<StageMap> map = stageMapOf(training, devices);
    if (failed(map))
      return failure();
    if (devices == 1)
      continue;
    auto updated = updatedCopies(training, *map);
    for (ProgramOp reader : programs)
      for (auto invoke : reader.getBody().getOps<InvokeOp>())
        for (Value input : invoke.getInputs()) {
          auto argument = dyn_cast<BlockArgument>(input);
          auto name = argument ? reader.getArgAttrOfType<StringAttr>(
                                     argument.getArgNumber(), graph::kNameAttr)
                               : StringAttr();
          auto it = name ? updated.find(name) : updated.end();
          if (it == updated.end())
            continue;
          llvm::BitVector stale = positionsOf(invoke, *map);
          stale.reset(it->second);
          if (stale.none())
            continue;
          return invoke.emitOpError("part '")
                 << invoke.getPart() << "' of stage " << invoke.getStage()
                 << " reads the copy of '" << name.getValue()
                 << "' at pipeline position " << stale.find_first()
                 << ", which '@" << training.getSymName()
                 << "' updates at position " << it->second.find_first()
                 << " only: the copy would keep its initial value";
        }
  }
  return success();
}
