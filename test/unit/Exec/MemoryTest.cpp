//===- MemoryTest.cpp - Plans of random programs, executed ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Exec/Transforms/Passes.h"
#include "cleave/Pipelines/Phases.h"
#include "cleave/Pipelines/Register.h"
#include "cleave/Testing/CheckMemory.h"
#include "cleave/Testing/RandomGraph.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/DialectRegistry.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "gtest/gtest.h"
#include <cstdlib>

using namespace mlir;
using namespace cleave;

namespace {
struct Memory : testing::Test {
  Memory() {
    registerAllDialects(registry);
    context = std::make_unique<MLIRContext>(registry);
    context->disableMultithreading();
  }

  static PhaseOptions optionsOf(int64_t microBatches, bool clip) {
    PhaseOptions options;
    options.microBatches = microBatches;
    options.threads = 2;
    // Small, so that even a small head comes in several pieces.
    options.maxLogitsBytes = 512;
    if (clip)
      options.optimizer.maxGradNorm = 1.0;
    return options;
  }

  /// Compiles to the executable phase.
  LogicalResult compile(ModuleOp module, int64_t microBatches, bool clip) {
    return compile(module, optionsOf(microBatches, clip));
  }
  LogicalResult compile(ModuleOp module, const PhaseOptions &options) {
    PassManager passes(context.get());
    for (Phase phase : {Phase::Step, Phase::Placed, Phase::Local,
                        Phase::Scheduled, Phase::Executable})
      addPhase(passes, phase, options);
    return passes.run(module);
  }

  /// Parses a program and gives its values places; null where that fails.
  OwningOpRef<ModuleOp> plan(StringRef text) {
    auto module = parseSourceString<ModuleOp>(text, context.get());
    PassManager passes(context.get());
    passes.addPass(exec::createPlanMemory());
    if (module && failed(passes.run(*module)))
      return nullptr;
    return module;
  }

  DialectRegistry registry;
  std::unique_ptr<MLIRContext> context;
};
} // namespace

TEST_F(Memory, RandomPrograms) {
  int count = 24;
  if (const char *text = std::getenv("CLEAVE_MEMORY_MODELS"))
    count = std::atoi(text);
  double worst = 1, sum = 0;
  int entries = 0, merged = 0;
  for (int seed = 1; seed <= count; ++seed) {
    for (int64_t microBatches : {1, 4}) {
      RandomGraph graph = drawRandomGraph(context.get(), seed, {});
      PhaseOptions options = optionsOf(microBatches, /*clip=*/seed % 3 == 0);
      // For a GPU, with launches of many uses.
      options.target = TargetTraits::withMultiprocessors(seed % 2 ? 132 : 0);
      ASSERT_TRUE(succeeded(compile(*graph.module, options)))
          << "seed " << seed << ", " << microBatches << " micro-batches";
      ASSERT_TRUE(succeeded(checkMemory(*graph.module)))
          << "seed " << seed << ", " << microBatches << " micro-batches";
      graph.module->walk(
          [&](exec::LaunchOp launch) { merged += launch.getUses() - 1; });
      for (auto program : graph.module->getOps<exec::ProgramOp>()) {
        double peak =
            program->getAttrOfType<IntegerAttr>(exec::kPeakAttr).getInt();
        double least =
            program->getAttrOfType<IntegerAttr>(exec::kLowerBoundAttr).getInt();
        ASSERT_GE(peak, least);
        if (least == 0)
          continue;
        worst = std::max(worst, peak / least);
        sum += peak / least;
        ++entries;
      }
    }
  }
  std::printf("%d entries, peak / lower bound: mean %.4f, worst %.4f\n",
              entries, sum / entries, worst);
  EXPECT_LE(worst, 1.15);
  EXPECT_GE(merged, count);
}

/// Stages of a pipeline: each position has an arena of its own, and what is
/// sent stays where it is until it has gone.
TEST_F(Memory, RandomPipelines) {
  struct Case {
    const char *schedule;
    int64_t chunks;
  };
  constexpr Case cases[] = {
      {"gpipe", 1}, {"1f1b", 1}, {"zb-h1", 1}, {"zb-v", 2}};
  for (int seed = 1; seed <= 16; ++seed) {
    const Case &drawn = cases[seed % 4];
    RandomGraph graph = drawRandomGraph(context.get(), seed, {});
    PhaseOptions options = optionsOf(4, /*clip=*/seed % 3 == 0);
    options.target = TargetTraits::withMultiprocessors(seed % 3 ? 132 : 0);
    options.mesh = "pp=2";
    options.schedule = drawn.schedule;
    options.chunks = drawn.chunks;
    ASSERT_TRUE(succeeded(compile(*graph.module, options)))
        << "seed " << seed << ", " << drawn.schedule;
    EXPECT_TRUE(succeeded(checkMemory(*graph.module)))
        << "seed " << seed << ", " << drawn.schedule;
  }
}

/// The check sees what it is for: a plan that is wrong in one place.
TEST_F(Memory, FindsWrongOffsets) {
  RandomGraph graph = drawRandomGraph(context.get(), 1, {});
  ASSERT_TRUE(succeeded(compile(*graph.module, 1, false)));
  ASSERT_TRUE(succeeded(checkMemory(*graph.module)));
  context->getDiagEngine().registerHandler([](Diagnostic &) {});
  int found = 0, tried = 0;
  graph.module->walk([&](exec::RunOp run) {
    SmallVector<int64_t> row(*run.getOffsets());
    auto part = SymbolTable::lookupNearestSymbolFrom<func::FuncOp>(
        run, run.getCalleeAttr());
    // The buffer of an argument, moved onto that of another.
    for (unsigned i = 0; i + 1 < part.getNumArguments() && i < 4; ++i) {
      auto buffer = [&](unsigned n) {
        return part.getArgAttrOfType<IntegerAttr>(n, exec::kBufferAttr)
            .getInt();
      };
      if (part.getArgument(i).use_empty() || buffer(i) == buffer(i + 1))
        continue;
      SmallVector<int64_t> wrong(row);
      wrong[buffer(i)] = row[buffer(i + 1)];
      run.setOffsets(ArrayRef<int64_t>(wrong));
      ++tried;
      found += failed(checkMemory(*graph.module));
    }
    run.setOffsets(ArrayRef<int64_t>(row));
  });
  EXPECT_GT(tried, 3);
  EXPECT_EQ(found, tried);
}

/// Parts in which a command must overwrite an argument whose memory is kept for
/// another result than the one that this command leads to.
TEST_F(Memory, OverwrittenTargets) {
  const char *const bodies[] = {
      // The other result needs nothing of it.
      R"(%c = exec.contract %x, %x accumulate %w : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
         %z = exec.copy %x : tensor<4x4xf32> -> tensor<4x4xf32>
         return %z, %c : tensor<4x4xf32>, tensor<4x4xf32>)",
      // It is computed from it, not in place.
      R"(%c = exec.contract %x, %x accumulate %w : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
         %z = exec.contract %c, %c : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
         return %z, %c : tensor<4x4xf32>, tensor<4x4xf32>)",
      // It is another argument, which must be copied.
      R"(%c = exec.contract %x, %x accumulate %w : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
         return %x, %c : tensor<4x4xf32>, tensor<4x4xf32>)",
      // Two commands overwrite it in turn; the result is the first one's.
      R"(%c = exec.contract %x, %x accumulate %w : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
         %d = exec.contract %x, %x accumulate %c : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
         return %c, %d : tensor<4x4xf32>, tensor<4x4xf32>)",
      // The command does lead to the result.
      R"(%c = exec.contract %x, %x accumulate %w : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
         %d = exec.contract %x, %x accumulate %c : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
         return %d, %x : tensor<4x4xf32>, tensor<4x4xf32>)"};
  for (const char *body : bodies) {
    SCOPED_TRACE(body);
    std::string text = R"(
      func.func private @u(%w: tensor<4x4xf32> {exec.dies}, %x: tensor<4x4xf32>)
          -> (tensor<4x4xf32> {exec.alias = 0 : i64, exec.update}, tensor<4x4xf32>) {
        )" + std::string(body) +
                       R"(
      }
      exec.program @e(%w: tensor<4x4xf32> {graph.name = "w", graph.role = "parameter"},
                      %x: tensor<4x4xf32> {graph.name = "x", graph.role = "input"})
          -> (tensor<4x4xf32> {graph.updates = "w"}, tensor<4x4xf32> {graph.name = "y"}) {
        %0:2 = exec.run @u(%w, %x) {micro_batch = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
        exec.return %0#0, %0#1 : tensor<4x4xf32>, tensor<4x4xf32>
      })";
    OwningOpRef<ModuleOp> module = plan(text);
    ASSERT_TRUE(module);
    EXPECT_TRUE(succeeded(checkMemory(*module)));
    int copies = 0;
    module->walk([&](exec::CopyOp) { ++copies; });
    // Nothing is copied where nothing needs it; the second result is one.
    if (body == bodies[4])
      EXPECT_EQ(copies, 1);
  }
}

/// A flag that decides whether a part runs is there when it would begin,
/// however long nothing else reads it.
TEST_F(Memory, FlagsOfParts) {
  const char *text = R"(
    func.func private @v(%x: tensor<4xf32>) -> (tensor<i1>, tensor<4xf32>) {
      %b = exec.fill true -> tensor<i1>
      %y = exec.copy %x : tensor<4xf32> -> tensor<4xf32>
      return %b, %y : tensor<i1>, tensor<4xf32>
    }
    func.func private @w(%x: tensor<4xf32>) -> tensor<4xf32> {
      %c = exec.fill true -> tensor<i1>
      exec.check %c, "not so" : tensor<i1>
      %y = exec.copy %x : tensor<4xf32> -> tensor<4xf32>
      return %y : tensor<4xf32>
    }
    func.func private @a(%f: tensor<i1> {exec.unless}, %x: tensor<4xf32>, %y: tensor<4xf32> {exec.dies})
        -> (tensor<4xf32> {exec.alias = 2 : i64}) {
      %z = exec.copy %x into %y : tensor<4xf32>, : tensor<4xf32> -> tensor<4xf32>
      return %z : tensor<4xf32>
    }
    exec.program @e(%x: tensor<4xf32> {graph.name = "x", graph.role = "input"})
        -> (tensor<4xf32> {graph.name = "y"}) {
      %0:2 = exec.run @v(%x) {micro_batch = 0 : i64} : (tensor<4xf32>) -> (tensor<i1>, tensor<4xf32>)
      %1 = exec.run @w(%0#1) {micro_batch = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
      %2 = exec.run @a(%0#0, %x, %1) {micro_batch = 0 : i64} : (tensor<i1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      exec.return %2 : tensor<4xf32>
    })";
  OwningOpRef<ModuleOp> module = plan(text);
  ASSERT_TRUE(module);
  EXPECT_TRUE(succeeded(checkMemory(*module)));
}
