//===- AttentionCosts.cpp - Costs of attention ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "../Costs/CostBuilder.h"
#include <cmath>

using namespace mlir;
using namespace cleave::graph;

/// The number of scores that attention computes: causal attention skips those
/// above the diagonal, a window those outside it. A shard has its share of the
/// scores of the global tensor.
template <typename Op> static int64_t visibleScores(Op op) {
  auto q = cast<RankedTensorType>(op.getQuery().getType()).getShape();
  int64_t queries = q[2];
  int64_t keys = cast<RankedTensorType>(op.getKey().getType()).getDimSize(2);
  std::optional<double> share;
  if (auto global = op.getGlobalShape()) {
    share = double(queries) * keys / (double((*global)[2]) * (*global)[3]);
    queries = (*global)[2];
    keys = (*global)[3];
  }
  int64_t window = op.getWindow() ? static_cast<int64_t>(*op.getWindow()) : 0;
  int64_t visible = 0;
  for (int64_t i = 0; i < queries; ++i) {
    int64_t end = op.getCausal()
                      ? std::clamp<int64_t>(i + keys - queries + 1, 0, keys)
                      : keys;
    int64_t begin =
        window ? std::clamp<int64_t>(i + keys - queries - window + 1, 0, end)
               : 0;
    visible += end - begin;
  }
  if (share)
    visible = std::llround(*share * visible);
  return q[0] * q[1] * visible / static_cast<int64_t>(op.getBlocks());
}

/// `products` contractions over the head size for each visible score, and
/// `rowFlops` operations on it.
template <typename Op>
static OpCost attentionCost(Op op, int64_t products, int64_t rowFlops,
                            Saved saved = {}) {
  int64_t headSize =
      cast<RankedTensorType>(op.getQuery().getType()).getDimSize(3);
  return streamingCost(op.getOperation(), WorkClass::Attention,
                       visibleScores(op) * (products * 2 * headSize + rowFlops),
                       saved);
}

OpCost AttentionOp::getCost() {
  Saved saved{{}, {0, 1}};
  for (unsigned i = 0; i < getNumOperands(); ++i)
    saved.operands.push_back(i);
  return attentionCost(*this, 2, 15, saved);
}

OpCost AttentionGradOp::getCost() { return attentionCost(*this, 5, 20); }

OpCost AttentionBiasGradOp::getCost() { return attentionCost(*this, 2, 20); }
