//===- Gpu.cpp - One GPU of the process -----------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Gpu.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "llvm/ADT/SmallVector.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

using namespace cleave::runtime;
using namespace cleave::runtime::cuda;
using llvm::Error;
using llvm::Expected;

Error Gpu::start(int ordinal) {
  int count = 0;
  if (Error error = check(driver.cuDeviceGetCount(&count), "counting devices"))
    return error;
  if (ordinal >= count)
    return makeError("a rank needs GPU " + llvm::Twine(ordinal) +
                     ", but this process sees " + llvm::Twine(count) +
                     (count == 1 ? " GPU" : " GPUs") +
                     "; --ranks-per-device (ranks_per_device) lets ranks share "
                     "one");
  if (Error error = check(driver.cuDeviceGet(&device, ordinal), "a device"))
    return error;
  char text[256] = "";
  if (Error error =
          check(driver.cuDeviceGetName(text, sizeof text, device), "its name"))
    return error;
  name = text;
  int major = 0, minor = 0;
  for (auto [value, attribute] :
       {std::pair(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
        std::pair(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        std::pair(&sharedBytes,
                  CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)})
    if (Error error =
            check(driver.cuDeviceGetAttribute(value, attribute, device),
                  "an attribute of the device"))
      return error;
  capability = 10 * major + minor;
  if (Error error = check(driver.cuDevicePrimaryCtxRetain(&context, device),
                          "the context of " + name))
    return error;
  if (Error error = makeCurrent())
    return error;
  for (CUstream *stream : {&compute, &copies, &communication}) {
    Expected<CUstream> made = makeStream();
    if (!made)
      return made.takeError();
    *stream = *made;
  }
  return Error::success();
}

Expected<std::unique_ptr<Gpu>> Gpu::open(int ordinal) {
  Expected<const Driver *> driver = Driver::get();
  if (!driver)
    return driver.takeError();
  std::unique_ptr<Gpu> gpu(new Gpu(**driver));
  if (Error error = gpu->start(ordinal))
    return error;
  return gpu;
}

/// Errors of an abandoned context are of no use: its memory goes with it.
Gpu::~Gpu() {
  if (!context)
    return;
  (void)driver.cuCtxSetCurrent(context);
  for (CUstream stream : streams)
    (void)driver.cuStreamSynchronize(stream);
  for (CUstream stream : streams)
    (void)driver.cuStreamDestroy(stream);
  for (CUevent event : events)
    (void)driver.cuEventDestroy(event);
  if (module)
    (void)driver.cuModuleUnload(module);
  for (CUdeviceptr at : memory)
    (void)driver.cuMemFree(at);
  for (char *at : hostMemory)
    (void)driver.cuMemFreeHost(at);
  (void)driver.cuDevicePrimaryCtxRelease(device);
}

Error Gpu::makeCurrent() const {
  return check(driver.cuCtxSetCurrent(context), "the context of " + name);
}

Expected<int64_t> Gpu::freeBytes() const {
  size_t available = 0, total = 0;
  if (Error error = makeCurrent())
    return error;
  if (Error error =
          check(driver.cuMemGetInfo(&available, &total), "the free memory"))
    return error;
  return static_cast<int64_t>(available);
}

Expected<CUdeviceptr> Gpu::allocate(int64_t bytes) {
  CUdeviceptr at = 0;
  if (bytes == 0)
    return at;
  if (Error error = makeCurrent())
    return error;
  auto size = static_cast<size_t>(bytes);
  if (Error error = check(driver.cuMemAlloc(&at, size),
                          llvm::Twine(bytes) + " bytes of memory on " + name))
    return error;
  memory.push_back(at);
  if (Error error = zero(at, bytes))
    return error;
  return at;
}

Error Gpu::finish(CUstream stream) const {
  if (!watch)
    return check(driver.cuStreamSynchronize(stream), "waiting for " + name);
  return poll([&] { return driver.cuStreamQuery(stream); });
}

Error Gpu::finish(CUevent event) const {
  if (!watch)
    return check(driver.cuEventSynchronize(event), "waiting for " + name);
  return poll([&] { return driver.cuEventQuery(event); });
}

Error Gpu::poll(llvm::function_ref<CUresult()> query) const {
  constexpr int spins = 200, every = 16;
  for (int64_t turn = 0;; ++turn) {
    CUresult code = query();
    if (code != CUDA_ERROR_NOT_READY)
      return check(code, "waiting for " + name);
    if (turn < spins)
      continue;
    if (turn % every == 0)
      if (Error error = watch())
        return error;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

Error Gpu::launch(CUfunction function, const Launch &launch,
                  CUstream stream) const {
  llvm::SmallVector<void *, 32> parameters;
  for (uint32_t at : launch.offsets)
    parameters.push_back(const_cast<char *>(launch.parameters.data() + at));
  return check(driver.cuLaunchKernel(function, launch.grid[0], launch.grid[1],
                                     launch.grid[2], launch.block, 1, 1,
                                     launch.sharedBytes, stream,
                                     parameters.data(), nullptr),
               "launching a kernel");
}

Error Gpu::makeChunks() {
  if (Error error = makeCurrent())
    return error;
  for (int i = 0; i < 2 && !chunks[i]; ++i) {
    Expected<CUevent> event = makeEvent();
    if (!event)
      return event.takeError();
    Expected<char *> made = allocateHost(kChunkBytes);
    if (!made)
      return made.takeError();
    chunkEnds[i] = *event;
    chunks[i] = *made;
  }
  return Error::success();
}

Error Gpu::read(CUdeviceptr from, void *to, int64_t bytes) {
  if (bytes == 0)
    return Error::success();
  if (Error error = makeChunks())
    return error;
  auto sizeOf = [&](int64_t at) { return std::min(kChunkBytes, bytes - at); };
  int turn = 0;
  for (int64_t at = 0; at < bytes; at += kChunkBytes, turn = 1 - turn) {
    if (Error error =
            check(driver.cuMemcpyDtoHAsync(
                      chunks[turn], from + static_cast<CUdeviceptr>(at),
                      static_cast<size_t>(sizeOf(at)), compute),
                  "copying from " + name))
      return error;
    if (bytes > kChunkBytes)
      if (Error error =
              check(driver.cuEventRecord(chunkEnds[turn], compute), "an event"))
        return error;
    // The one before, while this one is copied.
    if (at == 0)
      continue;
    if (Error error = finish(chunkEnds[1 - turn]))
      return error;
    std::memcpy(static_cast<char *>(to) + at - kChunkBytes, chunks[1 - turn],
                static_cast<size_t>(kChunkBytes));
  }
  if (Error error = finish())
    return error;
  int64_t last = (bytes - 1) / kChunkBytes * kChunkBytes;
  std::memcpy(static_cast<char *>(to) + last, chunks[1 - turn],
              static_cast<size_t>(sizeOf(last)));
  return Error::success();
}

Error Gpu::write(CUdeviceptr to, const void *from, int64_t bytes) {
  if (bytes == 0)
    return Error::success();
  if (Error error = makeChunks())
    return error;
  int turn = 0;
  for (int64_t at = 0; at < bytes; at += kChunkBytes, turn = 1 - turn) {
    auto size = static_cast<size_t>(std::min(kChunkBytes, bytes - at));
    if (at >= 2 * kChunkBytes)
      if (Error error = finish(chunkEnds[turn]))
        return error;
    std::memcpy(chunks[turn], static_cast<const char *>(from) + at, size);
    if (Error error =
            check(driver.cuMemcpyHtoDAsync(to + static_cast<CUdeviceptr>(at),
                                           chunks[turn], size, compute),
                  "copying to " + name))
      return error;
    if (bytes > kChunkBytes)
      if (Error error =
              check(driver.cuEventRecord(chunkEnds[turn], compute), "an event"))
        return error;
  }
  return finish();
}

Error Gpu::zero(CUdeviceptr at, int64_t bytes) const {
  if (bytes == 0)
    return Error::success();
  if (Error error = makeCurrent())
    return error;
  if (Error error = check(
          driver.cuMemsetD8Async(at, 0, static_cast<size_t>(bytes), compute),
          "clearing memory of " + name))
    return error;
  return finish();
}

Expected<char *> Gpu::allocateHost(int64_t bytes) {
  void *at = nullptr;
  if (bytes == 0)
    return nullptr;
  if (Error error = makeCurrent())
    return error;
  if (Error error =
          check(driver.cuMemHostAlloc(&at, static_cast<size_t>(bytes), 0),
                llvm::Twine(bytes) + " bytes of pinned memory of the host"))
    return error;
  hostMemory.push_back(static_cast<char *>(at));
  std::memset(at, 0, static_cast<size_t>(bytes));
  return static_cast<char *>(at);
}

Expected<CUevent> Gpu::makeEvent() {
  CUevent event = nullptr;
  if (Error error =
          check(driver.cuEventCreate(&event, CU_EVENT_DEFAULT), "an event"))
    return error;
  events.push_back(event);
  return event;
}

Expected<CUstream> Gpu::makeStream() {
  CUstream stream = nullptr;
  if (Error error = check(
          driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "a stream"))
    return error;
  streams.push_back(stream);
  return stream;
}

Expected<std::string> Gpu::getId() const {
  CUuuid id{};
  if (Error error = check(driver.cuDeviceGetUuid(&id, device), "its identity"))
    return error;
  return std::string(id.bytes, sizeof id.bytes);
}

Error Gpu::load(const void *image) {
  if (Error error = makeCurrent())
    return error;
  return check(driver.cuModuleLoadData(&module, image),
               "loading the kernels on " + name);
}

Expected<CUfunction> Gpu::find(const std::string &symbol, int shared) {
  if (shared > sharedBytes)
    return makeError("kernel '" + symbol + "' needs " + llvm::Twine(shared) +
                     " bytes of shared memory, and a block of " + name +
                     " has " + llvm::Twine(sharedBytes));
  Function &found = functions[symbol];
  if (!found.function)
    if (Error error = check(
            driver.cuModuleGetFunction(&found.function, module, symbol.c_str()),
            "kernel '" + symbol + "'"))
      return error;
  // Of 48 KiB that need no leave, the kernel's own arrays take a part.
  if (shared > found.sharedBytes) {
    if (Error error =
            check(driver.cuFuncSetAttribute(
                      found.function,
                      CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared),
                  "shared memory of kernel '" + symbol + "'"))
      return error;
    found.sharedBytes = shared;
  }
  return found.function;
}
