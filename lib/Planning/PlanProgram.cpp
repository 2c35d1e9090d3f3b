//===- PlanProgram.cpp - Programs and their memory ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Planning/PlanProgram.h"
#include "cleave/Executable/Cuda/PlanCudnnAttention.h"
#include "cleave/Executable/Transforms/FinalizeProgram.h"
#include "cleave/Machines/MachineModel.h"
#include "cleave/Pipelines/Options.h"
#include "cleave/Pipelines/PhaseTimes.h"
#include "cleave/Support/ByteSize.h"
#include "cleave/Target/CPU/CodeGen.h"
#include "cleave/Target/Program/ProgramTable.h"
#include "llvm/Support/JSON.h"

using namespace mlir;
using namespace cleave;

/// What a checkpoint says of how the program updates.
static std::string describe(const CompileOptions &options) {
  const graph::OptimizerOptions &optimizer = options.phases.optimizer;
  llvm::json::Object facts{{"kind", optimizer.rule},
                           {"max_grad_norm", optimizer.maxGradNorm}};
  if (const graph::OptimizerRule *rule =
          graph::findOptimizerRule(optimizer.rule))
    for (const graph::OptimizerSetting &setting : rule->settings()) {
      double value = optimizer.get(setting.name);
      facts[setting.name] = setting.isFlag ? llvm::json::Value(value != 0.0)
                                           : llvm::json::Value(value);
    }
  llvm::json::Object all{{"optimizer", std::move(facts)}};
  for (const Option &option : optionTable())
    // What is off by default is said where it is on.
    if (option.fact &&
        (option.kind == OptionKind::Choice || !option.isDefault(options)))
      std::visit([&](const auto &value) { all[option.key()] = value; },
                 option.get(options));
  std::string text;
  llvm::raw_string_ostream(text) << llvm::json::Value(std::move(all));
  return text;
}

/// What finalizing a program needs of the options.
static FinalizeOptions finalizeOptions(const CompileOptions &options,
                                       const CpuTarget &target) {
  FinalizeOptions finalize;
  finalize.fixedOrder = options.phases.grains > 0;
  finalize.lossScaling = options.lossScaling;
  finalize.lossScaling.used = options.phases.scalesLoss();
  finalize.metadata = describe(options);
  if (options.traits().isGpu()) {
    finalize.target = options.target;
    finalize.architecture = options.architecture;
  } else {
    finalize.cpu = target.cpu;
    finalize.vectorBits = target.vectorBits;
  }
  return finalize;
}

FailureOr<PlannedProgram> cleave::planProgram(ModuleOp module,
                                              const CompileOptions &options) {
  TimingScope time = timePhase(options, "program");
  auto target = CpuTarget::get(options.cpu, options.vectorBits);
  if (!target)
    return emitError(module.getLoc()) << llvm::toString(target.takeError());
  auto programs = translateToPrograms(module);
  if (failed(programs))
    return failure();
  auto libraryBytes = [&](const runtime::Command &command) {
    return runtime::cuda::planCudnnBytes(command, options.architecture);
  };
  std::string error;
  auto machine = machines::MachineModel::parse(options.phases.machine, error);
  if (!machine)
    return module.emitError() << error;
  std::optional<int64_t> fixed = options.fixedBucketBytes();
  auto bucketBytes = [&](double bytes) {
    return fixed.value_or(
        static_cast<int64_t>(std::min(machine->bucketBytes(bytes), bytes)));
  };
  FinalizeOptions finalize = finalizeOptions(options, *target);
  finalize.libraryBytes = libraryBytes;
  finalize.bucketBytes = bucketBytes;
  std::string stuck = finalizePrograms(*programs, finalize);
  if (!stuck.empty()) {
    module.emitError(stuck);
    return failure();
  }
  runtime::MemoryPlan memory = findMemory(module, *programs);
  return PlannedProgram{std::move(*programs), std::move(memory)};
}

std::string cleave::checkLimit(const runtime::MemoryPlan &memory,
                               const CompileOptions &options) {
  int64_t bytes = memory.neededBytes();
  if (options.memoryLimit <= 0 || bytes <= options.memoryLimit)
    return "";
  return ("a device needs " + formatLimit(bytes) +
          ", and the memory limit is " + formatLimit(options.memoryLimit) +
          (options.phases.recompute == "auto"
               ? ""
               : "; the policy of recomputation 'auto' may need less"));
}
