//===- CommandKernels.cpp - Command kernels, as C++ -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CommandKernels.h"
#include "Emulation.h"

#include <map>
#include <string>

// Without the instruction it is a slow call.
#ifndef __FMA__
#define fmaf(a, b, c) ((a) * (b) + (c))
#endif

#include "CommandKernels.inc"

using namespace cleave::runtime;

// As commandKernels() instantiates them.
#define REDUCTIONS(type, Element)                                              \
  void cleave_reduce_##type##_sum(ReduceArguments a) {                         \
    reduceMembers<Element, CombineSum>(a);                                     \
  }                                                                            \
  void cleave_reduce_##type##_max(ReduceArguments a) {                         \
    reduceMembers<Element, CombineMax>(a);                                     \
  }                                                                            \
  void cleave_reduce_##type##_min(ReduceArguments a) {                         \
    reduceMembers<Element, CombineMin>(a);                                     \
  }
REDUCTIONS(f64, PlainElement<double>)
REDUCTIONS(f32, PlainElement<float>)
REDUCTIONS(bf16, BrainElement)
REDUCTIONS(i64, PlainElement<long long>)
REDUCTIONS(i32, PlainElement<int>)
REDUCTIONS(i8, PlainElement<signed char>)
REDUCTIONS(i1, PlainElement<unsigned char>)

namespace {

/// Calls a kernel with its parameters.
using Invoke = void (*)(char *const *parameters);

template <auto *Kernel> struct Invoker;
template <typename... T, void (*Kernel)(T...)> struct Invoker<Kernel> {
  static void run(char *const *parameters) {
    call(parameters, std::index_sequence_for<T...>());
  }
  template <size_t... I>
  static void call(char *const *parameters, std::index_sequence<I...>) {
    Kernel(*reinterpret_cast<T *>(parameters[I])...);
  }
};

#define KERNEL(name) {#name, Invoker<&name>::run},
#define ATTENTION_KERNELS(Size, ...)                                           \
  KERNEL(cleave_attention_forward_##Size)                                      \
  KERNEL(cleave_attention_queries_##Size)                                      \
  KERNEL(cleave_attention_keys_##Size)                                         \
  KERNEL(cleave_attention_bias_##Size)
#define REDUCTION_KERNELS(type)                                                \
  KERNEL(cleave_reduce_##type##_sum)                                           \
  KERNEL(cleave_reduce_##type##_max)                                           \
  KERNEL(cleave_reduce_##type##_min)
#define ATTENTION16_KERNELS(Size, ...)                                         \
  ATTENTION_KERNELS(bf16_##Size) ATTENTION_KERNELS(f16_##Size)
const std::map<std::string, Invoke> kernels = {
    // clang-format off
    KERNEL(cleave_copy_1) KERNEL(cleave_copy_2) KERNEL(cleave_copy_4)
    KERNEL(cleave_copy_8) KERNEL(cleave_copy_16)
    KERNEL(cleave_transpose_1) KERNEL(cleave_transpose_2)
    KERNEL(cleave_transpose_4) KERNEL(cleave_transpose_8)
    KERNEL(cleave_fill) KERNEL(cleave_check)
    KERNEL(cleave_sort_count) KERNEL(cleave_sort_sum) KERNEL(cleave_sort_move)
    KERNEL(cleave_scatter_add)
    KERNEL(cleave_top_k_row) KERNEL(cleave_top_k_count)
    KERNEL(cleave_top_k_totals) KERNEL(cleave_top_k_collect)
    KERNEL(cleave_top_k_rows) KERNEL(cleave_top_k_write)
    KERNEL(cleave_orthonormal_load) KERNEL(cleave_orthonormal_reflect)
    KERNEL(cleave_orthonormal_finish) KERNEL(cleave_orthonormal_form)
    KERNEL(cleave_grouped_order)
    KERNEL(cleave_grouped_rows_f32) KERNEL(cleave_grouped_weight_f32)
    KERNEL(cleave_grouped_rows_bf16) KERNEL(cleave_grouped_weight_bf16)
    KERNEL(cleave_grouped_rows_f64) KERNEL(cleave_grouped_weight_f64)
    REDUCTION_KERNELS(f64) REDUCTION_KERNELS(f32) REDUCTION_KERNELS(bf16)
    REDUCTION_KERNELS(i64) REDUCTION_KERNELS(i32) REDUCTION_KERNELS(i8)
    REDUCTION_KERNELS(i1)
    CLEAVE_ATTENTION_CLASSES(ATTENTION_KERNELS)
    CLEAVE_ATTENTION16_CLASSES(ATTENTION16_KERNELS)
    // clang-format on
};

struct Call {
  Invoke function;
  std::vector<char *> parameters;
};

} // namespace

std::string cleave::testing::emulateLaunch(const cuda::Launch &launch) {
  auto kernel = kernels.find(launch.symbol);
  if (kernel == kernels.end())
    return "no kernel " + launch.symbol;
  if (launch.grid[0] == 0 || launch.grid[1] != 1 || launch.grid[2] != 1 ||
      launch.grid[0] > 0x7fffffff || launch.block == 0 || launch.block > 1024)
    return "the geometry of " + launch.symbol;
  if (launch.sharedBytes > 96 << 10)
    return "the shared memory of " + launch.symbol;
  std::vector<char> parameters = launch.parameters;
  Call call{kernel->second, {}};
  for (uint32_t offset : launch.offsets)
    call.parameters.push_back(parameters.data() + offset);
  // It checks what lies behind the shared memory.
  emulation::emulateGrid(
      launch.grid[0], 1, 1, launch.block, launch.sharedBytes,
      [](void *data) {
        const Call &call = *static_cast<Call *>(data);
        call.function(call.parameters.data());
      },
      &call);
  return "";
}
