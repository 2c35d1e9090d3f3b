//===- OptMain.cpp - Runs passes on a file ------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "OptMain.h"
#include "cleave/Pipelines/PhasePipelines.h"
#include "cleave/Pipelines/Register.h"
#include "cleave/Support/CommandLine.h"
#include "cleave/Support/PassCounts.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/Debug.h"
#include "llvm/Support/InitLLVM.h"

namespace cl = llvm::cl;

namespace {
/// The options of this program, besides MLIR's. Made when it runs: the
/// extension module of Python has other programs too.
struct OptFlags {
  cl::opt<std::string> input{cl::Positional, cl::desc("<input file>"),
                             cl::init("-")};
  cl::opt<std::string> output{"o", cl::desc("Output filename"),
                              cl::value_desc("filename"), cl::init("-")};
  // The packages of LLVM have it in builds with assertions alone.
  cl::list<std::string> debugOnly{
      "debug-only", cl::CommaSeparated, cl::value_desc("passes"),
      cl::desc("Print what these passes decide, by their names; of builds "
               "without NDEBUG")};
  cl::opt<bool> passCounts{"pass-counts",
                           cl::desc("Print at the end what passes count")};
};
} // namespace

/// Turns on what passes print by LLVM_DEBUG.
static void printDebugOutput(const cl::list<std::string> &debugOnly) {
  if (debugOnly.empty())
    return;
  std::vector<const char *> names;
  for (const std::string &name : debugOnly)
    names.push_back(name.c_str());
  llvm::DebugFlag = true;
  llvm::setCurrentDebugTypes(names.data(), names.size());
}

int cleave::optMain(int argc, char **argv) {
  llvm::InitLLVM init(argc, argv);
  cleave::failWithoutSignals();
  cleave::printVersionOf("cleave-opt");
  OptFlags own;
  mlir::DialectRegistry registry;
  cleave::registerAllDialects(registry);
  cleave::registerAllPasses();
  cleave::registerPhasePipelines();
  // Like the library's main program, with two differences: an error in the
  // arguments ends with status 2, as in the other tools, and a message is
  // followed by the whole function or module only on request.
  std::string header = mlir::registerCLIOptions(
      "Cleave: runs passes on model, step and device programs\n", registry);
  auto &flags = cl::getRegisteredOptions();
  if (auto it = flags.find("mlir-print-op-on-diagnostic"); it != flags.end())
    static_cast<cl::opt<bool> *>(it->second)->setInitialValue(false);
  if (!cl::ParseCommandLineOptions(argc, argv, header, &llvm::errs()))
    return 2;
  printDebugOutput(own.debugOnly);
  llvm::LogicalResult done =
      mlir::MlirOptMain(argc, argv, own.input, own.output, registry);
  if (own.passCounts)
    cleave::PassCount::print(llvm::errs());
  return mlir::asMainReturnCode(done);
}
