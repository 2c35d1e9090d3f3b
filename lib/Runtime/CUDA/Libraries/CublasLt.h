//===- CublasLt.h - The functions of cuBLASLt -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// What is used of the binary interface of cuBLASLt 13, which is opened at run
/// time: its headers are not needed to build.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_CUDA_LIBRARIES_CUBLASLT_H
#define CLEAVE_LIB_RUNTIME_CUDA_LIBRARIES_CUBLASLT_H

#include "llvm/ADT/Twine.h"
#include "llvm/Support/Error.h"

#include <cstdint>

namespace cleave::runtime::cuda {

/// The numbers of the interface.
namespace lt {
enum Type { F32 = 0, F16 = 2, BF16 = 14, F8E4M3 = 28, F8E5M2 = 29 };
enum Compute { InF32 = 68 };
enum DescAttribute {
  TransA = 3,
  TransB = 4,
  Epilogue = 7,
  BiasPointer = 8,
  AuxPointer = 11,
  AuxLd = 12
};
/// Bits of the attribute `Epilogue`; 1 is none.
enum EpilogueBits { Bias = 4, Gelu = 32, GeluGradient = 64, Aux = 128 };
enum LayoutAttribute { BatchCount = 5, BatchStride = 6 };
enum PreferenceAttribute {
  MaxWorkspaceBytes = 1,
  AlignmentA = 5,
  AlignmentB = 6,
  AlignmentC = 7,
  AlignmentD = 8
};

struct Algorithm {
  uint64_t data[8];
};
struct HeuristicResult {
  Algorithm algorithm;
  size_t workspaceBytes;
  int state;
  float waves;
  int reserved[4];
};
} // namespace lt

struct CublasLt {
  using Object = void *;
  int (*create)(Object *handle);
  int (*destroy)(Object handle);
  size_t (*version)();
  int (*createDesc)(Object *, int compute, int scaleType);
  int (*destroyDesc)(Object);
  int (*setDesc)(Object, int attribute, const void *value, size_t bytes);
  int (*createLayout)(Object *, int type, uint64_t rows, uint64_t columns,
                      int64_t ld);
  int (*destroyLayout)(Object);
  int (*setLayout)(Object, int attribute, const void *value, size_t bytes);
  int (*createPreference)(Object *);
  int (*destroyPreference)(Object);
  int (*setPreference)(Object, int attribute, const void *value, size_t bytes);
  int (*heuristics)(Object handle, Object desc, Object a, Object b, Object c,
                    Object d, Object preference, int asked,
                    lt::HeuristicResult *results, int *count);
  int (*checkAlgorithm)(Object handle, Object desc, Object a, Object b,
                        Object c, Object d, const lt::Algorithm *,
                        lt::HeuristicResult *);
  int (*multiply)(Object handle, Object desc, const void *alpha, const void *a,
                  Object aLayout, const void *b, Object bLayout,
                  const void *beta, const void *c, Object cLayout, void *d,
                  Object dLayout, const lt::Algorithm *, void *workspace,
                  size_t workspaceBytes, void *stream);

  /// The library of this process, which is opened once.
  static llvm::Expected<const CublasLt *> get();

  /// The error of a call that has returned `status` while it did `what`.
  static llvm::Error check(int status, const llvm::Twine &what);
};

} // namespace cleave::runtime::cuda

#endif // CLEAVE_LIB_RUNTIME_CUDA_LIBRARIES_CUBLASLT_H
