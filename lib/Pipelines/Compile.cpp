//===- Compile.cpp - From a model to a program that runs ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Pipelines/Compile.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "cleave/Executable/Cuda/CommandLaunches.h"
#include "cleave/Executable/Cuda/CudnnPlan.h"
#include "cleave/Executable/Format/ExchangeOrder.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Executable/Format/ShardLayout.h"
#include "cleave/Executable/Transforms/BucketCollectives.h"
#include "cleave/Executable/Transforms/DeferChecks.h"
#include "cleave/Executable/Transforms/DelayWaits.h"
#include "cleave/Executable/Transforms/MessageMemory.h"
#include "cleave/Pipelines/Options.h"
#include "cleave/Reports/Reports.h"
#include "cleave/Runtime/CPU/Workspace.h"
#include "cleave/Support/ByteSize.h"
#include "cleave/Target/CPU/CodeGen.h"
#include "cleave/Target/CUDA/CompileCuda.h"
#include "cleave/Target/Program/ProgramTable.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Pass/PassManager.h"
#include <cstdlib>

using namespace mlir;
using namespace cleave;

/// Whether a schedule is long enough to be one that repeats itself.
static bool mayRepeat(ModuleOp module) {
  return llvm::any_of(
      module.getOps<pipe::ProgramOp>(),
      [](pipe::ProgramOp program) { return program.getMicroBatches() > 16; });
}

/// Whether the module is verified after each pass: as tests ask for by
/// CLEAVE_VERIFY=passes.
static bool verifiesPasses(const CompileOptions &options) {
  const char *wanted = std::getenv("CLEAVE_VERIFY");
  return options.verify == Verify::Passes ||
         (options.verify == Verify::Phases && wanted &&
          StringRef(wanted) == "passes");
}

void cleave::takeContents(ModuleOp module, ModuleOp other) {
  module.getBodyRegion().takeBody(other.getBodyRegion());
  module->setAttrs(other->getAttrDictionary());
}

LogicalResult cleave::runOnePhase(ModuleOp module, Phase phase,
                                  const CompileOptions &options) {
  OwningOpRef<ModuleOp> before;
  if (phase == Phase::Executable && !options.phases.writeOutActions &&
      mayRepeat(module))
    before = module.clone();
  auto run = [&](const PhaseOptions &own) {
    PassManager passes(module.getContext());
    bool each = verifiesPasses(options);
    passes.enableVerifier(each);
    addPhase(passes, phase, own);
    return success(
        succeeded(passes.run(module)) &&
        (each || options.verify == Verify::Never || succeeded(verify(module))));
  };
  if (failed(run(options.phases)))
    return failure();
  // Where memory is not used in turn, each action has a place of its own.
  if (before && !rowsRepeat(module)) {
    takeContents(module, *before);
    PhaseOptions own = options.phases;
    own.writeOutActions = true;
    return run(own);
  }
  return success();
}

void cleave::settleTarget(CompileOptions &own) {
  if (own.target == "cuda") {
    own.phases.processors = processorsOf(own.architecture);
    own.phases.products8 = multipliesFloat8(own.architecture);
  }
  own.phases.wideAttention = own.target == "cpu";
  own.phases.recompute = own.phases.recomputePolicy().str();
  // Buckets would join the chunks again.
  if (own.phases.collectiveChunks > 1)
    own.phases.collectiveChunkBytes =
        std::max(own.phases.collectiveChunkBytes, own.bucketBytes + 1);
}

/// The processor that `options` name; an error is reported at the module.
static FailureOr<CpuTarget> processorOf(ModuleOp module,
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
  if (auto tier = plan.getInteger("tier_bytes"))
    memory["tier"] = *tier;
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
  llvm::json::Value decision = nullptr;
  if (auto text = module->getAttrOfType<StringAttr>(kRecomputeDecisionAttr)) {
    if (auto value = llvm::json::parse(text.getValue()))
      decision = std::move(*value);
    else
      llvm::consumeError(value.takeError());
  }
  return llvm::json::Object{{"memory", std::move(memory)},
                            {"recompute", std::move(decision)},
                            {"communication", communicationReport(module)},
                            {"placement", placementReport(module)},
                            {"plan", std::move(plan)},
                            {"target", options.target},
                            {"check_finite", options.phases.checkFinite},
                            {"micro_batches", options.phases.microBatches}};
}

/// What a checkpoint says of how the program updates.
static std::string describe(const PhaseOptions &phases) {
  const graph::OptimizerOptions &options = phases.optimizer;
  llvm::json::Object facts{{"kind", options.rule},
                           {"max_grad_norm", options.maxGradNorm}};
  if (const graph::OptimizerRule *rule = graph::findOptimizerRule(options.rule))
    for (const graph::OptimizerSetting &setting : rule->settings()) {
      double value = options.get(setting.name);
      facts[setting.name] = setting.isFlag ? llvm::json::Value(value != 0.0)
                                           : llvm::json::Value(value);
    }
  std::string text;
  llvm::raw_string_ostream(text) << llvm::json::Value(llvm::json::Object{
      {"optimizer", std::move(facts)}, {"precision", phases.precision}});
  return text;
}

/// Adds what a device needs outside of its arena to the memory plan. Entries
/// that are not run in training may need more for messages.
static void addOutside(llvm::json::Object &plan,
                       ArrayRef<runtime::Program> programs) {
  auto describe = [](llvm::json::Object &own, const runtime::Program &program) {
    own["outside"] = llvm::json::Object{
        {"library", program.target.empty()
                        ? runtime::workspaceBytes(program)
                        : runtime::cuda::outsideBytes(program)},
        {"messages", messageBytes(program)}};
    if (llvm::json::Object *entries = own.getObject("entries"))
      for (const auto &[name, bytes] : messageBytesOfEntries(program))
        if (llvm::json::Object *entry = entries->getObject(name))
          (*entry)["message_bytes"] = bytes;
  };
  size_t largest = plan.getInteger("largest").value_or(0);
  if (largest < programs.size())
    describe(plan, programs[largest]);
  if (llvm::json::Array *positions = plan.getArray("positions"))
    for (auto [position, program] : llvm::zip(*positions, programs))
      describe(*position.getAsObject(), program);
}

FailureOr<CompiledProgram> cleave::planProgram(ModuleOp module,
                                               const CompileOptions &options) {
  auto target = processorOf(module, options);
  if (failed(target))
    return failure();
  auto programs = translateToPrograms(module);
  if (failed(programs))
    return failure();
  for (runtime::Program &program : *programs) {
    bucketCollectives(program, options.bucketBytes);
    delayWaits(program);
    // Positions of a pipeline reach different checks. A processor that waits
    // for no other rank, nor for the host, stops at once.
    bool waits =
        options.target != "cpu" || runtime::deviceCount(program.mesh) > 1;
    if (programs->size() == 1 && waits)
      deferChecks(program);
    if (options.target == "cpu") {
      delayWaitsOverParts(program);
      program.cpu = target->cpu;
      program.vectorBits = target->vectorBits;
    } else {
      program.target = options.target;
      program.architecture = options.architecture;
      for (runtime::Part &part : program.parts)
        for (runtime::Command &command : part.commands)
          if (command.kind == runtime::CommandKind::AttentionForward ||
              command.kind == runtime::CommandKind::AttentionBackward) {
            // What ranks compute alike stays alike.
            command.attention.fixedOrder =
                options.phases.grains > 0 ||
                runtime::deviceCount(program.mesh) > 1;
            command.attention.libraryBytes =
                runtime::cuda::planCudnnBytes(command, program.architecture);
          }
    }
    program.lossScaling = options.lossScaling;
    program.lossScaling.used = options.phases.scalesLoss();
    program.metadata = describe(options.phases);
  }
  std::string stuck = runtime::findExchangeDeadlock(
      *programs, options.target == "cuda" ? runtime::ExchangeStreams::One
                                          : runtime::ExchangeStreams::OfGroups);
  if (!stuck.empty()) {
    module.emitError(stuck);
    return failure();
  }
  llvm::json::Object facts = report(module, options);
  addOutside(*facts.getObject("plan"), *programs);
  return CompiledProgram{std::move(*programs), {}, std::move(facts)};
}

int64_t cleave::neededBytes(const llvm::json::Object &position) {
  int64_t bytes = position.getInteger("arena_bytes").value_or(0);
  if (const llvm::json::Object *outside = position.getObject("outside"))
    for (const auto &[what, count] : *outside)
      bytes += count.getAsInteger().value_or(0);
  return bytes;
}

std::string cleave::checkLimit(const CompiledProgram &compiled,
                               const CompileOptions &options) {
  const llvm::json::Object &plan = *compiled.report.getObject("plan");
  int64_t bytes = neededBytes(plan);
  if (const llvm::json::Array *positions = plan.getArray("positions"))
    for (const llvm::json::Value &position : *positions)
      bytes = std::max(bytes, neededBytes(*position.getAsObject()));
  if (options.memoryLimit <= 0 || bytes <= options.memoryLimit)
    return "";
  return ("a device needs " + formatLimit(bytes) +
          ", and the memory limit is " + formatLimit(options.memoryLimit) +
          (options.phases.recompute == "auto"
               ? ""
               : "; the policy of recomputation 'auto' may need less"));
}

FailureOr<CompiledProgram> cleave::generateCode(ModuleOp module,
                                                const CompileOptions &options) {
  auto target = processorOf(module, options);
  if (failed(target))
    return failure();
  FailureOr<CompiledProgram> compiled = planProgram(module, options);
  if (failed(compiled))
    return failure();
  if (options.target == "cuda") {
    FailureOr<std::string> text =
        printCudaPrograms(module, compiled->positions, options.architecture);
    if (failed(text))
      return failure();
    auto emit = [&]() -> llvm::Expected<std::string> {
      auto code = compileCuda(*text, options.architecture);
      if (!code)
        return code.takeError();
      return emitImage(*code, module);
    };
    auto object = emit();
    if (!object)
      return emitError(module.getLoc()) << llvm::toString(object.takeError());
    compiled->object = std::move(*object);
    return compiled;
  }
  auto object = compileKernels(module, *target);
  if (failed(object))
    return failure();
  compiled->object = std::move(*object);
  return compiled;
}

FailureOr<std::string> cleave::printKernels(ModuleOp module, KernelText text,
                                            const CompileOptions &options) {
  LaunchShapes launches;
  if (text == KernelText::Cuda && options.target != "cuda")
    return printCuda(module, launches);
  if (text == KernelText::Cuda) {
    FailureOr<CompiledProgram> compiled = planProgram(module, options);
    if (failed(compiled))
      return failure();
    return printCudaPrograms(module, compiled->positions, options.architecture);
  }
  auto target = processorOf(module, options);
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
