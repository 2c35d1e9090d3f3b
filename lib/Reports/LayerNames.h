//===- LayerNames.h - Names that differ in a layer's number -----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_REPORTS_LAYERNAMES_H
#define CLEAVE_LIB_REPORTS_LAYERNAMES_H

#include "llvm/Support/JSON.h"
#include <set>
#include <string>
#include <vector>

namespace cleave {

/// Replaces the numbered components of names in a text: `h.3.mlp.w` becomes
/// `h.*.mlp.w`. A text without such a name stays.
std::string foldLayers(llvm::StringRef text);

/// The numbered components of names in a text, as one key: `3` of `h.3.mlp.w`;
/// empty if there is none.
std::string layerOf(llvm::StringRef text);

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

#endif // CLEAVE_LIB_REPORTS_LAYERNAMES_H
