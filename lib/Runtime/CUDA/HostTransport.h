//===- HostTransport.h - Collectives through the host ------------*- C++
//-*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_CUDA_HOSTTRANSPORT_H
#define CLEAVE_LIB_RUNTIME_CUDA_HOSTTRANSPORT_H

#include "Gpu.h"
#include "cleave/Executable/Format/Program.h"
#include "cleave/Runtime/Core/Arena.h"

namespace cleave::runtime::cuda {

/// A copy of the arena on the host, of which only what is exchanged is used:
/// communicators of the host read and write it.
using HostMirror = Arena;

/// What one collective reads and writes, as pieces without gaps.
class HostTransport {
public:
  /// `at` gives the offset of a reference in the arena. `receives` is false for
  /// a rank to which nothing is written.
  HostTransport(const CollectiveCommand &command,
                llvm::function_ref<int64_t(Ref)> at, bool receives);

  /// Copies what this rank sends to the mirror; waits for it.
  llvm::Error fetch(const Gpu &gpu, CUdeviceptr arena, char *mirror) const;
  /// Copies what it has received from the mirror; waits for it.
  llvm::Error store(const Gpu &gpu, CUdeviceptr arena,
                    const char *mirror) const;

private:
  struct Piece {
    int64_t offset, bytes;
  };
  std::vector<Piece> sent, received;
};

} // namespace cleave::runtime::cuda

#endif // CLEAVE_LIB_RUNTIME_CUDA_HOSTTRANSPORT_H
