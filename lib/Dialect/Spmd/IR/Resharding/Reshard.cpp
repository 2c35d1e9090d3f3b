//===- Reshard.cpp - The cheapest reshard between two shardings -----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// 1. What source and target have in common is fixed: the major axes of each
///    dimension, and the axes on which both are partial.
/// 2. Sums over sequential axes come first, so that other collectives run once.
/// 3. A plan without search (reduce, gather, slice) is the first bound.
/// 4. The search covers the digits that source and target name. Unless its plan
///    reaches the lower bound, a second search covers digits of prime size.
///
//===----------------------------------------------------------------------===//

#include "ReshardSearch.h"
#include "cleave/Machines/CollectiveCost.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave::spmd;
using llvm::ArrayRef;

double ReshardPlan::elements() const {
  double sum = 0;
  for (const Collective &move : moves)
    sum += move.elements;
  return sum;
}

double ReshardPlan::cost(int64_t elementBytes) const {
  double sum = elements() * elementBytes;
  for (const Collective &move : moves)
    sum += latencyOf(move.kind);
  return sum;
}

double cleave::spmd::latencyOf(CollectiveKind kind) {
  return kind == CollectiveKind::Slice ? machines::kCopyBytes
                                       : machines::kStartBytes;
}

namespace {

using Moves = llvm::SmallVector<Collective, 2>;

class Reshard {
public:
  Reshard(const Mesh &mesh, const Sharding &from, const Sharding &to,
          ArrayRef<int64_t> shape, int64_t elementBytes)
      : mesh(mesh), from(from), to(to), shape(shape),
        elementBytes(elementBytes), now(from) {
    now.open.assign(now.dims.size(), false);
  }

  ReshardPlan run() {
    if (!prepare())
      return std::move(plan);
    accumulate();
    if (sameDims(mesh, now.dims, to.dims) && gone.empty())
      return finish();
    llvm::append_range(plan.moves, search(withoutSearch()));
    return finish();
  }

private:
  /// Up to this number the search may look everywhere.
  static constexpr unsigned kFewDigits = 5;

  bool fail(const std::string &why) {
    plan.error = why;
    return false;
  }

  bool prepare();
  bool preparePartial();
  void accumulate();
  Moves withoutSearch();
  Moves search(Moves best);
  bool makeProblem(bool prime);
  bool addDigits(ArrayRef<AxisRef> list, ArrayRef<AxisRef> all, bool prime);
  Arrangement arrange(ArrayRef<AxisList> lists) const;
  Collective makeCollective(CollectiveKind kind) const;
  Collective makeCollective(const SearchStep &step,
                            const Arrangement &before) const;
  AxisList axesOf(ArrayRef<uint8_t> digits) const;
  double elementsOf(const Sharding &sharding) const;
  ReshardPlan finish();

  const Mesh &mesh;
  const Sharding &from, &to;
  ArrayRef<int64_t> shape;
  int64_t elementBytes;
  ReshardPlan plan;

  /// The sharding before the next move.
  Sharding now;
  /// For each dimension: what is fixed, and what lies behind it.
  llvm::SmallVector<AxisList, 4> fixed, restFrom, restTo;
  /// Axes of devices to reduce over.
  AxisList gone, goneSequential;
  ReductionKind reduction = ReductionKind::Sum;

  ReshardProblem problem;
  /// Elements of a shard for each of the problem's.
  double scale = 1;
  /// The axes of the problem's digits, and the tensor's dimension of each of
  /// its dimensions.
  AxisList digits;
  llvm::SmallVector<unsigned, 4> dims;
};

} // namespace

//===----------------------------------------------------------------------===//
// Differences of source and target
//===----------------------------------------------------------------------===//

bool Reshard::preparePartial() {
  AxisList kept, all;
  for (const PartialAxis &entry : to.partial)
    kept.push_back(entry.axis);
  auto rest = withoutPartial(mesh, from.partial, kept);
  if (!rest)
    return fail("its partial axes are cut into digits that cross each other");
  // The remaining partial axes must be those of the target.
  for (const PartialAxis &entry : *rest)
    if (mesh.size(entry.axis) > 1)
      all.push_back(entry.axis);
  auto stays = withoutPartial(mesh, from.partial, all);
  if (!stays || !samePartial(mesh, *stays, to.partial))
    return fail("no collective makes a value partial");
  for (const AxisRef &axis : all)
    (mesh.isSequential(axis) ? goneSequential : gone).push_back(axis);
  if (!all.empty()) {
    reduction = rest->front().kind;
    for (const PartialAxis &entry : from.partial)
      if (entry.kind != reduction && mesh.size(entry.axis) > 1)
        return fail("it is partial by two reductions, whose order is unknown");
  }
  return true;
}

bool Reshard::prepare() {
  unsigned dim;
  for (const Sharding *sharding : {&from, &to}) {
    if (sharding->dims.size() != shape.size())
      return fail("the ranks of sharding and tensor differ");
    if (!localShape(mesh, *sharding, shape, dim))
      return fail("dimension " + std::to_string(dim) + " of size " +
                  std::to_string(shape[dim]) + " is not divisible by " +
                  std::to_string(mesh.size(sharding->dims[dim])));
  }
  for (dim = 0; dim < shape.size(); ++dim) {
    AxisList common = mesh.commonPrefix(from.dims[dim], to.dims[dim]);
    int64_t parts = mesh.size(common);
    auto a = mesh.split(from.dims[dim], parts);
    auto b = mesh.split(to.dims[dim], parts);
    if (!a || !b)
      return fail("dimension " + std::to_string(dim) + " cannot be cut");
    fixed.push_back(std::move(common));
    restFrom.push_back(mesh.significant(a->second));
    restTo.push_back(mesh.significant(b->second));
    for (const AxisRef &axis : restFrom.back())
      if (mesh.isSequential(axis)) {
        plan.alongSequential = true;
        return fail("data would have to move along the sequential axis " +
                    axis.str());
      }
  }
  return preparePartial();
}

/// Adds the reduction over micro-batches.
void Reshard::accumulate() {
  if (goneSequential.empty())
    return;
  Collective move = makeCollective(CollectiveKind::AllReduce);
  move.axes = goneSequential;
  move.sharding.partial = *withoutPartial(mesh, now.partial, goneSequential);
  now = move.sharding;
  plan.moves.push_back(std::move(move));
}

Collective Reshard::makeCollective(CollectiveKind kind) const {
  Collective move;
  move.kind = kind;
  move.dims.resize(shape.size());
  move.newDims.resize(shape.size());
  move.reduction = reduction;
  move.sharding = now;
  return move;
}

double Reshard::elementsOf(const Sharding &sharding) const {
  double result = 1;
  for (auto [size, axes] : llvm::zip_equal(shape, sharding.dims))
    result *= size / mesh.size(axes);
  return result;
}

//===----------------------------------------------------------------------===//
// Without search
//===----------------------------------------------------------------------===//

/// Plans a reduction, gathers of differing axes, and slices.
Moves Reshard::withoutSearch() {
  Moves moves;
  Sharding start = now;
  if (!gone.empty()) {
    Collective move = makeCollective(CollectiveKind::AllReduce);
    move.axes = gone;
    double devices = mesh.size(gone);
    move.elements = 2 * (devices - 1) / devices * elementsOf(now);
    move.sharding.partial = *withoutPartial(mesh, now.partial, gone);
    now = move.sharding;
    moves.push_back(std::move(move));
  }
  for (CollectiveKind kind :
       {CollectiveKind::AllGather, CollectiveKind::Slice}) {
    ArrayRef<AxisList> rest = kind == CollectiveKind::Slice ? restTo : restFrom;
    if (llvm::all_of(rest, [](const AxisList &axes) { return axes.empty(); }))
      continue;
    Collective move = makeCollective(kind);
    move.dims.assign(rest.begin(), rest.end());
    for (auto [dim, axes] : llvm::enumerate(move.sharding.dims)) {
      axes = fixed[dim];
      if (kind == CollectiveKind::Slice) {
        axes.append(rest[dim].begin(), rest[dim].end());
        axes = mesh.normalize(axes);
      }
    }
    if (kind == CollectiveKind::AllGather)
      move.elements = elementsOf(move.sharding) - elementsOf(now);
    now = move.sharding;
    moves.push_back(std::move(move));
  }
  now = std::move(start);
  return moves;
}

//===----------------------------------------------------------------------===//
// With search
//===----------------------------------------------------------------------===//

/// Adds the digits of `list`, refined so that `all` cuts none of them.
bool Reshard::addDigits(ArrayRef<AxisRef> list, ArrayRef<AxisRef> all,
                        bool prime) {
  auto refined = mesh.refine(list, all);
  if (!refined)
    return false;
  for (const AxisRef &axis : *refined) {
    int64_t rest = mesh.size(axis), pre = axis.pre;
    while (rest > 1) {
      int64_t size = 2;
      while (prime && rest % size != 0)
        ++size;
      if (!prime)
        size = rest;
      AxisRef digit = mesh.normalize(AxisRef{axis.name, pre, size}).front();
      if (!llvm::is_contained(digits, digit)) {
        digits.push_back(digit);
        problem.digits.push_back({size, mesh.isSequential(axis)});
      }
      pre *= size;
      rest /= size;
    }
  }
  return true;
}

/// Where the digits of each dimension of the problem are in `lists`.
Arrangement Reshard::arrange(ArrayRef<AxisList> lists) const {
  Arrangement result;
  for (unsigned dim : dims) {
    auto &list = result.dims.emplace_back();
    AxisList axes = *mesh.refine(lists[dim], digits);
    for (const AxisRef &axis : axes)
      list.push_back(llvm::find(digits, axis) - digits.begin());
  }
  return result;
}

/// False where digits cross or are too many.
bool Reshard::makeProblem(bool prime) {
  problem = {};
  digits.clear();
  dims.clear();
  AxisList all(gone);
  for (ArrayRef<AxisList> lists : {ArrayRef(restFrom), ArrayRef(restTo)})
    for (const AxisList &list : lists)
      all.append(list.begin(), list.end());
  bool fits = addDigits(all, all, prime);
  if (!fits || digits.size() > ReshardProblem::kMaxDigits)
    return false;
  // Dimensions between which axes move and, while that is cheap to ask, the
  // others: an axis may wait there.
  bool few = digits.size() <= kFewDigits;
  for (unsigned dim = 0; dim < shape.size(); ++dim) {
    int64_t size = shape[dim] / mesh.size(fixed[dim]);
    bool canWait = few && llvm::any_of(problem.digits, [&](auto &digit) {
                     return size % digit.size == 0;
                   });
    if (canWait || !restFrom[dim].empty() || !restTo[dim].empty()) {
      dims.push_back(dim);
      problem.shape.push_back(size);
    }
  }
  problem.from = arrange(restFrom);
  problem.to = arrange(restTo);
  AxisList partial = *mesh.refine(gone, digits);
  for (const AxisRef &axis : partial)
    problem.from.partial |= 1u << (llvm::find(digits, axis) - digits.begin());
  scale = elementsOf(now) / problem.elements(problem.from);
  problem.elementBytes = elementBytes * scale;
  return true;
}

AxisList Reshard::axesOf(ArrayRef<uint8_t> list) const {
  AxisList axes;
  for (uint8_t digit : list)
    axes.push_back(digits[digit]);
  return mesh.normalize(axes);
}

/// The digits of `a` behind those that `b` begins with.
static ArrayRef<uint8_t> behind(ArrayRef<uint8_t> a, ArrayRef<uint8_t> b) {
  while (!a.empty() && !b.empty() && a.front() == b.front()) {
    a = a.drop_front();
    b = b.drop_front();
  }
  return a;
}

Collective Reshard::makeCollective(const SearchStep &step,
                                   const Arrangement &before) const {
  const Arrangement &after = step.after;
  Collective move = makeCollective(step.kind);
  move.elements = step.elements * scale;
  for (auto [i, dim] : llvm::enumerate(dims)) {
    ArrayRef<uint8_t> old = behind(before.dims[i], after.dims[i]);
    ArrayRef<uint8_t> added = behind(after.dims[i], before.dims[i]);
    if (step.kind == CollectiveKind::AllToAll) {
      if (!old.empty())
        move.from = dim;
      if (!added.empty()) {
        move.to = dim;
        move.axes = axesOf(added);
      }
    } else if (step.kind == CollectiveKind::Permute) {
      move.dims[dim] = axesOf(old);
      move.newDims[dim] = axesOf(added);
    } else {
      move.dims[dim] =
          axesOf(step.kind == CollectiveKind::AllGather ? old : added);
    }
    AxisList axes = fixed[dim];
    for (uint8_t digit : after.dims[i])
      axes.push_back(digits[digit]);
    move.sharding.dims[dim] = mesh.normalize(axes);
  }
  AxisList reduced;
  for (size_t digit = 0; digit < digits.size(); ++digit)
    if ((before.partial & ~after.partial) >> digit & 1)
      reduced.push_back(digits[digit]);
  if (step.kind == CollectiveKind::AllReduce)
    move.axes = mesh.normalize(reduced);
  move.sharding.partial = *withoutPartial(mesh, now.partial, reduced);
  return move;
}

/// Returns the best plan: that of the search, or `best`.
Moves Reshard::search(Moves best) {
  constexpr unsigned kMaxStates = 4000, kMaxPrimeDigits = 12;
  ReshardPlan known;
  for (bool prime : {false, true}) {
    size_t count = digits.size();
    if (!makeProblem(prime))
      break;
    known.moves = best;
    if (prime && (digits.size() == count || digits.size() > kMaxPrimeDigits ||
                  (digits.size() > kFewDigits &&
                   known.elements() <= leastElements(problem) * scale)))
      break;
    auto steps = searchReshard(problem, known.cost(elementBytes), kMaxStates);
    if (!steps)
      continue;
    best.clear();
    Sharding start = now;
    const Arrangement *before = &problem.from;
    for (const SearchStep &step : *steps) {
      best.push_back(makeCollective(step, *before));
      now = best.back().sharding;
      before = &step.after;
    }
    now = std::move(start);
  }
  return best;
}

ReshardPlan Reshard::finish() {
  // The sharding as in the target, with its axes of size 1.
  if (!plan.moves.empty()) {
    plan.moves.back().sharding = to;
    plan.moves.back().sharding.open.assign(to.dims.size(), false);
  }
  return std::move(plan);
}

ReshardPlan cleave::spmd::planReshard(const Mesh &mesh, const Sharding &from,
                                      const Sharding &to,
                                      ArrayRef<int64_t> shape,
                                      int64_t elementBytes) {
  return Reshard(mesh, from, to, shape, elementBytes).run();
}

const ReshardPlan &ReshardPlanner::plan(const Sharding &from,
                                        const Sharding &to,
                                        ArrayRef<int64_t> shape,
                                        int64_t elementBytes) {
  std::string key = from.str() + to.str() + std::to_string(elementBytes);
  for (int64_t size : shape)
    key += "," + std::to_string(size);
  auto [it, isNew] = plans.try_emplace(std::move(key));
  if (isNew)
    it->second = planReshard(mesh, from, to, shape, elementBytes);
  return it->second;
}
