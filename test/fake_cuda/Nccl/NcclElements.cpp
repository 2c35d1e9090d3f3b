//===- NcclElements.cpp - Types of elements, and their sums ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "NcclElements.h"
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

using namespace fake::nccl;

namespace {

template <class To, class From> To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

struct Half {
  using Wide = float;
  _Float16 value;
  operator float() const { return static_cast<float>(value); }
  static Half of(float x) { return {static_cast<_Float16>(x)}; }
};
struct Brain {
  using Wide = float;
  uint16_t value;
  operator float() const { return bits<float>(uint32_t(value) << 16); }
  static Brain of(float x) {
    uint32_t own = bits<uint32_t>(x);
    if (x != x)
      return {0x7fff};
    return {static_cast<uint16_t>((own + 0x7fff + (own >> 16 & 1)) >> 16)};
  }
};

/// `a` and `b` combined, rounded to the type.
template <class T> T combine(T a, T b, int operation) {
  if constexpr (std::is_class_v<T>) {
    return T::of(combine<float>(a, b, operation));
  } else if constexpr (std::is_signed_v<T> && std::is_integral_v<T>) {
    using Wrapping = std::make_unsigned_t<T>;
    return operation == Sum   ? T(Wrapping(a) + Wrapping(b))
           : operation == Max ? std::max(a, b)
                              : std::min(a, b);
  } else {
    // Which one a NaN gives depends on the order.
    return operation == Sum   ? T(a + b)
           : operation == Max ? (a > b ? a : b)
                              : (a < b ? a : b);
  }
}

/// Element i of `count`, combined from the member on to which it belongs.
template <class T>
void reduce(const std::vector<const char *> &srcs,
            const std::vector<char *> &dsts, size_t from, size_t to,
            size_t count, int operation) {
  size_t members = srcs.size();
  std::vector<T> sums(to - from);
  for (size_t i = from; i < to; ++i) {
    size_t first = (i * members / std::max<size_t>(count, 1) + 1) % members;
    T sum{};
    for (size_t k = 0; k < members; ++k) {
      T own;
      std::memcpy(&own, srcs[(first + k) % members] + i * sizeof(T),
                  sizeof own);
      sum = k == 0 ? own : combine(sum, own, operation);
    }
    sums[i - from] = sum;
  }
  for (char *dst : dsts)
    if (dst && to > from)
      std::memcpy(dst, sums.data(), sizeof(T) * (to - from));
}

} // namespace

void fake::nccl::reduce(int type, const std::vector<const char *> &srcs,
                        const std::vector<char *> &dsts, size_t from, size_t to,
                        size_t count, int operation) {
  auto call = [&](auto zero) {
    ::reduce<decltype(zero)>(srcs, dsts, from, to, count, operation);
  };
  switch (type) {
  case I8:
    return call(int8_t());
  case U8:
    return call(uint8_t());
  case I32:
    return call(int32_t());
  case U32:
    return call(uint32_t());
  case I64:
    return call(int64_t());
  case U64:
    return call(uint64_t());
  case F16:
    return call(Half());
  case F32:
    return call(float());
  case F64:
    return call(double());
  case BF16:
    return call(Brain());
  }
}
