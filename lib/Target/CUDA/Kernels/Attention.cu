//===- Attention.cu - Blockwise attention ---------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// A block has a tile of queries (or of keys) of one head and goes over tiles of
// the other in shared memory; tiles that position or segments hide entirely are
// skipped. Its 128 threads are 8 rows of 16: of a matrix, a thread has the rows
// ty + 8 * i and, of scores, the columns tx + 16 * j.
//
// The forward pass keeps the largest score of a row and the sum of exponentials
// relative to it. The backward pass computes scores again: one kernel for the
// gradients of queries, one for those of keys and values, and one for those of
// a bias; each owns what it writes and adds in a fixed order.
//
//===----------------------------------------------------------------------===//

constexpr int attentionThreads = 128;

__device__ __forceinline__ float minusInfinity() {
  return __int_as_float(int(0xff800000u));
}

// Shapes of tiles for heads of up to Size channels. Rows in shared memory are
// padded: 16 threads that read 16 bytes each, in different rows, meet no bank
// twice.
template <int Size, int RowCount, int ColumnCount> struct AttentionTile {
  static constexpr int rows = RowCount / 8, columns = ColumnCount / 16;
  static constexpr int stride = Size + 4, scoreStride = ColumnCount + 4;
  // A row of channels: `chunks` times 16 threads with `width` neighbours.
  static constexpr int width = Size % 64 == 0 ? 4 : 2;
  static constexpr int chunks = Size / (16 * width);
};

//===----------------------------------------------------------------------===//
// Positions
//===----------------------------------------------------------------------===//

__device__ __forceinline__ long long originOf(const AttentionArguments &a,
                                              int dim) {
  return a.origin ? a.origin[dim] : 0;
}

// The position of query `i` in the global scores.
__device__ __forceinline__ long long queryPlace(const AttentionArguments &a,
                                                int i) {
  long long first = originOf(a, 2);
  if (!a.queryStarts)
    return first + i;
  return a.queryStarts[i / a.queriesPerPiece] + first + i % a.queriesPerPiece;
}

// That of key `j`, relative to the origin.
__device__ __forceinline__ long long keyPlace(const AttentionArguments &a,
                                              int j) {
  if (!a.keyStarts)
    return j;
  return a.keyStarts[j / a.keysPerPiece] + j % a.keysPerPiece;
}

__device__ __forceinline__ int clampTo(long long x, int high) {
  return x < 0 ? 0 : x > high ? high : int(x);
}

// The number of keys of `block` with a position before `place`: these are the
// first ones, since positions ascend.
__device__ __forceinline__ int keysBefore(const AttentionArguments &a,
                                          int block, long long place) {
  place -= originOf(a, 3);
  if (!a.keyStarts)
    return clampTo(place - (long long)block * a.keysPerBlock, a.keysPerBlock);
  int pieces = a.keyPieces / a.blocks, count = 0;
  for (int i = block * pieces; i < (block + 1) * pieces; ++i)
    count += clampTo(place - a.keyStarts[i], a.keysPerBlock / pieces);
  return count;
}

// First and one past the last key that position lets query `i` see. Both grow
// with the query.
__device__ __forceinline__ void visibleKeys(const AttentionArguments &a, int i,
                                            int &begin, int &end) {
  long long diagonal = queryPlace(a, i) + a.shift;
  int block = a.blocks == 1 ? 0 : i / a.queriesPerBlock;
  begin = 0;
  end = a.keysPerBlock;
  if (a.causal)
    end = keysBefore(a, block, diagonal + 1);
  if (a.window > 0) {
    begin = keysBefore(a, block, diagonal - a.window + 1);
    begin = begin < end ? begin : end;
  }
  begin += block * a.keysPerBlock;
  end += block * a.keysPerBlock;
}

// What scores need of the queries of a tile, and of its keys.
template <int N> struct QueryTile {
  int begin[N], end[N];
  long long segment[N], bias[N], mask[N];
  unsigned long long element[N];
  float largest[N], rest[N], dot[N];
};
template <int N> struct KeyTile {
  long long place[N], segment[N];
};

// The log-sum-exp of a row, two numbers with a bias, so that a huge bias does
// not hide the sum.
__device__ __forceinline__ void readSum(const AttentionArguments &a,
                                        long long row, float &largest,
                                        float &rest) {
  largest = a.bias ? a.lse[2 * row] : a.lse[row];
  rest = a.bias ? a.lse[2 * row + 1] : 0.0f;
}
__device__ __forceinline__ void writeSum(const AttentionArguments &a,
                                         long long row, float largest,
                                         float rest) {
  if (!a.bias) {
    a.lse[row] = largest + rest;
    return;
  }
  a.lse[2 * row] = largest;
  a.lse[2 * row + 1] = rest;
}

// The index of key 0 in a bias or mask of such strides, for query `i`.
__device__ __forceinline__ long long extraRow(const AttentionArguments &a,
                                              const long long (&strides)[4],
                                              int b, int h, int i) {
  long long at = b * strides[0] + h * strides[1] + i * strides[2];
  if (a.blocks != 1 && strides[2] != 0)
    at -= (long long)(i / a.queriesPerBlock) * a.keysPerBlock * strides[3];
  return at;
}

template <bool Backward, int N>
__device__ __forceinline__ void loadQueries(QueryTile<N> &tile,
                                            const AttentionArguments &a, int b,
                                            int h, int first, int count) {
  int t = int(threadIdx.x);
  if (t >= N)
    return;
  // No key is visible to rows that do not exist.
  int begin = 0, end = 0, i = first + t;
  if (t < count) {
    visibleKeys(a, i, begin, end);
    if (a.bias)
      tile.bias[t] = extraRow(a, a.biasStrides, b, h, i);
    if (a.mask)
      tile.mask[t] = extraRow(a, a.maskStrides, b, h, i);
    if (a.querySegments)
      tile.segment[t] = a.querySegments[(long long)b * a.queries + i];
    if (a.dropout) {
      unsigned long long element = originOf(a, 0) + b;
      element = element * a.globalHeads + originOf(a, 1) + h;
      element = element * a.globalQueries + queryPlace(a, i);
      tile.element[t] = element * a.paddedKeys + originOf(a, 3);
    }
    if constexpr (Backward) {
      long long row = ((long long)b * a.heads + h) * a.queries + i;
      readSum(a, row, tile.largest[t], tile.rest[t]);
      tile.dot[t] = a.dots[row];
      if (tile.largest[t] == minusInfinity())
        end = begin;
    }
  }
  tile.begin[t] = begin;
  tile.end[t] = end;
}

template <int N>
__device__ __forceinline__ void loadKeys(KeyTile<N> &tile,
                                         const AttentionArguments &a, int b,
                                         int first, int count) {
  int t = int(threadIdx.x);
  if (t >= count)
    return;
  if (a.dropout)
    tile.place[t] = keyPlace(a, first + t);
  if (a.keySegments)
    tile.segment[t] = a.keySegments[(long long)b * a.keys + first + t];
}

// The least and the largest of some segments.
__device__ __forceinline__ void segmentRange(const long long *segments,
                                             int count, long long &low,
                                             long long &high) {
  low = high = segments[0];
  for (int i = int(threadIdx.x); i < count; i += attentionThreads) {
    long long x = segments[i];
    low = x < low ? x : low;
    high = x > high ? x : high;
  }
  int turn = 0;
  low = reduceBlock<attentionThreads>(low, Min(), turn);
  high = reduceBlock<attentionThreads>(high, Max(), turn);
}

// The keys that a tile of queries sees. With segments, keys at both ends
// without a segment of the queries are left out.
__device__ __forceinline__ void keyRange(const AttentionArguments &a, int b,
                                         int first, int count, int &begin,
                                         int &end) {
  int unused;
  visibleKeys(a, first, begin, unused);
  visibleKeys(a, first + count - 1, unused, end);
  if (!a.querySegments || begin >= end)
    return;
  long long low, high;
  segmentRange(a.querySegments + (long long)b * a.queries + first, count, low,
               high);
  const long long *segments = a.keySegments + (long long)b * a.keys;
  int least = end, most = -1;
  for (int j = begin + int(threadIdx.x); j < end; j += attentionThreads) {
    long long segment = segments[j];
    if (segment < low || segment > high)
      continue;
    least = j < least ? j : least;
    most = j;
  }
  int turn = 0;
  begin = reduceBlock<attentionThreads>(least, Min(), turn);
  end = reduceBlock<attentionThreads>(most, Max(), turn) + 1;
}

// Whether any query of a tile may see one of the keys [key0, key1).
__device__ __forceinline__ bool meets(const AttentionArguments &a, int first,
                                      int count, int key0, int key1) {
  int begin, end, unused;
  visibleKeys(a, first, begin, unused);
  visibleKeys(a, first + count - 1, unused, end);
  return begin < key1 && end > key0;
}

//===----------------------------------------------------------------------===//
// Tiles
//===----------------------------------------------------------------------===//

__device__ __forceinline__ float *rowOf(const HeadArguments &v, int b, int h,
                                        int i) {
  return static_cast<float *>(v.data) + b * v.strideBatch + h * v.strideHead +
         i * v.stridePosition;
}

// Loads `count` rows from row `first` of a head on; what is beyond them or
// beyond `size` channels, up to a multiple of 4, becomes 0.
template <int Size, int RowCount>
__device__ __forceinline__ void loadTile(float *tile, const HeadArguments &v,
                                         int b, int h, int first, int count,
                                         int size) {
  constexpr int quads = Size / 4;
  const float *from = rowOf(v, b, h, first);
#pragma unroll(Size > 128 ? 2 : 4)
  for (int t = int(threadIdx.x); t < RowCount * quads; t += attentionThreads) {
    int row = t / quads, channel = t % quads * 4;
    if (channel >= size)
      continue;
    float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (row < count) {
      const float *p = from + row * v.stridePosition + channel;
      if (v.vector && channel + 4 <= size)
        loadVector(x, p);
      else
#pragma unroll
        for (int k = 0; k < 4; ++k)
          if (channel + k < size)
            x[k] = p[k];
    }
    storeVector(tile + row * (Size + 4) + channel, x);
  }
}

// s = A B^T of two tiles, over `size` channels.
template <int Stride, int Rows, int Columns>
__device__ __forceinline__ void
product(float (&s)[Rows][Columns], const float *a, const float *b, int size) {
  const float *own = a + threadIdx.x / 16 * Stride;
  const float *other = b + threadIdx.x % 16 * Stride;
#pragma unroll
  for (int i = 0; i < Rows; ++i)
#pragma unroll
    for (int j = 0; j < Columns; ++j)
      s[i][j] = 0.0f;
#pragma unroll 2
  for (int k = 0; k < size; k += 4) {
    float y[Columns][4];
#pragma unroll
    for (int j = 0; j < Columns; ++j)
      loadVector(y[j], other + 16 * j * Stride + k);
#pragma unroll
    for (int i = 0; i < Rows; ++i) {
      float x[4];
      loadVector(x, own + 8 * i * Stride + k);
#pragma unroll
      for (int j = 0; j < Columns; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          s[i][j] = fmaf(x[c], y[j][c], s[i][j]);
    }
  }
}

// sum += P B, where P has a row of `Count` numbers for each row of the sum, and
// B as many rows of channels.
template <int Stride, int ScoreStride, int Count, int Rows, int Chunks,
          int Width>
__device__ __forceinline__ void accumulate(float (&sum)[Rows][Chunks][Width],
                                           const float *p, const float *b) {
  const float *own = p + threadIdx.x / 16 * ScoreStride;
  const float *other = b + threadIdx.x % 16 * Width;
#pragma unroll 1
  for (int j = 0; j < Count; j += 4) {
    float x[Rows][4];
#pragma unroll
    for (int i = 0; i < Rows; ++i)
      loadVector(x[i], own + 8 * i * ScoreStride + j);
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int c = 0; c < Chunks; ++c) {
        float y[Width];
        loadVector(y, other + (j + k) * Stride + 16 * Width * c);
#pragma unroll
        for (int i = 0; i < Rows; ++i)
#pragma unroll
          for (int w = 0; w < Width; ++w)
            sum[i][c][w] = fmaf(x[i][k], y[w], sum[i][c][w]);
      }
  }
}

template <int Rows, int Chunks, int Width>
__device__ __forceinline__ void clear(float (&x)[Rows][Chunks][Width]) {
#pragma unroll
  for (int i = 0; i < Rows; ++i)
#pragma unroll
    for (int c = 0; c < Chunks; ++c)
#pragma unroll
      for (int w = 0; w < Width; ++w)
        x[i][c][w] = 0.0f;
}

template <int Stride, int Rows, int Columns>
__device__ __forceinline__ void storeScores(float *p,
                                            const float (&s)[Rows][Columns]) {
  float *own = p + threadIdx.x / 16 * Stride + threadIdx.x % 16;
#pragma unroll
  for (int i = 0; i < Rows; ++i)
#pragma unroll
    for (int j = 0; j < Columns; ++j)
      own[8 * i * Stride + 16 * j] = s[i][j];
}

// Stores `factor` times a matrix to `count` rows from row `first` of a head on.
template <int Rows, int Chunks, int Width>
__device__ __forceinline__ void
storeRows(const HeadArguments &v, int b, int h, int first, int count, int size,
          const float (&x)[Rows][Chunks][Width], float factor) {
#pragma unroll
  for (int i = 0; i < Rows; ++i) {
    int row = int(threadIdx.x) / 16 + 8 * i;
    if (row >= count)
      continue;
    float *to = rowOf(v, b, h, first + row);
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      int channel = (int(threadIdx.x) % 16 + 16 * c) * Width;
      float y[Width];
#pragma unroll
      for (int w = 0; w < Width; ++w)
        y[w] = factor * x[i][c][w];
      if (v.vector && channel + Width <= size)
        storeVector(to + channel, y);
      else
#pragma unroll
        for (int w = 0; w < Width; ++w)
          if (channel + w < size)
            to[channel + w] = y[w];
    }
  }
}

//===----------------------------------------------------------------------===//
// Scores
//===----------------------------------------------------------------------===//

// Whether query `i` of a tile sees key `key0 + j` by its position. The score
// `x` becomes that with bias, mask and segments.
template <int N, int M>
__device__ __forceinline__ bool
prepare(float &x, const AttentionArguments &a, const QueryTile<N> &queries,
        const KeyTile<M> &keys, int key0, int i, int j) {
  int key = key0 + j;
  bool visible = key >= queries.begin[i] && key < queries.end[i];
  x = a.scale * x;
  if (!visible) {
    x = minusInfinity();
    return false;
  }
  if (a.bias)
    x += a.bias[queries.bias[i] + key * a.biasStrides[3]];
  if (a.mask && !a.mask[queries.mask[i] + key * a.maskStrides[3]])
    x = minusInfinity();
  if (a.querySegments && queries.segment[i] != keys.segment[j])
    x = minusInfinity();
  return true;
}

// The random numbers of one op in one step. Elements 16 apart in a group of 64
// share a counter, so the last words are kept.
struct DrawStream {
  unsigned long long seed;
  unsigned id, step;
};
struct Draws {
  unsigned long long counter = ~0ull;
  uint4 words;
};
__device__ __forceinline__ DrawStream streamOf(const AttentionArguments &a) {
  if (!a.dropout)
    return {0, 0, 0};
  return {(unsigned long long)a.rng[0], unsigned(a.dropoutId),
          unsigned(a.rng[1])};
}
__device__ __forceinline__ bool keeps(Draws &draws, unsigned long long element,
                                      const AttentionArguments &a,
                                      const DrawStream &stream) {
  unsigned long long counter = element / 64 * 16 + element % 16;
  if (counter != draws.counter) {
    draws.counter = counter;
    draws.words = philoxBlock(counter, stream.seed, stream.id, stream.step);
  }
  return pick(draws.words, unsigned(element / 16 % 4)) >= unsigned(a.threshold);
}

// The scores `s` become probabilities with dropout, and `g`, the gradients of
// those, the gradients of the scores. Rows are keys if `KeyRows`.
template <bool KeyRows, int Rows, int Columns, int N, int M>
__device__ __forceinline__ void
differentiate(float (&s)[Rows][Columns], float (&g)[Rows][Columns],
              const AttentionArguments &a, const QueryTile<N> &queries,
              const KeyTile<M> &keys, int key0, const DrawStream &stream) {
  // In the order in which draws share counters.
  constexpr int outer = KeyRows ? Columns : Rows;
  constexpr int inner = KeyRows ? Rows : Columns;
  constexpr int ways = KeyRows ? 2 : 1;
#pragma unroll
  for (int o = 0; o < outer; ++o) {
    Draws draws[ways];
#pragma unroll
    for (int n = 0; n < inner; ++n) {
      int r = KeyRows ? n : o, c = KeyRows ? o : n;
      int row = int(threadIdx.x) / 16 + 8 * r;
      int column = int(threadIdx.x) % 16 + 16 * c;
      int i = KeyRows ? column : row, j = KeyRows ? row : column;
      float x = s[r][c];
      if (!prepare(x, a, queries, keys, key0, i, j)) {
        s[r][c] = g[r][c] = 0.0f;
        continue;
      }
      float p = expf((x - queries.largest[i]) - queries.rest[i]);
      float dp = g[r][c];
      s[r][c] = p;
      if (a.dropout) {
        float keep = keeps(draws[n % ways], queries.element[i] + keys.place[j],
                           a, stream)
                         ? a.keepScale
                         : 0.0f;
        s[r][c] = p * keep;
        dp = dp * keep;
      }
      g[r][c] = p * (dp - queries.dot[i]);
    }
  }
}

// Weights of the result of other keys, which is there, and of this one, whose
// sum becomes that of both.
__device__ __forceinline__ void joinSums(const AttentionArguments &a,
                                         long long at, float &top, float &rest,
                                         float &before, float &factor) {
  float oldTop, oldRest;
  readSum(a, at, oldTop, oldRest);
  float both = oldTop > top ? oldTop : top;
  if (both == minusInfinity()) {
    top = oldTop;
    rest = oldRest;
    return;
  }
  float old = expf(oldTop - both + oldRest);
  float own = expf(top - both + rest);
  top = both;
  rest = logf(old + own);
  before = old / (old + own);
  factor *= own / (old + own);
}

// Whether any of `count` queries has a segment from `low` to `high`; `any`, and
// these as well, may be shared by the block, all of whose threads call.
template <int N>
__device__ __forceinline__ bool
anySegment(const QueryTile<N> &queries, int count, const long long &low,
           const long long &high, int &any) {
  if (threadIdx.x == 0)
    any = 0;
  __syncthreads();
  if (int(threadIdx.x) < count) {
    long long segment = queries.segment[threadIdx.x];
    if (segment >= low && segment <= high)
      any = 1;
  }
  __syncthreads();
  return any;
}

//===----------------------------------------------------------------------===//
// Forward
//===----------------------------------------------------------------------===//

template <int Size, int QueryRows, int KeyColumns>
__device__ __forceinline__ void attentionForward(const AttentionArguments &a) {
  using Tile = AttentionTile<Size, QueryRows, KeyColumns>;
  constexpr int rows = Tile::rows, columns = Tile::columns;
  extern __shared__ __align__(16) char shared[];
  float *tileQ = reinterpret_cast<float *>(shared);
  // Keys, then values.
  float *tileK = tileQ + QueryRows * Tile::stride;
  float *tileP = tileK + KeyColumns * Tile::stride;
  __shared__ QueryTile<QueryRows> queries;
  __shared__ KeyTile<KeyColumns> keys;

  // The last queries of a causal pass have the most keys, so they come first.
  unsigned heads = unsigned(a.batch) * unsigned(a.heads);
  int tiles = (a.queries + QueryRows - 1) / QueryRows;
  int first = (tiles - 1 - int(blockIdx.x / heads)) * QueryRows;
  int b = int(blockIdx.x % heads) / a.heads;
  int h = int(blockIdx.x % heads) % a.heads, kvHead = h / a.group;
  int count = a.queries - first < QueryRows ? a.queries - first : QueryRows;
  int tx = int(threadIdx.x) % 16, ty = int(threadIdx.x) / 16;
  DrawStream stream = streamOf(a);

  loadTile<Size, QueryRows>(tileQ, a.q, b, h, first, count, a.headSize);
  loadQueries<false>(queries, a, b, h, first, count);
  int begin, end;
  keyRange(a, b, first, count, begin, end);

  float out[rows][Tile::chunks][Tile::width];
  float largest[rows], sum[rows];
  clear(out);
#pragma unroll
  for (int i = 0; i < rows; ++i) {
    largest[i] = minusInfinity();
    sum[i] = 0.0f;
  }
#pragma unroll 1
  for (int key0 = begin / KeyColumns * KeyColumns; key0 < end;
       key0 += KeyColumns) {
    int keyCount = a.keys - key0 < KeyColumns ? a.keys - key0 : KeyColumns;
    __syncthreads();
    loadTile<Size, KeyColumns>(tileK, a.k, b, kvHead, key0, keyCount,
                               a.headSize);
    loadKeys(keys, a, b, key0, keyCount);
    __syncthreads();
    float s[rows][columns];
    product<Tile::stride>(s, tileQ, tileK, a.headSize);
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      int row = ty + 8 * i;
      float top = largest[i];
#pragma unroll
      for (int j = 0; j < columns; ++j) {
        prepare(s[i][j], a, queries, keys, key0, row, tx + 16 * j);
        top = s[i][j] > top ? s[i][j] : top;
      }
#pragma unroll
      for (int step = 8; step > 0; step /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, top, step);
        top = other > top ? other : top;
      }
      // If all scores are -inf or NaN, the latter must be seen in the sum.
      float factor = largest[i] == top ? 1.0f : expf(largest[i] - top);
      float base = top == minusInfinity() ? 0.0f : top;
      largest[i] = top;
      sum[i] *= factor;
#pragma unroll
      for (int c = 0; c < Tile::chunks; ++c)
#pragma unroll
        for (int w = 0; w < Tile::width; ++w)
          out[i][c][w] *= factor;
      Draws draws;
#pragma unroll
      for (int j = 0; j < columns; ++j) {
        float p = expf(s[i][j] - base);
        sum[i] += p;
        s[i][j] = p;
        int column = tx + 16 * j;
        // Keys that are not visible have no place.
        if (a.dropout && key0 + column < queries.end[row] &&
            !keeps(draws, queries.element[row] + keys.place[column], a, stream))
          s[i][j] = 0.0f;
      }
    }
    storeScores<Tile::scoreStride>(tileP, s);
    __syncthreads();
    loadTile<Size, KeyColumns>(tileK, a.v, b, kvHead, key0, keyCount,
                               a.valueSize);
    __syncthreads();
    accumulate<Tile::stride, Tile::scoreStride, KeyColumns>(out, tileP, tileK);
  }

#pragma unroll
  for (int i = 0; i < rows; ++i) {
    float total = sum[i];
#pragma unroll
    for (int step = 8; step > 0; step /= 2)
      total += __shfl_xor_sync(0xffffffffu, total, step);
    bool empty = largest[i] == minusInfinity() && total == 0.0f;
    float top = largest[i] == minusInfinity() && !empty ? 0.0f : largest[i];
    float rest = empty ? 0.0f : logf(total);
    float factor = empty ? 0.0f : 1.0f / total;
    if (a.dropout)
      factor *= a.keepScale;
    int row = ty + 8 * i;
    if (row >= count)
      continue;
    long long at = ((long long)b * a.heads + h) * a.queries + first + row;
    float before = 1.0f;
    if (a.onto)
      joinSums(a, at, top, rest, before, factor);
    // All threads of the row have read the sum.
    __syncwarp(0xffffu << (threadIdx.x & 16));
    if (tx == 0)
      writeSum(a, at, top, rest);
    float *to = rowOf(a.o, b, h, first + row);
#pragma unroll
    for (int c = 0; c < Tile::chunks; ++c) {
      int channel = (tx + 16 * c) * Tile::width;
      float y[Tile::width];
#pragma unroll
      for (int w = 0; w < Tile::width; ++w) {
        y[w] = factor * out[i][c][w];
        if (a.onto && channel + w < a.valueSize)
          y[w] += before * to[channel + w];
      }
      if (a.o.vector && channel + Tile::width <= a.valueSize)
        storeVector(to + channel, y);
      else
#pragma unroll
        for (int w = 0; w < Tile::width; ++w)
          if (channel + w < a.valueSize)
            to[channel + w] = y[w];
    }
  }
}

//===----------------------------------------------------------------------===//
// Gradients
//===----------------------------------------------------------------------===//

// Of queries. Also stores the sum of dO * O of each row, for the kernels below.
template <int Size, int QueryRows, int KeyColumns, bool Shares>
__device__ __forceinline__ void attentionQueries(const AttentionArguments &a) {
  using Tile = AttentionTile<Size, QueryRows, KeyColumns>;
  constexpr int rows = Tile::rows, columns = Tile::columns;
  extern __shared__ __align__(16) char shared[];
  float *tileQ = reinterpret_cast<float *>(shared);
  float *tileG = tileQ + QueryRows * Tile::stride;
  float *tileK = tileG + QueryRows * Tile::stride;
  float *tileV = Shares ? tileK : tileK + KeyColumns * Tile::stride;
  float *tileP = tileV + KeyColumns * Tile::stride;
  __shared__ QueryTile<QueryRows> queries;
  __shared__ KeyTile<KeyColumns> keys;

  unsigned heads = unsigned(a.batch) * unsigned(a.heads);
  int tiles = (a.queries + QueryRows - 1) / QueryRows;
  int first = (tiles - 1 - int(blockIdx.x / heads)) * QueryRows;
  int b = int(blockIdx.x % heads) / a.heads;
  int h = int(blockIdx.x % heads) % a.heads, kvHead = h / a.group;
  int count = a.queries - first < QueryRows ? a.queries - first : QueryRows;
  int tx = int(threadIdx.x) % 16, ty = int(threadIdx.x) / 16;
  DrawStream stream = streamOf(a);

  loadTile<Size, QueryRows>(tileQ, a.q, b, h, first, count, a.headSize);
  loadTile<Size, QueryRows>(tileG, a.dO, b, h, first, count, a.valueSize);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < rows; ++i) {
    int row = ty + 8 * i;
    float dot = 0.0f;
    if (row < count) {
      const float *o = rowOf(a.o, b, h, first + row);
#pragma unroll 4
      for (int c = tx; c < a.valueSize; c += 16)
        dot = fmaf(tileG[row * Tile::stride + c], o[c], dot);
    }
#pragma unroll
    for (int step = 8; step > 0; step /= 2)
      dot += __shfl_xor_sync(0xffffffffu, dot, step);
    if (tx == 0 && row < count)
      a.dots[((long long)b * a.heads + h) * a.queries + first + row] = dot;
  }
  __syncthreads();
  loadQueries<true>(queries, a, b, h, first, count);
  int begin, end;
  keyRange(a, b, first, count, begin, end);

  float dQ[rows][Tile::chunks][Tile::width];
  clear(dQ);
#pragma unroll 1
  for (int key0 = begin / KeyColumns * KeyColumns; key0 < end;
       key0 += KeyColumns) {
    int keyCount = a.keys - key0 < KeyColumns ? a.keys - key0 : KeyColumns;
    float s[rows][columns], g[rows][columns];
    __syncthreads();
    loadKeys(keys, a, b, key0, keyCount);
    if constexpr (Shares) {
      loadTile<Size, KeyColumns>(tileV, a.v, b, kvHead, key0, keyCount,
                                 a.valueSize);
      __syncthreads();
      product<Tile::stride>(g, tileG, tileV, a.valueSize);
      __syncthreads();
    } else {
      loadTile<Size, KeyColumns>(tileV, a.v, b, kvHead, key0, keyCount,
                                 a.valueSize);
    }
    loadTile<Size, KeyColumns>(tileK, a.k, b, kvHead, key0, keyCount,
                               a.headSize);
    __syncthreads();
    if constexpr (!Shares)
      product<Tile::stride>(g, tileG, tileV, a.valueSize);
    product<Tile::stride>(s, tileQ, tileK, a.headSize);
    differentiate<false>(s, g, a, queries, keys, key0, stream);
    storeScores<Tile::scoreStride>(tileP, g);
    __syncthreads();
    accumulate<Tile::stride, Tile::scoreStride, KeyColumns>(dQ, tileP, tileK);
  }
  storeRows(a.dQ, b, h, first, count, a.headSize, dQ, a.scale);
}

// Of keys and values: rows are keys, and the queries of all heads that share
// the key head are columns, in order.
template <int Size, int KeyRows, int QueryColumns, bool Shares>
__device__ __forceinline__ void attentionKeys(const AttentionArguments &a) {
  using Tile = AttentionTile<Size, KeyRows, QueryColumns>;
  constexpr int rows = Tile::rows, columns = Tile::columns;
  extern __shared__ __align__(16) char shared[];
  float *tileK = reinterpret_cast<float *>(shared);
  float *tileV = tileK + KeyRows * Tile::stride;
  float *tileQ = tileV + KeyRows * Tile::stride;
  float *tileG = Shares ? tileQ : tileQ + QueryColumns * Tile::stride;
  float *tileP = tileG + QueryColumns * Tile::stride;
  float *tileS = tileP + KeyRows * Tile::scoreStride;
  __shared__ QueryTile<QueryColumns> queries;
  __shared__ KeyTile<KeyRows> keys;
  __shared__ int any;

  unsigned heads = unsigned(a.batch) * unsigned(a.kvHeads);
  int key0 = int(blockIdx.x / heads) * KeyRows;
  int b = int(blockIdx.x % heads) / a.kvHeads;
  int kvHead = int(blockIdx.x % heads) % a.kvHeads;
  int keyCount = a.keys - key0 < KeyRows ? a.keys - key0 : KeyRows;
  DrawStream stream = streamOf(a);

  loadTile<Size, KeyRows>(tileK, a.k, b, kvHead, key0, keyCount, a.headSize);
  loadTile<Size, KeyRows>(tileV, a.v, b, kvHead, key0, keyCount, a.valueSize);
  loadKeys(keys, a, b, key0, keyCount);
  long long low = 0, high = 0;
  if (a.keySegments)
    segmentRange(a.keySegments + (long long)b * a.keys + key0, keyCount, low,
                 high);

  float dK[rows][Tile::chunks][Tile::width],
      dV[rows][Tile::chunks][Tile::width];
  clear(dK);
  clear(dV);
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
      loadTile<Size, QueryColumns>(tileQ, a.q, b, h, first, count, a.headSize);
      float s[rows][columns], g[rows][columns];
      if constexpr (Shares) {
        __syncthreads();
        product<Tile::stride>(s, tileK, tileQ, a.headSize);
        __syncthreads();
      }
      loadTile<Size, QueryColumns>(tileG, a.dO, b, h, first, count,
                                   a.valueSize);
      __syncthreads();
      if constexpr (!Shares)
        product<Tile::stride>(s, tileK, tileQ, a.headSize);
      product<Tile::stride>(g, tileV, tileG, a.valueSize);
      differentiate<true>(s, g, a, queries, keys, key0, stream);
      storeScores<Tile::scoreStride>(tileP, s);
      storeScores<Tile::scoreStride>(tileS, g);
      __syncthreads();
      accumulate<Tile::stride, Tile::scoreStride, QueryColumns>(dV, tileP,
                                                                tileG);
      if constexpr (Shares) {
        __syncthreads();
        loadTile<Size, QueryColumns>(tileQ, a.q, b, h, first, count,
                                     a.headSize);
        __syncthreads();
      }
      accumulate<Tile::stride, Tile::scoreStride, QueryColumns>(dK, tileS,
                                                                tileQ);
    }
  storeRows(a.dK, b, kvHead, key0, keyCount, a.headSize, dK, a.scale);
  storeRows(a.dV, b, kvHead, key0, keyCount, a.valueSize, dV, 1.0f);
}

// The part of the bias whose gradient a block has: in each dimension that the
// bias has, one tile, and all of the others.
template <int Rows, int Columns> struct BiasPart {
  bool ofBatch, ofHead, ofQuery, ofKey;
  int queryCount, keyCount;
  int batch, head, queryTile, keyTile, query0, keyBase;
  int lastBatch, lastHead, lastQueryTile, lastKeyTile;

  __device__ __forceinline__ explicit BiasPart(const AttentionArguments &a) {
    ofBatch = a.biasStrides[0] != 0;
    ofHead = a.biasStrides[1] != 0;
    ofQuery = a.biasStrides[2] != 0;
    ofKey = a.biasStrides[3] != 0;
    // The queries and keys of one block, or all.
    queryCount = ofQuery ? a.queriesPerBlock : a.queries;
    keyCount = ofQuery ? a.keysPerBlock : a.keys;
    int queryTiles = (queryCount + Rows - 1) / Rows;
    int keyTiles = (keyCount + Columns - 1) / Columns;

    int index = int(blockIdx.x);
    keyTile = ofKey ? index % keyTiles : 0;
    index = ofKey ? index / keyTiles : index;
    queryTile = ofQuery ? index % queryTiles : 0;
    index = ofQuery ? index / queryTiles : index;
    int part = ofQuery ? index % a.blocks : 0;
    index = ofQuery ? index / a.blocks : index;
    head = ofHead ? index % a.heads : 0;
    index = ofHead ? index / a.heads : index;
    batch = ofBatch ? index : 0;
    query0 = part * a.queriesPerBlock;
    keyBase = part * a.keysPerBlock;
    lastBatch = ofBatch ? batch + 1 : a.batch;
    lastHead = ofHead ? head + 1 : a.heads;
    lastQueryTile = ofQuery ? queryTile + 1 : queryTiles;
    lastKeyTile = ofKey ? keyTile + 1 : keyTiles;
  }

  // The place of the row of this block's first query and its first key.
  __device__ __forceinline__ long long
  begin(const AttentionArguments &a) const {
    long long at = batch;
    at = ofHead ? at * a.heads + head : at;
    at = ofQuery ? at * a.queries + query0 + queryTile * Rows : at;
    return ofKey ? at * keyCount + keyTile * Columns : at;
  }
  __device__ __forceinline__ int rowCount() const {
    int count = queryCount - queryTile * Rows;
    return count < Rows ? count : Rows;
  }
  __device__ __forceinline__ int columnCount() const {
    int count = keyCount - keyTile * Columns;
    return count < Columns ? count : Columns;
  }
  // The queries of the part from `first` on and its keys from `key0` on, at most
  // those of a tile.
  __device__ __forceinline__ int queriesFrom(int first) const {
    int count = query0 + queryCount - first;
    return count < Rows ? count : Rows;
  }
  __device__ __forceinline__ int keysFrom(int key0) const {
    int count = keyBase + keyCount - key0;
    return count < Columns ? count : Columns;
  }

  // The sums of columns, of rows, or of all, of a tile in shared memory.
  template <int Stride>
  __device__ __forceinline__ void addUp(float *to, const float *tile) const {
    int t = int(threadIdx.x), outputs = 1;
    if (ofQuery)
      outputs = rowCount();
    else if (ofKey)
      outputs = columnCount();
    if (t >= outputs)
      return;
    float total = 0.0f;
    for (int i = ofQuery ? t : 0; i < (ofQuery ? t + 1 : Rows); ++i)
      for (int j = ofKey ? t : 0; j < (ofKey ? t + 1 : Columns); ++j)
        total += tile[i * Stride + j];
    to[t] = total;
  }
};

// Of the bias, dense in its broadcast shape: a block has a tile of that, and
// adds over the dimensions that share it in the order of batches, heads,
// queries and keys. If it has queries, tiles are within their block.
template <int Size, int QueryRows, int KeyColumns, bool Shares>
__device__ __forceinline__ void attentionBias(const AttentionArguments &a) {
  using Tile = AttentionTile<Size, QueryRows, KeyColumns>;
  constexpr int rows = Tile::rows, columns = Tile::columns;
  extern __shared__ __align__(16) char shared[];
  float *tileQ = reinterpret_cast<float *>(shared);
  float *tileG = tileQ + QueryRows * Tile::stride;
  float *tileK = tileG + QueryRows * Tile::stride;
  float *tileV = Shares ? tileK : tileK + KeyColumns * Tile::stride;
  float *tileP = tileV + KeyColumns * Tile::stride;
  __shared__ QueryTile<QueryRows> queries;
  __shared__ KeyTile<KeyColumns> keys;

  const BiasPart<QueryRows, KeyColumns> part(a);
  DrawStream stream = streamOf(a);

  float sum[1][rows][columns];
  clear(sum);
#pragma unroll 1
  for (int b = part.batch; b < part.lastBatch; ++b)
#pragma unroll 1
    for (int h = part.head; h < part.lastHead; ++h)
#pragma unroll 1
      for (int q = part.queryTile; q < part.lastQueryTile; ++q) {
        int first = part.query0 + q * QueryRows;
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
            loadTile<Size, QueryRows>(tileQ, a.q, b, h, first, count,
                                      a.headSize);
            loadTile<Size, QueryRows>(tileG, a.dO, b, h, first, count,
                                      a.valueSize);
            loadQueries<true>(queries, a, b, h, first, count);
            loaded = true;
          }
          loadKeys(keys, a, b, key0, size);
          float s[rows][columns], g[rows][columns];
          loadTile<Size, KeyColumns>(tileK, a.k, b, kvHead, key0, size,
                                     a.headSize);
          if constexpr (Shares) {
            __syncthreads();
            product<Tile::stride>(s, tileQ, tileK, a.headSize);
            __syncthreads();
          }
          loadTile<Size, KeyColumns>(tileV, a.v, b, kvHead, key0, size,
                                     a.valueSize);
          __syncthreads();
          if constexpr (!Shares)
            product<Tile::stride>(s, tileQ, tileK, a.headSize);
          product<Tile::stride>(g, tileG, tileV, a.valueSize);
          differentiate<false>(s, g, a, queries, keys, key0, stream);
#pragma unroll
          for (int i = 0; i < rows; ++i)
#pragma unroll
            for (int j = 0; j < columns; ++j)
              sum[0][i][j] += g[i][j];
        }
      }

  float *to = a.dBias + part.begin(a);
  int rowCount = part.rowCount(), columnCount = part.columnCount();
  if (part.ofQuery && part.ofKey) {
#pragma unroll
    for (int i = 0; i < rows; ++i)
#pragma unroll
      for (int j = 0; j < columns; ++j) {
        int row = int(threadIdx.x) / 16 + 8 * i;
        int column = int(threadIdx.x) % 16 + 16 * j;
        if (row < rowCount && column < columnCount)
          to[(long long)row * part.keyCount + column] = sum[0][i][j];
      }
    return;
  }
  __syncthreads();
  storeScores<Tile::scoreStride>(tileP, sum[0]);
  __syncthreads();
  part.template addUp<Tile::scoreStride>(to, tileP);
}

// As many registers as two blocks of a multiprocessor leave, so that none
// spills; the gradients of long keys take all that a thread can have.
#define CLEAVE_ATTENTION_KERNELS(Size, FR, FC, QR, QC, QS, KR, KC, KS)         \
  extern "C" __global__ void __launch_bounds__(attentionThreads, 2)            \
      cleave_attention_forward_##Size(AttentionArguments a) {                  \
    attentionForward<Size, FR, FC>(a);                                         \
  }                                                                            \
  extern "C" __global__ void __launch_bounds__(attentionThreads, 2)            \
      cleave_attention_queries_##Size(AttentionArguments a) {                  \
    attentionQueries<Size, QR, QC, QS>(a);                                     \
  }                                                                            \
  extern "C" __global__ void __launch_bounds__(attentionThreads,               \
                                               Size > 128 ? 1 : 2)             \
      cleave_attention_keys_##Size(AttentionArguments a) {                     \
    attentionKeys<Size, KR, KC, KS>(a);                                        \
  }                                                                            \
  extern "C" __global__ void __launch_bounds__(attentionThreads, 2)            \
      cleave_attention_bias_##Size(AttentionArguments a) {                     \
    attentionBias<Size, QR, QC, QS>(a);                                        \
  }
CLEAVE_ATTENTION_CLASSES(CLEAVE_ATTENTION_KERNELS)
#undef CLEAVE_ATTENTION_KERNELS
