//===- ScatterAdd.cu - Adding rows by id ----------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// Ids are sorted with their indices, stably; then the rows of each id are added
// in order, which gives the bits of a loop over all rows. A pass of the sort
// counts the digits of each block, sums the counts over blocks, and moves keys.
//
//===----------------------------------------------------------------------===//

constexpr int sortThreads = 256, sortWarps = sortThreads / 32;
// Keys of a block; each warp has neighbouring ones.
constexpr int sortKeys = 2048, sortRounds = sortKeys / sortThreads;

__device__ __forceinline__ int sortKey(const SortArguments &s, int i) {
  if (!s.ids)
    return s.fromKeys[i];
  long long id = s.wide ? static_cast<const long long *>(s.ids)[i]
                        : static_cast<const int *>(s.ids)[i];
  bool skipped = id < 0 || id >= s.outRows || (s.hasSkip && id == s.skipIndex);
  return skipped ? s.outRows : int(id);
}

// By digit, the keys of this block.
extern "C" __global__ void __launch_bounds__(256)
    cleave_sort_count(SortArguments s) {
  __shared__ int counts[256];
  counts[threadIdx.x] = 0;
  __syncthreads();
  int first = int(blockIdx.x) * sortKeys + int(threadIdx.x);
#pragma unroll
  for (int k = 0; k < sortRounds; ++k) {
    int i = first + k * sortThreads;
    if (i < s.count)
      atomicAdd(&counts[sortKey(s, i) >> s.shift & 255], 1);
  }
  __syncthreads();
  s.counts[blockIdx.x * 256ll + threadIdx.x] = counts[threadIdx.x];
}

// The sum of `x` of all threads before this one.
__device__ __forceinline__ int sumBefore(int *values, int x) {
  int t = int(threadIdx.x);
  values[t] = x;
  __syncthreads();
#pragma unroll
  for (int step = 1; step < sortThreads; step *= 2) {
    int other = t >= step ? values[t - step] : 0;
    __syncthreads();
    values[t] += other;
    __syncthreads();
  }
  return values[t] - x;
}

// One block, a thread for each digit: the counts become sums over the blocks
// before, and `starts` the number of keys with smaller digits.
extern "C" __global__ void __launch_bounds__(256)
    cleave_sort_sum(SortArguments s) {
  __shared__ int values[sortThreads];
  int sum = 0;
  // Loads do not wait for each other.
#pragma unroll 8
  for (int block = 0; block < s.blocks; ++block) {
    int *count = s.counts + block * 256ll + threadIdx.x;
    int own = *count;
    *count = sum;
    sum += own;
  }
  s.starts[threadIdx.x] = sumBefore(values, sum);
}

// Moves each key behind those of smaller digits, of blocks and warps before,
// and of its own warp before.
extern "C" __global__ void __launch_bounds__(256)
    cleave_sort_move(SortArguments s) {
  __shared__ int places[sortWarps][256];
  int t = int(threadIdx.x), lane = t % 32, warp = t / 32;
  int place = s.starts[t] + s.counts[blockIdx.x * 256ll + t];
  for (int w = 0; w < sortWarps; ++w)
    places[w][t] = 0;
  __syncthreads();
  int first = int(blockIdx.x) * sortKeys + warp * (sortKeys / sortWarps) + lane;
  int keys[sortRounds];
#pragma unroll
  for (int k = 0; k < sortRounds; ++k) {
    int i = first + k * 32;
    keys[k] = i < s.count ? sortKey(s, i) : -1;
    if (i < s.count)
      atomicAdd(&places[warp][keys[k] >> s.shift & 255], 1);
  }
  __syncthreads();
  for (int w = 0; w < sortWarps; ++w) {
    int own = places[w][t];
    places[w][t] = place;
    place += own;
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < sortRounds; ++k) {
    int i = first + k * 32;
    bool valid = i < s.count;
    int digit = keys[k] >> s.shift & 255;
    // The lanes with the same digit.
    unsigned same = __ballot_sync(0xffffffffu, valid);
#pragma unroll
    for (int bit = 0; bit < 8; ++bit) {
      unsigned set = __ballot_sync(0xffffffffu, digit >> bit & 1);
      same &= digit >> bit & 1 ? set : ~set;
    }
    int rank = __popc(same & ((1u << lane) - 1));
    int at = valid ? places[warp][digit] + rank : 0;
    __syncwarp();
    // The last of them.
    if (valid && same >> lane == 1u)
      places[warp][digit] = at + 1;
    __syncwarp();
    if (valid) {
      s.toKeys[at] = keys[k];
      s.toIndices[at] = s.ids ? i : s.fromIndices[i];
    }
  }
}

extern "C" __global__ void __launch_bounds__(128)
    cleave_scatter_add(ScatterArguments s) {
  constexpr int batch = 32;
  long long block = blockIdx.x;
  long long group = block / s.blocksPerRow;
  long long item =
      (group << (7 - s.columnBits)) + (threadIdx.x >> s.columnBits);
  long long column = ((block - group * s.blocksPerRow) << s.columnBits) +
                     (threadIdx.x & ((1 << s.columnBits) - 1));
  if (column >= s.columns || item >= (s.byRow ? s.outRows : s.count))
    return;
  int row = int(item), i = row;
  if (s.byRow) {
    // The first key that is not less.
    int high = s.count;
    for (i = 0; i < high;) {
      int middle = i + (high - i) / 2;
      if (s.keys[middle] < row)
        i = middle + 1;
      else
        high = middle;
    }
    if (i == s.count || s.keys[i] != row)
      return;
  } else {
    row = s.keys[i];
    if (row == s.outRows || (i > 0 && s.keys[i - 1] == row))
      return;
  }
  float *to = s.out + row * s.columns + column;
  const float *rows = s.rows + column;
  float sum = *to;
  // Keys are sorted: if the last one of a batch is this one, all are.
  for (; i + batch <= s.count && s.keys[i + batch - 1] == row; i += batch) {
    float x[batch];
#pragma unroll
    for (int k = 0; k < batch; ++k)
      x[k] = rows[s.indices[i + k] * s.columns];
#pragma unroll
    for (int k = 0; k < batch; ++k)
      sum += x[k];
  }
  for (; i + 4 <= s.count && s.keys[i + 3] == row; i += 4) {
    float x[4];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      x[k] = rows[s.indices[i + k] * s.columns];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      sum += x[k];
  }
  for (; i < s.count && s.keys[i] == row; ++i)
    sum += rows[s.indices[i] * s.columns];
  *to = sum;
}
