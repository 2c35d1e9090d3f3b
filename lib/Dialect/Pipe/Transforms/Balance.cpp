//===- Balance.cpp - Stages of even cost ----------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Stages.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include <numeric>

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

/// Stages of one op each.
Stages Stages::apart(const Ops &ops) const {
  Stages single(entry, flow, ops.size());
  single.stagedForward();
  SmallVector<size_t> everywhere(ops.size() - 1);
  std::iota(everywhere.begin(), everywhere.end(), 1);
  single.assign(ops, everywhere);
  single.finish();
  return single;
}

/// Of each of `ops`, the seconds that it takes and those of the backward that
/// must stand where it does, for one micro-batch. What these are is asked of
/// stages of one op each: a head whose product backward makes, with both its
/// gradients, counts where forward ends.
std::vector<double> Stages::secondsOf(const Ops &ops, const Stages &single,
                                      const MachineModel &machine) const {
  spmd::MeshOp mesh = spmd::findMesh(entry->getParentOfType<ModuleOp>());
  spmd::Mesh known = mesh ? mesh.getMesh() : spmd::Mesh();
  std::vector<double> seconds(ops.size(), 0);
  for (Operation &op : body.without_terminator())
    if (std::optional<int64_t> stage = single.of(&op);
        stage && flow.part(&op) <= PartId::Backward)
      seconds[*stage] += machine.secondsOf(workOf(&op, known));
  return seconds;
}

/// Those of `ops` that a stage may begin with so that each parameter is in one
/// stage, and what its gradient is made of is in no earlier one.
llvm::BitVector Stages::wholeBegins(const Ops &ops,
                                    const Stages &single) const {
  llvm::BitVector begins(ops.size(), true);
  for (auto gradient : body.getOps<graph::GradientOp>()) {
    StageSet held = single.holders(gradient.getParameter());
    int64_t first = held.find_first(), last = held.find_last();
    SmallVector<Operation *> work{gradient};
    llvm::DenseSet<Operation *> seen;
    while (!work.empty())
      for (OpOperand &operand : work.pop_back_val()->getOpOperands()) {
        Operation *from = operand.get().getDefiningOp();
        if (!from || flow.isUnread(operand) || !seen.insert(from).second)
          continue;
        if (std::optional<int64_t> stage = single.of(from))
          first = std::min(first, *stage);
        else
          work.push_back(from);
      }
    if (first < last)
      begins.reset(first + 1, last + 1);
  }
  return begins;
}

SmallVector<int64_t> cleave::pipe::crossingBytes(ArrayRef<Operation *> ops) {
  llvm::DenseMap<Operation *, size_t> index;
  for (auto [i, op] : llvm::enumerate(ops))
    index[op] = i;
  SmallVector<int64_t> change(ops.size() + 1, 0);
  for (auto [i, op] : llvm::enumerate(ops))
    for (Value result : op->getResults()) {
      size_t last = i;
      for (Operation *user : result.getUsers())
        if (auto it = index.find(user); it != index.end())
          last = std::max(last, it->second);
      // It crosses the cuts before all that stand behind it, to the last.
      if (last > i) {
        change[i + 1] += bytesOf(result);
        change[last + 1] -= bytesOf(result);
      }
    }
  std::partial_sum(change.begin(), change.end(), change.begin());
  change.pop_back();
  return change;
}

SmallVector<size_t> cleave::pipe::balancedCuts(ArrayRef<Operation *> ops,
                                               ArrayRef<double> seconds,
                                               int64_t count,
                                               const MachineModel &machine,
                                               const llvm::BitVector &begins) {
  size_t n = ops.size();
  SmallVector<int64_t> crossing = crossingBytes(ops);
  std::vector<double> before(n + 1, 0);
  for (size_t i = 0; i < n; ++i)
    before[i + 1] = before[i] + seconds[i];

  /// The first ops in some stages: the slowest of these, the bytes sent between
  /// them, and where the last of them begins.
  struct Best {
    double slowest = INFINITY;
    int64_t sent = 0;
    size_t begin = 0;
    bool operator<(const Best &other) const {
      return std::pair(slowest, sent) < std::pair(other.slowest, other.sent);
    }
  };
  std::vector<std::vector<Best>> best(count + 1, std::vector<Best>(n + 1));
  best[0][0].slowest = 0;
  for (int64_t k = 1; k <= count; ++k)
    for (size_t end = k; end + (count - k) <= n; ++end)
      for (size_t begin = k - 1; begin < end; ++begin) {
        const Best &rest = best[k - 1][begin];
        if (rest.slowest == INFINITY || (begin && !begins.test(begin)))
          continue;
        // What it receives comes twice: a gradient goes back.
        double own = before[end] - before[begin] +
                     2.0 * (begin ? crossing[begin] : 0) / machine.link;
        Best candidate{std::max(rest.slowest, own),
                       rest.sent + (begin ? crossing[begin] : 0), begin};
        if (candidate < best[k][end])
          best[k][end] = candidate;
      }
  if (best[count][n].slowest == INFINITY)
    return {};
  SmallVector<size_t> cuts(count - 1);
  size_t end = n;
  for (int64_t k = count; k > 1; --k)
    cuts[k - 2] = end = best[k][end].begin;
  return cuts;
}
