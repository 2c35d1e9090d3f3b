//===- RepeatTest.cpp - Programs that repeat their actions ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "../TestAll.h"
#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Executable/Format/Rows.h"
#include "cleave/Pipelines/Compile.h"
#include "cleave/Pipelines/Register.h"
#include "cleave/Planning/PlanPhases.h"
#include "cleave/Target/Program/ProgramTable.h"
#include "cleave/Testing/CheckMemory.h"
#include "cleave/Testing/RandomGraph.h"
#include "mlir/IR/DialectRegistry.h"
#include "gtest/gtest.h"
#include <cstdlib>
#include <numeric>

using namespace mlir;
using namespace cleave;

namespace {
struct Case {
  const char *schedule;
  int64_t positions, chunks, microBatches;
};

struct Repeat : testing::TestWithParam<Case> {
  Repeat() {
    registerAllDialects(registry);
    context = std::make_unique<MLIRContext>(registry);
    context->disableMultithreading();
  }

  /// A random model, compiled to the executable phase.
  OwningOpRef<ModuleOp> compile(int seed, bool writeOut) {
    RandomGraphOptions drawn;
    drawn.batch = GetParam().microBatches;
    OwningOpRef<ModuleOp> module =
        std::move(drawRandomGraph(context.get(), seed, drawn).module);
    CompileOptions all;
    PhaseOptions &options = all.phases;
    options.microBatches = GetParam().microBatches;
    options.threads = 2;
    if (GetParam().positions > 1) {
      options.mesh = "pp=" + std::to_string(GetParam().positions);
      options.schedule = GetParam().schedule;
      options.chunks = GetParam().chunks;
    }
    if (seed % 2)
      options.optimizer.maxGradNorm = 1.0;
    options.writeOutActions = writeOut;
    if (failed(runPhases(*module, Phase::Executable, all, nullptr)))
      return nullptr;
    return module;
  }

  DialectRegistry registry;
  std::unique_ptr<MLIRContext> context;
};

int64_t countRuns(ModuleOp module) {
  int64_t count = 0;
  module.walk([&](exec::RunOp) { ++count; });
  return count;
}

/// Puts the buffers of `module`, whose actions are all written out, where
/// `programs` have them.
void placeAs(ModuleOp module, llvm::ArrayRef<runtime::Program> programs) {
  Builder builder(module.getContext());
  int64_t largest = 0;
  for (auto op : module.getOps<exec::ProgramOp>()) {
    const runtime::Program &program = programs[op.getPipelinePosition()];
    largest = std::max(largest, program.arenaBytes);
    if (op->hasAttr(exec::kArenaBytesAttr))
      op->setAttr(exec::kArenaBytesAttr,
                  builder.getI64IntegerAttr(program.arenaBytes));
    const runtime::Entry &entry =
        program.entries.find(op.getEntryName().str())->second;
    runtime::RowReader rows(entry, program.parts.size());
    size_t i = 0;
    for (auto run : op.getBody().getOps<exec::RunOp>()) {
      ASSERT_LT(i, entry.actions.size());
      const runtime::Action &action = entry.actions[i++];
      ASSERT_EQ(program.parts[action.part].name, run.getCallee().str());
      ASSERT_EQ(action.microBatch, static_cast<int32_t>(run.getMicroBatch()))
          << program.parts[action.part].name << ", action " << i - 1 << " of "
          << entry.actions.size() << " of position " << op.getPipelinePosition()
          << " of '" << op.getEntryName().str() << "'";
      run.setOffsets(rows.next(action));
    }
    ASSERT_EQ(i, entry.actions.size());
  }
  module->setAttr(exec::kArenaBytesAttr, builder.getI64IntegerAttr(largest));
}
} // namespace

/// What a program repeats lies where it is read: the plan of the shorter
/// program, gone on with, holds for all micro-batches. It is about as large.
TEST_P(Repeat, PlanHoldsForAllMicroBatches) {
  // With seed 10 one micro-batch of a searched schedule is saved longer than
  // the next, so that all of its actions are written out.
  std::vector<int> seeds = {1, 2, 4, 10};
  if (cleave::testAll()) {
    seeds.resize(24);
    std::iota(seeds.begin(), seeds.end(), 1);
  }
  size_t regular = 0;
  for (int seed : seeds) {
    OwningOpRef<ModuleOp> shorter = compile(seed, false),
                          whole = compile(seed, true);
    ASSERT_TRUE(shorter && whole) << "seed " << seed;
    regular += countRuns(*shorter) < 0.8 * countRuns(*whole);
    ASSERT_TRUE(succeeded(checkMemory(*whole))) << "seed " << seed;
    FailureOr<std::vector<runtime::Program>> programs =
        translateToPrograms(*shorter);
    ASSERT_TRUE(succeeded(programs)) << "seed " << seed;
    auto bytes = [](ModuleOp module) {
      return module->getAttrOfType<IntegerAttr>(exec::kArenaBytesAttr).getInt();
    };
    // What does not repeat may be packed another way.
    EXPECT_LE(bytes(*shorter), 1.05 * bytes(*whole)) << "seed " << seed;
    placeAs(*whole, *programs);
    if (HasFatalFailure())
      return;
    EXPECT_TRUE(succeeded(checkMemory(*whole))) << "seed " << seed;
  }
  // A model whose prologue saves something has that of all micro-batches: of
  // many models, at most half.
  EXPECT_GE(regular, cleave::testAll() ? seeds.size() / 2 : 1);
}

INSTANTIATE_TEST_SUITE_P(
    Schedules, Repeat,
    testing::Values(Case{"", 1, 1, 40}, Case{"1f1b", 2, 1, 61},
                    Case{"1f1b", 4, 1, 64}, Case{"interleaved", 2, 2, 64},
                    Case{"zb-h1", 2, 1, 50}, Case{"zb-h1", 4, 1, 63},
                    Case{"zb-h2", 2, 1, 64}, Case{"zb-v", 2, 2, 64},
                    Case{"v-half", 2, 2, 64}, Case{"v-min", 2, 2, 64},
                    Case{"dualpipe-v", 2, 2, 64}, Case{"auto", 2, 1, 64},
                    Case{"auto", 4, 1, 96}),
    [](const auto &info) {
      std::string name = std::string(info.param.schedule) + "_" +
                         std::to_string(info.param.positions) + "_" +
                         std::to_string(info.param.microBatches);
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });
