//===- Cudnn.h - Fused attention by cuDNN -----------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_CUDA_LIBRARIES_CUDNN_H
#define CLEAVE_LIB_RUNTIME_CUDA_LIBRARIES_CUDNN_H

#include "CudnnGraph.h"
#include "Driver.h"
#include "llvm/ADT/STLFunctionalExtras.h"

#include <map>
#include <string>
#include <vector>

namespace cleave::runtime::cuda {

class Cudnn;

/// An attention command that cuDNN runs, with its operands: one call or, where
/// memory is bounded, several.
class CudnnAttention {
public:
  llvm::Error run() const;
  /// Bytes of workspace that a call needs.
  int64_t bytes() const { return graph->bytes; }

private:
  friend class Cudnn;

  const Cudnn *library = nullptr;
  std::shared_ptr<const CudnnGraph> graph;
  std::vector<CudnnOperands> calls;
};

/// cuDNN on one device. Its calls are on one stream.
class Cudnn {
public:
  /// Whether CLEAVE_CUDNN allows it ("off" and "0" do not), and whether it must
  /// run what is planned for it ("required").
  static bool isOff();
  static bool isRequired();

  /// Opens the library for the current context; `capability` is that of the
  /// device, such as 90. Fails where it is missing, is too old, or where Cleave
  /// was built without its headers.
  static llvm::Expected<std::unique_ptr<Cudnn>> open(CUstream stream,
                                                     int capability);
  ~Cudnn();
  Cudnn(const Cudnn &) = delete;
  Cudnn &operator=(const Cudnn &) = delete;

  /// Makes an attention command ready, within the `libraryBytes` that are
  /// planned for it at `workspace`. Commands of the same shape share a plan,
  /// and its kernels, which are compiled here. Fails, with the reason, where
  /// cuDNN does not run the command.
  llvm::Expected<CudnnAttention>
  make(const Command &command, llvm::function_ref<CUdeviceptr(const Ref &)> at,
       CUdeviceptr workspace);

private:
  friend class CudnnAttention;
  struct Plan {
    std::shared_ptr<const CudnnGraph> graph;
    /// Why there is none.
    std::string problem;
  };

  Cudnn() = default;

  void *handle = nullptr;
  void *workspace = nullptr;
  int capability = 0;
  std::string architecture;
  std::map<std::string, Plan> plans;
};

} // namespace cleave::runtime::cuda

#endif // CLEAVE_LIB_RUNTIME_CUDA_LIBRARIES_CUDNN_H
