//===- ProgramRunner.cpp - Executes a program action by action ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ProgramRunner.h"
#include "Shards.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "cleave/Scheduling/Schedule.h"
#include <limits>
#include <map>
#include <set>

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

namespace {

/// The values of the ranks that run an action together.
using Shares = std::vector<TensorRef>;

class ProgramRunner {
public:
  ProgramRunner(ProgramOp program, ReferenceContext &context)
      : program(program), context(context),
        microBatches(program.getMicroBatches()) {
    auto module = program->getParentOfType<ModuleOp>();
    if (spmd::MeshOp op = module ? spmd::findMesh(module) : spmd::MeshOp())
      mesh = op.getMesh();
    together = mesh.together();
    for (auto invoke : program.getBody().front().getOps<InvokeOp>())
      invokes[{invoke.getPart(), invoke.getStage()}] = invoke;
    for (auto [argument, result] : versionedArguments(program)) {
      updatedBy[argument] = result.getOwner();
      argumentOf[result] = argument;
    }
  }

  FailureOr<std::vector<TensorRef>>
  run(const std::vector<TensorRef> &arguments);

private:
  int64_t positionOf(int64_t device, int64_t microBatch) const;
  Shares cutArgument(unsigned i, const TensorRef &whole);
  FailureOr<TensorRef> joinResult(unsigned i, const Shares &shares);
  bool isKnown(const Action &action, int64_t stage) const;
  LogicalResult checkReceived(const Action &action);
  LogicalResult runLists(const Schedule &schedule);
  LogicalResult runAction(const Action &action);
  FailureOr<RankTensors> evaluate(InvokeOp invoke, const RankTensors &operands,
                                  ArrayRef<int64_t> positions);
  FailureOr<Shares> operandOf(InvokeOp invoke, unsigned i,
                              const Action &action);
  void findStale();
  FailureOr<Shares> wholeValue(Value value, Operation *reader);
  FailureOr<TensorRef> join(InvokeOp producer, unsigned result,
                            ArrayRef<TensorRef> parts);
  LogicalResult checkCopies(ArrayRef<TensorRef> results);

  ProgramOp program;
  ReferenceContext &context;
  int64_t microBatches;
  /// All positions, and those that run an action together.
  spmd::Mesh mesh, together;
  StageMap map;
  std::map<std::pair<StringRef, int64_t>, InvokeOp> invokes;
  /// Completed transfers: the receiving position, and the run.
  std::set<std::pair<int64_t, std::string>> received;
  /// For each part of a stage, the last micro-batch that it runs.
  std::map<std::pair<std::string, int64_t>, int64_t> last;
  /// The positions whose copy of an argument no step updates, although steps
  /// update others.
  DenseMap<Value, llvm::BitVector> stale;
  /// For each argument that has versions, the newest.
  DenseMap<Value, Shares> arguments;
  /// For each argument that has versions, the part that makes them, and the
  /// version that each micro-batch in flight reads.
  DenseMap<Value, Operation *> updatedBy;
  DenseMap<Value, std::map<int64_t, Shares>> readBy;
  DenseMap<Value, Value> argumentOf;
  /// The results of each run of a part, by micro-batch (0 for a part that runs
  /// once); empty before it runs.
  DenseMap<Value, std::vector<Shares>> runs;
  /// Values of the whole program, once they have been read.
  DenseMap<Value, Shares> wholes;
};

} // namespace

/// The mesh position at which `device` runs `microBatch`. The result does not
/// depend on which stage it is.
int64_t ProgramRunner::positionOf(int64_t device, int64_t microBatch) const {
  SmallVector<int64_t, 4> coordinates = together.coordinates(device);
  for (auto [coordinate, axis] : llvm::zip_equal(coordinates, mesh.axes))
    if (axis.sequential)
      coordinate = microBatch % axis.size;
  return mesh.position(coordinates);
}

//===----------------------------------------------------------------------===//
// Between global tensors and values of ranks
//===----------------------------------------------------------------------===//

/// The dimension along which each micro-batch has a slice.
static std::optional<unsigned> sequentialDim(const spmd::Mesh &mesh,
                                             const spmd::Sharding &sharding) {
  for (auto [dim, axes] : llvm::enumerate(sharding.dims))
    if (llvm::any_of(axes, [&](const spmd::AxisRef &axis) {
          return mesh.isSequential(axis);
        }))
      return dim;
  return std::nullopt;
}

/// Concatenates slices along `dim`.
static TensorRef concatenate(ArrayRef<TensorRef> parts, unsigned dim) {
  SmallVector<int64_t, 4> shape(parts.front()->shape);
  SmallVector<int64_t, 4> offsets(shape.size(), 0);
  shape[dim] *= parts.size();
  auto whole = std::make_shared<RefTensor>(shape, parts.front()->element);
  for (const TensorRef &part : parts) {
    pasteSlice(*whole, offsets, *part);
    offsets[dim] += part->shape[dim];
  }
  return whole;
}

/// Slice `index` of `count` along `dim`.
static TensorRef takePart(const RefTensor &whole, unsigned dim, int64_t index,
                          int64_t count) {
  SmallVector<int64_t, 4> shape(whole.shape);
  SmallVector<int64_t, 4> offsets(shape.size(), 0);
  shape[dim] /= count;
  offsets[dim] = shape[dim] * index;
  return std::make_shared<RefTensor>(cutSlice(whole, offsets, shape));
}

/// The values of argument `i` on the ranks, for all micro-batches.
Shares ProgramRunner::cutArgument(unsigned i, const TensorRef &whole) {
  auto attribute =
      program.getArgAttrOfType<spmd::ShardingAttr>(i, spmd::kShardingAttr);
  Shares shares;
  for (int64_t device = 0; device < together.size(); ++device) {
    if (!attribute) {
      shares.push_back(whole);
      continue;
    }
    spmd::Sharding sharding = attribute.getSharding();
    std::optional<unsigned> dim = sequentialDim(mesh, sharding);
    SmallVector<TensorRef> parts;
    for (int64_t batch = 0; batch < (dim ? microBatches : 1); ++batch)
      parts.push_back(std::make_shared<RefTensor>(
          cutShard(mesh, sharding, *whole, positionOf(device, batch))));
    shares.push_back(dim ? concatenate(parts, *dim) : parts.front());
  }
  return shares;
}

/// Result `i` from the values of the ranks, for all micro-batches.
FailureOr<TensorRef> ProgramRunner::joinResult(unsigned i,
                                               const Shares &shares) {
  auto attribute =
      program.getResultAttrOfType<spmd::ShardingAttr>(i, spmd::kShardingAttr);
  auto global = program.getResultAttrOfType<TypeAttr>(i, spmd::kGlobalTypeAttr);
  std::optional<RefTensor> whole;
  if (!attribute || !global) {
    if (llvm::all_of(shares, [&](const TensorRef &share) {
          return sameElements(*share, *shares.front());
        }))
      return shares.front();
  } else {
    spmd::Sharding sharding = attribute.getSharding();
    std::optional<unsigned> dim = sequentialDim(mesh, sharding);
    // All positions: those that do not differ in an axis of the sharding must
    // have equal values.
    std::vector<TensorRef> parts;
    SmallVector<const RefTensor *> tensors;
    for (int64_t position = 0; position < mesh.size(); ++position) {
      SmallVector<int64_t, 4> coordinates = mesh.coordinates(position), own;
      int64_t batch = 0;
      for (auto [coordinate, axis, other] :
           llvm::zip_equal(coordinates, mesh.axes, together.axes)) {
        batch = axis.sequential ? batch * axis.size + coordinate : batch;
        own.push_back(other.size == 1 ? 0 : coordinate);
      }
      const TensorRef &share = shares[together.position(own)];
      parts.push_back(dim ? takePart(*share, *dim, batch, microBatches)
                          : share);
    }
    for (const TensorRef &part : parts)
      tensors.push_back(part.get());
    whole = joinShards(mesh, sharding,
                       cast<RankedTensorType>(global.getValue()).getShape(),
                       tensors);
  }
  if (!whole)
    return program.emitError("ranks disagree on ")
           << graph::nameResult(program, i)
           << ": a partial value left the program";
  return TensorRef(std::make_shared<RefTensor>(std::move(*whole)));
}

//===----------------------------------------------------------------------===//
// Between parts
//===----------------------------------------------------------------------===//

/// The value of the whole program, from the results of the runs of a part.
FailureOr<TensorRef> ProgramRunner::join(InvokeOp producer, unsigned result,
                                         ArrayRef<TensorRef> parts) {
  SmallVector<const RefTensor *> tensors;
  for (const TensorRef &part : parts)
    tensors.push_back(part.get());
  if (auto kind = producer.getAccumulation(result)) {
    auto sum = std::make_shared<RefTensor>(
        combineParts(tensors, *kind, context.precision, program.getTreeSums()));
    settle(*sum, context.precision);
    return TensorRef(sum);
  }
  if (std::optional<int64_t> dim = producer.getConcatDim(result))
    return concatenate(parts, *dim);
  for (const RefTensor *part : tensors)
    if (!sameElements(*part, *tensors.front()))
      return producer.emitOpError("micro-batches give different values of "
                                  "result ")
             << result << ", which is of kind '" << producer.getKind(result)
             << "'";
  return parts.front();
}

/// A value, as one of the whole program.
FailureOr<Shares> ProgramRunner::wholeValue(Value value, Operation *reader) {
  if (auto it = arguments.find(value); it != arguments.end())
    return it->second;
  if (auto it = wholes.find(value); it != wholes.end())
    return it->second;
  auto producer = value.getDefiningOp<InvokeOp>();
  if (!producer)
    return reader->emitOpError("reads a value that no part computes");
  auto it = runs.find(value);
  if (it == runs.end() ||
      llvm::any_of(it->second, [](const Shares &run) { return run.empty(); }))
    return reader->emitOpError("reads a result of part '")
           << producer.getPart() << "' before it is complete";
  if (Value argument = argumentOf.lookup(value))
    return arguments[argument];
  Shares shares;
  for (int64_t device = 0; device < together.size(); ++device) {
    SmallVector<TensorRef> parts;
    for (const Shares &run : it->second)
      parts.push_back(run[device]);
    FailureOr<TensorRef> whole =
        join(producer, cast<OpResult>(value).getResultNumber(), parts);
    if (failed(whole))
      return failure();
    shares.push_back(*whole);
  }
  return wholes[value] = std::move(shares);
}

/// Each position has its own copies of arguments. A run stands for any step of
/// a training: a copy that a program of the module should have updated has
/// there a value that nothing tells.
void ProgramRunner::findStale() {
  llvm::MapVector<StringAttr, llvm::BitVector> updated;
  for (auto other : program->getBlock()->getOps<ProgramOp>())
    for (auto &[name, positions] : updatedCopies(other, map))
      if (auto [it, fresh] = updated.insert({name, positions}); !fresh)
        it->second &= positions;
  for (BlockArgument argument : program.getArguments()) {
    auto name = program.getArgAttrOfType<StringAttr>(argument.getArgNumber(),
                                                     graph::kNameAttr);
    if (auto it = name ? updated.find(name) : updated.end();
        it != updated.end())
      stale[argument] = it->second.flip();
  }
}

/// Values that no computation can use without notice.
static TensorRef unknownLike(const TensorRef &known) {
  auto unknown = std::make_shared<RefTensor>(*known);
  llvm::fill(unknown->floats, std::numeric_limits<double>::quiet_NaN());
  for (int64_t &value : unknown->ints)
    value ^= 1;
  return unknown;
}

FailureOr<Shares> ProgramRunner::operandOf(InvokeOp invoke, unsigned i,
                                           const Action &action) {
  Value value = invoke.getInputs()[i];
  if (auto it = stale.find(value);
      it != stale.end() &&
      it->second.test(map.device(action.stage, action.microBatch))) {
    Shares unknown = arguments[value];
    for (TensorRef &share : unknown)
      share = unknownLike(share);
    return unknown;
  }
  auto producer = value.getDefiningOp<InvokeOp>();
  if (producer && !producer.getOnce() &&
      producer.isSaved(cast<OpResult>(value).getResultNumber())) {
    auto it = runs.find(value);
    if (invoke.getOnce() || it == runs.end() ||
        it->second[action.microBatch].empty())
      return invoke.emitOpError("action ")
             << action.str() << " reads "
             << graph::nameOperand(invoke->getOpOperand(i))
             << ", saved by part '" << producer.getPart()
             << "', before that has run for the micro-batch";
    return it->second[action.microBatch];
  }
  if (auto it = updatedBy.find(value);
      it != updatedBy.end() && it->second != invoke && action.microBatch >= 0)
    return readBy[value]
        .try_emplace(action.microBatch, arguments[value])
        .first->second;
  FailureOr<Shares> whole = wholeValue(value, invoke);
  int64_t dim = invoke.getSplit()[i];
  if (failed(whole) || dim < 0)
    return whole;
  Shares shares;
  for (const TensorRef &share : *whole)
    shares.push_back(takePart(*share, dim, action.microBatch, microBatches));
  return shares;
}

/// The result of the part; if it does not run, the value that is passed on.
FailureOr<RankTensors> ProgramRunner::evaluate(InvokeOp invoke,
                                               const RankTensors &operands,
                                               ArrayRef<int64_t> positions) {
  if (invoke.isConditional()) {
    auto flagOf = [&](const std::vector<TensorRef> &own) {
      return own[invoke.getFlagOperand()];
    };
    for (const std::vector<TensorRef> &own : operands)
      if (!sameElements(*flagOf(own), *flagOf(operands.front())))
        return invoke.emitOpError("runs on some ranks of its stage and not "
                                  "on others");
    if (flagOf(operands.front())->ints.front() != 0) {
      RankTensors passed;
      for (const std::vector<TensorRef> &own : operands)
        for (std::vector<TensorRef> &results = passed.emplace_back();
             results.size() < invoke.getNumResults();)
          results.push_back(own[invoke.getPassedOperand(results.size())]);
      return passed;
    }
  }
  return runBlock(invoke.getPartFunction().getBody().front(), operands,
                  positions, context);
}

LogicalResult ProgramRunner::runAction(const Action &action) {
  InvokeOp invoke = invokes[{action.part, action.stage}];
  if (!invoke)
    return program.emitOpError("action ")
           << action.str() << " does not run a part of this program";
  if (invoke.getOnce() != (action.microBatch < 0) ||
      action.microBatch >= microBatches)
    return program.emitOpError("action ")
           << action.str() << " names a micro-batch that does not exist, or "
           << "none where there are several";
  func::FuncOp part = invoke.getPartFunction();
  if (!part || part.isExternal())
    return invoke.emitOpError("has no function");
  int64_t run = std::max<int64_t>(0, action.microBatch);
  RankTensors operands(together.size());
  SmallVector<int64_t> positions;
  for (int64_t device = 0; device < together.size(); ++device)
    positions.push_back(positionOf(device, run));
  for (unsigned i = 0, e = invoke.getInputs().size(); i < e; ++i) {
    FailureOr<Shares> operand = operandOf(invoke, i, action);
    if (failed(operand))
      return failure();
    auto type = cast<RankedTensorType>(part.getArgumentTypes()[i]);
    for (auto [own, share] : llvm::zip_equal(operands, *operand)) {
      if (share->type() !=
          RankedTensorType::get(type.getShape(), type.getElementType()))
        return invoke.emitOpError()
               << graph::nameOperand(invoke->getOpOperand(i)) << " is "
               << share->type() << " for action " << action.str()
               << ", but its part takes " << type;
      own.push_back(share);
    }
  }
  FailureOr<RankTensors> results = evaluate(invoke, operands, positions);
  if (failed(results))
    return failure();
  for (auto [i, value] : llvm::enumerate(invoke.getOutputs())) {
    std::vector<Shares> &parts = runs[value];
    parts.resize(invoke.getOnce() ? 1 : microBatches);
    if (!parts[run].empty())
      return program.emitOpError("action ") << action.str() << " runs twice";
    for (const std::vector<TensorRef> &own : *results)
      parts[run].push_back(own[i]);
    if (Value argument = argumentOf.lookup(value)) {
      arguments[argument] = parts[run];
      readBy[argument].erase(run);
    }
  }
  return success();
}

/// A value that several stages update is the same in all of them.
LogicalResult ProgramRunner::checkCopies(ArrayRef<TensorRef> results) {
  llvm::StringMap<const RefTensor *> first;
  for (auto [i, result] : llvm::enumerate(results)) {
    auto name = program.getResultAttrOfType<StringAttr>(i, graph::kUpdatesAttr);
    if (!name)
      continue;
    auto [it, fresh] = first.try_emplace(name, result.get());
    if (!fresh && !sameElements(*it->second, *result))
      return program.emitOpError("stages disagree on '")
             << name.getValue() << "', which several of them update";
  }
  return success();
}

/// Whether the results that `action` transfers or reads have been sent to the
/// position of `stage`.
bool ProgramRunner::isKnown(const Action &action, int64_t stage) const {
  int64_t device = map.device(stage, action.microBatch);
  return map.device(action.stage, action.microBatch) == device ||
         received.contains({device, action.str()});
}

/// Whether the values that `action` reads from other positions have been
/// received.
LogicalResult ProgramRunner::checkReceived(const Action &action) {
  InvokeOp invoke = invokes[{action.part, action.stage}];
  for (Value input : invoke ? invoke.getInputs() : ValueRange()) {
    auto producer = input.getDefiningOp<InvokeOp>();
    if (!producer || map.devices == 1)
      continue;
    Action from{producer.getPart().str(), action.microBatch,
                static_cast<int64_t>(producer.getStage())};
    // Values of all micro-batches are sent with the last of them.
    if (!producer.isSaved(cast<OpResult>(input).getResultNumber()) ||
        action.microBatch < 0)
      from.microBatch = last[{from.part, from.stage}];
    if (!isKnown(from, action.stage))
      return program.emitOpError("action ")
             << action.str() << " reads results of " << from.str()
             << ", which its pipeline position has not received";
  }
  return success();
}

/// Each position executes its list; a transfer happens when both ends have
/// reached it.
LogicalResult ProgramRunner::runLists(const Schedule &schedule) {
  size_t count = schedule.devices.size();
  for (const std::vector<Action> &list : schedule.devices)
    for (const Action &action : list)
      if (action.kind == Action::Kind::Run)
        last[{action.part, action.stage}] = action.microBatch;
  std::vector<size_t> next(count, 0);
  auto head = [&](size_t device) -> const Action * {
    const auto &list = schedule.devices[device];
    return next[device] < list.size() ? &list[next[device]] : nullptr;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t device = 0; device < count; ++device) {
      const Action *action = head(device);
      if (!action || action->kind == Action::Kind::Receive)
        continue;
      if (action->kind == Action::Kind::Send) {
        size_t other = map.device(action->to, action->microBatch);
        const Action *receive = other < count ? head(other) : nullptr;
        if (!receive || !(*receive == action->run().receive(action->to)))
          continue;
        received.insert({static_cast<int64_t>(other), action->run().str()});
        ++next[other];
      } else if (failed(checkReceived(*action)) || failed(runAction(*action))) {
        return failure();
      }
      ++next[device];
      moved = true;
    }
  }
  for (size_t device = 0; device < count; ++device)
    if (const Action *action = head(device))
      return program.emitOpError("deadlock: pipeline position ")
             << device << " waits at " << action->str();
  return success();
}

FailureOr<std::vector<TensorRef>>
ProgramRunner::run(const std::vector<TensorRef> &values) {
  for (auto [i, argument] : llvm::enumerate(program.getArguments()))
    arguments[argument] = cutArgument(i, values[i]);
  if (!program.getSchedule())
    return program.emitOpError("has no schedule yet");
  std::string error;
  std::optional<Schedule> schedule =
      Schedule::parse(*program.getSchedule(), error);
  if (!schedule)
    return program.emitOpError("schedule: ") << error;
  FailureOr<StageMap> stageMap = stageMapOf(program, schedule->devices.size());
  if (failed(stageMap))
    return failure();
  map = *stageMap;
  findStale();
  if (failed(runLists(*schedule)))
    return failure();
  std::vector<TensorRef> results;
  Operation *terminator = program.getBody().front().getTerminator();
  for (auto [i, value] : llvm::enumerate(terminator->getOperands())) {
    FailureOr<Shares> shares = wholeValue(value, terminator);
    if (failed(shares))
      return failure();
    FailureOr<TensorRef> whole = joinResult(i, *shares);
    if (failed(whole))
      return failure();
    results.push_back(*whole);
  }
  if (failed(checkCopies(results)))
    return failure();
  return results;
}

FailureOr<std::vector<TensorRef>>
cleave::runProgram(ProgramOp program, const std::vector<TensorRef> &arguments,
                   ReferenceContext &context) {
  return ProgramRunner(program, context).run(arguments);
}
