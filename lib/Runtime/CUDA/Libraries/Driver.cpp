//===- Driver.cpp - The functions of the CUDA driver ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Driver.h"
#include "cleave/Executable/Cuda/CudaLibraries.h"
#include "cleave/Executable/Format/ProgramIO.h"

#include <cstdlib>
#include <mutex>
#include <optional>

using namespace cleave::runtime;
using namespace cleave::runtime::cuda;

/// The oldest driver with the interfaces that are used, of CUDA 13.0.
static constexpr int oldestVersion = 13000;

llvm::StringRef cleave::runtime::cuda::environment(const char *name) {
  const char *text = std::getenv(name);
  return text ? text : "";
}

static llvm::Expected<Driver> openDriver() {
  auto library = openCudaLibrary("libcuda.so.1", "running on a GPU");
  if (!library)
    return makeError(llvm::toString(library.takeError()) +
                     ". It is part of NVIDIA's driver: this machine has none");
  Driver driver;
  // The names are those that the header gives to the newest versions.
#define CLEAVE_TEXT(name) #name
#define CLEAVE_FIND(name)                                                      \
  driver.name = reinterpret_cast<decltype(driver.name)>(                       \
      findFunction(*library, CLEAVE_TEXT(name)));                              \
  if (!driver.name)                                                            \
    return makeError("the driver is too old: it has no " CLEAVE_TEXT(          \
        name) "; Cleave needs one of CUDA 13.0 or later");
  CLEAVE_CUDA_FUNCTIONS(CLEAVE_FIND)
#undef CLEAVE_FIND
#undef CLEAVE_TEXT
  int version = 0;
  if (llvm::Error error =
          driver.check(driver.cuDriverGetVersion(&version), "its version"))
    return error;
  if (version < oldestVersion)
    return makeError("the driver is too old: it is of CUDA " +
                     llvm::Twine(version / 1000) + "." +
                     llvm::Twine(version % 1000 / 10) +
                     ", and Cleave needs one of CUDA 13.0 or later");
  CUresult started = driver.cuInit(0);
  if (started == CUDA_ERROR_NO_DEVICE) {
    const char *visible = std::getenv("CUDA_VISIBLE_DEVICES");
    return makeError(
        "this machine has NVIDIA's driver, but no GPU that CUDA sees" +
        (visible ? ": CUDA_VISIBLE_DEVICES is '" + std::string(visible) + "'"
                 : "; nvidia-smi lists those of the driver"));
  }
  if (llvm::Error error = driver.check(started, "starting the driver"))
    return error;
  return driver;
}

llvm::Expected<const Driver *> Driver::get() {
  static std::mutex mutex;
  static std::optional<Driver> opened;
  std::lock_guard<std::mutex> lock(mutex);
  if (!opened) {
    llvm::Expected<Driver> driver = openDriver();
    if (!driver)
      return driver.takeError();
    opened = *driver;
  }
  return &*opened;
}

llvm::Error Driver::check(CUresult code, const llvm::Twine &what) const {
  if (code == CUDA_SUCCESS)
    return llvm::Error::success();
  const char *text = nullptr;
  if (cuGetErrorString(code, &text) != CUDA_SUCCESS || !text)
    text = "unknown error";
  return makeError("CUDA: " + what + ": " + text + " (" +
                   llvm::Twine(static_cast<int>(code)) + ")");
}
