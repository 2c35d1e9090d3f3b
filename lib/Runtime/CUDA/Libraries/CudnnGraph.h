//===- CudnnGraph.h - Attention as a graph of cuDNN -------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Attention as cudnn-frontend describes it to cuDNN. That library consists of
/// headers that take long to compile and use exceptions: one source file
/// includes them, and this interface shows nothing of them, nor of LLVM, which
/// is compiled without.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_CUDA_LIBRARIES_CUDNNGRAPH_H
#define CLEAVE_LIB_RUNTIME_CUDA_LIBRARIES_CUDNNGRAPH_H

#include "cleave/Executable/Format/Program.h"
#include <memory>

namespace cleave::runtime::cuda {

/// Where the operands of an attention command are on the device, for the first
/// of the samples that a call computes.
struct CudnnOperands {
  void *q = nullptr, *k = nullptr, *v = nullptr, *o = nullptr, *lse = nullptr;
  /// Backward.
  void *dO = nullptr, *dQ = nullptr, *dK = nullptr, *dV = nullptr;
};

/// An execution plan of cuDNN for one attention command, of any operands.
class CudnnGraph {
public:
  /// The library that is used from now on, of `dlopen`.
  static void use(void *library);

  /// The first of the plans that cuDNN proposes for `samples` samples of the
  /// command that needs at most `bytes` of workspace; compiles its kernels.
  /// `handle` is a cudnnHandle_t, of a device of `capability`, such as 90.
  /// Null, and `problem` set, if there is none.
  static std::unique_ptr<CudnnGraph> make(void *handle, int capability,
                                          const AttentionCommand &command,
                                          bool backward, int64_t samples,
                                          int64_t bytes, std::string &problem);
  virtual ~CudnnGraph() = default;

  /// Enqueues the attention on the stream of the handle. Returns what is wrong,
  /// or "".
  virtual std::string run(void *handle, const CudnnOperands &operands,
                          void *workspace) const = 0;

  /// Bytes of workspace that it needs.
  int64_t bytes = 0;
};

} // namespace cleave::runtime::cuda

#endif // CLEAVE_LIB_RUNTIME_CUDA_LIBRARIES_CUDNNGRAPH_H
