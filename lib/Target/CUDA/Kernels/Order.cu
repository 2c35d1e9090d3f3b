//===- Order.cu - Floats as integers of the same order --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

// Bits of a negative float are in the reverse order; those of its magnitude are
// flipped. The same again gives the float.
template <class Bits, class Wide>
__device__ __forceinline__ void toOrder(const OrderArguments &a) {
  const Bits magnitude = Bits(Bits(-1) ^ (Bits(1) << (sizeof(Bits) * 8 - 1)));
  long long first = blockIdx.x * 1024ll + threadIdx.x;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    long long i = first + k * 256;
    if (i >= a.count)
      return;
    Bits bits = static_cast<const Bits *>(a.src)[i];
    if ((bits & magnitude) > a.infinity)
      bits = a.least ? Bits(~magnitude) : magnitude;
    else if (bits < 0)
      bits = Bits(bits ^ magnitude);
    static_cast<Wide *>(a.dst)[i] = bits;
  }
}

template <class Bits, class Wide>
__device__ __forceinline__ void fromOrder(const OrderArguments &a) {
  const Bits magnitude = Bits(Bits(-1) ^ (Bits(1) << (sizeof(Bits) * 8 - 1)));
  long long first = blockIdx.x * 1024ll + threadIdx.x;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    long long i = first + k * 256;
    if (i >= a.count)
      return;
    Bits bits = Bits(static_cast<const Wide *>(a.src)[i]);
    if (bits < 0)
      bits = Bits(bits ^ magnitude);
    static_cast<Bits *>(a.dst)[i] = bits;
  }
}

extern "C" __global__ void __launch_bounds__(256)
    cleave_to_order_2(OrderArguments a) {
  toOrder<short, int>(a);
}

extern "C" __global__ void __launch_bounds__(256)
    cleave_from_order_2(OrderArguments a) {
  fromOrder<short, int>(a);
}

extern "C" __global__ void __launch_bounds__(256)
    cleave_to_order_4(OrderArguments a) {
  toOrder<int, int>(a);
}

extern "C" __global__ void __launch_bounds__(256)
    cleave_from_order_4(OrderArguments a) {
  fromOrder<int, int>(a);
}

extern "C" __global__ void __launch_bounds__(256)
    cleave_to_order_8(OrderArguments a) {
  toOrder<long long, long long>(a);
}

extern "C" __global__ void __launch_bounds__(256)
    cleave_from_order_8(OrderArguments a) {
  fromOrder<long long, long long>(a);
}

