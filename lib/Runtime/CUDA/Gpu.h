//===- Gpu.h - One GPU of the process ---------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_CUDA_GPU_H
#define CLEAVE_LIB_RUNTIME_CUDA_GPU_H

#include "Libraries/Driver.h"
#include "cleave/Executable/Cuda/CommandLaunches.h"
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace cleave::runtime::cuda {

/// A GPU with what one rank has there: its context, streams, memory and code.
/// All is released with it. Every call makes the context current first.
class Gpu {
public:
  /// Fails if the process sees no GPU of that number.
  static llvm::Expected<std::unique_ptr<Gpu>> open(int ordinal);
  ~Gpu();
  Gpu(const Gpu &) = delete;
  Gpu &operator=(const Gpu &) = delete;

  const std::string &getName() const { return name; }
  /// Such as 90 for sm_90.
  int getCapability() const { return capability; }
  /// Bytes that are free now.
  llvm::Expected<int64_t> freeBytes() const;
  /// Dynamic shared memory that a block can have.

  llvm::Error makeCurrent() const;
  /// Memory of the device, filled with zeros; 0 for no bytes.
  llvm::Expected<CUdeviceptr> allocate(int64_t bytes);
  /// Memory of the host that the device copies from and to, filled with zeros;
  /// null for no bytes.
  llvm::Expected<char *> allocateHost(int64_t bytes);
  llvm::Expected<CUevent> makeEvent();
  llvm::Expected<CUstream> makeStream();
  /// Tells the device from all others of all machines.
  llvm::Expected<std::string> getId() const;

  /// Copies after what `compute` has to do, and waits. Any memory of the host
  /// will do: what is copied goes through two pinned memories by turns, of
  /// which the host fills or empties one while the device copies the other.
  llvm::Error read(CUdeviceptr from, void *to, int64_t bytes);
  llvm::Error write(CUdeviceptr to, const void *from, int64_t bytes);
  llvm::Error zero(CUdeviceptr at, int64_t bytes) const;
  /// Waits for what `compute` has to do.
  llvm::Error finish() const { return finish(compute); }
  /// Waits for a stream; fails if `watch` does meanwhile.
  llvm::Error finish(CUstream stream) const;
  /// Likewise, for an event.
  llvm::Error finish(CUevent event) const;
  llvm::Error launch(CUfunction function, const Launch &launch,
                     CUstream stream) const;

  llvm::Error load(const void *image);
  /// A kernel of the loaded code, with leave to use `sharedBytes` of dynamic
  /// shared memory.
  llvm::Expected<CUfunction> find(const std::string &symbol, int sharedBytes);

  llvm::Error check(CUresult code, const llvm::Twine &what) const {
    return driver.check(code, what);
  }

  const Driver &driver;
  /// Where commands run, where the second tier is copied, and where collectives
  /// are.
  CUstream compute = nullptr, copies = nullptr, communication = nullptr;
  /// Called now and then while the host waits, if it is set.
  std::function<llvm::Error()> watch;

  /// Of each of the pinned memories of `read` and `write`.
  static constexpr int64_t kChunkBytes = int64_t(4) << 20;

private:
  /// Makes these memories, for the first copy.
  llvm::Error makeChunks();
  /// Until `query` returns another code than that it is not ready.
  llvm::Error poll(llvm::function_ref<CUresult()> query) const;
  explicit Gpu(const Driver &driver) : driver(driver) {}
  llvm::Error start(int ordinal);

  CUdevice device = 0;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  std::string name;
  int capability = 0, sharedBytes = 0;
  std::vector<CUdeviceptr> memory;
  std::vector<char *> hostMemory;
  std::vector<CUevent> events;
  std::vector<CUstream> streams;
  /// The pinned memories, and the ends of their last copies.
  char *chunks[2] = {};
  CUevent chunkEnds[2] = {};
  struct Function {
    CUfunction function = nullptr;
    /// The dynamic shared memory that it has leave for.
    int sharedBytes = 0;
  };
  std::map<std::string, Function> functions;
};

} // namespace cleave::runtime::cuda

#endif // CLEAVE_LIB_RUNTIME_CUDA_GPU_H
