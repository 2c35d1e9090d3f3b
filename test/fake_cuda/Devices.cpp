//===- Devices.cpp - Devices and contexts ---------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Driver.h"
#include <dlfcn.h>

namespace fake {

/// The stream of a handle; null if it is none.
Stream *streamOf(void *handle) {
  State &s = state();
  if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    Stream &legacy = s.legacy[currentContext()->device];
    legacy.device = currentContext()->device;
    return &legacy;
  }
  return checked<Stream>(s.streams, handle);
}

/// Whether calls that capture forbids may be made by this thread.
bool unsafeForbidden() {
  if (threadMode == CU_STREAM_CAPTURE_MODE_RELAXED)
    return false;
  for (Capture *capture : state().captures) {
    bool own = capture->thread == &threadMark;
    if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
      continue;
    if (own || (capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                threadMode == CU_STREAM_CAPTURE_MODE_GLOBAL)) {
      capture->invalid = true;
      return true;
    }
  }
  return false;
}

bool isDevice(int device) {
  const char *text = environment("CLEAVE_FAKE_DEVICES");
  return device >= 0 && device < (text ? std::atoi(text) : 1);
}

void capability(int &major, int &minor) {
  major = 9, minor = 0;
  if (const char *text = environment("CLEAVE_FAKE_CAPABILITY"))
    std::sscanf(text, "%d.%d", &major, &minor);
}

} // namespace fake

using namespace fake;

EXPORT CUresult cuInit(unsigned flags) {
  CHECK(flags == 0);
  Lock lock(state().mutex);
  if (const char *text = environment("CLEAVE_FAKE_DEVICES");
      text && std::atoi(text) == 0)
    return CUDA_ERROR_NO_DEVICE;
  state().initialised = true;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int *version) {
  CHECK(version);
  const char *text = environment("CLEAVE_FAKE_DRIVER_VERSION");
  *version = text ? std::atoi(text) : 13000;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count) {
  ENTER_ANY();
  CHECK(count);
  for (*count = 0; isDevice(*count);)
    ++*count;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  ENTER_ANY();
  CHECK(device);
  if (!isDevice(ordinal))
    return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int size, CUdevice device) {
  ENTER_ANY();
  CHECK(name && size > 0);
  if (!isDevice(device))
    return CUDA_ERROR_INVALID_DEVICE;
  const char *text = environment("CLEAVE_FAKE_NAME");
  std::snprintf(name, size, "%s", text ? text : "Fake");
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
  ENTER_ANY();
  CHECK(uuid);
  if (!isDevice(device))
    return CUDA_ERROR_INVALID_DEVICE;
  std::memset(uuid, 0, sizeof *uuid);
  std::memcpy(uuid, "fake", 4);
  uuid->bytes[15] = char(device);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *id, int size, CUdevice device) {
  ENTER_ANY();
  CHECK(id && size > 12);
  if (!isDevice(device))
    return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(id, size, "0000:%02x:00.0", device + 1);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  ENTER_ANY();
  CHECK(bytes);
  if (!isDevice(device))
    return CUDA_ERROR_INVALID_DEVICE;
  *bytes = memoryLimit();
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute,
                                     CUdevice device) {
  ENTER_ANY();
  CHECK(value);
  if (!isDevice(device))
    return CUDA_ERROR_INVALID_DEVICE;
  int major, minor;
  capability(major, minor);
  switch (attribute) {
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
    *value = major;
    break;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
    *value = minor;
    break;
  case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
    *value = 132;
    break;
  case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
  case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
  case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
    *value = 1024;
    break;
  case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
    *value = 64;
    break;
  case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
    *value = 0x7fffffff;
    break;
  case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
  case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
    *value = 65535;
    break;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
    *value = defaultShared;
    break;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
    *value = maxShared;
    break;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
    *value = 233472;
    break;
  case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
    *value = 1024;
    break;
  case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
    *value = 32;
    break;
  case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
    *value = 2048;
    break;
  case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
    *value = 32;
    break;
  case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
  case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
    *value = 65536;
    break;
  case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
    *value = 1980000;
    break;
  case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
    *value = 2619000;
    break;
  case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
    *value = 5120;
    break;
  case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
    *value = 50 << 20;
    break;
  case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
    *value = 65536;
    break;
  case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
    *value = 3;
    break;
  case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
    *value = 512;
    break;
  case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
  case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
  case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
  case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
  case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    *value = 1;
    break;
  default:
    *value = 0;
  }
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice device,
                                      CUdevice peer) {
  ENTER_ANY();
  CHECK(can);
  if (!isDevice(device) || !isDevice(peer))
    return CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxEnablePeerAccess(CUcontext, unsigned) {
  ENTER();
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  ENTER_ANY();
  CHECK(context);
  if (!isDevice(device))
    return CUDA_ERROR_INVALID_DEVICE;
  Context &primary = s.primary[device];
  primary.device = device;
  primary.primary = true;
  ++primary.uses;
  s.contexts.insert(&primary);
  *context = reinterpret_cast<CUcontext>(&primary);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  ENTER_ANY();
  if (!isDevice(device))
    return CUDA_ERROR_INVALID_DEVICE;
  Context &primary = s.primary[device];
  if (primary.uses == 0)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (--primary.uses == 0)
    waitForDevice(device, lock);
  return CUDA_SUCCESS;
}

/// A context that was lost can be used again.
EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  ENTER_ANY();
  if (!isDevice(device))
    return CUDA_ERROR_INVALID_DEVICE;
  waitForDevice(device, lock);
  s.lost = CUDA_SUCCESS;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice, unsigned) {
  ENTER_ANY();
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags,
                                           int *active) {
  ENTER_ANY();
  CHECK(flags && active);
  *flags = 0;
  *active = s.primary[device].uses > 0;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *,
                               unsigned, CUdevice device) {
  ENTER_ANY();
  CHECK(context);
  if (!isDevice(device))
    return CUDA_ERROR_INVALID_DEVICE;
  auto *made = new Context;
  made->device = device;
  s.contexts.insert(made);
  contextStack.push_back(made);
  *context = reinterpret_cast<CUcontext>(made);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext handle) {
  ENTER_ANY();
  auto *context = checked<Context>(s.contexts, handle);
  if (!context || context->primary)
    return CUDA_ERROR_INVALID_CONTEXT;
  waitForDevice(context->device, lock);
  if (currentContext() == context)
    contextStack.pop_back();
  s.contexts.erase(context);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext handle) {
  ENTER_ANY();
  if (handle && !checked<Context>(s.contexts, handle))
    return CUDA_ERROR_INVALID_CONTEXT;
  if (!contextStack.empty())
    contextStack.pop_back();
  if (handle)
    contextStack.push_back(reinterpret_cast<Context *>(handle));
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *handle) {
  ENTER_ANY();
  CHECK(handle);
  *handle = reinterpret_cast<CUcontext>(currentContext());
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext handle) {
  ENTER_ANY();
  if (!checked<Context>(s.contexts, handle))
    return CUDA_ERROR_INVALID_CONTEXT;
  contextStack.push_back(reinterpret_cast<Context *>(handle));
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *handle) {
  ENTER_ANY();
  if (contextStack.empty())
    return CUDA_ERROR_INVALID_CONTEXT;
  if (handle)
    *handle = reinterpret_cast<CUcontext>(contextStack.back());
  contextStack.pop_back();
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
  ENTER();
  CHECK(device);
  *device = currentContext()->device;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  ENTER();
  if (least)
    *least = 0;
  if (greatest)
    *greatest = -5;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void) {
  ENTER();
  UNSAFE();
  waitForDevice(currentContext()->device, lock);
  return s.lost;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char **text) {
  CHECK(text);
  switch (error) {
#define NAME(CODE)                                                             \
  case CODE:                                                                   \
    *text = #CODE;                                                             \
    return CUDA_SUCCESS;
    NAME(CUDA_SUCCESS)
    NAME(CUDA_ERROR_INVALID_VALUE)
    NAME(CUDA_ERROR_OUT_OF_MEMORY)
    NAME(CUDA_ERROR_NOT_INITIALIZED)
    NAME(CUDA_ERROR_NO_DEVICE)
    NAME(CUDA_ERROR_INVALID_DEVICE)
    NAME(CUDA_ERROR_INVALID_IMAGE)
    NAME(CUDA_ERROR_INVALID_CONTEXT)
    NAME(CUDA_ERROR_NO_BINARY_FOR_GPU)
    NAME(CUDA_ERROR_INVALID_HANDLE)
    NAME(CUDA_ERROR_NOT_FOUND)
    NAME(CUDA_ERROR_NOT_READY)
    NAME(CUDA_ERROR_ILLEGAL_ADDRESS)
    NAME(CUDA_ERROR_LAUNCH_FAILED)
    NAME(CUDA_ERROR_NOT_SUPPORTED)
    NAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    NAME(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
    NAME(CUDA_ERROR_STREAM_CAPTURE_MERGE)
    NAME(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED)
    NAME(CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
    NAME(CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
    NAME(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
    NAME(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
    NAME(CUDA_ERROR_CAPTURED_EVENT)
    NAME(CUDA_ERROR_UNKNOWN)
#undef NAME
  default:
    *text = nullptr;
    return CUDA_ERROR_INVALID_VALUE;
  }
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text) {
  CUresult result = cuGetErrorName(error, text);
  if (result == CUDA_SUCCESS && !std::strncmp(*text, "CUDA_ERROR_", 11))
    *text += 11;
  return result;
}

/// What all functions are that no file here has (functions.cmake).
extern "C" int cleave_fake_missing();

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int,
                                    cuuint64_t,
                                    CUdriverProcAddressQueryResult *status) {
  CHECK(name && function);
  Dl_info info;
  dladdr(reinterpret_cast<void *>(cuInit), &info);
  void *self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  *function = nullptr;
  for (const char *version : {"_v4", "_v3", "_v2", ""})
    if (!*function && self) {
      *function = dlsym(self, (std::string(name) + version).c_str());
      if (*function == reinterpret_cast<void *>(cleave_fake_missing))
        *function = nullptr;
    }
  if (!*function && !std::strcmp(name, "cuGraphInstantiate"))
    *function = dlsym(self, "cuGraphInstantiateWithFlags");
  if (self)
    dlclose(self);
  if (status)
    *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS
                        : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
