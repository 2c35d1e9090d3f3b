//===- MergeFactors.cpp - The axes of each factor of an op ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The tensors of an op may claim different axes for its factors.
/// test/Dialect/Spmd/Propagation/propagate-conflicts.mlir has a function for
/// each case:
///
/// 1. Two factors get one axis from different tensors: that of more tensors.
/// 2. As many tensors for each: that of the larger tensors, by the elements
///    that a rank has of them in a micro-batch, in shards over the axes about
///    which they agree.
/// 3. As large, too: the first, operands before results.
/// 4. An annotation and its operand disagree: the annotation.
/// 5. Tensors give one factor different axes: by 1 to 3.
/// 6. A tensor has the first axes of another's list: the list, no conflict.
/// 7. A factor that must be replicated gets an axis: it has none.
/// 8. A minor factor gets an axis, and its major one has none: it has none.
///
/// What tensors claim is decided before, by the order in which annotations are
/// applied (Propagate.cpp, cases 9 to 13).
///
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Spmd/IR/AxesText.h"
#include "cleave/Dialect/Spmd/IR/FactorClaims.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/raw_ostream.h"
#include <tuple>

using namespace cleave::spmd;
using namespace cleave::graph;
using llvm::ArrayRef;

/// Whether every axis of `axes` has size 1.
static bool isTrivial(const Mesh &mesh, ArrayRef<AxisRef> axes) {
  return mesh.size(axes) == 1;
}

/// Removes the axes of each factor that is minor, in a dimension of some
/// tensor, to a factor that is not fully sharded: no sharding of that tensor
/// expresses it.
static void
cutInnerFactors(const Mesh &mesh, const ShardingRule &rule, FactorAxes &merged,
                llvm::function_ref<void(const std::string &)> conflict) {
  bool changed = true;
  auto cut = [&](const FactorMapping &mapping) {
    for (ArrayRef<int64_t> dim : mapping) {
      bool complete = true;
      for (int64_t factor : dim) {
        if (!complete && !isTrivial(mesh, merged[factor])) {
          conflict(
              "axes " + setOfAxes(merged[factor]) +
              " shard a minor factor of a dimension whose major factor is not "
              "fully sharded");
          merged[factor].clear();
          changed = true;
        }
        complete &= mesh.size(merged[factor]) == rule.factors[factor].size;
      }
    }
  };
  while (changed) {
    changed = false;
    for (auto [i, mapping] : llvm::enumerate(rule.operands))
      if (!llvm::is_contained(rule.unused, i))
        cut(mapping);
    for (const FactorMapping &mapping : rule.results)
      cut(mapping);
  }
}

std::string FactorClaim::describe(ArrayRef<const Sharding *> operands,
                                  ArrayRef<const Sharding *> results) const {
  const Sharding &sharding = isResult ? *results[tensor] : *operands[tensor];
  return (isResult ? "result " : "operand ") + std::to_string(tensor) +
         " shards dimension " + std::to_string(dim) + " over " +
         setOfAxes(sharding.dims[dim]);
}

/// Returns the number of elements of a tensor of `mapping`.
static int64_t elementsAlong(const ShardingRule &rule,
                             const FactorMapping &mapping) {
  int64_t result = 1;
  for (ArrayRef<int64_t> dim : mapping)
    for (int64_t factor : dim)
      result *= rule.factors[factor].size;
  return result;
}

FactorClaims cleave::spmd::collectClaims(const Mesh &mesh,
                                         const ShardingRule &rule,
                                         ArrayRef<const Sharding *> operands,
                                         ArrayRef<const Sharding *> results,
                                         Conflict conflict) {
  FactorClaims claims;
  auto collect = [&](bool isResult, unsigned tensor, const Sharding &sharding,
                     const FactorMapping &mapping) {
    for (unsigned dim = 0; dim < mapping.size(); ++dim) {
      ArrayRef<AxisRef> axes = sharding.dims[dim];
      if (axes.empty())
        continue;
      FactorClaim claim{isResult, tensor, dim, 0, {}};
      AxisList rest;
      auto parts =
          dimToFactors(mesh, axes, factorSizes(rule, mapping[dim]), rest);
      if (!rest.empty() && !isTrivial(mesh, rest))
        conflict(claim.describe(operands, results) +
                 ", which the op cannot keep sharded");
      for (auto [factor, part] : llvm::zip(mapping[dim], parts)) {
        if (part.empty())
          continue;
        if (rule.factors[factor].kind == FactorKind::Replicated) {
          if (!isTrivial(mesh, part))
            conflict(claim.describe(operands, results) +
                     ", which the op needs replicated");
          continue;
        }
        // Others may agree on the first axes only.
        claim.factor = factor;
        for (size_t i = 0; i < part.size(); ++i) {
          claim.axes.assign(part.begin(), part.begin() + i + 1);
          claim.all = i + 1 == part.size();
          claims.push_back(claim);
        }
      }
    }
  };
  auto collectResults = [&] {
    for (auto [i, sharding] : llvm::enumerate(results))
      collect(true, i, *sharding, rule.results[i]);
  };
  if (rule.resultsFirst)
    collectResults();
  for (auto [i, sharding] : llvm::enumerate(operands))
    if (!llvm::is_contained(rule.unused, i))
      collect(false, i, *sharding, rule.operands[i]);
  if (!rule.resultsFirst)
    collectResults();
  return claims;
}

/// Returns for each claim the elements of the shards of its tensor over the
/// axes that no tensor gives to another factor: a reshard moves these.
static llvm::SmallVector<int64_t, 8>
elementsMoved(const Mesh &mesh, const ShardingRule &rule,
              ArrayRef<FactorClaim> claims) {
  llvm::SmallVector<int64_t, 8> agreed, moved;
  for (const FactorClaim &claim : claims) {
    int64_t shards = 1;
    for (const AxisRef &axis : claim.axes)
      if (llvm::none_of(claims, [&](const FactorClaim &other) {
            return other.factor != claim.factor &&
                   mesh.overlap(axis, other.axes);
          }))
        shards *= mesh.size(axis);
    agreed.push_back(claim.all ? shards : 1);
  }
  for (const FactorClaim &claim : claims) {
    int64_t elements =
        elementsAlong(rule, claim.isResult ? rule.results[claim.tensor]
                                           : rule.operands[claim.tensor]);
    for (auto [own, shards] : llvm::zip_equal(claims, agreed))
      if (own.isResult == claim.isResult && own.tensor == claim.tensor)
        elements = std::max<int64_t>(1, elements / shards);
    moved.push_back(elements);
  }
  return moved;
}

void cleave::spmd::orderClaims(const Mesh &mesh, const ShardingRule &rule,
                               FactorClaims &claims) {
  llvm::SmallVector<int64_t, 8> moved = elementsMoved(mesh, rule, claims);
  for (FactorClaim &claim : claims)
    for (auto [other, elements] : llvm::zip_equal(claims, moved))
      if (other.all && other.factor == claim.factor &&
          mesh.isPrefix(claim.axes, other.axes)) {
        ++claim.voters;
        claim.elements += elements;
      }
  llvm::stable_sort(claims, [&](const FactorClaim &a, const FactorClaim &b) {
    bool annotatedA = rule.resultsFirst && a.isResult;
    bool annotatedB = rule.resultsFirst && b.isResult;
    return std::tuple(annotatedA, a.voters, a.elements) >
           std::tuple(annotatedB, b.voters, b.elements);
  });
}

FactorAxes cleave::spmd::grantClaims(const Mesh &mesh, const ShardingRule &rule,
                                     ArrayRef<FactorClaim> claims,
                                     ArrayRef<const Sharding *> operands,
                                     ArrayRef<const Sharding *> results,
                                     Conflict conflict) {
  FactorAxes merged(rule.factors.size());
  auto isTaken = [&](const AxisRef &axis, int64_t factor) {
    return llvm::any_of(llvm::enumerate(merged), [&](auto other) {
      return static_cast<int64_t>(other.index()) != factor &&
             mesh.overlap(axis, other.value());
    });
  };
  for (const FactorClaim &claim : claims) {
    AxisList part = claim.axes;
    // An axis shards one factor: the first one that takes it.
    for (size_t i = 0; i < part.size(); ++i)
      if (isTaken(part[i], claim.factor)) {
        if (claim.all && mesh.size(part[i]) > 1)
          conflict(claim.describe(operands, results) + ", of which " +
                   part[i].str() + " shards another factor of the op");
        part.resize(i);
        break;
      }
    AxisList &known = merged[claim.factor];
    if (known == part || mesh.isPrefix(part, known))
      continue;
    // Axes of size 1 are no disagreement.
    AxisList split = mesh.significant(part), other = mesh.significant(known);
    if (mesh.isPrefix(known, part))
      known = part;
    else if (mesh.isPrefix(split, other))
      continue;
    else if (mesh.isPrefix(other, split))
      known = part;
    else if (claim.all)
      conflict(claim.describe(operands, results) +
               ", another operand or result over " + setOfAxes(known));
  }
  cutInnerFactors(mesh, rule, merged, conflict);
  return merged;
}

FactorAxes cleave::spmd::mergeFactors(const Mesh &mesh,
                                      const ShardingRule &rule,
                                      ArrayRef<const Sharding *> operands,
                                      ArrayRef<const Sharding *> results,
                                      Conflict conflict) {
  FactorClaims claims = collectClaims(mesh, rule, operands, results, conflict);
  orderClaims(mesh, rule, claims);
  return grantClaims(mesh, rule, claims, operands, results, conflict);
}
