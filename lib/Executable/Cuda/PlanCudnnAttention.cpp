//===- PlanCudnnAttention.cpp - What cuDNN runs, and its memory
//--------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Cuda/PlanCudnnAttention.h"
#include "llvm/ADT/StringExtras.h"

#include <algorithm>

using namespace cleave::runtime;
using namespace cleave::runtime::cuda;

/// 9 for "sm_90" and "sm_90a"; 0 if it is none.
static int majorOf(llvm::StringRef architecture) {
  int number = 0;
  if (!architecture.consume_front("sm_"))
    return 0;
  architecture = architecture.take_while(llvm::isDigit);
  return architecture.getAsInteger(10, number) ? 0 : number / 10;
}

static bool isBackward(const Command &command) {
  return command.kind == CommandKind::AttentionBackward;
}

/// Kernels load 16 bytes at a time.
static bool isAligned(const HeadView &view, const AttentionCommand &a,
                      int64_t heads, int64_t positions) {
  auto fits = [](int64_t size, int64_t stride) {
    return size <= 1 || (stride > 0 && stride % 8 == 0);
  };
  return view.ref.offset % 16 == 0 && fits(a.batch, view.strideBatch) &&
         fits(heads, view.strideHead) && fits(positions, view.stridePosition);
}

std::string cuda::cudnnRefusal(const Command &command,
                               llvm::StringRef architecture) {
  const AttentionCommand &a = command.attention;
  bool backward = isBackward(command);
  int major = majorOf(architecture);
  if (major != 8 && major != 9 && major != 10)
    return "no memory is stated for " + architecture.str();
  if (a.type != DType::BF16 && a.type != DType::F16)
    return "it computes on 16 bits";
  if (a.resultType != a.type)
    return "its results have the type of its operands";
  if (a.dropout > 0)
    return "its dropout draws other bits";
  if (a.bias.buffer >= 0)
    return "a bias";
  if (a.mask.buffer >= 0)
    return "a mask";
  if (a.querySegments.buffer >= 0)
    return "segments";
  if (a.blocks != 1)
    return "blocks";
  if (a.onto)
    return "a result that is added onto another";
  if (a.queryStarts.buffer >= 0 || a.keyStarts.buffer >= 0 ||
      ((a.causal || a.window > 0) &&
       (a.globalQueries != a.queries || a.globalKeys != a.keys)))
    return "a part of the scores";
  if (a.batch == 0 || a.heads == 0 || a.queries == 0 || a.keys == 0 ||
      (a.queries == 1 && a.keys == 1))
    return "too few positions";
  if (a.causal && a.queries > a.keys)
    return "queries that see no key";
  if (a.window > 0 && (!a.causal || a.queries != a.keys))
    return "a window that is not causal, or of more keys than queries";
  int64_t most = std::max(a.headSize, a.valueSize);
  if (a.headSize == 0 || a.valueSize == 0 || a.headSize % 8 ||
      a.valueSize % 8 || most > 128)
    return "heads of " + std::to_string(most) + " channels";
  bool aligned = isAligned(a.q, a, a.heads, a.queries) &&
                 isAligned(a.k, a, a.kvHeads, a.keys) &&
                 isAligned(a.v, a, a.kvHeads, a.keys) &&
                 isAligned(a.o, a, a.heads, a.queries);
  if (backward)
    aligned = aligned && isAligned(a.dO, a, a.heads, a.queries) &&
              isAligned(a.dQ, a, a.heads, a.queries) &&
              isAligned(a.dK, a, a.kvHeads, a.keys) &&
              isAligned(a.dV, a, a.kvHeads, a.keys);
  return aligned ? "" : "operands that are not aligned to 16 bytes";
}

/// In the backward pass: the sums of dO * O; where heads share keys, gradients
/// of keys and values of each head; and gradients of queries in f32, which
/// blocks add to in any order, or, below 10.x, the gradients of scores in 16
/// bits, which are then summed in a fixed order.
int64_t cuda::cudnnBytes(const Command &command, llvm::StringRef architecture,
                         int64_t samples) {
  const AttentionCommand &a = command.attention;
  auto round = [](int64_t n, int64_t to) { return (n + to - 1) / to * to; };
  int64_t bytes = 256;
  if (isBackward(command)) {
    int major = majorOf(architecture);
    int64_t heads = samples * a.heads;
    bytes += 4 * heads * a.queries;
    if (a.heads != a.kvHeads)
      bytes += (major == 10 && a.fixedOrder ? 4 : 2) * heads * a.keys *
               (a.headSize + a.valueSize);
    if (!a.fixedOrder) {
      bytes += 4 * heads * a.queries * a.headSize;
      // Once more, by the kernels of 8.x, which 10.x has for few positions too.
      if (major != 9)
        bytes += 4 * heads * round(a.queries, 8) * a.headSize;
    } else if (major != 10) {
      bytes += 2 * heads * round(a.queries, 64) *
               round(a.keys, major == 9 ? 128 : 64);
    }
  }
  return round(bytes, 256);
}

int64_t cuda::cudnnSamples(const Command &command, llvm::StringRef architecture,
                           int64_t bytes) {
  for (int64_t samples = command.attention.batch; samples > 0; --samples)
    if (command.attention.batch % samples == 0 &&
        cudnnBytes(command, architecture, samples) <= bytes)
      return samples;
  return 0;
}

int64_t cuda::planCudnnBytes(const Command &command,
                             llvm::StringRef architecture) {
  if (!cudnnRefusal(command, architecture).empty())
    return -1;
  int64_t samples = cudnnSamples(command, architecture, kLargestCudnnBytes);
  return samples ? cudnnBytes(command, architecture, samples) : -1;
}
