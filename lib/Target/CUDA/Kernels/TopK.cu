//===- TopK.cu - The largest elements of rows -----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// A selection by digits, as TopKScratch.h describes. A block has a short row, or
// a chunk of a long one, of which launches exchange histograms; a warp has a
// segment of that. What is selected is sorted by the kernels of ScatterAdd.cu,
// which come before these.
//
//===----------------------------------------------------------------------===//

constexpr int selectBins = 2048, selectPasses = 3;

// In the order of the elements. Both zeros are equal, and NaN is infinity.
__device__ __forceinline__ unsigned selectKey(float x) {
  unsigned bits = x != x ? 0x7f800000u : x == 0 ? 0u : __float_as_uint(x);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The lowest bit that a pass counts.
__device__ __forceinline__ int selectShift(int pass) {
  return pass == 0 ? 21 : pass == 1 ? 10 : 0;
}

// The highest bits of the k-th largest key, and how many elements that have
// these are selected.
struct Selection {
  unsigned key;
  int left;
};

// The elements of this block.
struct SelectChunk {
  const float *row;
  long long index;
  int begin, end, chunk;

  __device__ explicit SelectChunk(const TopKArguments &a) {
    index = blockIdx.x / a.chunks;
    chunk = int(blockIdx.x - index * a.chunks);
    row = a.in + index * a.columns;
    begin = chunk * a.segment * sortWarps;
    end = min(a.columns, begin + a.segment * sortWarps);
  }
};

// Adds the digits of keys that begin as those selected to `bins`, which is in
// shared memory.
__device__ __forceinline__ void selectCount(const SelectChunk &own, int pass,
                                            unsigned key, unsigned *bins) {
  int shift = selectShift(pass), mask = pass == 2 ? 1023 : 2047;
  for (int i = own.begin + int(threadIdx.x); i < own.end; i += sortThreads) {
    unsigned x = selectKey(own.row[i]);
    if (pass == 0 || (x ^ key) >> selectShift(pass - 1) == 0)
      atomicAdd(&bins[x >> shift & mask], 1u);
  }
}

// Of a histogram in shared memory, the digit of the k-th largest key.
__device__ __forceinline__ void selectDigit(const unsigned *bins, int pass,
                                            Selection &selection) {
  __shared__ int values[sortThreads], digit, rest;
  constexpr int perThread = selectBins / sortThreads;
  int top = selectBins - 1 - int(threadIdx.x) * perThread, own = 0;
#pragma unroll
  for (int i = 0; i < perThread; ++i)
    own += int(bins[top - i]);
  int left = selection.left - sumBefore(values, own);
  if (left > 0 && left <= own) {
    int i = 0;
    for (; int(bins[top - i]) < left; ++i)
      left -= int(bins[top - i]);
    digit = top - i;
    rest = left;
  }
  __syncthreads();
  selection.key |= unsigned(digit) << selectShift(pass);
  selection.left = rest;
  __syncthreads();
}

// Of this warp's segment, the keys above the selected one and those equal.
__device__ __forceinline__ void selectTotals(const TopKArguments &a,
                                             const SelectChunk &own,
                                             unsigned key, int &above,
                                             int &equal) {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int begin = own.begin + warp * a.segment;
  int end = min(own.end, begin + a.segment);
  above = equal = 0;
  for (int i = begin + lane; i < end; i += 32) {
    unsigned x = selectKey(own.row[i]);
    above += x > key;
    equal += x == key;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    above += __shfl_xor_sync(0xffffffffu, above, step);
    equal += __shfl_xor_sync(0xffffffffu, equal, step);
  }
}

// Takes the elements of this warp's segment in order; `above` and `equal` are
// those of the row before it.
__device__ __forceinline__ void selectCollect(const TopKArguments &a,
                                              const SelectChunk &own,
                                              const Selection &selection,
                                              int above, int equal) {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int begin = own.begin + warp * a.segment;
  int end = min(own.end, begin + a.segment);
  unsigned before = (1u << lane) - 1;
  for (int start = begin; start < end; start += 32) {
    int i = start + lane;
    unsigned x = i < end ? selectKey(own.row[i]) : 0;
    bool isAbove = i < end && x > selection.key;
    bool isEqual = i < end && x == selection.key;
    unsigned allAbove = __ballot_sync(0xffffffffu, isAbove);
    unsigned allEqual = __ballot_sync(0xffffffffu, isEqual);
    int ownEqual = equal + __popc(allEqual & before);
    if (isAbove || (isEqual && ownEqual < selection.left)) {
      long long at = own.index * a.k + above + __popc(allAbove & before) +
                     min(ownEqual, selection.left);
      a.keys[at] = int(~x);
      a.places[at] = int(at);
      a.chosen[at] = i;
    }
    above += __popc(allAbove);
    equal += __popc(allEqual);
  }
}

// A block for each short row: reads it five times.
extern "C" __global__ void __launch_bounds__(256)
    cleave_top_k_row(TopKArguments a) {
  __shared__ unsigned bins[selectBins];
  __shared__ int counts[sortWarps][2];
  SelectChunk own(a);
  Selection selection{0, a.k};
  for (int pass = 0; pass < selectPasses; ++pass) {
    for (int i = threadIdx.x; i < selectBins; i += sortThreads)
      bins[i] = 0;
    __syncthreads();
    selectCount(own, pass, selection.key, bins);
    __syncthreads();
    selectDigit(bins, pass, selection);
  }
  int above, equal, warp = threadIdx.x / 32;
  selectTotals(a, own, selection.key, above, equal);
  if (threadIdx.x % 32 == 0) {
    counts[warp][0] = above;
    counts[warp][1] = equal;
  }
  __syncthreads();
  above = equal = 0;
  for (int other = 0; other < warp; ++other) {
    above += counts[other][0];
    equal += counts[other][1];
  }
  selectCollect(a, own, selection, above, equal);
}

// The selection of a long row after some passes, whose histograms are complete.
__device__ __forceinline__ Selection selectAfter(const TopKArguments &a,
                                                 const SelectChunk &own,
                                                 int passes, unsigned *bins) {
  Selection selection{0, a.k};
  for (int pass = 0; pass < passes; ++pass) {
    const unsigned *all =
        a.histograms + (own.index * selectPasses + pass) * selectBins;
    for (int i = threadIdx.x; i < selectBins; i += sortThreads)
      bins[i] = all[i];
    __syncthreads();
    selectDigit(bins, pass, selection);
  }
  return selection;
}

// Pass `a.pass` of a chunk; histograms are zero before the first one.
extern "C" __global__ void __launch_bounds__(256)
    cleave_top_k_count(TopKArguments a) {
  __shared__ unsigned bins[selectBins];
  SelectChunk own(a);
  Selection selection = selectAfter(a, own, a.pass, bins);
  for (int i = threadIdx.x; i < selectBins; i += sortThreads)
    bins[i] = 0;
  __syncthreads();
  selectCount(own, a.pass, selection.key, bins);
  __syncthreads();
  unsigned *all =
      a.histograms + (own.index * selectPasses + a.pass) * selectBins;
  for (int i = threadIdx.x; i < selectBins; i += sortThreads)
    if (bins[i])
      atomicAdd(&all[i], bins[i]);
}

extern "C" __global__ void __launch_bounds__(256)
    cleave_top_k_totals(TopKArguments a) {
  __shared__ unsigned bins[selectBins];
  __shared__ int counts[sortWarps][2];
  SelectChunk own(a);
  Selection selection = selectAfter(a, own, selectPasses, bins);
  int above, equal, t = int(threadIdx.x);
  selectTotals(a, own, selection.key, above, equal);
  if (t % 32 == 0) {
    counts[t / 32][0] = above;
    counts[t / 32][1] = equal;
  }
  __syncthreads();
  if (t < 2 * sortWarps)
    a.counts[blockIdx.x * 2ll * sortWarps + t] = counts[t / 2][t % 2];
  if (t < 2) {
    int sum = 0;
#pragma unroll
    for (int warp = 0; warp < sortWarps; ++warp)
      sum += counts[warp][t];
    a.totals[blockIdx.x * 2ll + t] = sum;
  }
}

extern "C" __global__ void __launch_bounds__(256)
    cleave_top_k_collect(TopKArguments a) {
  __shared__ unsigned bins[selectBins];
  SelectChunk own(a);
  Selection selection = selectAfter(a, own, selectPasses, bins);
  // Of the chunks before, and of the segments of this one.
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sums[2];
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const int *totals = a.totals + own.index * a.chunks * 2 + side;
    int sum = 0;
    for (int other = lane; other < own.chunk; other += 32)
      sum += totals[2 * other];
    if (lane < warp)
      sum += a.counts[(blockIdx.x * 1ll * sortWarps + lane) * 2 + side];
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
      sum += __shfl_xor_sync(0xffffffffu, sum, step);
    sums[side] = sum;
  }
  selectCollect(a, own, selection, sums[0], sums[1]);
}

// The row of each of the selected elements, as its key.
extern "C" __global__ void __launch_bounds__(256)
    cleave_top_k_rows(TopKArguments a) {
  int i = int(blockIdx.x) * sortThreads + int(threadIdx.x);
  if (i < a.selected)
    a.keys[i] = a.places[i] / a.k;
}

extern "C" __global__ void __launch_bounds__(256)
    cleave_top_k_write(TopKArguments a) {
  int i = int(blockIdx.x) * sortThreads + int(threadIdx.x);
  if (i >= a.selected)
    return;
  int column = a.chosen[a.places[i]];
  a.indices[i] = column;
  a.values[i] = a.in[(long long)(i / a.k) * a.columns + column];
}

