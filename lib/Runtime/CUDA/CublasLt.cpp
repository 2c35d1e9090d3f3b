//===- CublasLt.cpp - The functions of cuBLASLt ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CublasLt.h"
#include "cleave/Runtime/Core/CudaLibraries.h"
#include "cleave/Runtime/Core/ProgramIO.h"

#include <mutex>
#include <optional>

using namespace cleave::runtime;
using namespace cleave::runtime::cuda;

static llvm::Expected<CublasLt> openCublasLt() {
  auto library =
      openCudaLibrary("libcublasLt.so.13", "contractions on a GPU");
  if (!library)
    return makeError(llvm::toString(library.takeError()) +
                     "; it comes with the toolkit of CUDA 13, and as the "
                     "Python package nvidia-cublas");
  CublasLt found;
  const char *missing = nullptr;
  auto find = [&](auto &function, const char *name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
        findFunction(*library, name));
    if (!function)
      missing = name;
  };
  find(found.create, "cublasLtCreate");
  find(found.destroy, "cublasLtDestroy");
  find(found.version, "cublasLtGetVersion");
  find(found.createDesc, "cublasLtMatmulDescCreate");
  find(found.destroyDesc, "cublasLtMatmulDescDestroy");
  find(found.setDesc, "cublasLtMatmulDescSetAttribute");
  find(found.createLayout, "cublasLtMatrixLayoutCreate");
  find(found.destroyLayout, "cublasLtMatrixLayoutDestroy");
  find(found.setLayout, "cublasLtMatrixLayoutSetAttribute");
  find(found.createPreference, "cublasLtMatmulPreferenceCreate");
  find(found.destroyPreference, "cublasLtMatmulPreferenceDestroy");
  find(found.setPreference, "cublasLtMatmulPreferenceSetAttribute");
  find(found.heuristics, "cublasLtMatmulAlgoGetHeuristic");
  find(found.checkAlgorithm, "cublasLtMatmulAlgoCheck");
  find(found.multiply, "cublasLtMatmul");
  if (missing)
    return makeError(llvm::Twine("libcublasLt.so.13 has no ") + missing);
  return found;
}

llvm::Expected<const CublasLt *> CublasLt::get() {
  static std::mutex mutex;
  static std::optional<CublasLt> opened;
  std::lock_guard<std::mutex> lock(mutex);
  if (!opened) {
    llvm::Expected<CublasLt> library = openCublasLt();
    if (!library)
      return library.takeError();
    opened = *library;
  }
  return &*opened;
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
