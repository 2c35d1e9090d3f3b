//===- DumpPhases.cpp - Modules of a compilation in files -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Pipelines/DumpPhases.h"
#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Executable/Format/FileIO.h"
#include "cleave/Pipelines/PhasePipelines.h"
#include "llvm/Support/FileSystem.h"
#include <map>
#include <mutex>

using namespace mlir;
using namespace cleave;

/// The number of a compilation that writes to `folder`, from 1.
static int numberOf(const std::string &folder) {
  static std::mutex mutex;
  static std::map<std::string, int> counts;
  std::lock_guard<std::mutex> lock(mutex);
  return ++counts[folder];
}

PhaseDump::PhaseDump(const CompileOptions &options)
    : folder(options.dumpPhases) {
  if (folder.empty())
    return;
  if (int number = numberOf(folder); number > 1)
    folder += "/" + std::to_string(number);
}

/// The name of the file of a phase.
static std::string fileOf(Phase phase) {
  return std::to_string(static_cast<int>(phase)) + "-" +
         phaseName(phase).str() + ".mlir";
}

/// Whether each action has a run of its own. Options say so only where that was
/// asked for; one that repeats nothing is the same with both.
static bool isWrittenOut(ModuleOp module) {
  return llvm::none_of(
      module.getOps<exec::ProgramOp>(),
      [](exec::ProgramOp program) { return program.getRepeats(); });
}

/// The command that makes the file of `phase` of the one before.
static std::string commandOf(ModuleOp module, Phase phase,
                             const CompileOptions &options) {
  CompileOptions own = options;
  own.dumpPhases.clear();
  if (phase == Phase::Executable)
    own.phases.writeOutActions = isWrittenOut(module);
  std::string text = pipelineOptions(own), quoted;
  for (char c : text)
    quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return "cleave-opt " +
         fileOf(static_cast<Phase>(static_cast<int>(phase) - 1)) + " --phase-" +
         phaseName(phase).str() + "='" + quoted + "' --mlir-print-debuginfo";
}

LogicalResult PhaseDump::write(ModuleOp module, Phase phase,
                               const CompileOptions &options) const {
  if (folder.empty())
    return success();
  auto refuse = [&](const Twine &why) {
    return emitError(module.getLoc()) << "--dump-phases: " << why;
  };
  if (std::error_code error = llvm::sys::fs::create_directories(folder))
    return refuse(folder + ": " + error.message());
  llvm::Error error = runtime::writeFileAtomically(
      folder + "/" + fileOf(phase), [&](raw_ostream &os) {
        if (phase != Phase::Model)
          os << "// " << commandOf(module, phase, options) << "\n";
        module->print(os, OpPrintingFlags().enableDebugInfo(true, false));
        os << "\n";
      });
  return error ? refuse(llvm::toString(std::move(error))) : success();
}
