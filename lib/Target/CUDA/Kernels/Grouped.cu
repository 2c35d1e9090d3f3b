//===- Grouped.cu - Products of rows sorted by group ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// A block sorts the rows of one group. Products are of tiles of 16 rows and
// columns, each of one group, in shared memory; sums are in one order.
//
//===----------------------------------------------------------------------===//

constexpr int groupedTile = 16;

// The group of a row; `size` if it is none of those here.
__device__ __forceinline__ int groupedGroup(const SortRowsArguments &a, int i) {
  long long group = a.width == 8   ? static_cast<const long long *>(a.groups)[i]
                    : a.width == 4 ? static_cast<const int *>(a.groups)[i]
                                   : static_cast<const signed char *>(a.groups)[i];
  if (a.origin)
    group -= *a.origin;
  return group < 0 || group >= a.size ? a.size : int(group);
}

extern "C" __global__ void __launch_bounds__(256)
    cleave_grouped_order(SortRowsArguments a) {
  __shared__ int counts[8];
  int t = int(threadIdx.x), lane = t % 32, warp = t / 32;
  int own = int(blockIdx.x);
  // The rows of groups before.
  int before = 0;
  for (int i = t; i < a.rows; i += 256)
    before += groupedGroup(a, i) < own;
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    before += __shfl_xor_sync(0xffffffffu, before, step);
  if (lane == 0)
    counts[warp] = before;
  __syncthreads();
  int place = 0;
  for (int w = 0; w < 8; ++w)
    place += counts[w];
  __syncthreads();
  if (t == 0)
    a.offsets[own] = place;
  for (int start = 0; start < a.rows; start += 256) {
    int i = start + t;
    bool isOwn = i < a.rows && groupedGroup(a, i) == own;
    unsigned all = __ballot_sync(0xffffffffu, isOwn);
    if (lane == 0)
      counts[warp] = __popc(all);
    __syncthreads();
    int rank = __popc(all & ((1u << lane) - 1)), total = 0;
    for (int w = 0; w < 8; ++w) {
      rank += w < warp ? counts[w] : 0;
      total += counts[w];
    }
    __syncthreads();
    if (isOwn) {
      a.order[place + rank] = i;
      a.inverse[i] = place + rank;
    }
    place += total;
  }
}

// Elements as they are multiplied.
struct GroupedBrain {
  unsigned short bits;
  __device__ operator float() const { return __uint_as_float(unsigned(bits) << 16); }
};

template <class Element, class Sum>
__device__ __forceinline__ void groupedRows(const GroupedArguments &a) {
  __shared__ Sum left[groupedTile][groupedTile + 1],
      right[groupedTile][groupedTile + 1];
  __shared__ long long first;
  __shared__ int group, count;
  int t = int(threadIdx.x), x = t % groupedTile, y = t / groupedTile;
  long long tile = blockIdx.x / a.columnTiles;
  int column = int(blockIdx.x - tile * a.columnTiles) * groupedTile;
  if (t == 0) {
    // The range that has this tile.
    count = 0;
    for (int i = 0; i < a.ranges * a.groups; ++i) {
      const long long *range =
          a.offsets + (i / a.groups) * (a.groups + 1ll) + i % a.groups;
      long long tiles = (range[1] - range[0] + groupedTile - 1) / groupedTile;
      if (tile < tiles) {
        first = range[0] + tile * groupedTile;
        group = i % a.groups;
        count = int(min((long long)groupedTile, range[1] - first));
        break;
      }
      tile -= tiles;
    }
  }
  __syncthreads();
  if (count == 0)
    return;
  const Element *rows = static_cast<const Element *>(a.a) + first * a.lda,
                *weight =
                    static_cast<const Element *>(a.b) + group * a.groupStrideB;
  Sum sum = 0;
  for (int k = 0; k < a.k; k += groupedTile) {
    left[y][x] = y < count && k + x < a.k ? Sum(rows[y * a.lda + k + x]) : Sum(0);
    // Threads of a row read neighbours.
    int inner = k + (a.transposed ? x : y), outer = column + (a.transposed ? y : x);
    Sum other = 0;
    if (inner < a.k && outer < a.m)
      other = Sum(weight[a.transposed ? outer * a.ldb + inner
                                      : inner * a.ldb + outer]);
    right[a.transposed ? x : y][a.transposed ? y : x] = other;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < groupedTile; ++i)
      sum += left[y][i] * right[i][x];
    __syncthreads();
  }
  if (y < count && column + x < a.m)
    static_cast<Sum *>(a.out)[(first + y) * a.m + column + x] = sum;
}

template <class Element, class Sum>
__device__ __forceinline__ void groupedWeight(const GroupedArguments &a) {
  __shared__ Sum left[groupedTile][groupedTile + 1],
      right[groupedTile][groupedTile + 1];
  int t = int(threadIdx.x), x = t % groupedTile, y = t / groupedTile;
  long long tiles = (long long)a.columnTiles * a.depthTiles;
  long long group = blockIdx.x / tiles, tile = blockIdx.x - group * tiles;
  int column = int(tile % a.columnTiles) * groupedTile,
      depth = int(tile / a.columnTiles) * groupedTile;
  const Element *rows = static_cast<const Element *>(a.a),
                *grads = static_cast<const Element *>(a.b);
  Sum sum = 0;
  for (int p = 0; p < a.ranges; ++p) {
    const long long *range = a.offsets + p * (a.groups + 1ll) + group;
    long long end = range[1];
    for (long long row = range[0]; row < end; row += groupedTile) {
      left[y][x] = row + y < end && depth + x < a.k
                       ? Sum(rows[(row + y) * a.lda + depth + x])
                       : Sum(0);
      right[y][x] = row + y < end && column + x < a.m
                        ? Sum(grads[(row + y) * a.ldb + column + x])
                        : Sum(0);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < groupedTile; ++i)
        sum += left[i][y] * right[i][x];
      __syncthreads();
    }
  }
  long long k = depth + y, m = column + x;
  if (k < a.k && m < a.m)
    static_cast<Sum *>(a.out)[group * a.k * a.m +
                              (a.transposed ? m * a.k + k : k * a.m + m)] = sum;
}

extern "C" __global__ void __launch_bounds__(256)
    cleave_grouped_rows_f32(GroupedArguments a) {
  groupedRows<float, float>(a);
}
extern "C" __global__ void __launch_bounds__(256)
    cleave_grouped_weight_f32(GroupedArguments a) {
  groupedWeight<float, float>(a);
}
extern "C" __global__ void __launch_bounds__(256)
    cleave_grouped_rows_bf16(GroupedArguments a) {
  groupedRows<GroupedBrain, float>(a);
}
extern "C" __global__ void __launch_bounds__(256)
    cleave_grouped_weight_bf16(GroupedArguments a) {
  groupedWeight<GroupedBrain, float>(a);
}
extern "C" __global__ void __launch_bounds__(256)
    cleave_grouped_rows_f64(GroupedArguments a) {
  groupedRows<double, double>(a);
}
extern "C" __global__ void __launch_bounds__(256)
    cleave_grouped_weight_f64(GroupedArguments a) {
  groupedWeight<double, double>(a);
}
