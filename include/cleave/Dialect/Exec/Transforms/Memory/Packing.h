//===- Packing.h - Intervals packed into one arena --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_EXEC_TRANSFORMS_MEMORY_PACKING_H
#define CLEAVE_DIALECT_EXEC_TRANSFORMS_MEMORY_PACKING_H

#include "llvm/ADT/ArrayRef.h"
#include <cstdint>
#include <map>
#include <vector>

namespace cleave::exec {

/// Every buffer starts at a multiple of this many bytes.
inline constexpr int64_t kAlignment = 64;

/// A buffer that is in use from time `begin` to time `end`, both included.
struct Interval {
  int64_t begin = 0, end = 0, bytes = 0;
  bool overlaps(const Interval &other) const {
    return begin <= other.end && other.begin <= end;
  }
};

/// The offset of each interval.
struct Packing {
  std::vector<int64_t> offsets;
  int64_t peak = 0;
  /// The peak bytes in use: a lower bound of every packing.
  int64_t lowerBound = 0;
};

/// The peak bytes in use, each buffer rounded up to the alignment, and the time
/// of the peak.
int64_t maxLive(llvm::ArrayRef<Interval> intervals, int64_t *when = nullptr);

/// Packs so that intervals that overlap in time do not overlap in space.
/// Several orders are tried, and the best is improved; the result depends on
/// the intervals alone.
Packing pack(llvm::ArrayRef<Interval> intervals);

/// Packs equal lists of intervals once: positions of a pipeline are alike.
class Packings {
public:
  const Packing &pack(llvm::ArrayRef<Interval> intervals);
  /// The number of different lists so far.
  size_t size() const { return known.size(); }

private:
  struct Before {
    bool operator()(const std::vector<Interval> &a,
                    const std::vector<Interval> &b) const;
  };
  std::map<std::vector<Interval>, Packing, Before> known;
};

} // namespace cleave::exec

#endif // CLEAVE_DIALECT_EXEC_TRANSFORMS_MEMORY_PACKING_H
