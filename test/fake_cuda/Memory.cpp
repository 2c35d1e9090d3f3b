//===- Memory.cpp - Memory of the fake device -----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Driver.h"
#include <sys/mman.h>
#include <unistd.h>

namespace fake {

std::string hex(uint64_t value) {
  char text[32];
  std::snprintf(text, sizeof text, "%#llx",
                static_cast<unsigned long long>(value));
  return text;
}

Allocation *find(std::map<uint64_t, Allocation> &all, uint64_t address) {
  auto it = all.upper_bound(address);
  if (it == all.begin())
    return nullptr;
  --it;
  return address < it->second.end ? &it->second : nullptr;
}

bool inRegion(uint64_t device) {
  State &s = state();
  return device >= s.region + deviceOffset &&
         device < s.regionEnd + deviceOffset && s.region;
}
/// The allocation of an address of the device.
Allocation *findDevice(uint64_t device) {
  return inRegion(device) ? find(state().allocations, device - deviceOffset)
                          : nullptr;
}
bool isDeviceRange(uint64_t device, size_t bytes) {
  Allocation *found = findDevice(device);
  return found && bytes <= found->end - (device - deviceOffset);
}
bool isPinned(const void *host, size_t bytes) {
  auto at = reinterpret_cast<uint64_t>(host);
  Allocation *found = find(state().pinned, at);
  return found && bytes <= found->end - at;
}

void checkSlack(const Allocation &allocation, const char *name) {
  auto touched = [](uint64_t begin, uint64_t end) {
    for (uint64_t at = begin; at < end; ++at)
      if (*reinterpret_cast<unsigned char *>(at) != slack)
        return true;
    return false;
  };
  if (touched(allocation.end, allocation.mappedEnd))
    die(std::string(name) + ": wrote behind a buffer");
  if (touched(std::max(allocation.mapped, allocation.begin - 64),
              allocation.begin))
    die(std::string(name) + ": wrote before a buffer");
}

bool reserveRegion() {
  State &s = state();
  if (s.region)
    return true;
  for (uint64_t size = 1ull << 43; size >= 1ull << 32; size >>= 1) {
    void *at = mmap(nullptr, size, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at != MAP_FAILED) {
      s.region = s.regionAt = reinterpret_cast<uint64_t>(at);
      s.regionEnd = s.region + size;
      return true;
    }
  }
  return false;
}

/// Where `bytes` of the region, whole pages, are free. Addresses are used again
/// only when all have been used.
uint64_t takeAddress(uint64_t bytes) {
  State &s = state();
  uint64_t need = bytes + 2 * page;
  if (s.regionEnd - s.regionAt >= need) {
    uint64_t at = s.regionAt + page;
    s.regionAt += need;
    return at;
  }
  uint64_t at = s.region;
  for (const auto &[begin, allocation] : s.allocations) {
    if (allocation.mapped - at >= need && allocation.mapped > at)
      return at + page;
    at = allocation.mappedEnd;
  }
  return s.regionEnd - at >= need ? at + page : 0;
}

/// Fills fresh memory. Large memory is mapped to a file of such bytes, so that
/// what is not used takes none.
bool mapFresh(uint64_t at, uint64_t bytes) {
  constexpr uint64_t chunk = 16 << 20;
  State &s = state();
  if (bytes >= chunk && s.poison < 0) {
    s.poison = memfd_create("cleave-fake-fresh", MFD_CLOEXEC);
    std::vector<char> ones(chunk, char(fresh));
    if (s.poison >= 0 &&
        write(s.poison, ones.data(), chunk) != ssize_t(chunk)) {
      close(s.poison);
      s.poison = -1;
    }
  }
  if (bytes >= chunk && s.poison >= 0) {
    for (uint64_t i = 0; i < bytes; i += chunk)
      if (mmap(reinterpret_cast<void *>(at + i), std::min(chunk, bytes - i),
               PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, s.poison,
               0) == MAP_FAILED)
        return false;
    return true;
  }
  void *memory =
      mmap(reinterpret_cast<void *>(at), bytes, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  if (memory == MAP_FAILED)
    return false;
  std::memset(memory, fresh, bytes);
  return true;
}

void unmap(const Allocation &allocation) {
  mmap(reinterpret_cast<void *>(allocation.mapped),
       allocation.mappedEnd - allocation.mapped, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

uint64_t memoryLimit() {
  const char *text = environment("CLEAVE_FAKE_MEMORY");
  return text ? std::strtoull(text, nullptr, 10) : 1ull << 30;
}

CUresult allocate(int device, size_t bytes, CUdeviceptr *result) {
  State &s = state();
  if (!bytes)
    return CUDA_ERROR_INVALID_VALUE;
  if (bytes > memoryLimit() || s.used[device] + bytes > memoryLimit() ||
      !reserveRegion())
    return CUDA_ERROR_OUT_OF_MEMORY;
  uint64_t rounded = (bytes + 255) / 256 * 256;
  uint64_t pages = (rounded + page - 1) / page * page;
  uint64_t at = takeAddress(pages);
  if (!at || !mapFresh(at, pages))
    return CUDA_ERROR_OUT_OF_MEMORY;
  Allocation allocation;
  allocation.mapped = at;
  allocation.mappedEnd = at + pages;
  allocation.begin = at + pages - rounded;
  allocation.end = allocation.begin + bytes;
  allocation.device = device;
  std::memset(reinterpret_cast<void *>(allocation.mapped), slack,
              allocation.begin - allocation.mapped);
  std::memset(reinterpret_cast<void *>(allocation.end), slack,
              allocation.mappedEnd - allocation.end);
  s.used[device] += bytes;
  s.allocations[allocation.begin] = allocation;
  *result = allocation.begin + deviceOffset;
  return CUDA_SUCCESS;
}

CUresult release(CUdeviceptr device) {
  State &s = state();
  Allocation *found = findDevice(device);
  if (!found || found->begin + deviceOffset != device)
    return CUDA_ERROR_INVALID_VALUE;
  checkSlack(*found, "(some)");
  s.used[found->device] -= found->end - found->begin;
  unmap(*found);
  s.allocations.erase(found->begin);
  return CUDA_SUCCESS;
}

struct Place {
  uint64_t address;
  bool device;
};

std::string range(const Place &place, size_t bytes) {
  return hex(place.address) + "+" + std::to_string(bytes);
}

/// A copy of any kind. Places of the host are as given.
CUresult copy(Stream *stream, Lock &lock, Place to, Place from, size_t bytes,
              bool sync) {
  if (!bytes)
    return CUDA_SUCCESS;
  for (const Place &place : {to, from})
    if (place.device ? !isDeviceRange(place.address, bytes) : !place.address)
      return CUDA_ERROR_INVALID_VALUE;
  bool staged = !from.device && !stream->capture &&
                !isPinned(reinterpret_cast<void *>(from.address), bytes);
  std::shared_ptr<std::vector<char>> stage;
  if (staged) {
    auto *source = reinterpret_cast<const char *>(from.address);
    stage = std::make_shared<std::vector<char>>(source, source + bytes);
  }
  if (!to.device && !stream->capture &&
      !isPinned(reinterpret_cast<void *>(to.address), bytes))
    sync = true;
  Action action;
  action.text = std::string("kind=copy-") + (from.device ? "d" : "h") + "to" +
                (to.device ? "d" : "h") + " bytes=" + std::to_string(bytes) +
                " to=" + range(to, bytes) + " from=" + range(from, bytes);
  action.run = [=](Lock &) {
    for (const Place &place : {to, from})
      if (place.device && !isDeviceRange(place.address, bytes)) {
        std::fprintf(stderr, "a copy of memory that was freed\n");
        return CUDA_ERROR_ILLEGAL_ADDRESS;
      }
    auto host = [](const Place &place) {
      return reinterpret_cast<char *>(place.address -
                                      (place.device ? deviceOffset : 0));
    };
    std::memmove(host(to), stage ? stage->data() : host(from), bytes);
    return CUDA_SUCCESS;
  };
  OpPtr op;
  CUresult result = submit(stream, lock, std::move(action), &op);
  if (result != CUDA_SUCCESS)
    return result;
  if (sync)
    waitFor(op, lock);
  return state().lost;
}

Place onDevice(CUdeviceptr address) { return {address, true}; }
Place onHost(const void *address) {
  return {reinterpret_cast<uint64_t>(address), false};
}
Place anywhere(CUdeviceptr address) { return {address, inRegion(address)}; }

template <class T>
CUresult fill(Stream *stream, Lock &lock, CUdeviceptr to, T value,
              size_t count) {
  if (to % sizeof(T))
    return CUDA_ERROR_INVALID_VALUE;
  if (!count)
    return CUDA_SUCCESS;
  if (!isDeviceRange(to, count * sizeof(T)))
    return CUDA_ERROR_INVALID_VALUE;
  Action action;
  size_t bytes = count * sizeof(T);
  action.text = "kind=set bytes=" + std::to_string(bytes) +
                " to=" + range(onDevice(to), bytes);
  action.run = [=](Lock &) {
    if (!isDeviceRange(to, bytes))
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    std::fill_n(reinterpret_cast<T *>(to - deviceOffset), count, value);
    return CUDA_SUCCESS;
  };
  return submit(stream, lock, std::move(action));
}

} // namespace fake

using namespace fake;

EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
  ENTER();
  CHECK(free && total);
  *total = memoryLimit();
  size_t used = s.used[currentContext()->device];
  *free = *total - std::min(*total, used);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *result, size_t bytes) {
  ENTER();
  CHECK(result);
  UNSAFE();
  return allocate(currentContext()->device, bytes, result);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr device) {
  ENTER();
  UNSAFE();
  // As the driver does, in effect.
  waitForDevice(currentContext()->device, lock);
  return release(device);
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *result, size_t bytes,
                                CUstream handle) {
  ENTER_STREAM(handle);
  CHECK(result);
  if (stream->capture)
    return CUDA_ERROR_NOT_SUPPORTED;
  return allocate(stream->device, bytes, result);
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr device, CUstream handle) {
  ENTER_STREAM(handle);
  if (stream->capture)
    return CUDA_ERROR_NOT_SUPPORTED;
  Allocation *found = findDevice(device);
  CHECK(found && found->begin + deviceOffset == device);
  Action action;
  action.text = "kind=free to=" + hex(device);
  action.run = [=](Lock &) { return release(device); };
  return submit(stream, lock, std::move(action));
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes,
                                        CUdeviceptr device) {
  ENTER();
  Allocation *found = findDevice(device);
  if (!found)
    return CUDA_ERROR_NOT_FOUND;
  if (base)
    *base = found->begin + deviceOffset;
  if (bytes)
    *bytes = found->end - found->begin;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostAlloc(void **result, size_t bytes, unsigned) {
  ENTER();
  CHECK(result && bytes);
  UNSAFE();
  size_t rounded = (bytes + 63) / 64 * 64;
  size_t pages = (rounded + page - 1) / page * page;
  void *memory = mmap(nullptr, pages + 2 * page, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  Allocation allocation;
  allocation.mapped = reinterpret_cast<uint64_t>(memory) + page;
  allocation.mappedEnd = allocation.mapped + pages;
  if (!mapFresh(allocation.mapped, pages))
    return CUDA_ERROR_OUT_OF_MEMORY;
  allocation.begin = allocation.mappedEnd - rounded;
  allocation.end = allocation.begin + bytes;
  s.pinned[allocation.begin] = allocation;
  *result = reinterpret_cast<void *>(allocation.begin);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAllocHost_v2(void **result, size_t bytes) {
  return cuMemHostAlloc(result, bytes, 0);
}

EXPORT CUresult cuMemFreeHost(void *host) {
  ENTER();
  UNSAFE();
  auto it = s.pinned.find(reinterpret_cast<uint64_t>(host));
  CHECK(it != s.pinned.end() && it->second.mapped);
  waitForDevice(currentContext()->device, lock);
  it = s.pinned.find(reinterpret_cast<uint64_t>(host));
  CHECK(it != s.pinned.end());
  Allocation allocation = it->second;
  s.pinned.erase(it);
  munmap(reinterpret_cast<void *>(allocation.mapped - page),
         allocation.mappedEnd - allocation.mapped + 2 * page);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostRegister_v2(void *host, size_t bytes, unsigned) {
  ENTER();
  CHECK(host && bytes);
  Allocation allocation;
  allocation.begin = reinterpret_cast<uint64_t>(host);
  allocation.end = allocation.begin + bytes;
  if (find(s.pinned, allocation.begin))
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  s.pinned[allocation.begin] = allocation;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostUnregister(void *host) {
  ENTER();
  auto it = s.pinned.find(reinterpret_cast<uint64_t>(host));
  if (it == s.pinned.end() || it->second.mapped)
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  waitForDevice(currentContext()->device, lock);
  s.pinned.erase(reinterpret_cast<uint64_t>(host));
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *host,
                                             unsigned) {
  ENTER();
  CHECK(device && isPinned(host, 1));
  *device = reinterpret_cast<CUdeviceptr>(host);
  return CUDA_SUCCESS;
}

#define COPY(TO, FROM, SYNC) return copy(stream, lock, TO, FROM, bytes, SYNC)

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from,
                                size_t bytes) {
  ENTER_STREAM(nullptr);
  UNSAFE();
  COPY(onDevice(to), onHost(from), true);
}
EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
  ENTER_STREAM(nullptr);
  UNSAFE();
  COPY(onHost(to), onDevice(from), true);
}
EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from,
                                size_t bytes) {
  ENTER_STREAM(nullptr);
  UNSAFE();
  COPY(onDevice(to), onDevice(from), false);
}
EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  ENTER_STREAM(nullptr);
  UNSAFE();
  COPY(anywhere(to), anywhere(from), !inRegion(to) || !inRegion(from));
}
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from,
                                     size_t bytes, CUstream handle) {
  ENTER_STREAM(handle);
  COPY(onDevice(to), onHost(from), false);
}
EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes,
                                     CUstream handle) {
  ENTER_STREAM(handle);
  COPY(onHost(to), onDevice(from), false);
}
EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from,
                                     size_t bytes, CUstream handle) {
  ENTER_STREAM(handle);
  COPY(onDevice(to), onDevice(from), false);
}
EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                              CUstream handle) {
  ENTER_STREAM(handle);
  COPY(anywhere(to), anywhere(from), false);
}
EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from,
                                  CUcontext, size_t bytes, CUstream handle) {
  ENTER_STREAM(handle);
  COPY(onDevice(to), onDevice(from), false);
}

EXPORT CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value,
                              size_t count) {
  ENTER_STREAM(nullptr);
  return fill(stream, lock, to, value, count);
}
EXPORT CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value,
                               size_t count) {
  ENTER_STREAM(nullptr);
  return fill(stream, lock, to, value, count);
}
EXPORT CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
  ENTER_STREAM(nullptr);
  return fill(stream, lock, to, value, count);
}
EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value,
                                size_t count, CUstream handle) {
  ENTER_STREAM(handle);
  return fill(stream, lock, to, value, count);
}
EXPORT CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value,
                                 size_t count, CUstream handle) {
  ENTER_STREAM(handle);
  return fill(stream, lock, to, value, count);
}
EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count,
                                 CUstream handle) {
  ENTER_STREAM(handle);
  return fill(stream, lock, to, value, count);
}
