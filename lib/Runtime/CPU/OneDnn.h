//===- OneDnn.h - The library of contractions -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The functions of oneDNN that are used. It is opened by a process that
/// multiplies on the processor: one that trains on a GPU does not need it.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_CPU_ONEDNN_H
#define CLEAVE_LIB_RUNTIME_CPU_ONEDNN_H

#include "llvm/Support/Error.h"

#include <dnnl.h>

extern "C" {
/// Products of bf16 matrices in f32, otherwise as dnnl_sgemm; the library
/// exports it without declaring it.
dnnl_status_t dnnl_gemm_bf16bf16f32(char transa, char transb, dnnl_dim_t m,
                                    dnnl_dim_t n, dnnl_dim_t k, float alpha,
                                    const uint16_t *a, dnnl_dim_t lda,
                                    const uint16_t *b, dnnl_dim_t ldb,
                                    float beta, float *c, dnnl_dim_t ldc);
}

namespace cleave::runtime {

#define CLEAVE_ONEDNN_FUNCTIONS(F)                                             \
  F(engine_create)                                                             \
  F(gemm_bf16bf16f32)                                                          \
  F(matmul_desc_init)                                                          \
  F(memory_create)                                                             \
  F(memory_desc_get_size)                                                      \
  F(memory_desc_init_by_strides)                                               \
  F(memory_destroy)                                                            \
  F(memory_set_data_handle)                                                    \
  F(post_ops_append_sum)                                                       \
  F(post_ops_create)                                                           \
  F(post_ops_destroy)                                                          \
  F(primitive_attr_create)                                                     \
  F(primitive_attr_destroy)                                                    \
  F(primitive_attr_set_post_ops)                                               \
  F(primitive_attr_set_scratchpad_mode)                                        \
  F(primitive_create)                                                          \
  F(primitive_desc_create)                                                     \
  F(primitive_desc_destroy)                                                    \
  F(primitive_desc_query)                                                      \
  F(primitive_desc_query_md)                                                   \
  F(primitive_destroy)                                                         \
  F(primitive_execute)                                                         \
  F(sgemm)                                                                     \
  F(stream_create)                                                             \
  F(version)

struct OneDnn {
#define CLEAVE_MEMBER(name) decltype(&dnnl_##name) name = nullptr;
  CLEAVE_ONEDNN_FUNCTIONS(CLEAVE_MEMBER)
#undef CLEAVE_MEMBER
};

/// Opens the library, once in a process; an error says what to install.
llvm::Error openOneDnn();

/// The functions; ends the process with the error of `openOneDnn` if there is
/// one.
const OneDnn &oneDnn();

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_CPU_ONEDNN_H
