//===- Kernels.cpp - Modules, launches and hooks --------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Driver.h"
#include <csignal>
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

namespace fake {

struct sigaction previousAction;

/// Says which kernel touched what it may not; others' faults are others'.
void onFault(int number, siginfo_t *info, void *context) {
  if (runningName) {
    uint64_t at = reinterpret_cast<uint64_t>(info->si_addr);
    State &s = state();
    bool device = at >= s.region && at < s.regionEnd;
    char text[256];
    int n = std::snprintf(
        text, sizeof text,
        "emulated kernel %s: touches memory outside of any buffer at %s%#llx\n",
        runningName, device ? "device address " : "",
        static_cast<unsigned long long>(device ? at + deviceOffset : at));
    [[maybe_unused]] ssize_t written = write(2, text, n);
    std::signal(SIGABRT, SIG_DFL);
    std::abort();
  }
  if (previousAction.sa_flags & SA_SIGINFO)
    return previousAction.sa_sigaction(number, info, context);
  if (previousAction.sa_handler != SIG_DFL &&
      previousAction.sa_handler != SIG_IGN)
    return previousAction.sa_handler(number);
  std::signal(number, SIG_DFL);
}

void installHandler() {
  struct sigaction now;
  sigaction(SIGSEGV, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == onFault)
    return;
  struct sigaction action = {};
  action.sa_sigaction = onFault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, &previousAction);
}

struct Parameters {
  std::vector<size_t> offsets;
  std::vector<uint64_t> words;
};

/// What a fault adds to an address of a kernel.
struct Offset {
  uint64_t first = 0, last = 0;
};

/// Translates the addresses among the parameters of a kernel. Says and returns
/// false if one is of no allocation.
bool translate(const Function &function, Parameters &parameters,
               std::vector<Allocation> *used, Offset offset) {
  State &s = state();
  uint64_t *last = nullptr;
  for (unsigned i = 0; i < function.parameters; ++i) {
    size_t begin = parameters.offsets[i];
    for (size_t at = 0; at + 8 <= function.sizes[i]; at += 8) {
      uint64_t &word = parameters.words[(begin + at) / 8];
      bool pointer = function.pointers[i];
      if (!pointer && !inRegion(word))
        continue;
      if (!word)
        continue;
      Allocation *found = findDevice(word);
      if (!found) {
        if (find(s.pinned, word))
          continue;
        std::fprintf(stderr,
                     "emulated kernel %s: parameter %u is no address in any "
                     "buffer: %s\n",
                     function.name.c_str(), i, hex(word).c_str());
        return false;
      }
      if (used)
        used->push_back(*found);
      word = word - deviceOffset + offset.first;
      offset.first = 0;
      last = &word;
    }
  }
  if (last)
    *last += offset.last;
  return true;
}

CUresult runKernel(Function *function, Parameters parameters, unsigned gridX,
                   unsigned gridY, unsigned gridZ, unsigned block,
                   unsigned shared, Offset offset, Lock &lock) {
  std::vector<Allocation> used;
  if (!translate(*function, parameters, &used, offset))
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  std::vector<void *> pointers;
  for (size_t at : parameters.offsets)
    pointers.push_back(parameters.words.data() + at / 8);
  installHandler();
  lock.unlock();
  {
    std::lock_guard<std::mutex> one(function->module->running);
    runningName = function->name.c_str();
    function->run(gridX, gridY, gridZ, block, shared, pointers.data());
    runningName = nullptr;
  }
  lock.lock();
  for (const Allocation &allocation : used)
    if (state().allocations.count(allocation.begin))
      checkSlack(allocation, function->name.c_str());
  return CUDA_SUCCESS;
}

size_t imageBytes(const void *image) {
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof header);
  return header.e_shoff + size_t(header.e_shnum) * header.e_shentsize;
}

template <class T> T symbol(void *library, const std::string &name) {
  return reinterpret_cast<T>(dlsym(library, name.c_str()));
}

/// The library in PTX of the fake NVRTC, whose last line has it; empty if it
/// is other text.
std::string assemble(const char *ptx) {
  const char *line = std::strstr(ptx, "\n// ");
  std::string library;
  if (std::strncmp(ptx, "// fake\n", 8) || !line)
    return library;
  auto digit = [](char c) { return c >= 'a' ? c - 'a' + 10 : c - '0'; };
  for (line += 4; line[0] > ' ' && line[1] > ' '; line += 2)
    library.push_back(static_cast<char>(digit(line[0]) << 4 | digit(line[1])));
  return library;
}

CUresult loadModule(CUmodule *module, const void *image) {
  State &s = state();
  if (!module || !image)
    return CUDA_ERROR_INVALID_VALUE;
  std::string assembled;
  if (std::memcmp(image, ELFMAG, SELFMAG)) {
    assembled = assemble(static_cast<const char *>(image));
    image = assembled.data();
    if (assembled.size() < sizeof(Elf64_Ehdr) ||
        std::memcmp(image, ELFMAG, SELFMAG))
      return CUDA_ERROR_INVALID_IMAGE;
  }
  int file = memfd_create("cleave-fake-module", MFD_CLOEXEC);
  size_t bytes = imageBytes(image);
  auto *from = static_cast<const char *>(image);
  for (size_t at = 0; at < bytes;) {
    ssize_t n = write(file, from + at, bytes - at);
    if (n <= 0) {
      close(file);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    at += n;
  }
  std::string path = "/proc/self/fd/" + std::to_string(file);
  void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  const int *architecture =
      library ? symbol<const int *>(library, "cleave_host_architecture")
              : nullptr;
  if (!architecture) {
    if (library)
      dlclose(library);
    close(file);
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  int major, minor;
  capability(major, minor);
  bool runs = assembled.empty()
                  ? *architecture / 10 == major && *architecture % 10 <= minor
                  : *architecture <= 10 * major + minor;
  if (!runs) {
    dlclose(library);
    close(file);
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  auto *made = new Module;
  made->library = library;
  // Open until it is unloaded: the name of a library that is loaded must not
  // be that of another.
  made->file = file;
  s.modules.insert(made);
  *module = reinterpret_cast<CUmodule>(made);
  return CUDA_SUCCESS;
}

} // namespace fake

using namespace fake;

/// Where an address of the device is in the host's memory; null if nowhere.
EXPORT void *cleave_fake_host(uint64_t device) {
  Lock lock(state().mutex);
  return findDevice(device) ? reinterpret_cast<void *>(device - deviceOffset)
                            : nullptr;
}

/// The bytes from an address of the device to the end of its allocation.
EXPORT uint64_t cleave_fake_room(uint64_t device) {
  Lock lock(state().mutex);
  Allocation *found = findDevice(device);
  return found ? found->end - (device - deviceOffset) : 0;
}

/// Appends `run(data)` to a stream; `drop(data)` follows the last run, which in
/// a graph may be none. `text` is for the record, as "gemm m=8", and for the
/// message of a fault. `ready(data)`, where given, keeps the op from its turn
/// until it holds; it is called with the driver locked.
EXPORT int cleave_fake_enqueue_op(void *handle, const char *text,
                                  bool (*ready)(void *), void (*run)(void *),
                                  void *data, void (*drop)(void *)) {
  std::shared_ptr<void> kept(data, [drop](void *data) {
    if (drop)
      drop(data);
  });
  ENTER_STREAM(handle);
  uint64_t count = countCall("call");
  if (isFault("skip-call", count))
    return CUDA_SUCCESS;
  if (isFault("swap-call", count))
    stream = otherStream(stream);
  Action action;
  action.text = std::string("kind=call name=") + text;
  if (ready)
    action.ready = [=] { return ready(kept.get()); };
  action.run = [kept, run, name = std::string(text)](Lock &lock) {
    installHandler();
    lock.unlock();
    runningName = name.c_str();
    run(kept.get());
    runningName = nullptr;
    lock.lock();
    return CUDA_SUCCESS;
  };
  return submit(stream, lock, std::move(action));
}

EXPORT int cleave_fake_enqueue(void *stream, void (*run)(void *), void *data,
                               void (*drop)(void *)) {
  return cleave_fake_enqueue_op(stream, "unnamed", nullptr, run, data, drop);
}

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  ENTER();
  return loadModule(module, image);
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image,
                                   unsigned, CUjit_option *, void **) {
  ENTER();
  return loadModule(module, image);
}

EXPORT CUresult cuModuleUnload(CUmodule handle) {
  ENTER();
  auto *module = checked<Module>(s.modules, handle);
  if (!module)
    return CUDA_ERROR_INVALID_HANDLE;
  waitForDevice(currentContext()->device, lock);
  for (auto &[name, function] : module->functions) {
    s.functions.erase(function);
    delete function;
  }
  s.modules.erase(module);
  dlclose(module->library);
  close(module->file);
  delete module;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *result, CUmodule handle,
                                    const char *name) {
  ENTER();
  CHECK(result && name);
  auto *module = checked<Module>(s.modules, handle);
  if (!module)
    return CUDA_ERROR_INVALID_HANDLE;
  Function *&function = module->functions[name];
  if (!function) {
    auto named = [&](const char *what) {
      return "cleave_host_" + std::string(what) + name;
    };
    void *library = module->library;
    auto *run = symbol<decltype(Function::run)>(library, named(""));
    if (!run) {
      module->functions.erase(name);
      return CUDA_ERROR_NOT_FOUND;
    }
    function = new Function;
    function->name = name;
    function->module = module;
    function->run = run;
    function->parameters =
        *symbol<const unsigned *>(library, named("parameters_"));
    function->threads = *symbol<const unsigned *>(library, named("threads_"));
    function->sizes =
        *symbol<const unsigned *const *>(library, named("sizes_"));
    function->pointers =
        *symbol<const unsigned char *const *>(library, named("pointers_"));
    s.functions.insert(function);
  }
  *result = reinterpret_cast<CUfunction>(function);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunctionCount(unsigned *count, CUmodule handle) {
  ENTER();
  auto *module = checked<Module>(s.modules, handle);
  if (!module)
    return CUDA_ERROR_INVALID_HANDLE;
  *count = module->functions.size();
  return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute,
                                   CUfunction handle) {
  ENTER();
  CHECK(value);
  auto *function = checked<Function>(s.functions, handle);
  if (!function)
    return CUDA_ERROR_INVALID_HANDLE;
  int major, minor;
  capability(major, minor);
  switch (attribute) {
  case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    *value = function->threads;
    break;
  case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
    *value = function->maxDynamicShared;
    break;
  case CU_FUNC_ATTRIBUTE_NUM_REGS:
    *value = 32;
    break;
  case CU_FUNC_ATTRIBUTE_PTX_VERSION:
  case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
    *value = major * 10 + minor;
    break;
  default:
    *value = 0;
  }
  return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncSetAttribute(CUfunction handle,
                                   CUfunction_attribute attribute, int value) {
  ENTER();
  auto *function = checked<Function>(s.functions, handle);
  if (!function)
    return CUDA_ERROR_INVALID_HANDLE;
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
    CHECK(value >= 0 && value <= maxShared);
    function->maxDynamicShared = value;
    return CUDA_SUCCESS;
  }
  CHECK(attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count,
                                                            CUfunction handle,
                                                            int threads,
                                                            size_t shared) {
  ENTER();
  CHECK(count && threads > 0);
  auto *function = checked<Function>(s.functions, handle);
  if (!function)
    return CUDA_ERROR_INVALID_HANDLE;
  if (threads > int(function->threads) || shared > size_t(maxShared)) {
    *count = 0;
    return CUDA_SUCCESS;
  }
  *count = std::min<int>(
      {2048 / ((threads + 31) / 32 * 32), int(233472 / (shared + 1024)), 32});
  return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchKernel(CUfunction handle, unsigned gridX,
                               unsigned gridY, unsigned gridZ, unsigned blockX,
                               unsigned blockY, unsigned blockZ,
                               unsigned shared, CUstream streamHandle,
                               void **from, void **extra) {
  ENTER_STREAM(streamHandle);
  auto *function = checked<Function>(s.functions, handle);
  if (!function)
    return CUDA_ERROR_INVALID_HANDLE;
  CHECK(gridX && gridY && gridZ && gridX <= 0x7fffffff && gridY <= 65535 &&
        gridZ <= 65535);
  CHECK(blockX && blockY && blockZ &&
        uint64_t(blockX) * blockY * blockZ <= 1024);
  CHECK(blockX * blockY * blockZ <= function->threads);
  CHECK(int(shared) >= 0 && int(shared) <= function->maxDynamicShared);
  CHECK(!extra && (from || !function->parameters));
  if (blockY * blockZ != 1) {
    std::fprintf(stderr,
                 "emulated kernel %s: blocks of more than one dimension"
                 " are not emulated\n",
                 function->name.c_str());
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  uint64_t count = countCall("launch");
  if (isFault("skip", count))
    return CUDA_SUCCESS;
  if (isFault("refuse-launch", count))
    return CUDA_ERROR_LAUNCH_FAILED;
  if (isFault("swap-stream", count))
    stream = otherStream(stream);
  if (isFault("grid", count)) {
    if (gridX > 1)
      --gridX;
    else if (gridY > 1)
      --gridY;
    else if (gridZ > 1)
      --gridZ;
    else
      return CUDA_SUCCESS;
  }
  Offset offset;
  offset.first = isFault("offset", count) ? 16 : 0;
  offset.last = isFault("offset-last", count) ? 16 : 0;

  Parameters parameters;
  size_t bytes = 0;
  for (unsigned i = 0; i < function->parameters; ++i) {
    CHECK(from[i]);
    parameters.offsets.push_back(bytes);
    bytes += (function->sizes[i] + 63) / 64 * 64;
  }
  // As memory of the heap is, parameters are aligned to 16 bytes.
  parameters.words.resize(bytes / 8 + 8);
  for (unsigned i = 0; i < function->parameters; ++i)
    std::memcpy(parameters.words.data() + parameters.offsets[i] / 8, from[i],
                function->sizes[i]);
  Parameters tried = parameters;
  if (!translate(*function, tried, nullptr, {}))
    return CUDA_ERROR_ILLEGAL_ADDRESS;

  Action action;
  auto text = [](unsigned n) { return std::to_string(n); };
  action.text = "kind=launch name=" + function->name + " grid=" + text(gridX) +
                "," + text(gridY) + "," + text(gridZ) +
                " block=" + text(blockX) + " shared=" + text(shared);
  action.run = [=](Lock &lock) {
    return runKernel(function, parameters, gridX, gridY, gridZ, blockX, shared,
                     offset, lock);
  };
  return submit(stream, lock, std::move(action));
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config,
                                 CUfunction function, void **parameters,
                                 void **extra) {
  CHECK(config);
  return cuLaunchKernel(function, config->gridDimX, config->gridDimY,
                        config->gridDimZ, config->blockDimX, config->blockDimY,
                        config->blockDimZ, config->sharedMemBytes,
                        config->hStream, parameters, extra);
}

EXPORT CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function,
                                 void *data) {
  ENTER_STREAM(handle);
  CHECK(function);
  Action action;
  action.text = "kind=host";
  action.run = [=](Lock &lock) {
    lock.unlock();
    function(data);
    lock.lock();
    return CUDA_SUCCESS;
  };
  return submit(stream, lock, std::move(action));
}
