//===- DescribeParts.cpp - Description of parts for scheduling ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Graph/IR/TensorBytes.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

double cleave::pipe::countedFlops(InvokeOp invoke) {
  func::FuncOp part = invoke.getPartFunction();
  if (invoke.getOnce() || !isForwardOrBackward(invoke.getPart()) || !part ||
      part.isExternal())
    return 0;
  double flops = 0;
  for (Operation &op : part.getBody().front().without_terminator())
    if (auto costed = dyn_cast<graph::CostOpInterface>(op))
      flops += costed.getCost().flops;
  return flops;
}

/// Finds a part of the stage of `invoke` that runs for each micro-batch, reads
/// `value` and satisfies `where`; null if there is none.
static InvokeOp findReader(Value value, InvokeOp invoke,
                           llvm::function_ref<bool(InvokeOp)> where) {
  for (Operation *user : value.getUsers())
    if (auto reader = dyn_cast<InvokeOp>(user);
        reader && !reader.getOnce() && reader.getStage() == invoke.getStage() &&
        where(reader))
      return reader;
  return nullptr;
}

/// The values of a micro-batch that `invoke` receives from other stages.
static llvm::SetVector<Value> receivedBy(InvokeOp invoke) {
  llvm::SetVector<Value> received;
  for (Value input : invoke.getInputs()) {
    auto result = dyn_cast<OpResult>(input);
    if (!result || invoke.getOnce())
      continue;
    auto from = cast<InvokeOp>(result.getOwner());
    if (from.getStage() != invoke.getStage() && !from.getOnce() &&
        from.isSaved(result.getResultNumber()))
      received.insert(input);
  }
  return received;
}

/// The bytes that a run of a part keeps for later parts of its stage and
/// micro-batch: the results and the received values that these parts read.
/// Results that only other stages read are freed when they are sent.
static int64_t savedBytes(InvokeOp invoke) {
  if (invoke.getOnce())
    return 0;
  int64_t bytes = 0;
  auto after = [&](InvokeOp other) { return invoke->isBeforeInBlock(other); };
  auto before = [&](InvokeOp other) { return other->isBeforeInBlock(invoke); };
  for (auto [i, result] : llvm::enumerate(invoke.getOutputs()))
    if (invoke.isSaved(i) && findReader(result, invoke, after))
      bytes += bytesOf(result);
  // A received value counts for the first part that reads it.
  for (Value value : receivedBy(invoke))
    if (findReader(value, invoke, after) && !findReader(value, invoke, before))
      bytes += bytesOf(value);
  return bytes;
}

std::vector<PartInfo> cleave::pipe::describeParts(ProgramOp program) {
  llvm::MapVector<BlockArgument, OpResult> versioned =
      versionedArguments(program);
  std::vector<PartInfo> parts;
  llvm::DenseMap<Operation *, unsigned> index;
  for (auto invoke : program.getBody().getOps<InvokeOp>()) {
    PartInfo info;
    info.name = invoke.getPart().str();
    info.once = invoke.getOnce();
    info.stage = invoke.getStage();
    info.reads = info.updates = false;
    info.late = program->hasAttr(kPostValidatedAttr) &&
                (info.name == "V" || info.name == "A");
    for (unsigned i = 0; i < invoke.getNumResults(); ++i)
      info.updates |= invoke.getVersioned(i).has_value();
    auto addUse = [&](PartInfo::Use use) {
      if (llvm::none_of(info.uses, [&](const PartInfo::Use &other) {
            return other.part == use.part &&
                   other.sameMicroBatch == use.sameMicroBatch;
          }))
        info.uses.push_back(use);
    };
    for (Value input : invoke.getInputs()) {
      if (auto argument = dyn_cast<BlockArgument>(input))
        info.reads |= versioned.contains(argument);
      auto result = dyn_cast<OpResult>(input);
      if (!result)
        continue;
      auto from = cast<InvokeOp>(result.getOwner());
      addUse({index.lookup(from), from.isSaved(result.getResultNumber())});
    }
    info.saved = savedBytes(invoke);
    // Forward keeps received values until all other parts that read them have
    // run.
    for (Value value : receivedBy(invoke))
      if (InvokeOp forward = findReader(value, invoke, [&](InvokeOp other) {
            return other.getPart() == "F" && other->isBeforeInBlock(invoke);
          }))
        addUse({index.lookup(forward), /*sameMicroBatch=*/true});
    index[invoke] = parts.size();
    parts.push_back(std::move(info));
  }
  return parts;
}
