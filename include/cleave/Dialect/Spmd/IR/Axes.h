//===- Axes.h - The algebra of mesh axes and factors ------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Plain C++ over named axes: no op and no value appears. A list of axes splits
/// a dimension major to minor. A *sub-axis* `"x":(p)k` is the digit of size k
/// of axis "x" whose more significant digits have product p: for "x" of size
/// 8, `"x":(1)2` is its major bit and `"x":(4)2` its minor one.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_IR_AXES_H
#define CLEAVE_DIALECT_SPMD_IR_AXES_H

#include "cleave/Dialect/Graph/IR/ShardingRule.h"
#include "mlir/Support/StorageUniquer.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/Hashing.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"
#include <cstdint>
#include <optional>
#include <string>

namespace cleave::spmd {

using cleave::ReductionKind;

/// An axis of the mesh, or a digit of one.
struct AxisRef {
  /// The name lives in the context, or as long as the caller needs it.
  llvm::StringRef name;
  /// Product of the sizes of the more significant digits.
  int64_t pre = 1;
  /// Size of the digit; 0 for the whole axis.
  int64_t size = 0;

  bool isWhole() const { return size == 0; }
  bool operator==(const AxisRef &other) const = default;
  std::string str() const;

  AxisRef allocateInto(mlir::StorageUniquer::StorageAllocator &a) const {
    return {a.copyInto(name), pre, size};
  }
};

inline llvm::hash_code hash_value(const AxisRef &axis) {
  return llvm::hash_combine(axis.name, axis.pre, axis.size);
}

/// Copies an array and what its entries refer to.
template <typename T>
llvm::ArrayRef<T> copyAll(mlir::StorageUniquer::StorageAllocator &allocator,
                          llvm::ArrayRef<T> array) {
  llvm::SmallVector<T, 4> copies;
  for (const T &entry : array)
    copies.push_back(entry.allocateInto(allocator));
  return allocator.copyInto(llvm::ArrayRef<T>(copies));
}

using AxisList = llvm::SmallVector<AxisRef, 2>;

/// The axis whose positions are the stages of a pipeline: no tensor is split
/// over it.
inline constexpr llvm::StringLiteral kPipelineAxis = "pp";

/// One axis of a mesh.
struct MeshAxis {
  std::string name;
  int64_t size = 1;
  /// Its positions run one after the other on the same device.
  bool sequential = false;
};

/// Named axes with sizes, in the order of the device numbers, major to minor.
struct Mesh {
  llvm::SmallVector<MeshAxis, 4> axes;

  const MeshAxis *find(llvm::StringRef name) const;
  /// Number of parts that `axis` makes; 1 for an unknown axis.
  int64_t size(const AxisRef &axis) const;
  int64_t size(llvm::ArrayRef<AxisRef> list) const;
  /// Number of positions of the whole mesh.
  int64_t size() const;

  /// Why `axis` is not one of this mesh, or nothing.
  std::optional<std::string> check(const AxisRef &axis) const;

  /// True when the two share a digit.
  bool overlap(const AxisRef &a, const AxisRef &b) const;
  bool overlap(const AxisRef &a, llvm::ArrayRef<AxisRef> list) const;

  /// Joins adjacent digits of one axis, drops parts of size 1, and writes a
  /// digit that is the whole axis as the axis.
  AxisList normalize(llvm::ArrayRef<AxisRef> list) const;
  /// The same without axes of size 1: what really splits.
  AxisList significant(llvm::ArrayRef<AxisRef> list) const;

  /// Cuts `list` after `count` parts: the first list makes exactly `count`
  /// parts, splitting an axis into digits where needed. Nothing when no digit
  /// fits.
  std::optional<std::pair<AxisList, AxisList>>
  split(llvm::ArrayRef<AxisRef> list, int64_t count) const;

  /// The longest list that is major part of both.
  AxisList commonPrefix(llvm::ArrayRef<AxisRef> a,
                        llvm::ArrayRef<AxisRef> b) const;
  bool isPrefix(llvm::ArrayRef<AxisRef> prefix,
                llvm::ArrayRef<AxisRef> list) const;

  /// The mesh of the devices that run an action of one stage and micro-batch
  /// together: its other axes have one position.
  Mesh together() const;

  /// The coordinates, one for each axis of the mesh, of position `number`.
  llvm::SmallVector<int64_t, 4> coordinates(int64_t number) const;
  /// Which of `size(list)` parts the position with `coordinates` holds.
  int64_t partIndex(llvm::ArrayRef<AxisRef> list,
                    llvm::ArrayRef<int64_t> coordinates) const;
  /// Moves `coordinates` to the position that holds part `index` of `list` and
  /// differs in no other digit.
  void setPart(llvm::ArrayRef<AxisRef> list, int64_t index,
               llvm::MutableArrayRef<int64_t> coordinates) const;
  /// The number of the position with `coordinates`.
  int64_t position(llvm::ArrayRef<int64_t> coordinates) const;

  /// The same list in digits so small that each is inside or outside of every
  /// digit of `others`. Nothing where digits cross: "x":(1)4 and "x":(1)6.
  std::optional<AxisList> refine(llvm::ArrayRef<AxisRef> list,
                                 llvm::ArrayRef<AxisRef> others) const;

  /// True for an axis whose positions run one after the other.
  bool isSequential(const AxisRef &axis) const;
  /// Those of `list` along which positions are devices.
  AxisList deviceAxes(llvm::ArrayRef<AxisRef> list) const;

private:
  /// The digit's [pre, pre * size) with whole axes written out.
  std::pair<int64_t, int64_t> interval(const AxisRef &axis) const;
  AxisRef digit(const AxisRef &axis, int64_t pre, int64_t size) const;
};

/// An axis on which a value is a partial result, and how parts combine.
struct PartialAxis {
  AxisRef axis;
  ReductionKind kind = ReductionKind::Sum;

  bool operator==(const PartialAxis &other) const = default;
  PartialAxis allocateInto(mlir::StorageUniquer::StorageAllocator &a) const {
    return {axis.allocateInto(a), kind};
  }
};

inline llvm::hash_code hash_value(const PartialAxis &partial) {
  return llvm::hash_combine(partial.axis, static_cast<int>(partial.kind));
}

using PartialList = llvm::SmallVector<PartialAxis, 1>;

/// The axes that split each dimension of one tensor, and those on which it is
/// partial.
struct Sharding {
  llvm::SmallVector<AxisList, 4> dims;
  /// Which dimensions propagation may split further.
  llvm::SmallVector<bool, 4> open;
  PartialList partial;

  static Sharding replicated(int64_t rank, bool open = false);
  bool isReplicated() const;
  /// True when `axis` splits a dimension.
  bool splits(const Mesh &mesh, const AxisRef &axis) const;
  /// The kind of partial result this is on `axis`, or nothing.
  std::optional<ReductionKind> partialOn(const Mesh &mesh,
                                         const AxisRef &axis) const;
  std::string str() const;
};

/// The shape of one shard; nothing, with `dim` set, when a dimension is not
/// divisible.
std::optional<llvm::SmallVector<int64_t>>
localShape(const Mesh &mesh, const Sharding &sharding,
           llvm::ArrayRef<int64_t> shape, unsigned &dim);

/// `partial` with neighbouring digits of one kind as one, and without axes of
/// size 1.
PartialList joinPartial(const Mesh &mesh, llvm::ArrayRef<PartialAxis> partial);

/// `partial` without the digits of `axes`; nothing where digits cross.
std::optional<PartialList> withoutPartial(const Mesh &mesh,
                                          llvm::ArrayRef<PartialAxis> partial,
                                          llvm::ArrayRef<AxisRef> axes);

/// True when both say the same, up to order and axes of size 1.
bool samePartial(const Mesh &mesh, llvm::ArrayRef<PartialAxis> a,
                 llvm::ArrayRef<PartialAxis> b);
/// True when both split alike, up to axes of size 1.
bool sameDims(const Mesh &mesh, llvm::ArrayRef<AxisList> a,
              llvm::ArrayRef<AxisList> b);

//===----------------------------------------------------------------------===//
// Factors
//===----------------------------------------------------------------------===//

/// For each factor of a rule, the axes that split it, major to minor.
using FactorAxes = llvm::SmallVector<AxisList, 6>;

/// Distributes the axes of one dimension over its factors (of sizes `sizes`,
/// major to minor): a minor factor is split only once all major ones are split
/// completely. Returns one list for each factor and, in `rest`, the axes that
/// no factor can take.
llvm::SmallVector<AxisList, 2> dimToFactors(const Mesh &mesh,
                                            llvm::ArrayRef<AxisRef> axes,
                                            llvm::ArrayRef<int64_t> sizes,
                                            AxisList &rest);

/// The axes of a dimension from those of its factors; stops at the first
/// factor that is not split completely.
AxisList factorsToDim(const Mesh &mesh, llvm::ArrayRef<AxisList> factors,
                      llvm::ArrayRef<int64_t> sizes);

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_IR_AXES_H
