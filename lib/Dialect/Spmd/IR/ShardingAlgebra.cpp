//===- ShardingAlgebra.cpp - Shardings as data ----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Spmd/IR/Axes.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/raw_ostream.h"

using namespace cleave::spmd;
using llvm::ArrayRef;

Sharding Sharding::replicated(int64_t rank, bool open) {
  Sharding result;
  result.dims.resize(rank);
  result.open.assign(rank, open);
  return result;
}

bool Sharding::isReplicated() const {
  return partial.empty() &&
         llvm::all_of(dims, [](const AxisList &axes) { return axes.empty(); });
}

bool Sharding::splits(const Mesh &mesh, const AxisRef &axis) const {
  return llvm::any_of(
      dims, [&](const AxisList &axes) { return mesh.overlap(axis, axes); });
}

std::optional<ReductionKind> Sharding::partialOn(const Mesh &mesh,
                                                 const AxisRef &axis) const {
  for (const PartialAxis &entry : partial)
    if (mesh.overlap(axis, entry.axis))
      return entry.kind;
  return std::nullopt;
}

std::string Sharding::str() const {
  std::string text;
  llvm::raw_string_ostream os(text);
  os << "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    os << (i ? ", {" : "{");
    llvm::interleaveComma(dims[i], os,
                          [&](const AxisRef &a) { os << a.str(); });
    if (open[i])
      os << (dims[i].empty() ? "?" : ", ?");
    os << "}";
  }
  os << "]";
  if (!partial.empty()) {
    os << ", partial = {";
    llvm::interleaveComma(partial, os, [&](const PartialAxis &p) {
      if (p.kind != ReductionKind::Sum)
        os << (p.kind == ReductionKind::Max ? "max " : "min ");
      os << p.axis.str();
    });
    os << "}";
  }
  return text;
}

std::optional<llvm::SmallVector<int64_t>>
cleave::spmd::localShape(const Mesh &mesh, const Sharding &sharding,
                         ArrayRef<int64_t> shape, unsigned &dim) {
  llvm::SmallVector<int64_t> result(shape);
  for (dim = 0; dim < shape.size(); ++dim) {
    int64_t parts = mesh.size(sharding.dims[dim]);
    if (shape[dim] % parts != 0)
      return std::nullopt;
    result[dim] /= parts;
  }
  return result;
}

/// The digits on which a value is partial in the order of the mesh, by kind.
static AxisList partialDigits(const Mesh &mesh, ArrayRef<PartialAxis> partial,
                              ReductionKind kind) {
  AxisList digits;
  for (const PartialAxis &entry : partial)
    if (entry.kind == kind && mesh.size(entry.axis) > 1)
      digits.push_back(entry.axis);
  llvm::sort(digits, [](const AxisRef &a, const AxisRef &b) {
    return std::pair(a.name, a.pre) < std::pair(b.name, b.pre);
  });
  return mesh.normalize(digits);
}

PartialList cleave::spmd::joinPartial(const Mesh &mesh,
                                      ArrayRef<PartialAxis> partial) {
  PartialList result;
  for (ReductionKind kind :
       {ReductionKind::Sum, ReductionKind::Max, ReductionKind::Min})
    for (const AxisRef &digit : partialDigits(mesh, partial, kind))
      result.push_back({digit, kind});
  return result;
}

std::optional<PartialList>
cleave::spmd::withoutPartial(const Mesh &mesh, ArrayRef<PartialAxis> partial,
                             ArrayRef<AxisRef> axes) {
  PartialList result;
  for (const PartialAxis &entry : partial) {
    if (!mesh.overlap(entry.axis, axes)) {
      result.push_back(entry);
      continue;
    }
    std::optional<AxisList> digits = mesh.refine(entry.axis, axes);
    if (!digits) {
      PartialList joined = joinPartial(mesh, partial);
      if (joined.size() < partial.size())
        return withoutPartial(mesh, joined, axes);
      return std::nullopt;
    }
    llvm::erase_if(*digits, [&](const AxisRef &digit) {
      return mesh.overlap(digit, axes);
    });
    for (const AxisRef &digit : mesh.normalize(*digits))
      result.push_back({digit, entry.kind});
  }
  return result;
}

bool cleave::spmd::samePartial(const Mesh &mesh, ArrayRef<PartialAxis> a,
                               ArrayRef<PartialAxis> b) {
  return llvm::all_of(
      std::initializer_list<ReductionKind>{
          ReductionKind::Sum, ReductionKind::Max, ReductionKind::Min},
      [&](ReductionKind kind) {
        return partialDigits(mesh, a, kind) == partialDigits(mesh, b, kind);
      });
}

bool cleave::spmd::sameDims(const Mesh &mesh, ArrayRef<AxisList> a,
                            ArrayRef<AxisList> b) {
  return llvm::equal(a, b, [&](const AxisList &x, const AxisList &y) {
    return mesh.significant(x) == mesh.significant(y);
  });
}
