//===- KernelArguments.h - Arguments of command kernels ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The arguments of the kernels in lib/Target/CUDA/Kernels, passed by value.
/// The host and the device text both include this file, so it includes nothing
/// and pointers are those of the device. Strides are in elements.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_EXECUTABLE_CUDA_KERNELARGUMENTS_H
#define CLEAVE_EXECUTABLE_CUDA_KERNELARGUMENTS_H

/// `cleave_copy_N`, elements of N bytes: `rows` rows, the product of `sizes`,
/// of `columns` elements. A block of 256 threads has 2^columnBits neighbours in
/// a row, and the rest in different rows; each thread goes over `perThread`
/// columns.
/// `cleave_transpose_N`: the columns are contiguous in the destination, and the
/// last of `sizes` is contiguous in the source; a block has a tile of both.
struct CopyArguments {
  const void *src;
  void *dst;
  long long rows, columns, srcColumn, dstColumn;
  /// Blocks that share a row, or tiles along the columns.
  long long blocksPerRow;
  int columnBits, perThread;
  int rank, pad;
  long long sizes[8], srcStrides[8], dstStrides[8];
};

/// `cleave_fill`: the first `head` bytes up to an address that is a multiple of
/// 16, `words` times 16 bytes, and `tail` bytes. `pattern` is that of the words
/// and goes on in the tail; `headPattern` is that of the head. Each of 256
/// threads of a block goes over `perThread` words.
struct FillArguments {
  unsigned char *dst;
  long long words;
  int head, tail;
  int perThread, pad;
  long long headPattern[2], pattern[2];
};

/// `cleave_check`: what the first failed check is of those with the largest
/// severity.
struct CheckStatus {
  /// 0: none, else its severity (Program.h).
  int failed;
  int index;
  /// The values of its message.
  long long values[4];
};

/// `cleave_sort_count`, `cleave_sort_sum`, `cleave_sort_move`: one pass of a
/// stable sort of keys by the eight bits from `shift` on.
struct SortArguments {
  /// The ids, in the first pass: those that no row of the result has become the
  /// key `outRows`. Null in later passes.
  const void *ids;
  int wide, hasSkip;
  long long skipIndex;
  const int *fromKeys, *fromIndices;
  int *toKeys, *toIndices;
  /// By block and digit, the number of keys, later that of all blocks before;
  /// and by digit, the number of keys with smaller digits.
  int *counts, *starts;
  int count, outRows, blocks, shift;
};

/// `cleave_scatter_add`: adds rows in the order of their sorted ids. A block of
/// 128 threads has 2^columnBits neighbours in a row, and the rest in different
/// rows of the result (`byRow`) or starts of equal ids.
struct ScatterArguments {
  const float *rows;
  float *out;
  const int *keys, *indices;
  long long columns, blocksPerRow;
  int count, outRows, byRow, columnBits;
};

/// `cleave_top_k_row` for short rows; `cleave_top_k_count` for each pass,
/// `cleave_top_k_totals` and `cleave_top_k_collect` for long ones; then, for
/// all that is selected, `cleave_top_k_rows` and `cleave_top_k_write`. See
/// TopKScratch.h.
struct TopKArguments {
  const float *in;
  float *values;
  long long *indices;
  unsigned *histograms;
  int *totals, *counts, *keys, *places, *chosen;
  int columns, k, segment, chunks, selected, pass;
};

/// `cleave_orthonormal_load`, then `cleave_orthonormal_reflect` for each
/// column, `cleave_orthonormal_finish`, `cleave_orthonormal_form`. `size` is
/// the scratch memory of a matrix; the following are offsets in it, see
/// OrthonormalScratch.h.
struct OrthonormalArguments {
  const float *in;
  float *out;
  double *scratch;
  long long rows, size, matrix, norms, sums[2], pivots, gram, triangle, product,
      factors, signs;
  double tolerance;
  int columns, blockRows, blocks, column;
};

/// `cleave_grouped_order`: the order of rows by group. A block for each group,
/// and one for the rows of no group here. `width`: the bytes of a group.
struct SortRowsArguments {
  const void *groups;
  const long long *origin;
  long long *order, *inverse, *offsets;
  int rows, size, width, pad;
};

/// `cleave_grouped_rows_T` and `cleave_grouped_weight_T`: matmuls of sorted
/// rows, see GroupedContractCommand. A block of 256 threads has a tile of 16
/// rows and columns of the result; `columnTiles` (and `depthTiles`, along k, of
/// a gradient of weights) are the tiles of a matrix.
struct GroupedArguments {
  const void *a, *b;
  const long long *offsets;
  void *out;
  long long lda, ldb, groupStrideB;
  int rows, k, m, groups, ranges, transposed, columnTiles, depthTiles;
};

/// A strided view [batch, head, position, channel]. `vector`: whether each row
/// is aligned to 16 bytes; `wide`: whether elements are f32.
struct HeadArguments {
  void *data;
  long long strideBatch, strideHead, stridePosition;
  int vector, wide;
};

/// `cleave_attention_*`, of 16-bit heads `cleave_attention_*_bf16_*` and
/// `cleave_attention_*_f16_*`: see AttentionCommand.
struct AttentionArguments {
  HeadArguments q, k, v, o, dO, dQ, dK, dV;
  float *lse;
  const float *bias;
  const unsigned char *mask;
  const long long *querySegments, *keySegments;
  const long long *rng, *origin, *queryStarts, *keyStarts;
  float *dBias;
  /// Scratch memory of the backward pass: the sum of dO * O of each row.
  float *dots;
  long long biasStrides[4], maskStrides[4];
  long long window, shift, globalHeads, globalQueries, paddedKeys;
  int batch, heads, kvHeads, group, queries, keys, headSize, valueSize;
  int causal, onto, dropout;
  /// Draws below this, an unsigned number, are dropped.
  int threshold;
  int dropoutId, blocks, queriesPerBlock, keysPerBlock;
  int queriesPerPiece, keyPieces, keysPerPiece;
  float scale, keepScale;
  int pad;
};

/// `cleave_to_order_N`: `count` floats of N bytes to signed integers of 32 or
/// 64 bits in the same order, in which NaN is the last one, or (`least`) the
/// first. `cleave_from_order_N`: the reverse. `infinity` is the bits of the
/// type's infinity.
struct OrderArguments {
  const void *src;
  void *dst;
  long long count, infinity;
  int least, pad;
};

/// `cleave_reduce_TYPE_OPERATION`: the elements [begin, end) of the members,
/// which are in the order of Support/TreeOrder.h, combined, to each of
/// `writers`. One of them may be a member's.
struct ReduceArguments {
  const void *srcs[64];
  void *dsts[64];
  long long begin, end;
  int members, writers;
};

/// For each class of head sizes, the rows and columns of a tile of scores, for
/// each kind of kernel. `Shares`: its two operands for columns share memory.
///   X(Size, forward rows and columns, gradients of queries and of the bias:
///     rows, columns, Shares, gradients of keys: rows, columns, Shares)
#define CLEAVE_ATTENTION_CLASSES(X)                                            \
  X(32, 64, 64, 64, 32, 0, 64, 32, 0)                                          \
  X(64, 64, 64, 64, 32, 0, 64, 32, 0)                                          \
  X(96, 64, 32, 32, 32, 0, 32, 32, 0)                                          \
  X(128, 64, 32, 32, 32, 0, 32, 32, 0)                                         \
  X(256, 32, 32, 32, 16, 1, 32, 16, 1)

/// Those of 16-bit heads: rows are 64, and these are the columns.
///   X(Size, forward, gradients of queries, of the bias, of keys, whether those
///     of keys and of values are computed one after the other)
#define CLEAVE_ATTENTION16_CLASSES(X)                                          \
  X(32, 64, 64, 32, 64, 0)                                                     \
  X(64, 64, 64, 32, 64, 0)                                                     \
  X(96, 64, 64, 32, 32, 0)                                                     \
  X(128, 64, 64, 32, 32, 0)                                                    \
  X(256, 32, 16, 16, 16, 1)

#endif // CLEAVE_EXECUTABLE_CUDA_KERNELARGUMENTS_H
