//===- KernelBuilder.h - Scalar code of graph ops ---------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The builder with which a graph op emits the scalar code of one of its
/// elements. The code goes into one flat block, in which every value belongs to
/// a row or to an element; the fuser splits that block into the passes of an
/// `exec.kernel`.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_EXEC_KERNELS_KERNELBUILDER_H
#define CLEAVE_DIALECT_EXEC_KERNELS_KERNELBUILDER_H

#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/OpDefinition.h"
#include "llvm/ADT/DenseMap.h"

namespace cleave {

/// What a value belongs to: a row, or an element.
enum class Level : uint8_t { Row, Element };

/// The space of an op's code. A flexible space has `cols` elements that may be
/// divided into rows anywhere, or that correspond to the rows of a larger
/// space.
struct KernelSpace {
  int64_t rows = 1, cols = 1;
  bool flexible = true;

  int64_t numElements() const { return rows * cols; }
  static KernelSpace flat(int64_t n) { return {1, n, true}; }
  static KernelSpace fixed(int64_t rows, int64_t cols) {
    return {rows, cols, false};
  }
};

/// One dimension of a loop nest, with its step in memory.
struct Stride {
  int64_t size, step;
  bool operator==(const Stride &) const = default;
};

/// The element of a tensor for each element (or row) of the space, counted in
/// row-major order: a nest of loops, major to minor, with steps in the tensor's
/// own row-major numbering and in memory.
struct Access {
  llvm::SmallVector<int64_t, 4> sizes, logical, memory;
  int64_t logicalOffset = 0, memoryOffset = 0;

  /// Loops of `sizes`; loop i runs through dimension `dims[i]` of the tensor
  /// (-1: through none) in steps of `steps[i]`, from index `begin`.
  static Access get(mlir::RankedTensorType type, llvm::ArrayRef<int64_t> sizes,
                    llvm::ArrayRef<int64_t> dims,
                    llvm::ArrayRef<int64_t> steps = {},
                    llvm::ArrayRef<int64_t> begin = {});
  /// All elements in order.
  static Access identity(mlir::RankedTensorType type);
  /// The element that broadcasting to `shape` reads.
  static Access broadcast(mlir::RankedTensorType type,
                          llvm::ArrayRef<int64_t> shape);
  /// Always the element with this index.
  static Access element(mlir::RankedTensorType type,
                        llvm::ArrayRef<int64_t> index = {});

  /// The loops in the tensor's own numbering, joined where possible.
  llvm::SmallVector<Stride, 4> joinedLogical() const;
  /// The loops in memory, joined where possible.
  llvm::SmallVector<Stride, 4> joinedMemory() const;
};

/// The offset at row d0 and column d1 of `[rows x cols]` (at row d0, for
/// `Level::Row`) of a joined nest of loops.
mlir::AffineExpr accessExpr(mlir::MLIRContext *context,
                            llvm::ArrayRef<Stride> loops, int64_t offset,
                            int64_t rows, int64_t cols, Level level);

/// The value from which `exec.view`s only reshape a dense tensor: element i of
/// both, in row-major order, is the same.
mlir::Value throughViews(mlir::Value tensor);

class KernelBuilder {
public:
  /// A read of a tensor by the op.
  struct Read {
    mlir::Value tensor;
    Access access;
    Level level;
    /// Whether the address also depends on computed indices or a predicate.
    bool indexed;
  };
  /// A result that the op defines.
  struct Definition {
    mlir::Value result;
    Level level;
    /// Whether it is a value of each element, or row, in order: other ops in
    /// the kernel may then use it without memory.
    bool plain;
    Access access;
  };

  /// Emits into `block`, over `[rows x cols]`.
  KernelBuilder(mlir::Location loc, mlir::Block &block, int64_t rows,
                int64_t cols);

  /// Emits `op`'s code; a flexible op runs on elements or on rows.
  llvm::LogicalResult emit(mlir::Operation *op, Level placement);

  //===--- Memory ---------------------------------------------------------===//

  /// The element of `tensor` that `access` assigns to this element or row.
  /// Narrow floats are converted to f32.
  mlir::Value read(mlir::Value tensor, const Access &access,
                   Level level = Level::Element);
  /// The element under broadcasting to `shape`.
  mlir::Value readBroadcast(mlir::Value tensor, llvm::ArrayRef<int64_t> shape);
  /// The element in order; for `Level::Row`, `tensor` has one element per row.
  mlir::Value readInOrder(mlir::Value tensor, Level level = Level::Element);
  /// The one element at `index`.
  mlir::Value readScalar(mlir::Value tensor,
                         llvm::ArrayRef<int64_t> index = {});
  /// The element at `access` plus `sum(indices[i] * steps[i])` in memory, zero
  /// where `where` (may be null) is false.
  mlir::Value readIndexed(mlir::Value tensor, const Access &access,
                          mlir::ValueRange indices,
                          llvm::ArrayRef<int64_t> steps, mlir::Value where = {},
                          Level level = Level::Element);

  /// Defines `result` for this element or row.
  void define(mlir::Value result, mlir::Value value,
              Level level = Level::Element);
  /// Defines one element of `result`, at any index.
  void defineAt(mlir::Value result, mlir::Value value, const Access &access,
                Level level = Level::Element);
  /// Defines `result[column]` as the combination of `value` over all rows.
  void accumulate(exec::ReductionKind kind, mlir::Value value,
                  mlir::Value result);
  /// Defines the scalar `result` as the combination of `value` over all
  /// elements.
  void accumulateAll(exec::ReductionKind kind, mlir::Value value,
                     mlir::Value result);

  //===--- Rows -----------------------------------------------------------===//

  mlir::Value reduce(exec::ReductionKind kind, mlir::Value value,
                     bool ordered = false);
  /// The running sum, which is multiplied by `factor` (may be null) before each
  /// value is added.
  mlir::Value scan(mlir::Value value, bool reverse, mlir::Value factor = {});
  /// Index along one dimension of a nest of loops `sizes`, as i64.
  mlir::Value index(llvm::ArrayRef<int64_t> sizes, unsigned dim);
  /// A number that the kernel reads from memory, so that kernels which differ
  /// only in it are merged.
  mlir::Value parameter(int64_t value);
  /// 32 random bits for element `sum(index[d] * steps[d]) + base`.
  mlir::Value philox(mlir::Value seed, mlir::Value step, mlir::Value base,
                     int64_t baseMultiple, llvm::ArrayRef<int64_t> sizes,
                     llvm::ArrayRef<int64_t> steps, int64_t id);

  //===--- Scalar arithmetic
  //------------------------------------------------===//

  mlir::Value constant(mlir::Type type, double value);
  mlir::Value add(mlir::Value a, mlir::Value b);
  mlir::Value sub(mlir::Value a, mlir::Value b);
  mlir::Value mul(mlir::Value a, mlir::Value b);
  mlir::Value div(mlir::Value a, mlir::Value b);
  mlir::Value max(mlir::Value a, mlir::Value b);
  mlir::Value min(mlir::Value a, mlir::Value b);
  mlir::Value neg(mlir::Value a);
  mlir::Value exp(mlir::Value a);
  mlir::Value log(mlir::Value a);
  mlir::Value sqrt(mlir::Value a);
  mlir::Value select(mlir::Value condition, mlir::Value a, mlir::Value b);
  /// Conversion by the rules of graph.cast.
  mlir::Value cast(mlir::Value a, mlir::Type type);
  /// The type in which arithmetic on tensors of `element` is done.
  mlir::Type computeType(mlir::Type element);

  mlir::OpBuilder &getBuilder() { return b; }
  mlir::Location getLoc() const { return loc; }
  int64_t getRows() const { return rows; }
  int64_t getCols() const { return cols; }

  //===--- For the fuser
  //----------------------------------------------------===//

  llvm::ArrayRef<Read> getReads() const { return reads; }
  llvm::ArrayRef<Definition> getDefinitions() const { return definitions; }
  /// Stores the in-order definition of `result` to memory.
  void storeResult(mlir::Value result);
  /// The in-order value of `result`, or null.
  mlir::Value lookup(mlir::Value result) const;
  /// Tensors read and tensors written, with their block arguments.
  llvm::ArrayRef<std::pair<mlir::Value, mlir::BlockArgument>> inputs() const {
    return inputArgs;
  }
  llvm::ArrayRef<std::pair<mlir::Value, mlir::BlockArgument>> outputs() const {
    return outputArgs;
  }
  /// Numbers passed to the kernel, with their block arguments.
  llvm::ArrayRef<std::pair<mlir::IntegerAttr, mlir::BlockArgument>>
  parameters() const {
    return parameterArgs;
  }

private:
  mlir::BlockArgument inputFor(mlir::Value tensor);
  mlir::BlockArgument outputFor(mlir::Value result);
  mlir::AffineMap mapFor(const Access &access, Level level,
                         llvm::ArrayRef<int64_t> steps = {});
  mlir::Value splat(mlir::Value tensor);
  mlir::Value load(mlir::BlockArgument memory, mlir::AffineMap map,
                   mlir::ValueRange indices, mlir::Value where);

  mlir::OpBuilder b;
  mlir::Location loc;
  mlir::Block &block;
  int64_t rows, cols;
  Level placement = Level::Element;
  llvm::SmallVector<Read> reads;
  llvm::SmallVector<Definition> definitions;
  llvm::DenseMap<mlir::Value, mlir::Value> values;
  llvm::DenseMap<mlir::Value, Level> valueLevels;
  llvm::SmallVector<std::pair<mlir::Value, mlir::BlockArgument>> inputArgs,
      outputArgs;
  llvm::SmallVector<std::pair<mlir::IntegerAttr, mlir::BlockArgument>>
      parameterArgs;
  llvm::DenseMap<mlir::Value, mlir::BlockArgument> argOf;
  llvm::DenseMap<std::pair<mlir::Value, mlir::Attribute>, mlir::Value> loads;
};

/// Attaches kernel code to graph ops.
void registerKernelModels(mlir::DialectRegistry &registry);

} // namespace cleave

#include "cleave/Dialect/Exec/Kernels/KernelLowering.h.inc"

#endif // CLEAVE_DIALECT_EXEC_KERNELS_KERNELBUILDER_H
