//===- Contraction.cpp - Contractions by the library ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// Uses the library's C interface: the C++ interface reports errors by
// exceptions.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/CPU/Contraction.h"
#include "OneDnn.h"
#include "llvm/ADT/ScopeExit.h"
#include "llvm/Support/MathExtras.h"

#include <atomic>
#include <bit>
#include <vector>

using namespace cleave::runtime;

/// Set by any thread; after an error, no result can be trusted.
static std::atomic<int> failedStatus{dnnl_success};

static void note(dnnl_status_t status) {
  if (status != dnnl_success)
    failedStatus.store(status, std::memory_order_relaxed);
}

std::string cleave::runtime::libraryFailure() {
  int status = failedStatus.load(std::memory_order_relaxed);
  if (status == dnnl_success)
    return "";
  return "oneDNN could not compute a product (status " +
         std::to_string(status) +
         (status == dnnl_out_of_memory ? ": out of memory)" : ")");
}

static dnnl_status_t multiply(bool transA, bool transB, int64_t m, int64_t n,
                              int64_t k, float alpha, const float *a,
                              int64_t lda, const float *b, int64_t ldb,
                              float beta, float *c, int64_t ldc) {
  return oneDnn().sgemm(transA ? 'T' : 'N', transB ? 'T' : 'N', m, n, k, alpha,
                        a, lda, b, ldb, beta, c, ldc);
}

/// `rows` x `columns` bf16 elements as f32, dense.
static std::vector<float> widen(const uint16_t *from, int64_t rows,
                                int64_t columns, int64_t ld) {
  std::vector<float> result(static_cast<size_t>(rows * columns));
  float *to = result.data();
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      *to++ = std::bit_cast<float>(uint32_t(from[i * ld + j]) << 16);
  return result;
}

static dnnl_status_t multiply(bool transA, bool transB, int64_t m, int64_t n,
                              int64_t k, float alpha, const uint16_t *a,
                              int64_t lda, const uint16_t *b, int64_t ldb,
                              float beta, float *c, int64_t ldc) {
  dnnl_status_t status =
      oneDnn().gemm_bf16bf16f32(transA ? 'T' : 'N', transB ? 'T' : 'N', m, n, k,
                                alpha, a, lda, b, ldb, beta, c, ldc);
  if (status != dnnl_unimplemented)
    return status;
  // The library multiplies bf16 where the processor has AVX-512.
  std::vector<float> wideA = transA ? widen(a, k, m, lda) : widen(a, m, k, lda);
  std::vector<float> wideB = transB ? widen(b, n, k, ldb) : widen(b, k, n, ldb);
  return multiply(transA, transB, m, n, k, alpha, wideA.data(), transA ? m : k,
                  wideB.data(), transB ? k : n, beta, c, ldc);
}

/// `sgemm` for elements of the type `T`.
template <typename T>
static void gemm(bool transA, bool transB, int64_t m, int64_t n, int64_t k,
                 float alpha, const T *a, int64_t lda, const T *b, int64_t ldb,
                 float beta, float *c, int64_t ldc) {
  if (m <= 0 || n <= 0)
    return;
  if (k <= 0 || alpha == 0.0f) {
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j)
        c[i * ldc + j] = beta == 0.0f ? 0.0f : beta * c[i * ldc + j];
    return;
  }
  for (int64_t row = 0; row < m; row += kContractionWidth)
    for (int64_t column = 0; column < n; column += kContractionWidth)
      for (int64_t i = 0; i < k; i += kContractionDepth)
        note(multiply(transA, transB, std::min(kContractionWidth, m - row),
                      std::min(kContractionWidth, n - column),
                      std::min(kContractionDepth, k - i), alpha,
                      a + (transA ? i * lda + row : row * lda + i), lda,
                      b + (transB ? column * ldb + i : i * ldb + column), ldb,
                      i == 0 ? beta : 1.0f, c + row * ldc + column, ldc));
}

void cleave::runtime::sgemm(bool transA, bool transB, int64_t m, int64_t n,
                            int64_t k, float alpha, const float *a, int64_t lda,
                            const float *b, int64_t ldb, float beta, float *c,
                            int64_t ldc) {
  gemm(transA, transB, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void cleave::runtime::gemmOfBF16(bool transA, bool transB, int64_t m, int64_t n,
                                 int64_t k, float alpha, const uint16_t *a,
                                 int64_t lda, const uint16_t *b, int64_t ldb,
                                 float beta, float *c, int64_t ldc) {
  gemm(transA, transB, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

//===----------------------------------------------------------------------===//
// The matmul primitive
//===----------------------------------------------------------------------===//

namespace {

/// The one engine and stream of the process; they take little memory and are
/// never destroyed, as the library may be unloaded before.
struct Library {
  dnnl_engine_t engine = nullptr;
  dnnl_stream_t stream = nullptr;

  static const Library &get() {
    static Library library;
    return library;
  }

private:
  Library() {
    if (oneDnn().engine_create(&engine, dnnl_cpu, 0) == dnnl_success)
      oneDnn().stream_create(&stream, engine, dnnl_stream_default_flags);
  }
};

} // namespace

struct Contraction::Primitive {
  dnnl_primitive_t primitive = nullptr;
  dnnl_memory_t src = nullptr, weights = nullptr, dst = nullptr,
                scratch = nullptr;
  int64_t scratchBytes = 0;

  Primitive() = default;
  Primitive(Primitive &&other) noexcept
      : primitive(std::exchange(other.primitive, nullptr)),
        src(std::exchange(other.src, nullptr)),
        weights(std::exchange(other.weights, nullptr)),
        dst(std::exchange(other.dst, nullptr)),
        scratch(std::exchange(other.scratch, nullptr)),
        scratchBytes(other.scratchBytes) {}
  ~Primitive() {
    for (dnnl_memory_t memory : {src, weights, dst, scratch})
      if (memory)
        oneDnn().memory_destroy(memory);
    if (primitive)
      oneDnn().primitive_destroy(primitive);
  }

  /// False if the library has none for this shape.
  bool build(const ContractCommand &c, const char *a, const char *b,
             float *out) {
    const Library &library = Library::get();
    if (!library.stream || c.alpha != 1.0f || c.batch != 1 || c.m == 0 ||
        c.n == 0 || c.k == 0)
      return false;
    dnnl_data_type_t type = c.type == DType::BF16 ? dnnl_bf16 : dnnl_f32;
    auto describe = [](dnnl_memory_desc_t &desc, dnnl_data_type_t type,
                       int64_t rows, int64_t cols, bool trans, int64_t ld) {
      dnnl_dims_t dims = {rows, cols};
      dnnl_dims_t strides = {trans ? 1 : ld, trans ? ld : 1};
      return oneDnn().memory_desc_init_by_strides(&desc, 2, dims, type,
                                                  strides) == dnnl_success;
    };
    dnnl_memory_desc_t srcDesc, weightsDesc, dstDesc;
    dnnl_matmul_desc_t desc;
    if (!describe(srcDesc, type, c.m, c.k, c.transA, c.lda) ||
        !describe(weightsDesc, type, c.k, c.n, c.transB, c.ldb) ||
        !describe(dstDesc, dnnl_f32, c.m, c.n, false, c.ldc) ||
        oneDnn().matmul_desc_init(&desc, &srcDesc, &weightsDesc, nullptr,
                                  &dstDesc) != dnnl_success)
      return false;

    dnnl_primitive_attr_t attr = nullptr;
    dnnl_post_ops_t postOps = nullptr;
    dnnl_primitive_desc_t pd = nullptr;
    llvm::scope_exit cleanup([&] {
      if (attr)
        oneDnn().primitive_attr_destroy(attr);
      if (postOps)
        oneDnn().post_ops_destroy(postOps);
      if (pd)
        oneDnn().primitive_desc_destroy(pd);
    });
    if (oneDnn().primitive_attr_create(&attr) != dnnl_success ||
        oneDnn().primitive_attr_set_scratchpad_mode(
            attr, dnnl_scratchpad_mode_user) != dnnl_success)
      return false;
    if (c.beta != 0.0f &&
        (oneDnn().post_ops_create(&postOps) != dnnl_success ||
         oneDnn().post_ops_append_sum(postOps, c.beta) != dnnl_success ||
         oneDnn().primitive_attr_set_post_ops(attr, postOps) != dnnl_success))
      return false;
    if (oneDnn().primitive_desc_create(&pd, &desc, attr, library.engine,
                                       nullptr) != dnnl_success ||
        oneDnn().primitive_create(&primitive, pd) != dnnl_success)
      return false;
    // Reference implementations are correct, but would take minutes to measure.
    const char *implementation = nullptr;
    oneDnn().primitive_desc_query(pd, dnnl_query_impl_info_str, 0,
                                  &implementation);
    if (!implementation || llvm::StringRef(implementation).starts_with("ref"))
      return false;
    const dnnl_memory_desc_t *scratchDesc =
        oneDnn().primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    scratchBytes =
        static_cast<int64_t>(oneDnn().memory_desc_get_size(scratchDesc));
    return oneDnn().memory_create(&src, &srcDesc, library.engine,
                                  const_cast<char *>(a)) == dnnl_success &&
           oneDnn().memory_create(&weights, &weightsDesc, library.engine,
                                  const_cast<char *>(b)) == dnnl_success &&
           oneDnn().memory_create(&dst, &dstDesc, library.engine, out) ==
               dnnl_success &&
           oneDnn().memory_create(&scratch, scratchDesc, library.engine,
                                  DNNL_MEMORY_NONE) == dnnl_success;
  }

  void execute(char *workspace) const {
    const Library &library = Library::get();
    if (scratchBytes)
      oneDnn().memory_set_data_handle(scratch, workspace);
    dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, src},
                              {DNNL_ARG_WEIGHTS, weights},
                              {DNNL_ARG_DST, dst},
                              {DNNL_ARG_SCRATCHPAD, scratch}};
    note(oneDnn().primitive_execute(primitive, library.stream, 4, args));
  }
};

//===----------------------------------------------------------------------===//
// Contraction
//===----------------------------------------------------------------------===//

Contraction::Contraction(const ContractCommand &command, char *a, char *b,
                         char *c, ContractionMethod method)
    : command(command), a(a), b(b), c(reinterpret_cast<float *>(c)),
      method(method) {
  if (method == ContractionMethod::Widened)
    valid = command.type == DType::BF16 && command.batch == 1;
  if (method != ContractionMethod::Matmul)
    return;
  int64_t bytes = byteSize(command.type);
  for (int64_t i = 0; valid && i < command.k; i += kContractionDepth) {
    ContractCommand piece = command;
    piece.k = std::min(kContractionDepth, command.k - i);
    piece.beta = i == 0 ? command.beta : 1.0f;
    valid = primitives.emplace_back().build(
        piece, a + i * (command.transA ? command.lda : 1) * bytes,
        b + i * (command.transB ? 1 : command.ldb) * bytes, this->c);
  }
  valid &= !primitives.empty();
}

Contraction::Contraction(Contraction &&) noexcept = default;
Contraction &Contraction::operator=(Contraction &&) noexcept = default;
Contraction::~Contraction() = default;

/// The elements of the largest piece of an operand, in whole lines of a cache.
static int64_t widePiece(int64_t width, int64_t depth) {
  return llvm::alignTo(std::min(width, kContractionWidth) *
                           std::min(depth, kContractionDepth),
                       16);
}

int64_t Contraction::workspaceBytes() const {
  if (method == ContractionMethod::Widened)
    return (widePiece(command.m, command.k) + widePiece(command.n, command.k)) *
           static_cast<int64_t>(sizeof(float));
  int64_t bytes = 0;
  for (const Primitive &primitive : primitives)
    bytes = std::max(bytes, primitive.scratchBytes);
  return bytes;
}

/// `rows` x `columns` bf16 elements as f32, dense, on the threads of a team.
static void widen(const ThreadTeam &team, const uint16_t *from, int64_t rows,
                  int64_t columns, int64_t ld, float *to) {
  team.parallelFor(rows, 32, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = 0; j < columns; ++j)
        to[i * columns + j] =
            std::bit_cast<float>(uint32_t(from[i * ld + j]) << 16);
  });
}

/// The tiles and pieces of `gemm`, each of whose operands is widened first.
void Contraction::executeWidened(const ThreadTeam &team,
                                 char *workspace) const {
  const ContractCommand &d = command;
  const auto *wholeA = reinterpret_cast<const uint16_t *>(a),
             *wholeB = reinterpret_cast<const uint16_t *>(b);
  auto *wideA = reinterpret_cast<float *>(workspace);
  float *wideB = wideA + widePiece(d.m, d.k);
  for (int64_t row = 0; row < d.m; row += kContractionWidth)
    for (int64_t i = 0; i < d.k; i += kContractionDepth) {
      int64_t rows = std::min(kContractionWidth, d.m - row),
              depth = std::min(kContractionDepth, d.k - i);
      if (d.transA)
        widen(team, wholeA + i * d.lda + row, depth, rows, d.lda, wideA);
      else
        widen(team, wholeA + row * d.lda + i, rows, depth, d.lda, wideA);
      for (int64_t column = 0; column < d.n; column += kContractionWidth) {
        int64_t columns = std::min(kContractionWidth, d.n - column);
        if (d.transB)
          widen(team, wholeB + column * d.ldb + i, columns, depth, d.ldb,
                wideB);
        else
          widen(team, wholeB + i * d.ldb + column, depth, columns, d.ldb,
                wideB);
        note(multiply(d.transA, d.transB, rows, columns, depth, d.alpha, wideA,
                      d.transA ? rows : depth, wideB,
                      d.transB ? depth : columns, i == 0 ? d.beta : 1.0f,
                      c + row * d.ldc + column, d.ldc));
      }
    }
}

void Contraction::execute(const ThreadTeam &team, char *workspace) const {
  const ContractCommand &d = command;
  if (method == ContractionMethod::Widened && d.k > 0 && d.alpha != 0.0f)
    return executeWidened(team, workspace);
  if (method == ContractionMethod::Matmul) {
    for (const Primitive &primitive : primitives)
      primitive.execute(workspace);
    return;
  }
  auto ofType = [&](auto *a, auto *b, int64_t i) {
    gemm(d.transA, d.transB, d.m, d.n, d.k, d.alpha, a + i * d.batchStrideA,
         d.lda, b + i * d.batchStrideB, d.ldb, d.beta, c + i * d.batchStrideC,
         d.ldc);
  };
  auto one = [&](int64_t i) {
    if (d.type == DType::BF16)
      ofType(reinterpret_cast<const uint16_t *>(a),
             reinterpret_cast<const uint16_t *>(b), i);
    else
      ofType(reinterpret_cast<const float *>(a),
             reinterpret_cast<const float *>(b), i);
  };
  if (method == ContractionMethod::Batch)
    return team.parallelFor(d.batch, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        one(i);
    });
  for (int64_t i = 0; i < d.batch; ++i)
    one(i);
}
