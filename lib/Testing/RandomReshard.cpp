//===- RandomReshard.cpp - Random meshes and shardings --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Testing/RandomReshard.h"
#include "llvm/ADT/STLExtras.h"
#include <numeric>

using namespace cleave;
using namespace cleave::spmd;

static constexpr llvm::StringLiteral kNames[] = {"a", "b", "c", "d"};

static bool any(const RandomReshard &reshard,
                llvm::function_ref<bool(const AxisList &)> test) {
  return llvm::any_of(reshard.from.dims, test) ||
         llvm::any_of(reshard.to.dims, test);
}

bool RandomReshard::hasSubAxes() const {
  auto isDigit = [](const AxisRef &axis) { return !axis.isWhole(); };
  auto isPart = [&](const PartialAxis &entry) { return isDigit(entry.axis); };
  return any(*this,
             [&](const AxisList &axes) {
               return llvm::any_of(axes, isDigit);
             }) ||
         llvm::any_of(from.partial, isPart);
}

bool RandomReshard::hasSeveralAxes() const {
  return any(*this, [](const AxisList &axes) { return axes.size() > 1; });
}

bool RandomReshard::isUneven() const {
  for (const Sharding *sharding : {&from, &to})
    for (auto [size, axes] : llvm::zip_equal(shape, sharding->dims))
      if (size % mesh.size(axes) != 0)
        return true;
  return false;
}

Mesh cleave::drawMesh(Random &random, int64_t maxPositions) {
  static constexpr int64_t kSizes[] = {2, 2, 2, 2, 3, 4, 4, 4, 6, 8, 16};
  Mesh mesh;
  int64_t count = random.integer(1, 4), positions = 1;
  for (int64_t i = 0; i < count; ++i) {
    int64_t size = random.pick(kSizes);
    while (positions * size > maxPositions && size > 1)
      size = size % 2 == 0 ? size / 2 : 1;
    mesh.axes.push_back({kNames[i].str(), size, false});
    positions *= size;
  }
  return mesh;
}

AxisList cleave::drawDigits(Random &random, const Mesh &mesh, bool cut) {
  AxisList digits;
  for (auto [axis, name] : llvm::zip(mesh.axes, kNames)) {
    if (axis.size == 1)
      continue;
    int64_t pre = 1, rest = axis.size;
    while (cut && rest > 1 && random.chance(0.6)) {
      // Not always the smallest: sub-axes of two shardings may overlap.
      int64_t size = rest < 3 || random.chance(0.8) ? 2 : 3;
      while (rest % size != 0)
        ++size;
      if (size >= axis.size)
        break;
      digits.push_back({name, pre, size});
      pre *= size;
      rest /= size;
    }
    if (rest == axis.size)
      digits.push_back({name});
    else if (rest > 1)
      digits.push_back({name, pre, rest});
  }
  for (size_t i = digits.size(); i > 1; --i)
    std::swap(digits[i - 1], digits[random.integer(0, i - 1)]);
  return digits;
}

/// Assigns each of `digits` to a dimension, or to none.
static void place(Random &random, const Mesh &mesh,
                  llvm::ArrayRef<AxisRef> digits, Sharding &sharding) {
  for (const AxisRef &digit : digits)
    if (random.chance(0.75))
      random.pick(sharding.dims).push_back(digit);
  for (AxisList &axes : sharding.dims)
    axes = mesh.normalize(axes);
}

static RandomReshard drawOnce(Random &random, int64_t maxPositions,
                              bool uneven) {
  RandomReshard result;
  result.mesh = drawMesh(random, maxPositions);
  const Mesh &mesh = result.mesh;
  int64_t rank = random.integer(1, 3);
  result.from = result.to = Sharding::replicated(rank);

  AxisList digits = drawDigits(random, mesh, random.chance(0.6)), rest;
  bool isPartial = random.chance(0.5);
  ReductionKind kind = random.chance(0.7)   ? ReductionKind::Sum
                       : random.chance(0.5) ? ReductionKind::Max
                                            : ReductionKind::Min;
  AxisList kept;
  for (const AxisRef &digit : digits) {
    if (!isPartial || random.chance(0.5)) {
      rest.push_back(digit);
      continue;
    }
    result.from.partial.push_back({digit, kind});
    if (!uneven && random.chance(0.25)) {
      result.to.partial.push_back({digit, kind});
      kept.push_back(digit);
    }
  }
  place(random, mesh, rest, result.from);
  // The target has its own sub-axes, besides those on which it stays partial.
  AxisList others = drawDigits(random, mesh, random.chance(0.6));
  llvm::erase_if(
      others, [&](const AxisRef &digit) { return mesh.overlap(digit, kept); });
  place(random, mesh, others, result.to);

  for (int64_t dim = 0; dim < rank; ++dim) {
    int64_t parts = std::lcm(mesh.size(result.from.dims[dim]),
                             mesh.size(result.to.dims[dim]));
    // There may be fewer elements than shards.
    result.shape.push_back(uneven ? random.integer(2, 2 * parts + 1)
                                  : parts * random.integer(1, 3));
  }
  return result;
}

RandomReshard cleave::drawReshard(uint64_t seed, int64_t maxPositions) {
  // Streams of neighbouring seeds overlap; those seeded by their first numbers
  // do not.
  Random random(Random(seed).next());
  // Draws until the features of the seed are there.
  int64_t wanted = random.integer(0, 5);
  bool uneven = random.chance(0.4);
  while (true) {
    RandomReshard result = drawOnce(random, maxPositions, uneven);
    if (result.isUneven() != uneven)
      continue;
    if ((wanted == 0 || wanted == 1) && !result.hasSubAxes())
      continue;
    if ((wanted == 1 || wanted == 2) && !result.hasSeveralAxes())
      continue;
    if ((wanted == 2 || wanted == 3) && !result.isPartial())
      continue;
    return result;
  }
}
