//===- Axes.cpp - The algebra of mesh axes and factors --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Spmd/IR/Axes.h"
#include "llvm/ADT/STLExtras.h"
#include <numeric>

using namespace cleave::spmd;
using llvm::ArrayRef;

//===----------------------------------------------------------------------===//
// Axes
//===----------------------------------------------------------------------===//

std::string AxisRef::str() const {
  std::string text = "\"" + name.str() + "\"";
  if (!isWhole())
    text += ":(" + std::to_string(pre) + ")" + std::to_string(size);
  return text;
}

const MeshAxis *Mesh::find(llvm::StringRef name) const {
  auto it =
      llvm::find_if(axes, [&](const MeshAxis &a) { return a.name == name; });
  return it == axes.end() ? nullptr : &*it;
}

int64_t Mesh::size(const AxisRef &axis) const {
  if (!axis.isWhole())
    return axis.size;
  const MeshAxis *found = find(axis.name);
  return found ? found->size : 1;
}

int64_t Mesh::size(ArrayRef<AxisRef> list) const {
  int64_t product = 1;
  for (const AxisRef &axis : list)
    product *= size(axis);
  return product;
}

int64_t Mesh::size() const {
  int64_t product = 1;
  for (const MeshAxis &axis : axes)
    product *= axis.size;
  return product;
}

std::optional<std::string> Mesh::check(const AxisRef &axis) const {
  const MeshAxis *found = find(axis.name);
  if (!found)
    return "the mesh has no axis \"" + axis.name.str() + "\"";
  if (axis.isWhole())
    return std::nullopt;
  if (axis.pre < 1 || axis.size < 2 || found->size % axis.pre != 0 ||
      (found->size / axis.pre) % axis.size != 0)
    return axis.str() + " is not a sub-axis of \"" + axis.name.str() +
           "\", which has size " + std::to_string(found->size);
  if (axis.size == found->size)
    return axis.str() + " is the entire axis: write \"" + axis.name.str() +
           "\"";
  return std::nullopt;
}

std::pair<int64_t, int64_t> Mesh::interval(const AxisRef &axis) const {
  return {axis.pre, axis.pre * size(axis)};
}

AxisRef Mesh::digit(const AxisRef &axis, int64_t pre, int64_t size) const {
  const MeshAxis *found = find(axis.name);
  if (found && size == found->size)
    return {axis.name};
  return {axis.name, pre, size};
}

bool Mesh::overlap(const AxisRef &a, const AxisRef &b) const {
  if (a.name != b.name)
    return false;
  // A whole axis overlaps itself even at size 1.
  if (a.isWhole() && b.isWhole())
    return true;
  auto [aLow, aHigh] = interval(a);
  auto [bLow, bHigh] = interval(b);
  if (bLow < aLow) {
    std::swap(aLow, bLow);
    std::swap(aHigh, bHigh);
  }
  // Digits whose cuts do not nest depend on each other.
  return bLow < aHigh || bLow % aHigh != 0;
}

bool Mesh::overlap(const AxisRef &a, ArrayRef<AxisRef> list) const {
  return llvm::any_of(list, [&](const AxisRef &b) { return overlap(a, b); });
}

AxisList Mesh::normalize(ArrayRef<AxisRef> list) const {
  AxisList result;
  for (const AxisRef &axis : list) {
    // A whole axis of size 1 is kept: it still says what is split.
    if (!axis.isWhole() && axis.size == 1)
      continue;
    if (!result.empty() && result.back().name == axis.name &&
        !result.back().isWhole() && !axis.isWhole() &&
        interval(result.back()).second == axis.pre) {
      result.back() =
          digit(axis, result.back().pre, result.back().size * axis.size);
      continue;
    }
    result.push_back(axis.isWhole() ? axis : digit(axis, axis.pre, axis.size));
  }
  return result;
}

AxisList Mesh::significant(ArrayRef<AxisRef> list) const {
  AxisList result = normalize(list);
  llvm::erase_if(result, [&](const AxisRef &axis) { return size(axis) == 1; });
  return result;
}

std::optional<std::pair<AxisList, AxisList>> Mesh::split(ArrayRef<AxisRef> list,
                                                         int64_t count) const {
  AxisList major, minor;
  for (size_t i = 0; i < list.size(); ++i) {
    int64_t parts = size(list[i]);
    if (count % parts == 0) {
      // Axes of size 1 behind a complete major part stay with it.
      major.push_back(list[i]);
      count /= parts;
      continue;
    }
    if (count == 1) {
      minor.append(list.begin() + i, list.end());
      return std::pair(normalize(major), normalize(minor));
    }
    if (parts % count != 0)
      return std::nullopt;
    int64_t pre = list[i].pre;
    major.push_back(digit(list[i], pre, count));
    minor.push_back(digit(list[i], pre * count, parts / count));
    minor.append(list.begin() + i + 1, list.end());
    return std::pair(normalize(major), normalize(minor));
  }
  if (count != 1)
    return std::nullopt;
  return std::pair(normalize(major), AxisList());
}

AxisList Mesh::commonPrefix(ArrayRef<AxisRef> a, ArrayRef<AxisRef> b) const {
  AxisList result, restA(a), restB(b);
  while (!restA.empty() && !restB.empty()) {
    AxisRef first = restA.front(), second = restB.front();
    if (first.name != second.name || first.pre != second.pre)
      break;
    int64_t sizeA = size(first), sizeB = size(second);
    int64_t common = std::gcd(sizeA, sizeB);
    // A digit is common only when the shorter one is a major part of the
    // longer.
    if (common != std::min(sizeA, sizeB))
      break;
    result.push_back(digit(first, first.pre, common));
    auto advance = [&](AxisList &rest, int64_t parts) {
      AxisRef head = rest.front();
      rest.erase(rest.begin());
      if (parts > common)
        rest.insert(rest.begin(),
                    digit(head, head.pre * common, parts / common));
    };
    advance(restA, sizeA);
    advance(restB, sizeB);
  }
  return normalize(result);
}

bool Mesh::isPrefix(ArrayRef<AxisRef> prefix, ArrayRef<AxisRef> list) const {
  return commonPrefix(prefix, list) == normalize(prefix);
}

Mesh Mesh::together() const {
  Mesh mesh = *this;
  for (MeshAxis &axis : mesh.axes)
    if (axis.sequential || axis.name == kPipelineAxis)
      axis.size = 1;
  return mesh;
}

llvm::SmallVector<int64_t, 4> Mesh::coordinates(int64_t number) const {
  llvm::SmallVector<int64_t, 4> result(axes.size(), 0);
  for (size_t i = axes.size(); i-- > 0;) {
    result[i] = number % axes[i].size;
    number /= axes[i].size;
  }
  return result;
}

int64_t Mesh::partIndex(ArrayRef<AxisRef> list,
                        ArrayRef<int64_t> coordinates) const {
  int64_t index = 0;
  for (const AxisRef &axis : list) {
    const MeshAxis *found = find(axis.name);
    if (!found)
      continue;
    int64_t coordinate = coordinates[found - axes.begin()];
    int64_t parts = size(axis);
    int64_t digitValue =
        coordinate / (found->size / (axis.pre * parts)) % parts;
    index = index * parts + digitValue;
  }
  return index;
}

void Mesh::setPart(ArrayRef<AxisRef> list, int64_t index,
                   llvm::MutableArrayRef<int64_t> coordinates) const {
  for (const AxisRef &axis : llvm::reverse(list)) {
    const MeshAxis *found = find(axis.name);
    if (!found)
      continue;
    int64_t parts = size(axis), below = found->size / (axis.pre * parts);
    int64_t &coordinate = coordinates[found - axes.begin()];
    coordinate += (index % parts - coordinate / below % parts) * below;
    index /= parts;
  }
}

int64_t Mesh::position(ArrayRef<int64_t> coordinates) const {
  int64_t number = 0;
  for (auto [axis, coordinate] : llvm::zip_equal(axes, coordinates))
    number = number * axis.size + coordinate;
  return number;
}

std::optional<AxisList> Mesh::refine(ArrayRef<AxisRef> list,
                                     ArrayRef<AxisRef> others) const {
  AxisList result;
  for (const AxisRef &axis : list) {
    auto [low, high] = interval(axis);
    llvm::SmallVector<int64_t, 4> cuts{low, high};
    for (const AxisRef &other : others) {
      if (other.name != axis.name)
        continue;
      auto [from, to] = interval(other);
      cuts.append({from, to});
    }
    llvm::sort(cuts);
    cuts.erase(llvm::unique(cuts), cuts.end());
    for (size_t i = 1; i < cuts.size(); ++i) {
      if (cuts[i] % cuts[i - 1] != 0)
        return std::nullopt;
      if (low < cuts[i] && cuts[i] <= high)
        result.push_back(digit(axis, cuts[i - 1], cuts[i] / cuts[i - 1]));
    }
    if (low == high)
      result.push_back(axis);
  }
  return result;
}

bool Mesh::isSequential(const AxisRef &axis) const {
  const MeshAxis *found = find(axis.name);
  return found && found->sequential;
}

AxisList Mesh::deviceAxes(ArrayRef<AxisRef> list) const {
  return AxisList(llvm::make_filter_range(
      list, [&](const AxisRef &axis) { return !isSequential(axis); }));
}

//===----------------------------------------------------------------------===//
// Factors
//===----------------------------------------------------------------------===//

llvm::SmallVector<AxisList, 2>
cleave::spmd::dimToFactors(const Mesh &mesh, ArrayRef<AxisRef> axes,
                           ArrayRef<int64_t> sizes, AxisList &rest) {
  llvm::SmallVector<AxisList, 2> result(sizes.size());
  AxisList pending = mesh.normalize(axes);
  for (size_t i = 0; i < sizes.size() && !pending.empty(); ++i) {
    int64_t parts = mesh.size(pending);
    if (sizes[i] % parts == 0 || i + 1 == sizes.size()) {
      // The last factor takes what is left, divisible or not: whether it
      // divides is the partitioner's question.
      result[i] = std::move(pending);
      pending.clear();
      break;
    }
    auto cut = mesh.split(pending, sizes[i]);
    if (!cut) {
      // As many major axes as divide the factor.
      while (!pending.empty() && sizes[i] % mesh.size(pending) != 0) {
        rest.insert(rest.begin(), pending.back());
        pending.pop_back();
      }
      result[i] = std::move(pending);
      return result;
    }
    result[i] = std::move(cut->first);
    pending = std::move(cut->second);
  }
  rest = std::move(pending);
  return result;
}

AxisList cleave::spmd::factorsToDim(const Mesh &mesh,
                                    ArrayRef<AxisList> factors,
                                    ArrayRef<int64_t> sizes) {
  AxisList result;
  for (auto [axes, size] : llvm::zip(factors, sizes)) {
    result.append(axes.begin(), axes.end());
    if (mesh.size(axes) != size)
      break;
  }
  return mesh.normalize(result);
}
