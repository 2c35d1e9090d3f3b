//===- Nccl.h - The functions of NCCL ---------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// What is used of the binary interface of NCCL 2, which is opened at run time:
/// its headers are not needed to build.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_CUDA_LIBRARIES_NCCL_H
#define CLEAVE_LIB_RUNTIME_CUDA_LIBRARIES_NCCL_H

#include "llvm/ADT/Twine.h"
#include "llvm/Support/Error.h"

#include <cstdint>

namespace cleave::runtime::cuda {

/// The numbers and structures of the interface.
namespace nccl {
enum Result { Success = 0, InProgress = 7 };
enum Type {
  I8 = 0,
  U8 = 1,
  I32 = 2,
  I64 = 4,
  F16 = 6,
  F32 = 7,
  F64 = 8,
  BF16 = 9
};
enum Operation { Sum = 0, Max = 2, Min = 3 };

struct Id {
  char bytes[128];
};
/// The fields of version 2.14: the library gives later ones their defaults.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};
} // namespace nccl

struct Nccl {
  using Communicator = void *;
  int (*version)(int *);
  const char *(*errorString)(int status);
  int (*makeId)(nccl::Id *);
  int (*create)(Communicator *, int members, nccl::Id, int member,
                nccl::Config *);
  int (*finalize)(Communicator);
  int (*destroy)(Communicator);
  int (*abort)(Communicator);
  int (*asyncError)(Communicator, int *status);
  int (*groupStart)();
  int (*groupEnd)();
  int (*allReduce)(const void *, void *, size_t count, int type, int operation,
                   Communicator, void *stream);
  int (*allGather)(const void *, void *, size_t count, int type, Communicator,
                   void *stream);
  int (*reduceScatter)(const void *, void *, size_t count, int type,
                       int operation, Communicator, void *stream);
  int (*broadcast)(const void *, void *, size_t count, int type, int root,
                   Communicator, void *stream);
  int (*reduce)(const void *, void *, size_t count, int type, int operation,
                int root, Communicator, void *stream);
  int (*send)(const void *, size_t count, int type, int peer, Communicator,
              void *stream);
  int (*receive)(void *, size_t count, int type, int peer, Communicator,
                 void *stream);

  /// The library of this process, which is opened once.
  static llvm::Expected<const Nccl *> get();

  /// The error of a call that has returned `status` while it did `what`; none
  /// if it is still under way.
  llvm::Error check(int status, const llvm::Twine &what) const;
};

} // namespace cleave::runtime::cuda

#endif // CLEAVE_LIB_RUNTIME_CUDA_LIBRARIES_NCCL_H
