//===- Copy.cu - Strided copies -------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

// The offsets of row `row` in both tensors. Division of 32-bit numbers is much
// faster, and nearly always enough.
__device__ __forceinline__ void rowOffsets(const CopyArguments &c,
                                           long long row, int rank,
                                           long long &src, long long &dst) {
  src = dst = 0;
  if (c.rows <= 0x7fffffff) {
    unsigned index = unsigned(row);
    for (int d = rank - 1; d >= 0; --d) {
      unsigned size = unsigned(c.sizes[d]);
      unsigned next = index / size;
      long long at = index - next * size;
      src += at * c.srcStrides[d];
      dst += at * c.dstStrides[d];
      index = next;
    }
    return;
  }
  for (int d = rank - 1; d >= 0; --d) {
    long long next = row / c.sizes[d];
    long long at = row - next * c.sizes[d];
    src += at * c.srcStrides[d];
    dst += at * c.dstStrides[d];
    row = next;
  }
}

template <int Bytes>
__device__ __forceinline__ void copyRows(const CopyArguments &c) {
  using T = typename Word<Bytes>::type;
  long long block = blockIdx.x;
  long long group = block / c.blocksPerRow;
  long long row = (group << (8 - c.columnBits)) + (threadIdx.x >> c.columnBits);
  if (row >= c.rows)
    return;
  long long src, dst;
  rowOffsets(c, row, c.rank, src, dst);
  int step = 1 << c.columnBits;
  long long column = (block - group * c.blocksPerRow) * c.perThread * step +
                     (threadIdx.x & (step - 1));
  const T *from = static_cast<const T *>(c.src) + src + column * c.srcColumn;
  T *to = static_cast<T *>(c.dst) + dst + column * c.dstColumn;
  long long left = c.columns - column;
  long long srcStep = c.srcColumn * step, dstStep = c.dstColumn * step;
  if (left > 3ll * step && c.perThread == 4) {
    // All loads before the stores: more of them are under way.
    T x[4];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      x[k] = from[k * srcStep];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      to[k * dstStep] = x[k];
    return;
  }
  for (int k = 0; k < c.perThread && left > 0; ++k, left -= step)
    to[k * dstStep] = from[k * srcStep];
}

// A tile goes through shared memory, so that neighbouring threads have
// neighbours in both tensors.
template <int Bytes>
__device__ __forceinline__ void transposeTile(const CopyArguments &c) {
  using T = typename Word<Bytes>::type;
  __shared__ T tile[32][33];
  int last = c.rank - 1;
  long long size = c.sizes[last];
  long long tiles = (size + 31) / 32;
  long long block = blockIdx.x;
  long long rest = block / c.blocksPerRow;
  long long column0 = (block - rest * c.blocksPerRow) * 32;
  long long row = rest / tiles;
  long long at0 = (rest - row * tiles) * 32;
  long long src, dst;
  rowOffsets(c, row, last, src, dst);
  const T *from = static_cast<const T *>(c.src) + src;
  T *to = static_cast<T *>(c.dst) + dst;
  int x = threadIdx.x % 32, y = threadIdx.x / 32;
  if (at0 + x < size)
#pragma unroll
    for (int k = 0; k < 32; k += 8)
      if (column0 + y + k < c.columns)
        tile[y + k][x] = from[at0 + x + (column0 + y + k) * c.srcColumn];
  __syncthreads();
  if (column0 + x < c.columns)
#pragma unroll
    for (int k = 0; k < 32; k += 8)
      if (at0 + y + k < size)
        to[(at0 + y + k) * c.dstStrides[last] + column0 + x] = tile[x][y + k];
}

extern "C" __global__ void __launch_bounds__(256)
    cleave_copy_1(CopyArguments c) {
  copyRows<1>(c);
}
extern "C" __global__ void __launch_bounds__(256)
    cleave_copy_2(CopyArguments c) {
  copyRows<2>(c);
}
extern "C" __global__ void __launch_bounds__(256)
    cleave_copy_4(CopyArguments c) {
  copyRows<4>(c);
}
extern "C" __global__ void __launch_bounds__(256)
    cleave_copy_8(CopyArguments c) {
  copyRows<8>(c);
}
extern "C" __global__ void __launch_bounds__(256)
    cleave_copy_16(CopyArguments c) {
  copyRows<16>(c);
}

extern "C" __global__ void __launch_bounds__(256)
    cleave_transpose_1(CopyArguments c) {
  transposeTile<1>(c);
}
extern "C" __global__ void __launch_bounds__(256)
    cleave_transpose_2(CopyArguments c) {
  transposeTile<2>(c);
}
extern "C" __global__ void __launch_bounds__(256)
    cleave_transpose_4(CopyArguments c) {
  transposeTile<4>(c);
}
extern "C" __global__ void __launch_bounds__(256)
    cleave_transpose_8(CopyArguments c) {
  transposeTile<8>(c);
}
