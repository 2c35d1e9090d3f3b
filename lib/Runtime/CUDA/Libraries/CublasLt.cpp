//===- CublasLt.cpp - The functions of cuBLASLt ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CublasLt.h"
#include "cleave/Executable/Cuda/CudaLibraries.h"
#include "cleave/Executable/Format/ProgramIO.h"

using namespace cleave::runtime;
using namespace cleave::runtime::cuda;

static llvm::Expected<CublasLt> openCublasLt() {
  auto library = openCudaLibrary("libcublasLt.so.13", "contractions on a GPU");
  if (!library)
    return makeError(llvm::toString(library.takeError()) +
                     "; it comes with the toolkit of CUDA 13, and as the "
                     "Python package nvidia-cublas");
  CublasLt found;
  CudaFunctions functions(*library);
  functions.find(found.create, "cublasLtCreate");
  functions.find(found.destroy, "cublasLtDestroy");
  functions.find(found.version, "cublasLtGetVersion");
  functions.find(found.createDesc, "cublasLtMatmulDescCreate");
  functions.find(found.destroyDesc, "cublasLtMatmulDescDestroy");
  functions.find(found.setDesc, "cublasLtMatmulDescSetAttribute");
  functions.find(found.createLayout, "cublasLtMatrixLayoutCreate");
  functions.find(found.destroyLayout, "cublasLtMatrixLayoutDestroy");
  functions.find(found.setLayout, "cublasLtMatrixLayoutSetAttribute");
  functions.find(found.createPreference, "cublasLtMatmulPreferenceCreate");
  functions.find(found.destroyPreference, "cublasLtMatmulPreferenceDestroy");
  functions.find(found.setPreference, "cublasLtMatmulPreferenceSetAttribute");
  functions.find(found.heuristics, "cublasLtMatmulAlgoGetHeuristic");
  functions.find(found.checkAlgorithm, "cublasLtMatmulAlgoCheck");
  functions.find(found.multiply, "cublasLtMatmul");
  if (llvm::Error error = functions.check("libcublasLt.so.13"))
    return error;
  return found;
}

llvm::Expected<const CublasLt *> CublasLt::get() {
  return openOnce<CublasLt>(openCublasLt);
}

static const char *nameOf(int status) {
  switch (status) {
  case 1:
    return "not initialized";
  case 3:
    return "out of resources";
  case 7:
    return "an invalid value";
  case 8:
    return "not for this architecture";
  case 11:
    return "memory cannot be mapped";
  case 13:
    return "the execution failed";
  case 14:
    return "an internal error";
  case 15:
    return "not supported";
  default:
    return "an unknown error";
  }
}

llvm::Error CublasLt::check(int status, const llvm::Twine &what) {
  if (status == 0)
    return llvm::Error::success();
  return makeError("cuBLASLt: " + what + ": " + nameOf(status) + " (" +
                   llvm::Twine(status) + ")");
}
