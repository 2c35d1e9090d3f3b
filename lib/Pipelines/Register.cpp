//===- Register.cpp - Everything the project registers --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Pipelines/Register.h"
#include "cleave/Conversion/Passes.h"
#include "cleave/Dialect/Exec/IR/ExecDialect.h"
#include "cleave/Dialect/Exec/Kernels/KernelBuilder.h"
#include "cleave/Dialect/Exec/Transforms/Passes.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Graph/IR/IndexUse.h"
#include "cleave/Dialect/Graph/IR/IntegerRanges.h"
#include "cleave/Dialect/Graph/Transforms/Passes.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "cleave/Dialect/Pipe/Transforms/Passes.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "cleave/Interpreter/Interpreter.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/DialectRegistry.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassOptions.h"
#include "mlir/Transforms/Passes.h"

void cleave::registerAllDialects(mlir::DialectRegistry &registry) {
  // What, where, when, how.
  registry.insert<graph::GraphDialect>();
  registry.insert<spmd::SpmdDialect>();
  registry.insert<pipe::PipeDialect>();
  registry.insert<exec::ExecDialect>();
  // Functions hold programs; arith and math are the scalars of kernels.
  registry.insert<mlir::func::FuncDialect>();
  registry.insert<mlir::arith::ArithDialect>();
  registry.insert<mlir::math::MathDialect>();
  // What graph ops answer to phases that the dialect does not know.
  graph::registerIntegerRangeModels(registry);
  registerReferenceModels(registry);
  exec::registerViewLayoutModels(registry);
  registerKernelModels(registry);
  graph::registerIndexUseModels(registry);
  graph::registerPrecisionModels(registry);
  spmd::registerIndexUseModels(registry);
  exec::registerMicroBatchValueModels(registry);
}

namespace {
/// The options of `--spmd-seed-shardings`.
struct SeedOptions : mlir::PassPipelineOptions<SeedOptions> {
  Option<int64_t> microBatches{*this, "micro-batches", llvm::cl::init(1)};
  Option<int64_t> grains{*this, "grains", llvm::cl::init(0)};
};
} // namespace

/// Passes by the names that they had in an earlier version.
static void registerFormerNames() {
  using namespace cleave;
  mlir::PassPipelineRegistration<SeedOptions>(
      "spmd-place", "The former name of --spmd-seed-shardings",
      [](mlir::OpPassManager &passes, const SeedOptions &options) {
        llvm::errs() << "warning: --spmd-place is --spmd-seed-shardings now; "
                        "the former name goes with the next version\n";
        spmd::PlaceOptions own;
        own.microBatches = options.microBatches;
        own.grains = options.grains;
        passes.addPass(spmd::createPlace(own));
      });
}

void cleave::registerAllPasses() {
  registerFormerNames();
  mlir::registerCanonicalizerPass();
  mlir::registerCSEPass();
  mlir::registerSymbolDCEPass();
  graph::registerGraphPasses();
  spmd::registerSpmdPasses();
  pipe::registerPipePasses();
  exec::registerConversionPasses();
  exec::registerExecPasses();
}
