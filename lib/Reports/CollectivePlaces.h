//===- CollectivePlaces.h - Where and why collectives are -------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_REPORTS_COLLECTIVEPLACES_H
#define CLEAVE_LIB_REPORTS_COLLECTIVEPLACES_H

#include "llvm/Support/JSON.h"
#include <set>
#include <string>
#include <vector>

namespace cleave {

/// The collectives of one run of an entry that have kind, axes, line and cause
/// in common.
struct CollectivePlace {
  /// Of folded ones, line and cause are those of the first.
  std::string kind, axes, line, cause;
  int64_t count = 0;
  double bytes = 0;
  /// The layers of those that are folded.
  std::set<std::string> layers;

  /// `4 all_reduce over "tp", 2.0 KiB at model.py:7, because 4 x "h.*.w" ...`.
  std::string describe() const;
};

/// Returns the collectives of an entry of `communicationReport`, in its order;
/// with `fold`, those that differ in the numbers of layers alone are one.
std::vector<CollectivePlace> collectivePlaces(const llvm::json::Object &sent,
                                              bool fold);

} // namespace cleave

#endif // CLEAVE_LIB_REPORTS_COLLECTIVEPLACES_H
