//===- Flow.h - Roles and micro-batches by dataflow -------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SPLIT_FLOW_H
#define CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SPLIT_FLOW_H

#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Dialect/Spmd/IR/TypeOperands.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace cleave::pipe {

/// The parts, in the order in which they run.
enum class PartId : unsigned {
  /// Deferred updates of the step before, if they run once for all
  /// micro-batches.
  Deferred,
  Prologue,
  /// Gathers of values that depend on parameters alone, once in a step.
  Gather,
  Forward,
  Backward,
  /// The half of backward that only gradients of parameters depend on.
  Weights,
  /// Reductions of accumulated gradients over devices, after the last
  /// micro-batch.
  Reduce,
  /// Scalars that the updates of all stages read from each other.
  BeforeUpdate,
  Update
};

/// Returns the letter of a part; with `split`, backward has two parts.
llvm::StringRef partName(PartId id, bool split);
/// Whether a part runs after all micro-batches.
inline bool isAfterMicroBatches(PartId id) { return id >= PartId::Reduce; }
/// Whether a part runs once for all micro-batches.
inline bool runsOnce(PartId id) {
  return id == PartId::Deferred || id == PartId::Gather ||
         isAfterMicroBatches(id);
}

/// The sharding of a value over micro-batches.
struct Layout {
  enum Kind {
    Whole,  ///< one value for all micro-batches
    Split,  ///< each micro-batch has a slice along `dim`
    Partial ///< each micro-batch has a part, such as a summand
  } kind = Whole;
  int64_t dim = 0;
  /// How the parts are combined.
  graph::ReductionKind partial = graph::ReductionKind::Sum;
};

/// Whether updates join backward.
enum class Fusion { Auto, None, Backward };

/// The dataflow of one partitioned entry.
class Flow {
public:
  /// Makes the dataflow of an entry that is to be cut into `stages`.
  Flow(mlir::func::FuncOp entry, spmd::MeshOp mesh, Fusion fusion,
       int64_t stages);

  /// Finds roles. Emits an error for a sum over micro-batches that is needed
  /// too early, and if updates were asked to join backward and cannot. Must run
  /// again after ops have changed.
  llvm::LogicalResult analyze();
  /// Finds the role of an op that was inserted, whose operands have theirs, and
  /// whether it varies; forgets an op that is erased. Enough for ops of forward
  /// and backward until all are analyzed again.
  void add(mlir::Operation *op);
  void forget(mlir::Operation *op);

  int64_t microBatches() const { return count; }

  /// The part that computes `op` if it varies with the micro-batch or has
  /// effects; otherwise the first part that can compute it.
  PartId part(mlir::Operation *op) const { return roles.lookup(op); }
  /// True when updates run in the backward part.
  bool mergedUpdate() const { return merged; }
  /// Whether `op` belongs to a deferred update of the step before.
  bool isEarlyUpdate(mlir::Operation *op) const { return early.contains(op); }
  bool hasEarlyUpdates() const { return !early.empty(); }
  /// The value of `kOptimizerFusionAttr`; empty if there are no updates.
  llvm::StringRef optimizerFusion() const { return fused; }

  /// Whether the value differs between micro-batches.
  bool varies(mlir::Value value) const { return varying.contains(value); }
  bool varies(mlir::Operation *op) const {
    return llvm::any_of(op->getResults(),
                        [&](mlir::Value v) { return varies(v); });
  }

  /// Whether the op itself depends on the number of the micro-batch, whatever
  /// its operands are.
  bool isOfMicroBatch(mlir::Operation *op) const;

  /// Whether the op is a sum, maximum or minimum over micro-batches.
  bool isAccumulation(mlir::Operation *op) const;
  /// Whether an accumulation is computed before forward.
  bool inPrologue(mlir::Operation *op) const { return prologue.contains(op); }
  /// Whether the op reads only the type of the operand.
  bool readsTypeOnly(mlir::OpOperand &operand) const {
    return typeOperands.contains(operand);
  }
  /// Whether the op is too expensive to be computed again in another part.
  bool isHeavy(mlir::Operation *op) const;

  Layout layout(mlir::Value value) const;
  /// The type of the value for all micro-batches of a device.
  mlir::Type wholeType(mlir::Value value) const;
  llvm::SmallVector<mlir::Type> wholeArgumentTypes() const;
  llvm::SmallVector<mlir::Type> wholeResultTypes() const;
  /// The place of a value in the entry, by which values are ordered.
  std::pair<int64_t, int64_t> order(mlir::Value value) const;

  /// The attributes of an argument or result, with its sharding only if devices
  /// hold different shards.
  mlir::DictionaryAttr entryAttributes(mlir::DictionaryAttr attributes) const;
  void stripAttributes(mlir::Operation *op) const;

private:
  bool onSequentialAxis(llvm::ArrayRef<spmd::AxisRef> axes) const;
  void listOps();
  void findVarying();
  void findVarying(mlir::Operation *op);
  void findRoles();
  void takePartsInUpdate();
  void findEarlyUpdates();
  llvm::LogicalResult mergeUpdate();
  llvm::LogicalResult findPrologue();

  mlir::func::FuncOp entry;
  mlir::Block &body;
  spmd::Mesh mesh;
  int64_t count = 1;
  Fusion fusion;
  int64_t stages;
  bool merged = false;
  std::string fused;
  llvm::DenseSet<mlir::Operation *> early;
  llvm::DenseSet<mlir::Value> varying;
  llvm::DenseMap<mlir::Operation *, PartId> roles;
  llvm::DenseSet<mlir::Operation *> prologue;
  llvm::DenseMap<mlir::Operation *, int64_t> positions;
  spmd::TypeOperands typeOperands;
};

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SPLIT_FLOW_H
