//===- FuzzReaders.cpp - Readers of copies that nothing updates -----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Fuzz.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "cleave/Planning/PlanPhases.h"
#include "cleave/Testing/DrawnOptions.h"
#include "cleave/Testing/StaleReaders.h"
#include "llvm/Support/FormatVariadic.h"
#include <set>

using namespace mlir;
using namespace cleave;

/// Changes of each kind that are drawn in a program.
static constexpr int kSeeds = 8;

/// A model and options with a pipeline, in the scheduled phase. Null if they
/// are refused.
static OwningOpRef<ModuleOp> drawPipeline(const RandomGraph &graph,
                                          CompileOptions &options) {
  options = drawOptions(graph, /*ranks=*/4);
  std::string &mesh = options.phases.mesh;
  if (!StringRef(mesh).contains("pp="))
    mesh = "pp=" + std::to_string(2 + graph.seed % 2) +
           (mesh.empty() ? "" : ",") + mesh;
  ScopedDiagnosticHandler silent(graph.module.get().getContext(),
                                 [](Diagnostic &) { return success(); });
  OwningOpRef<ModuleOp> module = graph.module.get().clone();
  if (failed(annotateParameters(*module, options.parameters)) ||
      failed(runPhases(*module, Phase::Scheduled, options, nullptr)))
    return nullptr;
  return module;
}

/// Lets a step have an update of the step before to make, with the gradients
/// and scalars of that.
static void addPending(pipe::ProgramOp program, NamedTensors &inputs) {
  for (unsigned i = 0, e = program.getNumArguments(); i < e; ++i) {
    auto name = program.getArgAttrOfType<StringAttr>(i, graph::kNameAttr);
    auto role = program.getArgAttrOfType<StringAttr>(i, graph::kRoleAttr);
    if (!name || !role)
      continue;
    RefTensor &tensor = inputs.find(name.str())->second;
    if (role == "gradient")
      for (auto [j, value] : llvm::enumerate(tensor.floats))
        value = 0.0625 + 0.03125 * static_cast<double>(j * 5 % 7);
    if (name == graph::kPendingName)
      llvm::fill(tensor.ints, 1);
    StringRef of = name.getValue();
    if (of.consume_front(graph::kPreviousPrefix)) {
      llvm::fill(tensor.ints, 1);
      llvm::fill(tensor.floats, of == "loss_scale" ? 8.0 : 0.05);
    }
  }
}

/// Runs all programs of a module. Fails if a result is not a number.
static LogicalResult runAll(ModuleOp module, const NamedTensors &given,
                            bool pending, NamedTensors &inputs,
                            std::map<std::string, ReferenceResult> &expected) {
  ScopedDiagnosticHandler handler(
      module.getContext(), [&](Diagnostic &) { return success(pending); });
  inputs = given;
  for (auto program : module.getOps<pipe::ProgramOp>()) {
    addStepInputs(program, /*later=*/true, inputs);
    if (pending)
      addPending(program, inputs);
  }
  for (auto program : module.getOps<pipe::ProgramOp>()) {
    auto result =
        Interpreter(module, Precision::Exact).run(program.getSymName(), inputs);
    if (failed(result) ||
        (pending && !(compareResults(*result, *result).error <= 0)))
      return failure();
    expected[program.getSymName().str()] = std::move(*result);
  }
  return success();
}

namespace {
/// What became of the changes of one kind.
struct ReaderTally {
  int64_t stale = 0, rejected = 0, unequal = 0, malformed = 0;
  int64_t fresh = 0, freshRejected = 0, freshUnequal = 0;

  void note(const SeededReader &seeded, const ReaderVerdict &verdict) {
    if (verdict.malformed) {
      ++malformed;
      return;
    }
    ++(seeded.stale ? stale : fresh);
    (seeded.stale ? rejected : freshRejected) += verdict.rejected;
    (seeded.stale ? unequal : freshUnequal) += verdict.unequal;
  }
};
} // namespace

int cleave::fuzzReaders(const DialectRegistry &registry,
                        const FuzzOptions &options) {
  int64_t programs = 0, refused = 0;
  ReaderTally tallies[kStaleReaders];
  for (int64_t i = 0; i < options.count; ++i) {
    MLIRContext context(registry, MLIRContext::Threading::DISABLED);
    RandomGraphOptions form;
    form.element = "f64";
    RandomGraph graph = drawRandomGraph(&context, options.seed + i, form);
    CompileOptions drawn;
    drawn.verify = Verify::Passes;
    OwningOpRef<ModuleOp> module = drawPipeline(graph, drawn);
    if (!module) {
      ++refused;
      continue;
    }
    NamedTensors inputs;
    std::map<std::string, ReferenceResult> expected;
    // Where no number comes of a drawn update, the step has none to make.
    if (failed(runAll(*module, graph.inputs, /*pending=*/true, inputs,
                      expected)) &&
        failed(
            runAll(*module, graph.inputs, /*pending=*/false, inputs, expected)))
      return 1;
    ++programs;
    Random random(options.seed + i);
    std::set<std::string> seen;
    for (unsigned kind = 0; kind < kStaleReaders; ++kind)
      for (int draw = 0; draw < kSeeds; ++draw) {
        SeededReader seeded =
            seedReader(*module, static_cast<StaleReader>(kind),
                       drawn.phases.schedule, random);
        if (!seeded.module || !seen.insert(seeded.what).second)
          continue;
        ReaderVerdict verdict = judgeReader(*seeded.module, inputs, expected);
        tallies[kind].note(seeded, verdict);
        if (options.verbose ||
            (!verdict.malformed && (verdict.rejected != seeded.stale ||
                                    (verdict.unequal && !verdict.rejected))))
          llvm::errs() << "seed " << options.seed + i << ", "
                       << staleReaderName(static_cast<StaleReader>(kind))
                       << ": " << seeded.what << ": "
                       << (seeded.stale ? "stale" : "fresh")
                       << (verdict.malformed  ? ", malformed"
                           : verdict.rejected ? ", rejected"
                                              : ", accepted")
                       << (verdict.unequal ? ", other results\n"
                                           : ", the same results\n");
      }
  }
  llvm::json::Object kinds;
  for (unsigned i = 0; i < kStaleReaders; ++i) {
    const ReaderTally &own = tallies[i];
    kinds[staleReaderName(static_cast<StaleReader>(i))] =
        llvm::json::Object{{"stale", own.stale},
                           {"rejected", own.rejected},
                           {"unequal", own.unequal},
                           {"malformed", own.malformed},
                           {"fresh", own.fresh},
                           {"fresh_rejected", own.freshRejected},
                           {"fresh_unequal", own.freshUnequal}};
  }
  llvm::outs() << llvm::formatv("{0:2}", llvm::json::Value(llvm::json::Object{
                                             {"programs", programs},
                                             {"refused", refused},
                                             {"kinds", std::move(kinds)}}))
               << "\n";
  return programs ? 0 : 1;
}
