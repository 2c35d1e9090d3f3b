//===- Balance.cpp - Stages of even cost ----------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Layers.h"
#include "Stages.h"
#include "cleave/Dialect/Graph/Analysis/Slices.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include <numeric>

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

/// Returns stages of one op each.
Stages Stages::apart(const Ops &ops) const {
  Stages single(entry, flow, ops.size(), map);
  single.stagedForward();
  SmallVector<size_t> everywhere(ops.size() - 1);
  std::iota(everywhere.begin(), everywhere.end(), 1);
  single.assign(ops, everywhere);
  single.finish();
  return single;
}

/// For each of `ops`, the seconds of the op and of the backward that must be in
/// the same stage, for one micro-batch. The latter is found by stages of one op
/// each (`single`), so that the gradients of a head that is computed in
/// backward count for the last op of forward.
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

/// The ops at which a stage may begin so that each parameter is in one stage,
/// and its gradient depends on no values of an earlier one.
llvm::BitVector Stages::wholeBegins(const Ops &ops,
                                    const Stages &single) const {
  llvm::BitVector begins(ops.size(), true);
  for (auto gradient : body.getOps<graph::GradientOp>()) {
    StageSet held = single.holders(gradient.getParameter());
    int64_t first = held.find_first(), last = held.find_last();
    auto reads = [&](OpOperand &use) { return !flow.readsTypeOnly(use); };
    auto passes = [&](Operation *op) { return !single.of(op); };
    for (Operation *from : graph::backwardSlice(
             gradient.getOperation(), {.reads = reads, .passes = passes}))
      if (std::optional<int64_t> stage = single.of(from))
        first = std::min(first, *stage);
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
      // The value crosses all cuts between its op and its last reader.
      if (last > i) {
        change[i + 1] += bytesOf(result);
        change[last + 1] -= bytesOf(result);
      }
    }
  std::partial_sum(change.begin(), change.end(), change.begin());
  change.pop_back();
  return change;
}

namespace {
/// The best cut of the first ops into a number of stages: the time of the
/// slowest stage, the sum of the squares of all, the bytes sent, and the place
/// where the last stage begins.
struct Best {
  double slowest = INFINITY;
  double squares = 0;
  int64_t sent = 0;
  size_t begin = 0;
};

/// Cuts a sequence of ops by dynamic programming.
class Cutter {
public:
  Cutter(ArrayRef<double> seconds, ArrayRef<int64_t> crossing, int64_t count,
         const MachineModel &machine, const llvm::BitVector &begins)
      : count(count), link(machine.link), crossing(crossing),
        before(seconds.size() + 1, 0) {
    std::partial_sum(seconds.begin(), seconds.end(), before.begin() + 1);
    places.push_back(0);
    for (unsigned at : begins.set_bits())
      if (at > 0)
        places.push_back(at);
    places.push_back(seconds.size());
  }

  /// The time of the slowest stage of the fastest cut; infinite if there are
  /// too few ops at which a stage may begin.
  double fastest() {
    run(
        INFINITY,
        [](const Best &a, const Best &b) {
          return std::pair(a.slowest, a.sent) < std::pair(b.slowest, b.sent);
        },
        /*bySlowest=*/true);
    return best[count].back().slowest;
  }

  /// Of the cuts whose stages take at most `limit`, the one that sends least;
  /// of those, the fastest.
  SmallVector<size_t> narrowest(double limit) {
    run(limit, [](const Best &a, const Best &b) {
      return std::pair(a.sent, a.slowest) < std::pair(b.sent, b.slowest);
    });
    return cuts();
  }

  /// Of the cuts that send as little, that whose stages are most even.
  SmallVector<size_t> evenest(double limit) {
    run(limit, [](const Best &a, const Best &b) {
      return std::pair(a.sent, a.squares) < std::pair(b.sent, b.squares);
    });
    return cuts();
  }

private:
  /// The cuts of `best`.
  SmallVector<size_t> cuts() const {
    SmallVector<size_t> cuts(count - 1);
    size_t end = places.size() - 1;
    for (int64_t k = count; k > 1; --k) {
      end = best[k][end].begin;
      cuts[k - 2] = places[end];
    }
    return cuts;
  }

  /// Fills `best`: a prefix of a cut is better if `isBetter` says so; of equal
  /// ones, that whose last stage begins first. An order by a maximum, by a sum,
  /// or by both in turn has a best prefix for each end. With `bySlowest`, one
  /// with a slower stage is never better.
  void run(double limit,
           llvm::function_ref<bool(const Best &, const Best &)> isBetter,
           bool bySlowest = false) {
    best.assign(count + 1, std::vector<Best>(places.size()));
    best[0][0].slowest = 0;
    for (int64_t k = 1; k <= count; ++k)
      for (size_t end = k; end + (count - k) < places.size(); ++end) {
        Best &known = best[k][end];
        for (size_t begin = end; begin-- > static_cast<size_t>(k - 1);) {
          double work = before[places[end]] - before[places[begin]];
          // So are all that begin before it: a stage has few of the places.
          if (work > limit || (bySlowest && work > known.slowest))
            break;
          const Best &rest = best[k - 1][begin];
          if (rest.slowest == INFINITY)
            continue;
          int64_t received = begin ? crossing[places[begin]] : 0;
          // The values received count twice: their gradients are sent back.
          double own = work + 2.0 * static_cast<double>(received) / link;
          if (own > limit)
            continue;
          Best candidate{std::max(rest.slowest, own), rest.squares + own * own,
                         rest.sent + received, begin};
          if (known.slowest == INFINITY || !isBetter(known, candidate))
            known = candidate;
        }
      }
  }

  int64_t count;
  double link;
  ArrayRef<int64_t> crossing;
  /// The time of the ops before each one.
  std::vector<double> before;
  /// The ops at which a stage may begin, from the first on, and the end.
  SmallVector<size_t> places;
  /// By the number of stages and the place where the last one ends.
  std::vector<std::vector<Best>> best;
};
} // namespace

SmallVector<size_t> cleave::pipe::balancedCuts(ArrayRef<Operation *> ops,
                                               ArrayRef<double> seconds,
                                               int64_t count,
                                               const MachineModel &machine,
                                               const llvm::BitVector &begins) {
  SmallVector<int64_t> crossing = crossingBytes(ops);
  Layers layers(ops, seconds, crossing);
  Cutter anywhere(seconds, crossing, count, machine, begins);
  double fastest = anywhere.fastest();
  if (fastest == INFINITY)
    return {};
  if (layers.count() >= count) {
    llvm::BitVector between = begins;
    between.reset(layers.within);
    Cutter cutter(seconds, crossing, count, machine, between);
    double slowest = cutter.fastest();
    if (slowest <= fastest * (1 + kLayerCutLoss)) {
      double limit = slowest * (1 + kNarrowCutGain);
      // No stage without a layer, unless that is faster.
      between &= layers.first;
      Cutter each(seconds, crossing, count, machine, between);
      return each.fastest() <= limit ? each.evenest(limit)
                                     : cutter.evenest(limit);
    }
  }
  if (layers.count() > 0)
    ops.front()->getParentOp()->emitRemark("is cut into ")
        << count << " stages within its layers, of which " << layers.count()
        << " were found: the slowest stage would take more than "
        << static_cast<int64_t>(kLayerCutLoss * 100)
        << " % longer if stages began between them";
  return anywhere.narrowest(fastest * (1 + kNarrowCutGain));
}
