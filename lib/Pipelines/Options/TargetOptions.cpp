//===- TargetOptions.cpp - Options of the machine -------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "DeclareOptions.h"
#include "cleave/Machines/MachineModel.h"
#include "cleave/Pipelines/ScheduleOptions.h"
#include "cleave/Target/CPU/CodeGen.h"
#include "cleave/Target/CUDA/CompileCuda.h"

using namespace cleave;
using llvm::StringRef;

static bool isCpu(const CompileOptions &options) {
  return !options.traits().isGpu();
}

static std::string processorProblem(const CompileOptions &options) {
  auto known = CpuTarget::get(options.cpu, options.vectorBits);
  return known ? "" : ": " + llvm::toString(known.takeError());
}

void cleave::declareTarget(OptionTable &table) {
  const std::string ofCpu = " is of {target} cpu";
  table.choice("target", &CompileOptions::target, {"cpu", "cuda"})
      .plain()
      .says("The device that runs the program: the CPU, the default, or a GPU "
            "of NVIDIA");
  table.text("arch", &CompileOptions::architecture)
      .form("sm_NN")
      .drawn({"sm_80", "sm_100", "gfx90a"})
      .says("With {target} cuda: the GPU's architecture, such as sm_80, sm_90 "
            "(the default) or sm_100. Its code is compiled by NVRTC, without a "
            "GPU")
      .valid([](StringRef text) { return checkArchitecture(text); })
      .needs([](const CompileOptions &options) { return !isCpu(options); },
             " is of {target} cuda");
  table.text("cpu", &CompileOptions::cpu)
      .inPython("")
      .form("name")
      .says("The CPU, as clang names it; by default this one")
      .needs(isCpu, ofCpu)
      .refused(processorProblem);
  table
      .custom(
          "vector-bits", OptionKind::Integer,
          [](const CompileOptions &options) -> OptionValue {
            return static_cast<int64_t>(options.vectorBits);
          },
          [](CompileOptions &options, const OptionValue &value) {
            options.vectorBits = static_cast<int>(std::get<int64_t>(value));
          })
      .form("bits")
      .inPython("")
      .least(0)
      .most(512)
      .drawn({"256", "100"})
      .says("Width of vectors: 128, 256 or 512; by default those of the CPU")
      .needs(isCpu, ofCpu)
      .refused(processorProblem);
  table.integer("threads", &PhaseOptions::threads)
      .least(1)
      .most(static_cast<double>(runtime::Program::kMaxThreads))
      .drawn({"2", "0", "100000"})
      .says("Threads of a step, for which memory is planned; by default the "
            "cores of this machine")
      .needs(isCpu, ofCpu)
      .refused([](const CompileOptions &options) -> std::string {
        // Programs of tests have more, which are no more than planned for.
        return options.phases.grains && options.given.count("threads")
                   ? " is 1 with {deterministic}, of which one thread computes "
                     "each grain: leave it out"
                   : "";
      });
  table.text("dump-phases", &CompileOptions::dumpPhases)
      .form("folder")
      .says(
          "Write the module of each phase to this folder (0-model.mlir to "
          "5-executable.mlir), each with the command of cleave-opt that makes "
          "it of the one before; a program is then compiled even if it is in "
          "the cache");
  table
      .choice("time-phases", &CompileOptions::timePhases,
              {"off", "phases", "passes"})
      .says(
          "Print to standard error the CPU and wall seconds of each phase of "
          "the compilation, and of each pass with passes, which then run on "
          "one thread; a program is then compiled even if it is in the cache");
  table.flag("check-cost", &CompileOptions::checkCost)
      .inPython("")
      .says("Refuse a plan that sends, computes or holds at rest over 2 % more "
            "than the closed form of its recipes says, or by a kind of "
            "collective that the form lacks; --explain=cost shows both");
  table.text("machine", &PhaseOptions::machine)
      .form("rates")
      .drawn({"flops=1e11", "flops=fast"})
      .says("The rates of a device per second, by which stages are balanced, "
            "schedules predicted and recomputation chosen: "
            "flops=1e11,memory=2e10,link=5e9 (bytes of its memory, and sent to "
            "another device) by default, with latency=2e-5, the seconds that a "
            "collective takes beside its bytes; or the file of cleave-compile "
            "--measure-machine")
      .valid([](StringRef text) {
        auto rates = readMachine(text);
        std::string error;
        if (!rates)
          return llvm::toString(rates.takeError());
        if (!rates->empty() && !machines::MachineModel::parse(*rates, error))
          return error;
        return std::string();
      });
}
