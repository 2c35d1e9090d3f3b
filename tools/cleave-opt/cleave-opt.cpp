//===- cleave-opt.cpp - Runs passes on a file -----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Pipelines/PhasePipelines.h"
#include "cleave/Pipelines/Register.h"
#include "cleave/Support/CommandLine.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/InitLLVM.h"

namespace cl = llvm::cl;

static cl::opt<std::string> input(cl::Positional, cl::desc("<input file>"),
                                  cl::init("-"));
static cl::opt<std::string> output("o", cl::desc("Output filename"),
                                   cl::value_desc("filename"), cl::init("-"));

int main(int argc, char **argv) {
  llvm::InitLLVM init(argc, argv);
  cleave::failWithoutSignals();
  cleave::printVersionOf("cleave-opt");
  mlir::DialectRegistry registry;
  cleave::registerAllDialects(registry);
  cleave::registerAllPasses();
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
  return mlir::asMainReturnCode(
      mlir::MlirOptMain(argc, argv, input, output, registry));
}
  cleave::registerPhasePipelines();
