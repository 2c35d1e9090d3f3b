//===- Compile.cpp - From a model to a program that runs ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Pipelines/Compile.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "cleave/Runtime/ProgramIO.h"
#include "cleave/Target/CPU/CodeGen.h"
#include "cleave/Target/CUDA/EmitCuda.h"
#include "cleave/Target/DelayWaits.h"
#include "cleave/Target/JoinExchanges.h"
#include "cleave/Target/ProgramTable.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Pass/PassManager.h"
#include "llvm/Support/FormatVariadic.h"

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

/// What backward of one entry reads of forward, and what it computes again.
static void explainSaving(StringRef name, const llvm::json::Object &entry,
                          llvm::json::Array &decisions) {
  auto mebibytes = [](int64_t bytes) {
    return llvm::formatv("{0:F1} MiB", static_cast<double>(bytes) / (1 << 20))
        .str();
  };
  const llvm::json::Array *saved = entry.getArray("saved");
  if (saved && !saved->empty()) {
    int64_t bytes = 0;
    for (const llvm::json::Value &value : *saved)
      bytes += value.getAsObject()->getInteger("bytes").value_or(0);
    decisions.push_back(
        llvm::formatv("{0}: saves {1} values for backward, {2} for each "
                      "micro-batch",
                      name, saved->size(), mebibytes(bytes)));
  }
  const llvm::json::Array *recomputed = entry.getArray("recomputed");
  if (!recomputed || recomputed->empty())
    return;
  for (const llvm::json::Value &value : *recomputed) {
    const llvm::json::Object &group = *value.getAsObject();
    StringRef line = group.getString("name").value_or("");
    decisions.push_back(llvm::formatv(
        "{0}: computes again in backward: {1} {2}{3}, {4} not saved", name,
        group.getInteger("ops").value_or(0), group.getString("op").value_or(""),
        line.empty() ? std::string() : (" at " + line).str(),
        mebibytes(group.getInteger("bytes").value_or(0))));
  }
  decisions.push_back(llvm::formatv(
      "{0}: recomputation saves {1} less for each micro-batch", name,
      mebibytes(entry.getInteger("unsaved_bytes").value_or(0))));
}

/// Where updates stand, and what gradients take.
static void explainUpdates(StringRef name, const llvm::json::Object &entry,
                           llvm::json::Array &decisions) {
  auto fusion = entry.getString("optimizer_fusion");
  if (!fusion)
    return;
  StringRef text = *fusion;
  if (text == "backward")
    text = "backward: each update runs behind its gradient, which dies there";
  else if (text == "forward")
    text = "forward: each update runs in the next step, before its parameter "
           "is read first";
  decisions.push_back(llvm::formatv("{0}: optimizer fusion {1}", name, text));
  if (auto bytes = entry.getInteger("gradient_peak_bytes"))
    decisions.push_back(
        llvm::formatv("{0}: gradients take {1:F1} MiB at most at a time", name,
                      static_cast<double>(*bytes) / (1 << 20)));
}

/// What updates that are validated behind them cost.
static void explainValidation(StringRef name, const llvm::json::Object &entry,
                              llvm::json::Array &decisions) {
  if (auto bytes = entry.getInteger("kept_bytes"))
    decisions.push_back(llvm::formatv(
        "{0}: updates are validated behind them; what they overwrite is kept "
        "until then, {1:F1} MiB",
        name, static_cast<double>(*bytes) / (1 << 20)));
}

/// What a device sends in one run of an entry, by place.
static void explainCommunication(StringRef name,
                                 const llvm::json::Object &entry,
                                 llvm::json::Array &decisions) {
  auto mebibytes = [](const llvm::json::Object &sent) {
    return llvm::formatv("{0:F2} MiB",
                         sent.getNumber("bytes").value_or(0) / (1 << 20))
        .str();
  };
  auto text = [](const llvm::json::Object &object, StringRef key) {
    return object.getString(key).value_or("").str();
  };
  int64_t count = entry.getInteger("count").value_or(0);
  if (count == 0)
    return;
  decisions.push_back(
      llvm::formatv("{0}: each device sends {1} in {2} collectives", name,
                    mebibytes(entry), count));
  for (const llvm::json::Value &value : *entry.getArray("collectives")) {
    const llvm::json::Object &place = *value.getAsObject();
    std::string line = text(place, "line"), cause = text(place, "cause");
    decisions.push_back(llvm::formatv(
        "{0}: {1} {2} over {3}, {4}{5}{6}", name,
        place.getInteger("count").value_or(0), text(place, "kind"),
        text(place, "axes"), mebibytes(place),
        line.empty() ? std::string() : " at " + line,
        cause.empty() ? std::string() : ", since " + cause));
  }
}

/// Facts for people: bytes by kind, what is live at the peak, decisions.
static llvm::json::Object report(ModuleOp module,
                                 const CompileOptions &options) {
  llvm::json::Value plan = memoryReport(module);
  const llvm::json::Object &facts = *plan.getAsObject();
  llvm::json::Object memory;
  llvm::json::Array decisions;
  if (auto arena = facts.getInteger("arena_bytes"))
    memory["arena"] = *arena;
  if (const llvm::json::Object *fixed = facts.getObject("bytes"))
    for (const auto &[kind, bytes] : *fixed)
      memory[kind] = bytes;
  if (const llvm::json::Object *entries = facts.getObject("entries"))
    for (const auto &[name, value] : *entries) {
      const llvm::json::Object *entry = value.getAsObject();
      if (auto peak = entry->getInteger("peak_bytes"))
        memory[(StringRef(name) + " peak").str()] = *peak;
      if (auto gradients = entry->getInteger("gradient_peak_bytes"))
        memory[(StringRef(name) + " gradients").str()] = *gradients;
      if (auto kept = entry->getInteger("kept_bytes"))
        memory[(StringRef(name) + " kept").str()] = *kept;
      explainUpdates(StringRef(name), *entry, decisions);
      explainValidation(StringRef(name), *entry, decisions);
      explainSaving(StringRef(name), *entry, decisions);
    }
  decisions.push_back(
      llvm::formatv("micro-batches: {0}", options.phases.microBatches));
  llvm::json::Value communication = communicationReport(module);
  for (const auto &[name, entry] : *communication.getAsObject())
    explainCommunication(StringRef(name), *entry.getAsObject(), decisions);
  return llvm::json::Object{{"memory", std::move(memory)},
                            {"communication", std::move(communication)},
                            {"placement", placementReport(module)},
                            {"plan", std::move(plan)},
                            {"decisions", std::move(decisions)}};
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
