//===- PlanProgram.cpp - Programs and their memory ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Planning/PlanProgram.h"
#include "cleave/Pipelines/Options.h"
#include "cleave/Executable/Cuda/CudnnPlan.h"
#include "cleave/Executable/Format/ExchangeOrder.h"
#include "cleave/Executable/Format/ShardLayout.h"
#include "cleave/Executable/Transforms/BucketCollectives.h"
#include "cleave/Executable/Transforms/DeferChecks.h"
#include "cleave/Executable/Transforms/DelayWaits.h"
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

/// Decides what of a program is of its target: which waits are delayed and
/// which checks deferred, and how attention runs.
static void finishProgram(runtime::Program &program, bool alone,
                          const CpuTarget &target,
                          const CompileOptions &options) {
  bucketCollectives(program, options.bucketBytes);
  delayWaits(program);
  // Positions of a pipeline reach different checks. A processor that waits
  // for no other rank, nor for the host, stops at once.
  bool waits =
      options.target != "cpu" || runtime::deviceCount(program.mesh) > 1;
  if (alone && waits)
    deferChecks(program);
  if (options.target == "cpu") {
    delayWaitsOverParts(program);
    program.cpu = target.cpu;
    program.vectorBits = target.vectorBits;
  } else {
    program.target = options.target;
    program.architecture = options.architecture;
    for (runtime::Part &part : program.parts)
      for (runtime::Command &command : part.commands)
        if (command.kind == runtime::CommandKind::AttentionForward ||
            command.kind == runtime::CommandKind::AttentionBackward) {
          // What ranks compute alike stays alike.
          command.attention.fixedOrder = options.phases.grains > 0 ||
                                         runtime::deviceCount(program.mesh) > 1;
          command.attention.libraryBytes =
              runtime::cuda::planCudnnBytes(command, program.architecture);
        }
  }
  program.lossScaling = options.lossScaling;
  program.lossScaling.used = options.phases.scalesLoss();
  program.metadata = describe(options);
}

FailureOr<PlannedProgram> cleave::planProgram(ModuleOp module,
                                              const CompileOptions &options) {
  auto target = CpuTarget::get(options.cpu, options.vectorBits);
  if (!target)
    return emitError(module.getLoc()) << llvm::toString(target.takeError());
  auto programs = translateToPrograms(module);
  if (failed(programs))
    return failure();
  for (runtime::Program &program : *programs)
    finishProgram(program, programs->size() == 1, *target, options);
  std::string stuck = runtime::findExchangeDeadlock(
      *programs, options.target == "cuda" ? runtime::ExchangeStreams::One
                                          : runtime::ExchangeStreams::OfGroups);
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
