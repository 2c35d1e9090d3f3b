//===- Reduce.cu - Reductions over ranks ----------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

// Elements as they are combined: narrow floats in f32, rounded once.
struct BrainElement {
  unsigned short bits;
  __device__ float widen() const { return __uint_as_float(unsigned(bits) << 16); }
  __device__ static BrainElement round(float x) {
    unsigned own = __float_as_uint(x);
    if (x != x)
      return {0x7fc0};
    return {(unsigned short)((own + 0x7fff + (own >> 16 & 1)) >> 16)};
  }
};
template <class T> struct PlainElement {
  T value;
  __device__ T widen() const { return value; }
  __device__ static PlainElement round(T x) { return {x}; }
};

struct CombineSum {
  template <class T> __device__ static T combine(T a, T b) { return a + b; }
  // Integers wrap.
  __device__ static int combine(int a, int b) {
    return int(unsigned(a) + unsigned(b));
  }
  __device__ static long long combine(long long a, long long b) {
    return (long long)((unsigned long long)a + (unsigned long long)b);
  }
};
// The first of two equal values, or NaN if there is one.
struct CombineMax {
  template <class T> __device__ static T combine(T a, T b) {
    return a == a && (b > a || b != b) ? b : a;
  }
};
struct CombineMin {
  template <class T> __device__ static T combine(T a, T b) {
    return a == a && (b < a || b != b) ? b : a;
  }
};

// Sums of 2, 4, 8, ... members: two of one size become one of the next. Members
// are in the order of the tree.
template <class Element, class Op>
__device__ __forceinline__ void reduceMembers(const ReduceArguments &a) {
  long long i = a.begin + blockIdx.x * 256ll + threadIdx.x;
  if (i >= a.end)
    return;
  auto load = [&](int k) {
    return static_cast<const Element *>(a.srcs[k])[i].widen();
  };
  decltype(load(0)) levels[8];
  int depth = 0;
  for (int k = 0; k < a.members; k += 2) {
    levels[depth] = load(k);
    if (k + 1 < a.members)
      levels[depth] = Op::combine(levels[depth], load(k + 1));
    ++depth;
    for (int pairs = k / 2 + 1; pairs % 2 == 0; pairs /= 2) {
      --depth;
      levels[depth - 1] = Op::combine(levels[depth - 1], levels[depth]);
    }
  }
  while (depth > 1) {
    --depth;
    levels[depth - 1] = Op::combine(levels[depth - 1], levels[depth]);
  }
  for (int k = 0; k < a.writers; ++k)
    static_cast<Element *>(a.dsts[k])[i] = Element::round(levels[0]);
}

