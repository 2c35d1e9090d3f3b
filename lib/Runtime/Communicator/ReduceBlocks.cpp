//===- ReduceBlocks.cpp - Copying and reducing blocks ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Communicator/ReduceBlocks.h"
#include "cleave/Runtime/Core/WordType.h"
#include "cleave/Support/NarrowFloat.h"
#include "cleave/Support/TreeOrder.h"

#include <cstring>
#include <type_traits>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

using namespace cleave::runtime;

Block::Block(int count, const int64_t *sizesIn, const int64_t *srcIn,
             const int64_t *dstIn) {
  for (int i = 0; i < count; ++i) {
    elements *= sizesIn[i];
    if (sizesIn[i] == 1)
      continue;
    if (dims > 0 && src[dims - 1] == srcIn[i] * sizesIn[i] &&
        dst[dims - 1] == dstIn[i] * sizesIn[i]) {
      sizes[dims - 1] *= sizesIn[i];
      src[dims - 1] = srcIn[i];
      dst[dims - 1] = dstIn[i];
      continue;
    }
    sizes[dims] = sizesIn[i];
    src[dims] = srcIn[i];
    dst[dims] = dstIn[i];
    ++dims;
  }
  if (dims == 0) {
    dims = 1;
    sizes[0] = elements;
    src[0] = dst[0] = 1;
  }
}

void cleave::runtime::denseStrides(int count, const int64_t *sizes,
                                   int64_t *strides) {
  int64_t stride = 1;
  for (int i = count; i-- > 0;) {
    strides[i] = stride;
    stride *= sizes[i];
  }
}

int64_t cleave::runtime::elementBytes(int32_t dtype) {
  static constexpr int64_t bytes[] = {8, 4, 2, 2, 8, 4, 1, 1, 1, 1};
  return dtype >= 0 && dtype <= CLEAVE_F8E5M2 ? bytes[dtype] : 0;
}

/// Rows that are sent to all members.
static std::string checkRowBlock(const cleave_collective &c) {
  if (c.dims < 1)
    return "rows have a dimension";
  if (c.bound < 0)
    return "the number of rows that are received must not be negative";
  if (!c.send_offsets || !c.receive_offsets)
    return "rows have no offsets";
  int64_t row = 1, given = 0, received = 0;
  for (int i = c.dims; i-- > 0;) {
    if (c.sizes[i] < 0 || (c.sizes[i] > 1 && (c.src_strides[i] != row ||
                                              c.dst_strides[i] != row)))
      return "rows must be dense";
    if (i > 0 && __builtin_mul_overflow(row, c.sizes[i], &row))
      return "a row has too many elements";
  }
  if (__builtin_mul_overflow(row, c.sizes[0], &given) ||
      __builtin_mul_overflow(row, c.bound, &received))
    return "a message has too many elements";
  if ((given > 0 && !c.src) || (received > 0 && !c.dst))
    return "rows have no address";
  return "";
}

static std::string checkBlock(const cleave_collective &c, int members) {
  if (c.kind < CLEAVE_ALL_REDUCE || c.kind > CLEAVE_ALL_TO_ALL_ROWS)
    return "unknown kind of collective";
  if (elementBytes(c.dtype) == 0)
    return "unknown element type";
  if (c.dims < 0 || c.dims > CLEAVE_BLOCK_DIMS)
    return "a block has at most 8 dimensions";
  int64_t elements = 1;
  if (c.kind == CLEAVE_ALL_TO_ALL_ROWS)
    return checkRowBlock(c);
  for (int i = 0; i < c.dims; ++i)
    if (c.sizes[i] < 0 || c.src_strides[i] < 0 || c.dst_strides[i] < 0 ||
        __builtin_mul_overflow(elements, c.sizes[i], &elements))
      return "sizes and strides must not be negative";
  bool sent = c.kind == CLEAVE_SEND;
  if (elements > 0 && (sent ? !c.src && !c.dst : !c.src || !c.dst))
    return "a block has no address";
  if (sent && members != 2)
    return "a send has one sender and one receiver";
  bool reduces = c.kind == CLEAVE_ALL_REDUCE ||
                 c.kind == CLEAVE_REDUCE_SCATTER || c.kind == CLEAVE_REDUCE;
  if (reduces) {
    bool bytes = c.dtype == CLEAVE_I8 || c.dtype == CLEAVE_I1;
    if (c.reduction < CLEAVE_SUM || c.reduction > CLEAVE_MIN ||
        (bytes && c.reduction == CLEAVE_SUM))
      return "this reduction does not support this element type";
  }
  bool rooted = c.kind == CLEAVE_BROADCAST || c.kind == CLEAVE_REDUCE;
  if (rooted && (c.root < 0 || c.root >= members))
    return "the root is not a member";
  if (c.kind == CLEAVE_PERMUTE) {
    if (!c.sources)
      return "a permutation needs its sources";
    for (int i = 0; i < members; ++i)
      if (c.sources[i] < 0 || c.sources[i] >= members)
        return "a source is not a member";
  }
  for (const int64_t *offsets : {c.src_offsets, c.dst_offsets})
    for (int i = 0; offsets && i < members; ++i)
      if (offsets[i] < 0)
        return "an offset is negative";
  return "";
}

std::string cleave::runtime::checkCollective(const cleave_collective *blocks,
                                             int count, int members) {
  if (count < 1)
    return "a collective needs a block";
  const cleave_collective &first = blocks[0];
  if (count > 1 && first.kind == CLEAVE_ALL_TO_ALL_ROWS)
    return "rows are one block";
  for (int i = 0; i < count; ++i) {
    const cleave_collective &c = blocks[i];
    if (std::string problem = checkBlock(c, members); !problem.empty())
      return problem;
    bool same = c.kind == first.kind && c.reduction == first.reduction &&
                c.dtype == first.dtype && c.root == first.root &&
                !c.sources == !first.sources;
    for (int j = 0; same && c.sources && j < members; ++j)
      same = c.sources[j] == first.sources[j];
    if (!same)
      return "the blocks of a collective differ in more than their addresses";
  }
  return "";
}

std::string cleave::runtime::commonOf(const cleave_collective *blocks,
                                      int count, int members) {
  std::string bytes;
  auto add = [&](int64_t value) {
    bytes.append(reinterpret_cast<const char *>(&value), sizeof(value));
  };
  auto addAll = [&](const auto *list, int n) {
    for (int i = 0; i < n; ++i)
      add(list ? list[i] : 0);
  };
  add(count);
  for (int i = 0; i < count; ++i) {
    const cleave_collective &c = blocks[i];
    // For a send, each end knows only its own strides.
    bool strides = c.kind != CLEAVE_SEND;
    for (int64_t value : {c.kind, c.reduction, c.dtype, c.dims, c.root})
      add(value);
    addAll(c.sizes, c.dims);
    addAll(strides ? c.src_strides : nullptr, c.dims);
    addAll(strides ? c.dst_strides : nullptr, c.dims);
    addAll(c.src_offsets, members);
    addAll(c.dst_offsets, members);
    if (c.kind == CLEAVE_PERMUTE)
      addAll(c.sources, members);
    if (c.kind == CLEAVE_ALL_TO_ALL_ROWS)
      add(c.bound);
  }
  return bytes;
}

std::string cleave::runtime::describe(int32_t kind, int32_t dtype,
                                      int64_t elements) {
  static constexpr const char *kinds[] = {
      "an all-reduce", "an all-gather", "a reduce-scatter",
      "an all-to-all", "a permutation", "a broadcast",
      "a reduction",   "a transfer",    "an all-to-all of rows"};
  static constexpr const char *types[] = {"f64",      "f32",   "f16", "bf16",
                                          "i64",      "i32",   "i8",  "i1",
                                          "f8E4M3FN", "f8E5M2"};
  return std::string(kinds[kind]) + " of " + std::to_string(elements) +
         " elements of " + types[dtype];
}

int64_t cleave::runtime::countElements(const cleave_collective *blocks,
                                       int count) {
  int64_t all = 0;
  for (int i = 0; i < count; ++i) {
    int64_t n = 1;
    for (int d = 0; d < blocks[i].dims; ++d)
      n *= blocks[i].sizes[d];
    all += n;
  }
  return all;
}

std::string cleave::runtime::checkGroup(const int32_t *ranks, int32_t count,
                                        int32_t rank, int32_t size,
                                        int &member) {
  member = -1;
  std::vector<bool> seen(static_cast<size_t>(size));
  for (int32_t i = 0; i < count; ++i) {
    if (ranks[i] < 0 || ranks[i] >= size || seen[static_cast<size_t>(ranks[i])])
      return "a group names a rank twice, or one that does not exist";
    seen[static_cast<size_t>(ranks[i])] = true;
    if (ranks[i] == rank)
      member = i;
  }
  return member < 0 ? "a group does not contain the rank that creates it" : "";
}

//===----------------------------------------------------------------------===//
// Runs
//===----------------------------------------------------------------------===//

/// Calls `body(src, dst, length)` for each piece of [begin, end) that is
/// contiguous along the last dimension; offsets in elements.
template <typename F>
static void forEachRun(const Block &block, int64_t begin, int64_t end,
                       const F &body) {
  int last = block.dims - 1;
  int64_t length = block.sizes[last];
  while (begin < end) {
    int64_t inner = begin % length, row = begin / length;
    int64_t src = inner * block.src[last], dst = inner * block.dst[last];
    for (int d = last - 1; d >= 0; --d) {
      int64_t i = row % block.sizes[d];
      row /= block.sizes[d];
      src += i * block.src[d];
      dst += i * block.dst[d];
    }
    int64_t count = std::min(length - inner, end - begin);
    body(src, dst, count);
    begin += count;
  }
}

template <typename T>
static void copyTyped(const Block &block, const T *src, T *dst, int64_t begin,
                      int64_t end) {
  int64_t from = block.src[block.dims - 1], to = block.dst[block.dims - 1];
  forEachRun(block, begin, end, [&](int64_t s, int64_t d, int64_t count) {
    if (from == 1 && to == 1) {
      std::memcpy(dst + d, src + s, static_cast<size_t>(count) * sizeof(T));
      return;
    }
    for (int64_t i = 0; i < count; ++i)
      dst[d + i * to] = src[s + i * from];
  });
}

void cleave::runtime::copyBlock(const Block &block, int64_t bytes,
                                const void *src, void *dst, int64_t begin,
                                int64_t end) {
  withWordType(bytes, [&](auto *type) {
    using T = std::remove_pointer_t<decltype(type)>;
    copyTyped(block, static_cast<const T *>(src), static_cast<T *>(dst), begin,
              end);
  });
}

//===----------------------------------------------------------------------===//
// Reductions
//===----------------------------------------------------------------------===//

namespace {

struct Sum {
  template <typename T> static T combine(T a, T b) {
    // Integers wrap.
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(std::make_unsigned_t<T>(a) +
                            std::make_unsigned_t<T>(b));
    else
      return a + b;
  }
};

/// The first of two equal values, or NaN if there is one.
struct Max {
  template <typename T> static T combine(T a, T b) {
    return a == a && (b > a || b != b) ? b : a;
  }
};

struct Min {
  template <typename T> static T combine(T a, T b) {
    return a == a && (b < a || b != b) ? b : a;
  }
};

/// The number of elements that are combined at once; they stay in the
/// first-level cache.
constexpr int64_t chunk = 1024;

/// Members are 32-bit numbers.
constexpr int kTreeLevels = 33;

/// From this size on, a result is larger than the private caches of a core: it
/// is written with non-temporal stores.
constexpr int64_t streamBytes = int64_t(4) << 20;

} // namespace

/// Values of 16 and 8 bits are combined in f32 and rounded once.
static float combined(cleave::BFloat value) { return cleave::widen(value); }
static float combined(cleave::Half value) { return cleave::widen(value); }
static float combined(cleave::Float8E4M3 value) { return cleave::widen(value); }
static float combined(cleave::Float8E5M2 value) { return cleave::widen(value); }
template <typename T> static T combined(T value) { return value; }

static void round(float value, cleave::BFloat &to) {
  to = cleave::toBFloat(value);
}
static void round(float value, cleave::Half &to) { to = cleave::toHalf(value); }
static void round(float value, cleave::Float8E4M3 &to) {
  to = cleave::toFloat8E4M3(value);
}
static void round(float value, cleave::Float8E5M2 &to) {
  to = cleave::toFloat8E5M2(value);
}
template <typename T> static void round(T value, T &to) { to = value; }

template <typename T>
static void store(const T *from, T *to, int64_t count, bool stream) {
#if defined(__SSE2__)
  if (stream && reinterpret_cast<uintptr_t>(to) % 16 == 0) {
    constexpr int64_t lanes = 16 / sizeof(T);
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes)
      _mm_stream_si128(
          reinterpret_cast<__m128i *>(to + i),
          _mm_load_si128(reinterpret_cast<const __m128i *>(from + i)));
    for (; i < count; ++i)
      to[i] = from[i];
    return;
  }
#endif
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
}

template <typename Op, typename T>
static void reduceTyped(const Block &block, const void *const *srcs,
                        int readers, void *const *dsts, int writers,
                        int64_t begin, int64_t end, bool stream) {
  int64_t from = block.src[block.dims - 1], to = block.dst[block.dims - 1];
  // Sums of 2, 4, 8, ... members: two of one size become one of the next.
  using Wide = decltype(combined(T()));
  alignas(64) Wide levels[kTreeLevels][chunk];
  Wide *sums = levels[0];
  auto source = [&](int k) {
    return static_cast<const T *>(srcs[cleave::treeOrder(k, readers)]);
  };
  forEachRun(block, begin, end, [&](int64_t s, int64_t d, int64_t length) {
    for (int64_t at = 0; at < length; at += chunk) {
      int64_t count = std::min(chunk, length - at);
      int64_t first = s + at * from, target = d + at * to;
      auto merge = [&](int level) {
        for (int64_t i = 0; i < count; ++i)
          levels[level][i] =
              Op::combine(levels[level][i], levels[level + 1][i]);
      };
      int depth = 0;
      for (int k = 0; k < readers; k += 2) {
        Wide *own = levels[depth++];
        const T *a = source(k) + first;
        if (k + 1 < readers) {
          const T *b = source(k + 1) + first;
          if (from == 1)
            for (int64_t i = 0; i < count; ++i)
              own[i] = Op::combine(combined(a[i]), combined(b[i]));
          else
            for (int64_t i = 0; i < count; ++i)
              own[i] =
                  Op::combine(combined(a[i * from]), combined(b[i * from]));
        } else {
          for (int64_t i = 0; i < count; ++i)
            own[i] = combined(a[i * from]);
        }
        for (int pairs = k / 2 + 1; pairs % 2 == 0; pairs /= 2)
          merge(--depth - 1);
      }
      while (depth > 1)
        merge(--depth - 1);
      for (int k = 0; k < writers; ++k) {
        T *out = static_cast<T *>(dsts[k]) + target;
        if constexpr (std::is_same_v<T, Wide>) {
          if (to == 1) {
            store(sums, out, count, stream);
            continue;
          }
        }
        for (int64_t i = 0; i < count; ++i)
          round(sums[i], out[i * to]);
      }
    }
  });
#if defined(__SSE2__)
  // Non-temporal stores become visible to other threads here.
  if (stream)
    _mm_sfence();
#endif
}

void cleave::runtime::reduceBlocks(const Block &block, int32_t dtype,
                                   int32_t reduction, const void *const *srcs,
                                   int readers, void *const *dsts, int writers,
                                   int64_t begin, int64_t end) {
  // Lines that were just read are in the cache already.
  bool stream = block.elements * elementBytes(dtype) >= streamBytes &&
                std::find(srcs, srcs + readers, dsts[0]) == srcs + readers;
  auto typed = [&](auto *type) {
    using T = std::remove_pointer_t<decltype(type)>;
    auto run = [&](auto op) {
      reduceTyped<decltype(op), T>(block, srcs, readers, dsts, writers, begin,
                                   end, stream);
    };
    switch (reduction) {
    case CLEAVE_SUM:
      return run(Sum());
    case CLEAVE_MAX:
      return run(Max());
    default:
      return run(Min());
    }
  };
  switch (dtype) {
  case CLEAVE_F64:
    return typed(static_cast<double *>(nullptr));
  case CLEAVE_F32:
    return typed(static_cast<float *>(nullptr));
  case CLEAVE_F16:
    return typed(static_cast<cleave::Half *>(nullptr));
  case CLEAVE_BF16:
    return typed(static_cast<cleave::BFloat *>(nullptr));
  case CLEAVE_F8E4M3:
    return typed(static_cast<cleave::Float8E4M3 *>(nullptr));
  case CLEAVE_F8E5M2:
    return typed(static_cast<cleave::Float8E5M2 *>(nullptr));
  case CLEAVE_I64:
    return typed(static_cast<int64_t *>(nullptr));
  case CLEAVE_I32:
    return typed(static_cast<int32_t *>(nullptr));
  case CLEAVE_I8:
    return typed(static_cast<int8_t *>(nullptr));
  default:
    return typed(static_cast<uint8_t *>(nullptr));
  }
}
