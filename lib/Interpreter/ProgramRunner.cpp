//===- ProgramRunner.cpp - Executes a program action by action ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ProgramRunner.h"
#include "Shards.h"
#include "cleave/Dialect/Pipe/IR/Schedule.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

namespace {

class ProgramRunner {
public:
  ProgramRunner(ProgramOp program, ReferenceContext &context)
      : program(program), context(context),
        microBatches(program.getMicroBatches()) {
    for (auto invoke : program.getBody().front().getOps<InvokeOp>())
      invokes[invoke.getPart()] = invoke;
  }

  FailureOr<std::vector<TensorRef>>
  run(const std::vector<TensorRef> &arguments);

private:
  LogicalResult runAction(const Action &action);
  FailureOr<TensorRef> operandOf(InvokeOp invoke, unsigned i,
                                 const Action &action);
  FailureOr<TensorRef> wholeValue(Value value, Operation *reader);
  FailureOr<TensorRef> join(InvokeOp producer, unsigned result,
                            ArrayRef<TensorRef> parts);
  int64_t rankOf(int64_t microBatch);

  ProgramOp program;
  ReferenceContext &context;
  int64_t microBatches;
  llvm::StringMap<InvokeOp> invokes;
  DenseMap<Value, TensorRef> arguments;
  /// The value that each run of a part gave, by micro-batch (0 for a part that
  /// runs once); null before it ran.
  DenseMap<Value, std::vector<TensorRef>> runs;
  /// Values of the whole program, once they were asked for.
  DenseMap<Value, TensorRef> wholes;
};

} // namespace

/// The position of the mesh that runs `microBatch`: the coordinate of the
/// sequential axis, all others 0.
int64_t ProgramRunner::rankOf(int64_t microBatch) {
  auto module = program->getParentOfType<ModuleOp>();
  spmd::MeshOp meshOp = module ? spmd::findMesh(module) : spmd::MeshOp();
  if (!meshOp)
    return 0;
  int64_t rank = 0;
  spmd::Mesh mesh = meshOp.getMesh();
  for (const spmd::MeshAxis &axis : mesh.axes)
    rank = rank * axis.size + (axis.sequential ? microBatch % axis.size : 0);
  return rank;
}

/// The value of the whole program made of what the runs of a part gave.
FailureOr<TensorRef> ProgramRunner::join(InvokeOp producer, unsigned result,
                                         ArrayRef<TensorRef> parts) {
  SmallVector<const RefTensor *> tensors;
  for (const TensorRef &part : parts)
    tensors.push_back(part.get());
  if (producer.isAccumulated(result)) {
    auto sum = std::make_shared<RefTensor>(
        combineParts(tensors, spmd::ReductionKind::sum, context.precision,
                     program.getTreeSums()));
    settle(*sum, context.precision);
    return TensorRef(sum);
  }
  if (std::optional<int64_t> dim = producer.getConcatDim(result)) {
    SmallVector<int64_t, 4> shape(parts.front()->shape);
    SmallVector<int64_t, 4> offsets(shape.size(), 0);
    shape[*dim] *= parts.size();
    auto whole = std::make_shared<RefTensor>(shape, parts.front()->element);
    for (const TensorRef &part : parts) {
      pasteSlice(*whole, offsets, *part);
      offsets[*dim] += part->shape[*dim];
    }
    return TensorRef(whole);
  }
  for (const RefTensor *part : tensors)
    if (!sameElements(*part, *tensors.front()))
      return producer.emitOpError("micro-batches give different values of "
                                  "result ")
             << result << ", which is of kind '" << producer.getKind(result)
             << "'";
  return parts.front();
}

/// A value as one tensor of the whole program.
FailureOr<TensorRef> ProgramRunner::wholeValue(Value value, Operation *reader) {
  if (auto it = arguments.find(value); it != arguments.end())
    return it->second;
  if (auto it = wholes.find(value); it != wholes.end())
    return it->second;
  auto producer = value.getDefiningOp<InvokeOp>();
  if (!producer)
    return reader->emitOpError("reads a value that no part computes");
  auto it = runs.find(value);
  if (it == runs.end() || llvm::is_contained(it->second, nullptr))
    return reader->emitOpError("reads a result of part '")
           << producer.getPart() << "' before it is complete";
  FailureOr<TensorRef> whole =
      join(producer, cast<OpResult>(value).getResultNumber(), it->second);
  if (failed(whole))
    return failure();
  return wholes[value] = *whole;
}

FailureOr<TensorRef> ProgramRunner::operandOf(InvokeOp invoke, unsigned i,
                                              const Action &action) {
  Value value = invoke.getInputs()[i];
  auto producer = value.getDefiningOp<InvokeOp>();
  if (producer && !producer.getOnce() &&
      producer.isSaved(cast<OpResult>(value).getResultNumber())) {
    auto it = runs.find(value);
    if (invoke.getOnce() || it == runs.end() || !it->second[action.microBatch])
      return invoke.emitOpError("action ")
             << action.str() << " reads operand " << i << ", saved by part '"
             << producer.getPart()
             << "', before that has run for the micro-batch";
    return it->second[action.microBatch];
  }
  FailureOr<TensorRef> whole = wholeValue(value, invoke);
  int64_t dim = invoke.getSplit()[i];
  if (failed(whole) || dim < 0)
    return whole;
  SmallVector<int64_t, 4> shape((*whole)->shape);
  SmallVector<int64_t, 4> offsets(shape.size(), 0);
  shape[dim] /= microBatches;
  offsets[dim] = shape[dim] * action.microBatch;
  return TensorRef(
      std::make_shared<RefTensor>(cutSlice(**whole, offsets, shape)));
}

LogicalResult ProgramRunner::runAction(const Action &action) {
  InvokeOp invoke = invokes.lookup(action.part);
  if (!invoke || action.stage != 0)
    return program.emitOpError("action ")
           << action.str() << " is of no part of this program";
  if (invoke.getOnce() != (action.microBatch < 0) ||
      action.microBatch >= microBatches)
    return program.emitOpError("action ")
           << action.str() << " names a micro-batch that does not exist, or "
           << "none where there are several";
  func::FuncOp part = invoke.getPartFunction();
  if (!part || part.isExternal())
    return invoke.emitOpError("has no function");
  std::vector<TensorRef> operands;
  for (unsigned i = 0, e = invoke.getInputs().size(); i < e; ++i) {
    FailureOr<TensorRef> operand = operandOf(invoke, i, action);
    if (failed(operand))
      return failure();
    Type type = part.getArgumentTypes()[i];
    if ((*operand)->type() !=
        RankedTensorType::get(cast<RankedTensorType>(type).getShape(),
                              cast<RankedTensorType>(type).getElementType()))
      return invoke.emitOpError("operand ")
             << i << " is " << (*operand)->type() << " for action "
             << action.str() << ", but its part takes " << type;
    operands.push_back(*operand);
  }
  int64_t run = std::max<int64_t>(0, action.microBatch);
  FailureOr<RankTensors> results =
      runBlock(part.getBody().front(), {operands}, {rankOf(run)}, context);
  if (failed(results))
    return failure();
  for (auto [value, tensor] :
       llvm::zip_equal(invoke.getOutputs(), results->front())) {
    std::vector<TensorRef> &parts = runs[value];
    parts.resize(invoke.getOnce() ? 1 : microBatches);
    if (parts[run])
      return program.emitOpError("action ") << action.str() << " runs twice";
    parts[run] = tensor;
  }
  return success();
}

FailureOr<std::vector<TensorRef>>
ProgramRunner::run(const std::vector<TensorRef> &values) {
  for (auto [argument, value] : llvm::zip_equal(program.getArguments(), values))
    arguments[argument] = value;
  if (!program.getSchedule())
    return program.emitOpError("has no schedule yet");
  std::string error;
  std::optional<Schedule> schedule =
      Schedule::parse(*program.getSchedule(), error);
  if (!schedule)
    return program.emitOpError("schedule: ") << error;
  if (schedule->devices.size() != 1)
    return program.emitOpError("schedule: it is for ")
           << schedule->devices.size()
           << " devices; write one list of actions, without '|'";
  for (const Action &action : schedule->actions())
    if (failed(runAction(action)))
      return failure();
  std::vector<TensorRef> results;
  Operation *terminator = program.getBody().front().getTerminator();
  for (Value value : terminator->getOperands()) {
    FailureOr<TensorRef> whole = wholeValue(value, terminator);
    if (failed(whole))
      return failure();
    results.push_back(*whole);
  }
  return results;
}

FailureOr<std::vector<TensorRef>>
cleave::runProgram(ProgramOp program, const std::vector<TensorRef> &arguments,
                   ReferenceContext &context) {
  return ProgramRunner(program, context).run(arguments);
}
