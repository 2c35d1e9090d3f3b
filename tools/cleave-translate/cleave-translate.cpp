//===- cleave-translate.cpp - Kernels in other languages ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Pipelines/Register.h"
#include "cleave/Support/CommandLine.h"
#include "cleave/Target/CPU/CodeGen.h"
#include "cleave/Target/CUDA/PrintCuda.h"
#include "mlir/Tools/mlir-translate/MlirTranslateMain.h"
#include "mlir/Tools/mlir-translate/Translation.h"
#include "llvm/Support/CommandLine.h"

using namespace mlir;
using namespace cleave;

static llvm::cl::opt<std::string> cpu("cpu",
                                      llvm::cl::desc("Processor; default: "
                                                     "this one"));
static llvm::cl::opt<int> vectorBits("vector-bits",
                                     llvm::cl::desc("Width of vectors"));

/// Writes the result of `translate` on the kernels of a module.
static LogicalResult
write(Operation *op, raw_ostream &os,
      FailureOr<std::string> (*translate)(ModuleOp, const CpuTarget &)) {
  auto module = dyn_cast<ModuleOp>(op);
  if (!module)
    return op->emitError("a module is needed");
  auto target = CpuTarget::get(cpu, vectorBits);
  if (!target)
    return op->emitError(llvm::toString(target.takeError()));
  FailureOr<std::string> text = translate(module, *target);
  if (failed(text))
    return failure();
  os << *text;
  return success();
}

int main(int argc, char **argv) {
  printVersionOf("cleave-translate");
  TranslateFromMLIRRegistration llvmText(
      "exec-to-llvm", "kernels as LLVM IR",
      [](Operation *op, raw_ostream &os) { return write(op, os, printLLVM); },
      registerAllDialects);
  TranslateFromMLIRRegistration object(
      "exec-to-object", "kernels as an object file",
      [](Operation *op, raw_ostream &os) {
        return write(op, os, compileKernels);
      },
      registerAllDialects);
  TranslateFromMLIRRegistration cudaText(
      "exec-to-cuda", "kernels as CUDA C++",
      [](Operation *op, raw_ostream &os) {
        return write(op, os, [](ModuleOp module, const CpuTarget &) {
          LaunchShapes launches;
          return printCuda(module, launches);
        });
      },
      registerAllDialects);
  return failed(mlirTranslateMain(
      argc, argv, "Cleave: writes kernels in other languages\n"));
}
