//===- OpFactors.cpp - Shardings of an op through its factors -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Spmd/IR/OpFactors.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave::spmd;
using namespace cleave::graph;
using llvm::ArrayRef;

llvm::SmallVector<int64_t, 2>
cleave::spmd::factorSizes(const ShardingRule &rule, ArrayRef<int64_t> factors) {
  llvm::SmallVector<int64_t, 2> sizes;
  for (int64_t factor : factors)
    sizes.push_back(rule.factors[factor].size);
  return sizes;
}

llvm::SmallVector<AxisList, 4>
cleave::spmd::projectFactors(const Mesh &mesh, const ShardingRule &rule,
                             const FactorMapping &mapping,
                             const FactorAxes &axes) {
  llvm::SmallVector<AxisList, 4> dims;
  for (ArrayRef<int64_t> factors : mapping) {
    llvm::SmallVector<AxisList, 2> lists;
    for (int64_t factor : factors)
      lists.push_back(axes[factor]);
    dims.push_back(factorsToDim(mesh, lists, factorSizes(rule, factors)));
  }
  return dims;
}

/// Whether `mapping` has `factor`.
static bool runsAlong(const FactorMapping &mapping, int64_t factor) {
  return llvm::any_of(mapping, [&](ArrayRef<int64_t> dim) {
    return llvm::is_contained(dim, factor);
  });
}

/// Joins adjacent digits of one axis.
static PartialList joinDigits(const Mesh &mesh, ArrayRef<PartialAxis> list) {
  PartialList result;
  for (const PartialAxis &entry : list) {
    if (!result.empty() && result.back().kind == entry.kind) {
      AxisList joined =
          mesh.normalize(AxisList{result.back().axis, entry.axis});
      if (joined.size() == 1) {
        result.back().axis = joined.front();
        continue;
      }
    }
    result.push_back(entry);
  }
  return result;
}

PartialPlan cleave::spmd::planPartials(const Mesh &mesh,
                                       const ShardingRule &rule,
                                       const FactorAxes &axes,
                                       ArrayRef<const Sharding *> operands,
                                       ArrayRef<int64_t> elements,
                                       ArrayRef<AxisRef> own) {
  PartialPlan plan;
  plan.results.resize(rule.results.size());

  // 1. A sharded factor that a result lacks makes it partial.
  AxisList split;
  for (auto [f, list] : llvm::enumerate(axes)) {
    split.append(list.begin(), list.end());
    if (rule.factors[f].kind != FactorKind::Reduction)
      continue;
    for (auto [r, mapping] : llvm::enumerate(rule.results))
      if (!runsAlong(mapping, f))
        for (const AxisRef &axis : list)
          plan.results[r].push_back({axis, rule.factors[f].partial});
  }

  // 2. The digits on which operands are partial, refined by all of them.
  AxisList all(split);
  for (auto [i, sharding] : llvm::enumerate(operands))
    if (!llvm::is_contained(rule.unused, i))
      for (const PartialAxis &partial : sharding->partial)
        all.push_back(partial.axis);
  llvm::SmallVector<PartialList, 3> digits(operands.size());
  PartialList seen;
  for (auto [i, sharding] : llvm::enumerate(operands)) {
    if (llvm::is_contained(rule.unused, i))
      continue;
    for (const PartialAxis &partial : sharding->partial) {
      // Digits that cross others are reduced.
      auto refined = mesh.refine(partial.axis, all);
      if (!refined) {
        plan.reductions.push_back({static_cast<unsigned>(i), partial});
        continue;
      }
      for (const AxisRef &digit : *refined) {
        if (i == 0 && mesh.overlap(digit, own))
          continue;
        digits[i].push_back({digit, partial.kind});
        if (!llvm::is_contained(seen, digits[i].back()))
          seen.push_back(digits[i].back());
      }
    }
  }
  for (const PartialAxis &partial : seen) {
    llvm::SmallVector<unsigned, 2> holders;
    for (unsigned i = 0; i < operands.size(); ++i)
      if (llvm::is_contained(digits[i], partial))
        holders.push_back(i);

    // The linear set to keep partial. None for a max or a min, and for an axis
    // that shards the op itself.
    ArrayRef<unsigned> kept;
    int64_t best = -1;
    if (partial.kind == ReductionKind::Sum &&
        !mesh.overlap(partial.axis, split))
      for (ArrayRef<unsigned> set : rule.linear) {
        bool complete = llvm::all_of(set, [&](unsigned operand) {
          return llvm::is_contained(holders, operand);
        });
        int64_t size = 0;
        for (unsigned operand : set)
          size += elements[operand];
        if (complete && size > best) {
          kept = set;
          best = size;
        }
      }
    for (unsigned operand : holders)
      if (!llvm::is_contained(kept, operand))
        plan.reductions.push_back({operand, partial});
    if (best >= 0)
      for (auto &result : plan.results)
        result.push_back(partial);
  }
  for (PartialList &result : plan.results)
    result = joinDigits(mesh, result);
  return plan;
}

PartialList cleave::spmd::staysPartial(const Mesh &mesh,
                                       const Sharding &sharding,
                                       ArrayRef<PartialAxis> made) {
  AxisList split;
  for (const AxisList &axes : sharding.dims)
    split.append(axes.begin(), axes.end());
  if (auto rest = withoutPartial(mesh, made, split))
    return *rest;
  PartialList result;
  for (const PartialAxis &entry : made)
    if (!mesh.overlap(entry.axis, split))
      result.push_back(entry);
  return result;
}
