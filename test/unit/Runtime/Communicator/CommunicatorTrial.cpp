//===- CommunicatorTrial.cpp - Drawn collectives --------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CommunicatorTrial.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

using Random = std::mt19937_64;

static int64_t draw(Random &random, int64_t low, int64_t high) {
  return low +
         static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

namespace {

/// One collective with the memory of all ranks, as each rank draws it.
struct Case {
  std::vector<int32_t> members;
  cleave_collective what{};
  std::vector<int64_t> srcOffsets, dstOffsets;
  std::vector<int32_t> sources;
  int64_t srcElements = 0, dstElements = 0;
  bool inPlace = false;

  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < what.dims; ++i)
      n *= what.sizes[i];
    return n;
  }
};

/// A rank's own memory of a case.
struct Memory {
  std::vector<uint8_t> src, dst;
};

} // namespace

static size_t bytesOf(int32_t dtype) {
  static constexpr size_t bytes[] = {8, 4, 2, 2, 8, 4, 1, 1};
  return bytes[dtype];
}

/// Values of any element type, with every sign and some that round in sums.
static void fill(std::vector<uint8_t> &memory, int32_t dtype, uint64_t seed) {
  Random random(seed);
  size_t n = memory.size() / bytesOf(dtype);
  for (size_t i = 0; i < n; ++i) {
    double value = std::ldexp(static_cast<double>(draw(random, -999, 999)),
                              static_cast<int>(draw(random, -9, 9)));
    if (draw(random, 0, 99) == 0)
      value = std::nan("");
    auto put = [&](auto typed) {
      std::memcpy(memory.data() + i * sizeof(typed), &typed, sizeof(typed));
    };
    switch (dtype) {
    case CLEAVE_F64:
      put(value);
      break;
    case CLEAVE_F32:
      put(static_cast<float>(value));
      break;
    case CLEAVE_I1:
      put(static_cast<uint8_t>(random() & 1));
      break;
    default:
      for (size_t b = 0; b < bytesOf(dtype); ++b)
        memory[i * bytesOf(dtype) + b] = static_cast<uint8_t>(random());
    }
  }
}

/// Calls `body` with the place of each element of the block.
static void
forEachElement(const Case &c,
               const std::function<void(int64_t src, int64_t dst)> &body) {
  int64_t n = c.elements();
  for (int64_t i = 0; i < n; ++i) {
    int64_t rest = i, src = 0, dst = 0;
    for (int d = c.what.dims; d-- > 0;) {
      src += rest % c.what.sizes[d] * c.what.src_strides[d];
      dst += rest % c.what.sizes[d] * c.what.dst_strides[d];
      rest /= c.what.sizes[d];
    }
    body(src, dst);
  }
}

//===----------------------------------------------------------------------===//
// What should come out
//===----------------------------------------------------------------------===//

template <typename T> static T combine(int32_t reduction, T a, T b) {
  if (reduction == CLEAVE_SUM) {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(std::make_unsigned_t<T>(a) +
                            std::make_unsigned_t<T>(b));
    else
      return a + b;
  }
  if constexpr (!std::is_integral_v<T>)
    if (std::isnan(a) || std::isnan(b))
      return std::isnan(a) ? a : b;
  return reduction == CLEAVE_MAX ? std::max(a, b) : std::min(a, b);
}

static void accumulate(int32_t dtype, int32_t reduction, uint8_t *to,
                       const uint8_t *from) {
  auto typed = [&](auto zero) {
    decltype(zero) a, b;
    std::memcpy(&a, to, sizeof(a));
    std::memcpy(&b, from, sizeof(b));
    a = combine(reduction, a, b);
    std::memcpy(to, &a, sizeof(a));
  };
  switch (dtype) {
  case CLEAVE_F64:
    return typed(double());
  case CLEAVE_F32:
    return typed(float());
  case CLEAVE_I64:
    return typed(int64_t());
  case CLEAVE_I32:
    return typed(int32_t());
  case CLEAVE_I8:
    return typed(int8_t());
  default:
    return typed(uint8_t());
  }
}

/// Sets `result`, the memory of `member` before the collective, to what it is
/// afterwards, one element at a time.
static void expect(const Case &c, size_t member,
                   const std::vector<std::vector<uint8_t>> &srcs,
                   std::vector<uint8_t> &result) {
  size_t bytes = bytesOf(c.what.dtype), count = c.members.size();
  auto copy = [&](size_t from, int64_t srcOffset, int64_t dstOffset) {
    forEachElement(c, [&](int64_t src, int64_t dst) {
      std::memcpy(result.data() + static_cast<size_t>(dst + dstOffset) * bytes,
                  srcs[from].data() +
                      static_cast<size_t>(src + srcOffset) * bytes,
                  bytes);
    });
  };
  // Of a power of 2 the second half onto the first one, as long as there are
  // two; else neighbours.
  auto reduce = [&](int64_t srcOffset) {
    std::vector<std::vector<uint8_t>> sums;
    for (const std::vector<uint8_t> &src : srcs)
      sums.emplace_back(src.begin() + srcOffset * static_cast<long>(bytes),
                        src.end());
    bool halves = (count & (count - 1)) == 0;
    while (sums.size() > 1) {
      std::vector<std::vector<uint8_t>> next;
      size_t pairs = sums.size() / 2;
      for (size_t i = 0; i < pairs; ++i) {
        std::vector<uint8_t> &a = sums[halves ? i : 2 * i];
        const std::vector<uint8_t> &b = sums[halves ? i + pairs : 2 * i + 1];
        forEachElement(c, [&](int64_t src, int64_t) {
          size_t at = static_cast<size_t>(src) * bytes;
          accumulate(c.what.dtype, c.what.reduction, a.data() + at,
                     b.data() + at);
        });
        next.push_back(std::move(a));
      }
      if (sums.size() % 2)
        next.push_back(std::move(sums.back()));
      sums = std::move(next);
    }
    forEachElement(c, [&](int64_t src, int64_t dst) {
      std::memcpy(result.data() + static_cast<size_t>(dst) * bytes,
                  sums[0].data() + static_cast<size_t>(src) * bytes, bytes);
    });
  };
  switch (c.what.kind) {
  case CLEAVE_ALL_REDUCE:
    return reduce(0);
  case CLEAVE_REDUCE_SCATTER:
    return reduce(c.srcOffsets[member]);
  case CLEAVE_REDUCE:
    if (member == static_cast<size_t>(c.what.root))
      reduce(0);
    return;
  case CLEAVE_ALL_GATHER:
    for (size_t i = 0; i < count; ++i)
      copy(i, 0, c.dstOffsets[i]);
    return;
  case CLEAVE_ALL_TO_ALL:
    for (size_t i = 0; i < count; ++i)
      copy(i, c.srcOffsets[member], c.dstOffsets[i]);
    return;
  case CLEAVE_PERMUTE:
    return copy(static_cast<size_t>(c.sources[member]), 0, 0);
  case CLEAVE_SEND:
    if (member == 1)
      copy(0, 0, 0);
    return;
  default:
    return copy(static_cast<size_t>(c.what.root), 0, 0);
  }
}

//===----------------------------------------------------------------------===//
// Drawing
//===----------------------------------------------------------------------===//

/// Strides of a block whose dimensions lie in a drawn order, with gaps; the
/// number of elements from its first to behind its last.
static int64_t drawStrides(Random &random, const cleave_collective &what,
                           int64_t *strides) {
  std::vector<int> order(static_cast<size_t>(what.dims));
  std::iota(order.begin(), order.end(), 0);
  bool dense = draw(random, 0, 2) == 0;
  if (dense)
    std::reverse(order.begin(), order.end());
  else
    std::shuffle(order.begin(), order.end(), random);
  int64_t stride = dense ? 1 : draw(random, 1, 2), extent = 1;
  for (int d : order) {
    strides[d] = stride;
    extent += (what.sizes[d] - 1) * stride;
    stride = stride * what.sizes[d] + (dense ? 0 : draw(random, 0, 3));
  }
  return extent;
}

/// Places for `count` blocks that do not touch, in a drawn order.
static std::vector<int64_t> drawOffsets(Random &random, size_t count,
                                        int64_t extent) {
  std::vector<int64_t> offsets(count);
  std::iota(offsets.begin(), offsets.end(), 0);
  std::shuffle(offsets.begin(), offsets.end(), random);
  int64_t distance = extent + draw(random, 0, 3);
  for (int64_t &offset : offsets)
    offset *= distance;
  return offsets;
}

/// A block of a collective; of that of `other`, where there is one.
static Case drawCase(Random &random, std::vector<int32_t> members,
                     int64_t largest, int32_t kind, const Case *other) {
  Case c;
  c.members = std::move(members);
  size_t count = c.members.size();
  cleave_collective &w = c.what;
  // Two may also send.
  w.kind = static_cast<int32_t>(draw(random, CLEAVE_ALL_REDUCE,
                                     count == 2 ? CLEAVE_SEND : CLEAVE_REDUCE));
  if (kind >= 0 && (kind != CLEAVE_SEND || count == 2))
    w.kind = kind;
  bool reduces = w.kind == CLEAVE_ALL_REDUCE ||
                 w.kind == CLEAVE_REDUCE_SCATTER || w.kind == CLEAVE_REDUCE;
  constexpr int32_t reducible[] = {CLEAVE_F64, CLEAVE_F32, CLEAVE_I64,
                                   CLEAVE_I32, CLEAVE_I8,  CLEAVE_I1};
  w.dtype = reduces ? reducible[draw(random, 0, 5)]
                    : static_cast<int32_t>(draw(random, CLEAVE_F64, CLEAVE_I1));
  bool narrow = w.dtype == CLEAVE_I8 || w.dtype == CLEAVE_I1;
  w.reduction = static_cast<int32_t>(
      draw(random, narrow ? CLEAVE_MAX : CLEAVE_SUM, CLEAVE_MIN));
  if (other) {
    w.kind = other->what.kind;
    w.dtype = other->what.dtype;
    w.reduction = other->what.reduction;
  }
  w.dims = static_cast<int32_t>(draw(random, 0, 4));
  int64_t room = draw(random, 1, largest);
  for (int d = 0; d < w.dims; ++d) {
    w.sizes[d] =
        draw(random, 1,
             std::max<int64_t>(
                 1, std::min<int64_t>(room, d + 1 == w.dims ? room : 9)));
    room /= w.sizes[d];
  }
  int64_t srcExtent = drawStrides(random, w, w.src_strides);
  int64_t dstExtent = drawStrides(random, w, w.dst_strides);
  c.inPlace = w.kind == CLEAVE_ALL_REDUCE && draw(random, 0, 1);
  if (c.inPlace) {
    std::copy(w.src_strides, w.src_strides + w.dims, w.dst_strides);
    dstExtent = srcExtent;
  }
  c.srcElements = srcExtent;
  c.dstElements = dstExtent;
  if (w.kind == CLEAVE_REDUCE_SCATTER || w.kind == CLEAVE_ALL_TO_ALL) {
    c.srcOffsets = drawOffsets(random, count, srcExtent);
    c.srcElements +=
        *std::max_element(c.srcOffsets.begin(), c.srcOffsets.end());
  }
  if (w.kind == CLEAVE_ALL_GATHER || w.kind == CLEAVE_ALL_TO_ALL) {
    c.dstOffsets = drawOffsets(random, count, dstExtent);
    c.dstElements +=
        *std::max_element(c.dstOffsets.begin(), c.dstOffsets.end());
  }
  for (size_t i = 0; i < count; ++i)
    c.sources.push_back(
        static_cast<int32_t>(draw(random, 0, static_cast<int64_t>(count) - 1)));
  if (other)
    c.sources = other->sources;
  w.root = c.sources[0];
  return c;
}

/// All ranks, in drawn order and cut in groups.
static std::vector<std::vector<int32_t>> drawGroups(Random &random,
                                                    int32_t ranks) {
  std::vector<int32_t> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), random);
  std::vector<std::vector<int32_t>> groups;
  for (size_t at = 0; at < all.size();) {
    size_t size = static_cast<size_t>(
        draw(random, 1, static_cast<int64_t>(all.size() - at)));
    groups.emplace_back(all.begin() + static_cast<long>(at),
                        all.begin() + static_cast<long>(at + size));
    at += size;
  }
  return groups;
}

//===----------------------------------------------------------------------===//
// A trial
//===----------------------------------------------------------------------===//

cleave_team cleave::test::singleThread() {
  return {nullptr, 1,
          [](void *, void (*body)(void *, int32_t, int32_t), void *data) {
            body(data, 0, 1);
          }};
}

std::string cleave::test::runTrial(cleave_communicator *communicator,
                                   uint64_t seed, int64_t largest,
                                   int32_t kind) {
  const cleave_communicator_api &api = *communicator->api;
  Random random(seed);
  auto failed = [&](const std::string &what) {
    return "rank " + std::to_string(communicator->rank) + ", seed " +
           std::to_string(seed) + ": " + what + ": " + api.error(communicator);
  };

  // 1. The same groups and collectives at all ranks; this one keeps its own.
  struct Own {
    Case c;
    size_t member = 0;
    /// Its number among the blocks of the collective.
    size_t block = 0;
    Memory memory;
    /// Of the first block of a collective.
    cleave_request *request = nullptr;
  };
  std::vector<std::unique_ptr<Own>> own;
  for (int round = 0; round < 2; ++round)
    for (std::vector<int32_t> &members :
         drawGroups(random, communicator->size)) {
      auto it = std::find(members.begin(), members.end(), communicator->rank);
      size_t member = static_cast<size_t>(it - members.begin());
      bool mine = it != members.end();
      cleave_group *group =
          mine ? api.group(communicator, members.data(),
                           static_cast<int32_t>(members.size()))
               : nullptr;
      if (mine && (!group || api.barrier(group)))
        return failed("the group cannot be made");
      for (int64_t n = draw(random, 1, 3); n > 0; --n) {
        size_t first = own.size();
        std::vector<Case> cases;
        for (int64_t blocks = draw(random, 1, 3); blocks > 0; --blocks)
          cases.push_back(drawCase(random, members, largest, kind,
                                   cases.empty() ? nullptr : &cases.front()));
        if (!mine)
          continue;
        std::vector<cleave_collective> blocks;
        for (Case &c : cases) {
          Own &one = *own.emplace_back(std::make_unique<Own>());
          one.c = std::move(c);
          one.member = member;
          one.block = blocks.size();
          size_t bytes = bytesOf(one.c.what.dtype);
          one.memory.src.resize(static_cast<size_t>(one.c.srcElements) * bytes);
          one.memory.dst.resize(static_cast<size_t>(one.c.dstElements) * bytes);
          cleave_collective what = one.c.what;
          what.src = one.memory.src.data();
          what.dst =
              one.c.inPlace ? one.memory.src.data() : one.memory.dst.data();
          if (!one.c.srcOffsets.empty())
            what.src_offsets = one.c.srcOffsets.data();
          if (!one.c.dstOffsets.empty())
            what.dst_offsets = one.c.dstOffsets.data();
          what.sources = one.c.sources.data();
          // Neither end knows how it lies at the other.
          if (what.kind == CLEAVE_SEND) {
            bool sends = member == 0;
            if (sends)
              what.dst = nullptr;
            else
              what.src = nullptr;
            std::fill_n(sends ? what.dst_strides : what.src_strides,
                        CLEAVE_BLOCK_DIMS, 0);
          }
          blocks.push_back(what);
        }
        own[first]->request = api.prepare(group, blocks.data(),
                                          static_cast<int32_t>(blocks.size()));
        if (!own[first]->request)
          return failed("the request cannot be made");
      }
    }

  // 2. Each several times, with new data, all under way at once.
  for (uint64_t time = 0; time < 3; ++time) {
    std::vector<std::vector<uint8_t>> expected;
    uint64_t number = 0;
    for (std::unique_ptr<Own> &one : own) {
      ++number;
      // The n-th collective of one rank is not that of another one: data is
      // told by what they have in common.
      uint64_t common = seed * 1000 + time * 100 + one->block;
      std::vector<std::vector<uint8_t>> srcs;
      for (size_t i = 0; i < one->c.members.size(); ++i) {
        srcs.emplace_back(one->memory.src.size());
        fill(srcs.back(), one->c.what.dtype, common * 64 + i);
      }
      std::copy(srcs[one->member].begin(), srcs[one->member].end(),
                one->memory.src.begin());
      fill(one->memory.dst, one->c.what.dtype, common + number);
      std::vector<uint8_t> result =
          one->c.inPlace ? one->memory.src : one->memory.dst;
      expect(one->c, one->member, srcs, result);
      expected.push_back(std::move(result));
    }
    for (std::unique_ptr<Own> &one : own)
      if (one->request && api.start(one->request))
        return failed("start");
    for (size_t i = 0; i < own.size(); ++i) {
      if (own[i]->request && api.wait(own[i]->request))
        return failed("wait");
      const Case &c = own[i]->c;
      const std::vector<uint8_t> &got =
          c.inPlace ? own[i]->memory.src : own[i]->memory.dst;
      if (got != expected[i])
        return failed("collective " + std::to_string(i) + " of kind " +
                      std::to_string(c.what.kind) + ", type " +
                      std::to_string(c.what.dtype) + ", " +
                      std::to_string(c.members.size()) +
                      " members gave another result");
    }
  }
  for (std::unique_ptr<Own> &one : own)
    if (one->request)
      api.release(one->request);
  return "";
}
