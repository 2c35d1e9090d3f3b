//===- Attention16.cu - Blockwise attention of 16-bit heads ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// As Attention.cu, whose positions, masks and draws are used here, with
// products of tensor cores: factors have 16 bits, sums are f32. Scores,
// exponentials and their sums are f32; what is multiplied next (probabilities,
// gradients of scores) is the sum of two numbers of 16 bits each.
//
// A block has 64 rows (queries, or keys in the gradients of keys), 16 of each
// of its four warps, and goes over tiles of the other in shared memory, which
// are copied while others are computed. Of a tile of 16 rows and 8 columns, a
// thread has the rows lane / 4 and lane / 4 + 8, and in each the columns 2 *
// (lane % 4) and the next.
//
//===----------------------------------------------------------------------===//

constexpr int rows16 = 64;

// Rows in shared memory are padded: eight neighbours begin in different banks.
template <int Size> struct Tile16 {
  static constexpr int stride = Size + 8, tiles = Size / 8;
};

//===----------------------------------------------------------------------===//
// Instructions
//===----------------------------------------------------------------------===//

// The types of 16 bits: a value in f32, two values rounded, the first one in
// the low bits, and d += a b of 16 x 16, 16 x 8 numbers.
struct Bfloat16 {
  static __device__ __forceinline__ float widen(unsigned short x) {
    return __uint_as_float(unsigned(x) << 16);
  }
  static __device__ __forceinline__ unsigned round(float low, float high) {
#ifdef __CUDACC__
    unsigned result;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    return result;
#else
    return emulation::roundBfloat16(low) | emulation::roundBfloat16(high) << 16;
#endif
  }
  static __device__ __forceinline__ void
  multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#ifdef __CUDACC__
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    emulation::multiplyTiles(d, a, b0, b1, widen);
#endif
  }
};
struct Float16 {
  static __device__ __forceinline__ float widen(unsigned short x) {
#ifdef __CUDACC__
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x));
    return result;
#else
    return emulation::widenFloat16(x);
#endif
  }
  static __device__ __forceinline__ unsigned round(float low, float high) {
#ifdef __CUDACC__
    unsigned result;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    return result;
#else
    return emulation::roundFloat16(low) | emulation::roundFloat16(high) << 16;
#endif
  }
  static __device__ __forceinline__ void
  multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#ifdef __CUDACC__
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    emulation::multiplyTiles(d, a, b0, b1, widen);
#endif
  }
};

// Four matrices of 8 x 8 numbers; thread 8 * i + r gives the address of row r
// of matrix i. A thread gets the numbers 2 * (lane % 4) and the next of row
// lane / 4 of each, or, transposed, those rows of column lane / 4.
__device__ __forceinline__ void loadMatrices(unsigned (&x)[4],
                                             const unsigned short *row) {
#ifdef __CUDACC__
  unsigned at = unsigned(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, "
               "[%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(at)
               : "memory");
#else
  emulation::loadMatrices(x, row, false);
#endif
}
__device__ __forceinline__ void loadTransposed(unsigned (&x)[4],
                                               const unsigned short *row) {
#ifdef __CUDACC__
  unsigned at = unsigned(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 "
               "{%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(at)
               : "memory");
#else
  emulation::loadMatrices(x, row, true);
#endif
}

// Begins to copy 16 bytes to shared memory, and waits for all that the thread
// has begun.
__device__ __forceinline__ void beginCopy(void *to, const void *from) {
#ifdef __CUDACC__
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :
               : "r"(unsigned(__cvta_generic_to_shared(to))), "l"(from)
               : "memory");
#else
  emulation::beginCopy(to, from);
#endif
}
__device__ __forceinline__ void waitCopies() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_all;" : : : "memory");
#else
  emulation::waitCopies();
#endif
}

//===----------------------------------------------------------------------===//
// Tiles
//===----------------------------------------------------------------------===//

// The element of a head in row `i`; `T` is the type of its elements.
template <class T>
__device__ __forceinline__ T *rowOf16(const HeadArguments &v, int b, int h,
                                      int i) {
  return static_cast<T *>(v.data) + b * v.strideBatch + h * v.strideHead +
         i * v.stridePosition;
}

// The row of a tile of 64 of row `r` of the own warp's 16. Those of a thread, r
// and r + 8, are 32 apart, where draws share counters.
__device__ __forceinline__ int warpRow(int r) {
  return int(threadIdx.x) / 32 * 8 + r % 8 + r / 8 * 32;
}

// Begins to load `count` rows from row `first` of a head on; what is beyond
// them or beyond `size` channels, up to a multiple of 16, becomes 0.
template <int Size, int RowCount>
__device__ __forceinline__ void beginTile(unsigned short *tile,
                                          const HeadArguments &v, int b, int h,
                                          int first, int count, int size) {
  constexpr int chunks = Size / 8, all = RowCount * chunks;
  const unsigned short *from = rowOf16<const unsigned short>(v, b, h, first);
  int padded = (size + 15) / 16 * 16;
#pragma unroll(all / attentionThreads < 4 ? 1 : 4)
  for (int t = int(threadIdx.x); t < all; t += attentionThreads) {
    int row = t / chunks, channel = t % chunks * 8;
    if (channel >= padded)
      continue;
    unsigned short *to = tile + row * Tile16<Size>::stride + channel;
    const unsigned short *p = from + row * v.stridePosition + channel;
    if (v.vector && row < count && channel + 8 <= size) {
      beginCopy(to, p);
      continue;
    }
    unsigned short x[8];
#pragma unroll
    for (int k = 0; k < 8; ++k)
      x[k] = row < count && channel + k < size ? p[k] : 0;
    storeVector(to, x);
  }
}

// s = A B^T, of the own warp's rows of A, which are those of `warpRow`, and all
// rows of B, over `size` channels.
template <class T, int Stride, int Columns>
__device__ __forceinline__ void product16(float (&s)[Columns][4],
                                          const unsigned short *a,
                                          const unsigned short *b, int size) {
  int lane = int(threadIdx.x) % 32;
  const unsigned short *own = a + warpRow(lane % 16) * Stride + lane / 16 * 8;
  const unsigned short *other =
      b + (lane % 8 + lane / 16 * 8) * Stride + lane / 8 % 2 * 8;
#pragma unroll
  for (int j = 0; j < Columns; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      s[j][e] = 0.0f;
#pragma unroll(Stride > 200 ? 1 : 2)
  for (int k = 0; k < size; k += 16) {
    unsigned x[4];
    loadMatrices(x, own + k);
#pragma unroll
    for (int j = 0; j < Columns; j += 2) {
      unsigned y[4];
      loadMatrices(y, other + 8 * j * Stride + k);
      T::multiply(s[j], x, y[0], y[1]);
      T::multiply(s[j + 1], x, y[2], y[3]);
    }
  }
}

// Two numbers as the sums of two of 16 bits each.
template <class T>
__device__ __forceinline__ void split(unsigned &x, unsigned &rest, float low,
                                      float high) {
  x = T::round(low, high);
  rest = T::round(low - T::widen((unsigned short)x),
                  high - T::widen((unsigned short)(x >> 16)));
}

// sum += P B, where B has a row of `size` channels for each column of P. The
// numbers of P are sums of two of 16 bits: rounded ones would cost bits that
// the result has.
template <class T, int Stride, int Columns, int Tiles>
__device__ __forceinline__ void
accumulate16(float (&sum)[Tiles][4], const float (&p)[Columns][4],
             const unsigned short *b, int size) {
  int lane = int(threadIdx.x) % 32;
  const unsigned short *other = b + lane % 16 * Stride + lane / 16 * 8;
#pragma unroll
  for (int j = 0; j < Columns; j += 2) {
    unsigned x[4], rest[4];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      split<T>(x[k], rest[k], p[j + k / 2][k % 2 * 2],
               p[j + k / 2][k % 2 * 2 + 1]);
#pragma unroll
    for (int c = 0; c < Tiles; c += 2) {
      if (8 * c >= size)
        continue;
      unsigned y[4];
      loadTransposed(y, other + 8 * j * Stride + 8 * c);
      T::multiply(sum[c], rest, y[0], y[1]);
      T::multiply(sum[c + 1], rest, y[2], y[3]);
      T::multiply(sum[c], x, y[0], y[1]);
      T::multiply(sum[c + 1], x, y[2], y[3]);
    }
  }
}

template <int Tiles>
__device__ __forceinline__ void clear16(float (&x)[Tiles][4]) {
#pragma unroll
  for (int c = 0; c < Tiles; ++c)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      x[c][e] = 0.0f;
}

// Stores two neighbouring channels of a row.
template <class T>
__device__ __forceinline__ void storePair(const HeadArguments &v, int b, int h,
                                          int i, int channel, int size,
                                          float low, float high) {
  if (v.wide) {
    float *to = rowOf16<float>(v, b, h, i) + channel;
    float x[2] = {low, high};
    if (v.vector && channel + 2 <= size) {
      storeVector(to, x);
      return;
    }
    if (channel < size)
      to[0] = low;
    if (channel + 1 < size)
      to[1] = high;
    return;
  }
  unsigned short *to = rowOf16<unsigned short>(v, b, h, i) + channel;
  unsigned x = T::round(low, high);
  if (v.vector && channel + 2 <= size) {
    *reinterpret_cast<unsigned *>(to) = x;
    return;
  }
  if (channel < size)
    to[0] = (unsigned short)x;
  if (channel + 1 < size)
    to[1] = (unsigned short)(x >> 16);
}

// Stores `factor` times the own warp's rows to `count` rows from row `first` of
// a head on.
template <class T, int Tiles>
__device__ __forceinline__ void
storeRows16(const HeadArguments &v, int b, int h, int first, int count,
            int size, const float (&x)[Tiles][4], float factor) {
  int lane = int(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int row = warpRow(lane / 4 + 8 * half);
    if (row >= count)
      continue;
#pragma unroll
    for (int c = 0; c < Tiles; ++c)
      storePair<T>(v, b, h, first + row, 8 * c + lane % 4 * 2, size,
                   factor * x[c][2 * half], factor * x[c][2 * half + 1]);
  }
}

//===----------------------------------------------------------------------===//
// Scores
//===----------------------------------------------------------------------===//

// Whether position alone hides keys. Such scores are computed without branches.
__device__ __forceinline__ bool isPlain(const AttentionArguments &a) {
  return !a.bias && !a.mask && !a.querySegments;
}

// The row and column of number `e` of four in tile `j` of a thread.
__device__ __forceinline__ int rowAt(int e) {
  return warpRow(int(threadIdx.x) % 32 / 4 + e / 2 * 8);
}
__device__ __forceinline__ int columnAt(int j, int e) {
  return 8 * j + int(threadIdx.x) % 4 * 2 + e % 2;
}

// As `prepare`, of all products of the own warp. Those of keys that position
// hides are -inf. Rows are keys if `KeyRows`.
template <bool KeyRows, int Columns, int N, int M>
__device__ __forceinline__ void
prepare16(float (&s)[Columns][4], const AttentionArguments &a,
          const QueryTile<N> &queries, const KeyTile<M> &keys, int key0) {
  if (isPlain(a)) {
#pragma unroll
    for (int j = 0; j < Columns; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        int i = KeyRows ? columnAt(j, e) : rowAt(e);
        int key = key0 + (KeyRows ? rowAt(e) : columnAt(j, e));
        bool visible = key >= queries.begin[i] && key < queries.end[i];
        s[j][e] = visible ? a.scale * s[j][e] : minusInfinity();
      }
    return;
  }
#pragma unroll
  for (int j = 0; j < Columns; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      prepare(s[j][e], a, queries, keys, key0,
              KeyRows ? columnAt(j, e) : rowAt(e),
              KeyRows ? rowAt(e) : columnAt(j, e));
}

// Calls `what` for the numbers of a thread in the order in which draws share
// counters, with these draws. Rows are keys if `KeyRows`.
template <bool KeyRows, int Columns, class F>
__device__ __forceinline__ void forDraws(F what) {
  if constexpr (KeyRows) {
#pragma unroll
    for (int j = 0; j < Columns; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        Draws draws;
        what(j, e, draws);
        what(j, e + 2, draws);
      }
  } else {
#pragma unroll
    for (int way = 0; way < 8; ++way) {
      Draws draws;
#pragma unroll
      for (int j = way % 2; j < Columns; j += 2)
        what(j, way / 2, draws);
    }
  }
}

//===----------------------------------------------------------------------===//
// Forward
//===----------------------------------------------------------------------===//

template <class T, int Size, int KeyColumns>
__device__ __forceinline__ void
attentionForward16(const AttentionArguments &a) {
  constexpr int stride = Tile16<Size>::stride, tiles = Tile16<Size>::tiles;
  constexpr int columns = KeyColumns / 8;
  extern __shared__ __align__(16) char shared[];
  unsigned short *tileQ = reinterpret_cast<unsigned short *>(shared);
  unsigned short *tileK = tileQ + rows16 * stride;
  unsigned short *tileV = tileK + KeyColumns * stride;
  __shared__ QueryTile<rows16> queries;
  __shared__ KeyTile<KeyColumns> keys;

  // The last queries of a causal pass have the most keys, so they come first.
  unsigned heads = unsigned(a.batch) * unsigned(a.heads);
  int queryTiles = (a.queries + rows16 - 1) / rows16;
  int first = (queryTiles - 1 - int(blockIdx.x / heads)) * rows16;
  int b = int(blockIdx.x % heads) / a.heads;
  int h = int(blockIdx.x % heads) % a.heads, kvHead = h / a.group;
  int count = a.queries - first < rows16 ? a.queries - first : rows16;
  int lane = int(threadIdx.x) % 32;
  DrawStream stream = streamOf(a);

  beginTile<Size, rows16>(tileQ, a.q, b, h, first, count, a.headSize);
  loadQueries<false>(queries, a, b, h, first, count);
  int begin, end;
  keyRange(a, b, first, count, begin, end);
  begin = begin / KeyColumns * KeyColumns;
  auto keysFrom = [&](int key0) {
    return a.keys - key0 < KeyColumns ? a.keys - key0 : KeyColumns;
  };
  if (begin < end)
    beginTile<Size, KeyColumns>(tileK, a.k, b, kvHead, begin, keysFrom(begin),
                                a.headSize);

  float out[tiles][4], largest[2], sum[2];
  clear16(out);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    largest[half] = minusInfinity();
    sum[half] = 0.0f;
  }
#pragma unroll 1
  for (int key0 = begin; key0 < end; key0 += KeyColumns) {
    waitCopies();
    __syncthreads();
    // Values come while scores are computed, and the next keys while these are
    // used.
    beginTile<Size, KeyColumns>(tileV, a.v, b, kvHead, key0, keysFrom(key0),
                                a.valueSize);
    loadKeys(keys, a, b, key0, keysFrom(key0));
    float s[columns][4];
    product16<T, stride>(s, tileQ, tileK, a.headSize);
    waitCopies();
    __syncthreads();
    if (key0 + KeyColumns < end)
      beginTile<Size, KeyColumns>(tileK, a.k, b, kvHead, key0 + KeyColumns,
                                  keysFrom(key0 + KeyColumns), a.headSize);
    prepare16<false>(s, a, queries, keys, key0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = largest[half];
#pragma unroll
      for (int j = 0; j < columns; ++j)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e)
          top = s[j][e] > top ? s[j][e] : top;
#pragma unroll
      for (int step = 2; step > 0; step /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, top, step);
        top = other > top ? other : top;
      }
      // If all scores are -inf or NaN, the latter must be seen in the sum.
      float factor = largest[half] == top ? 1.0f : expf(largest[half] - top);
      float base = top == minusInfinity() ? 0.0f : top;
      largest[half] = top;
      sum[half] *= factor;
#pragma unroll
      for (int c = 0; c < tiles; ++c)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e)
          out[c][e] *= factor;
#pragma unroll
      for (int j = 0; j < columns; ++j)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          s[j][e] = __expf(s[j][e] - base);
          sum[half] += s[j][e];
        }
    }
    if (a.dropout)
      forDraws<false, columns>([&](int j, int e, Draws &draws) {
        int row = rowAt(e), column = columnAt(j, e);
        // Keys that are not visible have no place.
        if (key0 + column < queries.end[row] &&
            !keeps(draws, queries.element[row] + keys.place[column], a, stream))
          s[j][e] = 0.0f;
      });
    accumulate16<T, stride>(out, s, tileV, a.valueSize);
  }
  // Where there is no key, too, no copy may be left.
  waitCopies();

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float total = sum[half];
#pragma unroll
    for (int step = 2; step > 0; step /= 2)
      total += __shfl_xor_sync(0xffffffffu, total, step);
    bool empty = largest[half] == minusInfinity() && total == 0.0f;
    float top =
        largest[half] == minusInfinity() && !empty ? 0.0f : largest[half];
    float rest = empty ? 0.0f : logf(total);
    float factor = empty ? 0.0f : 1.0f / total;
    if (a.dropout)
      factor *= a.keepScale;
    int row = warpRow(lane / 4 + 8 * half), i = first + row;
    long long at = ((long long)b * a.heads + h) * a.queries + i;
    float before = 1.0f;
    if (a.onto && row < count)
      joinSums(a, at, top, rest, before, factor);
    // All threads of the row have read the sum.
    __syncwarp();
    if (row >= count)
      continue;
    if (lane % 4 == 0)
      writeSum(a, at, top, rest);
#pragma unroll
    for (int c = 0; c < tiles; ++c) {
      int channel = 8 * c + lane % 4 * 2;
      float y[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        y[e] = factor * out[c][2 * half + e];
        if (!a.onto || channel + e >= a.valueSize)
          continue;
        if (a.o.wide)
          y[e] += before * rowOf16<float>(a.o, b, h, i)[channel + e];
        else
          y[e] += before *
                  T::widen(rowOf16<unsigned short>(a.o, b, h, i)[channel + e]);
      }
      storePair<T>(a.o, b, h, i, channel, a.valueSize, y[0], y[1]);
    }
  }
}

//===----------------------------------------------------------------------===//
// Gradients
//===----------------------------------------------------------------------===//

// The scores `s` become probabilities with dropout, and `g`, the gradients of
// those, the gradients of the scores. Rows are keys if `KeyRows`.
template <bool KeyRows, int Columns, int N, int M>
__device__ __forceinline__ void
differentiate16(float (&s)[Columns][4], float (&g)[Columns][4],
                const AttentionArguments &a, const QueryTile<N> &queries,
                const KeyTile<M> &keys, int key0, const DrawStream &stream) {
  prepare16<KeyRows>(s, a, queries, keys, key0);
  if (!a.dropout) {
#pragma unroll
    for (int j = 0; j < Columns; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        int i = KeyRows ? columnAt(j, e) : rowAt(e);
        int key = key0 + (KeyRows ? rowAt(e) : columnAt(j, e));
        bool visible = key >= queries.begin[i] && key < queries.end[i];
        float p = __expf((s[j][e] - queries.largest[i]) - queries.rest[i]);
        s[j][e] = visible ? p : 0.0f;
        g[j][e] = visible ? p * (g[j][e] - queries.dot[i]) : 0.0f;
      }
    return;
  }
  forDraws<KeyRows, Columns>([&](int j, int e, Draws &draws) {
    int i = KeyRows ? columnAt(j, e) : rowAt(e);
    int k = KeyRows ? rowAt(e) : columnAt(j, e);
    // Rows without keys have no sums, and hidden keys no places.
    if (key0 + k < queries.begin[i] || key0 + k >= queries.end[i]) {
      s[j][e] = g[j][e] = 0.0f;
      return;
    }
    float p = __expf((s[j][e] - queries.largest[i]) - queries.rest[i]);
    float keep = keeps(draws, queries.element[i] + keys.place[k], a, stream)
                     ? a.keepScale
                     : 0.0f;
    s[j][e] = p * keep;
    g[j][e] = p * (g[j][e] * keep - queries.dot[i]);
  });
}

// The sum of dO * O of each row, eight threads for a row.
template <class T, int Stride>
__device__ __forceinline__ void storeDots16(const AttentionArguments &a,
                                            const unsigned short *tileG, int b,
                                            int h, int first, int count) {
  int lane = int(threadIdx.x) % 32;
#pragma unroll
  for (int r = 0; r < 16; r += 4) {
    int row = int(threadIdx.x) / 32 * 16 + r + lane / 8;
    float dot = 0.0f;
    if (row < count) {
      const unsigned short *o =
          rowOf16<const unsigned short>(a.o, b, h, first + row);
#pragma unroll 1
      for (int c = lane % 8 * 8; c < a.valueSize; c += 64) {
        unsigned short x[8] = {}, y[8];
        loadVector(y, tileG + row * Stride + c);
        if (a.o.vector && c + 8 <= a.valueSize)
          loadVector(x, o + c);
        else
#pragma unroll
          for (int k = 0; k < 8; ++k)
            if (c + k < a.valueSize)
              x[k] = o[c + k];
#pragma unroll
        for (int k = 0; k < 8; ++k)
          dot = fmaf(T::widen(y[k]), T::widen(x[k]), dot);
      }
    }
#pragma unroll
    for (int step = 4; step > 0; step /= 2)
      dot += __shfl_xor_sync(0xffffffffu, dot, step);
    if (lane % 8 == 0 && row < count)
      a.dots[((long long)b * a.heads + h) * a.queries + first + row] = dot;
  }
}

// Of queries. Also stores the sum of dO * O of each row, for the kernels below.
template <class T, int Size, int KeyColumns>
__device__ __forceinline__ void
attentionQueries16(const AttentionArguments &a) {
  constexpr int stride = Tile16<Size>::stride, tiles = Tile16<Size>::tiles;
  constexpr int columns = KeyColumns / 8;
  extern __shared__ __align__(16) char shared[];
  unsigned short *tileQ = reinterpret_cast<unsigned short *>(shared);
  unsigned short *tileG = tileQ + rows16 * stride;
  unsigned short *tileV = tileG + rows16 * stride;
  // Two, by turns.
  unsigned short *tileK = tileV + KeyColumns * stride;
  __shared__ QueryTile<rows16> queries;
  __shared__ KeyTile<KeyColumns> keys;

  unsigned heads = unsigned(a.batch) * unsigned(a.heads);
  int queryTiles = (a.queries + rows16 - 1) / rows16;
  int first = (queryTiles - 1 - int(blockIdx.x / heads)) * rows16;
  int b = int(blockIdx.x % heads) / a.heads;
  int h = int(blockIdx.x % heads) % a.heads, kvHead = h / a.group;
  int count = a.queries - first < rows16 ? a.queries - first : rows16;
  DrawStream stream = streamOf(a);

  beginTile<Size, rows16>(tileQ, a.q, b, h, first, count, a.headSize);
  beginTile<Size, rows16>(tileG, a.dO, b, h, first, count, a.valueSize);
  int begin, end;
  keyRange(a, b, first, count, begin, end);
  begin = begin / KeyColumns * KeyColumns;
  auto keysFrom = [&](int key0) {
    return a.keys - key0 < KeyColumns ? a.keys - key0 : KeyColumns;
  };
  waitCopies();
  __syncthreads();
  if (begin < end) {
    beginTile<Size, KeyColumns>(tileK, a.k, b, kvHead, begin, keysFrom(begin),
                                a.headSize);
    beginTile<Size, KeyColumns>(tileV, a.v, b, kvHead, begin, keysFrom(begin),
                                a.valueSize);
  }
  storeDots16<T, stride>(a, tileG, b, h, first, count);
  __syncthreads();
  loadQueries<true>(queries, a, b, h, first, count);

  float dQ[tiles][4];
  clear16(dQ);
  unsigned short *own = tileK, *next = tileK + KeyColumns * stride;
#pragma unroll 1
  for (int key0 = begin; key0 < end; key0 += KeyColumns) {
    int following = key0 + KeyColumns;
    waitCopies();
    __syncthreads();
    if (following < end)
      beginTile<Size, KeyColumns>(next, a.k, b, kvHead, following,
                                  keysFrom(following), a.headSize);
    loadKeys(keys, a, b, key0, keysFrom(key0));
    float s[columns][4], g[columns][4];
    product16<T, stride>(s, tileQ, own, a.headSize);
    product16<T, stride>(g, tileG, tileV, a.valueSize);
    __syncthreads();
    if (following < end)
      beginTile<Size, KeyColumns>(tileV, a.v, b, kvHead, following,
                                  keysFrom(following), a.valueSize);
    differentiate16<false>(s, g, a, queries, keys, key0, stream);
    accumulate16<T, stride>(dQ, g, own, a.headSize);
    unsigned short *last = own;
    own = next;
    next = last;
  }
  storeRows16<T>(a.dQ, b, h, first, count, a.headSize, dQ, a.scale);
}

// Of keys (`OfKeys`), values (`OfValues`) or both: rows are keys, and the
// queries of all heads that share the key head are columns, in order.
template <class T, int Size, int QueryColumns, bool OfKeys, bool OfValues>
__device__ __forceinline__ void sweepQueries16(const AttentionArguments &a) {
  constexpr int stride = Tile16<Size>::stride, tiles = Tile16<Size>::tiles;
  constexpr int columns = QueryColumns / 8;
  extern __shared__ __align__(16) char shared[];
  unsigned short *tileK = reinterpret_cast<unsigned short *>(shared);
  unsigned short *tileV = tileK + rows16 * stride;
  unsigned short *tileQ = tileV + rows16 * stride;
  unsigned short *tileG = tileQ + QueryColumns * stride;
  __shared__ QueryTile<QueryColumns> queries;
  __shared__ KeyTile<rows16> keys;
  __shared__ int any;
  // The segments of the keys, here because registers are few.
  __shared__ long long low, high;

  unsigned heads = unsigned(a.batch) * unsigned(a.kvHeads);
  int key0 = int(blockIdx.x / heads) * rows16;
  int b = int(blockIdx.x % heads) / a.kvHeads;
  int kvHead = int(blockIdx.x % heads) % a.kvHeads;
  int keyCount = a.keys - key0 < rows16 ? a.keys - key0 : rows16;

  beginTile<Size, rows16>(tileK, a.k, b, kvHead, key0, keyCount, a.headSize);
  beginTile<Size, rows16>(tileV, a.v, b, kvHead, key0, keyCount, a.valueSize);
  loadKeys(keys, a, b, key0, keyCount);
  if (a.keySegments) {
    long long least, most;
    segmentRange(a.keySegments + (long long)b * a.keys + key0, keyCount, least,
                 most);
    if (threadIdx.x == 0) {
      low = least;
      high = most;
    }
  }

  float dK[OfKeys ? tiles : 1][4], dV[OfValues ? tiles : 1][4];
  clear16(dK);
  clear16(dV);
#pragma unroll 1
  for (int h = kvHead * a.group; h < (kvHead + 1) * a.group; ++h)
#pragma unroll 1
    for (int first = 0; first < a.queries; first += QueryColumns) {
      int count =
          a.queries - first < QueryColumns ? a.queries - first : QueryColumns;
      if (!meets(a, first, count, key0, key0 + keyCount))
        continue;
      __syncthreads();
      loadQueries<true>(queries, a, b, h, first, count);
      if (a.querySegments && !anySegment(queries, count, low, high, any))
        continue;
      beginTile<Size, QueryColumns>(tileQ, a.q, b, h, first, count, a.headSize);
      beginTile<Size, QueryColumns>(tileG, a.dO, b, h, first, count,
                                    a.valueSize);
      waitCopies();
      __syncthreads();
      float s[columns][4], g[columns][4];
      product16<T, stride>(s, tileK, tileQ, a.headSize);
      if constexpr (OfKeys)
        product16<T, stride>(g, tileV, tileG, a.valueSize);
      else
        clear16(g);
      differentiate16<true>(s, g, a, queries, keys, key0, streamOf(a));
      if constexpr (OfValues)
        accumulate16<T, stride>(dV, s, tileG, a.valueSize);
      if constexpr (OfKeys)
        accumulate16<T, stride>(dK, g, tileQ, a.headSize);
    }
  waitCopies();
  if constexpr (OfKeys)
    storeRows16<T>(a.dK, b, kvHead, key0, keyCount, a.headSize, dK, a.scale);
  if constexpr (OfValues)
    storeRows16<T>(a.dV, b, kvHead, key0, keyCount, a.valueSize, dV, 1.0f);
}

// `Twice`: one after the other, since a thread cannot hold both sums.
template <class T, int Size, int QueryColumns, bool Twice>
__device__ __forceinline__ void attentionKeys16(const AttentionArguments &a) {
  if constexpr (Twice) {
    sweepQueries16<T, Size, QueryColumns, false, true>(a);
    __syncthreads();
    sweepQueries16<T, Size, QueryColumns, true, false>(a);
  } else {
    sweepQueries16<T, Size, QueryColumns, true, true>(a);
  }
}

// Of the bias, as `attentionBias`.
template <class T, int Size, int KeyColumns>
__device__ __forceinline__ void attentionBias16(const AttentionArguments &a) {
  constexpr int stride = Tile16<Size>::stride, columns = KeyColumns / 8;
  constexpr int scoreStride = KeyColumns + 4;
  extern __shared__ __align__(16) char shared[];
  unsigned short *tileQ = reinterpret_cast<unsigned short *>(shared);
  unsigned short *tileG = tileQ + rows16 * stride;
  unsigned short *tileK = tileG + rows16 * stride;
  unsigned short *tileV = tileK + KeyColumns * stride;
  // In the end, over queries and gradients.
  float *tileP = reinterpret_cast<float *>(shared);
  static_assert(4 * scoreStride <= 4 * stride, "tiles overlap");
  __shared__ QueryTile<rows16> queries;
  __shared__ KeyTile<KeyColumns> keys;

  const BiasPart<rows16, KeyColumns> part(a);
  DrawStream stream = streamOf(a);

  float sum[columns][4];
  clear16(sum);
#pragma unroll 1
  for (int b = part.batch; b < part.lastBatch; ++b)
#pragma unroll 1
    for (int h = part.head; h < part.lastHead; ++h)
#pragma unroll 1
      for (int q = part.queryTile; q < part.lastQueryTile; ++q) {
        int first = part.query0 + q * rows16;
        int count = part.queriesFrom(first);
        bool loaded = false;
#pragma unroll 1
        for (int k = part.keyTile; k < part.lastKeyTile; ++k) {
          int key0 = part.keyBase + k * KeyColumns;
          int size = part.keysFrom(key0);
          if (!meets(a, first, count, key0, key0 + size))
            continue;
          int kvHead = h / a.group;
          __syncthreads();
          if (!loaded) {
            beginTile<Size, rows16>(tileQ, a.q, b, h, first, count, a.headSize);
            beginTile<Size, rows16>(tileG, a.dO, b, h, first, count,
                                    a.valueSize);
            loadQueries<true>(queries, a, b, h, first, count);
            loaded = true;
          }
          beginTile<Size, KeyColumns>(tileK, a.k, b, kvHead, key0, size,
                                      a.headSize);
          beginTile<Size, KeyColumns>(tileV, a.v, b, kvHead, key0, size,
                                      a.valueSize);
          loadKeys(keys, a, b, key0, size);
          waitCopies();
          __syncthreads();
          float s[columns][4], g[columns][4];
          product16<T, stride>(s, tileQ, tileK, a.headSize);
          product16<T, stride>(g, tileG, tileV, a.valueSize);
          differentiate16<false>(s, g, a, queries, keys, key0, stream);
#pragma unroll
          for (int j = 0; j < columns; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e)
              sum[j][e] += g[j][e];
        }
      }

  float *to = a.dBias + part.begin(a);
  int rowCount = part.rowCount(), columnCount = part.columnCount();
  __syncthreads();
#pragma unroll
  for (int j = 0; j < columns; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      tileP[rowAt(e) * scoreStride + columnAt(j, e)] = sum[j][e];
  __syncthreads();
  if (part.ofQuery && part.ofKey) {
    for (int i = int(threadIdx.x); i < rowCount * KeyColumns; i += attentionThreads) {
      int row = i / KeyColumns, column = i % KeyColumns;
      if (column < columnCount)
        to[(long long)row * part.keyCount + column] =
            tileP[row * scoreStride + column];
    }
    return;
  }
  part.template addUp<scoreStride>(to, tileP);
}

#define CLEAVE_ATTENTION16_KERNELS_OF(T, Type, Size, F, Q, B, K, Twice)        \
  extern "C" __global__ void __launch_bounds__(attentionThreads, 2)            \
      cleave_attention_forward_##Type##_##Size(AttentionArguments a) {         \
    attentionForward16<T, Size, F>(a);                                         \
  }                                                                            \
  extern "C" __global__ void __launch_bounds__(attentionThreads, 2)            \
      cleave_attention_queries_##Type##_##Size(AttentionArguments a) {         \
    attentionQueries16<T, Size, Q>(a);                                         \
  }                                                                            \
  extern "C" __global__ void __launch_bounds__(attentionThreads, 2)            \
      cleave_attention_keys_##Type##_##Size(AttentionArguments a) {            \
    attentionKeys16<T, Size, K, Twice>(a);                                     \
  }                                                                            \
  extern "C" __global__ void __launch_bounds__(attentionThreads, 2)            \
      cleave_attention_bias_##Type##_##Size(AttentionArguments a) {            \
    attentionBias16<T, Size, B>(a);                                            \
  }
#define CLEAVE_ATTENTION16_KERNELS(...)                                        \
  CLEAVE_ATTENTION16_KERNELS_OF(Float16, f16, __VA_ARGS__)                     \
  CLEAVE_ATTENTION16_KERNELS_OF(Bfloat16, bf16, __VA_ARGS__)
CLEAVE_ATTENTION16_CLASSES(CLEAVE_ATTENTION16_KERNELS)
#undef CLEAVE_ATTENTION16_KERNELS
#undef CLEAVE_ATTENTION16_KERNELS_OF
