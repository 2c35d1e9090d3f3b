//===- FusionRunner.h - Fused functions run natively ------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TEST_UNIT_CONVERSION_FUSIONRUNNER_H
#define CLEAVE_TEST_UNIT_CONVERSION_FUSIONRUNNER_H

#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Interpreter/Interpreter.h"
#include "cleave/Target/CPU/CodeGen.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include <memory>

namespace cleave::testing {

/// Runs the launches of a function whose ops were all fused into kernels.
class FusionRunner {
public:
  FusionRunner(mlir::ModuleOp module, KernelLibrary &library)
      : symbols(module), module(module), library(library) {}

  /// Runs `entry` on `inputs` (`arg<i>`), items in pieces of `piece`. With
  /// `overwrite`, results take the memory of operands where a launch permits
  /// it. Sets `error` when something is not a kernel.
  std::vector<RefTensor> run(mlir::func::FuncOp entry,
                             const NamedTensors &inputs, int64_t piece,
                             bool overwrite);

  std::string error;

private:
  using Buffer = std::shared_ptr<std::vector<uint64_t>>;

  Buffer allocate(int64_t bytes);
  void runLaunch(exec::LaunchOp launch, int64_t piece, bool overwrite);

  mlir::SymbolTable symbols;
  mlir::ModuleOp module;
  KernelLibrary &library;
  llvm::DenseMap<mlir::Value, Buffer> buffers;
};

} // namespace cleave::testing

#endif // CLEAVE_TEST_UNIT_CONVERSION_FUSIONRUNNER_H
