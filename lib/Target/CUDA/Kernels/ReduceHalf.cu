//===- ReduceHalf.cu - Elements of reductions in f16 ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include <cuda_fp16.h>
struct HalfElement {
  __half value;
  __device__ float widen() const { return __half2float(value); }
  __device__ static HalfElement round(float x) { return {__float2half_rn(x)}; }
};

