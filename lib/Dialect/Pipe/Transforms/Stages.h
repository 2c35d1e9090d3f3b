//===- Stages.h - Which stage of a pipeline computes what -------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Forward is cut along its order; backward follows what it reads of forward;
/// an update stands where its parameter is. What costs little and depends on
/// inputs alone is computed in each stage that reads it, and so is what is the
/// same for each micro-batch.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_STAGES_H
#define CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_STAGES_H

#include "Flow.h"
#include "cleave/Dialect/Pipe/Transforms/Costs.h"
#include "llvm/ADT/BitVector.h"

namespace cleave::pipe {

/// A set of stages.
using StageSet = llvm::BitVector;

/// The stages of one entry.
class Stages {
public:
  Stages(mlir::func::FuncOp entry, const Flow &flow, int64_t count)
      : entry(entry), body(entry.getBody().front()), flow(flow), count(count) {}

  /// Cuts forward into stages of even cost on `machine`, or where `first` says:
  /// from the second on, a stage begins before the first op that reads a
  /// parameter whose name begins so. Where `whole`, stages of even cost begin
  /// where each parameter is in one stage, and no gradient is made of what an
  /// earlier one has, if they can. Reports a cut that cannot be.
  llvm::LogicalResult cut(llvm::ArrayRef<std::string> first,
                          const MachineModel &machine, bool whole);
  /// Cuts forward where so many thousandths of its ops stand before; a stage
  /// may have none.
  void cutAt(llvm::ArrayRef<int64_t> thousandths);
  /// Parameters are in the stages where `other`, another entry, has them.
  void cutLike(const Stages &other);

  int64_t size() const { return count; }
  /// The stage that computes `op`, which differs between micro-batches; nothing
  /// where each stage that reads it does.
  std::optional<int64_t> of(mlir::Operation *op) const {
    auto it = stages.find(op);
    return it == stages.end() ? std::nullopt : std::optional(it->second);
  }
  /// Says so of an op that is made later, or will be no more.
  void place(mlir::Operation *op, int64_t stage) { stages[op] = stage; }
  void forget(mlir::Operation *op) { stages.erase(op); }
  /// Of what is the same for each micro-batch: the first stage whose sums over
  /// micro-batches it is made of; 0 where it is made of none.
  int64_t homeOf(mlir::Operation *op) const;
  /// The only stage whose sums over micro-batches it is made of; nothing where
  /// it is made of none, or of those of several.
  std::optional<int64_t> sourceOf(mlir::Operation *op) const;
  /// Whether it is computed before the updates, in its home alone: a scalar
  /// that tensors are reduced to, and what is too heavy to be computed for that
  /// and again.
  bool isBeforeUpdate(mlir::Operation *op) const {
    return beforeUpdate.contains(op);
  }
  /// The stages that hold the argument `name`, or that of which it is state.
  StageSet holders(llvm::StringRef name) const;

private:
  using Ops = llvm::SmallVector<mlir::Operation *>;

  Ops stagedForward();
  Stages apart(const Ops &ops) const;
  std::vector<double> secondsOf(const Ops &ops, const Stages &single,
                                const MachineModel &machine) const;
  llvm::BitVector wholeBegins(const Ops &ops, const Stages &single) const;
  void assign(const Ops &ops, llvm::ArrayRef<size_t> cuts);
  void finish();
  void findReaders(PartId last);
  void markRead(mlir::Value value, int64_t stage);
  bool isSeed(mlir::Operation &op) const;
  bool isEverywhere(mlir::Operation &op) const;
  std::optional<int64_t> turningPoint(mlir::Operation &op) const;
  void resumeIn(mlir::Operation *op, int64_t stage);
  void followForward();
  void sinkBackward();
  int64_t lastReader(mlir::Value value, int64_t stage) const;
  void findSums();
  llvm::SmallVector<StageSet> places(mlir::Value value) const;
  std::optional<int64_t> lowered(mlir::Value value, int64_t stage) const;

  mlir::func::FuncOp entry;
  mlir::Block &body;
  const Flow &flow;
  int64_t count;
  llvm::DenseMap<mlir::Operation *, int64_t> stages;
  /// Arguments that are parameters or state, and what forward makes of them.
  llvm::DenseSet<mlir::Value> fromParameters;
  /// Ops of forward that only backward reads.
  Ops helpers;
  /// Ops of backward that no gradient has reached yet, and those that it begins
  /// with.
  llvm::DenseSet<mlir::Operation *> resumed, seeds;
  /// Where a value of forward that one stage computes, or an argument, is read
  /// or made.
  llvm::DenseMap<mlir::Value, StageSet> present;
  llvm::DenseMap<mlir::Operation *, StageSet> sums;
  llvm::DenseSet<mlir::Operation *> beforeUpdate;
};

/// Where to cut `ops`, the ops of forward that one stage computes, in order:
/// the first of each stage from the second on. Of the ways to cut, the one
/// whose slowest stage is fastest. `seconds` are those of each op with its
/// backward; what a stage receives comes at `machine.link`. A stage begins with
/// one of `begins`; empty where there are too few of them.
llvm::SmallVector<size_t> balancedCuts(llvm::ArrayRef<mlir::Operation *> ops,
                                       llvm::ArrayRef<double> seconds,
                                       int64_t count,
                                       const MachineModel &machine,
                                       const llvm::BitVector &begins);
/// The bytes that a cut before each of `ops` sends on.
llvm::SmallVector<int64_t> crossingBytes(llvm::ArrayRef<mlir::Operation *> ops);

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_STAGES_H
