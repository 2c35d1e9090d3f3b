//===- floor.cpp - Time of the contractions of a step ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A lower bound of the time of a training step: the contractions of an
/// artifact, each by the fastest of {sgemm, matmul, matmul with packed weights}
/// with all orientations of its operands, and the contractions of attention
/// over the blocks it computes. Nothing else is included. It is a worker of the
/// benchmarks: at `explore` it measures every variant of every shape once more;
/// at `step` it runs what a step contains, each by the variant of the least
/// median, and answers the time.
///
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Format/Artifact.h"
#include "cleave/Support/NarrowFloat.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/raw_ostream.h"
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <dnnl.hpp>
#include <iostream>
#include <map>
#include <memory>

using namespace cleave::runtime;

/// The library exports this function, but its header omits it.
extern "C" dnnl_status_t
dnnl_gemm_bf16bf16f32(char transa, char transb, dnnl_dim_t m, dnnl_dim_t n,
                      dnnl_dim_t k, float alpha, const uint16_t *a,
                      dnnl_dim_t lda, const uint16_t *b, dnnl_dim_t ldb,
                      float beta, float *c, dnnl_dim_t ldc);
extern "C" void GOMP_parallel(void (*fn)(void *), void *data, unsigned threads,
                              unsigned flags);
extern "C" int omp_get_thread_num();
extern "C" int omp_get_num_threads();
extern "C" void omp_set_num_threads(int);

namespace {

/// Returns the time in milliseconds.
double now() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

uint16_t convert(float value, uint16_t *) {
  return cleave::toBFloat(value).bits;
}
float convert(float value, float *) { return value; }

/// A buffer of pseudo-random values of type T (bf16 as its bits) that all
/// shapes share.
template <typename T> struct Pool {
  std::vector<T> data;
  T *get(size_t elements) {
    if (data.size() < elements) {
      size_t old = data.size();
      data.resize(elements);
      for (size_t i = old; i < data.size(); ++i)
        data[i] = convert(float(int(i * 2654435761u >> 20) % 200 - 100) * 1e-2f,
                          (T *)nullptr);
    }
    return data.data();
  }
};

/// One variant of computing a contraction; `run` returns milliseconds.
struct Variant {
  std::function<double()> run;
  std::vector<double> times;
  double median() {
    std::vector<double> sorted = times;
    std::nth_element(sorted.begin(), sorted.begin() + sorted.size() / 2,
                     sorted.end());
    return sorted[sorted.size() / 2];
  }
};

/// The sizes of a contraction, whether it accumulates into its result, and
/// whether its operands are bf16.
struct Shape {
  int64_t m, n, k, batch;
  bool accumulate, narrow;
  auto operator<=>(const Shape &) const = default;
};

/// The distinct contractions and attention commands of a step: how often each
/// occurs, and its variants.
struct Bench {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  Pool<float> pool;
  Pool<uint16_t> narrowPool;
  std::map<Shape, std::pair<int, std::vector<Variant>>> contractions;
  std::vector<std::pair<int, std::vector<Variant>>> attention;
  /// The commands of `attention`, in the same order.
  std::vector<AttentionCommand> seen;
  std::vector<bool> seenBackward;
  bool explored = false;

  /// Returns the addresses of A, B and C.
  std::tuple<void *, void *, float *> operands(const Shape &s) {
    float *all = pool.get(s.m * s.k + s.k * s.n + s.m * s.n);
    float *c = all + s.m * s.k + s.k * s.n;
    if (!s.narrow)
      return {all, all + s.m * s.k, c};
    uint16_t *a = narrowPool.get(s.m * s.k + s.k * s.n);
    return {a, a + s.m * s.k, c};
  }

  void addSgemm(const Shape &s, bool ta, bool tb,
                std::vector<Variant> &variants) {
    variants.push_back({[=, this] {
      auto [a, b, c] = operands(s);
      char transA = ta ? 'T' : 'N', transB = tb ? 'T' : 'N';
      int64_t lda = ta ? s.m : s.k, ldb = tb ? s.k : s.n;
      float beta = s.accumulate ? 1.0f : 0.0f;
      double start = now();
      if (s.narrow)
        dnnl_gemm_bf16bf16f32(transA, transB, s.m, s.n, s.k, 1.0f,
                              static_cast<uint16_t *>(a), lda,
                              static_cast<uint16_t *>(b), ldb, beta, c, s.n);
      else
        dnnl_sgemm(transA, transB, s.m, s.n, s.k, 1.0f, static_cast<float *>(a),
                   lda, static_cast<float *>(b), ldb, beta, c, s.n);
      return now() - start;
    }});
  }

  void addMatmul(const Shape &s, bool ta, bool tb, bool packed,
                 std::vector<Variant> &variants) {
    using namespace dnnl;
    using dims = memory::dims;
    auto wide = memory::data_type::f32;
    auto type = s.narrow ? memory::data_type::bf16 : wide;
    memory::desc a({s.m, s.k}, type, ta ? dims{1, s.m} : dims{s.k, 1});
    memory::desc b({s.k, s.n}, type, tb ? dims{1, s.k} : dims{s.n, 1});
    memory::desc bAny({s.k, s.n}, type, memory::format_tag::any);
    memory::desc c({s.m, s.n}, wide, dims{s.n, 1});
    primitive_attr attr;
    if (s.accumulate) {
      post_ops ops;
      ops.append_sum(1.0f);
      attr.set_post_ops(ops);
    }
    auto pd = std::make_shared<matmul::primitive_desc>(
        matmul::desc(a, packed ? bAny : b, c), attr, engine);
    auto primitive = std::make_shared<matmul>(*pd);
    auto packedB =
        packed ? std::make_shared<memory>(pd->weights_desc(), engine) : nullptr;
    variants.push_back({[=, this]() mutable {
      auto [pa, pb, pc] = operands(s);
      memory am(a, engine, pa), bm(b, engine, pb), cm(c, engine, pc);
      double start = now();
      if (packed)
        reorder(bm, *packedB).execute(stream, bm, *packedB);
      primitive->execute(stream, {{DNNL_ARG_SRC, am},
                                  {DNNL_ARG_WEIGHTS, packed ? *packedB : bm},
                                  {DNNL_ARG_DST, cm}});
      stream.wait();
      return now() - start;
    }});
  }

  /// Runs the contractions of attention over blocks of `rows` queries and the
  /// keys that are visible to them; returns milliseconds.
  double runAttention(const AttentionCommand &c, bool backward, int64_t rows) {
    struct Work {
      const AttentionCommand &c;
      bool backward;
      int64_t rows;
      float *data;
      size_t perThread;
    };
    int64_t largest = std::max(c.headSize, c.valueSize);
    size_t perThread =
        size_t(rows) * c.keys * 2 + size_t(c.keys + rows) * largest * 4;
    Work work{c, backward, rows, pool.get(perThread * 64), perThread};
    double start = now();
    GOMP_parallel(
        [](void *p) {
          Work &w = *static_cast<Work *>(p);
          const AttentionCommand &c = w.c;
          int threads = omp_get_num_threads(), self = omp_get_thread_num();
          float *s = w.data + self * w.perThread, *p2 = s + w.rows * c.keys,
                *q = p2 + w.rows * c.keys;
          int64_t largest = std::max(c.headSize, c.valueSize);
          float *k = q + w.rows * largest, *v = k + c.keys * largest,
                *o = v + c.keys * largest;
          for (int64_t h = self; h < c.batch * c.heads; h += threads)
            for (int64_t first = 0; first < c.queries; first += w.rows) {
              int64_t n = std::min(w.rows, c.queries - first);
              int64_t visible =
                  c.causal ? std::clamp<int64_t>(first + n + c.keys - c.queries,
                                                 0, c.keys)
                           : c.keys;
              if (!visible)
                continue;
              int64_t d = c.headSize, e = c.valueSize;
              dnnl_sgemm('N', 'T', n, visible, d, 1, q, d, k, d, 0, s, visible);
              if (!w.backward) {
                dnnl_sgemm('N', 'N', n, e, visible, 1, s, visible, v, e, 0, o,
                           e);
                continue;
              }
              dnnl_sgemm('N', 'T', n, visible, e, 1, q, e, v, e, 0, p2,
                         visible);
              dnnl_sgemm('T', 'N', visible, e, n, 1, s, visible, q, e, 1, v, e);
              dnnl_sgemm('N', 'N', n, d, visible, 1, p2, visible, k, d, 0, o,
                         d);
              dnnl_sgemm('T', 'N', visible, d, n, 1, p2, visible, q, d, 1, k,
                         d);
            }
        },
        &work, 0, 0);
    return now() - start;
  }

  void addAttention(const AttentionCommand &c, bool backward) {
    for (size_t i = 0; i < seen.size(); ++i)
      if (seenBackward[i] == backward && seen[i].batch == c.batch &&
          seen[i].heads == c.heads && seen[i].queries == c.queries &&
          seen[i].keys == c.keys && seen[i].headSize == c.headSize &&
          seen[i].causal == c.causal) {
        ++attention[i].first;
        return;
      }
    seen.push_back(c);
    seenBackward.push_back(backward);
    std::vector<Variant> variants;
    for (int64_t rows : {64, 128, 256})
      variants.push_back(
          {[=, this] { return runAttention(c, backward, rows); }});
    attention.push_back({1, std::move(variants)});
  }

  /// Adds the contractions and attention commands of one entry.
  void collect(const Program &program, const std::string &entry) {
    for (const Action &action : program.entries.at(entry).actions)
      for (const Command &command : program.parts[action.part].commands) {
        if (command.kind == CommandKind::AttentionForward ||
            command.kind == CommandKind::AttentionBackward)
          addAttention(command.attention,
                       command.kind == CommandKind::AttentionBackward);
        if (command.kind != CommandKind::Contract)
          continue;
        const ContractCommand &c = command.contract;
        Shape shape{c.m, c.n, c.k, c.batch, c.beta != 0, c.type == DType::BF16};
        auto &[count, variants] = contractions[shape];
        if (count++)
          continue;
        for (bool ta : {false, true})
          for (bool tb : {false, true}) {
            addSgemm(shape, ta, tb, variants);
            addMatmul(shape, ta, tb, false, variants);
            addMatmul(shape, ta, tb, true, variants);
            // The same product of operands that are f32 already.
            if (shape.narrow) {
              Shape wide = shape;
              wide.narrow = false;
              addSgemm(wide, ta, tb, variants);
            }
          }
      }
  }

  /// Measures every variant once more.
  void explore() {
    explored = true;
    for (auto &[shape, entry] : contractions)
      for (Variant &variant : entry.second)
        variant.times.push_back(variant.run() * shape.batch);
    for (auto &[count, variants] : attention)
      for (Variant &variant : variants)
        variant.times.push_back(variant.run());
  }

  static Variant &fastest(std::vector<Variant> &variants) {
    return *std::min_element(
        variants.begin(), variants.end(),
        [](Variant &a, Variant &b) { return a.median() < b.median(); });
  }

  /// Runs all contractions and attention commands of a step.
  llvm::json::Object step() {
    double gemm = 0, attend = 0;
    for (auto &[shape, entry] : contractions) {
      Variant &variant = fastest(entry.second);
      for (int64_t i = 0; i < entry.first * shape.batch; ++i)
        gemm += variant.run();
    }
    for (auto &[count, variants] : attention) {
      Variant &variant = fastest(variants);
      for (int i = 0; i < count; ++i)
        attend += variant.run();
    }
    return llvm::json::Object{
        {"ms", gemm + attend}, {"contractions", gemm}, {"attention", attend}};
  }
};

} // namespace

int main(int argc, char **argv) {
  if (argc != 3) {
    llvm::errs() << "usage: cleave-floor model.so threads\n";
    return 2;
  }
  auto artifact = Artifact::open(argv[1]);
  if (!artifact) {
    llvm::errs() << "error: " << llvm::toString(artifact.takeError()) << "\n";
    return 1;
  }
  omp_set_num_threads(std::atoi(argv[2]));
  Bench bench;
  // The floor of a pipeline is the sum over all its positions.
  for (const Program &program : artifact->getPositions())
    bench.collect(program, "train");
  if (bench.contractions.empty()) {
    llvm::errs() << "error: " << argv[1]
                 << ": its entry 'train' has no contraction\n";
    return 1;
  }
  llvm::outs() << "{\"ready\": true}\n";
  llvm::outs().flush();
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line == "quit")
      break;
    if (line == "explore" || !bench.explored)
      bench.explore();
    llvm::json::Object answer;
    if (line == "step")
      answer = bench.step();
    llvm::outs() << llvm::json::Value(std::move(answer)) << "\n";
    llvm::outs().flush();
  }
  return 0;
}
