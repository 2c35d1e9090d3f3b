//===- KernelPrinter.h - One kernel as CUDA C++ -----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_TARGET_CUDA_KERNELPRINTER_H
#define CLEAVE_LIB_TARGET_CUDA_KERNELPRINTER_H

#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Target/CUDA/PrintCuda.h"
#include "cleave/Target/KernelIndexing.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Support/IndentedOstream.h"
#include "llvm/ADT/BitVector.h"
#include "llvm/ADT/MapVector.h"

namespace cleave::cuda {

/// The text of the functions that generated kernels call.
llvm::StringRef deviceFunctions();

/// Those of kernels with floats of 8 bits.
llvm::StringRef float8Functions();

/// By kernel, in ascending order, the numbers of uses that launches have; {1}
/// if there is no launch.
llvm::StringMap<llvm::SmallVector<int64_t>>
usesOfKernels(mlir::ModuleOp module);

/// The part of the names of functions that says how they reduce.
const char *reductionName(exec::ReductionKind kind);

/// Prints the functions of one kernel.
///
/// If some launch has several uses of the kernel, the code is in a function of
/// the device, named as for 0 uses, that takes the number of a block among
/// those of one use: the functions for each number of uses call it.
///
/// In a kernel without ops across columns, each thread has `vector` neighbours
/// of a row. Otherwise a block has a row, or a group of rows when the kernel
/// accumulates over rows: thread t has the columns `(k * threads + t) * vector
/// + j`, the same in each pass, so that kept rows and partial sums can be in
/// registers. Accesses of `vector` neighbours have up to 16 bytes. Of a group,
/// a block has some rows at once: each of its teams of threads has one, and the
/// sums of all teams are combined at last. Where these are not as many rows,
/// the last teams repeat the last row and keep nothing of it.
class KernelPrinter {
public:
  /// `shared` has a bit for each argument: whether its memory may be that of
  /// another one.
  /// A block can have `sharedLimit` bytes of shared memory. `uses` are the
  /// numbers of uses that launches have.
  KernelPrinter(exec::KernelOp kernel, const llvm::BitVector &shared,
                llvm::ArrayRef<int64_t> uses, int64_t sharedLimit,
                llvm::raw_ostream &os, LaunchShapes &launches);
  llvm::LogicalResult print();

private:
  /// Where a row of values or of partial sums is stored.
  struct Slot {
    std::string name;
    bool registers;
  };
  /// Elements of memory that several passes use: from the first of these on
  /// they stay in registers, or, of a row that is too long, in shared memory,
  /// of which a thread accesses those of its columns alone.
  struct Held {
    mlir::Value memory;
    mlir::AffineMap map;
    llvm::SmallVector<mlir::Value> indices;
    mlir::Operation *firstPass;
    std::string name;
    bool used = false;
    /// In shared memory, from this byte on.
    std::optional<int64_t> sharedAt = std::nullopt;
  };

  // What depends on the form: AnalyseKernel.cpp.
  void analyse();
  void chooseTeams(bool scans);
  void holdRows(int64_t registers);
  void chooseVector();
  bool needsRow(const Held &row);

  // Functions: PrintKernel.cpp.
  void printHead(bool finish, int64_t blocks, llvm::StringRef note);
  void printTail();
  void printBounds(int64_t uses);
  void printUses(int64_t uses);
  std::string parameters();
  std::string symbol(int64_t uses) {
    return finishing ? kernel.getFinishName(uses)
                     : kernel.getFunctionName(uses);
  }
  /// Whether the code is a function of its own, and the number of the block.
  bool isCalled() const { return uses.back() > 1; }
  llvm::StringRef block() const { return isCalled() ? "block" : "blockIdx.x"; }
  llvm::LogicalResult printFlat();
  llvm::LogicalResult printRows();
  void declareKept();
  void declareSums();
  void reduceTeamSums();
  void storeSums();
  llvm::LogicalResult printFinish();
  std::string sumPlace(exec::AccumulateOp op, llvm::StringRef column);

  // A row: PrintRow.cpp.
  llvm::LogicalResult printRow();
  llvm::LogicalResult printPass(exec::PassOp pass);
  llvm::LogicalResult printScanPass(exec::PassOp pass);
  /// Prints `pass` as part of a softmax whose row does not stay in registers,
  /// or returns false.
  bool printSoftmaxPass(exec::PassOp pass);
  llvm::LogicalResult printColumns(mlir::Block &body);
  void printPassResults(exec::PassOp pass);
  void printColumnLoop(llvm::function_ref<void()> body);

  // Ops: PrintOps.cpp.
  llvm::LogicalResult printOp(mlir::Operation &op);
  std::string expression(mlir::Operation &op);
  std::string conversion(mlir::Operation &op, const std::string &given);
  llvm::SmallVector<std::string> wideOperands(mlir::Operation &op);
  std::string rounded(mlir::Type type, const std::string &text);
  std::string mathExpression(mlir::Operation &op);
  std::string columnComparison(mlir::arith::CmpIOp cmp);
  std::string offset(mlir::AffineMap map, mlir::ValueRange indices,
                     llvm::StringRef column);
  std::string affine(mlir::AffineExpr expr, llvm::ArrayRef<std::string> symbols,
                     llvm::StringRef column);
  /// The bytes of each access, up to 16, if the `vector` lanes are contiguous;
  /// else 0.
  int64_t accessBytes(mlir::Value memory, mlir::AffineMap map,
                      mlir::ValueRange indices);
  Held *findHeld(mlir::Value memory, mlir::AffineMap map,
                 mlir::ValueRange indices);
  /// This thread's current element of a row that stays.
  std::string heldElement(const Held &row) const;
  /// The one that `op` begins, or reads (`op` is in another pass).
  Held *beginsHeld(mlir::Operation *op);
  Held *readsHeld(exec::LoadOp op);
  void printDraws(exec::PhiloxOp op);
  bool isCooperative(exec::PhiloxOp op);
  std::string drawId(exec::PhiloxOp op);
  std::string typeName(mlir::Type type);
  std::string memoryName(mlir::Type type);
  int64_t byteSize(mlir::Type type);
  std::string identity(exec::ReductionKind kind, mlir::Type type);
  std::string combine(exec::ReductionKind kind, mlir::Type type,
                      const std::string &a, const std::string &b);
  /// This thread's current element of a row in registers.
  std::string element() const { return vector == 1 ? "[k][0]" : "[k][j]"; }
  /// The number of the thread among those that have its row.
  std::string thread() const { return teams == 1 ? "threadIdx.x" : "lane"; }
  /// Before what only teams with a row do.
  std::string ifOwn() const { return idle ? "if (own)\n  " : ""; }
  /// The types and functions of reductions of a row.
  std::string rowShape() const {
    return std::to_string(threads) +
           (teams == 1 ? "" : ", " + std::to_string(teams));
  }
  std::string name(mlir::Value value);
  void define(mlir::Value value, const std::string &text);

  exec::KernelOp kernel;
  mlir::raw_indented_ostream os;
  LaunchShapes &launches;
  llvm::BitVector shared;
  llvm::SmallVector<int64_t> uses;
  /// Of the function that is printed: whether it is the second stage, the
  /// blocks of one use, and what a comment says of it.
  bool finishing = false;
  int64_t grid = 0;
  std::string note;
  /// Of the threads that have a row.
  int64_t threads;
  int64_t rows, cols, vector, teams = 1;
  /// Whether some teams have no row at last.
  bool idle = false;
  /// Columns that one thread handles, in pieces of `vector`, and blocks that
  /// have the columns of a row together.
  int64_t pieces, tiles = 1;
  bool ragged = false, flat = false;
  /// Exponentials and quotients need not be exact to the last bit.
  bool fast = false;
  bool isFast(mlir::Type type) const { return fast && type.isF32(); }
  const char *exponential() const { return fast ? "fastExp" : "expf"; }
  /// Within a pass, the body is written for element j of a piece.
  bool inPass = false;
  int64_t sharedLimit, sharedBytes = 0;
  llvm::DenseMap<mlir::Value, std::string> names;
  llvm::DenseMap<mlir::Value, Slot> kept;
  llvm::SmallVector<Held> held;
  /// A maximum over a row and the sum of exponentials of what is below it, of
  /// the elements `load`, found in one pass.
  struct Softmax {
    exec::LoadOp load;
    std::string most, sum;
  };
  llvm::SmallVector<Softmax> softmaxes;
  /// Within the pass that finds both: the sum, the maximum, and the elements of
  /// a piece.
  std::string softmaxSum, softmaxMost, softmaxTerms;
  llvm::MapVector<mlir::Operation *, Slot> sums;
  llvm::DenseMap<mlir::Operation *, int64_t> partialBase;
  int counter = 0;
};

} // namespace cleave::cuda

#endif // CLEAVE_LIB_TARGET_CUDA_KERNELPRINTER_H
