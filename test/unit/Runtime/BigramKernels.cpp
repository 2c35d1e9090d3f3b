//===- BigramKernels.cpp - Kernels of a small model -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Support/Philox.h"

#include <cmath>

using namespace cleave::runtime;

/// {hidden, vocabulary, all labels}
static const int64_t *sizesAt(void *p) { return static_cast<int64_t *>(p); }

/// What the code generator writes down of its kernels: how many arguments one
/// has, and which stage it is.
#define SIGNATURE(kernel, arguments)                                           \
  extern const uint32_t cleave_signature_##kernel[2];                          \
  const uint32_t cleave_signature_##kernel[2] = {arguments, 0};

extern "C" {

SIGNATURE(bigram_count, 4)
SIGNATURE(bigram_gather, 6)
SIGNATURE(bigram_gather_dropout, 6)
SIGNATURE(bigram_loss, 4)
SIGNATURE(bigram_norm, 5)
SIGNATURE(bigram_result, 2)
SIGNATURE(bigram_weight, 2)
SIGNATURE(bigram_sgd, 4)

/// labels, sums, flag, sizes: counts labels that are not ignored.
void bigram_count(void *const *args, int64_t, int64_t, void *) {
  auto *labels = static_cast<const int64_t *>(args[0]);
  auto *sums = static_cast<double *>(args[1]);
  int64_t count = 0;
  for (int64_t i = 0; i < sizesAt(args[3])[2]; ++i)
    count += labels[i] != -100;
  sums[1] = static_cast<double>(count);
  *static_cast<char *>(args[2]) = count > 0;
}

/// ids, E, hidden, sizes, rng, first element of the whole micro-batch
void bigram_gather(void *const *args, int64_t begin, int64_t end, void *) {
  auto *ids = static_cast<const int64_t *>(args[0]);
  auto *weights = static_cast<const float *>(args[1]);
  auto *out = static_cast<float *>(args[2]);
  int64_t hidden = sizesAt(args[3])[0];
  for (int64_t i = begin; i < end; ++i)
    for (int64_t j = 0; j < hidden; ++j)
      out[i * hidden + j] = weights[ids[i] * hidden + j];
}

void bigram_gather_dropout(void *const *args, int64_t begin, int64_t end,
                           void *scratch) {
  bigram_gather(args, begin, end, scratch);
  auto *out = static_cast<float *>(args[2]);
  int64_t hidden = sizesAt(args[3])[0];
  auto *rng = static_cast<const int64_t *>(args[4]);
  philox::Stream stream{static_cast<uint64_t>(rng[0]), 5,
                        static_cast<uint32_t>(rng[1])};
  int64_t first = *static_cast<const int64_t *>(args[5]);
  for (int64_t i = begin * hidden; i < end * hidden; ++i)
    out[i] = philox::draw(stream, static_cast<uint64_t>(first + i)) >=
                     philox::threshold(0.1f)
                 ? out[i] * philox::keepScale(0.1f)
                 : 0.0f;
}

/// logits, labels, sums, sizes: logits become their gradients.
void bigram_loss(void *const *args, int64_t begin, int64_t end, void *) {
  auto *logits = static_cast<float *>(args[0]);
  auto *labels = static_cast<const int64_t *>(args[1]);
  auto *sums = static_cast<double *>(args[2]);
  int64_t vocabulary = sizesAt(args[3])[1];
  for (int64_t i = begin; i < end; ++i) {
    float *row = logits + i * vocabulary;
    float max = row[0];
    for (int64_t j = 1; j < vocabulary; ++j)
      max = row[j] > max ? row[j] : max;
    float total = 0;
    for (int64_t j = 0; j < vocabulary; ++j)
      total += std::exp(row[j] - max);
    if (labels[i] == -100) {
      for (int64_t j = 0; j < vocabulary; ++j)
        row[j] = 0;
      continue;
    }
    sums[0] += std::log(total) + max - row[labels[i]];
    for (int64_t j = 0; j < vocabulary; ++j)
      row[j] = (std::exp(row[j] - max) / total - float(j == labels[i])) /
               static_cast<float>(sums[1]);
  }
}

/// dE, dW, norm, flag, sizes
void bigram_norm(void *const *args, int64_t, int64_t, void *) {
  double sum = 0;
  int64_t count = sizesAt(args[4])[0] * sizesAt(args[4])[1];
  for (int which = 0; which < 2; ++which)
    for (int64_t i = 0; i < count; ++i) {
      double g = static_cast<const float *>(args[which])[i];
      sum += g * g;
    }
  *static_cast<float *>(args[2]) = static_cast<float>(std::sqrt(sum));
  *static_cast<char *>(args[3]) = std::isfinite(sum);
}

/// sums, loss
void bigram_result(void *const *args, int64_t, int64_t, void *) {
  auto *sums = static_cast<const double *>(args[0]);
  *static_cast<float *>(args[1]) = static_cast<float>(sums[0] / sums[1]);
}

/// sums, the number of labels that count
void bigram_weight(void *const *args, int64_t, int64_t, void *) {
  *static_cast<double *>(args[1]) = static_cast<const double *>(args[0])[1];
}

/// weights, gradient, momentum, lr
void bigram_sgd(void *const *args, int64_t begin, int64_t end, void *) {
  auto *weights = static_cast<float *>(args[0]);
  auto *gradient = static_cast<const float *>(args[1]);
  auto *momentum = static_cast<float *>(args[2]);
  float lr = *static_cast<const float *>(args[3]);
  for (int64_t i = begin; i < end; ++i) {
    momentum[i] = 0.9f * momentum[i] + gradient[i];
    weights[i] -= lr * momentum[i];
  }
}

} // extern "C"
