//===- OpFactors.cpp - Shardings of an op through its factors -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Spmd/IR/OpFactors.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/raw_ostream.h"

using namespace cleave::spmd;
using namespace cleave::graph;
using llvm::ArrayRef;

static std::string describe(ArrayRef<AxisRef> axes) {
  std::string text;
  llvm::raw_string_ostream os(text);
  os << "{";
  llvm::interleaveComma(axes, os, [&](const AxisRef &a) { os << a.str(); });
  os << "}";
  return text;
}

static llvm::SmallVector<int64_t, 2> factorSizes(const ShardingRule &rule,
                                                 ArrayRef<int64_t> factors) {
  llvm::SmallVector<int64_t, 2> sizes;
  for (int64_t factor : factors)
    sizes.push_back(rule.factors[factor].size);
  return sizes;
}

/// True when every axis of `axes` has size 1.
static bool isTrivial(const Mesh &mesh, ArrayRef<AxisRef> axes) {
  return mesh.size(axes) == 1;
}

/// Takes the axes of each factor that lies, in some tensor's dimension, behind
/// one that is not split completely: no sharding of that tensor can say it.
static void
cutInnerFactors(const Mesh &mesh, const ShardingRule &rule, FactorAxes &merged,
                llvm::function_ref<void(const std::string &)> conflict) {
  bool changed = true;
  auto cut = [&](const FactorMapping &mapping) {
    for (ArrayRef<int64_t> dim : mapping) {
      bool complete = true;
      for (int64_t factor : dim) {
        if (!complete && !isTrivial(mesh, merged[factor])) {
          conflict("axes " + describe(merged[factor]) +
                   " split a part of a dimension behind one that is whole");
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
      if (!llvm::is_contained(rule.unread, i))
        cut(mapping);
    for (const FactorMapping &mapping : rule.results)
      cut(mapping);
  }
}

FactorAxes cleave::spmd::mergeFactors(
    const Mesh &mesh, const ShardingRule &rule,
    ArrayRef<const Sharding *> operands, ArrayRef<const Sharding *> results,
    llvm::function_ref<void(const std::string &)> conflict) {
  FactorAxes merged(rule.factors.size());

  auto isTaken = [&](const AxisRef &axis, size_t factor) {
    return llvm::any_of(llvm::enumerate(merged), [&](auto other) {
      return other.index() != factor && mesh.overlap(axis, other.value());
    });
  };
  // Each tensor's say of each factor, in order.
  auto add = [&](const std::string &who, const Sharding &sharding,
                 const FactorMapping &mapping) {
    for (size_t dim = 0; dim < mapping.size(); ++dim) {
      ArrayRef<AxisRef> axes = sharding.dims[dim];
      if (axes.empty())
        continue;
      std::string where = who + " splits dimension " + std::to_string(dim) +
                          " over " + describe(axes);
      AxisList rest;
      auto parts =
          dimToFactors(mesh, axes, factorSizes(rule, mapping[dim]), rest);
      if (!rest.empty() && !isTrivial(mesh, rest))
        conflict(where + ", which the op cannot keep split");
      for (auto [factor, part] : llvm::zip(mapping[dim], parts)) {
        if (part.empty())
          continue;
        if (rule.factors[factor].kind == FactorKind::Replicated) {
          if (!isTrivial(mesh, part))
            conflict(where + ", which the op needs whole");
          continue;
        }
        // An axis splits one factor: the first that takes it.
        for (size_t i = 0; i < part.size(); ++i)
          if (isTaken(part[i], factor)) {
            if (mesh.size(part[i]) > 1)
              conflict(where + ", of which " + part[i].str() +
                       " splits another factor of the op");
            part.resize(i);
            break;
          }
        AxisList &known = merged[factor];
        if (known == part || mesh.isPrefix(part, known))
          continue;
        if (mesh.isPrefix(known, part))
          known = part;
        else
          conflict(where + ", another operand or result over " +
                   describe(known));
      }
    }
  };
  auto addResults = [&] {
    for (auto [i, sharding] : llvm::enumerate(results))
      add("result " + std::to_string(i), *sharding, rule.results[i]);
  };
  if (rule.resultsFirst)
    addResults();
  for (auto [i, sharding] : llvm::enumerate(operands))
    if (!llvm::is_contained(rule.unread, i))
      add("operand " + std::to_string(i), *sharding, rule.operands[i]);
  if (!rule.resultsFirst)
    addResults();
  cutInnerFactors(mesh, rule, merged, conflict);
  return merged;
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

/// True when `mapping` has `factor`.
static bool runsAlong(const FactorMapping &mapping, int64_t factor) {
  return llvm::any_of(mapping, [&](ArrayRef<int64_t> dim) {
    return llvm::is_contained(dim, factor);
  });
}

/// Writes neighbouring digits of one axis as one.
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
                                       ArrayRef<int64_t> elements) {
  PartialPlan plan;
  plan.results.resize(rule.results.size());

  // 1. A split factor that a result lacks makes it partial.
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

  // 2. Each digit on which an operand is partial, no smaller than what all say.
  AxisList all(split);
  for (auto [i, sharding] : llvm::enumerate(operands))
    if (!llvm::is_contained(rule.unread, i))
      for (const PartialAxis &partial : sharding->partial)
        all.push_back(partial.axis);
  llvm::SmallVector<PartialList, 3> digits(operands.size());
  PartialList seen;
  for (auto [i, sharding] : llvm::enumerate(operands)) {
    if (llvm::is_contained(rule.unread, i))
      continue;
    for (const PartialAxis &partial : sharding->partial) {
      // Digits that cross others are reduced as they are.
      auto refined = mesh.refine(partial.axis, all);
      if (!refined) {
        plan.reductions.push_back({static_cast<unsigned>(i), partial});
        continue;
      }
      for (const AxisRef &digit : *refined) {
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

    // The linear set to keep partial. A max or a min, and an axis that splits
    // the op itself, passes through none.
    ArrayRef<unsigned> kept;
    int64_t best = -1;
    if (partial.kind == PartialKind::Sum && !mesh.overlap(partial.axis, split))
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
