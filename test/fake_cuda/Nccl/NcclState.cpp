//===- NcclState.cpp - Communicators, and exchanges under way -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "NcclState.h"
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>

using namespace fake::nccl;

const Driver *fake::nccl::driver() {
  static const Driver found = [] {
    Driver result;
    Dl_info info;
    if (!dladdr(reinterpret_cast<void *>(&fake::nccl::driver), &info))
      return result;
    std::string path = info.dli_fname;
    path = path.substr(0, path.rfind('/') + 1) + "libcuda.so.1";
    void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library)
      return result;
    auto load = [&](auto &function, const char *name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
          dlsym(library, name));
    };
    load(result.enqueue, "cleave_fake_enqueue_op");
    load(result.host, "cleave_fake_host");
    load(result.room, "cleave_fake_room");
    load(result.device, "cuCtxGetDevice");
    load(result.uuid, "cuDeviceGetUuid_v2");
    load(result.synchronize, "cuCtxSynchronize");
    load(result.allocate, "cuMemAlloc_v2");
    load(result.free, "cuMemFree_v2");
    return result;
  }();
  bool whole = found.enqueue && found.host && found.room && found.device &&
               found.uuid && found.synchronize && found.allocate && found.free;
  return whole ? &found : nullptr;
}

State &fake::nccl::state() {
  static State &state = *new State;
  return state;
}

thread_local Group fake::nccl::group;

void fake::nccl::die(const std::string &what) {
  std::fprintf(stderr, "NCCL on the host: %s\n", what.c_str());
  std::abort();
}

bool fake::nccl::isFault(const char *name, int device, size_t count) {
  const char *text = std::getenv("CLEAVE_FAKE_NCCL");
  std::string one = std::string(name) + ":" + std::to_string(device) + ":" +
                    std::to_string(count);
  return text && ("," + std::string(text) + ",").find("," + one + ",") !=
                     std::string::npos;
}

CommunicatorPtr fake::nccl::find(void *handle) {
  auto it = state().communicators.find(handle);
  return it == state().communicators.end() ? nullptr : it->second;
}
