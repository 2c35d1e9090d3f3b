//===- FakeCublasLt.cpp - cuBLASLt's products on the host -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// libcublasLt.so.13 for machines without a device, next to the fake driver in
/// the same folder: products of matrices are ops of its streams. Sums are
/// double and rounded to f32 first, then to the type of the result. Of each
/// product there are up to three algorithms, with workspaces of 0, 1 MiB and
/// 4 MiB, of which all bytes are overwritten.
///
/// With CLEAVE_FAKE_SUMS=SEED, sums are f32 and in an order drawn for each
/// product, as good as that of any algorithm of the library.
///
/// What the library refuses for a combination of types, layouts and alignments
/// is refused here; what leaves its buffer is too, with a message.
///
//===----------------------------------------------------------------------===//

#include "Hooks.h"
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum Status {
  Success = 0,
  NotInitialized = 1,
  AllocFailed = 3,
  InvalidValue = 7,
  ArchMismatch = 8,
  ExecutionFailed = 13,
  InternalError = 14,
  NotSupported = 15
};
enum Type { F32 = 0, F64 = 1, F16 = 2, BF16 = 14, E4M3 = 28, E5M2 = 29 };
enum Compute { Compute32F = 68, Compute32FPedantic = 69, Compute32FLast = 78 };
enum LayoutAttribute {
  LayoutType = 0,
  LayoutOrder = 1,
  LayoutRows = 2,
  LayoutCols = 3,
  LayoutLd = 4,
  LayoutBatchCount = 5,
  LayoutBatchStride = 6
};
enum DescAttribute {
  DescComputeType = 0,
  DescScaleType = 1,
  DescPointerMode = 2,
  DescTransA = 3,
  DescTransB = 4,
  DescTransC = 5,
  DescFillMode = 6,
  DescEpilogue = 7,
  DescBiasPointer = 8,
  DescBiasBatchStride = 10,
  DescAuxPointer = 11,
  DescAuxLd = 12,
  DescAuxBatchStride = 13,
  DescSmCount = 15,
  DescAScale = 17,
  DescBScale = 18,
  DescCScale = 19,
  DescDScale = 20,
  DescAmaxD = 21,
  DescAuxType = 22,
  DescFastAccumulation = 25,
  DescBiasType = 26,
  DescAScaleMode = 31,
  DescBScaleMode = 32,
  DescCScaleMode = 33,
  DescDScaleMode = 34
};
enum PreferenceAttribute {
  PreferSearchMode = 0,
  PreferMaxWorkspace = 1,
  PreferReduction = 3,
  PreferAlignA = 5,
  PreferAlignB = 6,
  PreferAlignC = 7,
  PreferAlignD = 8,
  PreferWaves = 9,
  PreferImplementation = 12
};
/// Bits of the epilogues.
enum Epilogue {
  Default = 1,
  Relu = 2,
  Bias = 4,
  DRelu = 8,
  BiasGradient = 16,
  Gelu = 32,
  DGelu = 64,
  Aux = 128,
  BiasGradientA = 256,
  BiasGradientB = 512
};

/// Attributes by their numbers, of these sizes in bytes.
struct Attributes {
  const std::map<int, unsigned> *sizes;
  std::map<int, uint64_t> values;

  int64_t get(int attribute) const {
    auto it = values.find(attribute);
    uint64_t value = it == values.end() ? 0 : it->second;
    return sizes->at(attribute) == 4 ? int64_t(int32_t(value)) : int64_t(value);
  }
  Status set(int attribute, const void *from, size_t bytes) {
    auto it = sizes->find(attribute);
    if (it == sizes->end() || !from || bytes != it->second)
      return InvalidValue;
    uint64_t value = 0;
    std::memcpy(&value, from, bytes);
    values[attribute] = value;
    return Success;
  }
  Status read(int attribute, void *to, size_t bytes, size_t *written) const {
    auto it = sizes->find(attribute);
    if (it == sizes->end() || (bytes && (!to || bytes != it->second)))
      return InvalidValue;
    int64_t value = get(attribute);
    if (bytes)
      std::memcpy(to, &value, bytes);
    if (written)
      *written = it->second;
    return Success;
  }
};

const std::map<int, unsigned> layoutSizes = {
    {LayoutType, 4},       {LayoutOrder, 4}, {LayoutRows, 8},
    {LayoutCols, 8},       {LayoutLd, 8},    {LayoutBatchCount, 4},
    {LayoutBatchStride, 8}};
const std::map<int, unsigned> descSizes = {
    {DescComputeType, 4},     {DescScaleType, 4},  {DescPointerMode, 4},
    {DescTransA, 4},          {DescTransB, 4},     {DescTransC, 4},
    {DescFillMode, 4},        {DescEpilogue, 4},   {DescBiasPointer, 8},
    {DescBiasBatchStride, 8}, {DescAuxPointer, 8}, {DescAuxLd, 8},
    {DescAuxBatchStride, 8},  {DescSmCount, 4},    {DescAScale, 8},
    {DescBScale, 8},          {DescCScale, 8},     {DescDScale, 8},
    {DescAmaxD, 8},           {DescAuxType, 4},    {DescFastAccumulation, 1},
    {DescBiasType, 4},        {DescAScaleMode, 4}, {DescBScaleMode, 4},
    {DescCScaleMode, 4},      {DescDScaleMode, 4}};
const std::map<int, unsigned> preferenceSizes = {
    {PreferSearchMode, 4}, {PreferMaxWorkspace, 8}, {PreferReduction, 4},
    {PreferAlignA, 4},     {PreferAlignB, 4},       {PreferAlignC, 4},
    {PreferAlignD, 4},     {PreferWaves, 4},        {PreferImplementation, 8}};

struct Algorithm {
  uint64_t data[8];
};
struct HeuristicResult {
  Algorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
constexpr uint64_t algorithmMark = 0x636c65617665676d;
constexpr size_t workspaces[] = {0, 1 << 20, 4 << 20};

//===----------------------------------------------------------------------===//
// The driver
//===----------------------------------------------------------------------===//

struct Driver {
  decltype(&cleave_fake_enqueue_op) enqueue = nullptr;
  decltype(&cleave_fake_host) host = nullptr;
  decltype(&cleave_fake_room) room = nullptr;
};

/// That of the folder of this library.
const Driver *driver() {
  static const Driver found = [] {
    Driver result;
    Dl_info info;
    if (!dladdr(reinterpret_cast<void *>(&driver), &info))
      return result;
    std::string path = info.dli_fname;
    path = path.substr(0, path.rfind('/') + 1) + "libcuda.so.1";
    void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library)
      return result;
    auto load = [&](auto &function, const char *name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
          dlsym(library, name));
    };
    load(result.enqueue, "cleave_fake_enqueue_op");
    load(result.host, "cleave_fake_host");
    load(result.room, "cleave_fake_room");
    return result;
  }();
  return found.enqueue && found.host && found.room ? &found : nullptr;
}

//===----------------------------------------------------------------------===//
// Types
//===----------------------------------------------------------------------===//

size_t bytesOf(int type) {
  switch (type) {
  case F32:
    return 4;
  case F16:
  case BF16:
    return 2;
  case E4M3:
  case E5M2:
    return 1;
  }
  return 0;
}
bool isNarrow(int type) { return type == E4M3 || type == E5M2; }

template <class To, class From> To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

/// A float of a sign, `exponent` bits and `mantissa` bits.
float widen(unsigned x, int exponent, int mantissa, bool infinite) {
  unsigned fraction = x & ((1u << mantissa) - 1);
  int e = x >> mantissa & ((1u << exponent) - 1);
  int bias = (1 << (exponent - 1)) - 1, top = (1 << exponent) - 1;
  float sign = x >> (exponent + mantissa) & 1 ? -1.0f : 1.0f;
  if (e == top && (infinite || fraction == (1u << mantissa) - 1))
    return fraction ? NAN : sign * INFINITY;
  if (e == 0)
    return sign * std::ldexp(float(fraction), 1 - bias - mantissa);
  return sign *
         std::ldexp(float(fraction | 1u << mantissa), e - bias - mantissa);
}

/// To the nearest, ties to even.
unsigned short narrowToHalf(float x) {
  uint32_t word = bits<uint32_t>(x);
  unsigned sign = word >> 16 & 0x8000;
  float size = std::fabs(x);
  if (std::isnan(x))
    return sign | 0x7fff;
  if (size >= 65520)
    return sign | 0x7c00;
  if (size < 0x1p-14f)
    return sign | unsigned(std::nearbyint(size * 0x1p24f));
  uint32_t magnitude = word & 0x7fffffff;
  magnitude += 0xfff + (magnitude >> 13 & 1);
  return sign | ((magnitude >> 13) - (112 << 10));
}
unsigned short narrowToBfloat(float x) {
  uint32_t word = bits<uint32_t>(x);
  if (std::isnan(x))
    return word >> 16 | 0x7fff;
  return (word + 0x7fff + (word >> 16 & 1)) >> 16;
}

struct Tables {
  std::vector<float> half, e4m3, e5m2;
  Tables() {
    for (unsigned i = 0; i < 1 << 16; ++i)
      half.push_back(widen(i, 5, 10, true));
    for (unsigned i = 0; i < 256; ++i) {
      e4m3.push_back(widen(i, 4, 3, false));
      e5m2.push_back(widen(i, 5, 2, true));
    }
  }
};

float load(const char *from, int type, int64_t index) {
  static const Tables tables;
  switch (type) {
  case F32:
    return reinterpret_cast<const float *>(from)[index];
  case F16:
    return tables.half[reinterpret_cast<const uint16_t *>(from)[index]];
  case BF16:
    return bits<float>(uint32_t(reinterpret_cast<const uint16_t *>(from)[index])
                       << 16);
  case E4M3:
    return tables.e4m3[reinterpret_cast<const uint8_t *>(from)[index]];
  default:
    return tables.e5m2[reinterpret_cast<const uint8_t *>(from)[index]];
  }
}
void store(char *to, int type, int64_t index, float x) {
  if (type == F32)
    reinterpret_cast<float *>(to)[index] = x;
  else if (type == F16)
    reinterpret_cast<uint16_t *>(to)[index] = narrowToHalf(x);
  else
    reinterpret_cast<uint16_t *>(to)[index] = narrowToBfloat(x);
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

struct Matrix {
  int type = F32;
  int64_t rows = 0, cols = 0, ld = 0, batches = 1, batchStride = 0;
  bool rowMajor = false;
  uint64_t device = 0;

  int64_t at(int64_t row, int64_t col) const {
    return rowMajor ? row * ld + col : row + col * ld;
  }
  int64_t rowStride() const { return rowMajor ? ld : 1; }
  int64_t colStride() const { return rowMajor ? 1 : ld; }
  bool valid() const {
    return bytesOf(type) && rows > 0 && cols > 0 && batches > 0 &&
           ld >= (rowMajor ? cols : rows);
  }
  /// From the first byte to the last, over all batches of a product.
  uint64_t extent(int64_t count) const {
    return ((count - 1) * batchStride + at(rows - 1, cols - 1) + 1) *
           bytesOf(type);
  }
};

struct Product {
  Matrix a, b, c, d;
  bool transposeA = false, transposeB = false;
  float alpha = 1, beta = 0;
  int epilogue = Default;
  uint64_t bias = 0, aux = 0, scaleA = 0, scaleB = 0;
  int biasType = F32, auxType = F32;
  int64_t biasStride = 0, auxLd = 0, auxStride = 0;
  uint64_t workspace = 0;
  size_t workspaceBytes = 0;

  int64_t m() const { return d.rows; }
  int64_t n() const { return d.cols; }
  int64_t k() const { return transposeA ? a.rows : a.cols; }
  /// What an algorithm is for.
  uint64_t kind() const {
    uint64_t result = 0;
    for (int part : {a.type, b.type, c.type, d.type, int(transposeA),
                     int(transposeB), epilogue})
      result = result * 1031 + part + 1;
    return result;
  }
};

constexpr int tileRows = 8, tileCols = 4;

/// A tile of rows x columns: sums over k of a[p][row] * b[p][col].
template <class Sum>
__attribute__((always_inline)) inline void
tile(const double *a, const double *b, int64_t k, double *out) {
  Sum sums[tileCols][tileRows] = {};
  for (int64_t p = 0; p < k; ++p)
    for (int j = 0; j < tileCols; ++j)
      for (int i = 0; i < tileRows; ++i)
        sums[j][i] += Sum(a[p * tileRows + i] * b[p * tileCols + j]);
  for (int j = 0; j < tileCols; ++j)
    for (int i = 0; i < tileRows; ++i)
      out[j * tileRows + i] = sums[j][i];
}
void tilePlain(const double *a, const double *b, int64_t k, double *out) {
  tile<double>(a, b, k, out);
}
void tileSingle(const double *a, const double *b, int64_t k, double *out) {
  tile<float>(a, b, k, out);
}
#ifdef __x86_64__
__attribute__((target("avx2,fma"))) void
tileWide(const double *a, const double *b, int64_t k, double *out) {
  tile<double>(a, b, k, out);
}
#endif

/// The order in which a product adds over k: as it is, or, with
/// CLEAVE_FAKE_SUMS, drawn from that and the product's number.
std::vector<int64_t> orderOf(int64_t k, const char *seed) {
  static std::atomic<unsigned> products{0};
  std::vector<int64_t> order(k);
  std::iota(order.begin(), order.end(), 0);
  if (seed)
    std::shuffle(order.begin(), order.end(),
                 std::mt19937_64(std::strtoull(seed, nullptr, 10) * 1000003 +
                                 products++));
  return order;
}

/// The rows of op(A), or the columns of op(B), in groups of `group`; of each
/// group all of k, in `order`, next to each other.
std::vector<double> pack(const char *from, int type, int64_t count,
                         const std::vector<int64_t> &order, int64_t stride,
                         int64_t strideK, int group) {
  int64_t k = order.size();
  int64_t groups = (count + group - 1) / group;
  std::vector<double> result(groups * group * k);
  for (int64_t g = 0; g < groups; ++g) {
    double *to = result.data() + g * group * k;
    int64_t inside = std::min<int64_t>(group, count - g * group);
    for (int64_t p = 0; p < k; ++p)
      for (int64_t i = 0; i < inside; ++i)
        to[p * group + i] =
            load(from, type, (g * group + i) * stride + order[p] * strideK);
  }
  return result;
}

double gelu(double x) {
  return 0.5 * x *
         (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}
double geluGradient(double x) {
  double t = std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 *
                             (1 + 3 * 0.044715 * x * x);
}

[[noreturn]] void die(const char *what) {
  std::fprintf(stderr, "emulated product: %s\n", what);
  std::abort();
}

char *hostOf(uint64_t device, uint64_t bytes, const char *what) {
  if (driver()->room(device) < bytes)
    die(what);
  return static_cast<char *>(driver()->host(device));
}

void multiply(void *data) {
  const Product &p = *static_cast<const Product *>(data);
  int64_t m = p.m(), n = p.n(), k = p.k(), batches = p.d.batches;
  const char *a = hostOf(p.a.device, p.a.extent(batches), "A was freed");
  const char *b = hostOf(p.b.device, p.b.extent(batches), "B was freed");
  const char *c = p.beta == 0
                      ? nullptr
                      : hostOf(p.c.device, p.c.extent(batches), "C was freed");
  char *d = hostOf(p.d.device, p.d.extent(batches), "D was freed");
  if (p.workspaceBytes)
    std::memset(
        hostOf(p.workspace, p.workspaceBytes, "the workspace was freed"), 0xd9,
        p.workspaceBytes);
  char *bias = p.bias ? hostOf(p.bias, 1, "the bias was freed") : nullptr;
  char *aux =
      p.aux ? hostOf(p.aux, 1, "the auxiliary matrix was freed") : nullptr;
  double alpha = p.alpha;
  for (uint64_t scale : {p.scaleA, p.scaleB})
    if (scale)
      alpha *= *reinterpret_cast<float *>(
          hostOf(scale, sizeof(float), "a scale was freed"));
  auto *run = tilePlain;
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    run = tileWide;
#endif
  const char *seed = std::getenv("CLEAVE_FAKE_SUMS");
  if (seed)
    run = tileSingle;
  std::vector<int64_t> order = orderOf(k, seed);
  for (int64_t batch = 0; batch < batches; ++batch) {
    auto of = [&](const Matrix &matrix, const char *from) {
      return from + batch * matrix.batchStride * int64_t(bytesOf(matrix.type));
    };
    std::vector<double> rows =
        pack(of(p.a, a), p.a.type, m, order,
             p.transposeA ? p.a.colStride() : p.a.rowStride(),
             p.transposeA ? p.a.rowStride() : p.a.colStride(), tileRows);
    std::vector<double> cols =
        pack(of(p.b, b), p.b.type, n, order,
             p.transposeB ? p.b.rowStride() : p.b.colStride(),
             p.transposeB ? p.b.colStride() : p.b.rowStride(), tileCols);
    std::vector<double> gradient(p.epilogue & BiasGradient ? m : 0);
    char *result = const_cast<char *>(of(p.d, d));
    const char *addend = c ? of(p.c, c) : nullptr;
    double sums[tileRows * tileCols];
    for (int64_t j0 = 0; j0 < n; j0 += tileCols)
      for (int64_t i0 = 0; i0 < m; i0 += tileRows) {
        run(rows.data() + i0 * k, cols.data() + j0 * k, k, sums);
        for (int64_t j = j0; j < std::min(n, j0 + tileCols); ++j)
          for (int64_t i = i0; i < std::min(m, i0 + tileRows); ++i) {
            double x = alpha * sums[(j - j0) * tileRows + i - i0];
            if (addend)
              x += p.beta * load(addend, p.c.type, p.c.at(i, j));
            if (p.epilogue & Bias)
              x += load(bias, p.biasType, batch * p.biasStride + i);
            int64_t other = batch * p.auxStride + j * p.auxLd + i;
            if ((p.epilogue & (Gelu | Aux)) == (Gelu | Aux))
              store(aux, p.auxType, other, float(x));
            if (p.epilogue & Gelu)
              x = gelu(x);
            if (p.epilogue & Relu)
              x = std::max(x, 0.0);
            if (p.epilogue & DGelu)
              x *= geluGradient(load(aux, p.auxType, other));
            if (p.epilogue & BiasGradient)
              gradient[i] += x;
            store(result, p.d.type, p.d.at(i, j), float(x));
          }
      }
    for (size_t i = 0; i < gradient.size(); ++i)
      store(bias, p.biasType, batch * p.biasStride + i, float(gradient[i]));
    if (p.epilogue & (BiasGradientA | BiasGradientB)) {
      bool first = p.epilogue & BiasGradientA;
      int64_t count = first ? m : n, group = first ? tileRows : tileCols;
      const std::vector<double> &packed = first ? rows : cols;
      for (int64_t i = 0; i < count; ++i) {
        double sum = 0;
        for (int64_t q = 0; q < k; ++q)
          sum += packed[i / group * group * k + q * group + i % group];
        store(bias, p.biasType, batch * p.biasStride + i, float(sum));
      }
    }
  }
}

//===----------------------------------------------------------------------===//
// What is supported
//===----------------------------------------------------------------------===//

Matrix matrixOf(const Attributes &layout, const void *device) {
  Matrix result;
  result.type = layout.get(LayoutType);
  result.rows = layout.get(LayoutRows);
  result.cols = layout.get(LayoutCols);
  result.ld = layout.get(LayoutLd);
  result.batches = layout.get(LayoutBatchCount);
  result.batchStride = layout.get(LayoutBatchStride);
  result.rowMajor = layout.get(LayoutOrder) == 1;
  result.device = reinterpret_cast<uint64_t>(device);
  return result;
}

Product productOf(const Attributes &desc, const Attributes &a,
                  const Attributes &b, const Attributes &c,
                  const Attributes &d) {
  Product p;
  p.a = matrixOf(a, nullptr);
  p.b = matrixOf(b, nullptr);
  p.c = matrixOf(c, nullptr);
  p.d = matrixOf(d, nullptr);
  p.transposeA = desc.get(DescTransA) != 0;
  p.transposeB = desc.get(DescTransB) != 0;
  p.epilogue = desc.get(DescEpilogue);
  p.bias = desc.get(DescBiasPointer);
  p.biasStride = desc.get(DescBiasBatchStride);
  p.aux = desc.get(DescAuxPointer);
  p.auxLd = desc.get(DescAuxLd);
  p.auxStride = desc.get(DescAuxBatchStride);
  p.auxType = desc.get(DescAuxType);
  p.biasType = desc.get(DescBiasType);
  if (p.auxType < 0)
    p.auxType = p.d.type;
  if (p.biasType < 0)
    p.biasType = isNarrow(p.a.type) && p.d.type == F32 ? int(BF16) : p.d.type;
  p.scaleA = desc.get(DescAScale);
  p.scaleB = desc.get(DescBScale);
  return p;
}

bool capable(int needed) {
  const char *text = std::getenv("CLEAVE_FAKE_CAPABILITY");
  int major = 9, minor = 0;
  if (text)
    std::sscanf(text, "%d.%d", &major, &minor);
  return major * 10 + minor >= needed;
}

Status check(const Product &p, const Attributes &desc) {
  for (const Matrix *matrix : {&p.a, &p.b, &p.c, &p.d})
    if (!matrix->valid())
      return bytesOf(matrix->type) ? InvalidValue : NotSupported;
  int64_t rowsB = p.transposeB ? p.b.cols : p.b.rows;
  int64_t colsB = p.transposeB ? p.b.rows : p.b.cols;
  int64_t rowsA = p.transposeA ? p.a.cols : p.a.rows;
  if (rowsA != p.m() || colsB != p.n() || rowsB != p.k() || p.c.rows != p.m() ||
      p.c.cols != p.n())
    return InvalidValue;
  for (const Matrix *matrix : {&p.a, &p.b, &p.c})
    if (matrix->batches != p.d.batches)
      return InvalidValue;
  int64_t compute = desc.get(DescComputeType);
  if (compute < Compute32F || compute > Compute32FLast || compute == 70 ||
      compute == 71 || compute == 72 || compute == 73)
    return NotSupported;
  if (desc.get(DescScaleType) != F32 || desc.get(DescPointerMode) != 0 ||
      desc.get(DescTransC) != 0)
    return NotSupported;
  for (int attribute : {DescAScaleMode, DescBScaleMode})
    if (desc.get(attribute) != 0)
      return NotSupported;
  // The same type of C and D; results no narrower than factors, in f32 or the
  // type of the factors.
  if (p.c.type != p.d.type || isNarrow(p.d.type))
    return NotSupported;
  if (isNarrow(p.a.type) || isNarrow(p.b.type)) {
    if (!isNarrow(p.a.type) || !isNarrow(p.b.type) || !capable(89) ||
        (p.a.type == E5M2 && p.b.type == E5M2))
      return NotSupported;
    // On these devices a product of eight bits is of rows by columns.
    if (!capable(100) && (!p.transposeA || p.transposeB))
      return NotSupported;
    for (const Matrix *matrix : {&p.a, &p.b, &p.d})
      if (matrix->ld * bytesOf(matrix->type) % 16 || matrix->rowMajor)
        return NotSupported;
    if (p.k() % 16 || p.m() % 16)
      return NotSupported;
  } else {
    if (p.scaleA || p.scaleB)
      return NotSupported;
    if (p.a.type != p.b.type || (p.d.type != F32 && p.d.type != p.a.type))
      return NotSupported;
  }
  int e = p.epilogue;
  static const int known[] = {
      Default,       Relu,          Bias,
      Relu | Bias,   Gelu,          Gelu | Bias,
      Gelu | Aux,    DGelu | Aux,   Gelu | Aux | Bias,
      BiasGradientA, BiasGradientB, DGelu | Aux | BiasGradient};
  if (std::find(std::begin(known), std::end(known), e) == std::end(known))
    return NotSupported;
  if (e & Aux && (p.auxLd % 8 || p.auxLd < p.m()))
    return InvalidValue;
  if (e & ~Default && p.d.rowMajor)
    return NotSupported;
  return Success;
}

Attributes *of(void *handle) { return static_cast<Attributes *>(handle); }

template <class... T> bool given(T... handles) { return (... && handles); }

} // namespace

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

EXPORT int cublasLtCreate(void **handle) {
  if (!handle)
    return InvalidValue;
  if (!driver())
    return NotInitialized;
  *handle = new int(1);
  return Success;
}
EXPORT int cublasLtDestroy(void *handle) {
  delete static_cast<int *>(handle);
  return Success;
}
EXPORT size_t cublasLtGetVersion() { return 130101; }
EXPORT size_t cublasLtGetCudartVersion() { return 13000; }

EXPORT const char *cublasLtGetStatusName(int status) {
  switch (status) {
  case Success:
    return "CUBLAS_STATUS_SUCCESS";
  case NotInitialized:
    return "CUBLAS_STATUS_NOT_INITIALIZED";
  case AllocFailed:
    return "CUBLAS_STATUS_ALLOC_FAILED";
  case InvalidValue:
    return "CUBLAS_STATUS_INVALID_VALUE";
  case ArchMismatch:
    return "CUBLAS_STATUS_ARCH_MISMATCH";
  case ExecutionFailed:
    return "CUBLAS_STATUS_EXECUTION_FAILED";
  case InternalError:
    return "CUBLAS_STATUS_INTERNAL_ERROR";
  case NotSupported:
    return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "CUBLAS_STATUS_UNKNOWN";
}
EXPORT const char *cublasLtGetStatusString(int status) {
  return cublasLtGetStatusName(status);
}

EXPORT int cublasLtMatmulDescCreate(void **desc, int compute, int scale) {
  if (!desc)
    return InvalidValue;
  *desc = new Attributes{&descSizes,
                         {{DescComputeType, uint64_t(compute)},
                          {DescScaleType, uint64_t(scale)},
                          {DescEpilogue, Default},
                          {DescAuxType, uint64_t(-1)},
                          {DescBiasType, uint64_t(-1)}}};
  return Success;
}
EXPORT int cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows,
                                      uint64_t cols, int64_t ld) {
  if (!layout)
    return InvalidValue;
  *layout = new Attributes{&layoutSizes,
                           {{LayoutType, uint64_t(type)},
                            {LayoutRows, rows},
                            {LayoutCols, cols},
                            {LayoutLd, uint64_t(ld)},
                            {LayoutBatchCount, 1}}};
  return Success;
}
EXPORT int cublasLtMatmulPreferenceCreate(void **preference) {
  if (!preference)
    return InvalidValue;
  *preference = new Attributes{&preferenceSizes,
                               {{PreferReduction, 7},
                                {PreferAlignA, 256},
                                {PreferAlignB, 256},
                                {PreferAlignC, 256},
                                {PreferAlignD, 256},
                                {PreferImplementation, ~0ull}}};
  return Success;
}

#define ATTRIBUTES(WHAT)                                                       \
  EXPORT int WHAT##Destroy(void *handle) {                                     \
    delete of(handle);                                                         \
    return Success;                                                            \
  }                                                                            \
  EXPORT int WHAT##SetAttribute(void *handle, int attribute, const void *from, \
                                size_t bytes) {                                \
    return handle ? of(handle)->set(attribute, from, bytes) : InvalidValue;    \
  }                                                                            \
  EXPORT int WHAT##GetAttribute(void *handle, int attribute, void *to,         \
                                size_t bytes, size_t *written) {               \
    return handle ? of(handle)->read(attribute, to, bytes, written)            \
                  : InvalidValue;                                              \
  }
ATTRIBUTES(cublasLtMatmulDesc)
ATTRIBUTES(cublasLtMatrixLayout)
ATTRIBUTES(cublasLtMatmulPreference)

EXPORT int cublasLtMatmulAlgoGetHeuristic(void *handle, void *desc, void *a,
                                          void *b, void *c, void *d,
                                          void *preference, int requested,
                                          HeuristicResult *results,
                                          int *returned) {
  if (!given(handle, desc, a, b, c, d, preference, results, returned) ||
      requested <= 0)
    return InvalidValue;
  *returned = 0;
  Product p = productOf(*of(desc), *of(a), *of(b), *of(c), *of(d));
  if (Status status = check(p, *of(desc)))
    return status;
  if (isNarrow(p.a.type))
    for (int attribute : {PreferAlignA, PreferAlignB, PreferAlignD})
      if (of(preference)->get(attribute) % 16)
        return NotSupported;
  uint64_t most = of(preference)->get(PreferMaxWorkspace);
  for (int i = 0; i < 3 && *returned < requested; ++i) {
    if (workspaces[i] > most)
      break;
    HeuristicResult &result = results[(*returned)++];
    result = {};
    uint64_t kind = p.kind();
    result.algorithm = {{algorithmMark, uint64_t(i), kind, kind * (i + 3), 0, 0,
                         uint64_t(i) << 40, ~kind}};
    result.workspace = workspaces[i];
    result.state = Success;
    result.waves = 1.0f / (i + 1);
  }
  return *returned ? Success : NotSupported;
}

EXPORT int cublasLtMatmulAlgoCheck(void *handle, void *desc, void *a, void *b,
                                   void *c, void *d, const Algorithm *algorithm,
                                   HeuristicResult *result) {
  if (!given(handle, desc, a, b, c, d, algorithm, result))
    return InvalidValue;
  Product p = productOf(*of(desc), *of(a), *of(b), *of(c), *of(d));
  if (Status status = check(p, *of(desc)))
    return status;
  if (algorithm->data[0] != algorithmMark || algorithm->data[1] > 2)
    return InvalidValue;
  if (algorithm->data[2] != p.kind() || algorithm->data[7] != ~p.kind())
    return NotSupported;
  result->workspace = workspaces[algorithm->data[1]];
  result->state = Success;
  result->waves = 1.0f / (algorithm->data[1] + 1);
  return Success;
}

EXPORT int cublasLtMatmul(void *handle, void *desc, const void *alpha,
                          const void *a, void *layoutA, const void *b,
                          void *layoutB, const void *beta, const void *c,
                          void *layoutC, void *d, void *layoutD,
                          const Algorithm *algorithm, void *workspace,
                          size_t workspaceBytes, void *stream) {
  if (!given(handle, desc, alpha, a, layoutA, b, layoutB, beta, layoutC, d,
             layoutD))
    return InvalidValue;
  Product p = productOf(*of(desc), *of(layoutA), *of(layoutB), *of(layoutC),
                        *of(layoutD));
  if (Status status = check(p, *of(desc)))
    return status;
  std::memcpy(&p.alpha, alpha, sizeof p.alpha);
  std::memcpy(&p.beta, beta, sizeof p.beta);
  p.a.device = reinterpret_cast<uint64_t>(a);
  p.b.device = reinterpret_cast<uint64_t>(b);
  p.c.device = reinterpret_cast<uint64_t>(c);
  p.d.device = reinterpret_cast<uint64_t>(d);
  if (p.beta != 0 && !c)
    return InvalidValue;
  if (c == d && (p.c.ld != p.d.ld || p.c.batchStride != p.d.batchStride ||
                 p.c.rowMajor != p.d.rowMajor))
    return InvalidValue;
  if (algorithm) {
    HeuristicResult result;
    if (int status =
            cublasLtMatmulAlgoCheck(handle, desc, layoutA, layoutB, layoutC,
                                    layoutD, algorithm, &result))
      return status;
    if (result.workspace > workspaceBytes)
      return InvalidValue;
    p.workspaceBytes = result.workspace;
    p.workspace = reinterpret_cast<uint64_t>(workspace);
    if (p.workspaceBytes && (!workspace || p.workspace % 256))
      return InvalidValue;
  }
  auto refuse = [](const char *what) {
    std::fprintf(stderr, "emulated product: %s\n", what);
    return ExecutionFailed;
  };
  // Elements at least are aligned, and eight bits to sixteen bytes.
  struct {
    const Matrix &matrix;
    bool used;
    const char *name;
  } all[] = {{p.a, true, "A leaves its buffer"},
             {p.b, true, "B leaves its buffer"},
             {p.c, p.beta != 0, "C leaves its buffer"},
             {p.d, true, "D leaves its buffer"}};
  for (const auto &[matrix, used, name] : all) {
    if (!used)
      continue;
    uint64_t alignment = isNarrow(p.a.type) ? 16 : bytesOf(matrix.type);
    if (matrix.device % alignment)
      return isNarrow(p.a.type) ? NotSupported : InvalidValue;
    if (driver()->room(matrix.device) < matrix.extent(p.d.batches))
      return refuse(name);
  }
  if (p.workspaceBytes && driver()->room(p.workspace) < p.workspaceBytes)
    return refuse("the workspace leaves its buffer");
  if (p.epilogue & (Bias | BiasGradient | BiasGradientA | BiasGradientB)) {
    int64_t count = p.epilogue & BiasGradientB ? p.n() : p.m();
    uint64_t bytes =
        ((p.d.batches - 1) * p.biasStride + count) * bytesOf(p.biasType);
    if (!p.bias)
      return InvalidValue;
    if (driver()->room(p.bias) < bytes)
      return refuse("the bias leaves its buffer");
  } else {
    p.bias = 0;
  }
  if (p.epilogue & Aux) {
    uint64_t bytes =
        ((p.d.batches - 1) * p.auxStride + (p.n() - 1) * p.auxLd + p.m()) *
        bytesOf(p.auxType);
    if (!p.aux)
      return InvalidValue;
    if (driver()->room(p.aux) < bytes)
      return refuse("the auxiliary matrix leaves its buffer");
  } else {
    p.aux = 0;
  }
  std::string text =
      "product m=" + std::to_string(p.m()) + " n=" + std::to_string(p.n()) +
      " k=" + std::to_string(p.k()) +
      " batches=" + std::to_string(p.d.batches) +
      " transposes=" + (p.transposeA ? "T" : "N") + (p.transposeB ? "T" : "N") +
      " types=" + std::to_string(p.a.type) + "," + std::to_string(p.b.type) +
      "," + std::to_string(p.d.type) +
      " epilogue=" + std::to_string(p.epilogue) +
      " workspace=" + std::to_string(p.workspaceBytes) +
      " compute=" + std::to_string(of(desc)->get(DescComputeType));
  int status = driver()->enqueue(
      stream, text.c_str(), nullptr, multiply, new Product(p),
      [](void *data) { delete static_cast<Product *>(data); });
  return status ? ExecutionFailed : Success;
}
