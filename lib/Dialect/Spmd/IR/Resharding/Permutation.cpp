//===- Permutation.cpp - Who sends to whom in a permute -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Spmd/IR/Resharding/Permutation.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave::spmd;
using llvm::ArrayRef;

static AxisList flatten(ArrayRef<AxisList> dims) {
  AxisList result;
  for (const AxisList &axes : dims)
    result.append(axes.begin(), axes.end());
  return result;
}

/// The digits of `list` that are outside of `other`; both are refined.
static AxisList without(const Mesh &mesh, ArrayRef<AxisRef> list,
                        ArrayRef<AxisRef> other) {
  AxisList result;
  for (const AxisRef &axis : list)
    if (!mesh.overlap(axis, other))
      result.push_back(axis);
  return result;
}

std::optional<std::string> Permutation::check(const Mesh &mesh) const {
  if (from.size() != to.size())
    return "replaces axes of " + std::to_string(from.size()) +
           " dimensions by those of " + std::to_string(to.size());
  for (size_t dim = 0; dim < from.size(); ++dim)
    if (mesh.size(from[dim]) != mesh.size(to[dim]))
      return "replaces " + std::to_string(mesh.size(from[dim])) +
             " parts of dimension " + std::to_string(dim) + " by " +
             std::to_string(mesh.size(to[dim]));
  AxisList a = flatten(from), b = flatten(to);
  if (!mesh.refine(a, b) || !mesh.refine(b, a))
    return std::string("has digits of one axis that cross each other");
  return std::nullopt;
}

AxisList Permutation::axes(const Mesh &mesh) const {
  AxisList a = flatten(from), b = flatten(to);
  std::optional<AxisList> refined = mesh.refine(b, a);
  if (refined) {
    AxisList more = without(mesh, *refined, a);
    a.append(more.begin(), more.end());
  }
  return a;
}

llvm::SmallVector<int64_t, 4>
Permutation::source(const Mesh &mesh, ArrayRef<int64_t> coordinates) const {
  llvm::SmallVector<int64_t, 4> result(coordinates);
  // Whoever holds the wanted shard under `from`, ...
  for (auto [before, after] : llvm::zip_equal(from, to))
    mesh.setPart(before, mesh.partIndex(after, coordinates), result);
  // ... and of those the one whose new digits are this position's old ones.
  AxisList a = flatten(from), b = flatten(to);
  auto old = mesh.refine(a, b), taken = mesh.refine(b, a);
  if (old && taken)
    mesh.setPart(without(mesh, *taken, *old),
                 mesh.partIndex(without(mesh, *old, *taken), coordinates),
                 result);
  return result;
}
