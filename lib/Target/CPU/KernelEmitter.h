//===- KernelEmitter.h - One kernel as LLVM IR ------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_TARGET_CPU_KERNELEMITTER_H
#define CLEAVE_LIB_TARGET_CPU_KERNELEMITTER_H

#include "MathBuilder.h"
#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Target/CPU/CodeGen.h"
#include "cleave/Target/KernelIndexing.h"
#include "llvm/IR/IRBuilder.h"

namespace cleave::cpu {

/// Writes the functions of one kernel.
///
/// The body of a pass runs on vectors of columns: a main loop of several
/// vectors, then one vector at a time under a mask. A kernel without ops across
/// columns and with few columns runs on vectors of the flat index `row * cols +
/// column` instead. Values that do not depend on column or row are computed
/// outside the loop over it, as scalars.
class KernelEmitter {
public:
  KernelEmitter(exec::KernelOp kernel, llvm::Module &module,
                const CpuTarget &target);
  llvm::LogicalResult emit();

private:
  /// The points for which code is being written: `lanes` neighbours.
  struct Point {
    unsigned lanes = 1;
    /// The position of the first lane; `row` is the flat index in a flat
    /// kernel.
    llvm::Value *row = nullptr, *col = nullptr;
    LaneStep rowStep{0, 1}, colStep{1, 1};
    /// The active lanes; null for all.
    llvm::Value *mask = nullptr;
  };
  /// The address of an access.
  struct Place {
    enum Kind { Uniform, Contiguous, Scattered } kind;
    /// In elements; one for each lane if scattered.
    llvm::Value *offset;
  };
  struct Loop {
    llvm::BasicBlock *header, *exit;
    llvm::PHINode *index;
    llvm::Value *step;
    llvm::SmallVector<llvm::PHINode *> carried;
  };
  /// Partial results of an accumulation in scratch memory.
  struct Partial {
    int64_t base, groupBytes, width;
  };

  // Structure: EmitKernel.cpp.
  void createFunction(llvm::StringRef name);
  llvm::LogicalResult prepare();
  int levelOf(mlir::Operation *op);
  llvm::LogicalResult emitBlock(mlir::Block &block, int level);
  llvm::LogicalResult emitInvariant();
  llvm::LogicalResult emitRows();
  llvm::LogicalResult emitGroups();
  llvm::LogicalResult emitFlat();
  void emitInitialPartials();
  void emitSums(llvm::Value *from, llvm::Value *to);
  void emitFinish();
  void emitKeeps();
  llvm::Value *emitMemory(int64_t bytes);
  void emitReturn();
  Loop beginLoop(llvm::Value *from, llvm::Value *to, int64_t step,
                 llvm::ArrayRef<llvm::Value *> carried = {});
  void endLoop(Loop &loop, llvm::ArrayRef<llvm::Value *> next = {});
  llvm::Value *laneMask(llvm::Value *remaining, unsigned lanes);

  // Passes: EmitPass.cpp.
  llvm::LogicalResult emitPass(exec::PassOp pass);
  llvm::LogicalResult emitScanPass(exec::PassOp pass, llvm::Value *columns);
  void finishPass(exec::PassOp pass);
  unsigned unrollOf(exec::PassOp pass, unsigned lanes);
  /// Of elements of `type`, each in `result`.
  llvm::Value *identity(exec::ReductionKind kind, mlir::Type type,
                        llvm::Type *result);
  llvm::Value *combine(exec::ReductionKind kind, mlir::Type type,
                       llvm::Value *x, llvm::Value *y);
  llvm::Value *reduceLanes(exec::ReductionKind kind, mlir::Type type,
                           llvm::Value *x);

  // Memory: EmitMemory.cpp.
  Place placeOf(mlir::AffineMap map, mlir::ValueRange indices);
  llvm::Value *evaluate(mlir::AffineExpr expr,
                        llvm::ArrayRef<llvm::Value *> dims,
                        llvm::ArrayRef<llvm::Value *> symbols);
  llvm::Value *evaluateLanes(mlir::AffineExpr expr,
                             llvm::ArrayRef<llvm::Value *> symbols);
  llvm::Value *pointer(mlir::Value memory, llvm::Type *element,
                       llvm::Value *offset);
  llvm::Value *loadFrom(mlir::Value memory, mlir::Type type, Place place,
                        llvm::Value *where);
  void storeTo(mlir::Value memory, mlir::Type type, Place place,
               llvm::Value *value);
  void emitAccumulate(exec::AccumulateOp op);
  llvm::Value *partialPointer(const Partial &partial, llvm::Value *group);

  // Conversions of narrow floats: EmitNarrow.cpp.
  llvm::Value *truncate(llvm::Value *x, mlir::Type to, llvm::Type *result);
  llvm::Value *extend(llvm::Value *x, mlir::Type from, llvm::Type *result);
  llvm::Value *roundToOdd(llvm::Value *x, llvm::Type *f32);

  // Ops: EmitOps.cpp, EmitPhilox.cpp.
  llvm::LogicalResult emitOp(mlir::Operation &op);
  llvm::Value *emitArith(mlir::Operation &op);
  llvm::Value *emitConstant(mlir::TypedAttr constant);
  llvm::Value *floatToInteger(llvm::Value *given, mlir::Type from,
                              llvm::Type *result, bool isSigned);
  llvm::Value *integerToFloat(llvm::Value *given, mlir::Type from,
                              mlir::Type to, llvm::Type *result, bool isSigned);
  llvm::Value *floorDivide(llvm::Value *n, llvm::Value *d);
  llvm::Value *emitMath(mlir::Operation &op);
  llvm::Value *emitPhilox(exec::PhiloxOp op);
  bool isAligned64(exec::PhiloxOp op);
  llvm::SmallVector<llvm::Value *, 4>
  philoxBlock(llvm::Value *low, llvm::Value *high, llvm::Value *seed,
              llvm::Value *step, llvm::Value *id);

  llvm::Value *get(mlir::Value value) { return values.lookup(value); }
  llvm::Value *spread(llvm::Value *value, unsigned lanes);
  llvm::Type *scalarType(mlir::Type type);
  /// The memory type of an element: i1 takes a byte.
  llvm::Type *memoryType(mlir::Type type);
  llvm::Type *lanesOf(llvm::Type *type, unsigned lanes);
  llvm::Value *index(int64_t value) { return b.getInt64(value); }

  exec::KernelOp kernel;
  llvm::Module &module;
  const CpuTarget &target;
  llvm::IRBuilder<> b;
  MathBuilder math;
  unsigned maxLanes;
  bool flat = false;
  int64_t rows, cols;

  llvm::Function *function = nullptr;
  llvm::Value *begin = nullptr, *end = nullptr, *scratch = nullptr;
  llvm::Value *group = nullptr;
  Point point;
  llvm::DenseMap<mlir::Value, llvm::Value *> values;
  llvm::DenseMap<mlir::Operation *, int> levels;
  /// Values of reductions and scans so far, in the chain being written.
  llvm::DenseMap<mlir::Operation *, llvm::Value *> running;
  llvm::DenseMap<mlir::Operation *, Partial> partials;
  llvm::SmallVector<llvm::Value *> allocated;
  /// Bytes of the memory of the call that would fit the stack.
  int64_t onStack = 0;
  /// Draws of the 64 columns being written, and the index of their current
  /// vector.
  struct Draws {
    llvm::Value *words[4][4] = {};
  };
  llvm::DenseMap<mlir::Operation *, Draws> draws;
  int copyInBlock = -1;
};

} // namespace cleave::cpu

#endif // CLEAVE_LIB_TARGET_CPU_KERNELEMITTER_H
