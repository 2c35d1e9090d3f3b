//===- DevicePlugin.cpp - Devices that are plugins ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "DevicePlugin.h"
#include "Launch.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Runtime/Core/FindLibrary.h"

#include <cstdlib>
#include <dlfcn.h>

using namespace cleave::runtime;

llvm::Expected<cleave_device *>
cleave::runtime::openDevicePlugin(const Artifact &artifact, int64_t rank,
                                  int ordinal) {
  const Program &program = artifact.programOf(rank);
  std::string variable =
      "CLEAVE_" + llvm::StringRef(program.target).upper() + "_PLUGIN";
  const char *chosen = std::getenv(variable.c_str());
  std::string path =
      chosen ? chosen : findLibrary("libcleave_" + program.target + ".so");
  // Never closed: the libraries that it opens cannot be unloaded.
  void *handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    return makeError("the program is for the target '" + program.target +
                     "', whose plugin cannot be opened: " + ::dlerror() +
                     "; it is built where the headers of CUDA are found");
  auto open = reinterpret_cast<cleave_device_open_function>(
      ::dlsym(handle, CLEAVE_DEVICE_OPEN));
  if (!open)
    return makeError(path + ": exports no " + CLEAVE_DEVICE_OPEN);
  std::string text = toJSON(program);
  cleave_device_request request{};
  request.program = text.data();
  request.program_bytes = text.size();
  request.rank = rank;
  request.ordinal = ordinal;
  request.data = const_cast<Artifact *>(&artifact);
  request.lookup = [](void *data, const char *symbol) {
    return static_cast<const Artifact *>(data)->lookup(symbol);
  };
  char error[1024] = "";
  cleave_device *device =
      open(CLEAVE_DEVICE_ABI, &request, error, sizeof error);
  if (!device)
    return makeError(error);
  return device;
}
