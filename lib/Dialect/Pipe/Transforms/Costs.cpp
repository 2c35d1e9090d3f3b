//===- Costs.cpp - How long parts take on a machine -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Pipe/Transforms/Costs.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Graph/IR/OpCost.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Scheduling/Timeline/MeasuredCosts.h"
#include <set>

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

Work cleave::pipe::workOf(Operation *op, const spmd::Mesh &mesh) {
  Work work;
  if (auto sender = dyn_cast<spmd::CommunicationOpInterface>(op))
    work.sentBytes = sender.getBytesSent(mesh);
  if (auto costed = dyn_cast<graph::CostOpInterface>(op)) {
    graph::OpCost cost = costed.getCost();
    if (cost.work == graph::WorkClass::View)
      return work;
    work.flops = cost.flops;
    work.bytes = cost.bytesRead + cost.bytesWritten;
    if (cost.work == graph::WorkClass::Attention)
      work.attention = work.flops;
    else if (cost.work != graph::WorkClass::Contraction)
      work.streamed = work.bytes;
    else
      (cost.factorBits <= 8    ? work.contraction8
       : cost.factorBits <= 16 ? work.contraction16
                               : work.contraction) = work.flops;
  }
  return work;
}

Work cleave::pipe::workOf(InvokeOp invoke, const spmd::Mesh &mesh) {
  Work work;
  func::FuncOp part = invoke.getPartFunction();
  if (!part || part.isExternal())
    return work;
  for (Operation &op : part.getBody().front().without_terminator())
    work += workOf(&op, mesh);
  return work;
}

SmallVector<unsigned> cleave::pipe::resultsReadBy(InvokeOp invoke, int64_t to) {
  SmallVector<unsigned> read;
  for (OpResult result : invoke->getResults())
    if (llvm::any_of(result.getUsers(), [&](Operation *user) {
          auto reader = dyn_cast<InvokeOp>(user);
          return reader && static_cast<int64_t>(reader.getStage()) == to;
        }))
      read.push_back(result.getResultNumber());
  return read;
}

Costs cleave::pipe::costsOf(ProgramOp program, const spmd::Mesh &mesh,
                            const MachineModel &machine) {
  Costs costs;
  for (auto invoke : program.getBody().getOps<InvokeOp>()) {
    // A conditional part runs only in rare cases.
    costs.run.push_back(
        invoke.isConditional() ? 0 : machine.secondsOf(workOf(invoke, mesh)));
    std::set<int64_t> readers;
    for (Operation *user : invoke->getUsers())
      if (auto reader = dyn_cast<InvokeOp>(user);
          reader && reader.getStage() != invoke.getStage())
        readers.insert(reader.getStage());
    // The simulation has one cost for each part: that of its largest transfer.
    double most = 0;
    for (int64_t to : readers) {
      double bytes = 0;
      for (unsigned result : resultsReadBy(invoke, to)) {
        double own = bytesOf(invoke->getResult(result));
        bytes += invoke.isAccumulated(result) ? own / program.getMicroBatches()
                                              : own;
      }
      most = std::max(most, bytes / machine.link);
    }
    costs.transfer.push_back(most);
  }
  return costs;
}

FailureOr<Costs> cleave::pipe::measuredCostsOf(ProgramOp program,
                                               StringRef text, StringRef from) {
  std::string error;
  std::optional<Costs> costs;
  if (auto measured = MeasuredCosts::parse(text, error)) {
    std::vector<PartInfo> parts = describeParts(program);
    costs = measured->costsOf(parts, error);
    std::vector<double> wanted;
    for (auto invoke : program.getBody().getOps<InvokeOp>())
      wanted.push_back(countedFlops(invoke));
    if (costs)
      if (error = measured->checkWork(parts, wanted); !error.empty())
        costs.reset();
  }
  if (!costs)
    return program.emitOpError("measured costs of ") << from << ": " << error;
  return *costs;
}
