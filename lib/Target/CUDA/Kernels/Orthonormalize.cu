//===- Orthonormalize.cu - Orthonormal columns ----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// Householder reflections in f64, as OrthonormalScratch.h describes: a launch
// for each column, in which every block computes the reflection anew from the
// sums of the last launch.
//
//===----------------------------------------------------------------------===//

constexpr int orthonormalThreads = 256, orthonormalWarps = orthonormalThreads / 32;

// The matrix of this block, and which block of its rows this is.
struct OrthonormalBlock {
  double *scratch, *matrix;
  long long index;
  int block;

  __device__ explicit OrthonormalBlock(const OrthonormalArguments &a) {
    index = blockIdx.x / a.blocks;
    block = int(blockIdx.x - index * a.blocks);
    scratch = a.scratch + index * a.size;
    matrix = scratch + a.matrix + (long long)block * a.columns * a.blockRows;
  }
};

// The sum of a column over all blocks, in all lanes of a warp.
__device__ __forceinline__ double sumOfBlocks(const OrthonormalArguments &a,
                                              const double *sums, int column) {
  double x = 0;
#pragma unroll 2
  for (int block = threadIdx.x % 32; block < a.blocks; block += 32)
    x += sums[(long long)block * a.columns + column];
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// Of this block, the sums of `term(column, row)` over rows, for 32 columns at a
// time; `prepare(first)` comes before those from `first` on.
template <class Prepare, class Term>
__device__ __forceinline__ void sumRows(const OrthonormalArguments &a,
                                        const OrthonormalBlock &own, double *sums,
                                        Prepare prepare, Term term) {
  __shared__ double partial[orthonormalWarps][32];
  int t = int(threadIdx.x), lane = t % 32, warp = t / 32;
  for (int first = 0; first < a.columns; first += 32) {
    prepare(first);
    int count = min(32, a.columns - first);
    for (int k = 0; k < count; ++k) {
      double x = 0;
      for (int i = t; i < a.blockRows; i += orthonormalThreads)
        x += term(first + k, i);
#pragma unroll
      for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
      if (lane == 0)
        partial[warp][k] = x;
    }
    __syncthreads();
    if (t < count) {
      double x = 0;
#pragma unroll
      for (int w = 0; w < orthonormalWarps; ++w)
        x += partial[w][t];
      sums[(long long)own.block * a.columns + first + t] = x;
    }
    __syncthreads();
  }
}

// Row `row` before its pass, if this block has it.
__device__ __forceinline__ void keepPivot(const OrthonormalArguments &a,
                                          const OrthonormalBlock &own, int row) {
  if (row / a.blockRows != own.block)
    return;
  int i = row % a.blockRows;
  double *pivot = own.scratch + a.pivots + (long long)row * a.columns;
  for (int c = threadIdx.x; c < a.columns; c += orthonormalThreads)
    pivot[c] = own.matrix[(long long)c * a.blockRows + i];
}

extern "C" __global__ void __launch_bounds__(256)
    cleave_orthonormal_load(OrthonormalArguments a) {
  OrthonormalBlock own(a);
  const float *in = a.in + own.index * a.rows * a.columns;
  long long first = (long long)own.block * a.blockRows;
  for (int i = threadIdx.x; i < a.blockRows; i += orthonormalThreads)
    for (int c = 0; c < a.columns; ++c)
      own.matrix[(long long)c * a.blockRows + i] =
          first + i < a.rows ? in[(first + i) * a.columns + c] : 0.0f;
  auto prepare = [](int) {};
  sumRows(a, own, own.scratch + a.norms, prepare, [&](int c, int i) {
    double x = own.matrix[(long long)c * a.blockRows + i];
    return x * x;
  });
  sumRows(a, own, own.scratch + a.sums[0], prepare, [&](int c, int i) {
    return own.matrix[i] * own.matrix[(long long)c * a.blockRows + i];
  });
  keepPivot(a, own, 0);
}

// Reflection `a.column`.
extern "C" __global__ void __launch_bounds__(256)
    cleave_orthonormal_reflect(OrthonormalArguments a) {
  __shared__ double all[3], diagonal, scale, factor, factors[32];
  OrthonormalBlock own(a);
  int t = int(threadIdx.x), lane = t % 32, warp = t / 32, j = a.column;
  const double *sums = own.scratch + a.sums[j % 2];
  const double *pivot = own.scratch + a.pivots + (long long)j * a.columns;
  int last = min(j + 1, a.columns - 1);
  if (warp < 3) {
    double x = sumOfBlocks(a, warp == 1 ? own.scratch + a.norms : sums,
                           warp == 2 ? last : j);
    if (lane == 0)
      all[warp] = x;
  }
  __syncthreads();
  if (t == 0) {
    double first = pivot[j];
    bool depends = !(all[0] > a.tolerance * a.tolerance * all[1]);
    diagonal = first < 0 ? sqrt(all[0]) : -sqrt(all[0]);
    scale = depends ? 0 : 1 / (first - diagonal);
    factor = depends ? 0 : 1 - first / diagonal;
    if (own.block == 0) {
      own.scratch[a.factors + j] = factor;
      own.scratch[a.signs + j] = first < 0 || depends ? 1 : -1;
    }
  }
  __syncthreads();
  bool reflects = scale != 0;
  // What v is multiplied by for a later column, of which `x` is the product
  // with column j; of an earlier one, the product of both v.
  auto product = [&](int c, double x) {
    return reflects ? (x - diagonal * pivot[c]) * scale : 0;
  };
  // v, and the next column, of which products follow.
  int at = j / a.blockRows == own.block ? j % a.blockRows : -1;
  double *v = own.matrix + (long long)j * a.blockRows;
  double *next = own.matrix + (long long)last * a.blockRows;
  double times = factor * product(last, all[2]);
  for (int i = t; i < a.blockRows; i += orthonormalThreads) {
    double x = i == at ? (reflects ? 1.0 : 0.0) : v[i] * scale;
    v[i] = x;
    if (last > j)
      next[i] = i == at ? 0 : next[i] - times * x;
  }
  if (last == j) {
    // No column follows; only the products of v are missing.
    for (int c = warp; c < j; c += orthonormalWarps) {
      double x = sumOfBlocks(a, sums, c);
      if (own.block == 0 && lane == 0)
        own.scratch[a.gram + (long long)c * a.columns + j] = product(c, x);
    }
    return;
  }
  auto prepare = [&](int from) {
    for (int k = warp; k < 32 && from + k < a.columns; k += orthonormalWarps) {
      int c = from + k;
      double x = sumOfBlocks(a, sums, c);
      if (lane != 0)
        continue;
      double both = product(c, x);
      factors[k] = factor * both;
      if (own.block == 0 && c < j)
        own.scratch[a.gram + (long long)c * a.columns + j] = both;
    }
    __syncthreads();
  };
  sumRows(a, own, own.scratch + a.sums[1 - j % 2], prepare, [&](int c, int i) {
    double *x = own.matrix + (long long)c * a.blockRows + i;
    if (c > last)
      *x = i == at ? 0 : *x - factors[c % 32] * v[i];
    return next[i] * *x;
  });
  keepPivot(a, own, last);
}

// A block for each matrix: T, column by column, and its product with the first
// rows of V.
extern "C" __global__ void __launch_bounds__(256)
    cleave_orthonormal_finish(OrthonormalArguments a) {
  __shared__ int finite;
  double *scratch = a.scratch + blockIdx.x * a.size;
  double *triangle = scratch + a.triangle, *gram = scratch + a.gram;
  long long n = a.columns;
  int t = int(threadIdx.x);
  if (t == 0)
    finite = 1;
  __syncthreads();
  for (int c = t / 32; c < a.columns; c += orthonormalWarps) {
    double norm = sumOfBlocks(a, scratch + a.norms, c);
    if (!(norm - norm == 0))
      finite = 0;
  }
  __syncthreads();
  if (!finite)
    for (int c = t; c < a.columns; c += orthonormalThreads)
      scratch[a.signs + c] = __longlong_as_double(0x7ff8000000000000ll);
  for (int j = 0; j < a.columns; ++j) {
    double factor = scratch[a.factors + j];
    for (int k = t; k <= j; k += orthonormalThreads) {
      double sum = 0;
      for (int m = k; m < j; ++m)
        sum += triangle[k * n + m] * gram[m * n + j];
      triangle[k * n + j] = k == j ? factor : -factor * sum;
    }
    __syncthreads();
  }
  for (long long i = t; i < n * n; i += orthonormalThreads) {
    long long k = i / n, c = i - k * n;
    double sum = 0;
    const double *row = scratch + a.matrix +
                        c / a.blockRows * n * a.blockRows + c % a.blockRows;
    for (long long m = k; m <= c; ++m)
      sum += triangle[k * n + m] * row[m * a.blockRows];
    scratch[a.product + i] = sum;
  }
}

extern "C" __global__ void __launch_bounds__(256)
    cleave_orthonormal_form(OrthonormalArguments a) {
  OrthonormalBlock own(a);
  const double *product = own.scratch + a.product;
  float *out = a.out + own.index * a.rows * a.columns;
  long long start = (long long)own.block * a.blockRows;
  for (int i = threadIdx.x; i < a.blockRows && start + i < a.rows;
       i += orthonormalThreads)
    for (int c = 0; c < a.columns; ++c) {
      double sum = 0;
      for (int k = 0; k <= c; ++k)
        sum += own.matrix[(long long)k * a.blockRows + i] *
               product[(long long)k * a.columns + c];
      double unit = start + i == c ? 1 : 0;
      out[(start + i) * a.columns + c] =
          float(own.scratch[a.signs + c] * (unit - sum));
    }
}

