//===- Fill.cu - Filling memory -------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

// Byte `i` of a pattern of 16.
__device__ __forceinline__ unsigned char patternByte(long long low,
                                                     long long high, int i) {
  return (unsigned char)((i < 8 ? low : high) >> (i % 8 * 8));
}

extern "C" __global__ void __launch_bounds__(256) cleave_fill(FillArguments c) {
  if (blockIdx.x == 0) {
    int i = int(threadIdx.x) % 16;
    if (threadIdx.x < 16 && i < c.head)
      c.dst[i] = patternByte(c.headPattern[0], c.headPattern[1], i);
    if (threadIdx.x >= 16 && threadIdx.x < 32 && i < c.tail)
      c.dst[c.head + c.words * 16 + i] =
          patternByte(c.pattern[0], c.pattern[1], i);
  }
  uint4 word = make_uint4(unsigned(c.pattern[0]), unsigned(c.pattern[0] >> 32),
                          unsigned(c.pattern[1]), unsigned(c.pattern[1] >> 32));
  uint4 *to = reinterpret_cast<uint4 *>(c.dst + c.head);
  long long first = blockIdx.x * 256ll * c.perThread + threadIdx.x;
  for (int k = 0; k < c.perThread && first + k * 256 < c.words; ++k)
    to[first + k * 256] = word;
}
