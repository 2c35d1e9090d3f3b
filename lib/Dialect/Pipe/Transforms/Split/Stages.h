//===- Stages.h - The pipeline stage of each op -----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The assignment of ops to stages. Forward is cut along its order; backward
/// follows the forward values that it reads; an update is in the stage of its
/// parameter. Ops that are cheap and depend on inputs alone are computed in
/// each stage that reads them, and so are ops that are the same for each
/// micro-batch.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SPLIT_STAGES_H
#define CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SPLIT_STAGES_H

#include "Flow.h"
#include "cleave/Dialect/Pipe/Transforms/Costs.h"
#include "cleave/Scheduling/StageMap.h"
#include "llvm/ADT/BitVector.h"
#include "llvm/ADT/StringSet.h"

namespace cleave::pipe {

/// A set of stages.
using StageSet = llvm::BitVector;

/// The stages of one entry.
class Stages {
public:
  Stages(mlir::func::FuncOp entry, const Flow &flow, int64_t count,
         const scheduling::StageMap &map)
      : entry(entry), body(entry.getBody().front()), flow(flow), count(count),
        map(map) {}

  /// Cuts forward into stages, which begin with the ops that have
  /// `kBeginsStageAttr`. Without such ops: if `first` is empty, they have even
  /// cost on `machine`, as far as few bytes are sent (`balancedCuts`); with
  /// `whole`, preferably so that each parameter is in one stage and no gradient
  /// depends on values of an earlier stage. Otherwise `first` has a prefix of a
  /// parameter's name for each stage from the second on, and the stage begins
  /// before the first reader of that parameter. Emits an error if the cut is
  /// not possible.
  llvm::LogicalResult cut(llvm::ArrayRef<std::string> first,
                          const MachineModel &machine, bool whole);
  /// Cuts forward at the given thousandths of its ops; a stage may be empty.
  void cutAt(llvm::ArrayRef<int64_t> thousandths);
  /// Cuts forward so that parameters, and buffers that are written, are in the
  /// same stages as in `other`, the stages of another entry. A stage that reads
  /// a parameter holds it in `other`, too. Emits an error if a stage reads a
  /// buffer that another stage writes.
  llvm::LogicalResult cutLike(Stages &other);

  int64_t size() const { return count; }
  /// Whether the same pipeline positions run both stages.
  bool areTogether(int64_t stage, int64_t other) const {
    return map.devicesOf(stage) == map.devicesOf(other);
  }
  /// The stage that computes `op`, which varies with the micro-batch; nothing
  /// if each stage that reads it does.
  std::optional<int64_t> of(mlir::Operation *op) const {
    auto it = stages.find(op);
    return it == stages.end() ? std::nullopt : std::optional(it->second);
  }
  /// Assigns a new op to a stage, or forgets an op before it is erased.
  void place(mlir::Operation *op, int64_t stage) { stages[op] = stage; }
  void forget(mlir::Operation *op) { stages.erase(op); }
  /// For an op that is the same for each micro-batch: the stage that holds what
  /// it reads of the arguments that are updated; if it reads none, the first
  /// stage whose sums over micro-batches it depends on; 0 if there is none.
  int64_t homeOf(mlir::Operation *op) const;
  /// The stage that runs a reduction, once in a step, for `stage`: the only one
  /// whose sums over micro-batches the op depends on; of several, the first at
  /// the pipeline position of `stage`, so that stages of one position that hold
  /// a tied parameter reduce its gradient once; else `stage` itself.
  int64_t reducerOf(mlir::Operation *op, int64_t stage) const;
  /// The stage that runs a gather, once in a step, for `stage`: the first at
  /// its pipeline position that holds the parameter, which is tied if there are
  /// several.
  int64_t gathererOf(mlir::Operation *op, int64_t stage) const;
  /// Whether parts behind all micro-batches read what the home stage of the op
  /// computes before the updates: a reduction of tensors to a scalar that other
  /// stages read, what is computed from scalars of several stages, or an op
  /// that such a scalar depends on and that is too heavy to be computed twice.
  bool isBeforeUpdate(mlir::Operation *op) const {
    return beforeUpdate.contains(op);
  }
  /// Whether the update of `stage` computes such an op itself: a tensor that is
  /// made of what both stages hold, which would have to be sent.
  bool isComputedToo(mlir::Operation *op, int64_t stage) const;
  /// The stages that hold the argument `name`; for optimizer state, those that
  /// hold its parameter.
  StageSet holders(llvm::StringRef name) const;
  /// Whether the entry writes to the buffer.
  bool writes(llvm::StringRef buffer) const;

private:
  using Ops = llvm::SmallVector<mlir::Operation *>;

  /// Lets stages hold, and update, the parameter `name`.
  void hold(llvm::StringRef name, const StageSet &held);
  Ops stagedForward();
  mlir::FailureOr<llvm::SmallVector<size_t>> markedCuts(const Ops &ops);
  Stages apart(const Ops &ops) const;
  std::vector<double> secondsOf(const Ops &ops, const Stages &single,
                                const MachineModel &machine) const;
  llvm::BitVector wholeBegins(const Ops &ops, const Stages &single) const;
  void assign(const Ops &ops, llvm::ArrayRef<size_t> cuts);
  void finish();
  void releaseHelpers();
  void settleHelpers();
  void findReaders(PartId last);
  void markRead(mlir::Value value, int64_t stage);
  mlir::BlockArgument argumentOf(llvm::StringRef name) const;
  void placeWritten(bool backward);
  int64_t lastSource(mlir::Value value) const;
  bool isSeed(mlir::Operation &op) const;
  bool isEverywhere(mlir::Operation &op) const;
  std::optional<int64_t> turningPoint(mlir::Operation &op) const;
  void resumeIn(mlir::Operation *op, int64_t stage);
  void followForward();
  void sinkBackward();
  int64_t lastReader(mlir::Value value, int64_t stage) const;
  bool isUpdated(llvm::StringRef name);
  /// Whether some stage reads the argument, or it is state of another one.
  bool isHeld(mlir::BlockArgument argument) const;
  bool isOfMicroBatch(mlir::Operation *op) const;
  std::optional<int64_t> pin(mlir::Operation *op);
  llvm::DenseMap<mlir::Operation *, StageSet>
  updatesThatRead(llvm::ArrayRef<mlir::Operation *> early) const;
  llvm::SmallVector<mlir::Operation *> joinedScalars() const;
  void findSums();
  llvm::SmallVector<StageSet> places(mlir::Value value) const;
  std::optional<int64_t> lowered(mlir::Value value, int64_t stage) const;

  mlir::func::FuncOp entry;
  mlir::Block &body;
  const Flow &flow;
  int64_t count;
  scheduling::StageMap map;
  llvm::DenseMap<mlir::Operation *, int64_t> stages;
  /// Parameters, state, and the forward values that depend on them.
  llvm::DenseSet<mlir::Value> fromParameters;
  /// Ops of forward that only backward reads; and the copies among them that
  /// each stage makes that reads them.
  Ops helpers;
  llvm::DenseSet<mlir::Operation *> released;
  /// Ops of backward that depend on no gradient yet, and the ops that it begins
  /// with.
  llvm::DenseSet<mlir::Operation *> resumed, seeds;
  /// The stages that read or compute an argument, or a forward value that one
  /// stage computes.
  llvm::DenseMap<mlir::Value, StageSet> present;
  llvm::DenseMap<mlir::Operation *, StageSet> sums;
  /// The arguments that the entry updates, once one was asked for.
  llvm::StringSet<> updated;
  /// For an op that reads some of these after all micro-batches, the stages
  /// that hold them.
  llvm::DenseMap<mlir::Operation *, StageSet> pinned;
  llvm::DenseSet<mlir::Operation *> beforeUpdate;
  /// The argument of each name, once one was asked for.
  mutable llvm::StringMap<mlir::BlockArgument> named;
};

/// How much faster the slowest stage must be for a cut that sends more. Few
/// values cross between the layers of a model, many within attention.
inline constexpr double kNarrowCutGain = 0.05;

/// How much longer the slowest stage may take where stages begin between the
/// layers of a model than where they begin anywhere. Recomputation
/// keeps what crosses a stage's begin, such as a softmax.
inline constexpr double kLayerCutLoss = 0.2;

/// Returns the cuts of `ops`, the ordered ops of forward that one stage
/// computes, into `count` stages: the index of the first op of each stage from
/// the second on. Of the cuts whose slowest stage takes at most
/// `kNarrowCutGain` longer than that of the fastest cut, it is the one that
/// sends the fewest bytes. `seconds` has the time of each op with its backward;
/// the values that a stage receives arrive at the rate `machine.link`. Stages
/// begin only at ops in `begins`; the result is empty if these are too few. If
/// there are at least as many layers as stages, no stage begins within one
/// unless that is faster by `kLayerCutLoss`; of such cuts that send as little,
/// it is the most even one.
llvm::SmallVector<size_t> balancedCuts(llvm::ArrayRef<mlir::Operation *> ops,
                                       llvm::ArrayRef<double> seconds,
                                       int64_t count,
                                       const MachineModel &machine,
                                       const llvm::BitVector &begins);
/// Returns the cuts of `ops`, the ordered ops of forward that one stage
/// computes, at names: `first` has a prefix of a parameter's name for each of
/// `count` stages from the second on. The stage begins between the previous op
/// that reads another parameter and the first reader of that parameter, where
/// least is sent. `varies` says whether a value differs between micro-batches,
/// and `isForward` whether an op belongs to forward. Emits an error if the cut
/// is not possible.
mlir::FailureOr<llvm::SmallVector<size_t>>
namedCuts(mlir::func::FuncOp entry, llvm::ArrayRef<mlir::Operation *> ops,
          llvm::ArrayRef<std::string> first, int64_t count,
          llvm::function_ref<bool(mlir::Value)> varies,
          llvm::function_ref<bool(mlir::Operation *)> isForward);
/// Splits the value of an option at commas.
llvm::SmallVector<std::string> splitNames(llvm::StringRef names);

/// Returns, for a cut before each of `ops`, the bytes that are sent across it.
llvm::SmallVector<int64_t> crossingBytes(llvm::ArrayRef<mlir::Operation *> ops);

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SPLIT_STAGES_H
