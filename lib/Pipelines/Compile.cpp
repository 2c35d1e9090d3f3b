//===- Compile.cpp - From a model to a program that runs ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Pipelines/Compile.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "cleave/Reports/Reports.h"
#include "cleave/Runtime/Core/ProgramIO.h"
#include "cleave/Target/CPU/CodeGen.h"
#include "cleave/Target/CUDA/PrintCuda.h"
#include "cleave/Target/Program/DelayWaits.h"
#include "cleave/Target/Program/JoinExchanges.h"
#include "cleave/Target/Program/ProgramTable.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Pass/PassManager.h"

using namespace mlir;
using namespace cleave;

/// Whether a schedule is long enough to be one that repeats itself.
static bool mayRepeat(ModuleOp module) {
  return llvm::any_of(
      module.getOps<pipe::ProgramOp>(),
      [](pipe::ProgramOp program) { return program.getMicroBatches() > 16; });
}

LogicalResult
cleave::runPhases(ModuleOp module, Phase last, const CompileOptions &options,
                  const std::function<void(Phase, ModuleOp)> &after) {
  if (after)
    after(Phase::Model, module);
  for (int i = 1; i <= static_cast<int>(last); ++i) {
    Phase phase = static_cast<Phase>(i);
    OwningOpRef<ModuleOp> before;
    if (phase == Phase::Executable && !options.phases.writeOutActions &&
        mayRepeat(module))
      before = module.clone();
    auto run = [&](const PhaseOptions &own) {
      PassManager passes(module.getContext());
      addPhase(passes, phase, own);
      return passes.run(module);
    };
    if (failed(run(options.phases)))
      return failure();
    // Where memory is not used in turn, each action has a place of its own.
    if (before && !rowsRepeat(module)) {
      module.getBodyRegion().takeBody(before->getBodyRegion());
      module->setAttrs(before.get()->getAttrDictionary());
      PhaseOptions own = options.phases;
      own.writeOutActions = true;
      if (failed(run(own)))
        return failure();
    }
    if (after)
      after(phase, module);
  }
  return success();
}

/// The target that `options` name; an error is reported at the module.
static FailureOr<CpuTarget> targetOf(ModuleOp module,
                                     const CompileOptions &options) {
  auto target = CpuTarget::get(options.cpu, options.vectorBits);
  if (!target)
    return emitError(module.getLoc()) << llvm::toString(target.takeError());
  return *target;
}

/// Of one position: bytes in all, by kind of tensor, and by entry what
/// activations and the like take at most.
static llvm::json::Object summarizeMemory(const llvm::json::Object &plan) {
  llvm::json::Object memory;
  if (auto arena = plan.getInteger("arena_bytes"))
    memory["arena"] = *arena;
  if (const llvm::json::Object *fixed = plan.getObject("bytes"))
    for (const auto &[kind, bytes] : *fixed)
      memory[kind] = bytes;
  const llvm::json::Object *entries = plan.getObject("entries");
  if (!entries)
    return memory;
  for (const auto &[name, value] : *entries)
    for (auto [field, what] : {std::pair("peak_bytes", " peak"),
                               std::pair("gradient_peak_bytes", " gradients"),
                               std::pair("kept_bytes", " kept")})
      if (auto bytes = value.getAsObject()->getInteger(field))
        memory[(StringRef(name) + what).str()] = *bytes;
  return memory;
}

/// All but the schedule, which is of an earlier phase, and what says it in
/// words.
static llvm::json::Object report(ModuleOp module,
                                 const CompileOptions &options) {
  llvm::json::Value plan = memoryReport(module);
  llvm::json::Object &facts = *plan.getAsObject();
  llvm::json::Object memory = summarizeMemory(facts);
  if (llvm::json::Array *positions = facts.getArray("positions"))
    for (llvm::json::Value &position : *positions) {
      llvm::json::Object &own = *position.getAsObject();
      own["memory"] = summarizeMemory(own);
    }
  return llvm::json::Object{{"memory", std::move(memory)},
                            {"communication", communicationReport(module)},
                            {"placement", placementReport(module)},
                            {"plan", std::move(plan)},
                            {"check_finite", options.phases.checkFinite},
                            {"micro_batches", options.phases.microBatches}};
}

/// What a checkpoint says of how the program updates.
static std::string describeOptimizer(const graph::OptimizerOptions &options) {
  llvm::json::Object facts{{"kind", options.rule},
                           {"max_grad_norm", options.maxGradNorm}};
  if (const graph::OptimizerRule *rule = graph::findOptimizerRule(options.rule))
    for (const graph::OptimizerSetting &setting : rule->settings()) {
      double value = options.get(setting.name);
      facts[setting.name] = setting.isFlag ? llvm::json::Value(value != 0.0)
                                           : llvm::json::Value(value);
    }
  std::string text;
  llvm::raw_string_ostream(text)
      << llvm::json::Value(llvm::json::Object{{"optimizer", std::move(facts)}});
  return text;
}

FailureOr<CompiledProgram> cleave::generateCode(ModuleOp module,
                                                const CompileOptions &options) {
  auto target = targetOf(module, options);
  if (failed(target))
    return failure();
  auto programs = translateToPrograms(module);
  if (failed(programs))
    return failure();
  for (runtime::Program &program : *programs) {
    joinExchanges(program, options.bucketBytes);
    delayWaits(program);
    program.cpu = target->cpu;
    program.vectorBits = target->vectorBits;
    program.metadata = describeOptimizer(options.phases.optimizer);
  }
  auto object = compileKernels(module, *target);
  if (failed(object))
    return failure();
  return CompiledProgram{std::move(*programs), std::move(*object),
                         report(module, options)};
}

FailureOr<std::string> cleave::printKernels(ModuleOp module, KernelText text,
                                            const CompileOptions &options) {
  if (text == KernelText::Cuda)
    return printCuda(module);
  auto target = targetOf(module, options);
  if (failed(target))
    return failure();
  return printLLVM(module, *target);
}

llvm::Error cleave::writeArtifact(const CompiledProgram &compiled,
                                  StringRef path) {
  if (llvm::Error error = runtime::validate(compiled.positions))
    return error;
  return linkSharedObject(compiled.object, runtime::toJSON(compiled.positions),
                          path);
}

llvm::Expected<std::unique_ptr<runtime::Session>>
cleave::openSession(const CompiledProgram &compiled,
                    const runtime::SessionOptions &options) {
  auto library = loadKernels(compiled.object);
  if (!library)
    return library.takeError();
  // The session's resolver keeps the code alive.
  std::shared_ptr<KernelLibrary> kernels = std::move(*library);
  return runtime::Session::create(
      compiled.positions,
      [kernels](StringRef symbol) { return kernels->lookup(symbol); }, options);
}
