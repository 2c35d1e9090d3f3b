//===- attention.cpp - Time of attention to a part of the keys ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Measures attention, forward and backward: 16 documents packed in one row
/// beside each document alone, and a causal window and chunks of 1/16 of the
/// positions beside all earlier keys. Both of a pair run in turn, on one
/// thread, whose CPU time is taken; the median of the ratios is printed.
/// Usage: cleave-attention-bench [positions] [heads] [repetitions]
///
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/CPU/Attention.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

using namespace cleave::runtime;

namespace {

constexpr int64_t headSize = 64;

double cpuMilliseconds() {
  timespec time;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e3 * double(time.tv_sec) + 1e-6 * double(time.tv_nsec);
}

/// Causal self-attention of `batch` rows of `positions`.
class Attention {
public:
  Attention(int64_t batch, int64_t heads, int64_t positions, int64_t window,
            std::vector<int64_t> documents)
      : segments(std::move(documents)) {
    c.batch = batch;
    c.heads = c.kvHeads = heads;
    c.queries = c.keys = c.globalQueries = c.globalKeys = positions;
    c.globalHeads = heads;
    c.headSize = c.valueSize = headSize;
    c.scale = 1.0f / std::sqrt(float(headSize));
    c.causal = true;
    c.window = window;
    HeadView view;
    view.stridePosition = heads * headSize;
    view.strideHead = headSize;
    view.strideBatch = positions * heads * headSize;
    c.q = c.k = c.v = c.o = c.dO = c.dQ = c.dK = c.dV = view;
    std::mt19937 gen(1);
    std::normal_distribution<float> normal;
    size_t size = size_t(batch * heads * positions);
    for (std::vector<float> *values : {&q, &k, &v, &dO}) {
      values->resize(size * headSize);
      for (float &value : *values)
        value = normal(gen);
    }
    for (std::vector<float> *values : {&o, &dQ, &dK, &dV})
      values->resize(size * headSize);
    lse.resize(size);
    c.scratchBytesPerThread = std::max(attentionScratchBytes(c, false),
                                       attentionScratchBytes(c, true));
    scratch.resize(size_t(c.scratchBytesPerThread));
    p.q = q.data();
    p.k = k.data();
    p.v = v.data();
    p.o = o.data();
    p.lse = lse.data();
    p.dO = dO.data();
    p.dQ = dQ.data();
    p.dK = dK.data();
    p.dV = dV.data();
    p.scratch = scratch.data();
    if (!segments.empty())
      p.querySegments = p.keySegments = segments.data();
  }

  double forward(const ThreadTeam &team) {
    double begin = cpuMilliseconds();
    attentionForward(c, p, team);
    return cpuMilliseconds() - begin;
  }
  double backward(const ThreadTeam &team) {
    double begin = cpuMilliseconds();
    attentionBackward(c, p, team);
    return cpuMilliseconds() - begin;
  }

private:
  AttentionCommand c;
  AttentionPointers p;
  std::vector<float> q, k, v, o, lse, dO, dQ, dK, dV;
  std::vector<int64_t> segments;
  std::vector<char> scratch;
};

/// Attentions whose times are added.
using Several = std::vector<std::unique_ptr<Attention>>;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void compare(const char *name, Several &some, Several &other,
             const ThreadTeam &team, int repetitions) {
  std::vector<double> forward, backward, ratios[3];
  for (int i = 0; i <= repetitions; ++i) {
    double times[2][2] = {};
    Several *both[] = {&some, &other};
    for (int side = 0; side < 2; ++side)
      for (std::unique_ptr<Attention> &one : *both[side]) {
        times[side][0] += one->forward(team);
        times[side][1] += one->backward(team);
      }
    // The first one warms the caches up.
    if (i == 0)
      continue;
    forward.push_back(times[0][0]);
    backward.push_back(times[0][1]);
    ratios[0].push_back(times[0][0] / times[1][0]);
    ratios[1].push_back(times[0][1] / times[1][1]);
    ratios[2].push_back((times[0][0] + times[0][1]) /
                        (times[1][0] + times[1][1]));
  }
  std::printf("%-32s %9.3f ms %9.3f ms  %6.3f %6.3f %6.3f x\n", name,
              median(forward), median(backward), median(ratios[0]),
              median(ratios[1]), median(ratios[2]));
  std::fflush(stdout);
}

/// Document numbers of rows of documents of such lengths.
std::vector<int64_t> numbered(const std::vector<int64_t> &lengths) {
  std::vector<int64_t> segments;
  for (size_t i = 0; i < lengths.size(); ++i)
    segments.insert(segments.end(), size_t(lengths[i]), int64_t(i));
  return segments;
}

Several one(int64_t batch, int64_t heads, int64_t positions, int64_t window,
            std::vector<int64_t> segments) {
  Several result;
  result.push_back(std::make_unique<Attention>(batch, heads, positions, window,
                                               std::move(segments)));
  return result;
}

} // namespace

int main(int argc, char **argv) {
  int64_t positions = argc > 1 ? std::atoll(argv[1]) : 8192;
  int64_t heads = argc > 2 ? std::atoll(argv[2]) : 2;
  int repetitions = argc > 3 ? std::atoi(argv[3]) : 5;
  constexpr int64_t parts = 16;
  if (positions < parts * 4 || positions % parts != 0 || heads < 1 ||
      repetitions < 1) {
    std::fprintf(stderr,
                 "usage: %s [positions] [heads] [repetitions]\n"
                 "positions: a multiple of %lld\n",
                 argv[0], static_cast<long long>(parts));
    return 2;
  }
  ThreadTeam team(1);
  ThreadTeam::Adopted adopted = team.adopt();
  int64_t part = positions / parts;
  std::printf("%lld positions, %lld heads of %lld, CPU time of one thread, "
              "median of %d\n%-32s %12s %12s  %s\n",
              static_cast<long long>(positions), static_cast<long long>(heads),
              static_cast<long long>(headSize), repetitions, "", "forward",
              "backward", "ratios: forward, backward, both");

  Several alone = one(parts, heads, part, 0, {});
  std::vector<int64_t> equal(parts, part);
  Several packed = one(1, heads, positions, 0, numbered(equal));
  compare("16 equal documents", packed, alone, team, repetitions);

  // Lengths from half to one and a half of the mean.
  std::mt19937 gen(1);
  std::vector<int64_t> uneven(equal);
  for (size_t i = 0; i + 1 < uneven.size(); i += 2) {
    int64_t more = int64_t(gen() % uint64_t(part)) - part / 2;
    uneven[i] += more;
    uneven[i + 1] -= more;
  }
  Several each;
  for (int64_t length : uneven)
    each.push_back(std::make_unique<Attention>(1, heads, length, 0,
                                               std::vector<int64_t>()));
  packed = one(1, heads, positions, 0, numbered(uneven));
  compare("16 uneven documents", packed, each, team, repetitions);

  // Numbers that neither ascend nor are near each other.
  std::vector<int64_t> segments = numbered(uneven);
  for (int64_t &segment : segments)
    segment = segment * 2654435761 % 1000003;
  packed = one(1, heads, positions, 0, segments);
  compare("16 documents, numbers mixed", packed, each, team, repetitions);

  // Every document in two pieces, with all others between them.
  segments.clear();
  for (int half = 0; half < 2; ++half)
    for (int64_t i = 0; i < parts; ++i)
      segments.insert(segments.end(), size_t(part / 2), i);
  packed = one(1, heads, positions, 0, segments);
  compare("16 documents, each in two pieces", packed, alone, team, repetitions);

  Several causal = one(1, heads, positions, 0, {});
  Several window = one(1, heads, positions, part, {});
  compare("window of 1/16", window, causal, team, repetitions);
  compare("chunks of 1/16", alone, causal, team, repetitions);
  packed = one(1, heads, positions, 0, numbered(equal));
  compare("chunks of 1/16, as documents", packed, causal, team, repetitions);
  return 0;
}
