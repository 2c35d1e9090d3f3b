//===- KernelEvaluator.h - The kernel form, executed slowly -----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

///
/// \file
/// A scalar evaluator of `exec.kernel`, one element at a time in the order in
/// which the form is defined: what every target must agree with.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TEST_UNIT_TARGET_KERNELEVALUATOR_H
#define CLEAVE_TEST_UNIT_TARGET_KERNELEVALUATOR_H

#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include <map>
#include <string>
#include <vector>

namespace cleave::testing {

/// A scalar of a kernel. Floating-point values are held in `real`, rounded to
/// their type; integers in `integer`, sign-extended (i1: 0 or 1).
struct Number {
  double real = 0;
  int64_t integer = 0;
};

/// Bytes of an argument.
using Memory = std::vector<char>;

class KernelEvaluator {
public:
  KernelEvaluator(exec::KernelOp kernel, std::vector<Memory> &arguments)
      : kernel(kernel), arguments(arguments) {}

  /// Runs all rows. What could not be executed is in `error`.
  void run();
  std::string error;

  static int64_t byteSize(mlir::Type type);
  static Number read(const Memory &memory, mlir::Type type, int64_t index);
  static void write(Memory &memory, mlir::Type type, int64_t index,
                    Number number);

private:
  void runPass(exec::PassOp pass, int64_t columns);
  void runOp(mlir::Operation &op);
  Number scalar(mlir::Operation &op);
  int64_t offset(mlir::AffineMap map, mlir::ValueRange indices);
  Memory &memoryOf(mlir::Value value);
  static Number round(Number number, mlir::Type type);
  static Number combine(exec::ReductionKind kind, mlir::Type type, Number a,
                        Number b);

  exec::KernelOp kernel;
  std::vector<Memory> &arguments;
  int64_t row = 0, col = 0;
  llvm::DenseMap<mlir::Value, Number> values;
  llvm::DenseMap<mlir::Value, Memory> kept;
  /// Reductions and scans of the pass that is running.
  llvm::DenseMap<mlir::Operation *, Number> running;
  /// Elements to which something has been accumulated.
  std::map<std::pair<void *, int64_t>, bool> started;
};

} // namespace cleave::testing

#endif // CLEAVE_TEST_UNIT_TARGET_KERNELEVALUATOR_H
