//===- Flow.h - Roles and micro-batches by dataflow -------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_FLOW_H
#define CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_FLOW_H

#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace cleave::pipe {

/// The parts, in the order in which they run.
enum class PartId : unsigned {
  /// Updates that the step before has left, where they run once for all
  /// micro-batches.
  Deferred,
  Prologue,
  /// What forward and backward need of other devices and is made of parameters
  /// alone, where it is gathered once.
  Gather,
  Forward,
  Backward,
  /// Of backward, what gradients of parameters alone wait for.
  Weights,
  /// Gradients that devices sum up, behind the last micro-batch.
  Reduce,
  /// What all stages need of each other for their updates.
  BeforeUpdate,
  Update
};

/// With `split`, backward has its two parts.
llvm::StringRef partName(PartId id, bool split);
/// Whether a part reads what all micro-batches have given.
inline bool isBehindAll(PartId id) { return id >= PartId::Reduce; }
/// Whether a part runs once for all micro-batches.
inline bool runsOnce(PartId id) {
  return id == PartId::Deferred || id == PartId::Gather || isBehindAll(id);
}

/// How a value relates to the micro-batches.
struct Layout {
  enum Kind {
    Whole,  ///< one value for all
    Split,  ///< each holds a slice along `dim`
    Partial ///< each holds a summand
  } kind = Whole;
  int64_t dim = 0;
};

/// Whether updates join backward.
enum class Fusion { Auto, None, Backward };

/// The dataflow of one partitioned entry.
class Flow {
public:
  /// Of an entry that is cut into `stages`.
  Flow(mlir::func::FuncOp entry, spmd::MeshOp mesh, Fusion fusion,
       int64_t stages);

  /// Finds roles; reports a sum over micro-batches that is needed too early,
  /// and what keeps updates apart that are asked to join backward. Once more
  /// where ops have become others.
  llvm::LogicalResult analyze();

  int64_t microBatches() const { return count; }

  /// The part that computes `op` if it varies with the micro-batch, or has
  /// effects; else the first part that may.
  PartId part(mlir::Operation *op) const { return roles.lookup(op); }
  /// True when updates run in the backward part.
  bool mergedUpdate() const { return merged; }
  /// Whether `op` is of an update that the step before has left.
  bool isEarlyUpdate(mlir::Operation *op) const { return early.contains(op); }
  bool hasEarlyUpdates() const { return !early.empty(); }
  /// Where updates stand, as `kOptimizerFusionAttr` says it; empty where there
  /// are none.
  llvm::StringRef optimizerFusion() const { return fused; }

  /// Whether the value differs between micro-batches.
  bool varies(mlir::Value value) const { return varying.contains(value); }
  bool varies(mlir::Operation *op) const {
    return llvm::any_of(op->getResults(),
                        [&](mlir::Value v) { return varies(v); });
  }

  /// Whether what the op makes depends on which micro-batch it is, whatever it
  /// reads.
  bool isOfMicroBatch(mlir::Operation *op) const;

  /// A sum over the micro-batches.
  bool isAccumulation(mlir::Operation *op) const;
  /// Whether an accumulation is computed before forward.
  bool inPrologue(mlir::Operation *op) const { return prologue.contains(op); }
  /// An operand of which the op reads the type alone.
  bool isUnread(mlir::OpOperand &operand) const;
  /// Too much work to be done again in another part.
  bool isHeavy(mlir::Operation *op) const;

  Layout layout(mlir::Value value) const;
  /// The type of the value for all micro-batches of a device together.
  mlir::Type wholeType(mlir::Value value) const;
  llvm::SmallVector<mlir::Type> wholeArgumentTypes() const;
  llvm::SmallVector<mlir::Type> wholeResultTypes() const;
  /// A position in the entry by which values are ordered.
  std::pair<int64_t, int64_t> order(mlir::Value value) const;

  /// The attributes of an argument or a result; those of placement only where
  /// devices hold different parts.
  mlir::DictionaryAttr entryAttributes(mlir::DictionaryAttr attributes) const;
  void stripAttributes(mlir::Operation *op) const;

private:
  bool onSequentialAxis(llvm::ArrayRef<spmd::AxisRef> axes) const;
  void listOps();
  void findVarying();
  void findRoles();
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
  llvm::DenseMap<mlir::Operation *, llvm::SmallVector<unsigned, 1>> unread;
};

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_FLOW_H
